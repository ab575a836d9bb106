"""Draw charts (`report.charts`) with matplotlib.

Scales are logarithmic if values lie far apart. Points of several curves stay visible where they coincide: upper markers
are smaller, a covered line is dashed, and each point shows the tips of all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from mfabric_jax.report import style
from mfabric_jax.report.charts import LITERAL, Chart, Panel, drawable_panel
from mfabric_jax.report.drawing import paper
from mfabric_jax.report.grid import Point, front
from mfabric_jax.report.numerals import number, percent

_FAR = 5  # least ratio of largest to smallest value for a logarithmic scale
_DECADES = 500  # above this ratio, only powers of ten are ticks
_MOST_TICKS, _APART = 10, 0.075  # ticks at the values themselves: most, and least distance [fraction of the axis]
_SIZE, _SMALLER = 6.5, 0.62  # size of a marker; factor for a marker on top of another
_BAR = 0.66  # height of a bar
_BEHIND = 10  # characters of room to the right of a bar, if panels share a scale
_BELOW = 0.28  # distance of a range below the middle of its row, as a fraction of the row


def handles(chart: Chart) -> list[Any]:
    joined: dict[style.Look, Any] = {
        curve.look: "-" if curve.joined else "" for panel in chart.panels for curve in panel.curves
    }
    entries: list[Any] = [
        Line2D([], [], linestyle=joined[look], label=look.label, markersize=_SIZE, **_marker(look))
        if look in joined
        else Patch(facecolor=look.colour, edgecolor=style.FAINT, label=look.label)
        for look in chart.key
    ]
    stairs = Line2D([], [], color=style.FAINT, linewidth=5, alpha=0.35, label="Pareto front")
    return [*entries, *([stairs] if any(panel.stairs for panel in chart.panels) else [])]


def figure(chart: Chart) -> Figure:
    """Return the chart as a matplotlib figure: panels in two columns, the key in the free cell or below."""
    panels = chart.panels or [Panel("", "")]
    rows = max(len(panel.names) for panel in panels)
    with matplotlib.rc_context(LITERAL):  # pyright: ignore
        key = handles(chart)
        made, every = paper.panels(len(panels), key, height=1.25 + 0.3 * rows if rows else 3.5)
        for axes, panel in zip(every, panels, strict=False):
            draw_panel(axes, panel)
        paper.legend(made, every, len(panels), key)
        paper.set_heading(made, chart.title, chart.note)
    return made


def picture_writer(build: Callable[..., Chart | Figure], data: int = 1) -> Callable[..., Path]:
    """Return a function that writes the figure of `build` in the package's style and returns the path.

    The path follows the first `data` arguments: `failures(rows, path)`, `region(demand, circuits, path, title)`. The
    function raises InputError if `build` does, or if the path does not name a picture or cannot be written.
    """

    def draw(*arguments: Any, **named: Any) -> Path:
        *first, path = arguments[: data + 1]

        def make_figure() -> Figure:
            drawing = build(*first, *arguments[data + 1 :], **named)
            return figure(drawing) if isinstance(drawing, Chart) else drawing

        return paper.save(make_figure, path)

    return draw


def draw_panel(axes: Axes, panel: Panel) -> None:
    """Draw a panel on axes;"""
    panel = drawable_panel(panel)
    axes.set_title(panel.title, loc="left")
    axes.set_xlabel(panel.x)
    axes.set_ylabel(panel.y, rotation_mode="anchor")
    if not panel.curves and not panel.bars:
        axes.text(0.5, 0.5, "no result", ha="center", transform=axes.transAxes)
        axes.set_axis_off()
        return
    if panel.names:
        _draw_rows(axes, panel)
    else:
        ends = [y for curve in panel.curves for both in curve.spread for y in both]
        scale(axes, "x", [*(x for x, _ in panel.points), *panel.reach_x], exact=True)
        scale(axes, "y", [*(y for _, y in panel.points), *ends, *panel.reach])
        axes.grid()
    if panel.columns:
        axes.set_xscale("linear")
        axes.set(xlim=(-0.5, len(panel.columns) - 0.5))
        axes.set_xticks(range(len(panel.columns)), list(panel.columns))
    if panel.percent:
        axes.xaxis.set_major_formatter(lambda value, _: percent(value, signed=True))
    _draw_curves(axes, panel)


def scale(axes: Axes, along: str, values: Iterable[float], exact: bool = False, zero: bool = False) -> None:
    """Set scale, limits and ticks of one axis; it is logarithmic if values lie far apart.

    `zero`: begin at 0; without it, the axis begins there only if that costs little space. `exact`: put ticks at the
    values if these are few, round and not too close.
    """
    values = sorted(set(values))
    axis, low, high = getattr(axes, f"{along}axis"), values[0], values[-1]
    log = not zero and low > 0 and high >= _FAR * low
    if log:
        getattr(axes, f"set_{along}scale")("log")
        axis.set_major_locator(LogLocator(subs=(1.0,) if high > _DECADES * low else (1.0, 2.0, 5.0), numticks=20))
        limits = low / (high / low) ** 0.07, high * (high / low) ** 0.07
    else:
        axis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
        room = 0.08 * (high - low) or 0.08 * abs(high) or 1.0
        base = zero or low == 0 or (0 < 2 * low <= high and not exact)
        limits = (0.0 if base and low >= 0 else low - room), (0.0 if base and high <= 0 > low else high + room)
    getattr(axes, f"set_{along}lim")(*limits)
    scaled = axis.get_transform().transform
    fractions = np.interp(scaled(values), scaled(limits), (0.0, 1.0))
    round_ones = len(values) <= _MOST_TICKS and all(float(f"{value:.3g}") == value for value in values)
    if exact and round_ones and np.diff(fractions).min(initial=1.0) >= _APART:
        axis.set_ticks(values)
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))


def _draw_curves(axes: Axes, panel: Panel) -> None:
    if panel.stairs:  # from each point of the front right, then down to the next
        x, y = zip(*front(panel.points), strict=True)
        corners = np.repeat([*x, axes.get_xlim()[1]], 2)[:-1], np.repeat([axes.get_ylim()[1], *y], 2)[1:]
        axes.plot(*corners, color=style.FAINT, linewidth=5, alpha=0.35, zorder=1)
    under: dict[Point, int] = {}
    for curve in panel.curves:
        size = _SIZE if curve.joined or panel.names else 0.7 * _SIZE
        depths = [under.get(_nearby(axes, point), 0) for point in curve.points]
        if curve.joined:
            dashes = (0, (4, 4)) if all(depths) else "-"
            axes.plot(*zip(*curve.points, strict=True), color=curve.look.colour, linewidth=1.3, linestyle=dashes)
        for depth in sorted(set(depths)):
            some = [point for point, own in zip(curve.points, depths, strict=True) if own == depth]
            marks = {"linestyle": "", "markersize": size * _SMALLER**depth, "label": curve.look.label}
            marks |= {"clip_on": False}  # a point on an axis is drawn whole
            axes.plot(*zip(*some, strict=True), **marks, **_marker(curve.look))
        for (x, _), ends in zip(curve.points, curve.spread, strict=bool(curve.spread)):
            axes.plot([x, x], ends, color=curve.look.colour, linewidth=0.8)
        for point in curve.points:
            under[_nearby(axes, point)] = under.get(_nearby(axes, point), 0) + 1


def _marker(look: style.Look) -> dict[str, Any]:
    fill = style.PAPER if look.hollow else look.colour
    return {"color": look.colour, "marker": look.marker, "markerfacecolor": fill}


def _nearby(axes: Axes, point: Point) -> Point:
    across, up = axes.transLimits.transform(axes.transScale.transform(point))
    return round(300 * float(across)), round(200 * float(up))


def _draw_rows(axes: Axes, panel: Panel) -> None:
    values = [x for x, _ in panel.points] + [end for bar in panel.bars for end in (bar.start, bar.end)]
    values += [end for ends in panel.spread.values() for end in ends] + list(panel.reach)
    scale(axes, "x", values, zero=bool(panel.bars))
    (low, high), small = axes.get_xlim(), paper.font(0.85)
    letter = 0.68 * small * axes.figure.dpi / 72 / axes.get_window_extent().width  # as a fraction of the axis
    longest = max((len(text) for _, text in panel.totals), default=0)
    span = (high - low) / (1 - min(0.6, letter * max(longest, _BEHIND if panel.reach else 0)))
    axes.set_xlim(low, low + span)
    for bar in panel.bars:
        width = bar.end - bar.start
        edges = {"color": bar.look.colour, "edgecolor": style.FAINT, "linewidth": 0.5}
        axes.barh(bar.row, width, _BAR, left=bar.start, **edges)
        if bar.text and width > letter * len(bar.text) * span:
            inside = {"ha": "center", "va": "center", "fontsize": small, "color": style.ink_on(bar.look.colour)}
            axes.text(bar.start + width / 2, bar.row, bar.text, **inside)
    for row, ends in panel.spread.items():
        axes.plot(ends, [row + _BELOW] * 2, color=style.INK, linewidth=1.1, marker="|", markersize=0.8 * _SIZE)
    for row, (end, text) in enumerate(panel.totals):
        end = max((end, *panel.spread.get(row, ())))
        axes.text(end + 0.012 * span, row, text, va="center", fontsize=small, fontweight="bold")
    axes.set_yticks(range(len(panel.names)), list(panel.names))
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(panel.names) - 0.45, -0.55)
    axes.grid(axis="x")
