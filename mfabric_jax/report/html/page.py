"""The HTML page, in one file without network requests: who is best and why, charts, assumptions, rows, configuration.

A page of rows that can be ranked begins with the answer; parts that need columns that rows lack are left out.
"""

import importlib.resources
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mfabric_jax.checks import InputError
from mfabric_jax.report import numerals
from mfabric_jax.report.grid import Rows
from mfabric_jax.report.html.assumed import assumed_section, warnings_and_remarks
from mfabric_jax.report.html.contenders import Contender, contenders
from mfabric_jax.report.html.costs import costs_section, failures_section
from mfabric_jax.report.html.curves import shapes
from mfabric_jax.report.html.headline import headline
from mfabric_jax.report.html.lanes import lanes_section
from mfabric_jax.report.html.markup import bullets, section, small_table, tag, words
from mfabric_jax.report.html.multiples import multiples_section
from mfabric_jax.report.html.panels import charts_markup, charts_of
from mfabric_jax.report.html.pictures import picture, pictures_in
from mfabric_jax.report.html.ranked import ranking_section
from mfabric_jax.report.html.rows_table import rows_table
from mfabric_jax.report.html.served_facts import times_section
from mfabric_jax.report.html.set_up import set_up_section
from mfabric_jax.report.numerals import join_names
from mfabric_jax.report.ranking import MOST_OF_PAGE, Ranking, not_ranked, possible, rankings
from mfabric_jax.report.repeated import repeat_command
from mfabric_jax.report.row_remarks import remarks
from mfabric_jax.report.served import is_served, with_limits
from mfabric_jax.support.atomic import check_file, replacing, suffix

EXTENSIONS = (".html",)
Answer = str | Sequence[Mapping[str, Any]]  # a sentence, or the lines of a table
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
_VIEWPORT = "width=device-width, initial-scale=1"
_OPEN_JOBS = 8  # further jobs are folded


def html_report(
    rows: Rows,
    effective: Mapping[str, Any],
    path: str | Path,
    pictures: str | Path | None = None,
    title: str | None = None,
    answers: Mapping[str, Sequence[Answer]] | None = None,
    verdict: str | None = None,
    beside: Sequence[str] = (),
    command: str | None = None,
) -> Path:
    """Write an HTML page of any rows and their effective configuration, and return its path.

    The write is atomic. The same rows give the same bytes. `pictures`: a folder whose .png and .svg files go into the
    page. `answers`: sentences and tables by heading, below the headline. `verdict`: the headline, instead of that of
    the ranking; `beside`: sentences below it. `command`: what makes the page again.
    """
    path = Path(path)
    suffix("report", path, EXTENSIONS)
    rows = _complete(rows)
    title = _text(title or _title(rows, effective))
    body = _sections(rows, effective, pictures, answers or {}, (verdict, beside), command)
    with replacing(path) as (part,):
        part.write_text(_document(title, body), encoding="utf-8")
    return path


def check_page(path: str | Path, pictures: str | Path | None = None) -> None:
    """Raise InputError if the page could not be written to `path`, or if `pictures` holds no pictures."""
    if pictures is not None:
        pictures_in(pictures)
    check_file("report", path, EXTENSIONS)


def _complete(rows: Rows) -> Rows:
    if not rows:
        raise InputError("rows must hold at least one row, got none.")
    names = dict.fromkeys(name for row in rows for name in row)
    if not names:
        raise InputError("rows must hold at least one column, got none.")
    return [{str(name): _scalar(row.get(name)) for name in names} for row in rows]


def _scalar(value: Any) -> Any:
    value = numerals.plain_scalar(value)
    return value if value is None or isinstance(value, int | float) else _text(str(value))


def _text(value: str) -> str:
    return value.encode(errors="backslashreplace").decode()


def _title(rows: Rows, effective: Mapping[str, Any]) -> str:
    if command := effective.get("command"):
        return f"mfabric {command}"
    if is_served(rows[0]):
        return "mfabric serve"
    return "Fabrics compared" if {"model", "fabric", "nic_gbps"} <= rows[0].keys() else "Rows of results"


def _document(title: str, body: str) -> str:
    toggle = tag("button", "Dark or light", type="button", id="theme", hidden=True)
    metas = f'<meta charset="utf-8"><meta name="viewport" content="{_VIEWPORT}">'
    metas += f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
    head = tag("head", metas, tag("title", words(title)), tag("style", _file("page.css")))
    header = tag("header", tag("h1", words(title)), toggle)
    inside = tag("body", shapes(), header, tag("main", body), tag("script", "\n", _file("page.js")))
    return f"<!DOCTYPE html>\n{tag('html', head, inside, lang='en')}\n"


