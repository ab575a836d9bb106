"""Charts that compare fabrics: price and energy of tokens, throughput, parts of an iteration, cost against time.

If rows hold only one bandwidth, charts against bandwidth show bars instead of lines, best first.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from mfabric_jax.report import style
from mfabric_jax.report.charts import Bar, Chart, Curve, Panel
from mfabric_jax.report.grid import (
    CLUSTER,
    COST,
    GPU,
    REFERENCE,
    TIME,
    TOKEN_JOULES,
    TOKEN_USD,
    TOKENS,
    Grid,
    Rows,
    Series,
    arrange,
    nearest_to_detail,
)
from mfabric_jax.report.memory import memory_of_models
from mfabric_jax.report.numerals import count_phrase, millions, number, percent, usable
from mfabric_jax.report.row_remarks import band_words
from mfabric_jax.support.bands import HIGH, LOW

_FEW = 6  # charts of the best series show this many, if rows have them
FRONT = "The grey staircase is the Pareto front: no design is both cheaper and faster than its points."


class Comparison(NamedTuple):
    """A chart of a comparison: its subject in words, the columns that it needs, and its builder."""

    what: str
    needs: tuple[str, ...]
    chart: Callable[[Grid], Chart]


@dataclass(frozen=True)
class Measure:
    column: str
    title: str
    axis: str
    factor: float = 1.0
    more_is_better: bool = False

    def value(self, grid: Grid, model: str, series: Series, gbps: float) -> float | None:
        value = grid.value(model, series, gbps, self.column)
        return None if value is None else value * self.factor

    def spread(self, grid: Grid, model: str, series: Series, gbps: float) -> tuple[float, float] | None:
        """Return the range of the value, scaled from the band of the iteration time; None without a band."""
        value = self.value(grid, model, series, gbps)
        usual, low, high = (grid.value(model, series, gbps, column) or 0.0 for column in (TIME, LOW, HIGH))
        if value is None or not usual or not low or not high or low == high:
            return None
        ends = (usual / high, usual / low) if self.more_is_better else (low / usual, high / usual)
        return value * ends[0], value * ends[1]


TIME_OF = Measure(TIME, "Iteration time", "iteration time [s]")
PRICE = Measure(TOKEN_USD, "Price of tokens", "dollars a million tokens")
ENERGY = Measure(TOKEN_JOULES, "Energy of tokens", "kJ a million tokens", 0.001)
THROUGHPUT = Measure(TOKENS, "Throughput", "million tokens a second", 0.000001, more_is_better=True)


def against_bandwidth(grid: Grid, measure: Measure) -> Chart:
    """Return a chart of a measure by NIC bandwidth: a panel per model, a line per fabric; bars for one bandwidth."""
    looks, panels = style.series_looks(grid.series), []
    is_single = len(grid.bandwidths) == 1
    for model in grid.models:
        known = {
            (series, gbps): value
            for series in looks
            for gbps in grid.bandwidths
            if (value := measure.value(grid, model, series, gbps)) is not None
        }
        tips = {
            (series, gbps): f"{looks[series].label}, {number(gbps)} Gbps: {number(value)} {measure.axis}"
            for (series, gbps), value in known.items()
        }
        if is_single:
            best = sorted(known, key=lambda cell: known[cell], reverse=measure.more_is_better)
            bars = [Bar(looks[cell[0]], row, 0.0, known[cell], tips[cell]) for row, cell in enumerate(best)]
            totals = [(known[cell], number(known[cell])) for cell in best]
            names = [looks[series].label for series, _ in best]
            spread = {index: ends for index, cell in enumerate(best) if (ends := measure.spread(grid, model, *cell))}
            panels.append(Panel(str(model), measure.axis, bars=bars, names=names, totals=totals, spread=spread))
        else:
            curves = []
            for series, look in looks.items():
                cells = [cell for cell in known if cell[0] == series]
                points = [(gbps, known[series, gbps]) for _, gbps in cells]
                ends = [measure.spread(grid, model, *cell) for cell in cells]
                known_ends = [each for each in ends if each is not None]
                spread = known_ends if len(known_ends) == len(cells) else []
                curves += [Curve(look, points, [tips[cell] for cell in cells], spread=spread)] if cells else []
            panels.append(Panel(str(model), "NIC bandwidth [Gbps]", measure.axis, curves))
    note = "More is better." if measure.more_is_better else "Less is better."
    banded = any(panel.spread for panel in panels) or any(c.spread for p in panels for c in p.curves)
    note += _band_note(grid) if banded else ""
    title = measure.title + (f" at {number(grid.bandwidths[0])} Gbps" if is_single else " against bandwidth")
    return _with_key(Chart(title, note, list(looks.values()), panels), measure.axis)


def _band_note(grid: Grid) -> str:
    return f" Thin lines show bands: {band_words(grid.cells.values())}."


def cost_against_time(grid: Grid, column: str = COST, what: str = "network cost") -> Chart:
    """Return a chart of dollars against iteration time: a line per fabric, and the Pareto front."""
    looks, panels = style.series_looks(grid.series), []
    for model in grid.models:
        curves = []
        for series, look in looks.items():
            values = [
                (g, grid.value(model, series, g, column), grid.value(model, series, g, TIME)) for g in grid.bandwidths
            ]
            known = [
                (gbps, millions(cost), time) for gbps, cost, time in values if cost is not None and time is not None
            ]
            points = [(cost, time) for _, cost, time in known]
            tips = [
                f"{look.label}, {number(gbps)} Gbps: {number(time)} s, {number(cost)} M$" for gbps, cost, time in known
            ]
            curves += [Curve(look, points, tips)] if known else []
        panels.append(Panel(str(model), f"{what} [M$]", "iteration time [s]", curves, stairs=True))
    several = ", ".join(number(gbps) for gbps in grid.bandwidths)
    left_out = _left_out(grid, looks, {column: "price", TIME: "time"})
    joined = f"A line joins the points of one fabric with NICs of {several} Gbps. " if len(grid.bandwidths) > 1 else ""
    note = joined + FRONT + left_out
    title = f"{what[0].upper()}{what[1:]} against iteration time"
    return _with_key(Chart(title, note, list(looks.values()), panels))


def _left_out(grid: Grid, looks: Mapping[Series, style.Look], needs: Mapping[str, str]) -> str:
    """A sentence on rows that lack a number and so have no point. `needs`: columns and their names in the sentence."""
    without: dict[str, dict[str, None]] = {}
    count = 0
    for (_, series, _), row in grid.cells.items():
        lacks = [word for column, word in needs.items() if usable(row.get(column)) is None]
        count += bool(lacks)
        for word in lacks[:1]:
            without.setdefault(word, {})[looks[series].label] = None
    if not count:
        return ""
    why = "; ".join(f"no {word}: {', '.join(labels)}" for word, labels in without.items())
    return f" Not shown: {count:,} of {count_phrase(len(grid.cells), 'design')} ({why})."


def _with_key(chart: Chart, what: str | None = None) -> Chart:
    shown = {curve.look for panel in chart.panels for curve in panel.curves}
    shown |= {bar.look for panel in chart.panels for bar in panel.bars}
    without = [look.label for look in chart.key if look not in shown]
    note = chart.note + (f" Not drawn for lack of {what}: {', '.join(without)}." if what and without else "")
    barred = any(panel.bars for panel in chart.panels)  # bars are labelled
    key = [] if barred else [look for look in chart.key if look in shown]
    drawable = [panel for panel in chart.panels if panel.curves or panel.bars] or chart.panels[:1]
    return Chart(chart.title, note, key, drawable)


def parts(grid: Grid) -> Chart:
    """Return a chart of an iteration's parts: a stacked bar per fabric near 400 Gbps; other bandwidths are folded."""
    nearest = nearest_to_detail(grid.bandwidths)
    note = f"At {number(nearest)} Gbps a NIC. A bar shows shares of its iteration; the text next to it gives seconds"
    note += " and the ratio to the fat-tree." if any(series.fabric == REFERENCE for series in grid.series) else "."
    panels = _stacks(grid, nearest)
    note += _band_note(grid) if any(panel.spread for panel in panels) else ""
    folded = {f"At {number(g)} Gbps": _stacks(grid, g) for g in grid.bandwidths if g != nearest}
    return Chart("Parts of an iteration", note, list(_parts(grid).values()), panels, folded)


