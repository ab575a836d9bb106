"""Timelines: the lanes of one block with every bar named, and of a whole iteration, stage by stage, with a close-up.

A segment is a dict: `track`, `kind`, `label`, `start_s`, `end_s`; `direction` ("forward" or "backward") where it has
one, which a block also reads from the label; and `stage` and `place` in an iteration. Heights are inches.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from mfabric_jax import units
from mfabric_jax.checks import InputError
from mfabric_jax.report import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Segments = Sequence[Mapping[str, Any]]

_WIDE = 13.0
LEVELS = 6  # of names above a track


def _canvas(segments: Segments, heights: Sequence[float], title: str) -> tuple[Figure, list[Axes]]:
    """A figure with a title and axes of about so many inches over each other, in which inches count downwards."""
    if not segments:
        raise InputError("segments must hold at least one segment, got none.")
    figure = style.blank(_WIDE, sum(heights) + 0.65 * len(heights) + 0.85)
    figure.suptitle(title, fontsize=style.FONT + 2, fontweight="bold")
    every = figure.subplots(len(heights), squeeze=False, height_ratios=heights)[:, 0].tolist()
    for axes, tall in zip(every, heights, strict=True):
        axes.set(ylim=(tall, 0), yticks=[])
        axes.tick_params(axis="y", length=0, pad=2)
        axes.spines["left"].set_visible(False)
        axes.grid(axis="x", zorder=0)
    return figure, every


def _key(figure: Figure, looks: Sequence[style.Look]) -> None:
    from matplotlib.patches import Patch

    tight = {"columnspacing": 1.3, "handlelength": 1.5, "handletextpad": 0.5, "fontsize": style.FONT - 1}
    patches = [Patch(facecolor=one.colour, label=one.label) for one in looks]
    figure.legend(handles=patches, loc="outside lower center", ncols=len(patches), **tight)


# -- one block: every bar is named, inside if there is room, else above with a leader

_ROOM = 11.2  # inches of the time axis, about
_BAR, _LINE, _GAP, _HEAD = 0.46, 0.19, 0.2, 0.45
_FONT = style.FONT - 1
_WORDS = {"forward": "forward", "fwd": "forward", "backward": "backward", "bwd": "backward"}
_ORDER = ("compute", "network", "reconfiguration")
_MARGIN = 0.05  # kept free around a name
_TOUCHING = 0.000001  # bars that overlap by less lie on one lane


class DrawnBar(NamedTuple):
    """A segment of a block, in inches along the time axis."""

    track: str
    kind: str
    text: str
    direction: str | None
    left: float
    right: float

    @property
    def middle(self) -> float:
        return (self.left + self.right) / 2

    @property
    def holds_name(self) -> bool:
        return _inches(self.text) + 0.06 <= self.right - self.left


class Callout(NamedTuple):
    """A name above a track: its level, its ends and where its leader goes down."""

    level: int
    low: float
    high: float
    anchor: float


def block_timeline(segments: Segments, path: str | Path, title: str = "") -> Path:
    """Draw segments of one block over milliseconds, a row per track; returns the path written."""
    return style.save(lambda: build_block(segments, title), path)


def build_block(segments: Segments, title: str = "") -> Figure:
    """The figure itself."""
    start = min((float(s["start_s"]) for s in segments), default=0.0)
    per_inch = (max((float(s["end_s"]) for s in segments), default=0.0) - start) / _ROOM or 1.0
    bars = [_bar(segment, start, per_inch) for segment in segments]
    names = sorted({bar.track for bar in bars}, key=lambda t: (_ORDER.index(t) if t in _ORDER else len(_ORDER), t))
    tracks = {name: _track(bars, name) for name in names}
    tall = _HEAD + sum(_height(*track) + _GAP for track in tracks.values())
    figure, (axes,) = _canvas(segments, [tall], title)
    axes.set_xlim(0, _ROOM)
    _passes(axes, bars, tall)
    top, ticks = _HEAD, []
    for lanes, notes in tracks.values():
        top += _height(lanes, notes)
        ticks.append(top - len(lanes) * _BAR / 2)
        _draw_track(axes, lanes, notes, top - len(lanes) * _BAR)
        top += _GAP
    axes.set_yticks(ticks, names)
    _milliseconds(axes, start, per_inch)
    kinds = [name for name in style.KINDS if any(bar.kind == name for bar in bars)]
    _key(figure, [style.kind(name) for name in [*kinds, *sorted({bar.kind for bar in bars} - set(kinds))]])
    return figure


def _bar(segment: Mapping[str, Any], start: float, per_inch: float) -> DrawnBar:
    words = str(segment["label"]).split()
    directions = [_WORDS[word.lower()] for word in words if word.lower() in _WORDS]
    text = " ".join(word for word in words if word.lower() not in _WORDS) or str(segment["label"])
    left, right = ((float(segment[key]) - start) / per_inch for key in ("start_s", "end_s"))
    direction = segment.get("direction") or next(iter(directions), None)
    return DrawnBar(segment["track"], segment["kind"], text, direction, left, right)


def _inches(text: str) -> float:
    """About how long a text is."""
    return 0.58 * _FONT / 72 * len(text)


def _track(bars: Sequence[DrawnBar], name: str) -> tuple[list[list[DrawnBar]], list[tuple[DrawnBar, Callout]]]:
    """Bars of one track on as few lanes as keep them apart, and the names that do not fit inside them."""
    lanes: list[list[DrawnBar]] = []
    for bar in sorted((bar for bar in bars if bar.track == name), key=lambda b: (b.left, b.right)):
        free = next((lane for lane in lanes if lane[-1].right <= bar.left + _TOUCHING), None)
        if free is None:
            lanes.append(free := [])
        free.append(bar)
    outside = [bar for lane in lanes for bar in lane if not bar.holds_name and bar.right > bar.left]
    found = callouts([bar.middle for bar in outside], [_inches(bar.text) for bar in outside], _ROOM)
    return lanes, [(bar, callout) for bar, callout in zip(outside, found, strict=True) if callout]


def callouts(anchors: Sequence[float], widths: Sequence[float], room: float) -> list[Callout | None]:
    """For each name the lowest level on which it covers no other name; None without one.

    A name stands over its anchor if it is alone; in a crowd it runs from there to the right, the leftmost highest, so
    that no leader crosses a name; at the right edge it runs to the left.
    """
    placed: dict[int, Callout] = {}
    taken: list[style.Box] = []
    edge = [i for i, anchor in enumerate(anchors) if anchor + widths[i] > room]
    inner = [i for i in range(len(anchors)) if i not in edge]
    for index in (*sorted(edge, key=lambda i: anchors[i]), *sorted(inner, key=lambda i: -anchors[i])):
        anchor, width = anchors[index], widths[index]
        others = [(a, w) for i, (a, w) in enumerate(zip(anchors, widths, strict=True)) if i != index]
        alone = all(abs(a - anchor) > (w + width) / 2 for a, w in others)
        aside = 0.0 if alone else (width / 2 - _MARGIN) * (-1 if index in edge else 1)
        centre = min(max(anchor + aside, width / 2), max(room - width / 2, width / 2))
        levels = [(centre, level) for level in range(LEVELS)] if width <= room else []
        if free := style.free_place(levels, width + _MARGIN, 1.0, taken):
            placed[index] = Callout(int(free[1]), centre - width / 2, centre + width / 2, anchor)
    return [placed.get(index) for index in range(len(anchors))]


def _height(lanes: list[list[DrawnBar]], notes: list[tuple[DrawnBar, Callout]]) -> float:
    return max((callout.level + 1 for _, callout in notes), default=0) * _LINE + len(lanes) * _BAR


def _draw_track(axes: Axes, lanes: list[list[DrawnBar]], notes: list[tuple[DrawnBar, Callout]], top: float) -> None:
    tops = {bar: top + number * _BAR + 0.03 for number, lane in enumerate(lanes) for bar in lane}
    for bar, upper in tops.items():
        colour, height = style.kind(bar.kind).colour, _BAR - 0.06
        edge = {"color": colour, "edgecolor": "white", "linewidth": 0.5, "zorder": 3}
        axes.barh(upper + height / 2, bar.right - bar.left, height, left=bar.left, **edge)
        if bar.holds_name:
            inside = {"ha": "center", "va": "center", "fontsize": _FONT, "color": style.ink_on(colour), "zorder": 5}
            axes.text(bar.middle, upper + height / 2, bar.text, **inside)
    for bar, callout in notes:
        line = top - callout.level * _LINE - 0.02
        axes.plot([bar.middle] * 2, [line, tops[bar] + 0.06], color=style.INK, linewidth=0.6, zorder=4)
        centre = (callout.low + callout.high) / 2
        axes.text(centre, line, bar.text, ha="center", va="bottom", fontsize=_FONT, zorder=5)


def _passes(axes: Axes, bars: Sequence[DrawnBar], tall: float) -> None:
    """A heading over the forward and the backward pass, the latter on a tinted ground."""
    directed = sorted((bar for bar in bars if bar.direction), key=lambda b: b.left)
    for direction, group in itertools.groupby(directed, key=lambda b: str(b.direction)):
        run = list(group)
        left, right = run[0].left, max(bar.right for bar in run)
        tint = "#f1efe6" if direction == "backward" else "#f3f7fb"
        axes.fill_between([left, right], 0.0, tall, color=tint, linewidth=0, zorder=0)
        axes.annotate("", (left, 0.3), (right, 0.3), arrowprops={"arrowstyle": "<->", "color": style.FAINT})
        if _inches(direction) <= right - left:
            axes.text((left + right) / 2, 0.25, direction, ha="center", va="bottom", fontstyle="italic")


def _milliseconds(axes: Axes, start: float, per_inch: float) -> None:
    """Ticks at round milliseconds."""
    from matplotlib.ticker import MaxNLocator

    low, high = units.to_ms(start), units.to_ms(start + _ROOM * per_inch)
    marks = [t for t in MaxNLocator(10).tick_values(low, high) if low <= t <= high]
    axes.set_xticks([(units.ms(float(t)) - start) / per_inch for t in marks], [f"{t:g}" for t in marks])
    axes.set_xlabel("time [ms]")


# -- an iteration: most bars are thinner than a pixel, so they have neither edges nor names

LANES = ("compute", "EPS", "OCS")
AROUND = 13  # pieces of computation in the close-up, before and after its middle
_LANE_OF = {"NVSwitch": "compute", "waiting": "compute"}
_HEIGHT = {"compute": 0.26, "EPS": 0.15, "OCS": 0.15}
_APART = 0.12
_CLOSER = 1.6  # lanes of the close-up over those above
_LOOKS = {
    "forward": style.Look("Compute, forward", "#88CCEE"),
    "backward": style.Look("Compute, backward", "#3A87B7"),
    "weights": style.Look("Gradients of weights alone", "#1D3F58"),
    **{name: style.KINDS[name] for name in ("tp", "cp", "all-to-all", "dp", "reconfigure", "optimizer")},
    "switch": style.Look("Waiting for the switch", style.KINDS["waiting"].colour),
    "pipeline": style.Look("Pipeline bubble", "#ECECEC"),
}

_COMPUTED = ("forward", "backward", "weights")


def gantt(segments: Segments, path: str | Path, title: str = "") -> Path:
    """Draw an iteration, a group of lanes per stage, over seconds; returns the path written.

    Raises `InputError` for no segments, or a path that is no picture or cannot be written.
    """
    return style.save(lambda: build_iteration(segments, title), path)


def build_iteration(segments: Segments, title: str = "") -> Figure:
    """The figure itself: the iteration, and below it some blocks of the middle stage closer."""
    from matplotlib.patches import Rectangle

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
    """From when to when one stage is shown closer: around the start of the backward pass in the middle."""
    work = [segment for segment in segments if segment["track"] == "compute"] or list(segments)
    pairs = enumerate(itertools.pairwise(work), 1)
    turns = [n for n, (a, b) in pairs if a.get("direction") == "forward" != b.get("direction")]
    middle = turns[len(turns) // 2] if turns else len(work) // 2
    return work[max(middle - AROUND, 0)]["start_s"], work[min(middle + AROUND, len(work)) - 1]["end_s"]


def look_of(segment: Mapping[str, Any]) -> str:
    """What a segment is drawn as: a key of the colours."""
    what = segment["label"] if segment["kind"] == "waiting" else segment["kind"]
    return what if what in _LOOKS else segment["direction"]


def _lane(segment: Mapping[str, Any]) -> str:
    track = str(segment["track"])
    return _LANE_OF.get(track, track)


def _draw_stage(axes: Axes, segments: Segments, stage: int, lanes: Sequence[str], top: float) -> None:
    """The lanes of one stage with their names, each kind of bar in one collection."""
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
                }  # beside what servers move inside
                axes.broken_barh(spans, (top, 0.9 * _HEIGHT[lane]), linewidth=0, snap=False, **on_top)
        axes.text(-0.006, top + _HEIGHT[lane] / 2, lane, fontsize=style.FONT - 2.5, **beside)
        top += _HEIGHT[lane]
