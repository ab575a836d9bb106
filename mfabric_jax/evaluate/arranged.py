"""The all-to-alls of a scenario's iterations on the host: batches are arranged here and worked out by `circuits`,
`loads` and `links`."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from mfabric_jax import programs, units
from mfabric_jax.case.policies import BOUND
from mfabric_jax.evaluate.asking import (
    asked_of,
    degrees_of,
    in_chunks,
)
from mfabric_jax.evaluate.experts import busy_of, moved_of, sent_early
from mfabric_jax.evaluate.forecasts import guess_of, planned_on, sigma_of
from mfabric_jax.evaluate.links import acknowledged, at_unit_bandwidth, crossing, in_phases, placed_inside, steady
from mfabric_jax.evaluate.loads import AllToAlls, loads_on_circuits, mean_of, samples_of_spans
from mfabric_jax.evaluate.problem import Problem
from mfabric_jax.evaluate.rules import Rule, TradeOff
from mfabric_jax.evaluate.solver import Now, Tables
from mfabric_jax.fabric import Region
from mfabric_jax.fabric.design import group_numbers
from mfabric_jax.host_arrays import distinct_rows, once_each_row
from mfabric_jax.platforms import platform
from mfabric_jax.policies import Policy, check_legal, is_own, reads_of, takes_many
from mfabric_jax.policies.static import uniform_circuits
from mfabric_jax.routing import degree_bound
from mfabric_jax.routing.fixed import fixed_time, fixed_times_now, inside_times_now
from mfabric_jax.timing.passes import Exchanges, places
from mfabric_jax.timing.scheduled import Pace, planned_by, region_at, scheduled
from mfabric_jax.traffic import dispatched_bytes, likely_demands, server_bytes
from mfabric_jax.traffic.dispatch import even_bytes
from mfabric_jax.workload import Workload

AT_ONCE = 1 << 20  # all-to-alls that are worked out side by side
Tokens = Float[np.ndarray, "I layer M R C"]


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
            self._between = OnSchedules(one, group, self.sent, costs)
        else:
            self._between = OnCircuits(one, group, self.sent, costs)
        self._always = case.circuits.turn.name == "always" and group.reconfigures
        self._moved = moved_of(one)

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
        tile = self.one.resolved.case.compute.experts.tile
        return np.stack([sent_early(self.one.workload, self.one.group, each, tile) for each in self.sent])


def sent_of(one: Problem) -> Tokens:
    """Selections of all replicas, in float64."""
    return np.concatenate([np.asarray(replica.sent, float) for replica in one.each_replica])


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


class BetweenServers(NamedTuple):
    """Demands between the servers of a region [I layer M S S], and that of balanced experts [S S]; zero diagonals."""

    demand: np.ndarray
    even: np.ndarray

    @classmethod
    def of(cls, job: Workload, sent: Tokens) -> "BetweenServers":
        return cls(between_servers(job, sent), even_between_servers(job))


def between_servers(job: Workload, sent: Float[np.ndarray, "*N R C"]) -> Float[np.ndarray, "*N S S"]:
    """Bytes between servers; what stays on a server takes part in nothing."""
    demand = server_bytes(dispatched_bytes(job, np.asarray(sent, float)), job.ranks_per_server)
    return demand * (1.0 - np.eye(demand.shape[-1]))


def even_between_servers(job: Workload) -> Float[np.ndarray, "S S"]:
    """`between_servers` if every expert received equally many tokens."""
    even = server_bytes(even_bytes(job, np.dtype(float)), job.ranks_per_server)
    return even * (1.0 - np.eye(len(even)))


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


class OnSchedules:
    """On circuits that change during an all-to-all, planned for the bandwidth and the delay of a case."""

    def __init__(self, one: Problem, group: Any, sent: Tokens, costs: TradeOff):
        self._one, self._costs = one, costs
        self._region = jax.tree.map(np.asarray, group)
        self._demand, self._even = BetweenServers.of(one.workload, sent)
        self._demand = acknowledged(self._demand, one.resolved.carried_by.acks_back)
        self._keys = own_keys(one)

    def loads(self, iteration: np.ndarray, case: np.ndarray, shown: tuple | None) -> Exchanges:
        rows, number = np.unique(np.stack([iteration, case]), axis=1, return_inverse=True)
        found = [self._planned(*row) for row in rows.T]
        return jax.tree.map(lambda *x: np.stack(x)[number.reshape(-1)], *found)

    def _planned(self, iteration: int, case: int) -> Exchanges:
        one, costs = self._one, self._costs
        pace = Pace(costs.delay_s[case], costs.nic_Bps[case], costs.size)
        there = region_at(self._region, pace)
        planner = one.resolved.planner(there) if one.resolved.scheduled else self._of_policy(there, iteration)
        cold = one.resolved.case.circuits.cold_start
        return scheduled(places(one.workload), self._demand[iteration], self._even, planner, pace, cold=cold)

    def _of_policy(self, there: Region, iteration: int) -> Callable:
        """The planner of a user's policy whose plans hold schedules."""
        one, dtype = self._one, self._one.resolved.case.run.dtype
        policy, region = one.resolved.circuits_policy(), group_numbers(there, dtype)
        key = self._keys[iteration]

        def planned(demand: np.ndarray, known: bool) -> Any:
            keys = np.broadcast_to(key, (len(demand), *key.shape))
            found = in_chunks(planned_by, (demand.astype(dtype), keys), region, policy)
            return jax.tree.map(lambda x: x.astype(float) if x.dtype.kind == "f" else x, found)

        return planned


