"""The timeline of an iteration: lanes of computation, packet switches and circuits for every stage, and a close-up.

A segment is a dict: `stage`, `track`, `kind`, `label`, `start_s`, `end_s`, and `direction` and `place` where it has
them. In a long iteration most bars are thinner than a pixel: they have neither edges nor names, and fade as they get
thinner. The close-up shows the same lanes of the middle stage for some blocks around the start of a backward pass.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mfabric_jax.checks import InputError
from mfabric_jax.report import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LANES = ("compute", "EPS", "OCS")
AROUND = 13  # pieces of computation in the close-up, before and after its middle
_LANE_OF = {"NVSwitch": "compute", "waiting": "compute"}
_WIDE, _LEFT, _RIGHT = 12.5, 1.4, 0.3  # inches
_HEIGHT = {"compute": 0.26, "EPS": 0.15, "OCS": 0.15}
_GAP, _TOP, _AXIS, _KEY = 0.12, 0.5, 0.65, 0.35
_CLOSER = 1.6  # lanes of the close-up over those above
_LOOKS = {
    "forward": style.Look("Compute, forward", "#88CCEE"),
    "backward": style.Look("Compute, backward", "#3A87B7"),
    "tp": style.KINDS["tp"],
    "all-to-all": style.KINDS["all-to-all"],
    "dp": style.KINDS["dp"],
    "reconfigure": style.KINDS["reconfigure"],
    "switch": style.Look("Waiting for the switch", style.KINDS["waiting"].colour),
    "pipeline": style.Look("Pipeline bubble", "#ECECEC"),
}
Segments = Sequence[Mapping[str, Any]]


def gantt(segments: Segments, path: str | Path, title: str = "") -> Path:
    """Draw an iteration, a group of lanes per stage, over seconds; returns the path written.

    Raises `InputError` for no segments, or a path that is no picture or cannot be written.
    """
    return style.save(lambda: build(segments, title), path)


def build(segments: Segments, title: str = "") -> Figure:
    """The figure itself: the iteration, the close-up below."""
    if not segments:
        raise InputError("segments must hold at least one segment, got none.")
    stages = sorted({one["stage"] for one in segments})
    middle = stages[len(stages) // 2]
    window = close_up([one for one in segments if one["stage"] == middle])
    lanes = [lane for lane in LANES if lane == "compute" or any(_lane(one) == lane for one in segments)]
    group = sum(_HEIGHT[lane] for lane in lanes) + _GAP
    tall, closer = group * len(stages) + _GAP, _CLOSER * (group + _GAP)
    whole = _TOP + tall + _AXIS + closer + _AXIS + _KEY
    figure = style.blank(_WIDE, whole, arranged=False)
    figure.suptitle(title, fontsize=style.FONT + 2, fontweight="bold", y=1 - 0.15 / whole, va="top")
    above = _panel(figure, _TOP, tall, 1.0)
    for number, stage in enumerate(stages):
        _group(above, segments, stage, lanes, number * group + _GAP)
    above.set(xlim=(0, max(one["end_s"] for one in segments)))
    _mark(above, window, stages.index(middle) * group + _GAP / 2, group)
    below = _panel(figure, _TOP + tall + _AXIS, closer, _CLOSER)
    _group(below, segments, middle, lanes, _GAP)
    below.set(xlim=window)
    _key(figure, segments)
    return figure


def close_up(segments: Segments) -> tuple[float, float]:
    """From when to when one stage is shown closer: around the start of the backward pass in the middle."""
    work = [one for one in segments if one["track"] == "compute"] or list(segments)
    pairs = enumerate(itertools.pairwise(work), 1)
    turns = [n for n, (a, b) in pairs if a.get("direction") == "forward" != b.get("direction")]
    middle = turns[len(turns) // 2] if turns else len(work) // 2
    return work[max(middle - AROUND, 0)]["start_s"], work[min(middle + AROUND, len(work)) - 1]["end_s"]


def look(one: Mapping[str, Any]) -> str:
    """What a segment is drawn as: a key of the colours."""
    what = one["label"] if one["kind"] == "waiting" else one["kind"]
    return what if what in _LOOKS else one["direction"]


def _lane(one: Mapping[str, Any]) -> str:
    track = str(one["track"])
    return _LANE_OF.get(track, track)


def _panel(figure: Figure, top: float, tall: float, scale: float) -> Axes:
    """Axes so many inches below the top of the figure, with inches of unscaled lanes downwards."""
    whole = figure.get_figheight()
    place = (_LEFT / _WIDE, 1 - (top + tall) / whole, (_WIDE - _LEFT - _RIGHT) / _WIDE, tall / whole)
    axes = figure.add_axes(place)
    axes.set(ylim=(tall / scale, 0), xlabel="time [s]", yticks=[])
    axes.tick_params(axis="y", length=0, pad=2)
    axes.spines["left"].set_visible(False)
    axes.grid(axis="x", zorder=0)
    return axes


def _group(axes: Axes, segments: Segments, stage: int, lanes: Sequence[str], top: float) -> None:
    """The lanes of one stage with their names, each kind of bar in one collection."""
    beside = {"transform": axes.get_yaxis_transform(), "ha": "right", "va": "center"}
    middle = top + sum(_HEIGHT[lane] for lane in lanes) / 2
    axes.text(-0.064, middle, f"stage {stage}", fontsize=style.FONT, **beside)
    for lane in lanes:
        here = [one for one in segments if one["stage"] == stage and _lane(one) == lane]
        for name, drawn in _LOOKS.items():
            spans = [(one["start_s"], one["end_s"] - one["start_s"]) for one in here if look(one) == name]
            if spans:
                at = (top, 0.9 * _HEIGHT[lane])
                axes.broken_barh(spans, at, color=drawn.colour, linewidth=0, zorder=2, snap=False)
        axes.text(-0.006, top + _HEIGHT[lane] / 2, lane, fontsize=style.FONT - 2.5, **beside)
        top += _HEIGHT[lane]


def _mark(axes: Axes, window: tuple[float, float], top: float, group: float) -> None:
    """Where the close-up is."""
    from matplotlib.patches import Rectangle

    start, end = window
    frame = {"fill": False, "edgecolor": style.INK, "linewidth": 1.1, "zorder": 4}
    axes.add_patch(Rectangle((start, top), end - start, group, **frame))


def _key(figure: Figure, segments: Segments) -> None:
    from matplotlib.patches import Patch

    found = {look(one) for one in segments}
    handles = [Patch(facecolor=one.colour, label=one.label) for name, one in _LOOKS.items() if name in found]
    tight = {"columnspacing": 1.3, "handlelength": 1.5, "handletextpad": 0.5, "fontsize": style.FONT - 1.5}
    figure.legend(handles=handles, loc="lower center", ncols=len(handles), **tight)
