"""How much of an iteration do better circuits and routes save, beside the paper's greedy with unsplit routing?

Four models, measured, skewed and recorded traffic, computation calibrated to published fat-tree times. Circuits are
chosen for the exact demand of every block; the first all-to-all of a block waits for them ("block", as the paper
simulates it) or they are set where that pays ("pays"). qwen-moe has 32 expert-parallel ranks, the recording 16:
qwen-moe-ep16 stands for it there.
Source: arXiv 2501.03905, evaluation.

    python -m experiments.policies_end_to_end --out results --trace FOLDER
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from mfabric_jax import report
from mfabric_jax.checks import InputError, names
from mfabric_jax.report import style
from mfabric_jax.study import Compare, compare

from .script import Rows, Script, Verdict, grouped, spread

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "policies_end_to_end"
MODELS = ("mixtral-8x22b", "mixtral-8x7b", "llama-moe", "qwen-moe")
RECORDED_MODEL = {"qwen-moe": "qwen-moe-ep16"}
TRAFFIC: dict[str, dict[str, Any]] = {
    "measured": {},
    "skewed": {"traffic": "generated", "skew": 1.0},
    "recorded": {},
}
BASE = "greedy, unsplit"
RELAY, PAYS = {"routing": "relay"}, {"first": "pays"}
WAYS: dict[str, dict[str, Any]] = {
    BASE: {},
    "threshold, unsplit": {"policy": "threshold"},
    "local search, unsplit": {"policy": "local-search"},
    "local search, split": {"policy": "local-search", "routing": "split"},
    "greedy, relay": {"rule": "next"} | RELAY,
    "learned, relay": {"policy": "learned"} | RELAY,
    "joint, relay": {"policy": "joint"} | RELAY,
    "greedy, unsplit, pays": PAYS,
    "joint, relay, pays": {"policy": "joint"} | RELAY | PAYS,
}
COLOURS = {100.0: "#0072B2", 400.0: "#D55E00"}


@dataclasses.dataclass(frozen=True)
class Config:
    """What to simulate."""

    models: tuple[str, ...] = MODELS
    """Names of models."""
    traffic: tuple[str, ...] = ("measured", "skewed")
    """measured, skewed, recorded (needs trace)."""
    ways: tuple[str, ...] = tuple(WAYS)
    """Policy and routing; the first one is what others are compared with."""
    nic_gbps: tuple[float, ...] = (100.0, 400.0)
    """Bandwidth of every NIC."""
    trace: str | None = None
    """Folder of the SmartMoE gate trace; adds recorded traffic."""
    seed: int = 0
    """Of the traffic."""

    def __post_init__(self):
        names("models", self.models, MODELS)
        names("traffic", self.traffic, TRAFFIC)
        names("ways", self.ways, WAYS)
        if self.ways[0] != BASE:
            raise InputError(f"ways must begin with {BASE!r}, got {self.ways[0]!r}.")
        if "recorded" in self.traffic and self.trace is None:
            raise InputError("traffic 'recorded' needs trace, a folder of the SmartMoE gate trace.")
        for kind in self.kinds():
            for model in self.models:
                for way in self.ways:
                    self.setting(model, kind, way)

    def kinds(self) -> tuple[str, ...]:
        """The kinds of traffic; with a trace recorded traffic too."""
        return tuple(dict.fromkeys((*self.traffic, *(["recorded"] if self.trace else []))))

    def setting(self, model: str, kind: str, way: str) -> Compare:
        """One model under one kind of traffic with one policy and routing, the fat-tree beside it."""
        fabrics = ("fat-tree", "mfabric") if way == BASE else ("mfabric",)
        if kind == "recorded":
            model = RECORDED_MODEL.get(model, model)
        trace = self.trace if kind == "recorded" else None
        given = {"models": (model,), "fabrics": fabrics, "nic_gbps": self.nic_gbps, "seed": self.seed, "trace": trace}
        return Compare(**given | TRAFFIC[kind] | WAYS[way])


def run(config: Config) -> Iterator[dict[str, Any]]:
    """A row for each model, traffic, way and bandwidth: iteration time, over greedy's and over the fat-tree's."""
    cells = [(model, kind) for model in config.models for kind in config.kinds()]
    bar = tqdm(cells, desc=NAME, unit="case", file=sys.stderr, disable=None)
    for model, kind in bar:
        tree: dict[float, float] = {}
        base: dict[float, float] = {}
        for way in config.ways:
            bar.set_postfix_str(f"{model}, {kind}, {way}")
            for row in compare(config.setting(model, kind, way)):
                gbps, seconds = row["nic_gbps"], row["iteration_s"]
                if row["fabric"] == "fat-tree":
                    tree[gbps] = seconds
                    continue
                base.setdefault(gbps, seconds)
                yield (
                    {"model": row["model"], "traffic": kind, "way": way, "nic_gbps": gbps, "iteration_s": seconds}
                    | {"over_greedy": seconds / base[gbps], "over_fat_tree": seconds / tree[gbps]}
                    | {"ep_comm_s": row["ep_comm_s"], "reconfig_s": row["reconfig_s"]}
                )


def table(rows: Rows) -> str:
    """Time over that of the paper's greedy, then over the fat-tree's: a line per traffic and way, columns by model."""
    parts = []
    for key, said in (
        ("over_greedy", f"iteration time over that of {BASE}"),
        ("over_fat_tree", "iteration time over the fat-tree's"),
    ):
        lines: dict[tuple, dict[str, Any]] = {}
        for row in rows:
            line = lines.setdefault((row["traffic"], row["way"]), {"traffic": row["traffic"], "way": row["way"]})
            line[f"{_short(row['model'])} {row['nic_gbps']:g}G"] = f"{row[key]:.3f}"
        parts += [said, report.plain(list(lines.values()))]
    return "\n\n".join(parts)


def _short(model: str) -> str:
    """qwen-moe-ep16 stands in qwen-moe's column."""
    return next((name for name, other in RECORDED_MODEL.items() if other == model), model)