class OnCircuits:
    """On circuits that a policy chooses."""

    def __init__(
        self,
        one: Problem,
        group: Any,
        sent: Tokens,
        costs: TradeOff | None,
        between: BetweenServers | None = None,
        policy: Policy | None = None,
        carried: Any = None,
    ):
        settings, case, job = one.resolved, one.resolved.case, one.workload
        self.where, dtype = places(job), case.run.dtype
        self.rule = Rule(settings.first, one.circuits_for, case.circuits.cold_start, case.circuits.partial)
        unit = at_unit_bandwidth(jax.tree.map(np.asarray, group), np.dtype(float))
        if policy is None:
            policy = settings.circuits_policy(jnp.asarray(one.mean_demand, dtype))
        reads = reads_of(policy, group_numbers(unit, dtype))
        demand, even = BetweenServers.of(job, sent) if between is None else between
        ahead = _forecasts(one, self.where, self.rule, policy, demand)
        single = demand[:0, 0, 0] if ahead.single is None else ahead.single
        every = np.concatenate([x.reshape(-1, *even.shape) for x in (demand, single, even[None])])
        number, first = distinct_rows(every)
        self.demand = number[: demand[..., 0, 0].size].reshape(demand.shape[:3])
        self.even = number[-1]
        self.forecast = self.demand if ahead.number is None else ahead.number
        if ahead.single is not None:
            self.forecast = number[self.demand.size : -1][self.forecast]
        self.spans = ahead.spans
        steps = (*self.where.layer.shape[:1], int(np.prod(self.where.layer.shape[1:])))
        keyed = reads.key or self.rule.name == "random"
        keys, self.own_key, self.key = _numbered_keys(one, steps if self.spans is None else self.spans.shape, keyed)
        self.costs = costs if self.rule.name == "pays" else None
        self.busy = busy_of(one, sent) if self.costs is not None else None
        self.rates = None if costs is None else _rates(one, costs)
        tables = Tables(every[first], ahead.samples, ahead.times, keys, self.rates)
        carried = one.carry if carried is None else carried
        asked = asked_of(unit, policy, reads, carried or settings.routing, settings.carried_by.acks_back, dtype)
        self.solver = Now(tables, uniform_circuits(degrees_of(unit)), asked, reads)
        self._legal = (settings.policy_name, np.asarray(group.degrees)) if is_own(settings.policy) else None

    def loads(self, iteration: np.ndarray, case: np.ndarray, shown: tuple | None) -> Exchanges:
        """The all-to-alls of iterations [C] in cases [C]."""
        sent = AllToAlls(
            self.demand[iteration],
            np.full(len(iteration), self.even),
            self.forecast[iteration],
            self.key[iteration],
            self.own_key[iteration],
            case if self.rates is not None else np.zeros_like(case),
            None if self.busy is None else self.busy[iteration],
            self.spans,
        )
        costs = None if self.costs is None else of_cases(self.costs, case)
        found = loads_on_circuits(self.where, self.solver, sent, self.rule, costs, shown)
        if self._legal is not None:
            name, degrees = self._legal
            check_legal(name, self.solver.counts, degrees)
        return found


def of_cases(costs: TradeOff, case: np.ndarray) -> TradeOff:
    """The costs [C ..] of some cases, by number."""
    each = {name: x[case] for name, x in costs._asdict().items() if name != "size" and np.ndim(x)}
    return costs._replace(**each)


class Forecasts(NamedTuple):
    """What circuits are chosen for beside the demand: demands one by one (`single` [G S S]), or many (`samples`).

    `number` [I ..]: of the forecast of every demand, or of every span; `spans` [P span]: those with all-to-alls.
    """

    single: np.ndarray | None = None
    samples: np.ndarray | None = None
    times: np.ndarray | None = None
    number: np.ndarray | None = None
    spans: np.ndarray | None = None


def _forecasts(one: Problem, where: Any, rule: Rule, policy: Policy, demand: np.ndarray) -> Forecasts:
    if rule.name == "predict":
        return _predicted(one, policy)
    return _of_spans(one, where, rule, policy, demand) if rule.long else Forecasts()


def _predicted(one: Problem, policy: Policy) -> Forecasts:
    turn, dtype = one.resolved.case.circuits.turn, one.resolved.case.run.dtype
    guess = between_servers(one.workload, guess_of(one))
    flat = guess.reshape(-1, *guess.shape[-2:])
    number = np.arange(len(flat)).reshape(guess.shape[:3])
    if not (takes_many(policy) and turn.scenarios):
        return Forecasts(single=flat, number=number)
    keys = programs.run(split_keys, own_keys(one), guess.shape[1:3])
    sigma = np.repeat(sigma_of(one), np.prod(guess.shape[1:3])).astype(dtype)
    members = keys.reshape(-1, keys.shape[-1]), flat.astype(dtype), sigma
    return Forecasts(samples=in_chunks(likely_of, members, turn.scenarios).astype(float), number=number)


