"""The best durations of known configurations on known switches, and the prices that value a new configuration."""

from typing import NamedTuple

import numpy as np

from mfabric_jax.circuit_schedules.loop_arrays import ENDED, CircuitLists, SimplexWork
from mfabric_jax.circuit_schedules.matching import refine_seconds
from mfabric_jax.circuit_schedules.placing import Placed, ScheduleProblem
from mfabric_jax.support.loops import at_first_call

USED = 1e-12  # of the least time: shorter configurations are rounding
_solve = at_first_call("mfabric_jax.circuit_schedules.duration_loops:solve")
_gains = at_first_call("mfabric_jax.circuit_schedules.trade_loops:gains")


class Programme(NamedTuple):
    seconds: np.ndarray  # [K]
    price: np.ndarray  # [S S] seconds of T that one more second of each pair's circuit saves


def programme(
    problem: ScheduleProblem, configurations: np.ndarray, switch: np.ndarray, packet: float, limit_s: float = np.inf
) -> Programme | None:
    """Return the best durations; None if they do not end before `limit_s`, or if circuits miss a pair with bytes.

    `configurations` [K S S], `switch` [K]; `packet`: rate of a server's paced packet NICs over the rate of a circuit.
    See `duration_loops`.
    """
    unit, servers, many = problem.busiest_s, len(problem.need), len(switch) + 1
    work = SimplexWork(
        *(np.empty((many, many)), np.empty(many), np.empty(many), np.empty(many, np.int64)),
        *(np.empty((many, servers), np.bool_), np.empty(many), np.empty(many), np.empty(servers, np.bool_)),
        *(np.empty((servers, servers)), np.empty(problem.switches)),
    )
    reconfigure_s, price = problem.clocks(np.zeros(many - 1), switch) / unit, np.empty((servers, servers))
    facts = reconfigure_s, float(packet), float(limit_s / unit)
    ended = _solve(problem.need / unit, circuits_of(configurations, switch), *facts, work, price)
    return Programme(np.maximum(work.primal[:-1], 0) * unit, price) if ended == ENDED else None


def schedule_of(
    problem: ScheduleProblem, configurations: np.ndarray, seconds: np.ndarray, switch: np.ndarray
) -> Placed:
    """Return the configurations with nonzero seconds; without packet NICs, seconds are raised until all is carried."""
    used = seconds > USED * problem.busiest_s
    configurations, seconds, switch = configurations[used], seconds[used], switch[used]
    if not problem.packet:
        seconds = refine_seconds(problem.need, list(configurations), seconds.tolist())
    return configurations, seconds, switch


def trade_gains(configurations: np.ndarray, seconds: np.ndarray, switch: np.ndarray, over: np.ndarray) -> np.ndarray:
    """Return the gain [K K] in seconds of a trade between configurations k < l; for `over` [S S] see `trade_loops`."""
    count, servers = len(seconds), len(over)
    gain, circuits = np.zeros((count, count)), circuits_of(configurations, switch)
    _gains(circuits, seconds, over, np.empty((2, servers)), np.empty((2, servers), np.int64), gain)
    return gain


def circuits_of(configurations: np.ndarray, switch: np.ndarray) -> CircuitLists:
    """Return configurations as lists of circuits, the form that the loops read."""
    which, row, column = np.nonzero(configurations)
    first = np.searchsorted(which, np.arange(len(switch) + 1))
    return CircuitLists(first, row, column, configurations[which, row, column].astype(float), np.asarray(switch))
