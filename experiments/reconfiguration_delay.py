"""How slow may the optical switch be? Iteration time against its delay, by which circuits the first all-to-all finds.

Mixtral 8x22B at 400 Gbps, calibrated. Source: arXiv 2501.03905, sweep of the reconfiguration delay, whose simulator
keeps one matrix for everything (preset "released") and so hardly ever turns its switch.

    python -m experiments.reconfiguration_delay --out results
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tqdm import tqdm

from mfabric_jax import report
from mfabric_jax.checks import distinct, names, positive, whole
from mfabric_jax.report import style
from mfabric_jax.study import Compare, compare
from mfabric_jax.study.presets import PRESETS

from .script import Rows, Script, Verdict

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "reconfiguration_delay"
WAYS: dict[str, dict[str, Any]] = {
    "block": {},
    "reuse": {"first": "reuse"},
    "predict": {"first": "predict"},
    "pays": {"first": "pays"},
    "one matrix": {"matrices": "one"},
    "released": PRESETS["released"],
}
LABELS = {
    "block": "Block (the text)",
    "reuse": "Reuse circuits",
    "predict": "Predict demand",
    "pays": "When it pays",
    "one matrix": "One matrix",
    "released": "Preset released",
}
COLOURS = dict(zip(WAYS, ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#56B4E9", "#4D4D4D"), strict=True))
MARKERS = dict(zip(WAYS, "osD^vX", strict=True))
USUAL_S, FAST_S = 0.025, 1e-6


@dataclasses.dataclass(frozen=True)
class Config:
    """What to sweep."""

    model: str = "mixtral-8x22b"
    ways: tuple[str, ...] = tuple(WAYS)
    """Which circuits the first all-to-all finds."""
    nic_gbps: float = 400.0
    """Bandwidth of every NIC."""
    delays_s: tuple[float, ...] = (1e-6, 1e-5, 1e-4, 1e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1, 0.3, 1.0, 3.0, 10.0)
    """Reconfiguration delays."""
    iterations: int = 2
    """Averaged; predictions need more than one."""
    seed: int = 0
    """Of the traffic."""

    def __post_init__(self):
        names("ways", self.ways, WAYS)
        positive("delays_s", self.delays_s)
        distinct("delays_s", self.delays_s)
        whole("iterations", self.iterations)
        self.setting("block", self.delays_s[0])

    def setting(self, way: str, delay_s: float) -> Compare:
        """One case."""
        same = {"models": (self.model,), "fabrics": ("mfabric",), "nic_gbps": (self.nic_gbps,), "seed": self.seed}
        return Compare(**same | WAYS[way], iterations=self.iterations, delay_s=delay_s)


def run(config: Config) -> list[dict[str, Any]]:
    """A row for each way and delay: time, what of it is paid for the switch, and time over that at the least delay."""
    rows = []
    cells = [(way, delay_s) for way in config.ways for delay_s in sorted(config.delays_s)]
    for way, delay_s in tqdm(cells, desc=NAME, unit="case", file=sys.stderr, disable=None):
        (row,) = compare(config.setting(way, delay_s))
        first = next((one["iteration_s"] for one in rows if one["way"] == way), row["iteration_s"])
        here = {"way": way, "delay_s": delay_s, "iteration_s": row["iteration_s"], "reconfig_s": row["reconfig_s"]}
        rows.append(here | {"over_fastest": row["iteration_s"] / first})
    return rows


def table(rows: Rows) -> str:
    """Time over that at the least delay: a line per delay, a column per way."""
    lines: dict[float, dict[str, Any]] = {}
    for row in rows:
        line = lines.setdefault(row["delay_s"], {"delay": _said(row["delay_s"])})
        line[row["way"]] = f"{row['over_fastest']:.3f} ({row['iteration_s']:.2f})"
    return f"iteration time over that at the least delay (seconds)\n\n{report.plain(list(lines.values()))}"


def _said(delay_s: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if delay_s >= 0.9999 * size:
            return f"{delay_s / size:g} {unit}"
    return f"{delay_s * 1e6:g} us"


def draw(rows: Rows, path: str | Path) -> Path:
    """Iteration time against the delay, a line per way; returns the path written."""
    return style.save(lambda: build(rows), path)


def build(rows: Rows) -> Figure:
    """The figure itself."""
    figure = style.blank(7.4, 4.4)
    axes = figure.subplots()
    for way in dict.fromkeys(row["way"] for row in rows):
        line = [(row["delay_s"], row["iteration_s"]) for row in rows if row["way"] == way]
        axes.plot(*zip(*line, strict=True), color=COLOURS[way], marker=MARKERS[way], markersize=5, label=LABELS[way])
    axes.axvline(USUAL_S, color=style.FAINT, linestyle=(0, (3, 3)), linewidth=1.0)
    axes.annotate(" 25 ms", (USUAL_S, 1.0), xycoords=("data", "axes fraction"), va="top", color=style.FAINT)
    axes.set_xscale("log")
    axes.set_yscale("log")
    seconds = np.asarray([row["iteration_s"] for row in rows])
    round_ones = (digit * 10.0**power for power in range(-3, 5) for digit in (1, 2, 5))
    ticks = [tick for tick in round_ones if seconds.min() / 2 < tick < seconds.max() * 2]
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    most = max(row["delay_s"] for row in rows)
    marks = {1e-6: "1 us", 1e-4: "100 us", 1e-2: "10 ms", 1.0: "1 s", 10.0: "10 s"}
    axes.set_xticks(*zip(*((at, said) for at, said in marks.items() if at <= most), strict=True))
    axes.set_xlabel("reconfiguration delay")
    axes.set_ylabel("iteration time [s]")
    axes.grid()
    axes.legend()
    return figure


def verdicts(rows: Rows) -> list[Verdict]:
    """The slow-down of the switch's usual delay over the fastest, for every way; the paper's sweep has no numbers."""
    usual = [row for row in rows if row["delay_s"] == USUAL_S]
    return [Verdict(f"25 ms over the least delay, {LABELS[row['way']]}", f"{row['over_fastest']:.3f}") for row in usual]


SCRIPT = Script(
    name=NAME,
    question="Sweep the reconfiguration delay: a row per way and delay.",
    config=Config,
    run=run,
    table=table,
    draw=draw,
    verdicts=verdicts,
    quick={"delays_s": (FAST_S, 1e-3, USUAL_S, 1.0), "ways": ("block", "reuse", "pays", "one matrix"), "iterations": 1},
)
main = SCRIPT.main

if __name__ == "__main__":
    sys.exit(main())
