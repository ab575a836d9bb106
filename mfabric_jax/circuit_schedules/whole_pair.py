"""Heaviest matchings in which every matched pair sends all of its bytes: few configurations, bounded in number.

Every step takes the heaviest matching of what is left, which lasts as long as its largest entry. With packet NICs, we
take the number of matchings that ends first; packet NICs carry what the matchings leave. Source: one reading of the
greedy max-weight decomposition of arXiv 2605.26845. (The other reading subtracts the smallest entry, and needs more
configurations than Birkhoff.)
"""

import math
from typing import Unpack

import numpy as np

from mfabric_jax.circuit_schedules.matching import heaviest, refine_seconds
from mfabric_jax.circuit_schedules.placing import ROUNDING, Placed, ScheduleProblem, SwitchNetwork, problem_of


def whole_pair(demand, **network: Unpack[SwitchNetwork]) -> Placed:
    """Schedule heaviest matchings, each as long as its slowest pair; arguments as in `registry`."""
    problem = problem_of(demand, **network)
    return first_to_end(problem, [], [])


def whole_pairs(wanted: np.ndarray, directed: bool, most: float = math.inf) -> tuple[list[np.ndarray], list[float]]:
    """Return at most `most` matchings that carry all of `wanted` [S S], and the largest entry of each."""
    left, matchings, seconds = wanted.copy(), [], []
    while left.any() and len(matchings) < most:
        matchings.append(heaviest(left, directed))
        cells = matchings[-1] > 0
        seconds.append(float(left[cells].max()))
        left[cells] = 0
    return matchings, seconds


def first_to_end(problem: ScheduleProblem, matchings: list, seconds: list) -> Placed:
    """Place the matchings, then whole-pair matchings of what they leave, in the number that ends first.

    Without packet NICs, place all of them, so that circuits carry everything.
    """
    shown = sum((m * t for m, t in zip(matchings, seconds, strict=True)), np.zeros(problem.wanted.shape))
    leftover = problem.wanted - shown
    more, longer = whole_pairs(np.where(leftover > ROUNDING * problem.wanted, leftover, 0), problem.directed)
    if not problem.packet:
        matchings = [*matchings, *more]
        return problem.place_matchings(matchings, refine_seconds(problem.wanted, matchings, [*seconds, *longer]))
    placed = (
        problem.place_matchings([*matchings, *more[:count]], [*seconds, *longer[:count]])
        for count in range(len(more) + 1)
    )
    return min(placed, key=problem.paced_end_s)
