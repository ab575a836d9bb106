"""Which assumption decides how far mFabric is from the fat-tree? One at a time is switched, under calibrated rates.

From preset "paper", every line changes one setting of both fabrics; the last ones are whole presets. What is looked
at: mFabric's iteration time over the fat-tree's, and its performance per dollar over the fat-tree's, beside published
ranges (1.2-1.5 at 100 Gbps, 1.9-2.3 at 400). Source: arXiv 2501.03905, evaluation; what it leaves open is switched.

    python -m experiments.sensitivity --out results
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from mfabric_jax import report
from mfabric_jax.checks import InputError, names
from mfabric_jax.report import style
from mfabric_jax.study import Compare, compare
from mfabric_jax.study.calibration import PUBLISHED
from mfabric_jax.study.presets import PRESETS

from .script import Rows, Script, Verdict, against, grouped

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "sensitivity"
BASE = "paper"
CHANGES: dict[str, dict[str, Any]] = {
    BASE: {},
    "first: reuse": {"first": "reuse"},
    "first: random": {"first": "random"},
    "first: predict": {"first": "predict"},
    "first: pays": {"first": "pays"},
    "one matrix a block": {"matrices": "block"},
    "one matrix": {"matrices": "one"},
    "packets wait": {"eps_waits": True},
    "ECMP": {"flows": "single"},
    "split routing": {"routing": "split"},
    "best-path routing": {"routing": "best-path"},
    "greedy: next": {"rule": "next"},
    "greedy: released": {"rule": "released"},
    "NICs pooled": {"nic_use": ("pooled",)},
    "balanced": {"traffic": "generated", "skew": 0.0},
    "skew 0.6": {"traffic": "generated", "skew": 0.6},
    "skew 1.0": {"traffic": "generated", "skew": 1.0},
    "twice the micro-batches": {"micro_batches": 2},
    "half the micro-batches": {"micro_batches": 0.5},
    "experts overlap": {"overlap_parts": 4},
    "gradients overlap": {"dp_overlap": True},
    "recomputed blocks": {"recompute": "block"},
    "no delay": {"delay_s": 0.0},
    "released": PRESETS["released"],
    "released, reuse": PRESETS["released"] | {"first": "reuse"},
}
RANGES = {100.0: (1.2, 1.5), 400.0: (1.9, 2.3)}
ROUNDED = 0.05  # ranges are published with one decimal
COLOURS = {100.0: "#0072B2", 400.0: "#D55E00"}


@dataclasses.dataclass(frozen=True)
class Config:
    """What to switch, for which models."""

    models: tuple[str, ...] = tuple(PUBLISHED)
    """Of those with published times."""
    changes: tuple[str, ...] = tuple(CHANGES)
    """Which assumptions; the first one is what others are compared with."""
    nic_gbps: tuple[float, ...] = (100.0, 400.0)
    """Bandwidth of every NIC."""
    seed: int = 0
    """Of the traffic."""

    def __post_init__(self):
        names("models", self.models, PUBLISHED)
        names("changes", self.changes, CHANGES)
        if self.changes[0] != BASE:
            raise InputError(f"changes must begin with {BASE!r}, got {self.changes[0]!r}.")
        for model in self.models:
            for change in self.changes:
                self.setting(model, change)

    def setting(self, model: str, change: str) -> Compare:
        """One model on the two fabrics with one change."""
        changed = dict(CHANGES[change])
        same = {"models": (model,), "fabrics": ("fat-tree", "mfabric"), "nic_gbps": self.nic_gbps, "seed": self.seed}
        if "micro_batches" in changed:
            usual = Compare(**same).workload(model).micro_batches
            changed["micro_batches"] = max(1, round(changed["micro_batches"] * usual))
        return Compare(**same | changed)


def run(config: Config) -> list[dict[str, Any]]:
    """A row for each change, model and bandwidth: times on both fabrics, their ratio, performance per dollar."""
    rows = []
    cells = [(change, model) for model in config.models for change in config.changes]
    for change, model in tqdm(cells, desc=NAME, unit="case", file=sys.stderr, disable=None):
        found = list(compare(config.setting(model, change)))
        for gbps in config.nic_gbps:
            tree, here = (
                next(row for row in found if (row["fabric"], row["nic_gbps"]) == (fabric, gbps))
                for fabric in ("fat-tree", "mfabric")
            )
            rows.append(
                {"change": change, "model": model, "nic_gbps": gbps}
                | {"fat_tree_s": tree["iteration_s"], "mfabric_s": here["iteration_s"]}
                | {"over_fat_tree": here["iteration_s"] / tree["iteration_s"]}
                | {"per_dollar": here["perf_per_dollar"] / tree["perf_per_dollar"]}
                | {"reconfig_s": here["reconfig_s"], "ep_over_balanced": here["ep_over_balanced"]}
            )
    return rows


def table(rows: Rows) -> str:
    """Time over the fat-tree's, then performance per dollar: a line per change, a column per model and bandwidth."""
    parts = []
    for key, said in (
        ("over_fat_tree", "iteration time of mFabric over the fat-tree's"),
        ("per_dollar", "performance per dollar of mFabric over the fat-tree's"),
    ):
        lines: dict[str, dict[str, Any]] = {}
        for row in rows:
            line = lines.setdefault(row["change"], {"change": row["change"]})
            line[f"{row['model']} {row['nic_gbps']:g}G"] = f"{row[key]:.2f}"
        parts += [said, report.plain(list(lines.values()))]
    return "\n\n".join(parts)


