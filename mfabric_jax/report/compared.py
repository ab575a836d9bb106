"""The charts of a comparison of fabrics: cost against time, time and worth against bandwidth, parts of an iteration."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mfabric_jax.report import style
from mfabric_jax.report.charts import Bar, Chart, Curve, Panel
from mfabric_jax.report.fronts import Point
from mfabric_jax.report.grid import REFERENCE, Grid, Rows
from mfabric_jax.report.numerals import millions, significant
from mfabric_jax.report.ranking import CLUSTER_WORTH, WORTH

COST, CLUSTER, TIME = "network_cost_usd", "cluster_cost_usd", "iteration_s"
FRONT = "the grey staircase is the Pareto front: nothing is both cheaper and faster than its points."


@dataclass(frozen=True)
class Comparison:
    """A chart that rows of a comparison have if they hold numbers in the columns that it `needs`.

    `extra`: rows that lack such a column need no word about it.
    """

    needs: tuple[str, ...]
    chart: Callable[[Grid], Chart]
    extra: bool = False

    def there(self, rows: Rows) -> bool:
        """Whether rows have its columns, or are to say that they lack one."""
        return not self.extra or all(name in row for row in rows for name in self.needs)


def cost_against_time(grid: Grid, column: str = COST, what: str = "network cost") -> Chart:
    """Dollars against iteration time: a line per fabric, and the front that nothing beats."""

    def point(gbps: float, values: Sequence[float]) -> tuple[Point, str, str]:
        cost, time = millions(values[0]), values[1]
        return (cost, time), f"{significant(time)} s, {significant(cost, 3)} M$", f"{gbps:g}"

    axes = {"x": f"{what} [M$]", "y": "iteration time [s]", "stairs": True}
    note = f"A line joins the bandwidths (in Gbps) of one fabric; {FRONT}"
    title = f"{what[0].upper()}{what[1:]} against iteration time"
    return _lines(grid, (column, TIME), point, title, axes, note, "price or a time")


def time_against_bandwidth(grid: Grid) -> Chart:
    """Iteration time against bandwidth, a line per fabric."""
    note = "Less is better. Each panel has its own scale, logarithmic where values lie far apart."
    return _against_bandwidth(grid, TIME, "Iteration time against bandwidth", "iteration time [s]", "s", note, "time")


def worth_against_bandwidth(grid: Grid, column: str = WORTH, what: str = "network") -> Chart:
    """Iterations per second and million dollars, of the network or all, against bandwidth, a line per fabric."""
    axis, unit = "iterations / (s M$)", "iterations per second and M$"
    note = f"Iterations per second over millions of dollars of the {what}; more is better."
    return _against_bandwidth(
        grid, column, f"Performance per {what.replace(' ', '-')} dollar", axis, unit, note, "price"
    )


def _against_bandwidth(grid: Grid, column: str, title: str, axis: str, unit: str, note: str, lacking: str) -> Chart:
    scale = millions(1) if column in (WORTH, CLUSTER_WORTH) else 1.0

    def point(gbps: float, values: Sequence[float]) -> tuple[Point, str, str]:
        value = values[0] / scale
        return (gbps, value), f"{significant(value)} {unit}", significant(value, 3)

    return _lines(grid, (column,), point, title, {"x": "NIC bandwidth [Gbps]", "y": axis}, note, lacking)


def _lines(
    grid: Grid, columns: Sequence[str], point: Callable, title: str, axes: dict[str, Any], note: str, lacking: str
) -> Chart:
    """A panel per model, a line per fabric; a point (place, tip, text) for each bandwidth that has all columns."""
    looks, panels = style.series_looks(grid.series), []
    for model in grid.models:
        curves = []
        for series, look in looks.items():
            values = {g: [grid.value(model, series, g, column) for column in columns] for g in grid.bandwidths}
            known = {g: point(g, own) for g, own in values.items() if None not in own}
            if known:
                places, tips, texts = zip(*known.values(), strict=True)
                told = [f"{look.label}, {g:g} Gbps: {tip}" for g, tip in zip(known, tips, strict=True)]
                curves.append(Curve(look, places, told, texts))
        panels.append(Panel(str(model), curves=curves, **axes))
    shown = {curve.look for panel in panels for curve in panel.curves}
    if without := [look.label for look in looks.values() if look not in shown]:
        note += f" Without a {lacking}: {', '.join(without)}."
    drawable = [panel for panel in panels if panel.curves] or panels[:1]  # where none is, the first says so
    return Chart(title, note, [look for look in looks.values() if look in shown], drawable)


def parts(grid: Grid) -> Chart:
    """Where an iteration goes: a stacked bar per fabric, at the bandwidth nearest to 400 Gbps; others are folded."""
    nearest = grid.detail_gbps()
    note = f"At {nearest:g} Gbps a NIC. In the bars: share of that bar's iteration. Behind them: seconds"
    note += ", and times the fat-tree's." if any(series.fabric == REFERENCE for series in grid.series) else "."
    folded = {f"At {g:g} Gbps": _stacks(grid, g) for g in grid.bandwidths if g != nearest}
    return Chart("Parts of an iteration", note, list(_parts(grid).values()), _stacks(grid, nearest), folded)


def _parts(grid: Grid) -> dict[str, style.Look]:
    """Those that rows have."""
    every = [(model, series, gbps) for model in grid.models for series in grid.series for gbps in grid.bandwidths]
    moved = {name: look for name, look in style.MOVED.items() if any(grid.value(*one, name) for one in every)}
    return style.PARTS | moved


def _stacks(grid: Grid, gbps: float) -> list[Panel]:
    """A panel for each model that has a result at this bandwidth."""
    looks, panels, kinds = style.series_looks(grid.series), [], _parts(grid)
    for model in grid.models:
        present = [s for s in grid.series if grid.value(model, s, gbps, TIME) is not None]
        reference = grid.reference(model, gbps)
        unit = grid.value(model, reference, gbps, TIME) if reference and reference.fabric == REFERENCE else None
        bars: list[Bar] = []
        totals = []
        for place, series in enumerate(present):
            seconds = {name: grid.value(model, series, gbps, name) or 0.0 for name in kinds}
            total, begun = sum(seconds.values()), 0.0
            for name, part in kinds.items():
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


def cluster_cost_against_time(grid: Grid) -> Chart:
    """`cost_against_time` with GPUs and servers."""
    return cost_against_time(grid, CLUSTER, "whole-cluster cost")


def cluster_worth_against_bandwidth(grid: Grid) -> Chart:
    """`worth_against_bandwidth` with GPUs and servers."""
    return worth_against_bandwidth(grid, CLUSTER_WORTH, "whole cluster")


COMPARISONS = {
    "whole-cluster cost against iteration time": Comparison((TIME, CLUSTER), cluster_cost_against_time, extra=True),
    "performance per whole-cluster dollar": Comparison((CLUSTER_WORTH,), cluster_worth_against_bandwidth, extra=True),
    "iteration time against bandwidth": Comparison((TIME,), time_against_bandwidth),
    "parts of an iteration": Comparison((TIME, *style.PARTS), parts),
    "network cost against iteration time": Comparison((TIME, COST), cost_against_time),
    "performance per network dollar": Comparison((WORTH,), worth_against_bandwidth),
}
