"""Boxes around the names of a graph's nodes: how large, and where none covers another. All lengths are inches."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product

import numpy as np

from mfabric_jax.report.figures.graph_layout import apart, clear, hops, layers, ordered, stress

_WIDEST, _HIGHEST, _NARROWEST = 13.0, 9.5, 5.0
_MARGIN, _DOT = 0.3, 0.09
_FONTS = (9.0, 8.0, 7.0, 6.0)
_NAMED = 150  # nodes up to which names are tried, unless in layers


@dataclass
class Placed:
    """Centres [N 2] and widths [N] of the boxes; no font: dots without names.

    `upright`: names run upwards; `sag`: how far lines reach below all boxes.
    """

    place: np.ndarray
    width: np.ndarray
    height: float
    font: float
    upright: bool = False
    sag: float = 0.0

    @property
    def corners(self) -> tuple[np.ndarray, np.ndarray]:
        """Lower left and upper right of all boxes, with a margin."""
        half = np.stack([self.width / 2, np.full(len(self.width), self.height / 2)], axis=1)
        lowest = (self.place - half).min(axis=0) - np.array([0, self.sag])
        return lowest - _MARGIN, (self.place + half).max(axis=0) + _MARGIN

    @property
    def broad(self) -> float:
        """Width of the picture."""
        low, high = self.corners
        return max(_NARROWEST, float(high[0] - low[0]))


def placed_boxes(kinds: list[str], names: list[str], ends: np.ndarray) -> tuple[Placed, bool]:
    """Boxes with the largest font with which they fit."""
    distance = hops(len(kinds), ends)
    layer = layers(kinds, distance, ends)
    if layer is None:
        free = stress(distance)
        return _spread_freely(free, names, ends), False
    rows = ordered(layer, ends)
    for upright, font in product((False, True), _FONTS):
        placed, lines = _in_rows(rows, names, font, upright)
        if lines <= 2 and (font > _FONTS[-1] or upright):
            break
    return placed, True


def _box(letters: int, font: float) -> tuple[float, float]:
    """Width and height of a box around so many letters."""
    return max(0.26, (0.62 * letters * font + 7) / 72), (1.3 * font + 5) / 72


def _in_rows(rows: list[np.ndarray], names: list[str], font: float, upright: bool) -> tuple[Placed, int]:
    """A row for each layer, in several lines where it is long; and the most lines of a row."""
    boxes = np.array([_box(len(name), font) for name in names])
    width, height = (boxes[:, 1], boxes[:, 0].max()) if upright else (boxes[:, 0], boxes[:, 1].max())
    place, y = np.zeros((len(names), 2)), 0.0
    steps = [width[row].max() + 0.1 for row in rows]
    lines = [max(1, math.ceil(len(row) * step / _WIDEST)) for row, step in zip(rows, steps, strict=True)]
    across = [len(row) * step / n * (1.15 if n > 1 else 1) for row, step, n in zip(rows, steps, lines, strict=True)]
    broad = min(_WIDEST, max(max(across), 3.5))
    for row, n, own in zip(rows, lines, across, strict=True):
        reach = max(own, min(broad, own + 0.35 * broad)) if len(row) > 1 else own
        place[row, 0] = reach * ((np.arange(len(row)) + 0.5) / len(row) - 0.5)
        place[row, 1] = y + (np.arange(len(row)) % n) * (height + 0.14)
        y += (n - 1) * (height + 0.14) + height + min(1.6, max(0.75, broad / 9))
    return Placed(place, width, height, font, upright), max(lines)


def _spread_freely(free: np.ndarray, names: list[str], ends: np.ndarray) -> Placed:
    """Links about an inch long, boxes off each other; dots where names have no room."""
    along = np.linalg.norm(free[ends[:, 0]] - free[ends[:, 1]], axis=1) if len(ends) else np.ones(1)
    span = np.maximum(np.ptp(free, axis=0), 0.001)
    most = float((np.array([_WIDEST, _HIGHEST]) / span).min())
    for font in _FONTS if len(names) <= _NAMED else ():
        boxes = np.array([_box(len(name), font) for name in names])
        width, height = boxes[:, 0], float(boxes[:, 1].max())
        scale = min(most, max(1.0, 1.7 * float(np.median(width))) / max(float(np.median(along)), 0.001))
        place = apart(free * scale, width + 0.16, height + 0.14)
        fits = (np.ptp(place, axis=0) <= (_WIDEST + 1, _HIGHEST + 1)).all()
        if fits and clear(place, width + 0.04, height + 0.04):
            return Placed(place, width, height, font)
    width = np.full(len(names), _DOT)
    return Placed(apart(free * most, width, _DOT), width, _DOT, 0.0)
