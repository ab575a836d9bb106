"""Nodes in a grid: its sizes, and the links of rings and of fully joined lines in every dimension.

Nodes are numbered along the first dimension first.
"""

import math
import re
from collections.abc import Iterator

import numpy as np

from mfabric_jax.checks import InputError

Shape = tuple[int, ...]
MOST_DIMENSIONS = 8


def sizes(field: str, text: str) -> Shape:
    """The sizes in `4x4x8`. `InputError` for other words."""
    words = text.lower().split("x")
    if len(words) > MOST_DIMENSIONS or not all(re.fullmatch("[0-9]{1,9}", word) for word in words):
        raise InputError(f"{field} must be 1 to {MOST_DIMENSIONS} sizes such as 4x4x8, got {text!r:.80}.")
    return tuple(map(int, words))


def written(shape: Shape) -> str:
    return "x".join(map(str, shape))


def near_equal(nodes: int, dimensions: int) -> Shape:
    """So many sizes whose product is `nodes`, near each other, the largest first."""
    if dimensions == 1:
        return (nodes,)
    last = max(size for size in range(1, round(nodes ** (1 / dimensions)) + 1) if nodes % size == 0)
    return *near_equal(nodes // last, dimensions - 1), last


def coordinates(shape: Shape, node: np.ndarray | None = None) -> np.ndarray:
    """[D N] of every node, or of those asked for."""
    node = np.arange(math.prod(shape)) if node is None else node
    return np.stack(np.unravel_index(node, shape, order="F"))


def number(at: np.ndarray, shape: Shape) -> np.ndarray:
    """Nodes [N] at coordinates [D N]."""
    return np.asarray(np.ravel_multi_index(tuple(at), shape, order="F"))


def rings(shape: Shape, twisted: int = 0) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Links along rings, dimension by dimension: (dimension, nodes [N], the next of each [N]).

    Closing a ring of `twisted` nodes (0: of none) shifts every longer dimension by as many. Source: Jouppi et al., TPU
    v4, ISCA 2023.
    """
    for axis, size in enumerate(shape):
        if size > 1:
            to = coordinates(shape)
            to[axis] += 1
            if size == twisted:
                longer = [other for other, its in enumerate(shape) if its > twisted]
                to[longer] += twisted * (to[axis] == size)
            yield axis, np.arange(math.prod(shape)), number(to % np.array(shape)[:, None], shape)


def lines(shape: Shape) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Links of nodes that differ in one dimension alone, both ways: (dimension, tails, heads)."""
    for axis, size in enumerate(shape):
        heads = []
        for step in range(1, size):
            to = coordinates(shape)
            to[axis] = (to[axis] + step) % size
            heads.append(number(to, shape))
        if heads:
            yield axis, np.tile(np.arange(math.prod(shape)), len(heads)), np.concatenate(heads)
