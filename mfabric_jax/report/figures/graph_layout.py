"""Where the nodes of a graph are drawn: in layers if it is a hierarchy, else as far apart as their links say. NumPy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

ENDPOINTS = ("gpu", "host", "server")
BELOW = {"nvswitch": -1, "optics": -2}  # what stands below the endpoints, whatever it is joined to
_SWEEPS, _STEPS, _PUSHES = 12, 300, 400
_STILL = 0.0001  # hops: smaller moves end the search
_FLAT = 0.25  # part of the links that may stay inside a layer


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

    Source: Gansner, Koren and North, Graph Drawing 2004.
    """
    size = len(distance)
    if size == 1:
        return np.zeros((1, 2))
    apart = np.where(distance < 0, max(1.5, 0.75 * distance.max()), distance).astype(float)
    weight = 1 / np.where(apart > 0, apart, 1.0) ** 2
    np.fill_diagonal(weight, 0)
    laplacian = np.diag(weight.sum(axis=1)) - weight
    inverse = np.linalg.inv(laplacian + 1 / size)  # of all places with their mean at 0, as they stay
    place = _scaled(apart) + np.random.default_rng(0).normal(0, 0.01, (size, 2))
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
    return _signed(place @ np.linalg.svd(place, full_matrices=False)[2].T)


def _scaled(apart: np.ndarray) -> np.ndarray:
    """Classical scaling: the two main axes of the distances."""
    size = len(apart)
    centre = np.eye(size) - 1 / size
    values, vectors = np.linalg.eigh(-0.5 * centre @ apart**2 @ centre)
    return vectors[:, -2:] * np.sqrt(np.maximum(values[-2:], 0))


def _signed(place: np.ndarray) -> np.ndarray:
    """Mirrored so that the first node is on the upper left."""
    return place * np.where(place[0] * np.array([-1, 1]) < 0, -1, 1)


def apart(place: np.ndarray, width: np.ndarray, height: float) -> np.ndarray:
    """Boxes pushed off each other, each pair along the axis on which it overlaps less."""
    place = place.copy()
    wide, high = (width[:, None] + width[None]) / 2, np.full((len(width),) * 2, height)
    for _ in range(_PUSHES):
        between = place[:, None] - place[None]
        over = np.stack([wide, high], axis=2) - np.abs(between)
        hit = (over > 0.0001).all(axis=2) & ~np.eye(len(place), dtype=bool)
        if not hit.any():
            break
        first = np.sign(np.arange(len(place))[:, None] - np.arange(len(place))[None])[:, :, None]
        side = np.where(between == 0, first, np.sign(between))
        along = over[:, :, :1] < over[:, :, 1:]
        move = np.where(np.concatenate([along, ~along], axis=2), side * over, 0.0) * hit[:, :, None]
        place += 0.5 * move.sum(axis=1) / np.maximum(hit.sum(axis=1), 1)[:, None]
    return place


def clear(place: np.ndarray, width: np.ndarray, height: float) -> bool:
    """Whether no two boxes overlap."""
    between = np.abs(place[:, None] - place[None])
    wide = (width[:, None] + width[None]) / 2
    hit = (between[:, :, 0] < wide - 0.01) & (between[:, :, 1] < height - 0.01)
    return not (hit & ~np.eye(len(place), dtype=bool)).any()
