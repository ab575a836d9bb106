"""Recursive halving and doubling: log2 n steps with partners at distances n/2, ..., 1, or back.

Source: Thakur, Rabenseifner, Gropp, Optimization of collective communication operations in MPICH (2005). Where n is no
power of two, each member beyond the largest one first gives what it has to a member of the core, and gets the result
back at the end.
"""

import numpy as np

from mfabric_jax.tasks.collectives.pattern import Builds, Pattern, in_turn, of_messages, rounds
from mfabric_jax.tasks.graph import Op


def _core(n: int) -> int:
    return 1 << (n.bit_length() - 1)


def _halving(blocks: np.ndarray) -> Pattern:
    """A reduce-scatter: everyone sends the half that its partner goes on with. `blocks` [p]: part of the bytes."""
    return _steps(blocks, 2 ** np.arange(_log2(blocks))[::-1], of_partner=True)


def _doubling(blocks: np.ndarray) -> Pattern:
    """An all-gather: everyone sends all that it has so far."""
    return _steps(blocks, 2 ** np.arange(_log2(blocks)), of_partner=False)


def _log2(blocks: np.ndarray) -> int:
    return len(blocks).bit_length() - 1


def _steps(blocks: np.ndarray, distance: np.ndarray, of_partner: bool) -> Pattern:
    distance = distance[:, None]
    partner = np.arange(len(blocks)) ^ distance
    first = (partner if of_partner else np.arange(len(blocks))) // distance * distance
    below = np.concatenate([[0], np.cumsum(blocks)])
    return rounds(partner, below[first + distance] - below[first])


def _folded(n: int, core: list[Pattern], before: float, behind: float) -> Pattern:
    """The core's phases; members beyond it send and receive those parts of the bytes."""
    p = _core(n)
    extra = np.arange(p, n)
    if not extra.size:
        return in_turn(n, *core)
    return in_turn(n, of_messages(extra, extra - p, before), *core, of_messages(extra - p, extra, behind))


def _blocks(n: int) -> np.ndarray:
    """[p]: one block of 1 / n for each member of the core, two for those that stand for a member beyond it."""
    p = _core(n)
    return (1 + (np.arange(p) < n - p)) / n


def _all_reduce(server) -> Pattern:
    p = _core(len(server))
    even = np.full(p, 1 / p)
    return _folded(len(server), [_halving(even), _doubling(even)], 1, 1)


def _all_gather(server) -> Pattern:
    n = len(server)
    return _folded(n, [_doubling(_blocks(n))], 1 / n, (n - 1) / n)


def _reduce_scatter(server) -> Pattern:
    n = len(server)
    return _folded(n, [_halving(_blocks(n))], (n - 1) / n, 1 / n)


HALVING_DOUBLING: Builds = {
    Op.ALL_REDUCE: _all_reduce,
    Op.ALL_GATHER: _all_gather,
    Op.REDUCE_SCATTER: _reduce_scatter,
}
