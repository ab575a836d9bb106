"""A binomial tree: in step k each of the first 2^k members sends to the one 2^k places on.

A scatter sends what the whole subtree is to have. Messages of one member follow each other. Reductions and gathers run
the tree backwards.
"""

import numpy as np

from mfabric_jax.tasks.collectives.pattern import Builds, Pattern, backwards, of_messages
from mfabric_jax.tasks.graph import Op


def _tree(server, scatter: bool) -> Pattern:
    """Message i goes to place i + 1."""
    n = len(server)
    dst = np.arange(1, n)
    hop = 2 ** np.floor(np.log2(dst)).astype(np.int64)
    src = dst - hop
    part = (1 + (n - 1 - dst) // (2 * hop)) / n if scatter else 1
    earlier = src + hop // 2  # the message of the same sender before this one
    forwards, follows = src > 0, hop // 2 > src
    pairs = [(src[forwards], dst[forwards]), (earlier[follows], dst[follows])]
    after = np.concatenate([np.stack(pair, axis=1) for pair in pairs]) - 1
    return of_messages(src, dst, part, after)


BINOMIAL_TREE: Builds = {
    Op.BROADCAST: lambda server: _tree(server, scatter=False),
    Op.SCATTER: lambda server: _tree(server, scatter=True),
    Op.REDUCE: lambda server: backwards(_tree(server, scatter=False)),
    Op.GATHER: lambda server: backwards(_tree(server, scatter=True)),
}
