"""All-reduce on two binary trees: each reduces one half of the bytes to its root and broadcasts it. Made for chunks.

A member that forwards in one tree is a leaf of the other (but for one of each), so every member sends about the bytes
once up and once down. Source: Sanders, Speck, Träff, Two-tree algorithms for full bandwidth broadcast, reduction and
scan (2009), with the numbering that NCCL uses: the second tree is the first one mirrored, or shifted where n is odd.
"""

import numpy as np

from mfabric_jax.tasks.collectives.pattern import Builds, Pattern, of_messages, on_each
from mfabric_jax.tasks.graph import Op


def _all_reduce(server) -> Pattern:
    n = len(server)
    one = np.arange(n)
    other = n - 1 - one if n % 2 == 0 else (one + 1) % n
    return on_each(_up_and_down(n), np.stack([one, other]), part=0.5)


def _up_and_down(n: int) -> Pattern:
    """To the root at place 0 and back: message i goes up from place i + 1, message n - 1 + i down to it."""
    place = np.arange(1, n)
    parent = _parents(n)
    inner = parent > 0
    up, down = place - 1, n + place - 2
    above = parent[inner] - 1
    top = up[~inner]
    turn = np.stack(np.meshgrid(top, down[~inner], indexing="ij"), axis=-1).reshape(-1, 2)
    after = [np.stack([up[inner], up[above]], axis=1), turn, np.stack([down[above], down[inner]], axis=1)]
    return of_messages(
        np.concatenate([place, parent]), np.concatenate([parent, place]), 1, np.concatenate(after).astype(np.int64)
    )


def _parents(n: int) -> np.ndarray:
    """[n - 1]: of places 1, 2, ...: in order, leaves are the odd ones."""
    place = np.arange(1, n)
    low = place & -place
    parent = (place ^ low) | (2 * low)
    return np.where(parent < n, parent, place ^ low)


DOUBLE_TREE: Builds = {Op.ALL_REDUCE: _all_reduce}
