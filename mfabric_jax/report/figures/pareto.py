"""Network cost against iteration time: what a dollar buys, and which choices nothing else beats."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from mfabric_jax.report import numerals, style
from mfabric_jax.report.figures import labels
from mfabric_jax.report.grid import Grid, Rows, Series, arrange

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_NOTE = "Numbers are NIC bandwidths in Gbps; a line joins those of one fabric, in order."

Point = tuple[float, float]


def pareto(rows: Rows, path: str | Path) -> Path:
    """Draw cost against time, a panel per model, with the Pareto front as a step line; returns the path written."""
    return style.save(lambda: build(rows), path)


def front(points: Sequence[Point]) -> list[Point]:
    """The points that no other is at most as large as in both values, by rising first value; equal points once."""
    best: list[Point] = []
    for point in sorted(set(points)):
        if not best or point[1] < best[-1][1]:
            best.append(point)
    return best


def _steps(best: Sequence[Point], right: float, top: float) -> list[Point]:
    """The front as a staircase from the top edge to the right one."""
    stairs = [(best[0][0], top), best[0]]
    for (_, above), point in pairwise(best):
        stairs += [(point[0], above), point]
    return [*stairs, (right, best[-1][1])]


def build(rows: Rows) -> Figure:
    """The figure itself. Rows without a cost are left out, and a note says which."""
    grid = arrange(rows, ["iteration_s", "network_cost_usd"])
    figure, axes = style.panels(len(grid.models), height=3.6)
    for model, panel in zip(grid.models, axes, strict=False):
        _panel(panel, grid, model)
    priced = [s for s in grid.series if any(_point(grid, m, s, g) for m in grid.models for g in grid.bandwidths)]
    style.legend(figure, axes, len(grid.models), _key(priced))
    unpriced = [style.label(s) for s in grid.series if s not in priced]
    note = f"\nWithout a public price, left out: {', '.join(unpriced)}." if unpriced else ""
    figure.suptitle(f"{_NOTE}{note}", fontsize=style.FONT)
    figure.draw_without_rendering()  # from here on the panels stay where they are
    for model, panel in zip(grid.models, axes, strict=False):
        _labels(panel, grid, model)
    return figure


def _key(priced: list[Series]) -> list:
    """Handles of the legend: a marker per series and the front."""
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], label=style.label(s), linewidth=0.8, **_marks(s)) for s in priced]
    return [*handles, Line2D([], [], color=style.INK, linewidth=1.6, alpha=0.45, label="Pareto front")]


def _marks(series: Series) -> dict:
    """How the points of a series are drawn: filled for the first series of a fabric, hollow for others."""
    look = style.fabric(series.fabric)
    fill = look.colour if series.rank == 0 else "white"
    return {"color": look.colour, "marker": look.marker, "markerfacecolor": fill, "markersize": 7}


def _point(grid: Grid, model: str, series: Series, gbps: float) -> Point | None:
    """(millions of dollars, seconds) of a cell, None if either is not known."""
    cost = grid.value(model, series, gbps, "network_cost_usd")
    seconds = grid.value(model, series, gbps, "iteration_s")
    return None if cost is None or seconds is None else (numerals.millions(cost), seconds)


def _panel(axes: Axes, grid: Grid, model: str) -> None:
    everything = []
    for series in grid.series:
        points = [p for p in (_point(grid, model, series, gbps) for gbps in grid.bandwidths) if p]
        everything += points
        axes.plot([p[0] for p in points], [p[1] for p in points], linewidth=0.8, **_marks(series))
    best = front(everything)
    _scale(axes, everything)
    if best:
        x, y = zip(*_steps(best, axes.get_xlim()[1], axes.get_ylim()[1]), strict=True)
        axes.plot(x, y, color=style.INK, linewidth=1.6, alpha=0.45, zorder=1, label="Pareto front")
    axes.set_title(model, loc="left")
    axes.set_xlabel("network cost [M$]")
    axes.set_ylabel("iteration time [s]")
    axes.grid()


def _labels(axes: Axes, grid: Grid, model: str) -> None:
    """Every point's bandwidth beside it, as far as there is room; the front comes first."""
    cells = [(gbps, s, _point(grid, model, s, gbps)) for s in grid.series for gbps in grid.bandwidths]
    known = [(gbps, s, point) for gbps, s, point in cells if point]
    best = front([point for _, _, point in known])
    known.sort(key=lambda cell: cell[2] not in best)
    colours = [style.fabric(s.fabric).colour for _, s, _ in known]
    labels.beside(axes, [point for _, _, point in known], [f"{gbps:g}" for gbps, _, _ in known], colours)


def _scale(axes: Axes, points: Sequence[Point]) -> None:
    """Room for the labels; a logarithmic cost axis in plain numbers where costs differ fivefold or more."""
    if not points:
        return
    costs, times = ([p[i] for p in points] for i in (0, 1))
    if min(costs) > 0 and max(costs) > 5 * min(costs):
        from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_xlim(min(costs) / 1.25, max(costs) * 1.5)
    else:
        room = 0.12 * (max(costs) - min(costs)) or 0.5 * max(costs) or 1.0
        axes.set_xlim(min(costs) - room, max(costs) + room)
    spread = (max(times) - min(times)) or max(times) or 1.0
    axes.set_ylim(max(0, min(times) - 0.1 * spread), max(times) + 0.15 * spread)