def draw(rows: Rows, path: str | Path) -> Path:
    """Time over greedy's; returns the path written."""
    return style.save(lambda: build(rows), path)


def build(rows: Rows) -> Figure:
    """The figure itself: a panel per model and traffic, a line per way, a dot per bandwidth."""
    from matplotlib.lines import Line2D

    models = [*dict.fromkeys(_short(row["model"]) for row in rows)]
    kinds, ways, widths = ([*dict.fromkeys(row[key] for row in rows)] for key in ("traffic", "way", "nic_gbps"))
    figure = style.blank(2.4 + 2.5 * len(models), 1.2 + (0.5 + 0.26 * len(ways)) * len(kinds))
    grid = figure.subplots(len(kinds), len(models), sharey=True, sharex=True, squeeze=False)
    for line, kind in zip(grid, kinds, strict=True):
        for axes, model in zip(line, models, strict=True):
            for row in (row for row in rows if (row["traffic"], _short(row["model"])) == (kind, model)):
                colour = COLOURS.get(row["nic_gbps"], style.INK)
                axes.plot(row["over_greedy"], ways.index(row["way"]), "o", color=colour, markersize=5)
            axes.axvline(1, color=style.INK, linewidth=0.8, zorder=0)
            axes.set_title(f"{model}, {kind}", loc="left", fontsize=9)
            axes.set_yticks(range(len(ways)), ways)
            axes.set_ylim(len(ways) - 0.4, -0.6)
            axes.grid(axis="x")
    figure.supxlabel(f"iteration time over that of {BASE}", fontsize=9)
    mark = {"linestyle": "", "marker": "o"}
    handles = [Line2D([], [], color=COLOURS.get(w, style.INK), label=f"{w:g} Gbps", **mark) for w in widths]  # pyright: ignore
    figure.legend(handles=handles, loc="outside upper right", ncols=len(handles))
    return figure


def verdicts(rows: Rows) -> list[Verdict]:
    """What every way saves, over all models and bandwidths; nothing is published."""
    return [
        spread(f"time over greedy's, {way}, {kind}", [row["over_greedy"] for row in here], ".3f")
        for (kind, way), here in grouped(rows, "traffic", "way").items()
        if way != BASE
    ]


SCRIPT = Script(
    name=NAME,
    question="Iteration time with better circuits and routes: a row per model, traffic, way and bandwidth.",
    config=Config,
    run=run,
    table=table,
    draw=draw,
    verdicts=verdicts,
    quick={"models": ("mixtral-8x7b",), "nic_gbps": (400.0,), "ways": (BASE, "threshold, unsplit", "greedy, relay")},
)
main = SCRIPT.main

if __name__ == "__main__":
    sys.exit(main())
