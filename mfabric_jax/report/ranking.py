"""Which fabric is worth its money: by the dollars of the whole cluster first, by those of its network second."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from mfabric_jax.report.grid import REFERENCE, Grid, Series
from mfabric_jax.report.numerals import significant

CLUSTER_WORTH, WORTH = "perf_per_cluster_dollar", "perf_per_dollar"
TOKEN_USD, TOKEN_JOULES = "usd_per_million_tokens", "joules_per_million_tokens"
KINDS = {CLUSTER_WORTH: "of the whole cluster", WORTH: "of the network"}
_ALIKE = 0.001  # relative difference below which two are equally good


class Place(NamedTuple):
    """A series at the bandwidth at which it is worth most, and how much that is."""

    series: Series
    gbps: float
    worth: float


def by_worth(grid: Grid, model: str, column: str) -> list[Place]:
    """Every series of a model that has a value, the one that is worth most first."""
    found = []
    for series in grid.series:
        cells = [(grid.value(model, series, gbps, column), gbps) for gbps in grid.bandwidths]
        known = [Place(series, gbps, value) for value, gbps in cells if value]
        found += [max(known, key=lambda place: place.worth)] if known else []
    return sorted(found, key=lambda place: -place.worth)


def headlines(grid: Grid, model: str, label: Callable[[Series], str]) -> Iterator[str]:
    """The ranking by dollars of the whole cluster, then by those of its network; those without a price are named."""
    for column, kind in KINDS.items():
        if places := by_worth(grid, model, column):
            best, *others = places
            line = f"Most per dollar {kind}: {label(best.series)} at {best.gbps:g} Gbps"
            line += _a_million_tokens(grid, model, best) if column == CLUSTER_WORTH else ""
            line += _over_reference(grid, model, best, column, label)
            behind = [f"{label(one.series)} at {one.gbps:g} Gbps ({_less(one.worth / best.worth)})" for one in others]
            line += f"; then {'; '.join(behind)}" if behind else ""
            without = [label(s) for s in grid.series if s not in {one.series for one in places}]
            yield f"{line}." + (f" Without a price: {', '.join(without)}." if without else "")


def _a_million_tokens(grid: Grid, model: str, place: Place) -> str:
    """Dollars and energy of a million tokens, as far as they are known."""
    usd, joules = (grid.value(model, place.series, place.gbps, column) for column in (TOKEN_USD, TOKEN_JOULES))
    told = [f"{significant(usd, 3)} $"] if usd else []
    told += [f"{significant(joules / 1000, 3)} kJ"] if joules else []
    return f", {' and '.join(told)} a million tokens" if told else ""


def _over_reference(grid: Grid, model: str, place: Place, column: str, label: Callable[[Series], str]) -> str:
    """How much more that is than the fat-tree offers for a dollar at the same bandwidth."""
    reference = grid.reference(model, place.gbps)
    if reference is None or reference.fabric != REFERENCE or reference == place.series:
        return ""
    theirs = grid.value(model, reference, place.gbps, column)
    several = sum(series.fabric == REFERENCE for series in grid.series) > 1
    whose = f"that of {label(reference)}" if several else "the fat-tree's"
    return f", {place.worth / theirs:.2f} times {whose} there" if theirs else ""


def _less(part: float) -> str:
    return "the same" if 1 - part < _ALIKE else f"{1 - part:.1%} less"
