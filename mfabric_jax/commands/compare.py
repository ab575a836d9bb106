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
    preset: str = "paper"
    """paper (its text) or released (its authors' code): defaults of --rule, --flows, --eps-waits and --matrices."""
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
    for line in (*report.remarks(rows), *shared.memory_notes(config, config.models), *lacking):
        print(line)
    for said in dict.fromkeys(row["traffic"] for row in rows if config.trace is not None):
        print(f"traffic: {said}")
    if stopped:
        print("compare: interrupted; rows of the other models and fabrics are missing.", file=sys.stderr)
        return 130
    if options.figures is not None:
        regions, timelines = examples(config)
        for path in report.save_all(rows, options.figures, regions, timelines):
            print(path, file=sys.stderr)
    return 0


def _run(config: Compare, out: str | None) -> tuple[list[dict], bool]:
    """The rows, saved even when interrupted; and whether that happened."""
    from tqdm import tqdm

    from mfabric_jax import fabric, report, study
    from mfabric_jax.study._compare import effective

    rows: list[dict] = []
    stopped = False
    optical = sum(fabric.get(name).reconfigures for name in config.fabrics)
    spans = len(config.fabrics) * len(config.nic_use) + optical * (len(config.circuits_for) - 1)
    total = len(config.models) * spans
    with tqdm(total=total, desc="compare", unit="fabric", file=sys.stderr, disable=None) as bar:

        def progress(one: study.Scenario) -> None:
            bar.set_postfix_str(f"{one.workload.model} on {one.fabric.name}")
            bar.update()

        try:
            for row in study.compare(config, progress=progress):
                rows.append(row)
        except KeyboardInterrupt:
            stopped = True
        finally:
            if out is not None and rows:
                report.write_rows(rows, out, effective(config) | {"complete": not stopped})
                tqdm.write(f"{len(rows)} rows in {out}", file=sys.stderr)
    return rows, stopped
