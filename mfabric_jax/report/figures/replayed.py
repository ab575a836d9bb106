"""A replayed graph of tasks: what ranks do when, the critical path through them, and what holds the makespan."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mfabric_jax.checks import InputError
from mfabric_jax.report import style
from mfabric_jax.report.numerals import time_unit
from mfabric_jax.report.task_trace import PATH

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Rows = Sequence[Mapping[str, Any]]

MOST_RANKS = 24
_WIDE, _LANE = 13.0, 0.24
_COMMUNICATION = style.Look("Communication that no computation hides", style.KINDS["all-to-all"].colour)
_LATENCY = style.Look("... of which latency", style.mixed(_COMMUNICATION.colour, 0.6))
_COMPUTE = style.Look("Computation", style.KINDS["attention"].colour)
_BESIDE = {"computation": _COMPUTE.colour, "latency": _LATENCY.colour, "lag": "#BBBBBB", "reconfiguration": "#332288"}
_LINKS = ("#DDCC77", "#117733", "#44AA99", "#AA4499", "#999933", "#661100", "#6699CC", "#882255")
_NOTHING = np.zeros((0, 3))
_NAMED = 0.06  # of the width: a part that has room for its name


def replay_picture(spans: Rows, held: Rows, path: str | Path, title: str = "") -> Path:
    """Draw a replay; returns the path written.

    - `spans`: as `write_task_trace` takes them; of many ranks some are shown, those of the critical path first.
    - `held`: `what` and `holds_s`, parts of the makespan; those below 0 are left of 0. None: not drawn.

    `InputError` for no spans, or a path that is no picture or cannot be written.
    """
    return style.save(lambda: build_replayed(spans, held, title), path)


def build_replayed(spans: Rows, held: Rows, title: str = "") -> Figure:
    """The figure itself."""
    ranks = sorted({one["rank"] for one in spans if one["rank"] >= 0})
    if not ranks:
        raise InputError("spans must hold at least one of a rank, got none.")
    shown = shown_ranks(ranks, [one for one in spans if one["track"] == PATH])
    if len(shown) < len(ranks):
        title = f"{title} ({len(shown)} of {len(ranks)} ranks)".strip()
    tall = _LANE * len(shown) + 0.4
    figure = style.blank(_WIDE, tall + (3.0 if held else 1.6))
    figure.suptitle(title, fontsize=style.FONT + 2, fontweight="bold")
    if not held:
        _draw_ranks(figure.subplots(), spans, shown)
        return figure
    above, below = figure.subplots(2, height_ratios=[tall, 0.7])
    _draw_ranks(above, spans, shown)
    _draw_held(below, held)
    return figure


def shown_ranks(ranks: Sequence[int], path: Rows) -> list[int]:
    """All ranks; of many those that the critical path is longest on, and others evenly chosen."""
    if len(ranks) <= MOST_RANKS:
        return [*ranks]
    spent: dict[int, float] = {}
    for one in path:
        for rank in {one["args"]["rank"], one["args"].get("to")} & {*ranks}:
            spent[rank] = spent.get(rank, 0.0) + one["end_s"] - one["begin_s"]
    first = sorted(spent, key=lambda rank: (-spent[rank], rank))[:MOST_RANKS]
    others = [rank for rank in ranks if rank not in first]
    places = np.linspace(0, len(others) - 1, MOST_RANKS - len(first)).round().astype(int)
    return sorted([*first, *(others[place] for place in places)])


def _draw_ranks(axes: Axes, spans: Rows, shown: Sequence[int]) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    end_s = max(one["end_s"] for one in spans)
    unit, factor = time_unit(end_s)
    row = {rank: place for place, rank in enumerate(shown)}
    moves, computes = ("send", "receive"), ("compute",)
    drawn = (_LATENCY, moves, 1, 0.82), (_COMMUNICATION, moves, 2, 0.82), (_COMPUTE, computes, 3, 0.9)
    times = _times(spans, row)
    for look, tracks, order, tall in drawn:
        for rank in shown:
            begin, latency, end = np.concatenate([times.get((rank, track), _NOTHING) for track in tracks]).T
            united = _united(begin + (latency if look is _COMMUNICATION else 0), end) * factor
            bars = [(left, long) for left, long in united.tolist()]
            place = row[rank] - tall / 2, tall
            axes.broken_barh(bars, place, color=look.colour, linewidth=0, snap=False, zorder=order)
    _draw_path(axes, [one for one in spans if one["track"] == PATH], row, factor)
    axes.set_yticks(range(len(shown)), [f"rank {rank}" for rank in shown], fontsize=style.FONT - 2)
    axes.set(ylim=(len(shown) - 0.5, -0.5), xlim=(0, end_s * factor), xlabel=f"time [{unit}]")
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", zorder=0)
    colours = [Patch(facecolor=look.colour, label=look.label) for look in (_COMPUTE, _COMMUNICATION, _LATENCY)]
    key = [*colours, Line2D([], [], color=style.INK, linewidth=2, label="Critical path")]
    axes.legend(handles=key, loc="lower left", bbox_to_anchor=(0, 1), ncols=4, borderaxespad=0.2)


def _times(spans: Rows, ranks: Mapping[int, int]) -> dict[tuple[int, str], np.ndarray]:
    """Begin, latency in front and end [N 3] of everything, by rank and track."""
    found: dict[tuple[int, str], list[tuple[float, float, float]]] = {}
    for one in spans:
        if one["rank"] in ranks:
            times = one["begin_s"], one.get("latency_s", 0.0), one["end_s"]
            found.setdefault((one["rank"], one["track"]), []).append(times)
    return {key: np.array(times) for key, times in found.items()}


def _united(begin: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Begins and lengths [M 2] of the union of intervals; what takes no time is left out."""
    order = np.argsort(begin)
    begin, end = begin[order], end[order]
    begin, end = begin[end > begin], end[end > begin]
    reached = np.maximum.accumulate(end)
    apart = np.concatenate([[True], begin[1:] > reached[:-1]])[: len(begin)]
    last = np.append(np.flatnonzero(apart)[1:] - 1, len(begin) - 1)[: int(apart.sum())]
    return np.stack([begin[apart], reached[last] - begin[apart]], axis=1)


