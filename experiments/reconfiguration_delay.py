"""How slow may the optical switch be? Iteration time against its delay, by which circuits the first all-to-all finds.

Mixtral 8x22B at 400 Gbps, calibrated. Source: arXiv 2501.03905, sweep of the reconfiguration delay, whose simulator
keeps one matrix for everything (preset "released") and so hardly ever turns its switch.
"""

import dataclasses

from mfabric_jax.case import Cases
from mfabric_jax.evaluate import simulate

from .pictures import lines
from .rows import adding, duration, measured, of, pivot, then, told, where
from .script import FIRST, PRESETS, Found, Script, Sweep, cells, check

WAYS = {
    "block": ("Block (the text)", FIRST["block"]),
    "reuse": ("Reuse circuits", FIRST["reuse"]),
    "predict": ("Predict demand", FIRST["predict"]),
    "pays": ("When it pays", FIRST["pays"]),
    "one matrix": ("One matrix", {"traffic.alike": "everything"}),
    "released": ("Preset released", PRESETS["released"]),
}
USUAL_S = 0.025
DELAYS_S = (1e-6, 1e-5, 1e-4, 1e-3, 5e-3, 1e-2, USUAL_S, 5e-2, 0.1, 0.3, 1.0, 3.0, 10.0)


@dataclasses.dataclass(frozen=True)
class Config(Sweep):
    """What to sweep."""

    model: str = "mixtral-8x22b"
    ways: tuple[str, ...] = tuple(WAYS)  # Which circuits the first all-to-all finds.
    delays_s: tuple[float, ...] = DELAYS_S  # Reconfiguration delays.
    iterations: int = 2  # Averaged; predictions need more than one.

    def __post_init__(self):
        check(self, known={"ways": WAYS}, positive="delays_s", cases="ways delays_s")

    def setting(self, way: str, delay_s: float) -> Cases:
        """One case."""
        own = {"run.iterations": self.iterations, "circuits.delay_s": delay_s}
        return self.case(self.model, "mfabric", WAYS[way][1] | own)


def run(config: Config) -> Found:
    """A row for each way and delay: time, what of it is paid for the switch, and time over that at the least delay."""
    for (way,) in cells(config, config.ways):
        fastest = None
        for delay_s in sorted(config.delays_s):
            (row,) = simulate(config.setting(way, delay_s)).rows()
            fastest = fastest or row["iteration_s"]
            here = {"way": way, "delay_s": delay_s} | {name: row[name] for name in ("iteration_s", "reconfig_s")}
            yield here | {"over_fastest": row["iteration_s"] / fastest}


named = adding(delay=lambda row: duration(row["delay_s"]), label=lambda row: WAYS[row["way"]][0])
RATIOS = pivot(["delay"], "{way}", "{over_fastest:.3f} ({iteration_s:.2f})")
table = told("iteration time over that at the least delay (seconds)", then(named, RATIOS))
build = then(named, lines(("delay_s", "reconfiguration delay [s]"), ("iteration_s", "iteration time [s]"), "{label}"))

# the paper's sweep has no numbers
OVER = measured(["way"], "25 ms over the least delay, {label}", of("over_fastest"), "{:.3f}")
verdicts = then(named, where(delay_s=USUAL_S), OVER)

QUICK = {"delays_s": (1e-6, 1e-3, USUAL_S, 1.0), "ways": ("block", "reuse", "pays", "one matrix"), "iterations": 1}
SCRIPT = Script(Config, quick=QUICK)
SCRIPT.start(__name__)
