"""Sensitivity: the result against every number that was varied, a line per choice of names."""

import math
from collections.abc import Mapping
from typing import Any

from mfabric_jax.report.grid import DETAIL_GBPS, Rows
from mfabric_jax.report.html import columns
from mfabric_jax.report.html.chart import Chart
from mfabric_jax.report.html.frame import Frame, x_axis, y_axis
from mfabric_jax.report.html.marks import Drawn, curves, key, looks
from mfabric_jax.report.html.scales import spanning, stepped
from mfabric_jax.report.numerals import significant, usable

_MOST_LINES, _MOST_PANELS, _MOST_VALUES, _MOST_CHARTS = 10, 8, 40, 6
_GBPS = "nic_gbps"
NUMBER = "configuration"  # of a row of a sweep: no parameter

Lines = dict[str, dict[float, list[float]]]  # line, value of the parameter: results


def sweeps(rows: Rows, effective: Mapping[str, Any], skip: tuple[str, ...] = ()) -> list[Chart]:
    """A chart for each parameter of which the same fabric, policy, .. occurs with several values."""
    chosen = columns.settings(rows, effective)
    result = columns.metric(rows)
    names = [name for name in columns.textual(rows) if name in chosen and len(columns.distinct(rows, name)) > 1]
    numbers = [name for name in columns.numeric(rows) if name in chosen and name not in (*skip, NUMBER)]
    panel, lines = _arranged(rows, names)
    charts = []
    for name in numbers:
        if result is None or not 2 <= len(columns.distinct(rows, name)) <= _MOST_VALUES:
            continue
        held, where = _held(rows, name, chosen)
        cells = _cells(held, name, result, panel, lines)
        if any(len(at) > 1 for line in cells.values() for at in line.values()):
            charts.append(_chart(cells, name, result, lines, where))
    return charts[:_MOST_CHARTS]


def _arranged(rows: Rows, names: list[str]) -> tuple[str | None, list[str]]:
    """Which name has a panel for each value, and which together a line."""
    panel = "model" if "model" in names else None
    if panel is None and names and _combinations(rows, names) > _MOST_LINES:
        panel = names[0]
    if panel is not None and len(columns.distinct(rows, panel)) > _MOST_PANELS:
        panel = None
    lines: list[str] = []
    for name in (name for name in names if name != panel):
        if _combinations(rows, [*lines, name]) > _combinations(rows, lines):  # not told by those before it
            lines.append(name)
    while lines and _combinations(rows, lines) > _MOST_LINES:
        lines.pop()
    return panel, lines


def _combinations(rows: Rows, names: list[str]) -> int:
    return len({tuple(row[name] for name in names) for row in rows})


def _held(rows: Rows, name: str, chosen: list[str]) -> tuple[Rows, str]:
    """Rows at the bandwidth nearest to 400 Gbps, where it is not bandwidth that is varied."""
    if name == _GBPS or _GBPS not in chosen or _GBPS not in columns.numeric(rows):
        return rows, ""
    present = [value for one in columns.distinct(rows, _GBPS) if (value := usable(one)) is not None]
    if len(present) < 2:
        return rows, ""
    nearest = min(present, key=lambda gbps: abs(gbps - DETAIL_GBPS))
    return [row for row in rows if row[_GBPS] == nearest], f" At {nearest:g} Gbps."


def _cells(rows: Rows, name: str, result: str, panel: str | None, lines: list[str]) -> dict[str, Lines]:
    cells: dict[str, Lines] = {}
    for row in rows:
        at, found = usable(row[name]), usable(row[result])
        if at is not None and found is not None:
            line = cells.setdefault("" if panel is None else str(row[panel]), {})
            points = line.setdefault(", ".join(str(row[one]) for one in lines), {})
            points.setdefault(at, []).append(found)
    return cells


def _chart(cells: dict[str, Lines], name: str, result: str, lines: list[str], where: str) -> Chart:
    drawn = looks(line for panel in cells.values() for line in panel)
    several = max(len(values) for panel in cells.values() for line in panel.values() for values in line.values())
    note = f"A line for each {', '.join(lines)}." if lines else "All rows."
    note += where + (f" A point is the mean of up to {several} rows." if several > 1 else "")
    panels = [_panel(title or result, panel, drawn, name, result) for title, panel in cells.items()]
    return Chart(f"Sensitivity: {result} against {name}", note, key(drawn.values()) if lines else "", panels)


def _panel(title: str, lines: Lines, drawn: dict[str, Drawn], name: str, result: str) -> str:
    frame = Frame()
    means = {
        line: {at: math.fsum(found) / len(found) for at, found in sorted(points.items())}
        for line, points in lines.items()
    }
    x, ticks = stepped([at for points in means.values() for at in points], *frame.across)
    y = spanning([mean for points in means.values() for mean in points.values()], *frame.upward)
    marks = [x_axis(frame, x, name, ticks), y_axis(frame, y, result)]
    said = [
        (drawn[line], [((x(at), y(mean)), _said(drawn[line].label, name, at, mean)) for at, mean in points.items()])
        for line, points in means.items()
    ]
    marks.append(curves(said))
    return frame.drawn(title, *marks)


def _said(label: str, name: str, at: float, mean: float) -> str:
    return f"{label}{', ' if label else ''}{name} {at:g}: {significant(mean)}"
