"""The charts of a comparison of fabrics: cost against time, time and worth against bandwidth, parts of an iteration."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mfabric_jax.report import style
from mfabric_jax.report.charts import Bar, Chart, Curve, Panel
from mfabric_jax.report.fronts import Point
from mfabric_jax.report.grid import REFERENCE, Grid, Series
from mfabric_jax.report.numerals import millions, significant

COST, TIME, WORTH = "network_cost_usd", "iteration_s", "perf_per_dollar"
FRONT = "the grey staircase is the Pareto front: nothing is both cheaper and faster than its points."
_GBPS = "NIC bandwidth [Gbps]"

Looks = Mapping[Series, style.Look]


@dataclass(frozen=True)
class Comparison:
    """A chart that rows of a comparison have if they hold numbers in the columns that it `needs`."""

    needs: tuple[str, ...]
    chart: Callable[[Grid], Chart]


def cost_against_time(grid: Grid) -> Chart:
    """Network cost against iteration time: a line per fabric, and the front that nothing beats."""
    looks = style.series_looks(grid.series)
    panels = [
        Panel(str(m), "network cost [M$]", "iteration time [s]", _costs(grid, m), stairs=True) for m in grid.models
    ]
    note = f"A line joins the bandwidths (in Gbps) of one fabric; {FRONT}"
    shown = {curve.look for panel in panels for curve in panel.curves}
    if without := [look.label for look in looks.values() if look not in shown]:
        note += f" Without a price or a time: {', '.join(without)}."
    key = [look for look in looks.values() if look in shown]
    return Chart("Network cost against iteration time", note, key, _drawable(panels))


def _costs(grid: Grid, model: str) -> list[Curve]:
    curves = []
    for series, look in style.series_looks(grid.series).items():
        pairs = [(g, grid.value(model, series, g, COST), grid.value(model, series, g, TIME)) for g in grid.bandwidths]
        known = [(g, millions(cost), time) for g, cost, time in pairs if cost is not None and time is not None]
        tips = [
            f"{look.label}, {g:g} Gbps: {significant(time)} s, {significant(cost, 3)} M$" for g, cost, time in known
        ]
        if known:
            curves.append(Curve(look, [(c, t) for _, c, t in known], tips, [f"{g:g}" for g, *_ in known]))
    return curves


def time_against_bandwidth(grid: Grid) -> Chart:
    """Iteration time against bandwidth, a line per fabric."""
    return _against_bandwidth(grid, TIME, "Iteration time against bandwidth", "iteration time [s]", "s", 1.0)


def worth_against_bandwidth(grid: Grid) -> Chart:
    """Iterations per second and million dollars of network against bandwidth, a line per fabric."""
    axis, unit = "iterations / (s M$)", "iterations per second and M$"
    return _against_bandwidth(grid, WORTH, "Performance per dollar", axis, unit, millions(1))


def _against_bandwidth(grid: Grid, column: str, title: str, axis: str, unit: str, scale: float) -> Chart:
    looks, panels = style.series_looks(grid.series), []
    for model in grid.models:
        curves = []
        for series, look in looks.items():
            values = [(g, grid.value(model, series, g, column)) for g in grid.bandwidths]
            points: list[Point] = [(g, value / scale) for g, value in values if value is not None]
            tips = [f"{look.label}, {g:g} Gbps: {significant(value)} {unit}" for g, value in points]
            if points:
                curves.append(Curve(look, points, tips, [significant(value, 3) for _, value in points]))
        panels.append(Panel(str(model), _GBPS, axis, curves))
    shown = {curve.look for panel in panels for curve in panel.curves}
    note = "Iterations per second over millions of dollars of network; more is better." if column == WORTH else ""
    if without := [look.label for look in looks.values() if look not in shown]:
        note += f" Without a {'price' if column == WORTH else 'time'}: {', '.join(without)}."
    note = note or "Less is better. Each panel has its own scale, logarithmic where values lie far apart."
    return Chart(title, note.strip(), [look for look in looks.values() if look in shown], _drawable(panels))


def parts(grid: Grid) -> Chart:
    """Where an iteration goes: a stacked bar per fabric, at the bandwidth nearest to 400 Gbps; others are folded."""
    nearest = grid.detail_gbps()
    note = f"At {nearest:g} Gbps a NIC. In the bars: share of that bar's iteration. Behind them: seconds"
    note += ", and times the fat-tree's." if any(series.fabric == REFERENCE for series in grid.series) else "."
    folded = {f"At {g:g} Gbps": _stacks(grid, g) for g in grid.bandwidths if g != nearest}
    return Chart("Parts of an iteration", note, list(style.PARTS.values()), _stacks(grid, nearest), folded)


def _stacks(grid: Grid, gbps: float) -> list[Panel]:
    """A panel for each model that has a result at this bandwidth."""
    looks, panels = style.series_looks(grid.series), []
    for model in grid.models:
        present = [s for s in grid.series if grid.value(model, s, gbps, TIME) is not None]
        reference = grid.reference(model, gbps)
        unit = grid.value(model, reference, gbps, TIME) if reference and reference.fabric == REFERENCE else None
        bars: list[Bar] = []
        totals = []
        for place, series in enumerate(present):
            seconds = {name: grid.value(model, series, gbps, name) or 0.0 for name in style.PARTS}
            total, begun = sum(seconds.values()), 0.0
            for name, part in style.PARTS.items():
                if seconds[name] > 0:
                    share = f"{seconds[name] / total:.0%}"
                    tip = f"{looks[series].label}, {gbps:g} Gbps: {part.label} {significant(seconds[name])} s, {share}"
                    bars.append(Bar(part, place, begun, begun + seconds[name], tip, share))
                    begun += seconds[name]
            times = f" ({total / unit:.2f})" if unit else ""
            totals.append((total, f"{significant(total, 3)}{times}"))
        if present:
            names = [looks[series].label for series in present]
            panels.append(Panel(str(model), "seconds of an iteration", bars=bars, names=names, totals=totals))
    return panels


def _drawable(panels: list[Panel]) -> list[Panel]:
    """Those that show something; where none does, the first, which says so."""
    return [panel for panel in panels if panel.curves] or panels[:1]


COMPARISONS = {
    "network cost against iteration time": Comparison((TIME, COST), cost_against_time),
    "iteration time against bandwidth": Comparison((TIME,), time_against_bandwidth),
    "parts of an iteration": Comparison((TIME, *style.PARTS), parts),
    "performance per dollar": Comparison((WORTH,), worth_against_bandwidth),
}
