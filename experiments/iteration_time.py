"""Do published iteration times come out: calibrated on the fat-tree, predicted on every other fabric?

One number per model, the rate at which it computes, is fitted to three published ratios of fat-tree times; mFabric,
rail-optimised and TopoOpt are then simulated, and performance per dollar is compared with the published ranges. Under
preset "paper" (the text) and "released" (what the authors' simulator does beyond it), each calibrated under its own
assumptions. Source: arXiv 2501.03905, evaluation.

    python -m experiments.iteration_time --out results
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from mfabric_jax import report
from mfabric_jax.checks import names
from mfabric_jax.report import style
from mfabric_jax.study import Compare, calibrate, compare
from mfabric_jax.study.calibration import BANDWIDTHS, PUBLISHED
from mfabric_jax.study.presets import PRESETS

from .script import Rows, Script, Verdict, against, grouped

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAME = "iteration_time"
FABRICS = ("fat-tree", "oversub-fat-tree", "rail-optimized", "topoopt", "mfabric")
PER_DOLLAR = {  # mFabric's performance per dollar over that of a fabric, over four models
    ("fat-tree", 100.0): (1.2, 1.5),
    ("fat-tree", 400.0): (1.9, 2.3),
    ("rail-optimized", 100.0): (1.4, 1.5),
    ("rail-optimized", 400.0): (2.3, 2.4),
}
FASTER = {"topoopt": 2.5, "oversub-fat-tree": 1.6}  # mFabric's speed over theirs, at most
FASTER_THAN_TOPOOPT = {"mixtral-8x22b": 1.5, "mixtral-8x7b": 1.4, "qwen-moe": 1.5}  # mean over bandwidths
CLOSE = {"mixtral-8x22b": 1.03, "mixtral-8x7b": 1.03}  # mFabric's time over the fat-tree's, 400 Gbps
ROUNDED = 0.05  # ranges are published with one decimal


@dataclasses.dataclass(frozen=True)
class Config:
    """What to simulate."""

    models: tuple[str, ...] = tuple(PUBLISHED)
    """Of those with published times."""
    presets: tuple[str, ...] = tuple(PRESETS)
    """Sets of assumptions."""
    iterations: int = 1
    """Averaged."""
    seed: int = 0
    """Of the traffic."""

    def __post_init__(self):
        names("models", self.models, PUBLISHED)
        names("presets", self.presets, PRESETS)
        for preset in self.presets:
            self.setting(preset)

    def setting(self, preset: str) -> Compare:
        """All models on all fabrics."""
        own = {"models": self.models, "fabrics": FABRICS, "nic_gbps": BANDWIDTHS}
        return Compare(**own | PRESETS[preset], iterations=self.iterations, seed=self.seed)


def run(config: Config) -> list[dict[str, Any]]:
    """A row for each preset, model, fabric and bandwidth, with the fitted `efficiency` and what is published."""
    rows = []
    cells = [(preset, model) for preset in config.presets for model in config.models]
    for preset, model in tqdm(cells, desc=NAME, unit="model", file=sys.stderr, disable=None):
        setting = config.setting(preset)
        found = calibrate(setting, (model,))[model]
        one = dataclasses.replace(setting, models=(model,), compute="achieved", efficiency=found.efficiency)
        rows += [{"preset": preset, "efficiency": found.efficiency} | row for row in compare(one)]
    return [row | _beside(row, rows) for row in rows]


def _beside(row: Mapping[str, Any], rows: Rows) -> dict[str, Any]:
    """Its time over that of the fat-tree and at 800 Gbps, and mFabric's over its own."""
    same = [other for other in rows if (other["preset"], other["model"]) == (row["preset"], row["model"])]

    def time(fabric: str, gbps: float) -> Mapping[str, Any]:
        return next(other for other in same if (other["fabric"], other["nic_gbps"]) == (fabric, gbps))

    tree, here = time("fat-tree", row["nic_gbps"]), time("mfabric", row["nic_gbps"])
    published = PUBLISHED[row["model"]]
    at = BANDWIDTHS.index(row["nic_gbps"])
    return {
        "over_800": row["iteration_s"] / time(row["fabric"], BANDWIDTHS[-1])["iteration_s"],
        "over_fat_tree": row["iteration_s"] / tree["iteration_s"],
        "mfabric_faster": row["iteration_s"] / here["iteration_s"],
        "mfabric_per_dollar": here["perf_per_dollar"] / row["perf_per_dollar"],
        "published_over_800": published[at] / published[-1] if row["fabric"] == "fat-tree" else None,
    }


def table(rows: Rows) -> str:
    """The calibration cell by cell, and the predictions."""
    cells = [row for row in rows if row["fabric"] == "fat-tree" and row["nic_gbps"] < BANDWIDTHS[-1]]
    fitted = [
        {"preset": row["preset"], "model": row["model"], "nic_gbps": row["nic_gbps"], "rate": row["efficiency"]}
        | {"fitted": row["over_800"], "published": row["published_over_800"]}
        | {"off": row["over_800"] / row["published_over_800"] - 1}
        for row in cells
    ]
    columns = ["preset", "model", "nic_gbps", report.Column("rate", "over A100 peak"), "fitted", "published"]
    parts = [
        "fat-tree time over that at 800 Gbps, one rate a model fitted",
        report.plain(fitted, [*columns, report.Column("off", percent=True)]),
        "iteration time [s]; over the fat-tree's in brackets",
        report.plain(_wide(rows, lambda row: f"{row['iteration_s']:.2f} ({row['over_fat_tree']:.2f})")),
    ]
    return "\n\n".join(parts)


