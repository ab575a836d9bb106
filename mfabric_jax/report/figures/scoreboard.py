"""The scoreboard of policies: how late, how fast."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mfabric_jax.checks import InputError
from mfabric_jax.report import style
from mfabric_jax.report.grid import Rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#4D4D4D", "#8a8a8a")


def scoreboard(rows: Rows, path: str | Path) -> Path:
    """Draw the time over the degree bound of every policy: a panel for each number of servers, routing and forecast
    error, a dot for each workload, a line from the mean of the workloads to their 90th percentile; returns the path."""
    return style.save(lambda: build_scoreboard(rows), path)


def build_scoreboard(rows: Rows) -> Figure:
    """The figure itself."""
    rows = [row for row in rows if row["mean"] is not None]  # others had no bytes to carry
    if not rows:
        raise InputError("the figure of the scoreboard needs rows, got none.")
    axes_of = ("routing", "policy", "workload")
    across, policies, workloads = (list(dict.fromkeys(row[key] for row in rows)) for key in axes_of)
    down = list(dict.fromkeys((row["servers"], row["sigma"]) for row in rows))
    figure = style.blank(2.0 + 3.2 * len(across), 1.0 + (0.7 + 0.27 * len(policies)) * len(down))
    grid = figure.subplots(len(down), len(across), sharey=True, squeeze=False)
    for line, (servers, sigma) in zip(grid, down, strict=True):
        for axes, routing in zip(line, across, strict=True):
            here = [row for row in rows if (row["servers"], row["sigma"], row["routing"]) == (servers, sigma, routing)]
            _panel(axes, here, policies, workloads)
            error = f", forecast error {sigma:g}" if len({s for _, s in down}) > 1 else ""
            axes.set_title(f"{servers} servers, {routing}{error}", loc="left", fontsize=9)
    figure.supxlabel("time over the degree bound", fontsize=9)
    handles = grid[0][0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside upper right", ncols=min(len(workloads) + 1, 8))
    return figure


def _panel(axes: Axes, rows: Rows, policies: list[str], workloads: list[str]) -> None:
    for rank, workload in enumerate(workloads):
        shown = [row for row in rows if row["workload"] == workload]
        places = [policies.index(row["policy"]) for row in shown]
        colour = _COLOURS[rank % len(_COLOURS)]
        axes.plot([row["mean"] for row in shown], places, "o", color=colour, markersize=4, alpha=0.9, label=workload)
    for place, policy in enumerate(policies):
        own = [row for row in rows if row["policy"] == policy]
        if own:
            mean, late = (sum(row[key] for row in own) / len(own) for key in ("mean", "p90"))
            label = "mean to 90th percentile" if place == 0 else None
            axes.plot([mean, late], [place, place], color=style.INK, linewidth=1.2, label=label, zorder=0)
            axes.plot([mean, mean], [place - 0.3, place + 0.3], color=style.INK, linewidth=1.6)
    axes.set_yticks(range(len(policies)), policies)
    axes.set_ylim(len(policies) - 0.4, -0.6)
    axes.grid(axis="x")
