"""Charts of GPU memory: bars of its parts."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from mfabric_jax.report import style
from mfabric_jax.report.charts import Bar, Chart, Curve, Panel
from mfabric_jax.report.grid import Grid, Rows, check_values, setting_name
from mfabric_jax.report.numerals import number

_PLAIN = ("model", "gpu.name")  # labels show only the values of these
_SET_UP = (*_PLAIN, "gpus", "tp", "etp", "ep", "pp", "dp", "micro_batch", "sequence", "precision")
_MOST, _NAMED = 12, 4  # most bars, and most set-ups that a note names
NOTE = "Memory of the fullest stage; 8 % of a GPU should stay free for communicators, fragmentation and libraries."


def memory_chart(rows: Rows, name: str = "row") -> Chart:
    """Return a chart of GPU memory by part: a bar per row, a diamond at the capacity; `name`: column of row names."""
    check_values(rows, (name, "memory_gb", *style.MEMORY), "the figure of memory needs rows with its parts")
    bars, totals, points = [], [], []
    for position, row in enumerate(rows):
        begun, has = 0.0, row.get("gpu_memory_gb")
        for column, look in style.MEMORY.items():
            end, size = begun + row[column], number(row[column])
            bars += [Bar(look, position, begun, end, f"{look.label}: {size} GB", size)] if row[column] > 0 else []
            begun = end
        uses = f"{number(begun)} GB" if has is None else f"{number(begun)} of {number(has)} GB"
        totals.append((max(begun, has or 0.0), f"{uses}{', too much' if row.get('fits') is False else ''}"))
        points += [] if has is None else [(has, position)]
    there = style.Look("Capacity of the GPU", style.INK, "D", hollow=True)
    curves = [Curve(there, points, joined=False)] if points else []
    shown = {"bars": bars, "names": [str(row[name]) for row in rows], "totals": totals, "curves": curves}
    parts = {bar.look for bar in bars}
    key = [*(look for look in style.MEMORY.values() if look in parts), *([there] if points else [])]
    return Chart("Memory of a GPU", NOTE, key, [Panel("", "memory of a GPU [GB]", **shown)])


def memory_of_models(grid: Grid) -> Chart:
    """Return a chart with a bar per set-up (model, GPU, degrees), at most `_MOST`; the note names others."""
    held = [{"model": model, **row} for (model, *_), row in grid.cells.items()]
    held = [row for row in held if all(row.get(column) is not None for column in style.MEMORY)]
    if not held:
        return Chart("Memory of a GPU", "", [], [])
    names = [name for name in _SET_UP if len({str(row.get(name)) for row in held}) > 1 or name == "model"]
    first: dict[tuple, dict[str, Any]] = {}
    for row in held:
        parts = tuple(round(row[column], 3) for column in style.MEMORY)
        first.setdefault((*(str(row.get(name)) for name in names), *parts), row)
    labels = [_label(row, names) for row in first.values()]
    rows = [row | {"row": label} for row, label in zip(first.values(), labels, strict=True)]
    chart = memory_chart(rows[:_MOST])
    if not (more := labels[_MOST:]):
        return chart
    named = "; ".join(more[:_NAMED]) + ("; ..." if len(more) > _NAMED else "")
    return replace(chart, note=f"{NOTE} Not shown: {len(more):,} more set-ups ({named}).")


def _label(row: Mapping[str, Any], names: Sequence[str]) -> str:
    """A label such as "B200-HGX, tp 2, ep 8"."""
    known = [name for name in names if row.get(name) is not None]
    return ", ".join(
        str(row[name]) if name in _PLAIN else f"{setting_name(name)} {number(row[name])}" for name in known
    )
