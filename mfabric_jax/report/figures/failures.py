"""What failures cost: the slow-down of every kind, beside what is published."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mfabric_jax.checks import InputError
from mfabric_jax.report import style
from mfabric_jax.report.grid import Rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#4D4D4D")
_NEEDS = ("model", "failure", "slow_down")


def failures(rows: Rows, path: str | Path) -> Path:
    """Draw the slow-down of every model and kind of failure; returns the path written."""
    return style.save(lambda: build(rows), path)


def build(rows: Rows) -> Figure:
    """The figure itself: a group of bars per kind, a bar per model, a diamond where a figure is published."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    missing = [key for key in _NEEDS if any(row.get(key) is None for row in rows)]
    if not rows or missing:
        wanted = f"rows lack {', '.join(missing)}" if rows else "there are no rows"
        raise InputError(f"the figure of failures needs slow-downs, but {wanted}.")
    models = list(dict.fromkeys(row["model"] for row in rows))
    kinds = list(dict.fromkeys(row["failure"] for row in rows))
    figure = style.blank(max(6.5, 1.1 + 1.5 * len(kinds)), 4.2)
    axes = figure.subplots()
    wide = 0.8 / len(models)
    span = max(abs(value) for row in rows for value in (row["slow_down"], row.get("published") or 0)) or 1.0
    for row in rows:
        rank = models.index(row["model"])
        place = kinds.index(row["failure"]) + (rank - (len(models) - 1) / 2) * wide
        value = row["slow_down"]
        axes.bar(place, value, 0.92 * wide, color=_COLOURS[rank % len(_COLOURS)])
        lift = np.copysign(0.015 * span, value)
        axes.text(place, value + lift, f"{value:+.1%}", ha="center", va="bottom" if value >= 0 else "top", fontsize=8)
        if row.get("published") is not None:
            axes.plot(place, row["published"], "D", color=style.INK, markerfacecolor="white", markersize=6, zorder=5)
    axes.axhline(0, color=style.INK, linewidth=0.8)
    axes.set_xticks(range(len(kinds)), [kind.replace("-", "\n", 1) for kind in kinds])
    axes.tick_params(axis="x", length=0)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:+.0%}" if value else "0")
    axes.margins(y=0.12)
    if not any(row["slow_down"] or row.get("published") for row in rows):
        axes.set_ylim(-span, span)
    axes.set_ylabel("iteration time over healthy")
    axes.grid(axis="y")
    handles = [Patch(color=_COLOURS[rank % len(_COLOURS)], label=model) for rank, model in enumerate(models)]
    if any(row.get("published") is not None for row in rows):
        mark = {"linestyle": "", "marker": "D", "color": style.INK, "markerfacecolor": "white"}
        handles.append(Line2D([], [], label="published (arXiv 2501.03905)", **mark))  # pyright: ignore
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles))
    return figure
