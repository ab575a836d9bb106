"""All-to-alls on circuits that a policy chooses, for batches of a problem's iterations and cases on the host."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mfabric_jax import evaluate, policies, programs, traffic, units
from mfabric_jax.evaluate.asking import asked_of, degrees_of, in_chunks
from mfabric_jax.evaluate.demands import BetweenServers, between_servers, own_keys
from mfabric_jax.evaluate.links import at_unit_bandwidth
from mfabric_jax.evaluate.loads import AllToAlls, loads_on_circuits, mean_of, samples_of_spans
from mfabric_jax.evaluate.problem import Problem
from mfabric_jax.evaluate.rules import Rule, TradeOff
from mfabric_jax.evaluate.solver import Now, Tables
from mfabric_jax.fabric.design import group_numbers
from mfabric_jax.host_arrays import distinct_rows
from mfabric_jax.policies import Policy, is_own, reads_of, takes_many
from mfabric_jax.policies.static import uniform_circuits
from mfabric_jax.timing.passes import Exchanges, places


class OnCircuits:
    """The all-to-alls of a problem's iterations on circuits that a policy chooses.

    - `costs` [N]: of every case, where circuits depend on them.
    - `between`, `policy`, `carried`: replace the problem's demands, its policy and how it carries bytes.
    """

    def __init__(
        self,
        one: Problem,
        group: Any,
        costs: TradeOff | None,
        between: BetweenServers | None = None,
        policy: Policy | None = None,
        carried: Any = None,
    ):
        resolved, case = one.resolved, one.resolved.case
        self.where, dtype = places(one.workload), case.run.dtype
        self.rule = Rule(resolved.first, one.circuits_for, case.circuits.cold_start, case.circuits.partial)
        unit: Any = at_unit_bandwidth(jax.tree.map(np.asarray, group), np.dtype(float))
        if policy is None:
            policy = resolved.circuits_policy(jnp.asarray(one.mean_demand, dtype))
        region: Any = group_numbers(unit, dtype)
        reads = reads_of(policy, region)
        self.costs, self.busy = (costs, one.busy) if self.rule.name == "pays" else (None, None)
        self.rates = None if costs is None else rates_asked_at(one, costs)
        tables = self._numbered(one, one.between if between is None else between, policy)
        keys = self._keyed(one, reads.key or self.rule.name == "random")
        carried = (one.carry if carried is None else carried) or resolved.routing
        asked = asked_of(unit, policy, reads, carried, resolved.carried_by.acks_back, dtype)
        start = uniform_circuits(degrees_of(unit))
        self.solver = Now(tables._replace(key=keys, rates=self.rates), start, asked, reads)
        self._legal = (resolved.policy_name, np.asarray(group.degrees)) if is_own(resolved.policy) else None

    def _numbered(self, one: Problem, between: BetweenServers, policy: Policy) -> Tables:
        """The different demands, of which the all-to-alls of iterations become numbers."""
        demand, even = between
        ahead = _forecasts(one, self.where, self.rule, policy, demand)
        single = demand[:0, 0, 0] if ahead.single is None else ahead.single
        every = np.concatenate([x.reshape(-1, *even.shape) for x in (demand, single, even[None])])
        number, first = distinct_rows(every)
        many = len(every) - len(single) - 1
        self.demand, self.even = number[:many].reshape(demand.shape[:3]), number[-1]
        self.forecast = self.demand if ahead.number is None else ahead.number
        if ahead.single is not None:
            self.forecast = number[many:-1][self.forecast]
        self.spans = ahead.spans
        return Tables(every[first], ahead.samples, ahead.times)

    def _keyed(self, one: Problem, read: bool) -> np.ndarray | None:
        """Key data of iterations and of their steps [N 2], which become numbers; None where they are not read."""
        blocks = self.where.layer.shape[0], int(np.prod(self.where.layer.shape[1:]))
        steps, many = blocks if self.spans is None else self.spans.shape, len(self.demand)
        self.own_key, self.key = np.arange(many) * read, np.zeros((many, *steps), int)
        if not read:
            return None
        own = parents = own_keys(one)
        if self.rule.span == "run":
            parents = np.tile(np.asarray(jax.random.key_data(jax.random.key(one.resolved.case.run.seed))), (many, 1))
        of_steps = programs.run(split_keys, parents, tuple(map(int, steps)))
        self.key = many + np.arange(of_steps[..., 0].size).reshape(many, *steps)
        return np.concatenate([own, of_steps.reshape(-1, own.shape[-1])])

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
            policies.check_legal(name, self.solver.counts, degrees)
        return found


def of_cases(costs: TradeOff, case: np.ndarray) -> TradeOff:
    """The costs [C ..] of some cases, by number."""
    each = {name: x[case] for name, x in costs._asdict().items() if name != "size" and np.ndim(x)}
    return costs._replace(**each)


# ----------------------------------------------------------------------------------------- what circuits are chosen for
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
    turn: Any = one.resolved.case.circuits.turn
    dtype = one.resolved.case.run.dtype
    guess = between_servers(one.workload, evaluate.guess_of(one))
    flat = guess.reshape(-1, *guess.shape[-2:])
    number = np.arange(len(flat)).reshape(guess.shape[:3])
    if not (takes_many(policy) and turn.scenarios):
        return Forecasts(single=flat, number=number)
    keys = programs.run(split_keys, own_keys(one), guess.shape[1:3])
    sigma = np.repeat(evaluate.sigma_of(one), np.prod(guess.shape[1:3])).astype(dtype)
    members = keys.reshape(-1, keys.shape[-1]), flat.astype(dtype), sigma
    return Forecasts(samples=in_chunks(likely_of, members, turn.scenarios).astype(float), number=number)


def _of_spans(one: Problem, where: Any, rule: Rule, policy: Policy, demand: np.ndarray) -> Forecasts:
    """Samples of every span; those of the whole run are asked about once for all iterations of a replica."""
    replicas = len(one.every_replica)
    own = len(demand) // replicas
    seen = [between_servers(one.workload, evaluate.planned_on(replica)) for replica in one.each_replica]
    if rule.span == "run":
        each = [samples_of_spans(where, rule.span, demand[0], past) for past in seen]
        number = np.repeat(np.arange(replicas), own)
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
    drawn = jax.vmap(lambda key, one, sigma: traffic.likely_demands(jax.random.wrap_key_data(key), one, sigma, many))
    return drawn(key, forecast, sigma)


def rates_asked_at(one: Problem, costs: TradeOff) -> np.ndarray | None:
    """Bandwidth and delay [N 2] at which a policy that reads them is asked: a user's at the row's own, others at unit
    bandwidth."""
    resolved = one.resolved
    if is_own(resolved.policy):
        found = units.to_gbps(costs.nic_Bps), costs.delay_s
    elif resolved.first == "pays":  # asked for the demand alone
        return None
    else:
        found = np.full(np.shape(costs.nic_Bps), units.to_gbps(1.0)), costs.delay_s * costs.nic_Bps
    return np.stack(found, axis=-1).astype(resolved.case.run.dtype)


def split_keys(key: Any, shape: tuple[int, ...]) -> Any:
    """Key data [N *shape 2] of keys split from each of those [N 2]."""
    split = lambda one: jax.random.key_data(jax.random.split(jax.random.wrap_key_data(one), shape))  # noqa: E731
    return jax.vmap(split)(key)
