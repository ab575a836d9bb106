"""Where the nodes of a graph are drawn: in layers if it is a hierarchy, else as far apart as their links say.

Then boxes around their names: how large, and where none covers another. Lengths of boxes are inches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

ENDPOINTS = ("gpu", "host", "server")
BELOW = {"nvswitch": -1, "optics": -2}  # what stands below the endpoints, whatever it is joined to
_SWEEPS, _STEPS, _PUSHES = 12, 300, 400
_STILL = 0.0001  # hops: smaller moves end the search
_CLOSE = 0.0001  # inches: boxes that overlap by less do not
_FLAT = 0.25  # part of the links that may stay inside a layer
_WIDEST, _HIGHEST, _NARROWEST = 13.0, 9.5, 5.0
_MARGIN, _DOT = 0.3, 0.09
_FONTS = (9.0, 8.0, 7.0, 6.0)
_NAMED = 150  # nodes up to which names are tried, unless in layers
_DEPTH = (0.8, 0.55)  # of a step: how far the whole third dimension leads to the right and up
_STEP = 0.42  # between nodes that have places of their own


def hops(size: int, pairs: np.ndarray) -> np.ndarray:
    """[N N] links of the shortest paths; -1 where there is none."""
    joined = np.zeros((size, size), bool)
    joined[pairs[:, 0], pairs[:, 1]] = joined[pairs[:, 1], pairs[:, 0]] = True
    distance = np.where(np.eye(size, dtype=bool), 0, -1)
    reached, front, steps = np.eye(size, dtype=bool), np.eye(size, dtype=bool), 0
    while front.any():
        steps += 1
        front = (front.astype(np.float32) @ joined > 0) & ~reached
        distance[front] = steps
        reached |= front
    return distance


def layers(kinds: Sequence[str], distance: np.ndarray, pairs: np.ndarray) -> np.ndarray | None:
    """[N] height of each node above the endpoints; None for a graph that is no hierarchy."""
    ends = np.array([kind in ENDPOINTS for kind in kinds])
    below = np.array([BELOW.get(kind, 0) for kind in kinds])
    if not ends.any() or ends.all():
        return None
    far = np.where(distance[:, ends] < 0, len(kinds), distance[:, ends]).min(axis=1)
    if (far[below == 0] == len(kinds)).any():
        return None
    layer = np.where(below < 0, below, far)
    inside = (layer[pairs[:, 0]] == layer[pairs[:, 1]]) & (layer[pairs[:, 0]] >= 0)
    return None if inside.sum() > _FLAT * len(pairs) else np.unique(layer, return_inverse=True)[1]


def ordered(layer: np.ndarray, pairs: np.ndarray) -> list[np.ndarray]:
    """The nodes of each layer from left to right, so that few links cross: each over the mean of its neighbours."""
    size = len(layer)
    joined = np.zeros((size, size))
    np.add.at(joined, (pairs[:, 0], pairs[:, 1]), 1.0)
    joined = joined + joined.T
    rows = [np.flatnonzero(layer == height) for height in range(layer.max() + 1)]
    x = np.zeros(size)
    for row in rows:
        x[row] = _even(len(row))
    for sweep in range(_SWEEPS):
        for height, row in list(enumerate(rows))[:: 1 if sweep % 2 == 0 else -1]:
            other = joined[row] * (layer != height)
            weight = other.sum(axis=1)
            wanted = np.where(weight > 0, other @ x / np.maximum(weight, 1), x[row])
            rows[height] = row[np.lexsort((row, np.round(wanted, 9)))]
            x[rows[height]] = _even(len(row))
    return rows


def _even(count: int) -> np.ndarray:
    return (np.arange(count) + 0.5) / count


def stress(distance: np.ndarray) -> np.ndarray:
    """[N 2] places whose distances come near the hops (stress majorisation from classical scaling), wider than high.

    The first node is on the upper left. Source: Gansner, Koren and North, Graph Drawing 2004.
    """
    size = len(distance)
    if size == 1:
        return np.zeros((1, 2))
    apart = np.where(distance < 0, max(1.5, 0.75 * distance.max()), distance).astype(float)
    weight = 1 / np.where(apart > 0, apart, 1.0) ** 2
    np.fill_diagonal(weight, 0)
    laplacian = np.diag(weight.sum(axis=1)) - weight
    inverse = np.linalg.inv(laplacian + 1 / size)  # of all places with their mean at 0, as they stay
    centre = np.eye(size) - 1 / size
    values, vectors = np.linalg.eigh(-0.5 * centre @ apart**2 @ centre)
    place = vectors[:, -2:] * np.sqrt(np.maximum(values[-2:], 0))  # the two main axes of the distances
    place += np.random.default_rng(0).normal(0, 0.01, (size, 2))
    for _ in range(_STEPS):
        before = place
        now = np.linalg.norm(place[:, None] - place[None], axis=2)
        pull = -weight * apart / np.where(now > 0, now, 1.0)
        np.fill_diagonal(pull, 0)
        np.fill_diagonal(pull, -pull.sum(axis=1))
        place = inverse @ (pull @ place)
        if np.abs(place - before).max() < _STILL:
            break
    place -= place.mean(axis=0)
    place = place @ np.linalg.svd(place, full_matrices=False)[2].T
    return place * np.where(place[0] * np.array([-1, 1]) < 0, -1, 1)


def apart(place: np.ndarray, width: np.ndarray, height: float) -> np.ndarray:
    """Boxes pushed off each other, each pair along the axis on which it overlaps less."""
    place = place.copy()
    first = np.sign(np.subtract.outer(np.arange(len(place)), np.arange(len(place))))[:, :, None]
    for _ in range(_PUSHES):
        over = _overlaps(place, width, height)
        hit = (over > _CLOSE).all(axis=2, keepdims=True)
        if not hit.any():
            break
        between = place[:, None] - place[None]
        side = np.where(between == 0, first, np.sign(between))
        along = over[:, :, :1] < over[:, :, 1:]
        move = np.where(hit & np.concatenate([along, ~along], axis=2), side * over, 0.0)
        place += 0.5 * move.sum(axis=1) / np.maximum(hit.sum(axis=1), 1)
    return place


def _overlaps(place: np.ndarray, width: np.ndarray, height: float) -> np.ndarray:
    """[N N 2] by how much each box overlaps each other one along each axis; itself it does not."""
    size = np.stack([np.add.outer(width, width) / 2, np.full((len(width),) * 2, height)], axis=2)
    return np.where(np.eye(len(width), dtype=bool)[:, :, None], -1.0, size - np.abs(place[:, None] - place[None]))


# -- boxes


@dataclass
class Placed:
    """Centres [N 2] and widths [N] of the boxes; no font: dots without names.

    `upright`: names run upwards.
    """

    place: np.ndarray
    width: np.ndarray
    height: float
    font: float
    upright: bool = False

    def corners(self, paths: Sequence[np.ndarray] = ()) -> tuple[np.ndarray, np.ndarray]:
        """Lower left and upper right of all boxes and lines, with a margin, and wide enough for words."""
        half = np.stack([self.width / 2, np.full(len(self.width), self.height / 2)], axis=1)
        every = np.concatenate([self.place - half, self.place + half, *paths])
        low, high = every.min(axis=0) - _MARGIN, every.max(axis=0) + _MARGIN
        more = np.array([max(0.0, _NARROWEST - (high - low)[0]) / 2, 0.0])
        return low - more, high + more


def placed_boxes(
    kinds: list[str], names: list[str], ends: np.ndarray, places: np.ndarray | None = None
) -> tuple[Placed, bool]:
    """Boxes with the largest font with which they fit, and whether they stand in layers.

    `places` [N, 2 or 3]: where nodes stand, the third dimension going into the depth; else their links decide.
    """
    if places is not None:
        given = np.asarray(places, dtype=float)
        flat = given[:, :2]
        if given.shape[1] == 3:
            flat = flat + given[:, 2:] * _DEPTH / (np.ptp(given[:, 2]) + 1)
        between = np.linalg.norm(flat[:, None] - flat[None], axis=2)
        nearest = between[between > 0].min(initial=1.0)
        return _spread(flat, names, ends, _STEP / nearest), False
    distance = hops(len(kinds), ends)
    layer = layers(kinds, distance, ends)
    if layer is None:
        return _spread(stress(distance), names, ends), False
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


def _spread(free: np.ndarray, names: list[str], ends: np.ndarray, least: float = 0.0) -> Placed:
    """Links about an inch long, boxes off each other; dots where names have no room."""
    along = np.linalg.norm(free[ends[:, 0]] - free[ends[:, 1]], axis=1) if len(ends) else np.ones(1)
    span = np.maximum(np.ptp(free, axis=0), 0.001)
    most = float((np.array([_WIDEST, _HIGHEST]) / span).min())
    for font in _FONTS if len(names) <= _NAMED else ():
        boxes = np.array([_box(len(name), font) for name in names])
        width, height = boxes[:, 0], float(boxes[:, 1].max())
        scale = min(most, max(least, 1.0, 1.7 * float(np.median(width))) / max(float(np.median(along)), 0.001))
        place = apart(free * scale, width + 0.16, height + 0.14)
        fits = (np.ptp(place, axis=0) <= (_WIDEST + 1, _HIGHEST + 1)).all()
        if fits and not (_overlaps(place, width + 0.04, height + 0.04) > 0.01).all(axis=2).any():
            return Placed(place, width, height, font)
    width = np.full(len(names), _DOT)
    return Placed(apart(free * most, width, _DOT), width, _DOT, 0.0)
