"""All-to-alls of a problem's iterations on the host.

This module arranges batches; `circuits`, `loads` and `links` compute them.
"""

import functools
from collections.abc import Callable
from typing import Any, cast

import jax
import numpy as np
from jaxtyping import Float

from mfabric_jax import evaluate
from mfabric_jax.case.policies import BOUND
from mfabric_jax.evaluate.asking import in_chunks
from mfabric_jax.evaluate.demands import Tokens
from mfabric_jax.evaluate.experts import early_of_blocks, early_of_layers, moving_loads
from mfabric_jax.evaluate.links import (
    crossing,
    degree_bounds,
    each_and_even,
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

    def loads(self, iteration: np.ndarray, case: np.ndarray, shown: tuple[Any, ...] | None = None) -> Exchanges:
        """Return the all-to-alls [C ..] between servers for iterations [C], each in its `case` [C] of `costs`.

        `shown`: index into [P Q L 2] of the circuits to return; (): all; None: none.
        """
        problem = self.problem
        experts: Any = problem.resolved.case.compute.experts
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
        problem, experts = self.problem, cast(Any, self.problem.resolved.case.compute.experts)
        job, group, tile = problem.workload, problem.group, experts.tile

        def each() -> np.ndarray:
            return np.stack([early_of_layers(job.ep_group, group, sent, tile) for sent in problem.selections])

        return early_of_blocks(job, problem.once(each, "early", group.handover, tile))


# -------------------------------------------------------------------------------------------------- links and circuits
class Steady:
    """All-to-alls of all iterations [I ..] that are the same in every case."""

    def __init__(self, every: Exchanges):
        self._every = every

    def loads(self, iteration: np.ndarray, case: np.ndarray, shown: tuple[Any, ...] | None) -> Exchanges:
        return jax.tree.map(lambda x: x[iteration], self._every)


def on_links(problem: Problem, group: Any) -> Exchanges:
    """Return the all-to-alls of all iterations on links that never change."""
    job, acks, dtype = problem.workload.ep_group, problem.resolved.carried_by.acks_back, problem.resolved.case.run.dtype
    unit, carry = unit_on_host(group), problem.carry

    def every() -> tuple[Any, Any]:
        timed = timer_on_links(unit, carry, job.ranks_per_server, dtype)
        return seconds_now(job, problem.selections, lambda demand: timed(with_acks(demand, acks)))

    seconds = problem.once(every, "links", unit, carry, acks, dtype, platform())
    return in_phases(problem.workload, unit, steady(places(problem.workload), *seconds))


def seconds_now(
    job: Workload, sent: Tokens, seconds: Callable[[np.ndarray], np.ndarray]
) -> tuple[Float[np.ndarray, "I layer M"], Any]:
    """Return `each_and_even` of dispatches; `seconds` maps demands between ranks [B R R] to seconds [B]."""
    demand, even = dispatched_bytes(job, sent), even_bytes(job, np.dtype(float))
    return each_and_even(demand, even, lambda every: once_each_row(seconds, every))


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

    every = problem.once(
        lambda: each_and_even(*problem.between, lambda demand: once_each_row(seconds, demand)), "bound", region, acks
    )
    return steady(places(problem.workload), *every)


# ------------------------------------------------------------------------------------------------------- inside servers
def inside_of(problem: Problem) -> Float[np.ndarray, "I P Q L"]:
    """Return the part of every all-to-all inside servers: seconds times the NVLink bandwidth."""
    job = problem.workload.ep_group

    def seconds() -> np.ndarray:
        every = crossing(job, problem.group, dispatched_bytes(job, problem.selections))
        *many, servers, ranks, _ = every.shape
        flat = every.reshape(-1, servers, ranks, ranks)
        return once_each_row(lambda each: inside_times_now(each, 1.0 * job.tp), flat).reshape(many)

    return inside_in_order(problem.workload, problem.once(seconds, "inside", problem.group.handover))
