"""A barrier: in step k everyone tells the member 2^k places on, without bytes.

Source: Hensgen, Finkel, Manber, Two algorithms for barrier synchronization (1988).
"""

import numpy as np

from mfabric_jax.tasks.collectives.pattern import Builds, Pattern, rounds
from mfabric_jax.tasks.graph import Op


def _barrier(server) -> Pattern:
    n = len(server)
    hops = 2 ** np.arange((n - 1).bit_length())
    return rounds((np.arange(n) + hops[:, None]) % n, 0)


DISSEMINATION: Builds = {Op.BARRIER: _barrier}
