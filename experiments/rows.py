"""What experiments make of rows: tables, summaries and claims, each a function of rows that is put together from parts.

`told(then(where(row="flows"), listed("fabric", "gpus")), "seconds:", pivot(["model"], "{gpus}", "iteration_s"))` is a
table of some rows, a sentence, and a table with a column for each number of GPUs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from string import Formatter
from typing import Any

import numpy as np
from scipy.special import stdtrit

from mfabric_jax import report
from mfabric_jax.report.grid import group_rows as group_rows
from mfabric_jax.report.grid import values_of as values_of

from .pictures import Row as Row
from .pictures import Rows as Rows
from .script import Verdict

Value = str | Callable[[Any], Any]  # of a row


def picked(rows: Rows, **values: Any) -> list[Any]:
    """Rows that hold these values."""
    return [row for row in rows if all(row[key] == value for key, value in values.items())]


def cell(row: Mapping[str, Any], value: Value) -> Any:
    """A column of a row, a format of it (None where it lacks a value), or a function of it."""
    if not isinstance(value, str):
        return value(row)
    keys = [key for _, key, _, _ in Formatter().parse(value) if key]
    if not keys:
        return row[value]
    return None if any(row[key] is None for key in keys) else value.format(**row)


def duration(seconds: float) -> str:
    """25 ms, 1 s, 10 us."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= 0.9999 * size:
            return f"{seconds / size:g} {unit}"
    return f"{seconds * 1e6:g} us"


def half_interval(values: Sequence[float]) -> float:
    """Half of the 95 % interval of the mean of independent values, by Student's t."""
    many = len(values)
    return float(stdtrit(many - 1, 0.975)) * float(np.std(values, ddof=1)) / many**0.5


# -- functions of rows, put together


def then(*steps: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """One step after the other."""
    return lambda rows: functools.reduce(lambda found, step: step(found), steps, rows)


def where(**values: Any) -> Callable[[Rows], list[Row]]:
    """Rows that hold these values."""
    return lambda rows: picked(rows, **values)


def adding(**columns: Value) -> Callable[[Rows], list[Row]]:
    """Rows with further columns."""
    return lambda rows: [dict(row) | {name: cell(row, value) for name, value in columns.items()} for row in rows]


def told(*parts: str | Callable[[Rows], str]) -> Callable[[Rows], str]:
    """Sentences and tables, one below the other; empty ones are left out."""
    return lambda rows: "\n\n".join(filter(None, (part if isinstance(part, str) else part(rows) for part in parts)))


def pivot(down: Sequence[str], across: str, value: Value) -> Callable[[Rows], str]:
    """A table with a line for each combination of the columns `down`; `across` is a format of a row."""

    def table(rows: Rows) -> str:
        lines: dict[tuple, dict[str, Any]] = {}
        for row in rows:
            line = lines.setdefault(tuple(row[key] for key in down), {key: row[key] for key in down})
            line[across.format(**row)] = cell(row, value)
        return report.plain(list(lines.values()))

    return table


def pivots(down: Sequence[str], across: str, titles: Mapping[str, str], form: str) -> Callable[[Rows], str]:
    """A table under its title for each of some columns."""
    tables = [(title, pivot(down, across, f"{{{key}:{form}}}")) for key, title in titles.items()]
    return told(*(text for part in tables for text in part))


def listed(*columns: Any) -> Callable[[Rows], str]:
    """A table with a line for each row; a column is a key, or the key, its heading and whether it is per cent."""
    shown = [report.TableColumn(one) if isinstance(one, str) else report.TableColumn(*one) for one in columns]
    return lambda rows: report.plain(rows, shown)


def of(key: str, function: Callable[[list], Any] = np.mean) -> Callable[[Rows], float]:
    """A function of a column, such as its mean, as one of rows."""
    return lambda rows: float(function([row[key] for row in rows]))


def summed(by: Sequence[str], **columns: Callable[[Rows], Any]) -> Callable[[Rows], list[Row]]:
    """A line for each group of rows: what the group has in common, and functions of its rows."""
    return lambda rows: [
        {key: here[0][key] for key in by} | {name: function(here) for name, function in columns.items()}
        for here in group_rows(rows, *by).values()
    ]


def measured(
    by: Sequence[str], claim: str, function: Callable[[Rows], Any], form: str = "{}"
) -> Callable[[Rows], list[Verdict]]:
    """A fact about each group of rows, for which nothing is published; `claim` is a format of its first row."""
    return lambda rows: [
        Verdict(claim.format(**here[0]), form.format(function(here))) for here in group_rows(rows, *by).values()
    ]
