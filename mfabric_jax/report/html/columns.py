"""What the columns of any rows hold: names or numbers, and which were chosen and which found."""

import itertools
from collections.abc import Mapping
from typing import Any

from mfabric_jax.report.grid import Rows
from mfabric_jax.report.numerals import usable
from mfabric_jax.report.query import USUAL

_INDICES = ("seed", "sample", "instance", "record", "layer", "micro_batch", "iteration")


def numeric(rows: Rows) -> list[str]:
    """Columns of numbers."""
    return [name for name in rows[0] if any(_is_number(row[name]) for row in rows) and not _textual(rows, name)]


def textual(rows: Rows) -> list[str]:
    """Columns of names; truth values are names too."""
    return [name for name in rows[0] if _textual(rows, name)]


def metric(rows: Rows) -> str | None:
    """The result: a time of an iteration or all-to-all, else the first unround column, else the first of numbers."""
    numbers = numeric(rows)
    usual = (name for name in USUAL if name in numbers)
    found = (name for name in numbers if unround(rows, name))
    return next(itertools.chain(usual, found, numbers), None)


def settings(rows: Rows, effective: Mapping[str, Any]) -> list[str]:
    """What was chosen: columns before the result, and numbers that the configuration names. Indices are none."""
    names = list(rows[0])
    found = metric(rows)
    before = names if found is None else names[: names.index(found)]
    behind = [name for name in names[len(before) + 1 :] if name in effective and name in numeric(rows)]
    return [name for name in (*before, *behind) if name not in _INDICES]


def distinct(rows: Rows, name: str) -> list[Any]:
    """The values of a column, in order of first appearance, None left out."""
    return list(dict.fromkeys(row[name] for row in rows if row[name] is not None))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _textual(rows: Rows, name: str) -> bool:
    return any(isinstance(row[name], str | bool) for row in rows)


def unround(rows: Rows, name: str) -> bool:
    """Whether numbers of a column have more than four digits: results have, settings have not."""
    floats = [value for row in rows if isinstance(row[name], float) and (value := usable(row[name])) is not None]
    return any(float(f"{value:.4g}") != value for value in floats)
