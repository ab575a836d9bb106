"""The all-to-alls of a scenario's iterations on the host: batches are arranged here and worked out by `circuits`,
`loads` and `links`."""

import functools
import threading
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from mfabric_jax import evaluate
from mfabric_jax.case.policies import BOUND
from mfabric_jax.evaluate.asking import (
    in_chunks,
)
from mfabric_jax.evaluate.demands import BetweenServers, Tokens, sent_of
from mfabric_jax.evaluate.experts import busy_of, moved_of, sent_early
from mfabric_jax.evaluate.links import acknowledged, at_unit_bandwidth, crossing, in_phases, placed_inside, steady
from mfabric_jax.evaluate.on_circuits import OnCircuits
from mfabric_jax.evaluate.problem import Problem
from mfabric_jax.evaluate.rules import TradeOff
from mfabric_jax.fabric import Region
from mfabric_jax.fabric.design import group_numbers
from mfabric_jax.host_arrays import once_each_row
from mfabric_jax.platforms import platform
from mfabric_jax.routing import degree_bound
from mfabric_jax.routing.fixed import fixed_time, fixed_times_now, inside_times_now
from mfabric_jax.timing.passes import Exchanges, places
from mfabric_jax.traffic import dispatched_bytes
from mfabric_jax.traffic.dispatch import even_bytes

AT_ONCE = 1 << 20  # all-to-alls that are worked out side by side


class AllToAllsOf:
    """The all-to-alls of a scenario's iterations at NICs of 1 byte/s, for any of its cases.

    - `group`: in the place of the scenario's; `costs` [N]: what a reconfiguration is weighed against in every case,
      where circuits depend on it.
    """

    def __init__(self, one: Problem, group: Any = None, costs: TradeOff | None = None):
        self.one, self.sent = one, sent_of(one)
        group = one.group if group is None else group
        settings, case = one.resolved, one.resolved.case
        if not group.reconfigures:
            self._between: Any = OnLinks(one, group, self.sent)
        elif settings.first == BOUND:
            self._between = AtBound(one, group, self.sent)
        elif settings.scheduled or one.plans_schedules:
            assert costs is not None
            self._between = evaluate.OnSchedules(one, group, self.sent, costs)
        else:
            self._between = OnCircuits(one, group, self.sent, costs)
        self._always = case.circuits.turn.name == "always" and group.reconfigures
        self._moved = moved_of(one)
        self._lock = threading.Lock()  # blocks that run side by side share all-to-alls

    @property
    def many(self) -> int:
        """Iterations of all replicas."""
        return len(self.sent)

    def loads(self, iteration: np.ndarray, case: np.ndarray, shown: tuple | None = None) -> Exchanges:
        """All-to-alls [C ..] between servers of iterations [C], in cases [C] of `costs`.

        `shown`: index into [P Q L 2] of the circuits that are shown; (): all; None: none.
        """
        one = self.one
        experts: Any = one.resolved.case.compute.experts
        with self._lock:
            found = self._between.loads(iteration, case, shown)
        if self._always:
            moe = places(one.workload).layer >= 0
            found = found._replace(switch=found.switch | np.stack([moe, np.zeros_like(moe)], axis=-1))
        found = found._replace(moved=None if self._moved is None else self._moved[iteration])
        if experts.name != "received":
            return found
        found = found._replace(busy=self.busy[iteration])
        return found._replace(early=self._early[iteration]) if experts.combine == "rank" else found

    @functools.cached_property
    def busy(self) -> Float[np.ndarray, "I P Q L"]:
        """`expert_load` of every block."""
        return busy_of(self.one, self.sent)  # type: ignore[return-value]

    @functools.cached_property
    def _early(self) -> Float[np.ndarray, "I P Q L 3 R"]:
        experts: Any = self.one.resolved.case.compute.experts
        tile = experts.tile
        return np.stack([sent_early(self.one.workload, self.one.group, each, tile) for each in self.sent])


# --------------------------------------------------------------------------------------------------- who carries bytes
class OnLinks:
    """On links that do not change."""

    def __init__(self, one: Problem, group: Any, sent: Tokens):
        job, acks = one.workload, one.resolved.carried_by.acks_back
        unit = at_unit_bandwidth(jax.tree.map(np.asarray, group), np.dtype(float))
        demand, even = dispatched_bytes(job, sent), even_bytes(job, np.dtype(float))
        every = np.concatenate([demand.reshape(-1, *even.shape), even[None]])
        timed = timed_on_links(unit, one.carry, job.ranks_per_server, one.resolved.case.run.dtype)
        load = once_each_row(lambda each: timed(acknowledged(each, acks)), every)
        self._found = steady(places(job), load[:-1].reshape(demand.shape[:3]), load[-1])
        self._found = in_phases(job, self._found) if unit.phases else self._found

    def loads(self, iteration: np.ndarray, case: np.ndarray, shown: tuple | None) -> Exchanges:
        return jax.tree.map(lambda x: x[iteration], self._found)


def timed_on_links(unit: Any, carry: Any, per_server: int, dtype: str) -> Callable[[np.ndarray], np.ndarray]:
    """Seconds [B] of demands between ranks [B R R]; `carry`: drawn paths, or those of a graph."""
    if platform() == "cpu":
        times = carry.times_now if carry else lambda group, each: fixed_times_now(group, each, per_server)
        return lambda demand: times(unit, demand)
    region = group_numbers(unit, dtype)
    return lambda demand: in_chunks(links_seconds, (demand.astype(dtype),), region, carry, per_server).astype(float)


def links_seconds(demand: Any, group: Any, carry: Any, per_server: int) -> Any:
    """Seconds [B] on links that do not change, as a program."""
    seconds = carry.time if carry else lambda group, one: fixed_time(group, one, per_server)
    return jax.vmap(lambda one: seconds(group, one))(demand)


class AtBound:
    """Without circuits: every all-to-all takes its degree bound."""

    def __init__(self, one: Problem, group: Any, sent: Tokens):
        unit = at_unit_bandwidth(jax.tree.map(np.asarray, group), np.dtype(float))
        region = group_numbers(unit, one.resolved.case.run.dtype)
        demand, even = BetweenServers.of(one.workload, sent)
        every = np.concatenate([demand.reshape(-1, *even.shape), even[None]])
        every = acknowledged(every, one.resolved.carried_by.acks_back).astype(one.resolved.case.run.dtype)
        load = once_each_row(lambda each: in_chunks(bounds_of, (each,), region), every).astype(float)
        self._found = steady(places(one.workload), load[:-1].reshape(demand.shape[:3]), load[-1])

    def loads(self, iteration: np.ndarray, case: np.ndarray, shown: tuple | None) -> Exchanges:
        return jax.tree.map(lambda x: x[iteration], self._found)


def bounds_of(demand: Any, region: Region) -> Any:
    """Degree bounds [B]."""
    return jax.vmap(lambda one: degree_bound(region, one))(demand)


# ------------------------------------------------------------------------------------------------------- inside servers
def inside_of(one: Problem) -> Float[np.ndarray, "I P Q L"]:
    """The parts inside servers of all iterations: seconds times the NVLink bandwidth."""
    job = one.workload
    every = crossing(job, one.group, sent_of(one))
    *many, servers, ranks, _ = every.shape
    flat = every.reshape(-1, servers, ranks, ranks)
    return placed_inside(job, once_each_row(lambda each: inside_times_now(each, 1.0 * job.tp), flat).reshape(many))
