"""Birkhoff-von Neumann: the shortest total duration, but far too many configurations.

Fill every line up to the busiest. Then subtract permutations of positive entries until nothing is left; each lasts as
long as its smallest entry. The durations sum to the busiest line divided by a circuit's rate; there are up to (S - 1)^2
+ 1 permutations. Packet NICs are not used. Source: Birkhoff 1946; as a scheduler of circuits: TMS of Mordia (SIGCOMM
2013).

No such theorem holds for circuits that carry both directions: there every step takes a largest matching of the pairs
left, which lasts as long as its smallest entry.
"""

from typing import Unpack

import numpy as np

from mfabric_jax.circuit_schedules.matching import largest, stuff_lines
from mfabric_jax.circuit_schedules.placing import ROUNDING, Placed, SwitchNetwork, busiest, problem_of
from mfabric_jax.circuit_schedules.whole_pair import first_to_end


def bvn(demand, **network: Unpack[SwitchNetwork]) -> Placed:
    """Schedule matchings whose seconds sum to the busiest line of the demand; arguments as in `registry`."""
    problem = problem_of(demand, **network)
    left = stuff_lines(problem.wanted) if problem.directed else problem.wanted.copy()
    smallest = ROUNDING * busiest(left)
    matchings, seconds = [], []
    while (left > smallest).any():
        matching = largest(left > smallest, problem.directed)
        cells = matching > 0
        if problem.directed and not (left[cells] > smallest).all():
            break  # only rounding errors are left
        seconds.append(float(left[cells].min()))
        matchings.append(matching)
        left = np.where(cells, left - seconds[-1], left)
    return first_to_end(problem._replace(packet=0.0), matchings, seconds)
