"""How does the load of experts change from iteration to iteration?

From a recording if one is named (any that `mfabric traces info` reads, which says how loads correlate), else generated:
popular experts that drift, and whose lead shrinks as a balancing loss acts; that it shrinks is then a setting, and no
finding. Source: arXiv 2501.03905, load of experts over iterations: temporally dynamic, its variance shrinks.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.colors import PowerNorm

from mfabric_jax import traffic, workload
from mfabric_jax.checks import InputError
from mfabric_jax.recordings import statistics
from mfabric_jax.report.figures.trace import spread
from mfabric_jax.traffic import Knobs
from mfabric_jax.traffic.generator import Shape
from mfabric_jax.traffic.generator import draw as drawn
from mfabric_jax.traffic.knobs import LOG_NORMAL

from .pictures import Axis, Heat, Lines, Picture, Pictures
from .rows import Row, Rows, grouped, of, pivot, then, told
from .script import Script, Verdict, check

LAYERS = 4  # shown, spread evenly
PART = 10  # the first and the last tenth are compared


@dataclasses.dataclass(frozen=True)
class Config:
    """Whose load."""

    trace: str | None = None  # A recording; without one load is generated.
    model: str = "qwen-moe"  # Generated: whose number of experts and selections.
    iterations: int = 500  # Generated.
    skew: float = 1.0  # Generated: standard deviation of the logarithm of popularity at the start.
    floor: float = 0.3  # Generated: part of the skew that is left in the end.
    half_life: float = 60.0  # Generated: iterations in which half of the rest is gone.
    drift: float = 0.04
    """Generated: standard deviation of a step of the logarithm of popularity from one iteration to the next."""
    persistence: float = 0.99  # Generated: part of the drift so far that remains at each step.
    seed: int = 0  # Of generated load.

    def __post_init__(self):
        check(self, known={"model": workload.NAMES}, whole={1: "iterations"})
        check(self, not_negative="skew floor drift", positive="half_life")
        self.knobs()

    def knobs(self) -> Knobs:
        """Of what is generated."""
        own = {field: getattr(self, field) for field in ("skew", "half_life", "drift", "persistence")}
        return Knobs(popularity=LOG_NORMAL, sampled=True, phase_floor=self.floor, **own)


def run(config: Config) -> list[Row]:
    """A row for each iteration and (at most four) layers: load of every expert over the mean, the largest of them,
    and their standard deviation."""
    if config.trace is None:
        source, number, load = "generated", np.arange(config.iterations), _generated(config)
    else:
        recording = traffic.open_trace(config.trace)[0]
        source, number = f"recorded {Path(config.trace).name}", recording.number
        load = statistics.target_loads(recording)
    if len(load) < 2:
        raise InputError(f"a recording must hold at least 2 records to be compared, got {len(load)} of {source}.")
    layers = spread(load.shape[1])
    mean = load.mean(axis=-1, keepdims=True)
    relative = np.divide(load, mean, out=np.ones_like(load), where=mean > 0)
    return [
        {"source": source, "iteration": int(number[at]), "record": at, "layer": layer}
        | {"max_over_mean": float(relative[at, layer].max()), "deviation": float(relative[at, layer].std())}
        | {f"expert_{expert}": round(float(value), 5) for expert, value in enumerate(relative[at, layer])}
        for at in range(len(load))
        for layer in layers
    ]


def _generated(config: Config) -> np.ndarray:
    """Loads [record layer expert]."""
    job = workload.get(config.model)
    shape = Shape(LAYERS, 1, 1, job.architecture.experts, job.selections * job.ep)
    count = drawn(shape, config.knobs(), config.seed, np.arange(config.iterations))
    return statistics.source_rows(count).sum(axis=2)


def _starts(rows: Rows) -> list[Row]:
    """Load at the start and at the end of every layer."""
    return [
        {"layer": layer, "of": f"{name}, {when}", "mean": of(key)(part)}
        for key, name in {"max_over_mean": "max / mean", "deviation": "deviation"}.items()
        for (layer,), here in grouped(rows, "layer").items()
        for when, part in _ends(here).items()
    ]


def _ends(rows: Sequence) -> dict[str, Sequence]:
    """The first and the last tenth."""
    size = max(1, len(rows) // PART)
    return {"first": rows[:size], "last": rows[-size:]}


table = told(
    "load of experts over their mean; first and last tenth of the run",
    then(_starts, pivot(["layer"], "{of}", "mean")),
)


def _loads(rows: Rows) -> list[Row]:
    """A row for each expert."""
    experts = [key for key in rows[0] if key.startswith("expert_")]
    return [
        {"iteration": row["iteration"], "layer": row["layer"], "expert": expert, "load": row[key]}
        for row in rows
        for expert, key in enumerate(experts)
    ]


ITERATION, LAYER = Axis("iteration", "iteration"), {"by": "layer", "named": "layer {}"}
HEAT = Heat(
    ITERATION,
    Axis("expert", "expert"),
    "load",
    norm=lambda loads: PowerNorm(0.5, 0.0, max(*loads, 1.0)),
    title="layer {layer}",
    high=2.3,
)
HEATS = Picture((HEAT,), across="layer", shown=_loads, width=3.1, share_y=True, scale="load / mean")
OVER_MEAN = {"max_over_mean": "hottest expert over the mean", "deviation": "standard deviation over the mean"}
MEASURES = [
    Picture((Lines(ITERATION, Axis(key, label, low=0), markers="", **LAYER),), width=3.6, key=False)
    for key, label in OVER_MEAN.items()
]
PICTURE = Pictures((HEATS, Pictures((*MEASURES,))), over=True, heading=lambda rows: rows[0]["source"])


def verdicts(rows: Rows) -> list[Verdict]:
    """Whether the variance of loads shrinks, and how hot the hottest expert is."""
    mean, source = float(np.mean([_shrunk(here) for here in grouped(rows, "layer").values()])), rows[0]["source"]
    off = None if source == "generated" else max(mean - 1, 0.0)
    found = [Verdict(f"{source}: variance, last over first 10 %", f"{mean:.2f}", "below 1 (shrinks)", off)]
    hottest = of("max_over_mean", np.median)(rows)
    return [*found, Verdict("hottest expert over the mean, median", f"{hottest:.2f}")]


def _shrunk(rows: Sequence) -> float:
    """Variance of the last tenth over that of the first."""
    ends = {when: float(np.mean([row["deviation"] ** 2 for row in part])) for when, part in _ends(rows).items()}
    if ends["first"]:
        return ends["last"] / ends["first"]
    return float("inf") if ends["last"] else 1.0


SCRIPT = Script(Config, quick={"iterations": 200})
SCRIPT.start(__name__)
