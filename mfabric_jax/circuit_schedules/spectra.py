"""Spectra: as many permutations as the busiest line has partners, evened out over parallel switches.

1. Decompose: every round takes the heaviest permutation of what is left; it lasts as long as its smallest positive
   entry. A line with as many uncovered partners as there are rounds left must have one of them covered.
2. Refine: raise the durations, permutation by permutation, until everything is carried.
3. Schedule: place the longest first, on the least loaded switch.
4. Equalise: move a part of the fullest switch's longest permutation to the emptiest switch, as long as that saves more
   than a delay.

Packet NICs are not used. Circuits that carry both directions may need more matchings than partners (a triangle needs
three): rounds continue until every pair is covered. Source: arXiv 2603.07373, algorithms as read in its code.
"""

from typing import Unpack

import numpy as np

from mfabric_jax.circuit_schedules.matching import heaviest, refine_seconds
from mfabric_jax.circuit_schedules.placing import Placed, ScheduleProblem, SwitchNetwork, problem_of


def spectra(demand, **network: Unpack[SwitchNetwork]) -> Placed:
    """Schedule by Spectra: few permutations, evened out over switches; arguments as in `registry`."""
    problem = problem_of(demand, **network)
    matchings, seconds = decompose(problem.wanted, problem.directed)
    return equalise(problem, problem.place_matchings(matchings, refine_seconds(problem.wanted, matchings, seconds)))


def partners(wanted: np.ndarray) -> int:
    """Return the largest number of positive entries in a row or column."""
    positive = wanted > 0
    return int(max(positive.sum(0).max(), positive.sum(1).max()))


def decompose(wanted: np.ndarray, directed: bool) -> tuple[list[np.ndarray], list[float]]:
    """Return matchings that cover every positive entry of `wanted` [S S], and how long each is in full use."""
    left, uncovered = wanted.copy(), wanted > 0
    matchings, seconds = [], []
    while uncovered.any():
        rounds = partners(uncovered)
        critical = (uncovered.sum(1) == rounds)[:, None] + (uncovered.sum(0) == rounds)[None, :].astype(int)
        covers = uncovered * critical * (2 * len(left))  # covering one more line outweighs every entry
        matching = heaviest(left / max(float(left.max()), np.finfo(float).tiny) + covers, directed)
        sent = left[(matching > 0) & (left > 0)]
        matchings.append(matching)
        seconds.append(float(sent.min()) if len(sent) else 0.0)
        left = np.maximum(left - seconds[-1] * matching, 0)
        uncovered = uncovered & (matching == 0)
    return matchings, seconds


ROUNDING = 1e-12  # of the load: smaller moves are rounding


def equalise(problem: ScheduleProblem, schedule: Placed) -> Placed:
    shape = schedule[0].shape
    configurations, seconds, switch = (list(part) for part in schedule)
    while seconds:
        load = problem.clocks(np.array(seconds), np.array(switch))
        full, empty = int(load.argmax()), int(load.argmin())
        reconfigure_s = 0.0 if problem.first_free and empty not in switch else problem.delay_s
        move = (load[full] - load[empty] - reconfigure_s) / 2
        longest = max((i for i, lane in enumerate(switch) if lane == full), key=lambda i: seconds[i])
        if move <= ROUNDING * load[full] or seconds[longest] <= move:
            break
        seconds[longest] -= move
        configurations.append(configurations[longest])
        seconds.append(move)
        switch.append(empty)
    return np.array(configurations, np.int64).reshape(-1, *shape[1:]), np.array(seconds), np.array(switch, np.int64)