def _draw_path(axes: Axes, steps: Rows, row: Mapping[int, int], factor: float) -> None:
    """A line through the ranks on which the critical path runs, where these are shown."""
    x: list[float] = []
    y: list[float] = []
    for one in sorted(steps, key=lambda one: one["begin_s"]):
        rank, to = one["args"]["rank"], one["args"].get("to")
        x += [one["begin_s"] * factor, one["end_s"] * factor]
        y += [row.get(end, np.nan) for end in (rank, rank if to is None else to)]
    axes.plot(x, y, color=style.INK, linewidth=1.4, zorder=4, solid_joinstyle="round")


def _draw_held(axes: Axes, held: Rows) -> None:
    """One bar of all parts, the longest first; those below 0 to the left of it."""
    from matplotlib.patches import Patch

    total = sum(one["holds_s"] for one in held)
    unit, factor = time_unit(total)
    lefts, rights = (sum(pick(one["holds_s"], 0.0) for one in held) * factor for pick in (min, max))
    others, key = itertools.cycle(_LINKS), []
    ends = {True: 0.0, False: 0.0}
    for one in sorted(held, key=lambda one: -abs(one["holds_s"])):
        colour, length = _BESIDE.get(one["what"]) or next(others), one["holds_s"] * factor
        side = length > 0
        axes.barh(0, length, 0.8, left=ends[side], color=colour, edgecolor="white", linewidth=0.6)
        words = f"{one['what']} {one['holds_s'] / total:.1%}"
        if abs(length) > _NAMED * (rights - lefts):
            look = {"ha": "center", "va": "center", "fontsize": style.FONT - 1, "color": style.ink_on(colour)}
            axes.text(ends[side] + length / 2, 0, "\n".join(words.rsplit(" ", 1)), **look)
        else:
            key.append(Patch(facecolor=colour, label=words))
        ends[side] += length
    label = f"what holds the makespan [{unit}]"
    if lefts < 0:
        axes.axvline(total * factor, color=style.INK, linewidth=1)
        label += (
            f"; right minus left of 0 is the makespan, {total * factor:.4g} {unit}: parts hold for tiny changes only"
        )
    axes.set(yticks=[], xlim=(lefts, rights), xlabel=label)
    axes.spines["left"].set_visible(False)
    if key:
        axes.legend(handles=key, loc="lower left", bbox_to_anchor=(0, 1), ncols=min(len(key), 6), borderaxespad=0.2)
