"""Birkhoff-von Neumann: the shortest total duration, and far too many configurations.

Fill every line up to the busiest, then repeat: any permutation inside of the support, as long as its smallest entry.
The durations add up to the busiest line over a circuit's rate; there are up to S^2 - 2 S + 2 permutations. Packet NICs
are not used. Source: Birkhoff 1946; as a scheduler of circuits: TMS of Mordia (SIGCOMM 2013).

Circuits of both directions have no such theorem: a largest matching of the pairs left, as long as its smallest.
"""

from typing import Unpack

import numpy as np

from mfabric_jax.circuit_schedules.matching import largest, stuffed
from mfabric_jax.circuit_schedules.placing import ROUNDING, Network, Placed, busiest, problem_of
from mfabric_jax.circuit_schedules.whole_pair import first_to_end


def bvn(demand, **network: Unpack[Network]) -> Placed:
    """Matchings of the stuffed demand whose seconds sum to its busiest line; arguments as of `registry`."""
    problem = problem_of(demand, **network)
    left = stuffed(problem.wanted) if problem.directed else problem.wanted.copy()
    smallest = ROUNDING * busiest(left)
    matchings, seconds = [], []
    while (left > smallest).any():
        matching = largest(left > smallest, problem.directed)
        cells = matching > 0
        if problem.directed and not (left[cells] > smallest).all():
            break  # errors of rounding are left
        seconds.append(float(left[cells].min()))
        matchings.append(matching)
        left = np.where(cells, left - seconds[-1], left)
    return first_to_end(problem._replace(packet=0.0), matchings, seconds)
