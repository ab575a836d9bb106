"""Which fabric is worth its money: by the dollars of the whole cluster first, by those of its network second.

What does not fit the memory of its GPUs is never ranked, nor are dollars of GPUs that compute above their peak.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from mfabric_jax.report.grid import REFERENCE, Grid, Series
from mfabric_jax.report.numerals import significant, usable

CLUSTER_WORTH, WORTH = "perf_per_cluster_dollar", "perf_per_dollar"
TOKEN_USD, TOKEN_JOULES = "usd_per_million_tokens", "joules_per_million_tokens"
FITS, ACHIEVED = "fits", "achieved_over_peak"
TOO_LARGE = "do not fit the memory of their GPUs"
KINDS = {CLUSTER_WORTH: "of the whole cluster", WORTH: "of the network"}
_ALIKE = 0.001  # relative difference below which two are equally good


class Place(NamedTuple):
    """A series at the bandwidth at which it is worth most, and how much that is."""

    series: Series
    gbps: float
    worth: float


def fits(row: Mapping[str, Any] | None) -> bool:
    """Whether a row fits the memory of its GPUs, as far as that is known."""
    return (row or {}).get(FITS) in (True, None)


def above_peak(row: Mapping[str, Any] | None) -> float | None:
    """What the GPUs of a row achieve over their peak, where that is more than they can."""
    achieved = usable((row or {}).get(ACHIEVED))
    return achieved if achieved is not None and achieved > 1 else None


def by_worth(grid: Grid, model: str, column: str) -> list[Place]:
    """Every series of a model that has a value and fits its GPUs, the one that is worth most first."""
    found = []
    for series in grid.series:
        fitting = [gbps for gbps in grid.bandwidths if fits(grid.row(model, series, gbps))]
        known = [Place(series, gbps, value) for gbps in fitting if (value := grid.value(model, series, gbps, column))]
        found += [max(known, key=lambda place: place.worth)] if known else []
    return sorted(found, key=lambda place: -place.worth)


def headlines(grid: Grid, model: str, label: Callable[[Series], str]) -> Iterator[str]:
    """The ranking by dollars of the whole cluster, then by those of its network; what is not ranked is named."""
    own = [row for (name, _, _), row in grid.cells.items() if name == model]
    if not any(map(fits, own)):
        yield f"No ranking: its set-ups {TOO_LARGE}."
        return
    above = max((rate for row in own if (rate := above_peak(row))), default=None)
    if above and not by_worth(grid, model, CLUSTER_WORTH):
        why = f"it computes at {above:.0%} of the peak of the GPU that would be paid for"
        yield f"No ranking by dollars of the whole cluster: {why}."
    for column, kind in KINDS.items():
        if places := by_worth(grid, model, column):
            best, *others = places
            line = f"Most per dollar {kind}: {label(best.series)} at {best.gbps:g} Gbps"
            line += _a_million_tokens(grid, model, best) if column == CLUSTER_WORTH else ""
            line += _over_reference(grid, model, best, column, label)
            behind = [f"{label(one.series)} at {one.gbps:g} Gbps ({_less(one.worth / best.worth)})" for one in others]
            line += f"; then {'; '.join(behind)}" if behind else ""
            without = _not_ranked(grid, model, {one.series for one in places})
            yield " ".join([f"{line}.", *(f"{why}: {', '.join(map(label, some))}." for why, some in without.items())])


def _not_ranked(grid: Grid, model: str, ranked: set[Series]) -> dict[str, list[Series]]:
    """Other series, by why."""
    found: dict[str, list[Series]] = {}
    for series in grid.series:
        if series not in ranked:
            own = [row for gbps in grid.bandwidths if (row := grid.row(model, series, gbps))]
            large = bool(own) and not any(map(fits, own))
            found.setdefault("Too large for its GPUs" if large else "Without a price", []).append(series)
    return found


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
