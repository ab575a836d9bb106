"""`mfabric evaluate`: policies on forecast demand."""

import dataclasses
import functools
import pathlib

from mfabric_jax.apps.learning.judging import Evaluation
from mfabric_jax.commands import shared


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(shared.RowsAndPictures):
    """Evaluate policies on forecasts of demand outside their training data: mean time over the degree bound.

    Commas separate lists. Intervals are 95 % bootstrap intervals.
    """

    config: Evaluation


def run(options: Options) -> None:
    shared.start_jax("float32", options.device)
    from mfabric_jax.apps import learning
    from mfabric_jax.report.tables import forecast_table

    config, out, figures = options.config, options.out, options.figures
    shared.check_outputs(out, figures=figures)
    rows_of = functools.partial(learning.evaluate_policies, config)
    columns = options.columns("evaluate")
    rows = shared.collect_rows("evaluate", out, config.effective(), rows_of, None, columns)
    print(forecast_table(rows))
    if figures is not None:
        from mfabric_jax.report.figures import forecasts as draw

        shared.tell(draw(rows, pathlib.Path(figures) / "policies_under_forecasts.png"))
