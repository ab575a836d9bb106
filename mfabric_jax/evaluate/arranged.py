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
from mfabric_jax.evaluate.experts import moved_of, sent_early
from mfabric_jax.evaluate.links import (
    acknowledged,
    always_switched,
    crossing,
    degree_bounds,
    in_phases,
    placed_inside,
    seconds_on_links,
    steady,
    unit_on_host,
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

AT_ONCE = 1 << 20  # all-to-alls in one batch


class AllToAllsOf:
    """All-to-alls of a problem's iterations with NICs of 1 byte/s, for any of its cases.

    - `group`: replaces the problem's group.
    - `costs` [N]: costs and gains of a reconfiguration in every case; needed only if circuits depend on them.
    """

    def __init__(self, one: Problem, group: Any = None, costs: TradeOff | None = None):
        self.one = one
        group = one.group if group is None else group
        settings, case = one.resolved, one.resolved.case
        if not group.reconfigures:
            self._between: Any = Steady(on_links(one, group))
        elif settings.first == BOUND:
            self._between = Steady(at_bound(one, group))
        elif settings.scheduled or one.plans_schedules:
            assert costs is not None
            self._between = evaluate.OnSchedules(one, group, costs)
        else:
            self._between = OnCircuits(one, group, costs)
        self._always = case.circuits.turn.name == "always" and group.reconfigures
        self._moved = moved_of(one, group)
        self._lock = threading.Lock()  # blocks that run in parallel share all-to-alls

    @property
    def many(self) -> int:
        """Number of iterations over all replicas."""
        return len(self.one.selections)

    def loads(self, iteration: np.ndarray, case: np.ndarray, shown: tuple | None = None) -> Exchanges:
        """Return the all-to-alls [C ..] between servers of iterations [C], each in its case [C] of `costs`.

        `shown`: index into [P Q L 2] of the circuits to return; (): all; None: none.
        """
        one = self.one
        experts: Any = one.resolved.case.compute.experts
        with self._lock:
            found = self._between.loads(iteration, case, shown)
        if self._always:
            found = always_switched(one.workload, found)
        found = found._replace(moved=None if self._moved is None else self._moved[iteration])
        if experts.name != "received":
            return found
        busy: Any = one.busy
        found = found._replace(busy=busy[iteration])
        return found._replace(early=self._early[iteration]) if experts.combine == "rank" else found

    @functools.cached_property
    def _early(self) -> Float[np.ndarray, "I P Q L 3 R"]:
        experts: Any = self.one.resolved.case.compute.experts
        tile = experts.tile
        return np.stack([sent_early(self.one.workload, self.one.group, each, tile) for each in self.one.selections])


# -------------------------------------------------------------------------------------------------- links and circuits
class Steady:
    """All-to-alls of all iterations [I ..] that are the same in every case."""

    def __init__(self, every: Exchanges):
        self._every = every

    def loads(self, iteration: np.ndarray, case: np.ndarray, shown: tuple | None) -> Exchanges:
        return jax.tree.map(lambda x: x[iteration], self._every)


def on_links(one: Problem, group: Any) -> Exchanges:
    """Return the all-to-alls of all iterations on links that never change."""
    job, acks = one.workload, one.resolved.carried_by.acks_back
    unit = unit_on_host(group)
    timed = timed_on_links(unit, one.carry, job.ranks_per_server, one.resolved.case.run.dtype)
    found = steady_now(job, one.selections, lambda every: timed(acknowledged(every, acks)))
    return in_phases(job, unit, found)


def steady_now(job: Workload, sent: Tokens, seconds: Callable[[np.ndarray], np.ndarray]) -> Exchanges:
    """Run `steady` on the host; `seconds` maps demands between ranks [B R R] to seconds [B]."""
    demand, even = dispatched_bytes(job, sent), even_bytes(job, np.dtype(float))
    return steady(places(job), demand, even, lambda every: once_each_row(seconds, every))


def timed_on_links(unit: Any, carry: Any, per_server: int, dtype: str) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function that computes `seconds_on_links`: in NumPy on a CPU, as a program on accelerators."""
    if platform() == "cpu":
        times = carry.times_now if carry else lambda group, each: fixed_times_now(group, each, per_server)
        return lambda demand: times(unit, demand)
    region = group_numbers(unit, dtype)

    def timed(demand: np.ndarray) -> np.ndarray:
        found = in_chunks(seconds_on_links, (demand.astype(dtype),), region, carry, per_server)
        return found.astype(float)

    return timed


def at_bound(one: Problem, group: Any) -> Exchanges:
    """Return the all-to-alls if every one takes its degree bound; no circuits are chosen."""
    dtype, acks = one.resolved.case.run.dtype, one.resolved.carried_by.acks_back
    region = group_numbers(unit_on_host(group), dtype)

    def seconds(demand: np.ndarray) -> np.ndarray:
        sent = acknowledged(demand, acks).astype(dtype)
        return in_chunks(degree_bounds, (sent,), region).astype(float)

    return steady(places(one.workload), *one.between, lambda every: once_each_row(seconds, every))


# ------------------------------------------------------------------------------------------------------- inside servers
def inside_of(one: Problem) -> Float[np.ndarray, "I P Q L"]:
    """Return the part of every all-to-all inside servers: seconds times the NVLink bandwidth."""
    job = one.workload
    every = crossing(job, one.group, dispatched_bytes(job, one.selections))
    *many, servers, ranks, _ = every.shape
    flat = every.reshape(-1, servers, ranks, ranks)
    return placed_inside(job, once_each_row(lambda each: inside_times_now(each, 1.0 * job.tp), flat).reshape(many))
