"""How slow may the optical switch be? Iteration time against its delay, by which circuits the first all-to-all finds.

Mixtral 8x22B at 400 Gbps, calibrated. Source: arXiv 2501.03905, sweep of the reconfiguration delay, whose simulator
keeps one matrix for everything (preset "released") and so hardly ever turns its switch.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

from mfabric_jax.report.figures.panels import Axis, Lines, Picture, looks
from mfabric_jax.study import Compare
from mfabric_jax.study.presets import PRESETS

from .script import Row, Rows, Script, Verdict, case, check, compared, duration, picked, pivot

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
USUAL_S, FAST_S = 0.025, 1e-6
DELAYS_S = (1e-6, 1e-5, 1e-4, 1e-3, 5e-3, 1e-2, USUAL_S, 5e-2, 0.1, 0.3, 1.0, 3.0, 10.0)
TICKS = {at: duration(at) for at in (1e-6, 1e-4, 1e-2, 1.0, 10.0)}


@dataclasses.dataclass(frozen=True)
class Config:
    """What to sweep."""

    model: str = "mixtral-8x22b"
    ways: tuple[str, ...] = tuple(WAYS)  # Which circuits the first all-to-all finds.
    nic_gbps: float = 400.0  # Bandwidth of every NIC.
    delays_s: tuple[float, ...] = DELAYS_S  # Reconfiguration delays.
    iterations: int = 2  # Averaged; predictions need more than one.
    seed: int = 0  # Of the traffic.

    def __post_init__(self):
        check(self, known={"ways": WAYS}, positive="delays_s", distinct="delays_s", whole={1: "iterations"})
        self.setting("block", self.delays_s[0])

    def setting(self, way: str, delay_s: float) -> Compare:
        """One case."""
        return case(self, self.model, "mfabric", **WAYS[way], iterations=self.iterations, delay_s=delay_s)


def run(config: Config) -> Iterator[Row]:
    """A row for each way and delay: time, what of it is paid for the switch, and time over that at the least delay."""
    fastest: dict[str, float] = {}
    for (way, delay_s), (row,) in compared(config, config.ways, sorted(config.delays_s)):
        seconds = row["iteration_s"]
        here = {"way": way, "delay_s": delay_s, "iteration_s": seconds, "reconfig_s": row["reconfig_s"]}
        yield here | {"over_fastest": seconds / fastest.setdefault(way, seconds)}


def table(rows: Rows) -> str:
    """Time over that at the least delay: a line per delay, a column per way."""
    lines = [row | {"delay": duration(row["delay_s"])} for row in rows]
    ratios = pivot(lines, ["delay"], "{way}", "{over_fastest:.3f} ({iteration_s:.2f})")
    return f"iteration time over that at the least delay (seconds)\n\n{ratios}"


DELAY = Axis("delay_s", "reconfiguration delay (line: 25 ms)", log=True, ticks=TICKS, lines=(USUAL_S,))
PICTURE = Picture(
    (Lines(DELAY, Axis("iteration_s", "iteration time [s]", log=True), "way", looks(LABELS), high=3.6),), width=6.6
)


def verdicts(rows: Rows) -> list[Verdict]:
    """The slow-down of the switch's usual delay over the fastest, for every way; the paper's sweep has no numbers."""
    usual = picked(rows, delay_s=USUAL_S)
    return [Verdict(f"25 ms over the least delay, {LABELS[row['way']]}", f"{row['over_fastest']:.3f}") for row in usual]


SCRIPT = Script(
    Config,
    quick={"delays_s": (FAST_S, 1e-3, USUAL_S, 1.0), "ways": ("block", "reuse", "pays", "one matrix"), "iterations": 1},
)
SCRIPT.start(__name__)
