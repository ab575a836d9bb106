"""Timelines: the lanes of one block and of a whole iteration, stage by stage, with a close-up.

A segment is a dict of `track`, `kind`, `label`, `start_s`, `end_s` and optionally `direction` ("forward" or
"backward"; a block also reads it from the label). In an iteration it has `stage` and `place`. Heights are inches.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle

from mfabric_jax import units
from mfabric_jax.checks import InputError
from mfabric_jax.report import charts, style
from mfabric_jax.report.drawing import drawn, paper
from mfabric_jax.report.drawing.drawn import picture_writer
from mfabric_jax.report.numerals import percent, time_unit
from mfabric_jax.report.perfetto import PATH, in_lanes

Segments = Sequence[Mapping[str, Any]]

_WIDE = 13.0


def _canvas(segments: Segments, heights: Sequence[float], title: str) -> tuple[Figure, list[Axes]]:
    if not segments:
        raise InputError("segments must hold at least one segment, got none.")
    figure = paper.blank(_WIDE, sum(heights) + 0.65 * len(heights) + 0.85)
    paper.set_heading(figure, title)
    every = figure.subplots(len(heights), squeeze=False, height_ratios=heights)[:, 0].tolist()
    for axes, tall in zip(every, heights, strict=True):
        axes.set(ylim=(tall, 0), yticks=[])
        axes.tick_params(axis="y", length=0, pad=2)
        axes.spines["left"].set_visible(False)
        axes.grid(axis="x", zorder=0)
    return figure, every


def _key(figure: Figure, looks: Sequence[style.Look]) -> None:
    tight = {"columnspacing": 1.3, "handlelength": 1.5, "handletextpad": 0.5, "fontsize": style.FONT - 1}
    patches = [Patch(facecolor=look.colour, label=look.label) for look in looks]
    figure.legend(handles=patches, loc="outside lower center", ncols=len(patches), **tight)


# -- one block: a name stands in its bar if it fits, else above it if it covers no other name

_BAR, _LINE, _GAP, _HEAD = 0.46, 0.22, 0.2, 0.45
_FONT = style.FONT - 1
_WORDS = {"forward": "forward", "fwd": "forward", "backward": "backward", "bwd": "backward"}
_ORDER = ("compute", "network", "reconfiguration")


class DrawnBar(NamedTuple):
    kind: str
    text: str
    direction: str | None
    begin_s: float
    end_s: float


def build_block(segments: Segments, title: str = "") -> Figure:
    """Draw the segments of one block over milliseconds, a row per track."""
    tracks: dict[str, list[DrawnBar]] = {}
    for segment in segments:
        tracks.setdefault(segment["track"], []).append(_bar(segment))
    names = sorted(tracks, key=lambda name: (_ORDER.index(name) if name in _ORDER else len(_ORDER), name))
    bars = [bar for track in tracks.values() for bar in track]
    left, right = min((bar.begin_s for bar in bars), default=0.0), max((bar.end_s for bar in bars), default=1.0)
    letter = 0.58 * _FONT / 72 * (right - left) / (_WIDE - 1.8)  # width of a letter in milliseconds
    lanes = {name: in_lanes([bar._asdict() for bar in tracks[name]]) for name in names}
    tall = _HEAD + sum(len(lanes[name]) * _BAR + _LINE + _GAP for name in names)
    figure, (axes,) = _canvas(segments, [tall], title)
    axes.set(xlim=(left, right), xlabel="time [ms]")
    _passes(axes, bars, tall, letter)
    top, ticks = _HEAD, []
    for name in names:
        top += _LINE
        ticks.append(top + len(lanes[name]) * _BAR / 2)
        for lane in lanes[name]:
            _draw_lane(axes, [DrawnBar(**bar) for bar in lane], top, letter)
            top += _BAR
        _names_above(axes, tracks[name], ticks[-1] - len(lanes[name]) * _BAR / 2, letter)
        top += _GAP
    axes.set_yticks(ticks, names)
    kinds = [name for name in style.KINDS if any(bar.kind == name for bar in bars)]
    _key(figure, [style.kind(name) for name in [*kinds, *sorted({bar.kind for bar in bars} - set(kinds))]])
    return figure


def _bar(segment: Mapping[str, Any]) -> DrawnBar:
    words = str(segment["label"]).split()
    directions = [_WORDS[word.lower()] for word in words if word.lower() in _WORDS]
    text = " ".join(word for word in words if word.lower() not in _WORDS) or str(segment["label"])
    direction = segment.get("direction") or next(iter(directions), None)
    begin, end = (units.to_ms(float(segment[key])) for key in ("start_s", "end_s"))
    return DrawnBar(segment["kind"], text, direction, begin, end)


def _width(bar: DrawnBar, letter: float) -> float:
    return letter * (len(bar.text) + 1)


def _draw_lane(axes: Axes, bars: Sequence[DrawnBar], top: float, letter: float) -> None:
    for bar in bars:
        colour, long = style.kind(bar.kind).colour, bar.end_s - bar.begin_s
        edge = {"color": colour, "edgecolor": "white", "linewidth": 0.5, "zorder": 3}
        axes.barh(top + _BAR / 2, long, _BAR - 0.06, left=bar.begin_s, **edge)
        if _width(bar, letter) <= long:
            inside = {"ha": "center", "va": "center", "fontsize": _FONT, "color": style.ink_on(colour), "zorder": 5}
            axes.text(bar.begin_s + long / 2, top + _BAR / 2, bar.text, **inside)


def _names_above(axes: Axes, bars: Sequence[DrawnBar], top: float, letter: float) -> None:
    right = axes.get_xlim()[1]
    reached = axes.get_xlim()[0] - letter
    for bar in sorted(bars, key=lambda bar: bar.begin_s):
        wide = _width(bar, letter)
        low = min(bar.begin_s, right - wide)
        if 0 < bar.end_s - bar.begin_s < wide and low >= reached:
            axes.text(low, top + 0.01, bar.text, va="bottom", fontsize=_FONT, zorder=5)
            reached = low + wide


def _passes(axes: Axes, bars: Sequence[DrawnBar], tall: float, letter: float) -> None:
    directed = sorted((bar for bar in bars if bar.direction), key=lambda bar: bar.begin_s)
    for direction, group in itertools.groupby(directed, key=lambda bar: str(bar.direction)):
        run = list(group)
        left, right = run[0].begin_s, max(bar.end_s for bar in run)
        tint = "#f1efe6" if direction == "backward" else "#f3f7fb"
        axes.fill_between([left, right], 0.0, tall, color=tint, linewidth=0, zorder=0)
        axes.annotate("", (left, 0.3), (right, 0.3), arrowprops={"arrowstyle": "<->", "color": style.FAINT})
        if letter * len(direction) <= right - left:
            axes.text((left + right) / 2, 0.25, direction, ha="center", va="bottom", fontstyle="italic")


# -- an iteration: most bars are thinner than a pixel, so they have no edges and no names

LANES = ("compute", "EPS", "OCS")
AROUND = 13  # pieces of computation in the close-up, on each side of its middle
_LANE_OF = {"NVSwitch": "compute", "waiting": "compute"}
_HEIGHT = {"compute": 0.26, "EPS": 0.15, "OCS": 0.15}
_APART = 0.12
_CLOSER = 1.6  # magnification of lanes in the close-up
_LOOKS = {
    "forward": style.Look("Compute, forward", "#88CCEE"),
    "backward": style.Look("Compute, backward", "#3A87B7"),
    "weights": style.Look("Weight gradients only", "#1D3F58"),
    **{name: style.KINDS[name] for name in ("tp", "cp", "counts", "all-to-all", "dp", "reconfigure", "optimizer")},
    "switch": style.Look("Waiting for the switch", style.KINDS["waiting"].colour),
    "pipeline": style.Look("Pipeline bubble", "#ECECEC"),
}

_COMPUTED = ("forward", "backward", "weights")


def build_iteration(segments: Segments, title: str = "") -> Figure:
    """Draw an iteration over seconds: a group of lanes per stage, and a close-up of some blocks of a stage."""
    stages = sorted({segment["stage"] for segment in segments})
    lanes = [lane for lane in LANES if lane == "compute" or any(_lane(segment) == lane for segment in segments)]
    group = sum(_HEIGHT[lane] for lane in lanes) + _APART
    figure, (above, below) = _canvas(segments, [group * len(stages) + _APART, _CLOSER * (group + _APART)], title)
    middle = stages[len(stages) // 2]
    window = close_up([segment for segment in segments if segment["stage"] == middle])
    for number, stage in enumerate(stages):
        _draw_stage(above, segments, stage, lanes, number * group + _APART)
    above.set(xlim=(0, max(segment["end_s"] for segment in segments)), xlabel="time [s]")
    corner = window[0], stages.index(middle) * group + _APART / 2
    frame = {"fill": False, "edgecolor": style.INK, "linewidth": 1.1, "zorder": 4}
    above.add_patch(Rectangle(corner, window[1] - window[0], group, **frame))
    _draw_stage(below, segments, middle, lanes, _APART)
    below.set(xlim=window, ylim=(group + _APART, 0), xlabel="time [s]")
    drawn = {look_of(segment) for segment in segments}
    _key(figure, [own for name, own in _LOOKS.items() if name in drawn])
    return figure


def close_up(segments: Segments) -> tuple[float, float]:
    """Return the start and end of a stage's close-up, around the start of its middle backward pass."""
    work = [segment for segment in segments if segment["track"] == "compute"] or list(segments)
    pairs = enumerate(itertools.pairwise(work), 1)
    backward_starts = [n for n, (a, b) in pairs if a.get("direction") == "forward" != b.get("direction")]
    middle = backward_starts[len(backward_starts) // 2] if backward_starts else len(work) // 2
    return work[max(middle - AROUND, 0)]["start_s"], work[min(middle + AROUND, len(work)) - 1]["end_s"]


def look_of(segment: Mapping[str, Any]) -> str:
    what = segment["label"] if segment["kind"] == "waiting" else segment["kind"]
    return what if what in _LOOKS else segment["direction"]


def _lane(segment: Mapping[str, Any]) -> str:
    track = str(segment["track"])
    return _LANE_OF.get(track, track)


def _draw_stage(axes: Axes, segments: Segments, stage: int, lanes: Sequence[str], top: float) -> None:
    beside = {"transform": axes.get_yaxis_transform(), "ha": "right", "va": "center"}
    middle = top + sum(_HEIGHT[lane] for lane in lanes) / 2
    axes.text(-0.064, middle, f"stage {stage}", fontsize=style.FONT, **beside)
    for lane in lanes:
        here = [segment for segment in segments if segment["stage"] == stage and _lane(segment) == lane]
        for name, own in _LOOKS.items():
            spans = [(s["start_s"], s["end_s"] - s["start_s"]) for s in here if look_of(s) == name]
            if spans:
                on_top = {
                    "zorder": 2.5 if name in _COMPUTED else 2,
                    "color": own.colour,
                }  # drawn over transfers inside servers
                axes.broken_barh(spans, (top, 0.9 * _HEIGHT[lane]), linewidth=0, snap=False, **on_top)
        axes.text(-0.006, top + _HEIGHT[lane] / 2, lane, fontsize=style.FONT - 2.5, **beside)
        top += _HEIGHT[lane]


# -- a replayed task graph: ranks over time, the critical path, and shares of the makespan

MOST_RANKS = 24
_LANE = 0.24
_COMMUNICATION = style.Look("Exposed communication", style.KINDS["all-to-all"].colour)
_LATENCY = style.Look("Exposed latency", style.mix_with_white(_COMMUNICATION.colour, 0.6))
_COMPUTE = style.Look("Computation", style.KINDS["attention"].colour)
_BESIDE = {"computation": _COMPUTE.colour, "latency": _LATENCY.colour, "lag": "#BBBBBB", "reconfiguration": "#332288"}
_LINKS = ("#DDCC77", "#117733", "#44AA99", "#AA4499", "#999933", "#661100", "#6699CC", "#882255")


def build_replayed(spans: Segments, parts: Segments, title: str = "") -> Figure:
    """Draw a replay: ranks over time, and below them the parts of the makespan.

    `spans`: as in `write_task_trace`; if ranks are many, some are shown, those on the critical path first.
    `parts`: shares of the makespan, rows of `what` and `holds_s`; empty: not drawn. Raise InputError if no span has a
    rank.
    """
    ranks = sorted({span["rank"] for span in spans if span["rank"] >= 0})
    if not ranks:
        raise InputError("spans must hold at least one with a rank, got none.")
    shown = choose_ranks(ranks, [span for span in spans if span["track"] == PATH])
    if len(shown) < len(ranks):
        title = f"{title} ({len(shown)} of {len(ranks)} ranks)".strip()
    tall = _LANE * len(shown) + 0.4
    parts_tall = 0.3 * len(parts) + 0.3
    figure = paper.blank(_WIDE, tall + 1.6 + (parts_tall + 0.8 if parts else 0.0))
    paper.set_heading(figure, title)
    if not parts:
        _draw_ranks(figure.subplots(), spans, shown)
        return figure
    above, below = figure.subplots(2, height_ratios=[tall, parts_tall])
    _draw_ranks(above, spans, shown)
    drawn.draw_panel(below, _makespan_panel(parts))
    return figure


def choose_ranks(ranks: Sequence[int], path: Segments) -> list[int]:
    """Return all ranks; of many, the ranks that hold the critical path longest, and others at even distances."""
    if len(ranks) <= MOST_RANKS:
        return [*ranks]
    spent: dict[int, float] = {}
    for span in path:
        for rank in {span["args"]["rank"], span["args"].get("to")} & {*ranks}:
            spent[rank] = spent.get(rank, 0.0) + span["end_s"] - span["begin_s"]
    first = sorted(spent, key=lambda rank: (-spent[rank], rank))[:MOST_RANKS]
    others = [rank for rank in ranks if rank not in first]
    places = np.linspace(0, len(others) - 1, MOST_RANKS - len(first)).round().astype(int)
    return sorted([*first, *(others[index] for index in places)])


def _draw_ranks(axes: Axes, spans: Segments, shown: Sequence[int]) -> None:
    end_s = max(span["end_s"] for span in spans)
    unit, factor = time_unit(end_s)
    row = {rank: line for line, rank in enumerate(shown)}
    moves, computes = ("send", "receive"), ("compute",)
    drawn = (_LATENCY, moves, 1, 0.82), (_COMMUNICATION, moves, 2, 0.82), (_COMPUTE, computes, 3, 0.9)
    for look, tracks, order, tall in drawn:
        hidden = "latency_s" if look is _COMMUNICATION else ""
        bars: dict[int, list[tuple[float, float]]] = {rank: [] for rank in shown}
        for span in spans:
            if span["rank"] in row and span["track"] in tracks:
                begin = span["begin_s"] + span.get(hidden, 0.0)
                bars[span["rank"]].append((begin * factor, (span["end_s"] - begin) * factor))
        for rank, lengths in bars.items():
            extent = row[rank] - tall / 2, tall
            axes.broken_barh(lengths, extent, color=look.colour, linewidth=0, snap=False, zorder=order)
    _draw_path(axes, [span for span in spans if span["track"] == PATH], row, factor)
    axes.set_yticks(range(len(shown)), [f"rank {rank}" for rank in shown], fontsize=style.FONT - 2)
    axes.set(ylim=(len(shown) - 0.5, -0.5), xlim=(0, end_s * factor), xlabel=f"time [{unit}]")
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", zorder=0)
    colours = [Patch(facecolor=look.colour, label=look.label) for look in (_COMPUTE, _COMMUNICATION, _LATENCY)]
    key = [*colours, Line2D([], [], color=style.INK, linewidth=2, label="Critical path")]
    axes.legend(handles=key, loc="lower left", bbox_to_anchor=(0, 1), ncols=4, borderaxespad=0.2)


def _draw_path(axes: Axes, steps: Segments, row: Mapping[int, int], factor: float) -> None:
    x: list[float] = []
    y: list[float] = []
    for step in sorted(steps, key=lambda step: step["begin_s"]):
        rank, to = step["args"]["rank"], step["args"].get("to")
        x += [step["begin_s"] * factor, step["end_s"] * factor]
        y += [row.get(end, np.nan) for end in (rank, rank if to is None else to)]
    axes.plot(x, y, color=style.INK, linewidth=1.4, zorder=4, solid_joinstyle="round")


def _makespan_panel(parts: Segments) -> charts.Panel:
    total, others = sum(part["holds_s"] for part in parts), itertools.cycle(_LINKS)
    unit, factor = time_unit(total)
    ranked = sorted(parts, key=lambda part: -abs(part["holds_s"]))
    bars, totals = [], []
    for row, part in enumerate(ranked):
        value = part["holds_s"] * factor
        look = style.Look(part["what"], _BESIDE.get(part["what"]) or next(others))
        bars.append(charts.Bar(look, row, min(0.0, value), max(0.0, value), ""))
        totals.append((max(0.0, value), percent(part["holds_s"] / total)))
    below = "; for tiny changes only" if any(part["holds_s"] < 0 for part in parts) else ""
    names = [part["what"] for part in ranked]
    return charts.Panel("", f"parts of the makespan [{unit}]{below}", bars=bars, names=names, totals=totals)


block_timeline, gantt, replay_picture = (
    picture_writer(build_block),
    picture_writer(build_iteration),
    picture_writer(build_replayed, data=2),
)
