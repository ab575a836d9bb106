"""`mfabric policies regimes`: policies over time, against the clairvoyant trajectory."""

import dataclasses
import functools

from mfabric_jax.apps.learning.regimes import Regimes
from mfabric_jax.commands import shared


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(shared.RowOptions, shared.OnDevice):
    """Compare policies that decide again and again whether to reconfigure, in regimes of demand, NICs and forecasts.

    Prints how much longer each takes than the best trajectory for demand that is known in advance. A regime takes
    minutes on two cores; its rows count as done together. The same command resumes an interrupted run.

    "X always" reconfigures to X's circuits before every all-to-all. "X pays" does so only where they save the delay at
    the next all-to-all (circuits.reconfigure = pays looks further, by how fast circuits age).
    "tuned horizon": greedy, greedy-next or uniform, and the number of all-to-alls in which new circuits must save the
    delay; those that took least time on the other seeds. "renewal": `Renewal` with circuits of uniform, greedy,
    greedy-next and threshold(starts=1). "renewal of greedy": without threshold. "renewal of X", for X of --also: X and
    uniform. "learned": renewal, with circuits of the network `ahead`, too. "next N known": the best decisions where the
    next N demands are known.

    Rows of renewal and learned pool losses over all chains of the regime and know how many all-to-alls are left.
    Policies of --also know neither. Pooled seeds are not independent, so intervals are rough. With --all-columns, the
    columns beyond_renewal of --out are differences to the row renewal, paired by seed.
    """

    config: Regimes
    out: str | None = None
    """Write the rows to this .csv or .parquet file."""
    picture: str | None = None
    """Draw the gaps to this .png, .pdf or .svg file."""


def run(options: Options) -> None:
    config = options.config
    shared.start_jax("float32", options.device)
    from mfabric_jax.apps.learning.regimes import compare_regimes
    from mfabric_jax.apps.learning.sources import BYTES_PER_SERVER, Drift
    from mfabric_jax.report.regimes import Load, gaps_table

    shared.check_outputs(options.out, picture=options.picture)
    rows_of = functools.partial(compare_regimes, config)
    columns = options.columns("policies regimes")
    effective, total, blocks = config.effective(), config.rows, config.blocks
    rows = shared.collect_rows("policies regimes", options.out, effective, rows_of, total, columns, blocks)
    print(gaps_table(rows, Load(BYTES_PER_SERVER, Drift.burst, Drift.burst_times), options.out))
    if options.picture is not None:
        from mfabric_jax.report.figures.regimes import draw_gaps

        shared.tell(draw_gaps(rows, options.picture))
