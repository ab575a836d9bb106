"""The HTML page: summary, charts, pictures, table and configuration, in one file without network requests."""

import base64
import importlib.resources
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

from mfabric_jax.checks import InputError
from mfabric_jax.report import numerals
from mfabric_jax.report.grid import Rows, group_rows, numeric, textual, values_in
from mfabric_jax.report.html import panels
from mfabric_jax.report.html.panels import bullets, join_names, tag, words
from mfabric_jax.report.ranking import MOST_OF_PAGE, Ranking, not_ranked, rankings
from mfabric_jax.report.row_remarks import job_words, remarks
from mfabric_jax.report.tables import cells_of
from mfabric_jax.support.atomic import check_file, replacing, suffix

EXTENSIONS = (".html",)
PICTURES = {".png": "image/png", ".svg": "image/svg+xml"}
NUMBERS = ("over best", "with failures", "share")  # columns of numbers that are written with words
Answer = str | Sequence[Mapping[str, Any]]  # a sentence, or the lines of a table
_OPEN = 300  # a table of more cells is folded
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
_MADE = {
    "command": "by mfabric {}",
    "version": " with mfabric_jax {}",
    "commit": " (commit {})",
    "jax": ", JAX {}",
    "device": ", on {}",
    "dtype": ", in {}",
}
_MOST_PRICES = 12  # a sentence names at most this many
_VIEWPORT = "width=device-width, initial-scale=1"


def html_report(
    rows: Rows,
    effective: Mapping[str, Any],
    path: str | Path,
    pictures: str | Path | None = None,
    title: str | None = None,
    answers: Mapping[str, Sequence[Answer]] | None = None,
) -> Path:
    """Write an HTML page of any rows and their effective configuration, and return its path.

    The write is atomic. The same rows give the same bytes. `pictures`: a folder whose .png and .svg files go into the
    page. `answers`: sentences and tables by heading, at the top of the page.
    """
    path = Path(path)
    suffix("report", path, EXTENSIONS)
    text = _page(_complete(rows), effective, pictures, title, answers or {})
    with replacing(path) as (part,):
        part.write_text(text, encoding="utf-8")
    return path


def check_page(path: str | Path, pictures: str | Path | None = None) -> None:
    """Raise InputError if the page could not be written to `path`, or if `pictures` holds no pictures."""
    if pictures is not None:
        _pictures_in(pictures)
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


def _page(
    rows: Rows,
    effective: Mapping[str, Any],
    folder: str | Path | None,
    title: str | None,
    answers: Mapping[str, Sequence[Answer]],
) -> str:
    title = _text(title or _title(rows, effective))
    unknown = tag("p", "No configuration is stored beside these rows.", class_="note")
    sections = [_section(words(heading), _answers(parts)) for heading, parts in answers.items()]
    sections += [_section("Summary", summary(rows, effective)), _section("Charts", panels.section(rows, effective))]
    if folder is not None:
        sections.append(_section("Pictures", tag("div", *map(_picture, _pictures_in(folder)), class_="pictures")))
    sections.append(_section("Rows", _table(rows), class_="rows"))
    plain = lambda value: value.tolist() if hasattr(value, "tolist") else str(value)  # noqa: E731
    held = tag("pre", words(json.dumps(effective, indent=2, default=plain)))
    folded = tag("details", tag("summary", "Effective configuration"), held, class_="configuration")
    sections.append(_section("Configuration", folded if effective else unknown))
    toggle = tag("button", "Dark or light", type="button", id="theme", hidden=True)
    body = tag(
        "body",
        tag("header", tag("h1", words(title)), toggle),
        tag("main", *sections),
        tag("script", "\n", _file("page.js")),
    )
    metas = f'<meta charset="utf-8"><meta name="viewport" content="{_VIEWPORT}">'
    metas += f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
    head = tag("head", metas, tag("title", words(title)), tag("style", _file("page.css")))
    return f"<!DOCTYPE html>\n{tag('html', head, body, lang='en')}\n"


def _section(heading: str, *inside: str, class_: str | None = None) -> str:
    return "\n" + tag("section", tag("h2", heading), *inside, class_=class_) + "\n"


