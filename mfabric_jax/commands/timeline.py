"""`mfabric timeline`: what every stage does when."""

import dataclasses
import sys

from mfabric_jax.commands import shared
from mfabric_jax.study.config import Case


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """What every pipeline stage does when in one iteration; of several iterations the last is shown."""

    config: Case
    preset: str | None = None
    """paper (its text) or released (its authors' code): defaults of --rule, --flows, --eps-waits and --matrices, and as
    many micro-batches as stages."""
    out: str | None = None
    """Every segment to a .json file for Perfetto (ui.perfetto.dev) or chrome://tracing."""
    picture: str | None = None
    """The iteration as a .png, .pdf or .svg file."""
    device: str | None = None
    """cpu, gpu, tpu (default: what JAX finds)."""


def run(options: Options) -> int:
    """Returns the exit status."""
    config = options.config
    shared.start_jax(config.dtype, options.device)
    from mfabric_jax import report, study
    from mfabric_jax.report import figures
    from mfabric_jax.report.perfetto import check_trace
    from mfabric_jax.report.style import check_picture

    if options.out is not None:
        check_trace(options.out)
    if options.picture is not None:
        check_picture(options.picture)
    segments, rows, effective = study.example_timeline(config)
    (model,) = effective["workloads"]
    title = f"{model} on {config.fabric} at {config.nic_gbps:g} Gbps"
    print(f"{title}: an iteration of {rows[0]['iteration_s']:.4g} s; seconds of every pipeline stage")
    parts = {"compute_s": "compute", "tp_comm_s": "TP", "ep_comm_s": "EP", "dp_comm_s": "DP"}
    parts |= {"reconfig_s": "reconf", "bubble_s": "bubble"}
    print(report.plain(rows, ["stage", *(report.Column(key, name) for key, name in parts.items())]))
    for said in shared.memory_notes(config, (config.model,)):
        print(said)
    if options.out is not None:
        print(report.write_perfetto(segments, options.out, effective), file=sys.stderr)
    if options.picture is not None:
        print(figures.gantt(segments, options.picture, title), file=sys.stderr)
    return 0
