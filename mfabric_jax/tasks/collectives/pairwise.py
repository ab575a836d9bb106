"""All-to-all with one partner at a time: in step k everyone sends to the k-th next member, n - 1 steps."""

import numpy as np

from mfabric_jax.tasks.collectives.pattern import Builds, Pattern, rounds
from mfabric_jax.tasks.graph import Op


def _all_to_all(server) -> Pattern:
    n = len(server)
    return rounds((np.arange(n) + np.arange(1, n)[:, None]) % n, 1 / n)


PAIRWISE: Builds = {Op.ALL_TO_ALL: _all_to_all}
