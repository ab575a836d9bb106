"""Which part of an iteration are expert-parallel all-to-alls, beside what was measured on a production cluster?

Measured (400 Gbps, H800, waits for stragglers included): Mixtral 8x7B 33-55 %, LLaMA-MoE 42-58 %, Qwen-MoE up to 68 %.
Published iteration times imply another rate of computation (`mfabric calibrate`), under which shares are lower: both
cannot be met. Here: H800 GPUs at several achieved rates with one data-parallel replica, then the calibrated rates.
Source: arXiv 2501.03905, measurements and evaluation.

    python -m experiments.ep_share --out results
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from mfabric_jax import report
from mfabric_jax.checks import distinct, names, positive
from mfabric_jax.report import style
from mfabric_jax.study import Compare, compare

from .script import Rows, Script, Verdict, against

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "ep_share"
MEASURED = {"mixtral-8x7b": (0.33, 0.55), "llama-moe": (0.42, 0.58), "qwen-moe": (None, 0.68)}
PRODUCTION: dict[str, Any] = {"gpu": "H800-SXM", "nvswitch_gigabytes_per_s": 200.0, "nic_gbps": (400.0,)}
COLOURS = {"share": "#0072B2", "busy_share": "#56B4E9"}


@dataclasses.dataclass(frozen=True)
class Config:
    """What to simulate."""

    models: tuple[str, ...] = tuple(MEASURED)
    """Of those with measured shares."""
    efficiencies: tuple[float, ...] = (0.05, 0.1, 0.2, 0.35, 0.5)
    """Achieved over peak FLOP/s of an H800."""
    fabric: str = "fat-tree"
    seed: int = 0
    """Of the traffic."""

    def __post_init__(self):
        names("models", self.models, MEASURED)
        positive("efficiencies", self.efficiencies)
        distinct("efficiencies", self.efficiencies)
        for model in self.models:
            for rate in (*self.efficiencies, None):
                self.setting(model, rate)

    def setting(self, model: str, rate: float | None) -> Compare:
        """One model at an achieved rate on the measured cluster; None: as its iteration times were simulated."""
        same: dict[str, Any] = {"models": (model,), "fabrics": (self.fabric,), "seed": self.seed}
        if rate is None:
            return Compare(**same, nic_gbps=(400.0,))
        job = Compare(**same).workload(model)
        return Compare(**same | PRODUCTION, efficiency=rate, dp=1, gpus=job.gpus // job.dp)


def run(config: Config) -> list[dict[str, Any]]:
    """A row for each model and rate (None: calibrated): the share of the iteration, and of a stage's busy time."""
    rows = []
    cells = [(model, rate) for model in config.models for rate in (*config.efficiencies, None)]
    for model, rate in tqdm(cells, desc=NAME, unit="case", file=sys.stderr, disable=None):
        (row,) = compare(config.setting(model, rate))
        low, high = MEASURED[model]
        busy = row["iteration_s"] - row["bubble_s"]
        rows.append(
            {"model": model, "rate": rate, "compute": _compute(rate), "iteration_s": row["iteration_s"]}
            | {"share": row["ep_share"], "busy_share": row["ep_comm_s"] / busy}
            | {"measured_low": low, "measured_high": high}
        )
    return rows


def _compute(rate: float | None) -> str:
    return "calibrated" if rate is None else f"H800 at {rate:.0%}"


def table(rows: Rows) -> str:
    """A line per row."""
    columns = [report.Column("model"), report.Column("compute"), report.Column("iteration_s", "iteration [s]")]
    columns += [report.Column("share", "of the iteration", percent=True)]
    columns += [report.Column("busy_share", "of busy time", percent=True), report.Column("measured")]
    return report.plain([row | {"measured": _measured(row)} for row in rows], columns)


def _measured(row) -> str:
    low, high = row["measured_low"], row["measured_high"]
    return f"up to {high:.0%}" if low is None else f"{low:.0%} to {high:.0%}"


def draw(rows: Rows, path: str | Path) -> Path:
    """Shares by rate, a panel per model; returns the path written."""
    return style.save(lambda: build(rows), path)


def build(rows: Rows) -> Figure:
    """The figure itself: the band is what was measured."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    models = [*dict.fromkeys(row["model"] for row in rows)]
    figure = style.blank(3.1 * len(models) + 0.6, 4.0)
    panels = figure.subplots(1, len(models), sharey=True, squeeze=False)[0]
    for axes, model in zip(panels, models, strict=True):
        here = [row for row in rows if row["model"] == model]
        low, high = here[0]["measured_low"], here[0]["measured_high"]
        axes.axhspan(0 if low is None else low, high, color="#E69F00", alpha=0.18 if low is None else 0.3, linewidth=0)
        for key, marker in (("share", "o"), ("busy_share", "s")):
            axes.plot(range(len(here)), [row[key] for row in here], marker, color=COLOURS[key], markersize=6)
        axes.set_xticks(range(len(here)), [row["compute"] for row in here], rotation=40, ha="right")
        axes.set_title(model, loc="left")
        axes.set_ylim(0, 1)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        axes.grid(axis="y")
    panels[0].set_ylabel("expert-parallel all-to-alls")
    figure.supxlabel("GPU, achieved over peak FLOP/s", fontsize=9)
    mark = {"linestyle": "", "markersize": 6}
    handles = [
        Line2D([], [], marker="o", color=COLOURS["share"], label="of the iteration", **mark),  # pyright: ignore
        Line2D([], [], marker="s", color=COLOURS["busy_share"], label="without pipeline bubbles", **mark),  # pyright: ignore
        Patch(color="#E69F00", alpha=0.3, label="measured (Qwen-MoE: at most)"),
    ]
    figure.legend(handles=handles, loc="outside upper right", ncols=3)
    return figure


def verdicts(rows: Rows) -> list[Verdict]:
    """What was measured against the nearest share of an H800's rates, and that under the calibrated rate."""
    found = []
    for model, (low, high) in MEASURED.items():
        here = [row for row in rows if row["model"] == model]
        for calibrated, said in ((False, "H800, nearest rate"), (True, "calibrated rate")):
            lines = [
                against(f"share of all-to-alls, {model}, {said}", row["share"], low, high, form=".0%")
                for row in here
                if (row["rate"] is None) == calibrated
            ]
            found += sorted(lines, key=lambda one: abs(one.off or 0))[:1]
    return found


SCRIPT = Script(
    name=NAME,
    question="Share of expert-parallel all-to-alls: a row per model and rate of computation.",
    config=Config,
    run=run,
    table=table,
    draw=draw,
    verdicts=verdicts,
    quick={"efficiencies": (0.05, 0.2, 0.5)},
)
main = SCRIPT.main

if __name__ == "__main__":
    sys.exit(main())
