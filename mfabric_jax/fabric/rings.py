"""Rings of circuits over the servers of a pipeline stage: which steps they take, and the circuits.

A ring of step p joins server i with i + p modulo n, and takes two NICs of every server; p and n are coprime, so it
visits all of them. The steps p and n - p make the same ring.
"""

import math
from itertools import cycle, islice

import numpy as np

RING_NICS = 2  # of a server: one to each neighbour


def _coprime(servers: int, most: int) -> list[int]:
    return [step for step in range(1, most + 1) if math.gcd(step, servers) == 1]


def ascending_steps(servers: int, rings: int) -> list[int]:
    """1 and the next steps that are rings (1, 3, 5 of 16 servers), again from 1 where there are no more."""
    return list(islice(cycle(_coprime(servers, max(servers - 1, 1))), rings))


def totient_steps(servers: int, rings: int) -> list[int]:
    """TopoOpt's choice among the rings: the first has step 1, each further one is nearest to n^(1/`rings`) times the
    one before, so that few hops reach all servers. Ties: the smaller; again from 1 where all are taken.

    Source: Wang et al., NSDI 2023, TotientPerms and SelectPermutations. Deviation: circuits join both directions, so of
    p and n - p only the smaller is there.
    """
    left, steps = _coprime(servers, max(servers // 2, 1)), []
    while left and len(steps) < rings:
        wanted = steps[-1] * servers ** (1 / rings) if steps else 1
        steps.append(min(left, key=lambda step: abs(step - wanted)))
        left.remove(steps[-1])
    return list(islice(cycle(steps), rings))


def ring_circuits(servers: int, steps: list[int]) -> np.ndarray:
    """Circuits [n n] of rings with these steps; of two servers a ring is two circuits, of one none."""
    count, here = np.zeros((servers, servers), np.int64), np.arange(servers)
    for step in steps if servers > 1 else []:
        there = (here + step) % servers
        np.add.at(count, (here, there), 1)
        np.add.at(count, (there, here), 1)
    return count
