"""Every member sends to every other one at once; with a root, the root to all, or all to the root."""

import numpy as np

from mfabric_jax.tasks.collectives.pattern import Builds, Pattern, backwards, in_turn, of_messages
from mfabric_jax.tasks.graph import Op


def _exchange(server) -> Pattern:
    """1 / n from each to each."""
    n = len(server)
    src, dst = np.nonzero(~np.eye(n, dtype=bool))
    return of_messages(src, dst, 1 / n)


def _all_reduce(server) -> Pattern:
    return in_turn(len(server), _exchange(server), _exchange(server))


def _scatter(server) -> Pattern:
    n = len(server)
    return of_messages(0, np.arange(1, n), 1 / n)


def _broadcast(server) -> Pattern:
    return of_messages(0, np.arange(1, len(server)), 1)


DIRECT: Builds = {
    Op.ALL_REDUCE: _all_reduce,
    Op.ALL_GATHER: _exchange,
    Op.REDUCE_SCATTER: _exchange,
    Op.ALL_TO_ALL: _exchange,
    Op.SCATTER: _scatter,
    Op.GATHER: lambda server: backwards(_scatter(server)),
    Op.BROADCAST: _broadcast,
    Op.REDUCE: lambda server: backwards(_broadcast(server)),
}