def _title(rows: Rows, effective: Mapping[str, Any]) -> str:
    if command := effective.get("command"):
        return f"mfabric {command}"
    return "Fabrics compared" if {"model", "fabric", "nic_gbps"} <= rows[0].keys() else "Rows of results"


def _file(name: str) -> str:
    return (importlib.resources.files("mfabric_jax.report.html") / name).read_text(encoding="utf-8")


# -- the summary


def summary(rows: Rows, effective: Mapping[str, Any]) -> str:
    """Return the summary as HTML: a ranking per model, what rows contain, remarks, and how they were computed."""
    ranked = "".join(_ranking(model, ranking) for model, ranking in rankings(rows, effective, MOST_OF_PAGE).items())
    sentences = [*own_prices(effective), *not_ranked(rows), *remarks(rows, effective), *effective.get("not_known", ())]
    return ranked + _contents(rows) + bullets(sentences) + _provenance(rows, effective)


def _ranking(model: str, ranking: Ranking) -> str:
    heading = tag("h3", words(f"{model}: " if model else "", f"best by {ranking.by}"))
    conclusion = tag("p", words(ranking.conclusion))
    return heading + conclusion + _lines(ranking.lines) + bullets(ranking.remarks)


def _lines(lines: Sequence[Mapping[str, Any]]) -> str:
    """Return a table of a few lines."""
    number = {name: any(isinstance(line[name], float) for line in lines) for name in lines[0]}
    kinds = ["number" if number[name] or name in NUMBERS else None for name in lines[0]]
    head, *body = zip(*cells_of(lines), strict=True)
    titles = [tag("th", words(text.strip()), scope="col", class_=kind) for text, kind in zip(head, kinds, strict=True)]
    rows = [
        tag("tr", *(tag("td", words(text.strip()), class_=kind) for text, kind in zip(cells, kinds, strict=True)))
        for cells in body
    ]
    table = tag("table", tag("thead", tag("tr", *titles)), tag("tbody", *rows), class_="ranking")
    return tag("div", table, class_="wide")


def _answers(parts: Sequence[Answer]) -> str:
    """Return sentences as bullets, with tables between them."""
    written, sentences = "", []
    for part in parts:
        if isinstance(part, str):
            sentences.append(part)
        else:
            written += bullets(sentences) + _lines(part)
            sentences = []
    return written + bullets(sentences)


def _contents(rows: Rows) -> str:
    lines, varied = [], []
    if "model" in rows[0]:
        jobs = {str(model): ", ".join(job_words(own)) for (model,), own in group_rows(rows, "model").items() if model}
        lines = [tag("li", tag("strong", words(model)), words(f": {job}")) for model, job in jobs.items() if job]
    for name in textual(rows):
        if len(values := values_in(rows, name)) > 1:
            varied.append(tag("li", tag("strong", words(name)), words(f": {join_names(values)}")))
    jobs = tag("ul", *lines) if lines else ""
    names = tag("details", tag("summary", "Settings that differ between rows"), tag("ul", *varied)) if varied else ""
    return tag("p", f"{numerals.count_phrase(len(rows), 'row')} of {len(rows[0])} columns.") + jobs + names


def own_prices(effective: Mapping[str, Any]) -> list[str]:
    """Return a sentence per price file: its values that differ from the usual prices."""
    sentences = []
    for file, values in (effective.get("own_prices") or {}).items():
        each = [f"{name} {own} (usually {usual})" for name, (own, usual) in values.items()]
        more = f" and {len(each) - _MOST_PRICES} more" if len(each) > _MOST_PRICES else ""
        sentences.append(
            f"Prices of {PurePath(file).name}: {', '.join(each[:_MOST_PRICES]) or 'the usual prices'}{more}."
        )
    return sentences


