"""Around a ring in the order of the group: n - 1 steps for a reduce-scatter or an all-gather, twice that for both.

All-reduce as in Patarasu & Yuan (JPDC 2009): every member sends 2 (n - 1) / n of the bytes. The all-to-all sends one
block at a time, and a block for the k-th next member crosses k links of the ring: n (n - 1) / 2 steps.
"""

import numpy as np

from mfabric_jax.tasks.collectives.pattern import Build, Builds, rounds
from mfabric_jax.tasks.graph import Op


def _steps(count) -> Build:
    """`count`(n) steps, in each of which every member sends a block to the next one."""

    def build(server):
        n = len(server)
        return rounds(np.tile((np.arange(n) + 1) % n, (count(n), 1)), 1 / n)

    return build


RING: Builds = {
    Op.ALL_REDUCE: _steps(lambda n: 2 * (n - 1)),
    Op.ALL_GATHER: _steps(lambda n: n - 1),
    Op.REDUCE_SCATTER: _steps(lambda n: n - 1),
    Op.ALL_TO_ALL: _steps(lambda n: n * (n - 1) // 2),
}
