"""Iteration time and performance per dollar against NIC bandwidth: a panel per model."""

from mfabric_jax.report.grid import Grid, Rows, Series
from mfabric_jax.report.html.chart import Chart, gridded
from mfabric_jax.report.html.frame import Frame, x_axis, x_names, y_axis
from mfabric_jax.report.html.marks import Drawn, bar, curves, key, series_looks
from mfabric_jax.report.html.scales import spanning, stepped
from mfabric_jax.report.numerals import millions, significant

_GROUP = 0.84  # of the distance between groups of bars
_GBPS = "NIC bandwidth [Gbps]"


def times(rows: Rows) -> Chart:
    """Iteration time against bandwidth, a line per fabric."""
    grid = gridded(rows, ["iteration_s"])
    looks = series_looks(grid.series)
    note = "Each panel has its own scale, which begins at 0 only where values lie far apart."
    panels = [panel for model in grid.models if (panel := _lines(grid, model, looks))]
    return Chart("Iteration time against bandwidth", note, key(looks.values()), panels)


def performance(rows: Rows) -> Chart:
    """Iterations per second and million dollars of network, a bar per fabric at every bandwidth."""
    grid = gridded(rows, ["perf_per_dollar"])
    looks = series_looks(grid.series)
    priced = {s for s in grid.series if any(_per_million(grid, m, s, g) for m in grid.models for g in grid.bandwidths)}
    note = "Iterations per second over millions of dollars of network; more is better."
    if unpriced := [looks[s].label for s in grid.series if s not in priced]:
        note += f" Without a price: {', '.join(unpriced)}."
    panels = [panel for model in grid.models if (panel := _bars(grid, model, looks))]
    return Chart("Performance per dollar", note, key(looks[s] for s in grid.series if s in priced), panels)


def _lines(grid: Grid, model: str, looks: dict[Series, Drawn]) -> str | None:
    frame = Frame()
    found = {
        s: [(g, v) for g in grid.bandwidths if (v := grid.value(model, s, g, "iteration_s")) is not None] for s in looks
    }
    pairs = [pair for points in found.values() for pair in points]
    if not pairs:
        return None
    x, ticks = stepped([gbps for gbps, _ in pairs], *frame.across)
    y = spanning([seconds for _, seconds in pairs], *frame.upward)
    marks = [x_axis(frame, x, _GBPS, ticks), y_axis(frame, y, "iteration time [s]")]
    said = [
        (looks[s], [((x(g), y(v)), f"{looks[s].label}, {g:g} Gbps: {significant(v)} s") for g, v in points])
        for s, points in found.items()
    ]
    marks.append(curves([one for one in said if one[1]]))
    return frame.drawn(str(model), *marks)


def _per_million(grid: Grid, model: str, series: Series, gbps: float) -> float | None:
    value = grid.value(model, series, gbps, "perf_per_dollar")
    return None if value is None else value / millions(1)


def _bars(grid: Grid, model: str, looks: dict[Series, Drawn]) -> str | None:
    frame = Frame()
    cells = {(s, g): v for s in looks for g in grid.bandwidths if (v := _per_million(grid, model, s, g)) is not None}
    if not cells:
        return None
    shown = [s for s in looks if any(one == s for one, _ in cells)]
    bandwidths = [g for g in grid.bandwidths if any(at == g for _, at in cells)]
    y = spanning(list(cells.values()), *frame.upward, zero=True)
    apart = (frame.across[1] - frame.across[0]) / len(bandwidths)
    wide = min(apart * _GROUP / len(shown), 48.0)
    middles = [frame.left + apart * (place + 0.5) for place in range(len(bandwidths))]
    names = [(middle, f"{gbps:g}") for middle, gbps in zip(middles, bandwidths, strict=True)]
    marks = [y_axis(frame, y, "iterations / (s M$)")]
    for place, series in enumerate(shown):
        bars = []
        for middle, gbps in zip(middles, bandwidths, strict=True):
            if (value := cells.get((series, gbps))) is not None:
                left = middle + (place - len(shown) / 2) * wide
                said = f"{looks[series].label}, {gbps:g} Gbps: {significant(value)} iterations per second and M$"
                bars.append(bar(left, y(value), wide * 0.94, y(0) - y(value), said))
        marks.append(looks[series].group(*bars))
    return frame.drawn(str(model), *marks, x_names(frame, names, _GBPS))
