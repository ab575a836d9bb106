"""Memory of GPUs as bars of its parts."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from mfabric_jax.report import style
from mfabric_jax.report.charts import Bar, Chart, Curve, Panel
from mfabric_jax.report.grid import Grid, Rows, last_word, needs_values
from mfabric_jax.report.numerals import number

_PLAIN = ("model", "gpu.name")  # of a label without their names
_SET_UP = (*_PLAIN, "gpus", "tp", "etp", "ep", "pp", "dp", "micro_batch", "sequence", "precision")
_MOST, _NAMED = 12, 4  # bars, and set-ups that a sentence names
NOTE = "Of the fullest stage; a GPU should keep 8 % of its own for communicators, fragments and libraries."


def memory_chart(rows: Rows, name: str = "row") -> Chart:
    """A bar per row of the memory of a GPU by part, with a diamond where its GPU's ends; `name`: column of its name."""
    needs_values(rows, (name, "memory_gb", *style.MEMORY), "the figure of memory needs rows with its parts")
    bars, totals, points = [], [], []
    for place, row in enumerate(rows):
        begun, has = 0.0, row.get("gpu_memory_gb")
        for column, look in style.MEMORY.items():
            end, size = begun + row[column], number(row[column])
            bars += [Bar(look, place, begun, end, f"{look.label}: {size} GB", size)] if row[column] > 0 else []
            begun = end
        uses = f"{number(begun)} GB" if has is None else f"{number(begun)} of {number(has)} GB"
        totals.append((max(begun, has or 0.0), f"{uses}{', too much' if row.get('fits') is False else ''}"))
        points += [] if has is None else [(has, place)]
    there = style.Look("What its GPU has", style.INK, "D", hollow=True)
    curves = [Curve(there, points, joined=False)] if points else []
    shown = {"bars": bars, "names": [str(row[name]) for row in rows], "totals": totals, "curves": curves}
    parts = {bar.look for bar in bars}
    key = [*(look for look in style.MEMORY.values() if look in parts), *([there] if points else [])]
    return Chart("Memory of a GPU", NOTE, key, [Panel("", "memory of a GPU [GB]", **shown)])


def memory_of_models(grid: Grid) -> Chart:
    """A bar for every set-up of a comparison (model, GPU, degrees), up to a number; the note names the others."""
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
    """Such as "B200-HGX, tp 2, ep 8"; the model where several are shown."""
    known = [name for name in names if row.get(name) is not None]
    return ", ".join(str(row[name]) if name in _PLAIN else f"{last_word(name)} {number(row[name])}" for name in known)
