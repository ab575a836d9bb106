"""All-to-alls of a problem's iterations on the host.

This module arranges batches; `circuits`, `loads` and `links` compute them.
"""

import functools
import threading
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from mfabric_jax import evaluate
from mfabric_jax.case.policies import BOUND
from mfabric_jax.evaluate.asking import in_chunks
from mfabric_jax.evaluate.demands import Tokens
from mfabric_jax.evaluate.experts import early_of_blocks, moving_loads
from mfabric_jax.evaluate.links import (
    crossing,
    degree_bounds,
    in_phases,
    inside_in_order,
    seconds_on_links,
    steady,
    switch_every_block,
    unit_on_host,
    with_acks,
)
from mfabric_jax.evaluate.on_circuits import OnCircuits
from mfabric_jax.evaluate.problem import Problem
from mfabric_jax.evaluate.rules import TradeOff
from mfabric_jax.routing.fixed import fixed_times_now, inside_times_now
from mfabric_jax.support.arrays import group_numbers
from mfabric_jax.support.host_arrays import once_each_row
from mfabric_jax.support.platforms import platform
from mfabric_jax.timing.passes import Exchanges, places
from mfabric_jax.traffic import dispatched_bytes
from mfabric_jax.traffic.dispatch import even_bytes
from mfabric_jax.workload import Workload

MOST_ALL_TO_ALLS = 1 << 20  # all-to-alls in one batch


class AllToAllsOf:
    """All-to-alls of a problem's iterations with NICs of 1 byte/s, for any of its cases.

    - `group`: replaces the problem's group.
    - `costs` [N]: costs and gains of a reconfiguration in every case; needed only if circuits depend on them.
    """

    def __init__(self, problem: Problem, group: Any = None, costs: TradeOff | None = None):
        self.problem = problem
        group = problem.group if group is None else group
        settings, case = problem.resolved, problem.resolved.case
        if not group.reconfigures:
            self._between: Any = Steady(on_links(problem, group))
        elif settings.first == BOUND:
            self._between = Steady(at_bound(problem, group))
        elif settings.is_scheduled or problem.plans_schedules:
            assert costs is not None
            self._between = evaluate.OnSchedules(problem, group, costs)
        else:
            self._between = OnCircuits(problem, group, costs)
        self._always = case.circuits.reconfigure.name == "always" and group.reconfigures
        self._moved = moving_loads(problem, group)
        self._lock = threading.Lock()  # blocks of cases that run in parallel share all-to-alls

    @property
    def iterations(self) -> int:
        """Number of iterations over all replicas."""
        return len(self.problem.selections)

    def loads(self, iteration: np.ndarray, case: np.ndarray, shown: tuple[Any, ...] | None = None) -> Exchanges:
        """Return the all-to-alls [C ..] between servers for iterations [C], each in its `case` [C] of `costs`.

        `shown`: index into [P Q L 2] of the circuits to return; (): all; None: none.
        """
        problem = self.problem
        experts: Any = problem.resolved.case.compute.experts
        with self._lock:
            exchanges = self._between.loads(iteration, case, shown)
        if self._always:
            exchanges = switch_every_block(problem.workload, exchanges)
        exchanges = exchanges._replace(moved=None if self._moved is None else self._moved[iteration])
        if experts.name != "received":
            return exchanges
        busy: Any = problem.busy
        exchanges = exchanges._replace(busy=busy[iteration])
        return exchanges._replace(early=self._early[iteration]) if experts.combine == "rank" else exchanges

    @functools.cached_property
    def _early(self) -> Float[np.ndarray, "I P Q L 3 R"]:
        experts: Any = self.problem.resolved.case.compute.experts
        tile = experts.tile
        return np.stack(
            [early_of_blocks(self.problem.workload, self.problem.group, each, tile) for each in self.problem.selections]
        )


# -------------------------------------------------------------------------------------------------- links and circuits
class Steady:
    """All-to-alls of all iterations [I ..] that are the same in every case."""

    def __init__(self, every: Exchanges):
        self._every = every

    def loads(self, iteration: np.ndarray, case: np.ndarray, shown: tuple[Any, ...] | None) -> Exchanges:
        return jax.tree.map(lambda x: x[iteration], self._every)


def on_links(problem: Problem, group: Any) -> Exchanges:
    """Return the all-to-alls of all iterations on links that never change."""
    job, acks = problem.workload, problem.resolved.carried_by.acks_back
    unit = unit_on_host(group)
    timed = timer_on_links(unit, problem.carry, job.ranks_per_server, problem.resolved.case.run.dtype)
    exchanges = steady_now(job, problem.selections, lambda every: timed(with_acks(every, acks)))
    return in_phases(job, unit, exchanges)


def steady_now(job: Workload, sent: Tokens, seconds: Callable[[np.ndarray], np.ndarray]) -> Exchanges:
    """Run `steady` on the host; `seconds` maps demands between ranks [B R R] to seconds [B]."""
    demand, even = dispatched_bytes(job, sent), even_bytes(job, np.dtype(float))
    return steady(places(job), demand, even, lambda every: once_each_row(seconds, every))


def timer_on_links(unit: Any, carry: Any, per_server: int, dtype: str) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function that computes `seconds_on_links`: in NumPy on a CPU, as a program on accelerators."""
    if platform() == "cpu":
        times = carry.times_now if carry else lambda group, each: fixed_times_now(group, each, per_server)
        return lambda demand: times(unit, demand)
    region = group_numbers(unit, dtype)

    def seconds(demand: np.ndarray) -> np.ndarray:
        result = in_chunks(seconds_on_links, (demand.astype(dtype),), region, carry, per_server)
        return result.astype(float)

    return seconds


def at_bound(problem: Problem, group: Any) -> Exchanges:
    """Return the all-to-alls, each at its degree bound, without choosing circuits."""
    dtype, acks = problem.resolved.case.run.dtype, problem.resolved.carried_by.acks_back
    region = group_numbers(unit_on_host(group), dtype)

    def seconds(demand: np.ndarray) -> np.ndarray:
        sent = with_acks(demand, acks).astype(dtype)
        return in_chunks(degree_bounds, (sent,), region).astype(float)

    return steady(places(problem.workload), *problem.between, lambda every: once_each_row(seconds, every))


# ------------------------------------------------------------------------------------------------------- inside servers
def inside_of(problem: Problem) -> Float[np.ndarray, "I P Q L"]:
    """Return the part of every all-to-all inside servers: seconds times the NVLink bandwidth."""
    job = problem.workload
    every = crossing(job, problem.group, dispatched_bytes(job, problem.selections))
    *many, servers, ranks, _ = every.shape
    flat = every.reshape(-1, servers, ranks, ranks)
    return inside_in_order(job, once_each_row(lambda each: inside_times_now(each, 1.0 * job.tp), flat).reshape(many))
