"""`mfabric policies bench`: every policy on every kind of demand."""

import dataclasses
import pathlib
import sys
from typing import Annotated, Literal

from mfabric_jax.commands import shared
from mfabric_jax.commands.words import Positional
from mfabric_jax.learning.judging import Scoreboard


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Score policies: time over the degree bound and over proved optima, decisions per second in a batch.

    Lists are separated by commas.
    """

    what: Annotated[Literal["bench"], Positional("bench", "to know what first; allowed: bench", "policies command")]
    """bench: a row for each policy, workload, number of servers, routing and forecast error."""
    config: Scoreboard
    out: str | None = None
    """Rows to a .csv or .parquet file."""
    figures: str | None = None
    """Picture to a folder."""
    device: str | None = None
    """cpu, gpu, tpu (default: what JAX finds)."""


def run(options: Options) -> int:
    """Returns the exit status."""
    config = options.config
    shared.start_jax(config.dtype, options.device)
    from tqdm import tqdm

    from mfabric_jax import learning
    from mfabric_jax.report.figures import scoreboard as draw
    from mfabric_jax.report.kept import keeping
    from mfabric_jax.report.tables import scoreboard_table
    from mfabric_jax.traffic.demand_families import gate_trace

    out, figures = options.out, options.figures
    shared.check_outputs(out, figures)
    with (
        keeping(out, config.effective()) as kept,
        tqdm(
            total=config.rows, desc="policies bench", unit="row", initial=kept.found, file=sys.stderr, disable=None
        ) as bar,
    ):
        for row in learning.scoreboard(config, progress=bar.set_postfix_str, start=kept.found):
            kept.add([row])
            bar.update()
    rows = kept.rows
    shared.tell_written(out)
    print(scoreboard_table(rows))
    if config.trace is not None:
        print(f"traffic: {gate_trace(config.trace, config.records, config.axes).source}")
    if figures is not None:
        print(draw(rows, pathlib.Path(figures) / "policies.png"), file=sys.stderr)
    return 0
