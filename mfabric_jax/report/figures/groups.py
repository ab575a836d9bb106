"""A picture of groups of rows (`mfabric query --by`): means with their uncertainty."""

from collections.abc import Sequence
from typing import Any

from mfabric_jax.case.grid import is_number
from mfabric_jax.checks import InputError
from mfabric_jax.report import style
from mfabric_jax.report.charts import Chart, Curve, Panel
from mfabric_jax.report.drawing import drawn
from mfabric_jax.report.grid import Rows, group_rows
from mfabric_jax.report.paired import OVER

MEAN, ERRORS = "_mean", {"_ci95": "95 % intervals of means", "_std": "standard deviations"}


def groups_chart(rows: Rows, by: Sequence[str], over: str | None = None) -> Chart:
    """Return a chart of groups: a panel per mean, over the last column of numbers in `by`.

    Each combination of the other columns in `by` has a line. `over`: the conditions of baseline rows, if means are of
    ratios. Raise InputError if `by` has no column of numbers, or if rows have no mean.
    """
    numbers = [name for name in by if rows and all(is_number(row[name]) for row in rows)]
    means = [name for name in (rows[0] if rows else ()) if name.endswith(MEAN)]
    if not numbers or not means:
        got = f"{', '.join(by) or 'no group'} and {', '.join(means) or 'no mean'}"
        raise InputError(f"figure must have a column of numbers in by and a mean in measures, got {got}.")
    along = numbers[-1]
    lines = group_rows(rows, *(name for name in by if name != along))
    looks = style.distinct_looks([_label(key) for key in lines])
    ends = {mean: _error_of(rows, mean) for mean in means}
    panels = []
    for mean in means:
        curves = [_curve(some, along, mean, looks[_label(key)], ends[mean]) for key, some in lines.items()]
        panels.append(Panel("", along, _name(mean.removesuffix(MEAN), over), curves))
    error_kinds = [words for end, words in ERRORS.items() if end in ends.values()]
    note = f"Vertical lines are {' and '.join(error_kinds)}." if error_kinds else ""
    return Chart(f"Means of {', '.join(panel.y for panel in panels)}", note, list(looks.values()), panels)


def _name(column: str, over: str | None) -> str:
    return column if over is None else f"{column.removesuffix(OVER.format(''))} over {over}"


def _curve(rows: Rows, along: str, mean: str, look: style.Look, end: str | None) -> Curve:
    some = sorted((row for row in rows if row[mean] is not None), key=lambda row: row[along])
    points = [(row[along], row[mean]) for row in some]
    errors = [0.0 if end is None else row[mean.removesuffix(MEAN) + end] or 0.0 for row in some]
    spread = [(row[mean] - error, row[mean] + error) for row, error in zip(some, errors, strict=True)]
    return Curve(look, points, spread=[] if end is None else spread)


def _error_of(rows: Rows, mean: str) -> str | None:
    return next((end for end in ERRORS if mean.removesuffix(MEAN) + end in rows[0]), None)


def _label(key: tuple[Any, ...]) -> str:
    return ", ".join(map(str, key)) or "all"


groups = drawn.picture_writer(groups_chart)
