"""Pictures of rows, described by columns: `lines`, `dots` and `heat` return functions of rows that build them.

An axis is a column and its label. What tells curves and panels apart is a format of a row, such as "{model}, {preset}".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from mfabric_jax.report import style
from mfabric_jax.report.charts import Chart, Curve, Panel
from mfabric_jax.report.drawing import paper

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Row: TypeAlias = dict[str, Any]
Rows: TypeAlias = Sequence[Row]
Axis: TypeAlias = tuple[str, str]

MOST_TICKS = 12  # of an axis of a heat map
GREY = "#eeeeee"  # a cell without a row
UP = style.PAPER, "#9ecae1", "#2f7ebc", "#08306b"  # from the least to the most
BELOW_ABOVE = "#5e2a08", style.BEHIND, "#e8b48f", "#f5f5f5", "#8fbbd9", style.BEST, "#002c4a"  # 1 in the middle


def lines(x: Axis, y: Axis, by: str, *, panel: str = "", title: str = "") -> Callable[[Rows], Chart]:
    """A curve for each `by`, in a panel for each `panel`; rows without a value on `y` are left out."""

    def build(rows: Rows) -> Chart:
        known, looks = [row for row in rows if row[y[0]] is not None], style.distinct_looks(parted(rows, by))
        panels = []
        for name, here in parted(known, panel).items():
            curves = [
                Curve(looks[of], sorted((row[x[0]], row[y[0]]) for row in curve))
                for of, curve in parted(here, by).items()
            ]
            panels.append(Panel(name, x[1], y[1], curves))
        return Chart(title, "", list(looks.values()), panels)

    return build


def dots(x: Axis, line: str, by: str, *, panel: str = "", title: str = "") -> Callable[[Rows], Chart]:
    """A dot for each row in the line that `line` names, in the colour of its `by`; a panel for each `panel`."""

    def build(rows: Rows) -> Chart:
        looks, panels = style.distinct_looks(parted(rows, by)), []
        for name, here in parted(rows, panel).items():
            places = {text: place for place, text in enumerate(parted(here, line))}
            curves = [
                Curve(looks[of], [(row[x[0]], places[line.format(**row)]) for row in some], joined=False)
                for of, some in parted(here, by).items()
            ]
            panels.append(Panel(name, x[1], curves=curves, names=list(places)))
        return Chart(title, "", list(looks.values()), panels)

    return build


def heat(
    x: Axis,
    y: Axis,
    value: Axis,
    norm: Any = None,
    *,
    panel: str = "",
    colours: Sequence[str] = UP,
    number: str = "",
    title: str = "",
) -> Callable[[Rows], Figure]:
    """A cell for each pair of values of `x` and `y`, in a panel for each `panel`; grey where there is no row.

    `norm`: a norm of matplotlib.   - `colours`: from its least value to its largest.   - `number`: a format of the
    value and its row, which is then written into its cell.
    """

    def build(rows: Rows) -> Figure:
        from matplotlib.cm import ScalarMappable
        from matplotlib.colors import LinearSegmentedColormap, Normalize, to_hex

        parts, values = parted(rows, panel), [row[value[0]] for row in rows]
        shades = LinearSegmentedColormap.from_list(title, list(colours))
        scale: Any = ScalarMappable(norm or Normalize(min(values), max(values)), shades)
        figure, every = paper.panels(len(parts), height=max(3.3, 0.24 * len(_places(rows, y[0]))) if number else 4.2)
        for axes, (name, here) in zip(every, parts.items(), strict=False):
            across, down = _places(here, x[0]), _places(here, y[0])
            cells = np.full((len(down), len(across)), np.nan)
            for row in here:
                place = down[row[y[0]]], across[row[x[0]]]
                cells[place] = row[value[0]]
                if number:
                    ink = style.ink_on(to_hex(scale.to_rgba(row[value[0]])))
                    text = {"ha": "center", "va": "center", "fontsize": style.FONT - 3, "color": ink}
                    axes.text(place[1], place[0], number.format(row[value[0]], **row), **text)
            axes.imshow(cells, scale.cmap, scale.norm, aspect="auto", interpolation="nearest")
            axes.set_title(name, loc="left")
            axes.set(xlabel=x[1], ylabel=y[1], facecolor=GREY)
            for axis, named in ((axes.xaxis, across), (axes.yaxis, down)):
                step = 1 if number else -(-len(named) // MOST_TICKS)
                axis.set_ticks(range(0, len(named), step), [str(text) for text in list(named)[::step]])
        figure.colorbar(scale, ax=every, label=value[1], shrink=0.7, format="%g")
        if title:
            paper.set_heading(figure, title)
        return figure

    return build


def beside(*builds: Callable[[Rows], Chart], in_turn: bool = False) -> Callable[[Rows], Chart]:
    """The panels of several charts of the same rows, with one key.

    `in_turn`: the first panel of each, then the second of each.
    """

    def build(rows: Rows) -> Chart:
        charts = [build(rows) for build in builds]
        key = dict.fromkeys(look for chart in charts for look in chart.key)
        every = [chart.panels for chart in charts]
        return Chart(charts[0].title, "", list(key), list(chain(*(zip(*every, strict=True) if in_turn else every))))

    return build


def parted(rows: Rows, form: str) -> dict[str, list[Row]]:
    """Rows by a format of theirs, in order of first appearance."""
    parts: dict[str, list[Row]] = {}
    for row in rows:
        parts.setdefault(form.format(**row), []).append(row)
    return parts


def _places(rows: Rows, key: str) -> dict[Any, int]:
    """Values of a column in their order: numbers by size, names as they appear."""
    values = dict.fromkeys(row[key] for row in rows)
    ordered = values if any(isinstance(value, str) for value in values) else sorted(values)
    return {value: place for place, value in enumerate(ordered)}
