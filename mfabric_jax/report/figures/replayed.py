"""A replayed graph of tasks: what ranks do when, the critical path through them, and what holds the makespan."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mfabric_jax.checks import InputError
from mfabric_jax.report import style
from mfabric_jax.report.task_trace import PATH

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Rows = Sequence[Mapping[str, Any]]

MOST_RANKS = 24
_WIDE, _LANE = 13.0, 0.24
_COMMUNICATION = style.Look("Communication that no computation hides", style.KINDS["all-to-all"].colour)
_COMPUTE = style.Look("Computation", style.KINDS["attention"].colour)
_LINKS = ("#CC6677", "#DDCC77", "#117733", "#332288", "#AA4499", "#44AA99", "#999933", "#882255")
_NAMED = 0.06  # of the makespan: a part that has room for its name


def replay_picture(spans: Rows, held: Rows, path: str | Path, title: str = "") -> Path:
    """Draw a replay; returns the path written.

    - `spans`: as `write_task_trace` takes them; of many ranks some are shown, evenly chosen.
    - `held`: `what` and `holds_s`, parts of the makespan; none: not drawn.

    `InputError` for no spans, or a path that is no picture or cannot be written.
    """
    return style.save(lambda: build_replayed(spans, held, title), path)


def build_replayed(spans: Rows, held: Rows, title: str = "") -> Figure:
    """The figure itself."""
    ranks = sorted({one["rank"] for one in spans if one["rank"] >= 0})
    if not ranks:
        raise InputError("spans must hold at least one of a rank, got none.")
    shown = [ranks[place] for place in np.unique(np.linspace(0, len(ranks) - 1, MOST_RANKS).round().astype(int))]
    tall = _LANE * len(shown) + 0.4
    figure = style.blank(_WIDE, tall + (2.6 if held else 1.6))
    figure.suptitle(title, fontsize=style.FONT + 2, fontweight="bold")
    if not held:
        _draw_ranks(figure.subplots(), spans, shown)
        return figure
    above, below = figure.subplots(2, height_ratios=[tall, 0.7])
    _draw_ranks(above, spans, shown)
    _draw_held(below, held)
    return figure


def _draw_ranks(axes: Axes, spans: Rows, shown: Sequence[int]) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    row = {rank: place for place, rank in enumerate(shown)}
    drawn = (_COMMUNICATION, ("send", "receive"), 2, 0.82), (_COMPUTE, ("compute",), 3, 0.9)
    for look, tracks, order, tall in drawn:
        for rank in shown:
            mine = [one for one in spans if one["rank"] == rank and one["track"] in tracks]
            bars = [(one["begin_s"], one["end_s"] - one["begin_s"]) for one in mine]
            axes.broken_barh(
                bars, (row[rank] - tall / 2, tall), color=look.colour, linewidth=0, snap=False, zorder=order
            )
    _draw_path(axes, [one for one in spans if one["track"] == PATH], row)
    axes.set_yticks(range(len(shown)), [f"rank {rank}" for rank in shown], fontsize=style.FONT - 2)
    axes.set(ylim=(len(shown) - 0.5, -0.5), xlim=(0, max(one["end_s"] for one in spans)), xlabel="time [s]")
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", zorder=0)
    colours = [Patch(facecolor=look.colour, label=look.label) for look in (_COMPUTE, _COMMUNICATION)]
    key = [*colours, Line2D([], [], color=style.INK, linewidth=2, label="Critical path")]
    axes.legend(handles=key, loc="lower left", bbox_to_anchor=(0, 1), ncols=3, borderaxespad=0.2)


def _draw_path(axes: Axes, steps: Rows, row: Mapping[int, int]) -> None:
    """A line through the ranks on which the critical path runs, where these are shown."""
    x: list[float] = []
    y: list[float] = []
    for one in sorted(steps, key=lambda one: one["begin_s"]):
        rank, to = one["args"]["rank"], one["args"].get("to")
        x += [one["begin_s"], one["end_s"]]
        y += [row.get(end, np.nan) for end in (rank, rank if to is None else to)]
    axes.plot(x, y, color=style.INK, linewidth=1.4, zorder=4, solid_joinstyle="round")


def _draw_held(axes: Axes, held: Rows) -> None:
    """One bar of all parts, the longest first."""
    left, total = 0.0, sum(one["holds_s"] for one in held)
    others = itertools.cycle(_LINKS)
    for one in sorted(held, key=lambda one: -one["holds_s"]):
        colour = _COMPUTE.colour if one["what"] == "computation" else next(others)
        axes.barh(0, one["holds_s"], 0.8, left=left, color=colour, edgecolor="white", linewidth=0.6)
        if one["holds_s"] > _NAMED * total:
            words = f"{one['what']}\n{one['holds_s'] / total:.1%}"
            look = {"ha": "center", "va": "center", "fontsize": style.FONT - 1, "color": style.ink_on(colour)}
            axes.text(left + one["holds_s"] / 2, 0, words, **look)
        left += one["holds_s"]
    axes.set(yticks=[], xlim=(0, total), xlabel="what holds the makespan [s]")
    axes.spines["left"].set_visible(False)
