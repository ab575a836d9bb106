"""Network cost against iteration time of a design space: a panel per model, a point per row, the front of all."""

from collections.abc import Mapping
from typing import Any

from mfabric_jax.checks import InputError
from mfabric_jax.report.figures.pareto import front
from mfabric_jax.report.grid import Rows
from mfabric_jax.report.html import columns
from mfabric_jax.report.html.chart import Chart
from mfabric_jax.report.html.frame import Frame, x_axis, y_axis
from mfabric_jax.report.html.marks import Drawn, Point, key, line, looks, marker
from mfabric_jax.report.html.pareto import NEEDS, stairs
from mfabric_jax.report.html.scales import spanning
from mfabric_jax.report.numerals import millions, significant, usable

_MOST = 1500  # points of a panel beside its front
_RADIUS = 3.2


def cloud(rows: Rows, effective: Mapping[str, Any]) -> Chart:
    """The chart. `InputError` where rows have no time or no price."""
    if missing := [name for name in NEEDS if name not in rows[0]]:
        raise InputError(f"the rows have no column {' or '.join(missing)}.")
    placed = [row for row in rows if _point(row) is not None]
    if not placed:
        raise InputError("no row has both a time and a price.")
    chosen = [name for name in columns.settings(rows, effective) if len(columns.distinct(placed, name)) > 1]
    found = looks(_series(row) for row in placed)
    models = list(dict.fromkeys(row.get("model") for row in placed))
    each = {model: [row for row in placed if row.get("model") == model] for model in models}
    note = "A point for each row; the grey staircase is the Pareto front: nothing is both cheaper and faster."
    if left_out := sum(max(len(some) - len(_drawn(some)), 0) for some in each.values()):
        note += f" {left_out:,} of {len(placed):,} points behind it are left out."
    panels = [_panel(str(model or "all rows"), some, chosen, found) for model, some in each.items()]
    return Chart("Network cost against iteration time", note, key(found.values()), panels)


def _point(row: Mapping[str, Any]) -> Point | None:
    seconds, cost = (usable(row[name]) for name in NEEDS)
    return None if seconds is None or cost is None or cost <= 0 else (millions(cost), seconds)


def _series(row: Mapping[str, Any]) -> str:
    return str(row.get("fabric", "rows"))


def _drawn(rows: Rows) -> Rows:
    """Those on the front and, where there are very many, an even choice of the others."""
    best = set(front([point for row in rows if (point := _point(row))]))
    behind = [row for row in rows if _point(row) not in best]
    some = behind[:: -(-len(behind) // _MOST)] if behind else []
    return [*some, *(row for row in rows if _point(row) in best)]


def _panel(title: str, rows: Rows, chosen: list[str], found: Mapping[str, Drawn]) -> str:
    frame = Frame()
    points = [point for row in rows if (point := _point(row))]
    x = spanning([cost for cost, _ in points], *frame.across, log=True)
    y = spanning([seconds for _, seconds in points], *frame.upward)
    marks = [x_axis(frame, x, "network cost [M$]", x.ticks()), y_axis(frame, y, "iteration time [s]")]
    marks.append(line(stairs(points, x, y), "front"))
    for row in _drawn(rows):
        cost, seconds = _point(row) or (0.0, 0.0)
        look = found[_series(row)]
        marks.append(look.group(marker(look.marker, (x(cost), y(seconds)), _said(row, chosen), _RADIUS)))
    return frame.drawn(title, *marks)


def _said(row: Mapping[str, Any], chosen: list[str]) -> str:
    settings = ", ".join(f"{name} {_value(row[name])}" for name in chosen if name != "model")
    cost, seconds = _point(row) or (0.0, 0.0)
    return f"{settings}: {significant(seconds)} s, {significant(cost, 3)} M$"


def _value(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
