"""A binary heap of numbered items with changeable keys; each item is in it at most once."""

from typing import Any, NamedTuple

import numpy as np

from mfabric_jax.support.loops import part_of_loops

compiled = part_of_loops(set())


_ENTRY = np.dtype([("key", float), ("thing", np.int64)])


class Heap(NamedTuple):
    """The first `size[0]` `entries` (`key`, `thing`) [N] are the heap; item n is at `position[n]`; -1: absent."""

    entries: Any
    position: np.ndarray
    size: np.ndarray


def new_heap(things: int) -> Heap:
    return Heap(np.zeros(things, _ENTRY), np.full(things, -1, np.int32), np.zeros(1, np.int64))


@compiled
def least(heap: Heap):
    """Return the smallest key; infinity if the heap is empty."""
    return heap.entries[0].key if heap.size[0] else np.inf


@compiled
def first(heap: Heap):
    return heap.entries[0].thing


@compiled
def put(heap: Heap, thing: int, key: float):
    slot = heap.position[thing]
    if slot < 0:
        slot = heap.size[0]
        heap.size[0] += 1
        _rise(heap, slot, thing, key)
    elif key <= heap.entries[slot].key:
        _rise(heap, slot, thing, key)
    else:
        _sink(heap, slot, thing, key)


@compiled
def drop(heap: Heap, thing: int):
    slot = heap.position[thing]
    if slot < 0:
        return
    heap.position[thing] = -1
    heap.size[0] -= 1
    last, key = heap.entries[heap.size[0]].thing, heap.entries[heap.size[0]].key
    if last == thing:
        return
    if slot and key < heap.entries[(slot - 1) // 2].key:
        _rise(heap, slot, last, key)
    else:
        _sink(heap, slot, last, key)


@compiled
def _stand(heap: Heap, slot: int, thing: int, key: float):
    heap.entries[slot].key, heap.entries[slot].thing = key, thing
    heap.position[thing] = slot


@compiled
def _rise(heap: Heap, slot: int, thing: int, key: float):
    entries = heap.entries
    while slot:
        above = (slot - 1) // 2
        if entries[above].key <= key:
            break
        _stand(heap, slot, entries[above].thing, entries[above].key)
        slot = above
    _stand(heap, slot, thing, key)


@compiled
def _sink(heap: Heap, slot: int, thing: int, key: float):
    entries = heap.entries
    while True:
        below = 2 * slot + 1
        if below >= heap.size[0]:
            break
        if below + 1 < heap.size[0] and entries[below + 1].key < entries[below].key:
            below += 1
        if key <= entries[below].key:
            break
        _stand(heap, slot, entries[below].thing, entries[below].key)
        slot = below
    _stand(heap, slot, thing, key)