def _parts(grid: Grid) -> dict[str, style.Look]:
    every = [(model, series, gbps) for model in grid.models for series in grid.series for gbps in grid.bandwidths]
    looks = style.PARTS | style.MOVED
    return {name: look for name, look in looks.items() if any(grid.value(*cell, name) for cell in every)}


def _stacks(grid: Grid, gbps: float) -> list[Panel]:
    looks, panels, kinds = style.series_looks(grid.series), [], _parts(grid)
    for model in grid.models:
        present = [series for series in grid.series if grid.value(model, series, gbps, TIME) is not None]
        reference = grid.reference(model, gbps)
        unit = grid.value(model, reference, gbps, TIME) if reference and reference.fabric == REFERENCE else None
        bars: list[Bar] = []
        totals, spread = [], {}
        for row, series in enumerate(present):
            if ends := TIME_OF.spread(grid, model, series, gbps):
                spread[row] = ends
            seconds = {name: grid.value(model, series, gbps, name) or 0.0 for name in kinds}
            total, begun = sum(seconds.values()), 0.0
            for name, part in kinds.items():
                if seconds[name] > 0:
                    share = percent(seconds[name] / total)
                    tip = f"{looks[series].label}, {number(gbps)} Gbps: {part.label} {number(seconds[name])} s, {share}"
                    bars.append(Bar(part, row, begun, begun + seconds[name], tip, share))
                    begun += seconds[name]
            times = f" ({number(total / unit)})" if unit else ""
            totals.append((total, f"{number(total)}{times}"))
        if present:
            names = [looks[series].label for series in present]
            rows = {"bars": bars, "names": names, "totals": totals, "spread": spread}
            panels.append(Panel(str(model), "seconds of an iteration", **rows))
    return panels


