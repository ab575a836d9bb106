"""Output for notebooks: rows as a data frame or an HTML table."""

import html
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mfabric_jax.support.extras import load_extra

MOST = 60  # most rows of a table in a notebook
DIGITS = 4
LEFT = ' style="text-align: left"'


def frame(rows: Iterable[Mapping[str, Any]]) -> Any:
    """Return rows as a `pandas.DataFrame`: a column per name, in order of first appearance; missing values are empty.

    Raise InputError if pandas is not installed.
    """
    pandas = load_extra("notebook", "a data frame", "pandas")
    listed = [dict(row) for row in rows]
    return pandas.DataFrame(listed, columns=list(dict.fromkeys(name for row in listed for name in row)))


class Rows(list[dict[str, Any]]):
    """A list of rows that a notebook shows as a table."""

    def frame(self) -> Any:
        """Return the rows as a `pandas.DataFrame`. Raise InputError if pandas is not installed."""
        return frame(self)

    def _repr_html_(self) -> str:
        return html_table(self)


def html_table(rows: Sequence[Mapping[str, Any]], title: str = "") -> str:
    """Return an HTML table of the first rows; columns with one value stand above a table of several rows."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    alike = [name for name in names if len(rows) > 1 and all(row.get(name) == rows[0].get(name) for row in rows)]
    shown = [name for name in names if name not in alike] or names
    above = [title] * bool(title) + [", ".join(f"{name} {text_of(rows[0][name])}" for name in alike)] * bool(alike)
    cells = [_line("th", shown), *(_line("td", [row.get(name) for name in shown]) for row in rows[:MOST])]
    below = [f"... and {len(rows) - MOST:,} more"] * (len(rows) > MOST)
    paragraphs = ["".join(f"<p>{html.escape(line)}</p>" for line in lines) for lines in (above, below)]
    return f"{paragraphs[0]}<table>{''.join(cells)}</table>{paragraphs[1]}"


def _line(tag: str, cells: Sequence[Any]) -> str:
    """Return a row of cells. Texts are aligned left, since notebooks align all cells right."""
    kinds = [tag + LEFT * (tag == "td" and isinstance(cell, str)) for cell in cells]
    each = zip(kinds, map(text_of, cells), strict=True)
    return f"<tr>{''.join(f'<{kind}>{html.escape(text)}</{tag}>' for kind, text in each)}</tr>"


def text_of(value: Any) -> str:
    """Return the text of a cell: numbers to four digits, nothing for None."""
    if value is None:
        return ""
    return f"{value:.{DIGITS}g}" if isinstance(value, float) else str(value)


def few(values: Iterable[Any], most: int = 6) -> str:
    """Return the first values, separated by commas."""
    first = list(itertools.islice(values, most + 1))
    return ", ".join(map(text_of, first[:most])) + ", ..." * (len(first) > most)
