"""How does the load of experts change from iteration to iteration?

From a recording if one is named (any that `mfabric traces info` reads), else generated: popular experts that drift,
and whose lead shrinks as a balancing loss acts; that it shrinks is then a setting, and no finding. Source: arXiv
2501.03905, load of experts over iterations: temporally dynamic, its variance shrinks in the course of training.

    python -m experiments.expert_load --out results --trace PATH
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mfabric_jax import report, traffic, workload
from mfabric_jax.checks import InputError, distinct, not_negative, one_of, positive, whole
from mfabric_jax.report import style
from mfabric_jax.report.figures.trace import spread
from mfabric_jax.traffic import Knobs, statistics, survey
from mfabric_jax.traffic.generator import Shape
from mfabric_jax.traffic.generator import draw as drawn
from mfabric_jax.traffic.knobs import LOG_NORMAL

from .script import Rows, Script, Verdict

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAME = "expert_load"
LAYERS = 4  # shown, spread evenly
PART = 10  # the first and the last tenth are compared
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")


@dataclasses.dataclass(frozen=True)
class Config:
    """Whose load."""

    trace: str | None = None
    """A recording; without one load is generated."""
    first: int = 0
    """Of a recording: the first record used, by its recorded number."""
    last: int = 0
    """The last one; 0: to the end."""
    model: str = "qwen-moe"
    """Generated: whose number of experts and selections."""
    iterations: int = 500
    """Generated."""
    skew: float = 1.0
    """Generated: standard deviation of the logarithm of popularity at the start."""
    floor: float = 0.3
    """Generated: part of the skew that is left in the end."""
    half_life: float = 60.0
    """Generated: iterations in which half of the rest is gone."""
    drift: float = 0.04
    """Generated: standard deviation of a step of the logarithm of popularity from one iteration to the next."""
    persistence: float = 0.99
    """Generated: part of the drift so far that remains at each step."""
    lags: tuple[int, ...] = (1, 2, 5, 10, 20, 50, 100, 200)
    """How many records apart loads are compared."""
    seed: int = 0
    """Of generated load."""

    def __post_init__(self):
        one_of("model", self.model, workload.NAMES)
        for field in ("iterations", *(["first"] if self.first else []), *(["last"] if self.last else [])):
            whole(field, getattr(self, field))
        for lag in distinct("lags", self.lags):
            whole("lags", lag)
        for field in ("skew", "floor", "drift"):
            not_negative(field, getattr(self, field))
        positive("half_life", self.half_life)
        self.knobs()

    def knobs(self) -> Knobs:
        """Of what is generated."""
        return Knobs(
            popularity=LOG_NORMAL,
            skew=self.skew,
            sampled=True,
            phase_floor=self.floor,
            half_life=self.half_life,
            drift=self.drift,
            persistence=self.persistence,
        )


def run(config: Config) -> list[dict[str, Any]]:
    """A row for each iteration and (at most four) layers: load of every expert over the mean, the largest of them,
    their standard deviation, and how they correlate with those of so many records earlier."""
    source, number, load = _recorded(config) if config.trace else _generated(config)
    if len(load) < 2:
        raise InputError(f"a recording must hold at least 2 records to be compared, got {len(load)} of {source}.")
    layers = spread(load.shape[1])
    mean = load.mean(axis=-1, keepdims=True)
    relative = np.divide(load, mean, out=np.ones_like(load), where=mean > 0)
    lags = [lag for lag in config.lags if lag < len(load)]
    alike = {lag: statistics.correlation(load, lag) for lag in lags}
    return [
        {"source": source, "iteration": int(number[at]), "record": at, "layer": layer}
        | {"max_over_mean": float(relative[at, layer].max()), "deviation": float(relative[at, layer].std())}
        | {f"correlation_{lag}": _known(alike[lag], at - lag, layer) for lag in lags}
        | {f"expert_{expert}": round(float(value), 5) for expert, value in enumerate(relative[at, layer])}
        for at in range(len(load))
        for layer in layers
    ]


def _known(alike: np.ndarray, at: int, layer: int) -> float | None:
    return float(alike[at, layer]) if at >= 0 and np.isfinite(alike[at, layer]) else None


def _recorded(config: Config) -> tuple[str, np.ndarray, np.ndarray]:
    """What it is, what records are called, and loads [record layer expert]."""
    assert config.trace is not None
    recording = traffic.open_trace(config.trace)[0]
    last = config.last or int(recording.number.max())
    recording = recording.chosen((config.first, last))
    return f"recorded {Path(config.trace).name}", recording.number, survey.target_loads(recording)


def _generated(config: Config) -> tuple[str, np.ndarray, np.ndarray]:
    job = workload.get(config.model)
    number = np.arange(config.iterations)
    shape = Shape(LAYERS, 1, 1, job.architecture.experts, job.selections * job.ep)
    count = drawn(shape, config.knobs(), config.seed, number)
    return "generated", number, statistics.source_rows(count).sum(axis=2)


def table(rows: Rows) -> str:
    """Load at the start and at the end of every layer, and how alike loads are by lag."""
    lines = [
        {
            "layer": layer,
            **{f"max / mean, {when}": _mean(part, "max_over_mean") for when, part in _ends(here).items()},
            **{f"deviation, {when}": _mean(part, "deviation") for when, part in _ends(here).items()},
        }
        for layer, here in _by_layer(rows).items()
    ]
    lags = [
        {"records apart": lag}
        | {f"layer {layer}": _mean(here, f"correlation_{lag}") for layer, here in _by_layer(rows).items()}
        for lag in _lags(rows)
    ]
    parts = "load of experts over their mean; first and last tenth of the run", report.plain(lines)
    return "\n\n".join([*parts, "correlation of loads", report.plain(lags)])


def _by_layer(rows: Rows) -> dict[int, list]:
    return {layer: [row for row in rows if row["layer"] == layer] for layer in dict.fromkeys(r["layer"] for r in rows)}


def _ends(rows: Sequence) -> dict[str, Sequence]:
    """The first and the last tenth."""
    size = max(1, len(rows) // PART)
    return {"first": rows[:size], "last": rows[-size:]}


def _lags(rows: Rows) -> list[int]:
    return [int(key.removeprefix("correlation_")) for key in rows[0] if key.startswith("correlation_")]


def _mean(rows: Sequence, key: str) -> float | None:
    known = [row[key] for row in rows if row[key] is not None]
    return float(np.mean(known)) if known else None


def draw(rows: Rows, path: str | Path) -> Path:
    """Heat maps of the layers, and below the largest load, the deviation and correlations; returns the path written."""
    return style.save(lambda: build(rows), path)


def build(rows: Rows) -> Figure:
    """The figure itself."""
    from matplotlib.colors import PowerNorm

    layers = _by_layer(rows)
    figure = style.blank(3.2 * LAYERS, 6.2)
    upper, lower = np.asarray(figure.subfigures(2, 1))
    panels = upper.subplots(1, len(layers), sharey=True, squeeze=False)[0]
    experts = [key for key in rows[0] if key.startswith("expert_")]
    most = max(row["max_over_mean"] for row in rows)
    image = None
    for axes, (layer, here) in zip(panels, layers.items(), strict=True):
        picture = np.asarray([[row[key] for row in here] for key in experts])
        ends = here[0]["iteration"], here[-1]["iteration"]
        look = {"cmap": "Blues", "norm": PowerNorm(0.5, 0.0, max(most, 1.0)), "aspect": "auto", "origin": "lower"}
        extent = (ends[0], max(ends[1], ends[0] + 1), -0.5, len(experts) - 0.5)
        image = axes.imshow(picture, extent=extent, interpolation="nearest", **look)
        axes.set_title(f"layer {layer}", loc="left")
        axes.set_xlabel("iteration")
    panels[0].set_ylabel("expert")
    assert image is not None
    upper.colorbar(image, ax=list(panels), format="%g", shrink=0.8, pad=0.01).set_label("load / mean")
    _lines(lower.subplots(1, 3), layers, _lags(rows))
    figure.suptitle(rows[0]["source"])
    return figure


def _lines(panels: Sequence[Axes], layers: dict[int, list], lags: Sequence[int]) -> None:
    titles = {"max_over_mean": "Hottest expert over the mean", "deviation": "Standard deviation over the mean"}
    for colour, (layer, here) in zip(COLOURS, layers.items(), strict=False):
        for axes, (key, title) in zip(panels, titles.items(), strict=False):
            axes.plot([row["iteration"] for row in here], [row[key] for row in here], color=colour, linewidth=1.0)
            axes.set_title(title, loc="left")
            axes.set_xlabel("iteration")
        known = [(lag, mean) for lag in lags if (mean := _mean(here, f"correlation_{lag}")) is not None]
        panels[2].plot(*zip(*known, strict=True), color=colour, marker="o", markersize=4, label=f"layer {layer}")
    panels[2].set_xscale("log")
    panels[2].set_xticks(lags, [str(lag) for lag in lags])
    panels[2].minorticks_off()
    panels[2].set_xlabel("records apart")
    panels[2].set_title("Correlation of loads", loc="left")
    panels[2].set_ylim(top=1.03)
    panels[2].legend()
    for axes in panels:
        axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]) if axes is panels[2] else 0.0)
        axes.grid()


def verdicts(rows: Rows) -> list[Verdict]:
    """Whether the variance of loads shrinks, how hot the hottest expert is, and how fast loads move on."""
    layers = _by_layer(rows)
    ratio = [_shrunk(here) for here in layers.values()]
    mean = float(np.mean(ratio))
    shrinks = Verdict(
        f"{rows[0]['source']}: variance, last over first 10 %",
        f"{mean:.2f}",
        "below 1 (shrinks)",
        None if rows[0]["source"] == "generated" else max(mean - 1, 0.0),
    )
    hottest = [row["max_over_mean"] for row in rows]
    found = [shrinks, Verdict("hottest expert over the mean, median", f"{np.median(hottest):.2f}")]
    for lag in _lags(rows):
        alike = _mean(rows, f"correlation_{lag}")
        if alike is not None:
            found.append(Verdict(f"correlation of loads {lag} records apart", f"{alike:.3f}"))
    return found


def _shrunk(rows: Sequence) -> float:
    """Variance of the last tenth over that of the first."""
    ends = {when: float(np.mean([row["deviation"] ** 2 for row in part])) for when, part in _ends(rows).items()}
    if ends["first"]:
        return ends["last"] / ends["first"]
    return float("inf") if ends["last"] else 1.0


SCRIPT = Script(
    name=NAME,
    question="Load of experts over iterations: a row per iteration and layer.",
    config=Config,
    run=run,
    table=table,
    draw=draw,
    verdicts=verdicts,
    quick={"iterations": 200, "lags": (1, 10, 100)},
)
main = SCRIPT.main

if __name__ == "__main__":
    sys.exit(main())