COMPARISONS = {  # by file name
    "token_price": Comparison("price of tokens", (TOKEN_USD,), partial(against_bandwidth, measure=PRICE)),
    "token_energy": Comparison("energy of tokens", (TOKEN_JOULES,), partial(against_bandwidth, measure=ENERGY)),
    "throughput": Comparison("throughput", (TOKENS,), partial(against_bandwidth, measure=THROUGHPUT)),
    "iteration_time": Comparison("iteration time", (TIME,), partial(against_bandwidth, measure=TIME_OF)),
    "breakdown": Comparison("parts of an iteration", (TIME, *style.PARTS), parts),
    "cluster_cost": Comparison(
        "whole-cluster cost against iteration time",
        (TIME, CLUSTER),
        partial(cost_against_time, column=CLUSTER, what="whole-cluster cost"),
    ),
    "memory": Comparison("memory of a GPU", (TIME, *style.MEMORY), memory_of_models),
    "pareto": Comparison("network cost against iteration time", (TIME, COST), cost_against_time),
}


def _deciding(grid: Grid) -> str:
    priced = any(usable(row.get(TOKEN_USD)) is not None for row in grid.cells.values())
    return TOKEN_USD if priced else TIME


def _best_series(grid: Grid, most: int) -> Grid:
    """Return the best series of each fabric and GPU, at most `most`, then the next best series, up to `_FEW`."""
    if len(grid.series) <= most:
        return grid
    least: dict[Series, float] = {}
    kind: dict[Series, tuple[str, str]] = {}
    for (_, series, _), row in grid.cells.items():
        value = usable(row.get(_deciding(grid)))
        least[series] = min(least.get(series, math.inf), math.inf if value is None else value)
        kind[series] = (series.fabric, str(row.get(GPU)))
    ranked = sorted(grid.series, key=lambda series: least[series])
    first = {kind[series]: series for series in reversed(ranked)}
    chosen = sorted(first.values(), key=ranked.index)[:most]
    chosen += [candidate for candidate in ranked if candidate not in chosen][: max(_FEW - len(chosen), 0)]
    cells = {cell: row for cell, row in grid.cells.items() if cell[1] in chosen}
    return Grid(grid.models, [candidate for candidate in grid.series if candidate in chosen], grid.bandwidths, cells)


_EXPECTED = ("breakdown", "pareto")  # a sentence explains why one of these is missing


def comparison_charts(rows: Rows, most: int | None = None) -> tuple[dict[str, Chart], list[str]]:
    """Return the charts for which rows hold numbers, by name, and sentences on charts that are left out.

    `most`: of more series, charts show the best of each fabric and GPU first; None: all. Throughput replaces iteration
    time if rows have both. Raise InputError if the rows cannot be arranged.
    """
    whole, drawn, why = arrange(rows, [TIME]), {}, []
    grid = whole if most is None else _best_series(whole, most)
    if len(grid.series) < len(whole.series):
        some = f"Charts show {len(grid.series)} of {len(whole.series)} series"
        why.append(f"{some}: the best of each fabric and GPU first, by the lowest {_deciding(whole)}.")
    for name, (what, needs, chart) in COMPARISONS.items():
        lacking = [column for column in needs if all(usable(row.get(column)) is None for row in grid.cells.values())]
        if not lacking and not (name == "iteration_time" and "throughput" in drawn):
            drawn[name] = chart(grid)
        elif lacking and name in _EXPECTED:
            why.append(f"Left out: {what}, because no row has a number in column {' or '.join(lacking)}.")
    return drawn, why
