"""The timeline of one block: what computes, what is on the network, when the circuits change.

Everything is laid out in inches, so that it is known which names fit inside their bars and which must stand outside.
A segment is a dict: `track`, `label`, `start_s`, `end_s`, `kind`, and optionally `direction` ("forward" or
"backward"), which is otherwise read from the label.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mfabric_jax import units
from mfabric_jax.checks import InputError
from mfabric_jax.report import style
from mfabric_jax.report.figures import callouts

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ROOM = 11.2  # inches of the time axis
_LEFT, _RIGHT = 1.5, 0.3
_BAR, _LINE, _GAP = 0.46, 0.19, 0.2  # inches: height of a bar, of a line of text, between tracks
_FONT = style.FONT - 1
_WORDS = {"forward": "forward", "fwd": "forward", "backward": "backward", "bwd": "backward"}
_ORDER = ("compute", "network", "reconfiguration")


@dataclass(frozen=True)
class Segment:
    """One bar, in inches along the time axis."""

    track: str
    kind: str
    text: str
    direction: str | None
    left: float
    right: float

    @property
    def middle(self) -> float:
        """Where its name points to."""
        return (self.left + self.right) / 2


def block_timeline(segments: Sequence[Mapping[str, Any]], path: str | Path, title: str = "") -> Path:
    """Draw segments as a Gantt chart over milliseconds, a row per track; returns the path written."""
    return style.save(lambda: build(segments, title), path)


def build(segments: Sequence[Mapping[str, Any]], title: str = "") -> Figure:
    """The figure itself."""
    bars, start, per_inch = _measured(segments)
    names = sorted({bar.track for bar in bars}, key=lambda t: (_ORDER.index(t) if t in _ORDER else len(_ORDER), t))
    tracks = {name: _lanes([bar for bar in bars if bar.track == name]) for name in names}
    notes = {name: _notes([bar for lane in lanes for bar in lane]) for name, lanes in tracks.items()}
    tall = 0.45 + sum(_height(tracks[name], notes[name]) for name in names)
    figure = style.blank(_LEFT + _ROOM + _RIGHT, tall + 1.6, arranged=False)
    whole = figure.get_figheight()
    width = _LEFT + _ROOM + _RIGHT
    axes = figure.add_axes((_LEFT / width, 1.0 / whole, _ROOM / width, tall / whole))
    axes.set(xlim=(0, _ROOM), ylim=(tall, 0))
    _passes(axes, bars, tall)
    y, ticks = 0.45, []
    for name in names:
        top = y + _levels(notes[name]) * _LINE
        _track(axes, tracks[name], notes[name], top)
        ticks.append(top + len(tracks[name]) * _BAR / 2)
        y += _height(tracks[name], notes[name])
    axes.set_yticks(ticks, names)
    _time_axis(axes, start, per_inch)
    _key(figure, bars)
    figure.suptitle(title, fontsize=style.FONT + 2, fontweight="bold", y=1 - 0.15 / whole, va="top")
    return figure


def _measured(segments: Sequence[Mapping[str, Any]]) -> tuple[list[Segment], float, float]:
    """Segments in inches, the time of the left end and seconds per inch."""
    if not segments:
        raise InputError("segments must hold at least one segment, got none.")
    start = min(float(s["start_s"]) for s in segments)
    per_inch = (max(float(s["end_s"]) for s in segments) - start) / _ROOM or 1.0
    bars = []
    for s in segments:
        left, right = ((float(s[key]) - start) / per_inch for key in ("start_s", "end_s"))
        words = str(s["label"]).split()
        found = [_WORDS[word.lower()] for word in words if word.lower() in _WORDS]
        text = " ".join(word for word in words if word.lower() not in _WORDS)
        direction = s.get("direction") or next(iter(found), None)
        bars.append(Segment(s["track"], s["kind"], text or str(s["label"]), direction, left, right))
    return bars, start, per_inch


def _lanes(bars: list[Segment]) -> list[list[Segment]]:
    """Bars of one track on as few lanes as keep them from covering each other."""
    lanes: list[list[Segment]] = []
    for bar in sorted(bars, key=lambda b: (b.left, b.right)):
        free = next((lane for lane in lanes if lane[-1].right <= bar.left + 1e-9), None)
        if free is None:
            lanes.append(free := [])
        free.append(bar)
    return lanes


def _inches(text: str) -> float:
    """About how long a text is."""
    return 0.58 * _FONT / 72 * len(text)


def _inside(bar: Segment) -> bool:
    return _inches(bar.text) + 0.06 <= bar.right - bar.left


def _notes(bars: list[Segment]) -> list[tuple[Segment, int, float]]:
    """Names that do not fit inside their bars: (bar, level above the track, centre)."""
    outside = [bar for bar in bars if not _inside(bar) and bar.right > bar.left]
    placed = callouts.place([b.middle for b in outside], [_inches(b.text) for b in outside], _ROOM)
    return [(bar, *where) for bar, where in zip(outside, placed, strict=True) if where]


def _levels(notes: list[tuple[Segment, int, float]]) -> int:
    return max((level + 1 for _, level, _ in notes), default=0)


def _height(lanes: list[list[Segment]], notes: list[tuple[Segment, int, float]]) -> float:
    return _levels(notes) * _LINE + len(lanes) * _BAR + _GAP


def _track(axes: Axes, lanes: list[list[Segment]], notes: list[tuple[Segment, int, float]], top: float) -> None:
    """Bars of one track with their names, inside or above with a leader."""
    tops = {}
    for number, lane in enumerate(lanes):
        for bar in lane:
            tops[bar] = top + number * _BAR + 0.03
            _bar(axes, bar, tops[bar])
    for bar, level, centre in notes:
        line = top - level * _LINE - 0.02
        axes.plot([bar.middle] * 2, [line, tops[bar] + 0.06], color=style.INK, linewidth=0.6, zorder=4)
        axes.text(centre, line, bar.text, ha="center", va="bottom", fontsize=_FONT, zorder=5)


def _bar(axes: Axes, bar: Segment, top: float) -> None:
    colour, height = style.kind(bar.kind).colour, _BAR - 0.06
    width = bar.right - bar.left
    axes.barh(top + height / 2, width, height, left=bar.left, color=colour, edgecolor="white", linewidth=0.5, zorder=3)
    if _inside(bar):
        place = {"ha": "center", "va": "center", "fontsize": _FONT, "color": style.ink_on(colour), "zorder": 5}
        axes.text(bar.middle, top + height / 2, bar.text, **place)


def _passes(axes: Axes, bars: list[Segment], tall: float) -> None:
    """Mark forward and backward: a heading over each, the backward pass on a tinted ground."""
    runs: list[list[Any]] = []
    for bar in sorted((b for b in bars if b.direction), key=lambda b: b.left):
        if runs and runs[-1][0] == bar.direction:
            runs[-1][2] = max(runs[-1][2], bar.right)
        else:
            runs.append([bar.direction, bar.left, bar.right])
    for direction, left, right in runs:
        tint = "#f1efe6" if direction == "backward" else "#f3f7fb"
        axes.fill_between([left, right], 0.0, tall, color=tint, linewidth=0, zorder=0)
        axes.annotate("", (left, 0.3), (right, 0.3), arrowprops={"arrowstyle": "<->", "color": style.FAINT})
        if _inches(direction) <= right - left:
            axes.text((left + right) / 2, 0.25, direction, ha="center", va="bottom", fontstyle="italic")


def _time_axis(axes: Axes, start: float, per_inch: float) -> None:
    """Ticks at round milliseconds."""
    from matplotlib.ticker import MaxNLocator

    low, high = units.to_ms(start), units.to_ms(start + _ROOM * per_inch)
    marks = [t for t in MaxNLocator(10).tick_values(low, high) if low <= t <= high]
    axes.set_xticks([(units.ms(float(t)) - start) / per_inch for t in marks], [f"{t:g}" for t in marks])
    axes.set_xlabel("time [ms]")
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.grid(axis="x", zorder=1)


def _key(figure: Figure, bars: list[Segment]) -> None:
    from matplotlib.patches import Patch

    kinds = [name for name in style.KINDS if any(bar.kind == name for bar in bars)]
    kinds += sorted({bar.kind for bar in bars} - set(kinds))
    handles = [Patch(facecolor=style.kind(name).colour, label=style.kind(name).label) for name in kinds]
    figure.legend(handles=handles, loc="lower center", ncols=len(handles))
