"""A binary heap of numbered things, each at most once, whose keys may change."""

from typing import NamedTuple

import numpy as np
from numba import njit

# No references are counted, since nothing is allocated; calls cost nothing, since all is put into one function.
SETTINGS = {"nogil": True, "error_model": "numpy", "_nrt": False, "forceinline": True}
compiled = njit(**SETTINGS)


_ENTRY = np.dtype([("key", float), ("thing", np.int64)])


class Heap(NamedTuple):
    """`entries` [N] have `key` and `thing`; the first `size[0]` are the heap. Thing n is at `place[n]` of it, or -1."""

    entries: np.ndarray
    place: np.ndarray
    size: np.ndarray


def new_heap(things: int) -> Heap:
    """One with nothing in it."""
    return Heap(np.zeros(things, _ENTRY), np.full(things, -1, np.int32), np.zeros(1, np.int64))


@compiled
def least(heap):
    """The smallest key, infinity where there is none."""
    return heap.entries[0].key if heap.size[0] else np.inf


@compiled
def first(heap):
    """The thing with the smallest key."""
    return heap.entries[0].thing


@compiled
def put(heap, thing, key):
    """Adds a thing, or changes its key."""
    at = heap.place[thing]
    if at < 0:
        at = heap.size[0]
        heap.size[0] += 1
        _rise(heap, at, thing, key)
    elif key <= heap.entries[at].key:
        _rise(heap, at, thing, key)
    else:
        _sink(heap, at, thing, key)


@compiled
def drop(heap, thing):
    """Takes a thing out, wherever it is, if it is there."""
    at = heap.place[thing]
    if at < 0:
        return
    heap.place[thing] = -1
    heap.size[0] -= 1
    last, key = heap.entries[heap.size[0]].thing, heap.entries[heap.size[0]].key
    if last == thing:
        return
    if at and key < heap.entries[(at - 1) // 2].key:
        _rise(heap, at, last, key)
    else:
        _sink(heap, at, last, key)


@compiled
def _stand(heap, at, thing, key):
    heap.entries[at].key, heap.entries[at].thing = key, thing
    heap.place[thing] = at


@compiled
def _rise(heap, at, thing, key):
    """The place `at` is free: the thing goes there, or above."""
    entries = heap.entries
    while at:
        above = (at - 1) // 2
        if entries[above].key <= key:
            break
        _stand(heap, at, entries[above].thing, entries[above].key)
        at = above
    _stand(heap, at, thing, key)


@compiled
def _sink(heap, at, thing, key):
    """The place `at` is free: the thing goes there, or below."""
    entries = heap.entries
    while True:
        below = 2 * at + 1
        if below >= heap.size[0]:
            break
        if below + 1 < heap.size[0] and entries[below + 1].key < entries[below].key:
            below += 1
        if key <= entries[below].key:
            break
        _stand(heap, at, entries[below].thing, entries[below].key)
        at = below
    _stand(heap, at, thing, key)
