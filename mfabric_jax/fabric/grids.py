"""Grids of nodes: their sizes, the links of their rings and fully meshed lines, and rings of chosen steps.

Nodes are numbered along the first dimension first.
"""

import math
import re
from collections.abc import Iterator
from itertools import cycle, islice

import numpy as np

from mfabric_jax.checks import InputError

Shape = tuple[int, ...]
MOST_DIMENSIONS = 8


def sizes(field: str, text: str) -> Shape:
    """Return the sizes in a text such as `4x4x8`. Raise `InputError` for any other text."""
    words = text.lower().split("x")
    if len(words) > MOST_DIMENSIONS or not all(re.fullmatch("[0-9]{1,9}", word) for word in words):
        raise InputError(f"{field} must be 1 to {MOST_DIMENSIONS} sizes such as 4x4x8, got {text!r:.80}.")
    return tuple(map(int, words))


def shape_text(shape: Shape) -> str:
    return "x".join(map(str, shape))


def near_equal(nodes: int, dimensions: int) -> Shape:
    """Return `dimensions` nearly equal sizes whose product is `nodes`, the largest first."""
    if dimensions == 1:
        return (nodes,)
    last = max(size for size in range(1, round(nodes ** (1 / dimensions)) + 1) if nodes % size == 0)
    return *near_equal(nodes // last, dimensions - 1), last


def coordinates(shape: Shape, node: np.ndarray | None = None) -> np.ndarray:
    """Return the coordinates [D N] of every node, or of some nodes [N]."""
    node = np.arange(math.prod(shape)) if node is None else node
    return np.stack(np.unravel_index(node, shape, order="F"))


def number(position: np.ndarray, shape: Shape) -> np.ndarray:
    """Return the nodes [N] at coordinates [D N]."""
    return np.asarray(np.ravel_multi_index(tuple(position), shape, order="F"))


def rings(shape: Shape, twisted: int = 0) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Yield the links along the rings of each dimension: (dimension, nodes [N], next node of each [N]).

    Where a ring of `twisted` nodes closes, every longer dimension shifts by `twisted`; 0: no ring is twisted. Source:
    Jouppi et al., TPU v4, ISCA 2023.
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
    """Yield the links of nodes that differ in exactly one dimension, in both directions: (dimension, tails, heads)."""
    for axis, size in enumerate(shape):
        heads = []
        for step in range(1, size):
            to = coordinates(shape)
            to[axis] = (to[axis] + step) % size
            heads.append(number(to, shape))
        if heads:
            yield axis, np.tile(np.arange(math.prod(shape)), len(heads)), np.concatenate(heads)


# ---------------------------------------------------------------------------------------------- rings over servers
def _coprime(servers: int, most: int) -> list[int]:
    return [step for step in range(1, most + 1) if math.gcd(step, servers) == 1]


def ascending_steps(servers: int, rings: int) -> list[int]:
    """Return the smallest steps that form rings (1, 3, 5 for 16 servers), repeating from 1 when there are no more."""
    return list(islice(cycle(_coprime(servers, max(servers - 1, 1))), rings))


def totient_steps(servers: int, rings: int) -> list[int]:
    """Return TopoOpt's choice of rings, with which few hops reach all servers.

    The first step is 1; each other is the step nearest to n^(1/`rings`) times the one before (ties: the smaller). Steps
    repeat from 1 when all are used.

    Source: Wang et al., NSDI 2023, TotientPerms and SelectPermutations. Deviation: circuits join both directions, so
    only the smaller of p and n - p is used.
    """
    left, steps = _coprime(servers, max(servers // 2, 1)), []
    while left and len(steps) < rings:
        wanted = steps[-1] * servers ** (1 / rings) if steps else 1
        steps.append(min(left, key=lambda step: abs(step - wanted)))
        left.remove(steps[-1])
    return list(islice(cycle(steps), rings))


def ring_circuits(servers: int, steps: list[int]) -> np.ndarray:
    """Return the circuits [n n] of rings with these steps; two servers have two circuits per ring, one server none."""
    count, here = np.zeros((servers, servers), np.int64), np.arange(servers)
    for step in steps if servers > 1 else []:
        there = (here + step) % servers
        np.add.at(count, (here, there), 1)
        np.add.at(count, (there, here), 1)
    return count
