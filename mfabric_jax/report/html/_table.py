"""The rows as a table that a reader sorts and filters; what is alike in all rows stands above it."""

from typing import Any

from mfabric_jax.report import numerals, varied
from mfabric_jax.report.grid import Rows
from mfabric_jax.report.html.markup import counted, tag, words

_PLAIN = 1_000_000  # below it round numbers are written as they are


def table(rows: Rows) -> str:
    """The table with its filter; numbers carry their full value as data-sort."""
    alike = [name for name in rows[0] if len(rows) > 1 and len({_key(row[name]) for row in rows}) == 1]
    shown = [name for name in rows[0] if name not in alike]
    if not shown:
        alike, shown = [], list(rows[0])
    numbers = set(varied.numeric(rows))
    cells = [[_cell(*pair, name in numbers) for pair in zip(*_column(rows, name), strict=True)] for name in shown]
    body = "".join(tag("tr", *line) for line in zip(*cells, strict=True))
    head = tag("tr", *(_heading(name, name in numbers) for name in shown))
    field = tag("label", "Filter ", '<input type="search" id="filter" placeholder="words, in any column" disabled>')
    count = tag("output", counted(rows), id="count")
    whole = tag("table", tag("thead", head), tag("tbody", body), id="rows")
    tools = tag("div", field, count, class_="tools")
    return _alike(rows, alike) + tools + tag("div", whole, class_="scroll", tabindex="0")


def _alike(rows: Rows, names: list[str]) -> str:
    if not names:
        return ""
    pairs = [tag("div", tag("dt", words(name)), tag("dd", words(_column(rows[:1], name)[1][0]))) for name in names]
    return tag("p", "The same in every row:", class_="note") + tag("dl", *pairs, class_="alike")


def _heading(name: str, number: bool) -> str:
    button = tag("button", words(name).replace("_", "_<wbr/>"), type="button", disabled=True)
    return tag("th", button, scope="col", aria_sort="none", class_="number" if number else None)


def _column(rows: Rows, name: str) -> tuple[list[Any], list[str]]:
    """The values of a column, and how they are written."""
    values = [row[name] for row in rows]
    if varied.unround(rows, name):
        return values, numerals.column(values)
    return values, [f"{v:g}" if isinstance(v, float) and abs(v) < _PLAIN else numerals.column([v])[0] for v in values]


def _cell(value: Any, text: str, number: bool) -> str:
    if value is None or isinstance(value, str | bool):
        whole = value if isinstance(value, str) and len(value) > 20 else None
        return tag("td", words(text), class_="number" if number else None, title=whole)
    sortable = None if value != value else repr(value).replace("inf", "Infinity")  # as JavaScript reads numbers
    return tag("td", words(text), class_="number", data_sort=sortable)


def _key(value: Any) -> tuple[type, Any]:
    return type(value), "nan" if value != value else value
