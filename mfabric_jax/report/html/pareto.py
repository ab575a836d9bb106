"""Network cost against iteration time: a panel per model, a line per fabric, and the front that nothing beats."""

from mfabric_jax.report.figures.pareto import front
from mfabric_jax.report.grid import Grid, Rows, Series
from mfabric_jax.report.html.chart import Chart, gridded
from mfabric_jax.report.html.frame import Frame, x_axis, y_axis
from mfabric_jax.report.html.marks import Drawn, Point, curves, key, line, series_looks
from mfabric_jax.report.html.scales import Scale, spanning
from mfabric_jax.report.numerals import millions, significant

NEEDS = ("iteration_s", "network_cost_usd")


def pareto(rows: Rows) -> Chart:
    """The chart; rows without a price are left out, and its sentence names them."""
    grid = gridded(rows, NEEDS)
    looks = series_looks(grid.series)
    shown = [s for s in grid.series if any(_point(grid, m, s, g) for m in grid.models for g in grid.bandwidths)]
    note = "A line joins the bandwidths of one fabric; the grey staircase is the Pareto front: nothing is both cheaper "
    note += "and faster than its points."
    if unpriced := [looks[s].label for s in grid.series if s not in shown]:
        note += f" Without a price or a time: {', '.join(unpriced)}."
    panels = [_panel(grid, model, {s: looks[s] for s in shown}) for model in grid.models]
    return Chart("Network cost against iteration time", note, key(looks[s] for s in shown), [p for p in panels if p])


def _point(grid: Grid, model: str, series: Series, gbps: float) -> Point | None:
    cost, seconds = (grid.value(model, series, gbps, name) for name in NEEDS[::-1])
    return None if cost is None or seconds is None else (millions(cost), seconds)


def _panel(grid: Grid, model: str, looks: dict[Series, Drawn]) -> str | None:
    frame = Frame()
    found = {s: [(g, p) for g in grid.bandwidths if (p := _point(grid, model, s, g))] for s in looks}
    points = [point for pairs in found.values() for _, point in pairs]
    if not points:
        return None
    x = spanning([cost for cost, _ in points], *frame.across, log=True)
    y = spanning([seconds for _, seconds in points], *frame.upward)
    marks = [x_axis(frame, x, "network cost [M$]", x.ticks()), y_axis(frame, y, "iteration time [s]")]
    marks.append(line(stairs(points, x, y), "front"))
    said = [
        (looks[s], [((x(p[0]), y(p[1])), _said(looks[s].label, gbps, p)) for gbps, p in pairs])
        for s, pairs in found.items()
    ]
    marks.append(curves([one for one in said if one[1]]))
    return frame.drawn(str(model), *marks)


def stairs(points: list[Point], x: Scale, y: Scale) -> list[Point]:
    """The front from the upper edge of the panel to its right edge."""
    stairs: list[Point] = []
    above = y.end
    for cost, seconds in front(points):
        stairs += [(x(cost), above), (x(cost), y(seconds))]
        above = y(seconds)
    return [*stairs, (x.end, above)]


def _said(label: str, gbps: float, point: Point) -> str:
    return f"{label}, {gbps:g} Gbps: {significant(point[1])} s, {significant(point[0], 3)} M$"
