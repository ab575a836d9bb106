"""Ratios of rows over baseline rows.

A row is paired with the baseline row that equals it in every setting in which baseline rows differ, such as the seed,
trace or bandwidth.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from mfabric_jax.checks import InputError
from mfabric_jax.report.grid import NUMBER, Rows, group_rows, result_column
from mfabric_jax.report.numerals import number, usable

OVER = "{}_over"  # column of the ratios of a column


def settings_that_differ(rows: Rows, baseline: Sequence[bool]) -> list[str]:
    """Return the columns before the result, and the path settings, in which baseline rows (`baseline` [N]) differ."""
    names, result = list(rows[0]), result_column(rows)
    before = names if result is None else names[: names.index(result)]
    own = [row for row, ours in zip(rows, baseline, strict=True) if ours]
    candidates = [name for name in names if (name in before or "." in name) and name != NUMBER]
    return [name for name in candidates if len({row[name] for row in own}) > 1]


def partners(rows: Rows, baseline: Sequence[bool], condition: str) -> list[Mapping[str, Any] | None]:
    """Return the baseline row of each row [N], or None if it has none.

    `condition` is the text of the condition that marks baseline rows. Raise InputError if `baseline` [N] marks no row,
    or if two baseline rows have the same settings.
    """
    if not any(baseline):
        raise InputError(f"over {condition!r} must match at least one row, got none of {len(rows):,}.")
    names = settings_that_differ(rows, baseline)
    below = group_rows([row for row, ours in zip(rows, baseline, strict=True) if ours], *names)
    for key, some in below.items():
        if len(some) > 1:
            alike = ", ".join(f"{name} {number(value)}" for name, value in zip(names, key, strict=True))
            many = f"{len(some)} rows" + (f" of {alike}" if alike else "")
            raise InputError(
                f"over {condition!r} must mark one row to compare with, got {many}; add conditions to where."
            )
    return [below.get(tuple(row[name] for name in names), [None])[0] for row in rows]


def ratios(rows: Rows, others: Sequence[Mapping[str, Any] | None], name: str) -> list[float | None]:
    """Return a column [N] over the same column of the baseline rows; None if either is not a number."""
    pairs = zip(rows, others, strict=True)
    return [_ratio(row[name], None if other is None else other[name]) for row, other in pairs]


def _ratio(value: Any, below: Any) -> float | None:
    numerator, other = usable(value), usable(below)
    return numerator / other if numerator is not None and other else None
