"""Heaviest matchings in which every matched pair sends all that it has: few, bounded configurations.

Repeat: the heaviest matching of what is left, as long as its largest entry. With packet NICs the matchings stop where
they take over best: of all numbers of matchings the one that ends first. Source: a reading of the greedy max-weight
decomposition of arXiv 2605.26845 (its other reading subtracts the smallest entry, which needs more than Birkhoff).
"""

import math
from typing import Unpack

import numpy as np

from mfabric_jax.circuit_schedules.matching import heaviest, refined
from mfabric_jax.circuit_schedules.placing import ROUNDING, Network, Placed, Problem, problem_of


def whole_pair(demand, **network: Unpack[Network]) -> Placed:
    """Matchings of most bytes, each as long as its slowest pair; arguments as of `registry`."""
    problem = problem_of(demand, **network)
    return first_to_end(problem, [], [])


def whole_pairs(wanted: np.ndarray, directed: bool, most: float = math.inf) -> tuple[list[np.ndarray], list[float]]:
    """Matchings of everything wanted [S S], or the first `most` of them, and their largest entries."""
    left, matchings, seconds = wanted.copy(), [], []
    while left.any() and len(matchings) < most:
        matchings.append(heaviest(left, directed))
        cells = matchings[-1] > 0
        seconds.append(float(left[cells].max()))
        left[cells] = 0
    return matchings, seconds


def first_to_end(problem: Problem, matchings: list, seconds: list) -> Placed:
    """The given matchings, and as many whole pairs of what they leave as make the schedule end first.

    Without packet NICs all, and everything is carried.
    """
    shown = sum((m * t for m, t in zip(matchings, seconds, strict=True)), np.zeros(problem.wanted.shape))
    rest = problem.wanted - shown
    more, longer = whole_pairs(np.where(rest > ROUNDING * problem.wanted, rest, 0), problem.directed)
    if not problem.packet:
        matchings = [*matchings, *more]
        return problem.place(matchings, refined(problem.wanted, matchings, [*seconds, *longer]))
    placed = (problem.place([*matchings, *more[:count]], [*seconds, *longer[:count]]) for count in range(len(more) + 1))
    return min(placed, key=problem.planned_s)
