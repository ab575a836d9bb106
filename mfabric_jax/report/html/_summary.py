"""What was run and what came out of it, in words."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from mfabric_jax.checks import InputError
from mfabric_jax.report import style, varied
from mfabric_jax.report._query import USUAL
from mfabric_jax.report.best_designs import left_out, possible, recommended
from mfabric_jax.report.compared import TIME
from mfabric_jax.report.grid import Grid, Rows, Series, arrange, grouped
from mfabric_jax.report.html.markup import counted, enumerated, tag, words
from mfabric_jax.report.noticed import job_words, remarks
from mfabric_jax.report.numerals import significant, usable
from mfabric_jax.report.ranking import KINDS, fits, headlines

_ALIKE = 0.001  # relative difference below which two are equally good
_MOST_RANKED = 8  # values of a name of which the means are listed

Cell = tuple[Series, float, float]  # a series, its bandwidth and its value


def summary(rows: Rows, effective: Mapping[str, Any]) -> str:
    """Sentences and a list: what the rows compare, the best of each model, and where they come from."""
    try:
        grid = arrange(rows, [TIME])
        compared = any(usable(row[TIME]) is not None for row in grid.cells.values())
    except InputError:
        compared = False
    what = _compared(rows, grid, effective) if compared else _any(rows, effective)
    return what + _provenance(rows, effective)


# -- a comparison


def _compared(rows: Rows, grid: Grid, effective: Mapping[str, Any]) -> str:
    fabrics = enumerated([look.label for look in style.series_looks(grid.series).values()])
    bandwidths = enumerated([f"{gbps:g}" for gbps in grid.bandwidths])
    what = f"{counted(rows)}: {enumerated(grid.models)} on {fabrics}, with NICs of {bandwidths} Gbps."
    best = [tag("li", tag("strong", words(model)), words(_best(grid, model))) for model in grid.models]
    return tag("p", words(what)) + tag("ul", *best) + _remarks(rows, effective)


def _best(grid: Grid, model: str) -> str:
    """How the sentence goes on behind the model's name."""
    own = [row for (name, _, _), row in grid.cells.items() if name == model]
    job = ", ".join(job_words(own))
    start = f" ({job}): " if job else ": "
    if all(usable(row[TIME]) is None for row in own):
        return f"{start}no iteration time."
    looks = style.series_looks(grid.series)
    told = list(headlines(grid, model, lambda series: looks[series].label)) or ["No performance per dollar."]
    if times := _shortest(grid, model):
        told.append(f"Shortest iteration: {significant(min(cell[2] for cell in times))} s, {_where(grid, times)}.")
    return " ".join([start.rstrip(), *told])


def _shortest(grid: Grid, model: str) -> list[Cell]:
    """The cells of least iteration time, of those that fit their GPUs."""
    places = [(series, gbps) for series in grid.series for gbps in grid.bandwidths]
    places = [place for place in places if fits(grid.row(model, *place))]
    cells = [(s, gbps, value) for s, gbps in places if (value := grid.value(model, s, gbps, TIME)) is not None]
    best = min((value for *_, value in cells), default=0.0)
    return [cell for cell in cells if cell[2] <= best + _ALIKE * abs(best)]


def _where(grid: Grid, cells: Sequence[Cell]) -> str:
    looks = style.series_looks(grid.series)
    labels: dict[float, list[str]] = {}
    for series, gbps, _ in cells:
        labels.setdefault(gbps, []).append(looks[series].label)
    return ", ".join(f"on {enumerated(some)} at {gbps:g} Gbps" for gbps, some in labels.items())


# -- any rows


def _any(rows: Rows, effective: Mapping[str, Any]) -> str:
    """How many rows, the names that tell them apart, and the best of them where they have a time."""
    named = {name: [str(value) for value in varied.values_in(rows, name)] for name in varied.textual(rows)}
    lines = [tag("li", tag("strong", words(model)), words(f": {job}")) for model, job in _jobs(rows).items()]
    lines += [tag("li", tag("strong", words(name)), words(f": {enumerated(values)}")) for name, values in named.items()]
    result = varied.metric(rows)
    chosen = [name for name in varied.shown_settings(rows, effective) if name != "configuration"]
    answer = "".join(
        tag("p", tag("strong", words(what)), words(f": {text}")) for what, text in recommended(rows, effective)
    )
    best = _best_designs(rows, result, chosen) if result in USUAL and not answer else []
    listed = tag("ul", *(tag("li", words(line)) for line in best)) if best else ""
    held = tag("p", f"{counted(rows)} of {len(rows[0])} columns.") + (tag("ul", *lines) if lines else "")
    return answer + held + listed + _remarks(rows, effective)


