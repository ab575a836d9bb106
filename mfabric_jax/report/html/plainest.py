"""A chart of any rows: bars of the first number by the first name, or a line where there is no name."""

import math

from mfabric_jax.report import style
from mfabric_jax.report.grid import Rows
from mfabric_jax.report.html import columns
from mfabric_jax.report.html.chart import Chart
from mfabric_jax.report.html.frame import Frame, x_axis, y_axis
from mfabric_jax.report.html.marks import Drawn, bar, curves
from mfabric_jax.report.html.markup import tag, words
from mfabric_jax.report.html.scales import Scale, spanning, stepped
from mfabric_jax.report.numerals import significant, usable

_MOST_BARS, _BAR, _GAP, _LETTERS = 40, 16, 6, 28
_LETTER = 6.2  # units of width
_PLAIN = style.FABRICS["fat-tree"]
_ROW = "row"


def plainest(rows: Rows) -> Chart:
    """Bars by the first column of names that differ; without one a line, against the first of two numbers."""
    names = columns.textual(rows)
    by = next((name for name in names if len(columns.distinct(rows, name)) > 1), next(iter(names), None))
    return _line_chart(rows) if by is None else _bar_chart(rows, by)


def _bar_chart(rows: Rows, by: str) -> Chart:
    result = columns.metric(rows)
    groups: dict[str, list[float]] = {}
    for row in rows:
        value = 1.0 if result is None else usable(row[result])
        if value is not None:
            groups.setdefault(str(row[by]), []).append(value)
    shown = dict(list(groups.items())[:_MOST_BARS])
    several = max(map(len, shown.values()), default=1) > 1
    note = "How many rows there are of each." if result is None else f"A bar for each {by}."
    if several and result is not None:
        note += " It is the mean of its rows; the thin line reaches from the least to the largest."
    if len(groups) > len(shown):
        note += f" The first {len(shown)} of {len(groups)}."
    title = f"Rows by {by}" if result is None else f"{result} by {by}"
    return Chart(title, note, "", [_bars(shown, result, by)] if shown else [])


def _bars(groups: dict[str, list[float]], result: str | None, title: str) -> str:
    left = 14 + _LETTER * max(len(_short(name)) for name in groups)
    frame = Frame(width=620, height=34 + 46 + (_BAR + _GAP) * len(groups), left=left, right=60)
    values = [sum(found) if result is None else math.fsum(found) / len(found) for found in groups.values()]
    ends = values if result is None else [end for found in groups.values() for end in (min(found), max(found))]
    scale = spanning([*values, *ends], *frame.across, zero=True)
    marks = [x_axis(frame, scale, result or "rows", scale.ticks())]
    for place, ((name, found), value) in enumerate(zip(groups.items(), values, strict=True)):
        marks.append(_bar(scale, frame.top + _GAP / 2 + place * (_BAR + _GAP), name, found, value, result is not None))
    look = Drawn(title, _PLAIN.colour)
    return frame.drawn(title, look.group(*marks))


def _bar(scale: Scale, top: float, name: str, found: list[float], value: float, whisker: bool) -> str:
    middle = top + _BAR / 2
    said = f"{name}: {significant(value)}"
    if whisker and len(found) > 1:
        said += f" (mean of {len(found)}: {significant(min(found))} to {significant(max(found))})"
    named = tag("text", words(_short(name)), class_="tick", x=scale.start - 6, y=middle + 4, text_anchor="end")
    x = sorted((scale(0.0), scale(value)))
    drawn = bar(x[0], top, x[1] - x[0], _BAR, said)
    end = scale(value)
    if whisker and len(found) > 1:
        end = max(end, scale(max(found)))
        drawn += tag("line", class_="whisker", x1=scale(min(found)), y1=middle, x2=scale(max(found)), y2=middle)
    return named + drawn + tag("text", significant(value, 3), class_="total", x=max(end, x[1]) + 5, y=middle + 4)


def _line_chart(rows: Rows) -> Chart:
    numbers = columns.numeric(rows)
    by, result = (numbers[0], numbers[1]) if len(numbers) > 1 else (_ROW, numbers[0]) if numbers else (_ROW, None)
    found = (
        []
        if result is None
        else [
            (at, value)
            for place, row in enumerate(rows, 1)
            if (at := float(place) if by == _ROW else usable(row[by])) is not None
            and (value := usable(row[result])) is not None
        ]
    )
    if not found or result is None:
        return Chart("Rows", "No column holds a number or a name that could be drawn.", "", [])
    frame = Frame(width=620)
    x, ticks = stepped([at for at, _ in found], *frame.across)
    y = spanning([value for _, value in found], *frame.upward)
    points = [((x(at), y(v)), f"{by} {significant(at)}: {significant(v)}") for at, v in sorted(found)]
    look = Drawn(result, _PLAIN.colour, _PLAIN.marker)
    panel = frame.drawn(result, x_axis(frame, x, by, ticks), y_axis(frame, y, result), curves([(look, points)]))
    return Chart(f"{result} against {by}", "All rows.", "", [panel])


def _short(name: str) -> str:
    return name if len(name) <= _LETTERS else f"{name[: _LETTERS // 2]}…{name[1 - _LETTERS // 2 :]}"
