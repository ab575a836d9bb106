"""Charts of any rows: the result by varied number, a design space, bars by name."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from mfabric_jax.checks import InputError
from mfabric_jax.report import style
from mfabric_jax.report.charts import Bar, Chart, Curve, Panel
from mfabric_jax.report.compared import FRONT
from mfabric_jax.report.grid import (
    CLUSTER,
    COST,
    NUMBER,
    TIME,
    Point,
    Rows,
    check_columns,
    combinations,
    front,
    group_rows,
    independent_columns,
    nearest_to_detail,
    numeric,
    result_column,
    setting_columns,
    textual,
    values_in,
    with_named_graphs,
)
from mfabric_jax.report.numerals import millions, number, usable

_GBPS = "nic_gbps"
_MOST_LINES, _MOST_PANELS, _MOST_VALUES, _MOST_CHARTS, _MOST_BARS = 10, 8, 40, 6, 40
_MOST_POINTS = 1500  # most points of a panel besides its front
_SLOW = 10  # designs slower than this many times the fastest are left out: they would squeeze the others
_LETTERS = 28

_COST = "cost of the chart"
_NETWORK = COST, "network cost"
_COSTS = {CLUSTER: "whole-cluster cost", **dict([_NETWORK])}

Lines = dict[str, dict[float, list[float]]]  # results by line and value of the parameter


# -- the result against each parameter


def sensitivities(rows: Rows, effective: Mapping[str, Any], skip: tuple[str, ...] = ()) -> list[Chart]:
    """Return charts of the result over each numeric setting that varies along a line (of a fabric, a policy, ..)."""
    rows = with_named_graphs(rows)
    chosen, result = setting_columns(rows, effective), result_column(rows)
    names = [name for name in textual(rows) if name in chosen and len(values_in(rows, name)) > 1]
    panel, lines = _panel_and_lines(rows, names)
    charts = []
    for name in numeric(rows) if result is not None else []:
        if name in chosen and name not in (*skip, NUMBER) and 2 <= len(values_in(rows, name)) <= _MOST_VALUES:
            held, where = _at_detail_bandwidth(rows, name, chosen)
            cells = _cells(held, name, str(result), panel, lines)
            if any(len(line) > 1 for each in cells.values() for line in each.values()):
                charts.append(_sensitivity(cells, name, str(result), lines, where))
    return charts[:_MOST_CHARTS]


def _panel_and_lines(rows: Rows, names: list[str]) -> tuple[str | None, list[str]]:
    panel = "model" if "model" in names else None
    if panel is None and names and combinations(rows, names) > _MOST_LINES:
        panel = names[0]
    if panel is not None and len(values_in(rows, panel)) > _MOST_PANELS:
        panel = None
    lines = independent_columns(rows, [name for name in names if name != panel])
    while lines and combinations(rows, lines) > _MOST_LINES:
        lines.pop()
    return panel, lines


def _at_detail_bandwidth(rows: Rows, name: str, chosen: list[str]) -> tuple[Rows, str]:
    if name == _GBPS or _GBPS not in chosen or _GBPS not in numeric(rows):
        return rows, ""
    present = [value for gbps in values_in(rows, _GBPS) if (value := usable(gbps)) is not None]
    if len(present) < 2:
        return rows, ""
    nearest = nearest_to_detail(present)
    return [row for row in rows if row[_GBPS] == nearest], f" At {number(nearest)} Gbps."


def _cells(rows: Rows, name: str, result: str, panel: str | None, lines: list[str]) -> dict[str, Lines]:
    cells: dict[str, Lines] = {}
    for row in rows:
        value, outcome = usable(row[name]), usable(row[result])
        if value is not None and outcome is not None:
            title, line = str(row[panel]) if panel else "", ", ".join(str(row[column]) for column in lines)
            cells.setdefault(title, {}).setdefault(line, {}).setdefault(value, []).append(outcome)
    return cells


def _sensitivity(cells: dict[str, Lines], name: str, result: str, lines: list[str], where: str) -> Chart:
    looks = style.distinct_looks(line for each in cells.values() for line in each)
    several = max(len(outcomes) for each in cells.values() for line in each.values() for outcomes in line.values())
    note = f"A line for each {', '.join(lines)}." if lines else "All rows."
    note += where + (f" A point is the mean of up to {several} rows." if several > 1 else "")
    panels = []
    for title, each in cells.items():
        curves = []
        for line, values in each.items():
            points = [(value, math.fsum(outcomes) / len(outcomes)) for value, outcomes in sorted(values.items())]
            label = looks[line].label
            tips = [f"{label}{', ' if label else ''}{name} {number(value)}: {number(mean)}" for value, mean in points]
            curves.append(Curve(looks[line], points, tips))
        panels.append(Panel(title, name, result, curves))
    return Chart(f"Sensitivity: {result} against {name}", note, list(looks.values()) if lines else [], panels)


# -- a design space


def design_space(rows: Rows, effective: Mapping[str, Any]) -> Chart:
    """Return a chart of cost against time: a panel per model, a point per row, and the Pareto front.

    The cost is that of the cluster if rows have it, else of the network. Raise InputError if rows lack times or prices.
    """
    column, what = next((both for both in _COSTS.items() if any(usable(row.get(both[0])) for row in rows)), _NETWORK)
    check_columns(rows, (TIME, column))
    rows = with_named_graphs(rows)
    rows = [{**row, _COST: row[column]} for row in rows]
    placed = [row for row in rows if _point(row) is not None]
    if not placed:
        raise InputError("no row has both a time and a price.")
    chosen = [name for name in setting_columns(rows, effective) if len(values_in(placed, name)) > 1 and name != "model"]
    looks = style.distinct_looks(str(row.get("fabric", "rows")) for row in placed)
    panels, left_out = [], 0
    for (model,), own in group_rows([{"model": None, **row} for row in placed], "model").items():
        kept = _rows_to_draw(own)
        left_out += len(own) - len(kept)
        curves = []
        for name, look in looks.items():
            some = [row for row in kept if str(row.get("fabric", "rows")) == name]
            points = [point for row in some if (point := _point(row))]
            tips = [_tip(row, chosen, point) for row, point in zip(some, points, strict=True)]
            curves += [Curve(look, points, tips, joined=False)] if some else []
        panels.append(Panel(str(model or "all rows"), f"{what} [M$]", "iteration time [s]", curves, stairs=True))
    note = f"A point for each row. {FRONT}"
    if left_out:
        note += f" {left_out:,} of {len(placed):,} points are left out: slow ones, and some of many behind the front."
    return Chart(f"{what[0].upper()}{what[1:]} against iteration time", note, list(looks.values()), panels)


def _point(row: Mapping[str, Any]) -> Point | None:
    seconds, cost = usable(row[TIME]), usable(row[_COST])
    return None if seconds is None or cost is None or cost <= 0 else (millions(cost), seconds)


def _rows_to_draw(rows: Rows) -> Rows:
    shortest = min(point[1] for row in rows if (point := _point(row)))
    rows = [row for row in rows if (point := _point(row)) and point[1] <= _SLOW * shortest]
    best = set(front([point for row in rows if (point := _point(row))]))
    behind = [row for row in rows if _point(row) not in best]
    some = behind[:: -(-len(behind) // _MOST_POINTS)] if behind else []
    return [*some, *(row for row in rows if _point(row) in best)]


def _tip(row: Mapping[str, Any], chosen: list[str], point: Point) -> str:
    words = ", ".join(f"{name} {number(row[name])}" for name in chosen)
    return f"{words}: {number(point[1])} s, {number(point[0])} M$"


# -- any other rows


def mean_bars(rows: Rows) -> Chart:
    """Return bars of the mean result by up to two columns of names; without names, a line of two columns of numbers."""
    names = (independent_columns(rows, textual(rows)) or textual(rows)[:1])[:2]
    if not names:
        return _line(rows)
    result, groups = result_column(rows), {}
    for row in rows:
        value = 1.0 if result is None else usable(row[result])
        if value is not None:
            groups.setdefault(", ".join(str(row[name]) for name in names), []).append(value)
    bars, totals = [], []
    for index, (name, values) in enumerate(list(groups.items())[:_MOST_BARS]):
        value = math.fsum(values) / (1 if result is None else len(values))
        tip = f"{name}: {number(value)}" + (f" (mean of {len(values)})" if result and len(values) > 1 else "")
        bars.append(Bar(style.Look("", style.BEST), index, min(0.0, value), max(0.0, value), tip))
        totals.append((max(value, 0.0), number(value)))
    what, by = result or "rows", ", ".join(names)
    note = "The number of rows of each." if result is None else f"The mean of the rows of each {by}."
    note += f" The first {_MOST_BARS} of {len(groups)}." if len(groups) > _MOST_BARS else ""
    shown_names = [name if len(name) <= _LETTERS else f"{name[: _LETTERS - 1]}…" for name in groups][:_MOST_BARS]
    panels = [Panel("", what, bars=bars, names=shown_names, totals=totals)] if bars else []
    return Chart(f"Rows by {by}" if result is None else f"{result} by {by}", note, [], panels)


def _line(rows: Rows) -> Chart:
    numbers = numeric(rows)
    by, result = (numbers[0], numbers[1]) if len(numbers) > 1 else ("row", numbers[0] if numbers else None)
    points: Sequence[Point] = []
    if result is not None:
        pairs = [(index if by == "row" else usable(row[by]), usable(row[result])) for index, row in enumerate(rows, 1)]
        points = sorted((float(x), y) for x, y in pairs if x is not None and y is not None)
    if not points or result is None:
        return Chart("Rows", "No column holds numbers or names to draw.", [], [])
    tips = [f"{by} {number(x)}: {number(y)}" for x, y in points]
    curve = Curve(style.Look(result, style.BEST), points, tips)
    return Chart(f"{result} against {by}", "All rows.", [], [Panel("", by, result, [curve])])