def _file(name: str) -> str:
    return (importlib.resources.files("mfabric_jax.report.html") / name).read_text(encoding="utf-8")


# ----------------------------------------------------------------------------------------------------------- sections
def _sections(
    rows: Rows,
    effective: Mapping[str, Any],
    folder: str | Path | None,
    answers: Mapping[str, Sequence[Answer]],
    head: tuple[str | None, Sequence[str]],
    command: str | None,
) -> str:
    table, rows = rows, with_limits(rows, effective.get("resolved", {}))
    ranked = rankings(rows, effective, MOST_OF_PAGE)
    warn, others = warnings_and_remarks([*remarks(rows, effective), *effective.get("not_known", ())])
    warn = [*_models_without_rank(rows, ranked), *not_ranked(rows), *warn]
    written = headline(ranked, rows, effective, *head)
    written += "".join(tag("p", words(sentence), class_="warning") for sentence in warn)
    written += "".join(
        section(words(heading), tag("div", _answers(parts), class_="part")) for heading, parts in answers.items()
    )
    written += "".join(_job(index, *each, effective) for index, each in enumerate(ranked.items()))
    if failing := failures_section(rows):
        written += section("Dollars of failures", tag("div", failing, class_="part"))
    if charts := charts_markup(*charts_of(rows, effective, bool(ranked))):
        written += section("Charts", charts)
    if folder is not None:
        written += section("Pictures", tag("div", *map(picture, pictures_in(folder)), class_="pictures"))
    written += section("What was assumed", assumed_section(table, effective, command), bullets(others), class_="notes")
    written += section("Rows", rows_table(table, bool(ranked)), class_="rows")
    return written + section("Configuration", _configuration(effective))


def _models_without_rank(rows: Rows, ranked: Mapping[str, Ranking]) -> list[str]:
    """A sentence on the models that no design can run, if others are ranked."""
    every = {str(row["model"]) for row in rows if row.get("model") is not None}
    possible_rows = {str(row["model"]) for row in rows if row.get("model") is not None and possible(row)}
    without = sorted(every - possible_rows) if ranked else []
    late = all(is_served(row) for row in rows)
    named = f"No design in these rows {'serves' if late else 'can run'} {join_names(without)}{' in time' * late}."
    return [named] if without else []


def _job(index: int, model: str, ranking: Ranking, effective: Mapping[str, Any]) -> str:
    """The ranking of a job, the set-ups of its designs, where their time goes, what they cost, what would change it."""
    heading = words(f"{model}: " if model else "", f"best by {ranking.by}")
    if not ranking.shown:
        conclusion = tag("p", words(ranking.conclusion))
        return section(heading, conclusion, small_table(ranking.lines), bullets(ranking.remarks))
    own = contenders(ranking)
    parts = {
        "Ranking": ranking_section(ranking, own),
        "Set-up": set_up_section(own),
        "Times and limits": times_section(own),
        "Where the time goes": lanes_section(own),
        "Cost": costs_section(ranking, own),
        "What would change the order": multiples_section(ranking, own),
        "To repeat the best": _command_of(own[0], effective),
    }
    inside = "".join(
        tag("section", tag("h3", name), part, class_="part") for name, part in parts.items() if part
    ) + bullets(ranking.remarks)
    folded = tag("details", tag("summary", words(ranking.conclusion)), inside) if index >= _OPEN_JOBS else inside
    return section(heading, folded, id=f"job{index}", class_="job")


def _command_of(best: Contender, effective: Mapping[str, Any]) -> str:
    command = repeat_command(best.design.rows[0], effective)
    return tag("p", tag("code", words(command)), class_="command") if command else ""


def _answers(parts: Sequence[Answer]) -> str:
    """Return sentences as bullets, with tables between them."""
    written, sentences = "", []
    for part in parts:
        if isinstance(part, str):
            sentences.append(part)
        else:
            written += bullets(sentences) + small_table(part)
            sentences = []
    return written + bullets(sentences)


def _configuration(effective: Mapping[str, Any]) -> str:
    if not effective:
        return tag("p", "No configuration is stored beside these rows.", class_="note")
    plain = lambda value: value.tolist() if hasattr(value, "tolist") else str(value)  # noqa: E731
    held = tag("pre", words(json.dumps(effective, indent=2, default=plain)))
    return tag("details", tag("summary", "Effective configuration"), held, class_="configuration")
