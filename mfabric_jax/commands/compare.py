"""`mfabric compare`: fabrics compared for training."""

import dataclasses
import sys

from mfabric_jax.commands import shared
from mfabric_jax.study.config import Compare


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Compare fabrics for MoE training: one row per model, fabric and bandwidth.

    Lists are separated by commas. Defaults: five models, four fabrics, 100 to 800 Gbps, routing shares measured on
    trained models, compute time calibrated to published fat-tree times (deepseek-r1: an A100 at half its peak).
    """

    config: Compare
    preset: str | None = None
    """paper (its text), released (its authors' code) or today: defaults of other options. Without one it is today, with
    fabrics in their usual variants."""
    out: str | None = None
    """Rows to a .csv or .parquet file."""
    figures: str | None = None
    """Pictures to a folder."""
    device: str | None = None
    """cpu, gpu, tpu (default: what JAX finds)."""


def run(options: Options) -> int:
    """Returns the exit status."""
    config = options.config
    shared.start_jax(config.dtype, options.device)
    from mfabric_jax import report
    from mfabric_jax.study._compare import not_known
    from mfabric_jax.study._examples import examples

    shared.check_outputs(options.out, options.figures)
    rows, stopped = _run(config, options.out)
    print(report.comparison(rows) if rows else "no rows")
    lacking = not_known(config, config.models[0], config.fabrics, config.nic_gbps[0])
    for line in (
        *report.remarks(rows, {"tiers": config.tiers, "nics": config.server_nics, "server": vars(config.server)}),
        *shared.memory_notes(config, config.models),
        *lacking,
    ):
        print(line)
    for said in dict.fromkeys(row["traffic"] for row in rows if config.trace is not None):
        print(f"traffic: {said}")
    if stopped:
        more = "" if options.out is None else "; the same command goes on"
        print(f"compare: interrupted; rows of the other models and fabrics are missing{more}.", file=sys.stderr)
        return 130
    if options.figures is not None:
        regions, timelines = examples(config)
        for path in report.save_all(rows, options.figures, regions, timelines):
            print(path, file=sys.stderr)
    return 0


def _run(config: Compare, out: str | None) -> tuple[list[dict], bool]:
    """The rows, saved even when interrupted; and whether that happened."""
    from tqdm import tqdm

    from mfabric_jax import fabric, study
    from mfabric_jax.report.kept import Kept, keeping
    from mfabric_jax.study._compare import compare_each, effective
    from mfabric_jax.study._scenario import variants_of

    kept, stopped = Kept(None), False
    optical = sum(fabric.get(name).reconfigures for name in config.fabrics)
    ways = sum(len(variants_of(config, name)) for name in config.fabrics) * len(config.nic_use)
    total = len(config.models) * (ways + optical * (len(config.circuits_for) - 1))
    try:
        with (
            keeping(out, effective(config)) as kept,
            tqdm(total=total, desc="compare", unit="fabric", initial=kept.found, file=sys.stderr, disable=None) as bar,
        ):

            def progress(one: study.Scenario) -> None:
                bar.set_postfix_str(f"{one.workload.model} on {one.fabric.name}")
                bar.update()

            for number, rows in compare_each(config, done=set(kept.done), progress=progress):
                kept.add(rows, number)
    except KeyboardInterrupt:
        stopped = True
    if out is not None and kept.rows:
        print(f"{len(kept.rows)} rows in {out}", file=sys.stderr)
    return kept.rows, stopped
