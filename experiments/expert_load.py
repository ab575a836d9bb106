"""How does the load of experts change from iteration to iteration?

From a recording if one is named (any that `mfabric traces info` reads, which says how loads correlate), else generated:
popular experts that drift, and whose lead shrinks as a balancing loss acts; that it shrinks is then a setting, and no
finding. Source: arXiv 2501.03905, load of experts over iterations: temporally dynamic, its variance shrinks.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mfabric_jax import traffic, workload
from mfabric_jax.apps.recordings import statistics
from mfabric_jax.checks import InputError
from mfabric_jax.report.figures.trace import build_load, sampled_layers
from mfabric_jax.traffic import Knobs
from mfabric_jax.traffic.generator import TrafficShape
from mfabric_jax.traffic.generator import draw as drawn
from mfabric_jax.traffic.knobs import LOG_NORMAL

from .rows import Row, Rows, group_rows, of, pivot, then, told, values_of
from .script import Script, Verdict, check

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LAYERS = 4  # shown, spread evenly
PART = 10  # the first and the last tenth are compared
KNOBS = Knobs(  # the lead of popular experts shrinks to 0.3 of it, by half in 60 iterations
    popularity=LOG_NORMAL, skew=1.0, phase_floor=0.3, half_life=60.0, drift=0.04, persistence=0.99, sampled=True
)


@dataclasses.dataclass(frozen=True)
class Config:
    """Whose load."""

    trace: str | None = None  # A recording; without one load is generated.
    model: str = "qwen-moe"  # Generated: whose number of experts and selections.
    iterations: int = 500  # Generated.
    seed: int = 0  # Of generated load.

    def __post_init__(self):
        workload.get(self.model)
        check(self, whole={1: "iterations"})


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
    mean = load.mean(axis=-1, keepdims=True)
    relative = np.divide(load, mean, out=np.ones_like(load), where=mean > 0)
    return [
        {"source": source, "iteration": int(number[at]), "record": at, "layer": layer}
        | {"max_over_mean": float(relative[at, layer].max()), "deviation": float(relative[at, layer].std())}
        | {f"expert_{expert}": round(float(value), 5) for expert, value in enumerate(relative[at, layer])}
        for at in range(len(load))
        for layer in sampled_layers(load.shape[1])
    ]


def _generated(config: Config) -> np.ndarray:
    """Loads [record layer expert]."""
    job = workload.get(config.model)
    shape = TrafficShape(LAYERS, 1, 1, job.architecture.experts, job.selections * job.ep)
    count = drawn(shape, KNOBS, config.seed, np.arange(config.iterations))
    return statistics.source_rows(count).sum(axis=2)


def _starts(rows: Rows) -> list[Row]:
    """Load at the start and at the end of every layer."""
    return [
        {"layer": layer, "of": f"{name}, {when}", "mean": of(key)(part)}
        for key, name in {"max_over_mean": "max / mean", "deviation": "deviation"}.items()
        for (layer,), here in group_rows(rows, "layer").items()
        for when, part in zip(("first", "last"), _ends(here), strict=True)
    ]


def _ends(rows: Rows) -> tuple[Rows, Rows]:
    """The first and the last tenth."""
    size = max(1, len(rows) // PART)
    return rows[:size], rows[-size:]


table = told(
    "load of experts over their mean; first and last tenth of the run",
    then(_starts, pivot(["layer"], "{of}", "mean")),
)


def build(rows: Rows) -> Figure:
    """Load of every expert by iteration, in each layer."""
    experts, numbers = [key for key in rows[0] if key.startswith("expert_")], values_of(rows, "iteration")
    load = np.array([[row[key] for key in experts] for row in rows]).reshape(len(numbers), -1, len(experts))
    return build_load(load, numbers, rows[0]["source"])


def verdicts(rows: Rows) -> list[Verdict]:
    """Whether the variance of loads shrinks, and how hot the hottest expert is."""
    mean, source = float(np.mean([_shrunk(here) for here in group_rows(rows, "layer").values()])), rows[0]["source"]
    off = None if source == "generated" else max(mean - 1, 0.0)
    found = [Verdict(f"{source}: variance, last over first 10 %", f"{mean:.2f}", "below 1 (shrinks)", off)]
    hottest = of("max_over_mean", np.median)(rows)
    return [*found, Verdict("hottest expert over the mean, median", f"{hottest:.2f}")]


def _shrunk(rows: Rows) -> float:
    """Variance of the last tenth over that of the first."""
    first, last = (float(np.mean([row["deviation"] ** 2 for row in part])) for part in _ends(rows))
    if first:
        return last / first
    return float("inf") if last else 1.0


SCRIPT = Script(Config, quick={"iterations": 200})
SCRIPT.start(__name__)
