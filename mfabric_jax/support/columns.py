"""Declarations of columns: unit and meaning of each, stated once, beside the code that fills it.

A row also has a column for each setting in which cases differ, named by its path, and `draw_2_s`, ... for further
draws. `report/kinds.py` lists which columns each command writes.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

SCHEMA = 1  # version of rows and their configuration: raised if a column is removed, renamed or changes its meaning
KEY = "schema"  # in a configuration
DRAW = re.compile(r"draw_\d+_s")

TEXT, TRUTH = "text", "true or false"  # units of columns that hold no numbers


class Column(NamedTuple):
    """A column of rows.

    - `unit`: of its numbers, in plain text ("s", "USD", "GB"; "" for a count or a ratio); `TEXT` or `TRUTH` otherwise.
    - `text`: what it means, one sentence or noun phrase in Markdown.
    - `detail`: files leave it out unless `--all-columns` asks for it.
    - `rises`: larger is better; a Pareto front maximises it.
    - `only_some`: rows may lack it.
    """

    name: str
    unit: str
    text: str
    detail: bool = False
    rises: bool = False
    only_some: bool = False

    @property
    def is_number(self) -> bool:
        return self.unit not in (TEXT, TRUTH)


class Columns(dict[str, Column]):
    """Columns by name, in the order of rows."""

    def __init__(self, *parts: "Column | Columns"):
        each = [column for part in parts for column in ([part] if isinstance(part, Column) else part.values())]
        super().__init__((column.name, column) for column in each)

    def rename(self, pattern: str, text: str, **changes: Any) -> "Columns":
        """Return the columns with new names and meanings; `pattern` contains {name}, and `text` {text}."""
        return Columns(
            *(
                column._replace(name=pattern.format(name=column.name), text=text.format(text=column.text), **changes)
                for column in self.values()
            )
        )

    def without(self, *names: str) -> "Columns":
        """Return the columns except those with these names."""
        return Columns(*(column for name, column in self.items() if name not in names))

    def with_detail(self, detail: bool) -> "Columns":
        """Return the columns, all of them details or none."""
        return Columns(*(column._replace(detail=detail) for column in self.values()))


def without_details(rows: Iterable[Mapping[str, Any]], columns: Columns) -> list[dict[str, Any]]:
    """Return the rows without details. Columns that are not declared, such as settings, stay."""
    details = {name for name, column in columns.items() if column.detail}
    return [{name: value for name, value in row.items() if name not in details} for row in rows]
