"""`mfabric policies bench`: every policy on every kind of demand."""

import dataclasses
import functools
from typing import Annotated, Literal

from mfabric_jax.apps.learning.judging import Scoreboard
from mfabric_jax.commands import shared
from mfabric_jax.commands.words import Positional


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(shared.RowOptions, shared.OnDevice):
    """Benchmark policies: time over the degree bound and over proved optima, decisions per second in a batch.

    policies bench, described here, judges policies of one demand; policies regimes judges them over time, where
    reconfiguring costs (mfabric policies regimes --help). Commas separate lists.
    """

    what: Annotated[
        Literal["bench"], Positional("bench", "a subcommand first; allowed: bench, regimes", "policies command")
    ]
    """bench: a row per policy, workload, number of servers, routing and forecast error."""
    config: Scoreboard
    out: str | None = None
    """Write the rows to this .csv or .parquet file."""


def run(options: Options) -> None:
    config = options.config
    shared.start_jax(config.dtype, options.device)
    from mfabric_jax.apps import learning
    from mfabric_jax.report.tables import scoreboard_table
    from mfabric_jax.traffic.demand_families import gate_trace

    shared.check_outputs(options.out)
    rows_of = functools.partial(learning.scoreboard, config)
    columns = options.columns("policies bench")
    rows = shared.collect_rows("policies bench", options.out, config.effective(), rows_of, config.rows, columns)
    print(scoreboard_table(rows))
    if config.trace is not None:
        print(f"traffic: {gate_trace(config.trace, config.records, config.axes).source}")
