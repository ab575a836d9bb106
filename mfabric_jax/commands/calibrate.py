"""`mfabric calibrate`: computation rates from published times."""

import dataclasses
import sys
from typing import Literal

from mfabric_jax.commands import shared
from mfabric_jax.commands.options import settings
from mfabric_jax.simulation.calibration import PUBLISHED
from mfabric_jax.study.config import Compare
from mfabric_jax.study.settings import TrafficSettings


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(TrafficSettings):
    """Fit the computation time of models to published fat-tree times (arXiv 2501.03905): one rate each.

    Three ratios a model are published; skew comes from the traffic. Every other fabric is then predicted. `compare`
    uses what ships with the package, one calibration for each preset. There are as many micro-batches as pipeline
    stages and no head or optimizer step, whatever other commands take: the published times are of such iterations.
    """

    models: tuple[str, ...] = tuple(PUBLISHED)
    """Those with published times: mixtral-8x22b, mixtral-8x7b, llama-moe, qwen-moe"""
    preset: str = "paper"
    """paper (its text), released (its authors' code) or today: defaults of the options below and of --matrices."""
    flows: Literal["spray", "single"] = "spray"
    """spray, or single: each flow takes one random shortest path."""
    nic_use: tuple[str, ...] = ("own",)
    """own: each GPU uses its own NIC; pooled: a server's NICs carry anything."""
    expert_load: Literal["balanced", "received"] = "balanced"
    """How long experts compute: balanced, or as the busiest rank does for what it received."""
    out: str | None = None
    """The calibration, with its residuals and its configuration, to a .json file."""
    seed: int = 0
    """Of everything that is drawn."""
    device: str | None = None
    """cpu, gpu, tpu (default: what JAX finds)."""


def run(options: Options) -> int:
    """Returns the exit status."""
    shared.start_jax("float32", options.device)
    from tqdm import tqdm

    from mfabric_jax import report
    from mfabric_jax.simulation import calibrate
    from mfabric_jax.simulation._calibrate import calibration_rows, check_calibration, write_calibration

    models = options.models
    config = settings(Compare, options)
    if options.out is not None:
        check_calibration(options.out)
    with tqdm(total=len(models), desc="calibrate", unit="model", file=sys.stderr, disable=None) as bar:
        found = calibrate(config, models, progress=lambda _: bar.update())
    columns = ["model", "nic_gbps", report.Column("efficiency", "rate over A100 peak")]
    columns += [report.Column("compute_s", "computation [s]"), "fitted", "published"]
    print("fat-tree time over that at 800 Gbps")
    print(report.plain(calibration_rows(found), [*columns, report.Column("off", percent=True)]))
    if options.out is not None:
        print(write_calibration(found, config, options.out), file=sys.stderr)
    return 0
