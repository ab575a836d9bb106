"""Solstice: slices of power-of-two thresholds for one circuit switch beside a packet switch.

1. Fill every line up to the busiest (QuickStuff). The first threshold is the largest power of two (of a circuit's
   seconds) below the largest entry.
2. Repeat until packet NICs can carry what is left by the end of the circuits: subtract a permutation of entries at or
   above the threshold (BigSlice), which lasts as long as its smallest entry. If there is none, halve the threshold.
3. What is left of the real demand uses the packet NICs from the start.

Deviations for cases that the source does not cover: without packet NICs, slices stop once the threshold is below a
delay, and whole-pair matchings carry the remainder. The same holds for circuits that carry both directions; for them no
line is filled, and a slice is a largest matching that includes every server with an entry at or above the threshold.
Several switches or ports share the slices. Source: CoNEXT 2015, steps as checked in an ns-3 port.
"""

import math
from typing import Unpack

import numpy as np

from mfabric_jax.circuit_schedules.matching import largest, stuff_lines
from mfabric_jax.circuit_schedules.placing import ROUNDING, Placed, ScheduleProblem, SwitchNetwork, busiest, problem_of
from mfabric_jax.circuit_schedules.whole_pair import first_to_end


def solstice(demand, **network: Unpack[SwitchNetwork]) -> Placed:
    """Schedule slices of halving thresholds, and leave the remainder to packet NICs; arguments as in `registry`."""
    problem = problem_of(demand, **network)
    if not problem.wanted.any():
        return problem.place_matchings([], [])
    matchings, seconds = slice_demand(problem)
    return (
        problem.place_matchings(matchings, seconds)
        if _as_published(problem)
        else first_to_end(problem, matchings, seconds)
    )


def _as_published(problem: ScheduleProblem) -> bool:
    return problem.directed and problem.packet > 0


def slice_demand(problem: ScheduleProblem) -> tuple[list[np.ndarray], list[float]]:
    """Return slices of falling thresholds, in order, and their seconds."""
    left = stuff_lines(problem.wanted) if problem.directed else problem.wanted.copy()
    least = ROUNDING * busiest(left)
    if not _as_published(problem):
        least = max(least, problem.delay_s)
    threshold = 2.0 ** (math.ceil(math.log2(left.max())) - 1)
    matchings, seconds = [], []
    while threshold >= least and not _packets_finish(problem, left, matchings, seconds):
        matching = largest(left >= threshold, problem.directed)
        cells = matching > 0
        if not _slices(left >= threshold, cells, problem.directed):
            threshold /= 2
            continue
        seconds.append(float(left[cells].min()))
        matchings.append(matching)
        left = np.where(cells, left - seconds[-1], left)
    return matchings, seconds


def _packets_finish(problem: ScheduleProblem, left: np.ndarray, matchings: list, seconds: list) -> bool:
    _, longest, switch = problem.place_matchings(matchings, seconds)
    return busiest(left) <= problem.packet * problem.clocks(longest, switch).max()


def _slices(allowed: np.ndarray, cells: np.ndarray, directed: bool) -> bool:
    if directed:
        return bool(allowed[cells].all())
    return bool(cells.any() and (cells.any(1) | ~allowed.any(1)).all())
