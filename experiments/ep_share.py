"""Which part of an iteration are expert-parallel all-to-alls, beside what was measured on a production cluster?

Measured (400 Gbps, H800, waits for stragglers included): Mixtral 8x7B 33-55 %, LLaMA-MoE 42-58 %, Qwen-MoE up to 68 %.
Published iteration times imply another rate of computation (`mfabric calibrate`), under which shares are lower: both
cannot be met. Here: H800 GPUs at several achieved rates with one data-parallel replica, then the calibrated rates.
Source: arXiv 2501.03905, measurements and evaluation.
"""

import dataclasses

from mfabric_jax.case import Cases
from mfabric_jax.report.figures.groups import Dots
from mfabric_jax.report.figures.panels import Axis, Picture, looks

from .rows import Rows, adding, listed, picked, then
from .script import Found, Script, Sweep, Verdict, against, check, compared, reach

MEASURED = {"mixtral-8x7b": (0.33, 0.55), "llama-moe": (0.42, 0.58), "qwen-moe": (None, 0.68)}
PRODUCTION = {"gpu.name": "H800-SXM", "gpu.nvlink_gigabytes_per_s": 200.0, "job.parallel.dp": 1}
SHARES = {"share": "of the iteration", "busy_share": "without pipeline bubbles"}


@dataclasses.dataclass(frozen=True)
class Config(Sweep):
    """What to simulate."""

    models: tuple[str, ...] = tuple(MEASURED)  # Of those with measured shares.
    efficiencies: tuple[float, ...] = (0.05, 0.1, 0.2, 0.35, 0.5)  # Achieved over peak FLOP/s of an H800.

    def __post_init__(self):
        check(self, known={"models": MEASURED}, positive="efficiencies", distinct="efficiencies", cases="models rates")

    @property
    def rates(self) -> tuple[float | None, ...]:
        """Achieved rates on the measured cluster; None: as iteration times were simulated."""
        return (*self.efficiencies, None)

    def setting(self, model: str, rate: float | None) -> Cases:
        """One model at a rate."""
        return self.case(model, "fat-tree", {} if rate is None else PRODUCTION | {"compute.efficiency": rate})


def run(config: Config) -> Found:
    """A row for each model and rate (None: calibrated): the share of the iteration, and of a stage's busy time."""
    for (model, rate), (row,) in compared(config, config.models, config.rates):
        low, high = MEASURED[model]
        compute, seconds = "calibrated" if rate is None else f"H800 at {rate:.0%}", row["iteration_s"]
        place = {"model": model, "rate": rate, "compute": compute, "iteration_s": seconds}
        shares = {"share": row["ep_share"], "busy_share": row["ep_comm_s"] / (seconds - row["bubble_s"])}
        yield place | shares | {"measured_low": low, "measured_high": high}


COLUMNS = ("share", "of the iteration", True), ("busy_share", "of busy time", True)
table = then(
    adding(measured=lambda row: reach(row["measured_low"], row["measured_high"], ".0%")),
    listed("model", "compute", ("iteration_s", "iteration [s]"), *COLUMNS, "measured"),
)

PANEL = Dots(
    Axis("part", "expert-parallel all-to-alls", percent=True, low=0, high=0.95),
    Axis("compute"),
    "of",
    looks(SHARES),
    band=("measured_low", "measured_high", "measured (Qwen-MoE: at most)"),
    title="{model}",
)
PICTURE = Picture(
    (PANEL,), across="model", shown=lambda rows: [row | {"of": of, "part": row[of]} for row in rows for of in SHARES]
)


def verdicts(rows: Rows) -> list[Verdict]:
    """What was measured against the nearest share of an H800's rates, and that under the calibrated rate."""
    found = []
    for model, (low, high) in MEASURED.items():
        for calibrated, rates in ((False, "H800, nearest rate"), (True, "calibrated rate")):
            shares = [row["share"] for row in picked(rows, model=model) if (row["rate"] is None) == calibrated]
            claim = f"share of all-to-alls, {model}, {rates}"
            lines = [against(claim, share, low, high, form=".0%") for share in shares]
            found += sorted(lines, key=lambda line: abs(line.off or 0))[:1]
    return found


SCRIPT = Script(Config, quick={"efficiencies": (0.05, 0.2, 0.5)})
SCRIPT.start(__name__)
