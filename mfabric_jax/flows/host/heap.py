"""A binary heap of numbered things, each at most once, whose keys may change: `place` [N] finds one in the heap."""

from typing import NamedTuple

import numpy as np
from numba import njit

# No references are counted, since nothing is allocated; calls cost nothing, since all is put into one function.
SETTINGS = {"nogil": True, "error_model": "numpy", "_nrt": False, "forceinline": True}
compiled = njit(**SETTINGS)


class Heap(NamedTuple):
    """`key` [N]; the heap is `order[:size[0]]`; thing n stands at `place[n]` of it, or -1: not there."""

    key: np.ndarray
    order: np.ndarray
    place: np.ndarray
    size: np.ndarray


def new_heap(things: int) -> Heap:
    """One with nothing in it."""
    return Heap(
        np.full(things, np.inf), np.zeros(things, np.int64), np.full(things, -1, np.int64), np.zeros(1, np.int64)
    )


@compiled
def put(heap, thing, value):
    """Adds a thing, or changes its key."""
    key, order, place, size = heap
    at = place[thing]
    if at < 0:
        at = size[0]
        size[0] += 1
        order[at], place[thing] = thing, at
        key[thing] = np.inf
    if value <= key[thing]:
        key[thing] = value
        _rise(heap, at)
    else:
        key[thing] = value
        _sink(heap, at)


@compiled
def drop(heap, thing):
    """Takes a thing out, wherever it is, if it is there."""
    _, order, place, size = heap
    at = place[thing]
    if at < 0:
        return
    place[thing] = -1
    size[0] -= 1
    last = order[size[0]]
    if last == thing:
        return
    order[at], place[last] = last, at
    _rise(heap, at)
    _sink(heap, place[last])


@compiled
def _rise(heap, at):
    key, order, place, _ = heap
    thing = order[at]
    while at:
        above = (at - 1) // 2
        if key[order[above]] <= key[thing]:
            break
        order[at] = order[above]
        place[order[at]] = at
        at = above
    order[at], place[thing] = thing, at


@compiled
def _sink(heap, at):
    key, order, place, size = heap
    thing = order[at]
    while True:
        below = 2 * at + 1
        if below >= size[0]:
            break
        if below + 1 < size[0] and key[order[below + 1]] < key[order[below]]:
            below += 1
        if key[thing] <= key[order[below]]:
            break
        order[at] = order[below]
        place[order[at]] = at
        at = below
    order[at], place[thing] = thing, at
