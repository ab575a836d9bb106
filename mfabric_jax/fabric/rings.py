"""Rings over servers: their steps, and the circuits that they take."""

import math
from itertools import cycle, islice

import numpy as np


def _coprime(servers: int, most: int) -> list[int]:
    return [step for step in range(1, most + 1) if math.gcd(step, servers) == 1]


def ascending_steps(servers: int, rings: int) -> list[int]:
    """1 and the next steps that form rings (1, 3, 5 for 16 servers), repeating from 1 when there are no more."""
    return list(islice(cycle(_coprime(servers, max(servers - 1, 1))), rings))


def totient_steps(servers: int, rings: int) -> list[int]:
    """TopoOpt's choice of rings: step 1, then the step nearest to n^(1/`rings`) times the one before (ties: the
    smaller), so that few hops reach all servers; repeats from 1 when all are used.

    Source: Wang et al., NSDI 2023, TotientPerms and SelectPermutations. Deviation: circuits join both directions, so
    only the smaller of p and n - p is used.
    """
    left, steps = _coprime(servers, max(servers // 2, 1)), []
    while left and len(steps) < rings:
        wanted = steps[-1] * servers ** (1 / rings) if steps else 1
        steps.append(min(left, key=lambda step: abs(step - wanted)))
        left.remove(steps[-1])
    return list(islice(cycle(steps), rings))


def ring_circuits(servers: int, steps: list[int]) -> np.ndarray:
    """Circuits [n n] of rings with these steps; two servers have two circuits per ring, one server none."""
    count, here = np.zeros((servers, servers), np.int64), np.arange(servers)
    for step in steps if servers > 1 else []:
        there = (here + step) % servers
        np.add.at(count, (here, there), 1)
        np.add.at(count, (there, here), 1)
    return count
