"""`mfabric evaluate`: policies that see forecasts."""

import dataclasses
import pathlib
import sys

from mfabric_jax.commands import shared
from mfabric_jax.learning.judging import Evaluation


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Mean time over the degree bound of policies that see forecasts, on demand of other seeds and recorded iterations.

    Lists are separated by commas. Intervals are 95 % by bootstrap.
    """

    config: Evaluation
    out: str | None = None
    """Rows to a .csv or .parquet file."""
    figures: str | None = None
    """Picture to a folder."""
    device: str | None = None
    """cpu, gpu, tpu (default: what JAX finds)."""


def run(options: Options) -> int:
    """Returns the exit status."""
    shared.start_jax("float32", options.device)
    from tqdm import tqdm

    from mfabric_jax import learning
    from mfabric_jax.report.figures import forecasts as draw
    from mfabric_jax.report.kept import keeping
    from mfabric_jax.report.tables import forecast_table

    config, out, figures = options.config, options.out, options.figures
    shared.check_outputs(out, figures)
    with (
        keeping(out, config.effective()) as kept,
        tqdm(desc="evaluate", unit="row", initial=kept.found, file=sys.stderr, disable=None) as bar,
    ):
        for row in learning.evaluate_policies(config, progress=bar.set_postfix_str, start=kept.found):
            kept.add([row])
            bar.update()
    rows = kept.rows
    shared.tell_written(out)
    print(forecast_table(rows))
    if figures is not None:
        print(draw(rows, pathlib.Path(figures) / "policies_under_forecasts.png"), file=sys.stderr)
    return 0
