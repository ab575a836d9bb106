"""`mfabric evaluate`: policies that see forecasts."""

import dataclasses
import pathlib
import sys

from mfabric_jax.commands import shared
from mfabric_jax.commands.options import settings


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Mean time over the degree bound of policies that see forecasts, on demand of other seeds and recorded iterations.

    Lists are separated by commas. Intervals are 95 % by bootstrap.
    """

    policies: tuple[str, ...] = (
        *("learned", "index", "greedy", "greedy-next", "threshold", "local-search", "uniform", "static"),
    )
    """Names, or files that mfabric train wrote; static: greedy-next, once, from the mean of other demand."""
    routings: tuple[str, ...] = ("unsplit", "split", "relay", "relay-planned")
    """relay: shares know the true demand; relay-planned: shares from the forecast, a network's by itself."""
    sizes: tuple[int, ...] = (8, 16)
    """Servers of the region."""
    sigmas: tuple[float, ...] = (0.0, 0.1, 0.3, 0.6, 1.0)
    """Standard deviations of the logarithms of forecasts; what has a past is predicted too."""
    samples: int = 70
    """All-to-alls of each workload."""
    share_steps: int = 100
    """Gradient steps towards relay shares."""
    optical_degree: int = 6
    """NICs of a server on the optical switch."""
    electrical_nics: int = 2
    """NICs of a server on the electrical fabric."""
    relay_efficiency: float = 1.0
    """Of forwarding, at most 1."""
    trace: str | None = None
    """Recorded routing to judge by too (16 ranks)."""
    records: tuple[int, int] | None = None
    """FIRST-LAST record of the trace (default for a gate trace: 2011-5001)."""
    out: str | None = None
    """Rows to a .csv or .parquet file."""
    figures: str | None = None
    """Picture to a folder."""
    seed: int = 0
    device: str | None = None
    """cpu, gpu, tpu (default: what JAX finds)."""


def run(options: Options) -> int:
    """Returns the exit status."""
    shared.start_jax("float32", options.device)
    from tqdm import tqdm

    from mfabric_jax import learning, report
    from mfabric_jax.report.figures import forecasts as draw
    from mfabric_jax.report.tables import forecast_table

    out, figures = options.out, options.figures
    config = settings(learning.Evaluation, options)
    shared.check_outputs(out, figures)
    rows, complete = [], False
    try:
        with tqdm(desc="evaluate", unit="row", file=sys.stderr, disable=None) as bar:
            for row in learning.evaluate_policies(config, progress=bar.set_postfix_str):
                rows.append(row)
                bar.update()
        complete = True
    finally:
        if out is not None and rows:
            print(report.write_rows(rows, out, config.effective() | {"complete": complete}), file=sys.stderr)
    print(forecast_table(rows))
    if figures is not None:
        print(draw(rows, pathlib.Path(figures) / "policies_under_forecasts.png"), file=sys.stderr)
    return 0
