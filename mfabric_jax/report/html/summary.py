"""What was run and what came out of it, in words."""

from collections.abc import Mapping, Sequence
from typing import Any

from mfabric_jax.checks import InputError
from mfabric_jax.report.grid import REFERENCE, Grid, Rows, Series
from mfabric_jax.report.html import columns
from mfabric_jax.report.html.chart import gridded
from mfabric_jax.report.html.marks import series_looks
from mfabric_jax.report.html.markup import counted, listed, tag, words
from mfabric_jax.report.numerals import significant

_ALIKE = 0.001  # relative difference below which two are equally good

Cell = tuple[Series, float, float]  # a series, its bandwidth and its value


def summary(rows: Rows, effective: Mapping[str, Any]) -> str:
    """Sentences and a list: what the rows compare, the best of each model, and where they come from."""
    try:
        said = _compared(rows, gridded(rows, ["iteration_s"]))
    except InputError:
        said = _counted(rows)
    return said + _provenance(rows, effective)


def _compared(rows: Rows, grid: Grid) -> str:
    named = series_looks(grid.series)
    fabrics = listed([look.label for look in named.values()])
    bandwidths = listed([f"{gbps:g}" for gbps in grid.bandwidths])
    what = f"{counted(rows)}: {listed(grid.models)} on {fabrics}, with NICs of {bandwidths} Gbps."
    best = [tag("li", tag("strong", words(model)), words(_best(grid, model))) for model in grid.models]
    return tag("p", words(what)) + tag("ul", *best)


def _best(grid: Grid, model: str) -> str:
    """How the sentence goes on behind the model's name."""
    gpus = next((row.get("gpus") for (name, _, _), row in grid.cells.items() if name == model), None)
    said = f" ({gpus} GPUs): " if gpus is not None else ": "
    times = _cells(grid, model, "iteration_s")
    if not times:
        return f"{said}no iteration time."
    least = min(seconds for _, _, seconds in times)
    fastest = [cell for cell in times if cell[2] <= least * (1 + _ALIKE)]
    said += f"shortest iteration {significant(least)} s, {_where(grid, fastest)}"
    worth = _cells(grid, model, "perf_per_dollar")
    if not worth:
        return f"{said}; no performance per dollar."
    most = max(value for _, _, value in worth)
    best = [cell for cell in worth if cell[2] >= most * (1 - _ALIKE)]
    return f"{said}; most performance per dollar {_where(grid, best)}{_over_reference(grid, model, best[0])}."


def _cells(grid: Grid, model: str, name: str) -> list[Cell]:
    places = ((series, gbps) for series in grid.series for gbps in grid.bandwidths)
    return [(s, gbps, value) for s, gbps in places if (value := grid.value(model, s, gbps, name)) is not None]


def _where(grid: Grid, cells: Sequence[Cell]) -> str:
    named = series_looks(grid.series)
    at: dict[float, list[str]] = {}
    for series, gbps, _ in cells:
        at.setdefault(gbps, []).append(named[series].label)
    return ", ".join(f"on {listed(labels)} at {gbps:g} Gbps" for gbps, labels in at.items())


def _over_reference(grid: Grid, model: str, cell: Cell) -> str:
    """How much more that is than the fat-tree offers for a dollar at the same bandwidth."""
    series, gbps, value = cell
    reference = grid.reference(model, gbps)
    if reference is None or reference.fabric != REFERENCE or reference == series:
        return ""
    theirs = grid.value(model, reference, gbps, "perf_per_dollar")
    return f", {value / theirs:.2f} times the fat-tree's there" if theirs else ""


def _counted(rows: Rows) -> str:
    """Any rows: how many, and the names that tell them apart."""
    named = {name: [str(value) for value in columns.distinct(rows, name)] for name in columns.textual(rows)}
    lines = [tag("li", tag("strong", words(name)), words(f": {listed(values)}")) for name, values in named.items()]
    what = f"{counted(rows)} of {len(rows[0])} columns."
    return tag("p", what) + (tag("ul", *lines) if lines else "")


def _provenance(rows: Rows, effective: Mapping[str, Any]) -> str:
    known = {name: effective.get(name) for name in ("version", "commit", "jax", "device", "dtype", "command")}
    known["dtype"] = known["dtype"] or rows[0].get("dtype")
    said = "Computed"
    said += f" by mfabric {known['command']}" if known["command"] else ""
    said += f" with mfabric_jax {known['version']}" if known["version"] else ""
    said += f" (commit {_short(str(known['commit']))})" if known["commit"] else ""
    said += f", JAX {known['jax']}" if known["jax"] else ""
    said += f", on {known['device']}" if known["device"] else ""
    said += f", in {known['dtype']}" if known["dtype"] else ""
    if said == "Computed":
        said = "Where these rows were computed is not stored beside them"
    stopped = " The run was stopped: some rows are missing." if effective.get("complete") is False else ""
    return tag("p", words(f"{said}.{stopped}"))


def _short(commit: str) -> str:
    """Twelve digits of a commit, and whether files differed from it."""
    digits, plus, changes = commit.partition("+")
    return digits[:12] + plus + changes
