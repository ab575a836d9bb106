"""What several jobs have of a link over time: stacked, a row of panels for each way, the beginning beside the end.

A row is an interval: `way`, `job`, `begin_s`, `end_s`, `use` (a part of the link), and `when`, a column of panels.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mfabric_jax.checks import InputError
from mfabric_jax.report import style
from mfabric_jax.report.grid import Rows, grouped, values_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WAYS = {
    "fair": "fair sharing",
    "cassini": "CASSINI: time shifts",
    "mltcp": "MLTCP: weights",
    "best": "best shifts found",
}
COLOURS = ("#88CCEE", "#CC6677", "#DDCC77", "#117733", "#332288", "#AA4499", "#44AA99", "#999933")  # Tol's muted
_WIDE, _HIGH = 5.6, 1.35


def interleaving(rows: Rows, path: str | Path, title: str = "") -> Path:
    """Draw who has the link when; returns the path written. `InputError` for no rows."""
    return style.save(lambda: build_interleaving(rows, title), path)


def build_interleaving(rows: Rows, title: str = "") -> Figure:
    """The figure itself."""
    from matplotlib.patches import Patch

    if not rows:
        raise InputError("rows must hold at least one interval, got none.")
    ways, columns, jobs = (values_of(rows, key) for key in ("way", "when", "job"))
    colours = {job: COLOURS[place % len(COLOURS)] for place, job in enumerate(jobs)}
    figure = style.blank(0.9 + _WIDE * len(columns), 1.1 + _HIGH * len(ways))
    if title:
        figure.suptitle(title, fontsize=style.FONT + 2, fontweight="bold")
    every = figure.subplots(len(ways), len(columns), squeeze=False, sharey=True)
    cells = grouped(rows, "way", "when")
    for (line, way), (place, when) in ((a, b) for a in enumerate(ways) for b in enumerate(columns)):
        axes = every[line, place]
        _stack(axes, cells.get((way, when), []), colours)
        if not line:
            axes.set_title(when, loc="left")
        if not place:
            axes.set_ylabel(style.wrapped(WAYS.get(str(way), str(way)), 1.3))
    for axes in every[-1]:
        axes.set_xlabel("time [s]")
    handles = [Patch(facecolor=colour, label=job) for job, colour in colours.items()]
    fit = style.key_columns(handles, figure.get_figwidth())
    figure.legend(handles=handles, loc="outside lower center", ncols=fit)
    return figure


def _stack(axes: Axes, rows: Sequence[Any], colours: dict[str, str]) -> None:
    """The jobs on top of each other, constant between two edges."""
    axes.set(ylim=(0, 1.02), yticks=[0, 0.5, 1], yticklabels=["0", "50 %", "100 %"])
    axes.grid(axis="y")
    if not rows:
        return
    of_job = grouped(rows, "job")
    first = next(iter(of_job.values()))
    edges = np.array([row["begin_s"] for row in first] + [first[-1]["end_s"]])
    base = np.zeros(len(first))
    for (job,), own in of_job.items():
        top = base + np.array([row["use"] for row in own])
        low, high = (np.append(level, level[-1]) for level in (base, top))
        axes.fill_between(edges, low, high, step="post", color=colours[job], linewidth=0)
        base = top
    axes.set_xlim(edges[0], edges[-1])
