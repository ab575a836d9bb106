"""Iteration time: a panel per model, a group of bars per NIC bandwidth, a bar per fabric."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mfabric_jax.report import numerals, style
from mfabric_jax.report.grid import Grid, Rows, arrange

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_GROUP = 0.84  # of the distance between groups, the rest is the gap
_LEGIBLE = 0.13  # inches of bar width that a label over it needs
_LYING = 0.45  # inches of bar width that a label needs which is not turned


def iteration_time(rows: Rows, path: str | Path) -> Path:
    """Draw seconds per iteration of every fabric at every bandwidth; returns the path written."""
    return style.save(lambda: build(rows), path)


def build(rows: Rows) -> Figure:
    """The figure itself. Each panel has its own scale, from zero."""
    from matplotlib.patches import Patch

    grid = arrange(rows, ["iteration_s"])
    figure, axes = style.panels(len(grid.models))
    inches = figure.get_figwidth() / min(len(grid.models), 2) - 0.8
    bar = inches * _GROUP / (len(grid.bandwidths) * len(grid.series))
    for model, panel in zip(grid.models, axes, strict=False):
        _panel(panel, grid, model, bar)
    handles = [
        Patch(facecolor=style.fabric(s.fabric).colour, hatch=style.hatch(s), edgecolor="white", label=style.label(s))
        for s in grid.series
    ]
    style.legend(figure, axes, len(grid.models), handles)
    return figure


def _panel(axes: Axes, grid: Grid, model: str, inches: float) -> None:
    width = _GROUP / len(grid.series)
    for place, series in enumerate(grid.series):
        for group, gbps in enumerate(grid.bandwidths):
            seconds = grid.value(model, series, gbps, "iteration_s")
            if seconds is None:
                continue
            x = group + (place - (len(grid.series) - 1) / 2) * width
            colour = style.fabric(series.fabric).colour
            axes.bar(x, seconds, width, color=colour, hatch=style.hatch(series), edgecolor="white", linewidth=0.5)
            if inches > _LEGIBLE:
                _label(axes, x, seconds, turned=inches < _LYING)
    axes.set_title(model, loc="left")
    axes.set_xticks(range(len(grid.bandwidths)), [f"{gbps:g}" for gbps in grid.bandwidths])
    axes.tick_params(axis="x", length=0)
    axes.set_xlabel("NIC bandwidth [Gbps]")
    axes.set_ylabel("iteration time [s]")
    axes.set_ylim(0, axes.get_ylim()[1] * (1.14 if inches > _LEGIBLE else 1.0))
    axes.grid(axis="y")


def _label(axes: Axes, x: float, seconds: float, turned: bool) -> None:
    text = numerals.significant(seconds, 3)
    place = {"xytext": (0, 2), "textcoords": "offset points", "ha": "center", "va": "bottom"}
    axes.annotate(text, (x, seconds), rotation=90 if turned else 0, fontsize=style.FONT - 2.5, **place)
