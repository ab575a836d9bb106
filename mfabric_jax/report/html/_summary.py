"""What was run and what came out of it: of which jobs rows are, a ranking of each model, remarks, provenance."""

from collections.abc import Mapping
from typing import Any

from mfabric_jax.report.grid import Rows, grouped, textual, values_in
from mfabric_jax.report.html.markup import bullets, counted, enumerated, tag, words
from mfabric_jax.report.noticed import job_words, remarks
from mfabric_jax.report.ranking import Ranking, not_ranked, rankings
from mfabric_jax.report.tables import ranking_cells

_MADE = {
    "command": "by mfabric {}",
    "version": " with mfabric_jax {}",
    "commit": " (commit {})",
    "jax": ", JAX {}",
    "device": ", on {}",
    "dtype": ", in {}",
}


def summary(rows: Rows, effective: Mapping[str, Any]) -> str:
    """The section as markup."""
    ranked = "".join(_ranking(model, ranking) for model, ranking in rankings(rows, effective).items())
    told = [*not_ranked(rows), *remarks(rows, effective), *effective.get("not_known", ())]
    return ranked + _held(rows) + bullets(told) + _provenance(rows, effective)


def _ranking(model: str, ranking: Ranking) -> str:
    """A table of the best designs of a model, the best one first, and remarks on them."""
    columns = ranking_cells(ranking)
    number = {name: any(isinstance(line[name], float) for line in ranking.lines) for name in ranking.lines[0]}
    kinds = ["number" if number[name] or name == "over best" else None for name in ranking.lines[0]]
    head, *body = zip(*columns, strict=True)
    titles = [tag("th", words(text.strip()), scope="col", class_=kind) for text, kind in zip(head, kinds, strict=True)]
    lines = [
        tag("tr", *(tag("td", words(text.strip()), class_=kind) for text, kind in zip(cells, kinds, strict=True)))
        for cells in body
    ]
    table = tag("table", tag("thead", tag("tr", *titles)), tag("tbody", *lines), class_="ranking")
    heading = tag("h3", words(f"{model}: " if model else "", f"best by {ranking.by}"))
    return heading + tag("div", table, class_="wide") + bullets(ranking.remarks)


def _held(rows: Rows) -> str:
    """How many rows there are, the names in them, and of which job those of every model are."""
    lines = []
    if "model" in rows[0]:
        jobs = {str(model): ", ".join(job_words(own)) for (model,), own in grouped(rows, "model").items() if model}
        lines = [tag("li", tag("strong", words(model)), words(f": {job}")) for model, job in jobs.items() if job]
    for name in textual(rows):
        if len(values := values_in(rows, name)) > 1:
            lines.append(tag("li", tag("strong", words(name)), words(f": {enumerated(values)}")))
    return tag("p", f"{counted(rows)} of {len(rows[0])} columns.") + (tag("ul", *lines) if lines else "")


def _provenance(rows: Rows, effective: Mapping[str, Any]) -> str:
    known = {name: effective.get(name) for name in _MADE}
    known["dtype"] = known["dtype"] or rows[0].get("dtype")
    commit, plus, changes = str(known["commit"]).partition("+")
    known["commit"] = known["commit"] and commit[:12] + plus + changes
    parts = [form.format(known[name]) for name, form in _MADE.items() if known[name]]
    made = "Computed" + (" " if known["command"] else "") + "".join(parts)
    if not parts:
        made = "Where these rows were computed is not stored beside them"
    stopped = " The run was stopped: some rows are missing." if effective.get("complete") is False else ""
    return tag("p", words(f"{made}.{stopped}"), class_="note")
