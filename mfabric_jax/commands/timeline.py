"""`mfabric timeline`: what every stage does when."""

import dataclasses
import sys

import tyro

from mfabric_jax.commands import shared
from mfabric_jax.commands.setup import SetUp


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(SetUp):
    """One iteration of a model on a fabric: what every stage does when, and what it spends the iteration on."""

    preset: str = "paper"
    """paper (its text) or released (its authors' code): defaults of --rule, --flows, --eps-waits and --matrices."""
    model: str = "mixtral-8x7b"
    """mixtral-8x22b, mixtral-8x7b, llama-moe, qwen-moe, qwen-moe-ep16, deepseek-r1, deepseek-v3"""
    fabric: str = "mfabric"
    """fat-tree, oversub-fat-tree, rail-optimized, rail-only, topoopt, mfabric, nvl72, mfabric-cpo"""
    nic_gbps: float = 400.0
    """Bandwidth of every NIC; prices are known from 100 to 800."""
    nic_use: str = "own"
    """own: each GPU uses its own NIC; pooled: a server's NICs carry anything."""
    policy: str = "greedy"
    """How mFabric chooses circuits: greedy, uniform, random, static, previous, topoopt, matching, threshold,
    local-search, relaxed, joint, index, learned, exact; a .policy file of mfabric train; or FILE.py:FUNCTION."""
    rule: str = "printed"
    """greedy's rule: printed, released, next."""
    routing: str = "unsplit"
    """How mFabric uses them: unsplit, best-path, split, relay."""
    optical_degree: int = 6
    """NICs of a server on the optical switch."""
    electrical_nics: int = 2
    """NICs of a server on the electrical fabric."""
    delay_s: float | None = None
    """Reconfiguration delay of the optical switch (default: 0.025)."""
    first: str = "block"
    """Circuits of the first all-to-all of a forward block: block, reuse, random, predict, pays (see the docs)."""
    predictor: str | None = None
    """Of demand, for --first predict: transition, previous-layer, previous-iteration, moving-average, uniform."""
    eps_waits: tyro.conf.FlagCreatePairsOff[bool] = False
    """Traffic on packet switches waits for a reconfiguration too, not only that on circuits."""
    reactivation_s: float = 0.0
    """NICs come back so much after the optical switch has turned (measured on a testbed: 5.67)."""
    flows: str = "spray"
    """spray, or single: each flow takes one random shortest path."""
    matrices: str = "each"
    """each block and micro-batch has its own traffic; block: micro-batches and iterations alike; one: all alike."""
    overlap_parts: int = 1
    """Parts in which dispatch, experts and combine overlap (1: one after the other)."""
    dp_overlap: tyro.conf.FlagCreatePairsOff[bool] = False
    """Gradients are all-reduced beside the backward pass."""
    trace: str | None = None
    """Recorded routing: a file or folder in any format that mfabric traces --help lists."""
    records: str | None = None
    """FIRST-LAST record of the trace (default for a gate trace: 2011-5001)."""
    iterations: int = 1
    """Iterations to draw; the last is shown."""
    compute: str | None = None
    """calibrated or achieved (--gpu at --efficiency); default: calibrated unless gpu or efficiency is given."""
    gpu: str = "A100-80GB-SXM"
    """A100-80GB-SXM, H100-SXM, H800-SXM, H200-SXM, B200-HGX, GB200-NVL72."""
    efficiency: float = 0.5
    """Achieved over peak FLOP/s."""
    out: str | None = None
    """Every segment to a .json file for Perfetto (ui.perfetto.dev) or chrome://tracing."""
    picture: str | None = None
    """The iteration as a .png, .pdf or .svg file."""
    seed: int = 0
    dtype: str = "float32"
    """float32, float64."""
    device: str | None = None
    """cpu, gpu, tpu (default: what JAX finds)."""


def run(options: Options) -> int:
    """Returns the exit status."""
    shared.start_jax(options.dtype, options.device)
    from mfabric_jax import report, study
    from mfabric_jax.report import figures
    from mfabric_jax.report.perfetto import check_trace
    from mfabric_jax.report.style import check_picture

    given = shared.as_given(options)
    out, picture = given.pop("out"), given.pop("picture")
    del given["device"], given["preset"]
    for one, several in (("model", "models"), ("fabric", "fabrics"), ("nic_gbps", "nic_gbps"), ("nic_use", "nic_use")):
        given[several] = (given.pop(one),)
    given["records"] = shared.record_range(given["records"])
    config = study.Compare(**given)
    if out is not None:
        check_trace(out)
    if picture is not None:
        check_picture(picture)
    segments, rows, effective = study.example_timeline(config)
    title = f"{options.model} on {options.fabric} at {options.nic_gbps:g} Gbps"
    print(f"{title}: an iteration of {rows[0]['iteration_s']:.4g} s; seconds of every pipeline stage")
    parts = {"compute_s": "compute", "tp_comm_s": "TP", "ep_comm_s": "EP", "dp_comm_s": "DP"}
    parts |= {"reconfig_s": "reconf", "bubble_s": "bubble"}
    print(report.plain(rows, ["stage", *(report.Column(key, name) for key, name in parts.items())]))
    if out is not None:
        print(report.write_perfetto(segments, out, effective), file=sys.stderr)
    if picture is not None:
        print(figures.gantt(segments, picture, title), file=sys.stderr)
    return 0
