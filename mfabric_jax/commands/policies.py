"""`mfabric policies bench`: every policy on every kind of demand."""

import dataclasses
import pathlib
import sys
from typing import Annotated

import tyro

from mfabric_jax.commands import shared
from mfabric_jax.commands.options import settings


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Score policies: time over the degree bound and over proved optima, decisions per second in a batch.

    Lists are separated by commas.
    """

    what: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="bench")]
    """bench: a row for each policy, workload, number of servers, routing and forecast error."""
    policies: tuple[str, ...] | None = None
    """Names, or files that mfabric train wrote (default: all but previous and exact)."""
    workloads: tuple[str, ...] | None = None
    """zipf, hot, sparse, block, dense, lognormal, skewed (default: these), recorded (needs --trace)."""
    servers: tuple[int, ...] = (8, 16)
    """Servers of the region."""
    routings: tuple[str, ...] = ("unsplit", "split", "relay")
    """unsplit, best-path, split, relay."""
    sigmas: tuple[float, ...] = (0.0,)
    """Standard deviations of the logarithms of forecasts."""
    instances: int = 60
    """Demands of a workload."""
    optimum_s: float = 0.0
    """Seconds of exact search for each demand, unsplit and split (0: none)."""
    trace: str | None = None
    """Recorded routing (16 ranks)."""
    records: tuple[int, int] | None = None
    """FIRST-LAST record of the trace (default for a gate trace: 2011-5001)."""
    nic_gbps: float = 400.0
    """Bandwidth of every NIC."""
    optical_degree: int = 6
    """NICs of a server on the optical switch."""
    electrical_nics: int = 2
    """NICs of a server on the electrical fabric."""
    relay_efficiency: float = 1.0
    """Of forwarding, at most 1."""
    out: str | None = None
    """Rows to a .csv or .parquet file."""
    figures: str | None = None
    """Picture to a folder."""
    seed: int = 0
    dtype: str = "float32"
    """float32 or float64."""
    device: str | None = None
    """cpu, gpu, tpu (default: what JAX finds)."""


def run(options: Options) -> int:
    """Returns the exit status."""
    shared.start_jax(options.dtype, options.device)
    from tqdm import tqdm

    from mfabric_jax import learning, report
    from mfabric_jax.learning.judging import RECORDED
    from mfabric_jax.report.figures import scoreboard as draw
    from mfabric_jax.report.tables import scoreboard_table
    from mfabric_jax.traffic.demand_families import FAMILIES

    out, figures = options.out, options.figures
    every = {"workloads": (*FAMILIES, RECORDED)} if options.workloads is None and options.trace is not None else {}
    config = settings(learning.Scoreboard, options, **every)
    shared.check_outputs(out, figures)
    rows = []
    try:
        with tqdm(total=config.rows, desc="policies bench", unit="row", file=sys.stderr, disable=None) as bar:
            for row in learning.scoreboard(config, progress=bar.set_postfix_str):
                rows.append(row)
                bar.update()
    finally:
        if out is not None and rows:
            effective = config.effective() | {"complete": len(rows) == config.rows}
            print(report.write_rows(rows, out, effective), file=sys.stderr)
    print(scoreboard_table(rows))
    if figures is not None:
        print(draw(rows, pathlib.Path(figures) / "policies.png"), file=sys.stderr)
    return 0
