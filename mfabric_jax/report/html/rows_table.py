"""The table of rows, to sort and filter; data-sort holds the full value of a number."""

from typing import Any

from mfabric_jax.report import numerals
from mfabric_jax.report.grid import Rows, numeric
from mfabric_jax.report.html.markup import tag, words

_OPEN = 300  # a table of more cells is folded
_MOST_PRINTED = 22  # most columns that fit on paper


def rows_table(rows: Rows, folded: bool) -> str:
    """Return the table of rows as HTML: columns that are the same in every row apart; folded if it is large."""
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
    fits = len(shown) <= _MOST_PRINTED
    unprinted = tag("p", f"The table of {len(shown)} columns is too wide for paper.", class_="on-paper")
    scrolled = tag("div", whole, class_="scroll" if fits else "scroll on-screen", tabindex="0")
    inside = _alike(rows, alike) + tools + scrolled + ("" if fits else unprinted)
    if len(rows) * len(shown) <= _OPEN and not folded:
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
