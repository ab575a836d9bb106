"""Short labels beside points, each where it covers nothing; what finds no such place is left out."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from mfabric_jax.report import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Box = tuple[float, float, float, float]  # left, bottom, right, top in points

_FONT = style.FONT - 2
_SIDES = ((1, 1), (-1, -1), (1, -1), (-1, 1), (0, 1), (0, -1), (1, 0), (-1, 0))
_REACHES = (1.0, 1.5)
_MARKER, _DOT = 4.0, 1.0  # half the side of what a marker and a piece of line cover, in points


def beside(axes: Axes, points: Sequence[tuple[float, float]], texts: Sequence[str], colours: Sequence[str]) -> None:
    """Write a text beside each point, the first ones first. The layout of the figure must be final."""
    scale = 72 / axes.figure.dpi
    places = [tuple(axes.transData.transform(point) * scale) for point in points]
    taken = [_box(x, y, 2 * _MARKER, 2 * _MARKER) for x, y in places] + _lines(axes, scale)
    for point, (x, y), text, colour in zip(points, places, texts, colours, strict=True):
        width, height = 0.6 * _FONT * len(text) + 2, 0.85 * _FONT
        for dx, dy in _offsets(width, height):
            box = _box(x + dx, y + dy, width, height)
            if not any(_overlap(box, other) for other in taken):
                taken.append(box)
                place = {"xytext": (dx, dy), "textcoords": "offset points", "ha": "center", "va": "center"}
                note = axes.annotate(text, point, fontsize=_FONT, color=colour, zorder=5, **place)
                note.set_in_layout(False)
                break


def _offsets(width: float, height: float) -> list[tuple[float, float]]:
    """Where the centre of a label may be, from its point, the best first."""
    return [
        (sx * (3 + (1 + width / 2) * reach), sy * (3 + (1 + height / 2) * reach))
        for reach in _REACHES
        for sx, sy in _SIDES
    ]


def _lines(axes: Axes, scale: float) -> list[Box]:
    """What the lines between points cover, in small pieces."""
    boxes = []
    for line in axes.get_lines():
        corners = line.get_transform().transform(line.get_xydata()) * scale
        for start, end in pairwise(corners):
            steps = max(2, int(np.hypot(*(end - start)) / (2 * _DOT)))
            boxes += [_box(x, y, 2 * _DOT, 2 * _DOT) for x, y in np.linspace(start, end, steps)]
    return boxes


def _box(x: float, y: float, width: float, height: float) -> Box:
    return x - width / 2, y - height / 2, x + width / 2, y + height / 2


def _overlap(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