def _wide(rows: Rows, shown) -> list[dict[str, Any]]:
    lines: dict[tuple, dict[str, Any]] = {}
    for row in rows:
        who = {key: row[key] for key in ("preset", "model", "fabric")}
        lines.setdefault(tuple(who.values()), who)[f"{row['nic_gbps']:g}G"] = shown(row)
    return list(lines.values())


def draw(rows: Rows, path: str | Path) -> Path:
    """Time over the fat-tree's at 800 Gbps against bandwidth; returns the path written."""
    return style.save(lambda: build(rows), path)


def build(rows: Rows) -> Figure:
    """The figure itself: a row of panels per preset, a panel per model; crosses are published fat-tree times."""
    from matplotlib.lines import Line2D

    presets, models = ([*dict.fromkeys(row[key] for row in rows)] for key in ("preset", "model"))
    figure = style.blank(3.1 * len(models) + 0.6, 2.7 * len(presets) + 0.7)
    panels = figure.subplots(len(presets), len(models), squeeze=False, sharex=True)
    for axes_row, preset in zip(panels, presets, strict=True):
        for axes, model in zip(axes_row, models, strict=True):
            _panel(axes, [row for row in rows if (row["preset"], row["model"]) == (preset, model)])
            axes.set_title(f"{model}, {preset}", loc="left")
    for axes in panels[-1]:
        axes.set_xlabel("NIC bandwidth [Gbps]")
    for axes in panels[:, 0]:
        axes.set_ylabel("time over fat-tree's at 800")
    looks = [style.fabric(fabric) for fabric in dict.fromkeys(row["fabric"] for row in rows)]
    handles = [Line2D([], [], color=look.colour, marker=look.marker, label=look.label) for look in looks]
    cross = Line2D([], [], linestyle="", marker="x", color=style.INK, markersize=7, label="published, fat-tree")
    columns = max(2, min(len(handles) + 1, round(figure.get_figwidth() / 2.2)))
    figure.legend(handles=[*handles, cross], loc="outside lower center", ncols=columns)
    return figure


def _panel(axes: Axes, rows: Rows) -> None:
    from matplotlib.ticker import NullLocator

    base = next(row["iteration_s"] for row in rows if (row["fabric"], row["nic_gbps"]) == ("fat-tree", BANDWIDTHS[-1]))
    for fabric in dict.fromkeys(row["fabric"] for row in rows):
        look = style.fabric(fabric)
        line = [(row["nic_gbps"], row["iteration_s"] / base) for row in rows if row["fabric"] == fabric]
        wide = {"linewidth": 4.0, "markersize": 9} if fabric == "fat-tree" else {"markersize": 5}  # under its equals
        axes.plot(*zip(*line, strict=True), "-", color=look.colour, marker=look.marker, **wide)
    published = [(row["nic_gbps"], row["published_over_800"]) for row in rows if row["fabric"] == "fat-tree"]
    axes.plot(*zip(*published, strict=True), "x", color=style.INK, markersize=8, markeredgewidth=1.6, zorder=5)
    axes.set_xscale("log")
    axes.set_xticks(BANDWIDTHS, [f"{gbps:g}" for gbps in BANDWIDTHS])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_ylim(0, 1.08 * max(row["iteration_s"] / base for row in rows))
    axes.grid()


def verdicts(rows: Rows) -> list[Verdict]:
    """Of every preset: the calibrated cells, performance per dollar over all models, and speed."""
    return [line for (preset,), here in grouped(rows, "preset").items() for line in _verdicts(here, preset)]


def _verdicts(rows: Rows, preset: str) -> list[Verdict]:
    fitted = [row["over_800"] / row["published_over_800"] for row in rows if row["published_over_800"]]
    found = [against(f"fat-tree cells, fitted over published, {preset}", fitted, 1.0, allowed=0.02)]
    for (fabric, gbps), (low, high) in PER_DOLLAR.items():
        ratios = [row["mfabric_per_dollar"] for row in rows if (row["fabric"], row["nic_gbps"]) == (fabric, gbps)]
        claim = f"perf/$ over {fabric}, {gbps:g} Gbps, {preset}"
        found.append(against(claim, ratios, low, high, form=".1f", allowed=ROUNDED / low))
    faster = {key: [row["mfabric_faster"] for row in here] for key, here in grouped(rows, "fabric", "model").items()}
    for fabric, most in FASTER.items():
        fastest = max(max(ratios) for (of, _), ratios in faster.items() if of == fabric)
        claim = f"speed over {fabric} at most, {preset}"
        found.append(against(claim, fastest, most, form=".1f", allowed=ROUNDED / most))
    for model, mean in FASTER_THAN_TOPOOPT.items():
        if ratios := faster.get(("topoopt", model)):
            claim = f"speed over topoopt, mean, {model}, {preset}"
            found.append(against(claim, sum(ratios) / len(ratios), mean, allowed=ROUNDED / mean))
    close = [row for row in rows if (row["fabric"], row["nic_gbps"]) == ("mfabric", 400.0) and row["model"] in CLOSE]
    for row in close:
        claim = f"time over fat-tree, {row['model']}, 400 Gbps, {preset}"
        found.append(against(claim, row["over_fat_tree"], None, CLOSE[row["model"]]))
    return found


SCRIPT = Script(
    name=NAME,
    question="Published iteration times: a row per preset, model, fabric and bandwidth.",
    config=Config,
    run=run,
    table=table,
    draw=draw,
    verdicts=verdicts,
    quick={"presets": ("paper",)},
)
main = SCRIPT.main

if __name__ == "__main__":
    sys.exit(main())
