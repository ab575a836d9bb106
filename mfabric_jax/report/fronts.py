"""Pareto fronts: which points no other point beats."""

from collections.abc import Sequence
from typing import Any

import numpy as np

Point = tuple[float, float]


def unbeaten(values: Any) -> np.ndarray:
    """[N] bool: no other of the points [N K] is at most as large in every value, and smaller in one.

    Equal points beat neither each other nor themselves.
    """
    points, place = np.unique(np.asarray(values, dtype=float), axis=0, return_inverse=True)
    if points.shape[1] == 2:  # whoever beats a point comes before it
        least = np.minimum.accumulate(points[:, 1])
        kept = np.concatenate([[True], points[1:, 1] < least[:-1]])
        return kept[place.reshape(-1)]
    kept, left = np.zeros(len(points), bool), np.arange(len(points))
    while left.size:
        kept[left[0]] = True
        left = left[(points[left] < points[left[0]]).any(axis=1)]
    return kept[place.reshape(-1)]


def front(points: Sequence[Point]) -> list[Point]:
    """The points that no other beats, by rising first value; equal points once."""
    kept = unbeaten(points) if points else ()
    return sorted({point for point, best in zip(points, kept, strict=True) if best})