def _jobs(rows: Rows) -> dict[str, str]:
    """Of which job rows of every model are, where they say it."""
    own = grouped(rows, "model") if "model" in rows[0] else {}
    found = {str(model): ", ".join(job_words(some)) for (model,), some in own.items() if model is not None}
    return {model: job for model, job in found.items() if job}


def _remarks(rows: Rows, effective: Mapping[str, Any]) -> str:
    """What is to be noticed, and what is not known."""
    told = [*remarks(rows, effective), *effective.get("not_known", ())]
    return tag("ul", *(tag("li", words(line)) for line in told)) if told else ""


def _best_designs(rows: Rows, result: str, chosen: Sequence[str]) -> list[str]:
    """The designs of least time and of most performance per dollar of each model; then means by name; what is none."""
    none, rows = list(left_out(rows)), [row for row in rows if possible(row)]
    if not rows:
        return [f"Not counted: {why}." for why in none]
    told = varied.independent(rows, [name for name in chosen if name != "model"])
    models = varied.values_in(rows, "model") if "model" in rows[0] else []
    lines = []
    for model in models if told else []:
        own = [row for row in rows if row["model"] == model]
        lines += [f"{model}: {line}" for line in _extremes(own, result, told)]
    if told and not models:
        lines = _extremes(rows, result, told)
    for name in told:
        means = _means(rows, result, [name])
        if name in varied.textual(rows) and 1 < len(means) <= _MOST_RANKED:
            ranked = sorted(means, key=lambda value: means[value])
            lines.append(f"Mean {result} by {name}: {', '.join(f'{v[0]} {significant(means[v])}' for v in ranked)}.")
    return lines + [f"Not counted: {why}." for why in none if lines]


def _extremes(rows: Rows, result: str, told: Sequence[str]) -> list[str]:
    """What the best designs have in common; a name whose every value is among the best is left out."""
    lines = []
    worth = ((column, f"most performance per dollar {kind}", -1) for column, kind in KINDS.items())
    for column, what, sign in (*worth, (result, f"least {result}", 1)):
        if means := _means(rows, column, told):
            best = min(means.values(), key=lambda mean: sign * mean)
            winners = [design for design, mean in means.items() if abs(mean - best) <= _ALIKE * abs(best)]
            common = [
                f"{name} {enumerated([varied.shown(value) for value in values], 'or')}"
                for place, name in enumerate(told)
                if None not in (values := list(dict.fromkeys(design[place] for design in winners)))
                and len(values) < len(varied.values_in(rows, name))
            ]
            number = f" ({significant(best)})" if sign > 0 else ""
            lines.append(f"{what}{number}: {', '.join(common) or 'alike in all designs'}.")
    return lines


def _means(rows: Rows, column: str, names: Sequence[str]) -> dict[tuple[Any, ...], float]:
    """The mean of a column for each combination of names that has a number."""
    found: dict[tuple[Any, ...], list[float]] = {}
    for row in rows:
        if (value := usable(row.get(column))) is not None:
            found.setdefault(tuple(row[name] for name in names), []).append(value)
    return {key: math.fsum(values) / len(values) for key, values in found.items()}


# -- where the rows come from


def _provenance(rows: Rows, effective: Mapping[str, Any]) -> str:
    known = {name: effective.get(name) for name in ("command", "version", "commit", "jax", "device", "dtype")}
    known["dtype"] = known["dtype"] or rows[0].get("dtype")
    commit, plus, changes = str(known["commit"]).partition("+")
    known["commit"] = known["commit"] and commit[:12] + plus + changes
    written = ("by mfabric {}", " with mfabric_jax {}", " (commit {})", ", JAX {}", ", on {}", ", in {}")
    parts = [form.format(value) for form, value in zip(written, known.values(), strict=True) if value]
    made = "Computed" + (" " if known["command"] else "") + "".join(parts)
    if not parts:
        made = "Where these rows were computed is not stored beside them"
    stopped = " The run was stopped: some rows are missing." if effective.get("complete") is False else ""
    return tag("p", words(f"{made}.{stopped}"))
