"""Eclipse: carry as much as possible within a window, greedily by bytes per second of circuit and delay.

Until the window is full, every step takes the duration alpha (from a grid of the entries left) and the matching that
carry the most bytes per second of alpha plus delay; the matching is a heaviest one of min(left, alpha). Within a fixed
window, one switch carries at least half of what is possible (the objective is submodular; the source states this for
all values of alpha, not for a grid).

We choose the window: the shortest at whose end packet NICs are done, found by doubling and bisection. Several switches
or ports share the window's time. Without packet NICs, we take the best of a few windows, and whole-pair matchings carry
the remainder. Source: SIGMETRICS 2016, with a grid instead of its binary search for alpha.
"""

import itertools
from typing import Unpack

import numpy as np

from mfabric_jax.checks import whole
from mfabric_jax.circuit_schedules.matching import heaviest
from mfabric_jax.circuit_schedules.placing import ROUNDING, Placed, ScheduleProblem, SwitchNetwork, busiest, problem_of
from mfabric_jax.circuit_schedules.whole_pair import first_to_end
from mfabric_jax.support.loops import at_first_call

BISECTIONS = 8
_steps_of_window = at_first_call("mfabric_jax.circuit_schedules.eclipse_loops:steps")
WINDOWS = (1.0, 1.2, 1.4, 1.7, 2.0, 3.0)  # without packet NICs, in units of the least time


def eclipse(demand, *, alphas: int = 24, **network: Unpack[SwitchNetwork]) -> Placed:
    """Schedule by Eclipse; each step compares `alphas` durations."""
    problem = problem_of(demand, **network)
    whole("alphas", alphas)
    if not problem.wanted.any():
        return problem.place_matchings([], [])
    if problem.packet:
        return min(_search_windows(problem, alphas), key=problem.paced_end_s)
    steps = (fill_window(problem, times * problem.busiest_s, alphas) for times in WINDOWS)
    return min((first_to_end(problem, *step) for step in steps), key=problem.paced_end_s)


def _search_windows(problem: ScheduleProblem, alphas: int) -> list[Placed]:
    """Return the schedules of all windows tried."""
    tried, short, long = [], 0.0, problem.busiest_s
    for _ in itertools.count():
        tried.append(problem.place_matchings(*fill_window(problem, long, alphas)))
        if _fits(problem, tried[-1], long):
            break
        short, long = long, 2 * long
    for _ in range(BISECTIONS):
        window = (short + long) / 2
        tried.append(problem.place_matchings(*fill_window(problem, window, alphas)))
        if _fits(problem, tried[-1], window):
            long = window
        else:
            short = window
    return tried


def _fits(problem: ScheduleProblem, schedule: Placed, window: float) -> bool:
    return problem.packet_s(problem.remainder(*schedule[:2])) <= window * (1 + ROUNDING)


def fill_window(problem: ScheduleProblem, window: float, alphas: int) -> tuple[list[np.ndarray], list[float]]:
    """Return the matchings and seconds that fill one `window` [s] on all switches and ports."""
    left, matchings, seconds = problem.wanted.copy(), [], []
    least = ROUNDING * busiest(left)
    work = problem.lanes * (window + problem.delay_s * problem.first_free)
    if problem.directed:
        columns, seconds = np.empty((left.size, len(left)), np.int64), np.empty(left.size)
        step_count = _steps_of_window(left, float(work), problem.delay_s, least, alphas, columns, seconds)
        return list(np.eye(len(left), dtype=np.int64)[columns[:step_count]]), seconds[:step_count].tolist()
    while work - problem.delay_s > least and (left > least).any() and len(seconds) < left.size:
        score, alpha, matching = max(
            _steps(problem, left, least, work - problem.delay_s, alphas), key=lambda step: step[0]
        )
        if score <= 0:
            break
        matchings.append(matching)
        seconds.append(alpha)
        left = np.maximum(left - alpha * matching, 0)
        work -= alpha + problem.delay_s
    return matchings, seconds


def _steps(problem: ScheduleProblem, left: np.ndarray, least: float, longest: float, alphas: int):
    values = np.unique(left[left > least])
    chosen = np.unique(np.linspace(0, len(values) - 1, alphas).round().astype(int))
    for alpha in np.unique(np.minimum(values[chosen], longest)).tolist():
        carried = np.minimum(left, alpha)
        matching = heaviest(carried, problem.directed)
        yield (carried * matching).sum() / (alpha + problem.delay_s), alpha, matching
