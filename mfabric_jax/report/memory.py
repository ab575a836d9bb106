"""Memory of GPUs as bars of its parts."""

from typing import Any

from mfabric_jax.report import style
from mfabric_jax.report.charts import Bar, Chart, Curve, Panel
from mfabric_jax.report.grid import Grid, Rows, needs_values

NOTE = "Of the fullest stage; a GPU should keep 8 % of its own for communicators, fragments and libraries."


def memory_chart(rows: Rows, name: str = "row") -> Chart:
    """A bar per row of the memory of a GPU by part, with a diamond where its GPU's ends; `name`: column of its name."""
    needs_values(rows, (name, "memory_gb", *style.MEMORY), "the figure of memory needs rows with its parts")
    bars, totals, points = [], [], []
    for place, row in enumerate(rows):
        begun, has = 0.0, row.get("gpu_memory_gb")
        for column, look in style.MEMORY.items():
            end, size = begun + row[column], f"{row[column]:.0f}"
            bars += [Bar(look, place, begun, end, f"{look.label}: {size} GB", size)] if row[column] > 0 else []
            begun = end
        uses = f"{begun:.0f} GB" if has is None else f"{begun:.0f} of {has:.0f} GB"
        totals.append((max(begun, has or 0.0), f"{uses}{', too much' if row.get('fits') is False else ''}"))
        points += [] if has is None else [(has, place)]
    there = style.Look("What its GPU has", style.INK, "D", hollow=True)
    curves = [Curve(there, points, joined=False)] if points else []
    shown = {"bars": bars, "names": [str(row[name]) for row in rows], "totals": totals, "curves": curves}
    parts = {bar.look for bar in bars}
    key = [*(look for look in style.MEMORY.values() if look in parts), *([there] if points else [])]
    return Chart("Memory of a GPU", NOTE, key, [Panel("", "memory of a GPU [GB]", **shown)])


def memory_of_models(grid: Grid) -> Chart:
    """A bar for every model of a comparison."""
    first: dict[str, Any] = {}
    for (model, *_), row in grid.cells.items():
        if all(row.get(column) is not None for column in style.MEMORY):
            first.setdefault(str(model), row)
    if not first:
        return Chart("Memory of a GPU", "", [], [])
    return memory_chart([row | {"model": model} for model, row in first.items()], "model")