def _provenance(rows: Rows, effective: Mapping[str, Any]) -> str:
    known = {name: effective.get(name) for name in _MADE}
    known["dtype"] = known["dtype"] or rows[0].get("dtype")
    commit, plus, changes = str(known["commit"]).partition("+")
    known["commit"] = known["commit"] and commit[:12] + plus + changes
    parts = [form.format(known[name]) for name, form in _MADE.items() if known[name]]
    made = "Computed" + (" " if known["command"] else "") + "".join(parts)
    if not parts:
        made = "Where these rows were computed is unknown"
    stopped = " The run was stopped: some rows are missing." if effective.get("complete") is False else ""
    return tag("p", words(f"{made}.{stopped}"), class_="note")


# -- the table of rows; data-sort holds the full value of a number


def _table(rows: Rows) -> str:
    alike = [name for name in rows[0] if len(rows) > 1 and len({_key(row[name]) for row in rows}) == 1]
    shown = [name for name in rows[0] if name not in alike]
    if not shown:
        alike, shown = [], list(rows[0])
    numbers = set(numeric(rows))
    cells = [[_cell(*pair, name in numbers) for pair in zip(*_column(rows, name), strict=True)] for name in shown]
    body = "".join(tag("tr", *line) for line in zip(*cells, strict=True))
    head = tag("tr", *(_heading(name, name in numbers) for name in shown))
    field = tag("label", "Filter ", '<input type="search" id="filter" placeholder="words, in any column" disabled>')
    count = tag("output", numerals.count_phrase(len(rows), "row"), id="count")
    whole = tag("table", tag("thead", head), tag("tbody", body), id="rows")
    tools = tag("div", field, count, class_="tools")
    inside = _alike(rows, alike) + tools + tag("div", whole, class_="scroll", tabindex="0")
    if len(rows) * len(shown) <= _OPEN:
        return inside
    named = (
        f"{numerals.count_phrase(len(rows), 'row')}, {numerals.count_phrase(len(shown), 'column')} to sort and filter"
    )
    return tag("details", tag("summary", named), inside)


def _alike(rows: Rows, names: list[str]) -> str:
    if not names:
        return ""
    pairs = [tag("div", tag("dt", words(name)), tag("dd", words(_column(rows[:1], name)[1][0]))) for name in names]
    named = f"The same in every row: {numerals.count_phrase(len(names), 'column')}"
    return tag("details", tag("summary", named), tag("dl", *pairs, class_="alike"))


def _heading(name: str, number: bool) -> str:
    button = tag("button", words(name).replace("_", "_<wbr/>"), type="button", disabled=True)
    return tag("th", button, scope="col", aria_sort="none", class_="number" if number else None)


def _column(rows: Rows, name: str) -> tuple[list[Any], list[str]]:
    values = [row[name] for row in rows]
    return values, list(map(numerals.number, values))


def _cell(value: Any, text: str, number: bool) -> str:
    if value is None or isinstance(value, str | bool):
        whole = value if isinstance(value, str) and len(value) > 20 else None
        return tag("td", words(text), class_="number" if number else None, title=whole)
    sortable = None if value != value else repr(value).replace("inf", "Infinity")  # as JavaScript reads numbers
    return tag("td", words(text), class_="number", data_sort=sortable)


def _key(value: Any) -> tuple[type, Any]:
    return type(value), "nan" if value != value else value


# -- pictures of a folder


def _pictures_in(folder: str | Path) -> list[Path]:
    folder = Path(folder)
    if not os.path.isdir(folder):
        raise InputError(f"pictures {str(folder)!r} is not a folder; give one that holds .png or .svg files.")
    try:
        pictures = sorted(path for path in folder.iterdir() if path.suffix.lower() in PICTURES and path.is_file())
    except OSError as error:
        raise _unread(folder, error) from error
    if not pictures:
        raise InputError(f"pictures {str(folder)!r} holds no .png or .svg file; give another folder.")
    return pictures


def _picture(path: Path) -> str:
    try:
        data = base64.b64encode(path.read_bytes()).decode()
    except OSError as error:
        raise _unread(path, error) from error
    source = f"data:{PICTURES[path.suffix.lower()]};base64,{data}"
    return f'<figure><img src="{source}" alt="{words(path.stem)}">{tag("figcaption", words(path.name))}</figure>'


def _unread(path: Path, error: OSError) -> InputError:
    return InputError(f"cannot read {str(path)!r} ({error.strerror or error}); give a folder that can be read.")