def draw(rows: Rows, path: str | Path) -> Path:
    """Time over the fat-tree's under every change; returns the path written."""
    return style.save(lambda: build(rows), path)


def build(rows: Rows) -> Figure:
    """The figure itself: a panel per model, a line per change, a dot per bandwidth; the dashed line is the base."""
    from matplotlib.lines import Line2D

    models, changes, widths = ([*dict.fromkeys(row[key] for row in rows)] for key in ("model", "change", "nic_gbps"))
    figure = style.blank(2.0 + 2.7 * len(models), 1.4 + 0.26 * len(changes))
    panels = figure.subplots(1, len(models), sharey=True, squeeze=False)[0]
    for axes, model in zip(panels, models, strict=True):
        for row in (row for row in rows if row["model"] == model):
            colour, place = COLOURS.get(row["nic_gbps"], style.INK), changes.index(row["change"])
            if row["change"] == BASE:
                axes.axvline(row["over_fat_tree"], color=colour, linestyle=(0, (3, 3)), linewidth=1.0)
            axes.plot(row["over_fat_tree"], place, "o", color=colour, markersize=5)
        axes.axvline(1, color=style.INK, linewidth=0.8, zorder=0)
        axes.set_title(model, loc="left")
        axes.grid(axis="x")
    panels[0].set_yticks(range(len(changes)), changes)
    panels[0].set_ylim(len(changes) - 0.4, -0.6)
    figure.supxlabel("iteration time of mFabric over the fat-tree's", fontsize=9)
    mark = {"linestyle": "", "marker": "o"}
    handles = [Line2D([], [], color=COLOURS.get(w, style.INK), label=f"{w:g} Gbps", **mark) for w in widths]  # pyright: ignore
    figure.legend(handles=handles, loc="outside upper right", ncols=len(handles))
    return figure


def verdicts(rows: Rows) -> list[Verdict]:
    """Performance per dollar under each whole preset, and the changes that move it most."""
    found = []
    for (gbps, change), here in grouped(rows, "nic_gbps", "change").items():
        if change in PRESETS and gbps in RANGES:
            claim = f"perf/$ over fat-tree, {gbps:g} Gbps, {change}"
            low, high = RANGES[gbps]
            found.append(against(claim, [row["per_dollar"] for row in here], low, high, allowed=ROUNDED / low))
    return found + [_most(here, gbps, model) for (gbps, model), here in grouped(rows, "nic_gbps", "model").items()]


def _most(rows: Rows, gbps: float, model: str) -> Verdict:
    """Of one model: the change that moves its time over the fat-tree's farthest."""
    base = next(row["over_fat_tree"] for row in rows if row["change"] == BASE)
    most = max(rows, key=lambda row: abs(row["over_fat_tree"] - base))
    moved = f"{most['change']}: {base:.2f} to {most['over_fat_tree']:.2f}"
    return Verdict(f"what moves {model} most, {gbps:g} Gbps", moved)


SCRIPT = Script(
    name=NAME,
    question="Switch assumptions one at a time: a row per change, model and bandwidth.",
    config=Config,
    run=run,
    table=table,
    draw=draw,
    verdicts=verdicts,
    quick={
        "models": ("mixtral-8x7b", "qwen-moe"),
        "changes": (BASE, "first: reuse", "one matrix", "packets wait", "skew 1.0", "no delay", "released"),
    },
)
main = SCRIPT.main

if __name__ == "__main__":
    sys.exit(main())