def _of_spans(one: Problem, where: Any, rule: Rule, policy: Policy, demand: np.ndarray) -> Forecasts:
    """Samples of every span; those of the whole run are asked about once for all iterations of a replica."""
    replicas = len(one.every_replica)
    own = len(demand) // replicas
    seen = [between_servers(one.workload, planned_on(replica)) for replica in one.each_replica]
    if rule.span == "run":
        each, number = (
            [samples_of_spans(where, rule.span, demand[0], past) for past in seen],
            np.repeat(np.arange(replicas), own),
        )
    else:
        pasts = [seen[at // own][at % own][None] for at in range(len(demand))]
        each = [samples_of_spans(where, rule.span, *both) for both in zip(demand, pasts, strict=True)]
        number = np.arange(len(demand))
    samples, times = (np.stack(part) for part in zip(*each, strict=True))
    steps = times.shape[1:3]
    numbers = number[:, None, None] * np.prod(steps) + np.arange(np.prod(steps)).reshape(steps)
    spans, servers = times[0].sum(-1) > 0, samples.shape[-2:]
    if takes_many(policy):
        flat = samples.reshape(-1, *samples.shape[-3:])
        times = times.reshape(len(flat), -1).astype(one.resolved.case.run.dtype)
        return Forecasts(samples=flat, times=times, number=numbers, spans=spans)
    return Forecasts(single=mean_of(samples, times).reshape(-1, *servers), number=numbers, spans=spans)


def likely_of(key: Any, forecast: Any, sigma: Any, many: int) -> Any:
    """Demands drawn around forecasts [B K S S]."""
    drawn = jax.vmap(lambda key, one, sigma: likely_demands(jax.random.wrap_key_data(key), one, sigma, many))
    return drawn(key, forecast, sigma)


def _rates(one: Problem, costs: TradeOff) -> np.ndarray | None:
    """Bandwidth and delay [N 2] at which a policy that reads them is asked: a user's at the row's own, others at unit
    bandwidth."""
    settings = one.resolved
    if is_own(settings.policy):
        found = units.to_gbps(costs.nic_Bps), costs.delay_s
    elif settings.first == "pays":  # asked for the demand alone
        return None
    else:
        found = np.full(len(costs.nic_Bps), units.to_gbps(1.0)), costs.delay_s * costs.nic_Bps
    return np.stack(found, axis=-1).astype(settings.case.run.dtype)


# ---------------------------------------------------------------------------------------------------------- random keys
def own_keys(one: Problem) -> np.ndarray:
    """Key data of every iteration of every replica [I 2]."""
    key, every = jax.random.key(one.resolved.case.run.seed), []
    for at, replica in enumerate(one.every_replica):
        every.append(jax.random.split(jax.random.fold_in(key, at) if at else key, len(replica.count)))
    return np.concatenate([np.asarray(jax.random.key_data(each)) for each in every])


def split_keys(key: Any, shape: tuple[int, ...]) -> Any:
    """Key data [N *shape 2] of keys split from each of those [N 2]."""
    split = lambda one: jax.random.key_data(jax.random.split(jax.random.wrap_key_data(one), shape))  # noqa: E731
    return jax.vmap(split)(key)


def _numbered_keys(
    one: Problem, steps: tuple[int, ...], keyed: bool
) -> tuple[np.ndarray | None, np.ndarray, np.ndarray]:
    """Key data [N 2] of iterations and of their steps, and the numbers of both: [I], [I P B]."""
    many = sum(len(replica.count) for replica in one.every_replica)
    if not keyed:
        return None, np.zeros(many, int), np.zeros((many, *steps), int)
    own = parents = own_keys(one)
    if one.circuits_for == "run":
        of_run = np.asarray(jax.random.key_data(jax.random.key(one.resolved.case.run.seed)))
        parents = np.tile(of_run, (many, 1))
    of_steps = programs.run(split_keys, parents, tuple(map(int, steps)))
    number = many + np.arange(of_steps[..., 0].size).reshape(many, *steps)
    return np.concatenate([own, of_steps.reshape(-1, own.shape[-1])]), np.arange(many), number


# ------------------------------------------------------------------------------------------------------- inside servers
def inside_of(one: Problem) -> Float[np.ndarray, "I P Q L"]:
    """The parts inside servers of all iterations: seconds times the NVLink bandwidth."""
    job = one.workload
    every = crossing(job, one.group, sent_of(one))
    *many, servers, ranks, _ = every.shape
    flat = every.reshape(-1, servers, ranks, ranks)
    return placed_inside(job, once_each_row(lambda each: inside_times_now(each, 1.0 * job.tp), flat).reshape(many))
