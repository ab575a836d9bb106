"""Pictures of recorded routing: heat maps of expert loads and of traffic between ranks, and their change over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure

from mfabric_jax.checks import InputError
from mfabric_jax.report import style
from mfabric_jax.report.charts import Chart, Curve, Panel
from mfabric_jax.report.drawing import paper
from mfabric_jax.report.drawing.drawn import picture_writer
from mfabric_jax.report.grid import Rows, group_rows

PANELS = 4
_MANY = 12  # most readable ticks of an axis


def sampled_layers(layers: int) -> list[int]:
    """Return the numbers of at most four layers, the first and last among them."""
    return sorted({round(layer) for layer in np.linspace(0, layers - 1, min(layers, PANELS))})


def build_load(load: Any, number: Any, title: str = "", target: str = "expert") -> Figure:
    """Draw the load of each target over the mean: a panel for each of at most four layers.

    A single iteration has one panel, of all layers. `load` [iteration, layer, target]: selections. `number`
    [iteration]: labels of the iterations.
    """
    load, number = _check_array("load", load), [str(n) for n in np.asarray(number).tolist()]
    if len(number) != len(load):
        raise InputError(f"number must name each of the {len(load)} iterations of load, got {len(number)}.")
    relative, meaning = _over_mean(load, (2,)), f"load of the {target} / mean"
    if len(load) == 1:
        layers = [str(layer) for layer in range(load.shape[1])]
        return _figure({"": relative[0].T}, title, meaning, (target, "layer"), layers)
    pictures = {f"layer {layer}": relative[:, layer].T for layer in sampled_layers(load.shape[1])}
    return _figure(pictures, title, meaning, (target, "iteration"), number)


def build_pairs(matrix: Any, title: str = "", source: str = "source rank", target: str = "destination rank") -> Figure:
    """Draw selections [layer, source, target] over the mean of their layer, a panel for each of at most four layers."""
    relative = _over_mean(_check_array("matrix", matrix), (1, 2))
    pictures = {f"layer {layer}": relative[layer] for layer in sampled_layers(len(relative))}
    return _figure(pictures, title, "selections / mean", (source, target), None)


def _check_array(field: str, values: Any) -> np.ndarray:
    array = np.asarray(values, dtype=float)
    if array.ndim != 3 or 0 in array.shape or not np.all(np.isfinite(array) & (array >= 0)):
        raise InputError(f"{field} must have three non-empty axes and no negative numbers, got shape {array.shape}.")
    return array


def _over_mean(values: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    mean = np.broadcast_to(values.mean(axis=axes, keepdims=True), values.shape)
    return np.divide(values, mean, out=np.zeros_like(values), where=mean > 0)


def _figure(
    pictures: dict[str, np.ndarray], title: str, meaning: str, labels: tuple[str, str], columns: Sequence[str] | None
) -> Figure:
    down, across = next(iter(pictures.values())).shape
    square = down == across
    figure, every = paper.panels(len(pictures), width=5.0 if square else 5.8, height=4.5 if square else 3.3)
    most = max(1.0, *(float(picture.max()) for picture in pictures.values()))
    look = {"cmap": "Blues", "norm": PowerNorm(0.5, 0.0, most)}
    for axes, (name, picture) in zip(every, pictures.items(), strict=False):
        axes.imshow(picture, aspect="equal" if square else "auto", interpolation="nearest", **look)
        axes.set_title(name, loc="left")
        axes.set(ylabel=labels[0], xlabel=labels[1])
        _ticks(axes.yaxis, down, None)
        _ticks(axes.xaxis, across, columns)
        axes.tick_params(length=2, labelsize=style.FONT - 1)
        axes.spines[:].set_visible(False)
    ticks = [tick for power in range(0, 12, 2) if (tick := 2.0**power) <= 0.7 * most]
    colours = {"ticks": [0.0, *ticks, most], "format": "%.3g", "shrink": 0.7, "aspect": 30, "pad": 0.02}
    bar = figure.colorbar(ScalarMappable(look["norm"], look["cmap"]), ax=every, **colours)
    bar.set_label(meaning, labelpad=8)
    bar.outline.set_visible(False)  # pyright: ignore
    if title:
        paper.set_heading(figure, title)
    return figure


def _ticks(axis: Any, size: int, names: Sequence[str] | None) -> None:
    most = _MANY if names is None or max(map(len, names)) < 3 else _MANY // 2
    places = range(0, size, -(-size // most))
    axis.set_ticks(list(places), [str(tick) if names is None else names[tick] for tick in places])


# -- over time: similarity of loads by distance in records, and errors of predictors

PREDICTORS = {
    "transition": style.Look("Transition", "#D55E00", "D"),
    "previous-layer": style.Look("Previous layer", "#CC79A7", "v"),
    "previous-iteration": style.Look("Previous iteration", "#0072B2", "s"),
    "moving-average": style.Look("Moving average", "#009E73", "o"),
    "uniform": style.Look("Even shares", style.FAINT, "X"),
}
_LOADS = style.Look("mean of layers; bar: their 10th to 90th percentile", "#0072B2", "o")


def drift_chart(rows: Rows, title: str = "") -> Chart:
    """Return a chart of the correlation of loads by their distance in records (rows of `statistics.drift_rows`)."""
    known = [row for row in rows if row["correlation"] is not None]
    points = [(row["records"], row["correlation"]) for row in known]
    spread = [(row["correlation_p10"], row["correlation_p90"]) for row in known]
    panel = Panel("", "records apart", "correlation of loads", [Curve(_LOADS, points, spread=spread)])
    return Chart(title, "", [_LOADS], [panel])


def foresight_chart(rows: Sequence[Mapping[str, Any]], title: str = "") -> Chart:
    """Return a chart of the error of each predictor by its horizon (rows of `foresight.foresight_rows`)."""
    looks = {name: PREDICTORS.get(name, style.Look(name, style.FAINT)) for (name,) in group_rows(rows, "predictor")}
    curves = [
        Curve(looks[name], [(row["records"], row["error"]) for row in own])
        for (name,), own in group_rows(rows, "predictor").items()
    ]
    panel = Panel("", "records ahead", "selections predicted for a wrong target", curves)
    return Chart(title, "", list(looks.values()), [panel])


trace_load, trace_pairs = picture_writer(build_load, data=2), picture_writer(build_pairs)
trace_drift, trace_foresight = picture_writer(drift_chart), picture_writer(foresight_chart)
