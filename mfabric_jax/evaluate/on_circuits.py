"""All-to-alls on circuits that a policy chooses, for batches of a problem's iterations and cases on the host."""

from typing import Any

import jax
import numpy as np

from mfabric_jax import evaluate, policies, traffic, units
from mfabric_jax.evaluate.asking import degrees_of, in_chunks, region_functions
from mfabric_jax.evaluate.demands import (
    BetweenServers,
    Forecasts,
    Share,
    between_servers,
    forecasts_of,
    forecasts_of_spans,
    in_numbers,
    samples_of_spans,
)
from mfabric_jax.evaluate.links import unit_on_host
from mfabric_jax.evaluate.loads import loads_on_circuits
from mfabric_jax.evaluate.problem import Problem, own_keys, policy_of_mean
from mfabric_jax.evaluate.rules import CircuitRule, TradeOff
from mfabric_jax.evaluate.solver import OnHost, RegionFunctions, Tables
from mfabric_jax.policies import Policy, is_own, reads_of, takes_many
from mfabric_jax.policies.reads import Reads
from mfabric_jax.policies.static import uniform_circuits
from mfabric_jax.support import programs
from mfabric_jax.support.arrays import group_numbers
from mfabric_jax.support.lazily import LazyModule
from mfabric_jax.support.platforms import platform
from mfabric_jax.timing.passes import Exchanges, places

recalling = LazyModule("mfabric_jax.evaluate.recalling")  # only for policies that remember


class OnCircuits:
    """All-to-alls of a problem's iterations on circuits that a policy chooses.

    - `costs` [N]: costs and gains of a reconfiguration in every case; needed only if circuits depend on them.
    - `share`: part of each rank on each server; None: ranks are whole.
    - `policy`, `carried`: replace the problem's policy and routing.
    """

    def __init__(
        self,
        problem: Problem,
        group: Any,
        costs: TradeOff | None,
        share: Share | None = None,
        policy: Policy | None = None,
        carried: Any = None,
    ):
        resolved, case = problem.resolved, problem.resolved.case
        self.where = places(problem.workload)
        self.rule = CircuitRule(resolved.first, problem.circuits_for, case.circuits.cold_start, case.circuits.partial)
        as_set = share is None and policy is None and carried is None
        policy, (demand, even) = policy or policy_of_mean(problem), _between(problem, share)
        functions, reads, start = solver_inputs(problem, group, policy, carried)
        self.costs, busy = (costs, problem.busy) if self.rule.name == "pays" else (None, None)
        self.rates = None if costs is None else policy_rates(problem, costs)
        keyed = reads.key or self.rule.name == "random"
        ahead = _forecasts(problem, self.where, self.rule, policy, demand, share)
        table, self.sent = in_numbers(self.where, demand, even, ahead, keyed=keyed, busy=busy)
        keys = _keys(problem, self.rule, self.sent.key.shape[1:]) if keyed else None
        tables = Tables(table, ahead.samples, ahead.times, keys, self.rates)

        def make() -> OnHost:
            return (recalling.Recalling if reads.memory else OnHost)(tables, start, functions, reads)

        alone = as_set and reads.demand_alone and all(x is None for x in tables[1:])
        of = unit_on_host(group), policy, problem.carry, resolved.routing, resolved.carried_by.acks_back
        self.solver = problem.once(make, "circuits", table, *of, case.run.dtype, platform()) if alone else make()
        self._legal = (resolved.policy_name, np.asarray(group.degrees)) if is_own(resolved.policy) else None

    def loads(self, iteration: np.ndarray, case: np.ndarray, shown: tuple[Any, ...] | None) -> Exchanges:
        """Return the all-to-alls of iterations [C] in cases [C]."""
        sent = self.sent.of(iteration)
        if self.rates is not None:
            sent = sent._replace(case=case)
        costs = None if self.costs is None else of_cases(self.costs, case)
        with self.solver.lock:
            exchanges = loads_on_circuits(self.where, self.solver, sent, self.rule, costs, shown)
        if self._legal is not None:
            name, degrees = self._legal
            policies.check_legal(name, self.solver.counts, degrees)
        return exchanges


def _between(problem: Problem, share: Share | None) -> BetweenServers:
    if share is None:
        return problem.between
    return BetweenServers.of(problem.workload, problem.selections, share)


def solver_inputs(
    problem: Problem, group: Any, policy: Policy, carried: Any = None
) -> tuple[RegionFunctions, Reads, np.ndarray]:
    """Return a group's functions at unit bandwidth, what its policy reads, and uniform circuits."""
    resolved, unit = problem.resolved, unit_on_host(group)
    dtype, carried = resolved.case.run.dtype, carried or problem.carry or resolved.routing
    region: Any = group_numbers(unit, dtype)
    reads = reads_of(policy, region)
    functions = region_functions(unit, policy, reads, carried, resolved.carried_by.acks_back, dtype)
    return functions, reads, uniform_circuits(degrees_of(unit))


def of_cases(costs: TradeOff, case: np.ndarray) -> TradeOff:
    """Return the costs [C ..] of the cases with these numbers."""
    each = {name: x[case] for name, x in costs._asdict().items() if name != "size" and np.ndim(x)}
    return costs._replace(**each)


def _keys(problem: Problem, rule: CircuitRule, steps: tuple[int, ...]) -> np.ndarray:
    """Key data of iterations and of their steps [N 2]."""
    own = parents = own_keys(problem)
    if rule.span == "run":
        of_run = jax.random.key_data(jax.random.key(problem.resolved.case.run.seed))
        parents = np.tile(np.asarray(of_run), (len(own), 1))
    return np.concatenate([own, programs.run(split_keys, parents, steps).reshape(-1, own.shape[-1])])


# ------------------------------------------------------------------------------------------------------------ forecasts
def _forecasts(
    problem: Problem, where: Any, rule: CircuitRule, policy: Policy, demand: np.ndarray, share: Share | None
) -> Forecasts:
    if rule.name == "predict":
        return _predictions(problem, policy)
    return _of_spans(problem, where, rule, policy, demand, share) if rule.long else Forecasts()


def _predictions(problem: Problem, policy: Policy) -> Forecasts:
    reconfigure: Any = problem.resolved.case.circuits.reconfigure
    guess = between_servers(problem.workload, evaluate.guess_of(problem))
    ahead = forecasts_of(guess)
    if not (takes_many(policy) and reconfigure.scenarios):
        return ahead
    dtype, keys = problem.resolved.case.run.dtype, programs.run(split_keys, own_keys(problem), guess.shape[1:3])
    sigma = np.repeat(evaluate.sigma_of(problem), np.prod(guess.shape[1:3])).astype(dtype)
    members = keys.reshape(-1, keys.shape[-1]), ahead.single.astype(dtype), sigma
    samples = in_chunks(likely_of, members, reconfigure.scenarios).astype(float)
    return ahead._replace(single=None, samples=samples)


def _of_spans(
    problem: Problem, where: Any, rule: CircuitRule, policy: Policy, demand: np.ndarray, share: Share | None
) -> Forecasts:
    """Forecasts of long spans; with the span "run", all iterations of a replica share one."""
    seen = [
        between_servers(problem.workload, evaluate.planning_selections(replica), share)
        for replica in problem.each_replica
    ]
    number = np.arange(len(demand))
    if rule.span == "run":
        each, number = [(demand[0], past) for past in seen], number // (len(demand) // len(seen))
    else:
        each = [(own, past[None]) for own, past in zip(demand, np.concatenate(seen), strict=True)]
    each = [samples_of_spans(where, rule.span, *both) for both in each]
    samples, times = (np.stack(part) for part in zip(*each, strict=True))
    return forecasts_of_spans(samples, times, number, takes_many(policy), problem.resolved.case.run.dtype)


def likely_of(key: Any, forecast: Any, sigma: Any, many: int) -> Any:
    """Return demands [B K S S] drawn around forecasts."""
    drawn = jax.vmap(
        lambda key, own_forecast, sigma: traffic.likely_demands(
            jax.random.wrap_key_data(key), own_forecast, sigma, many
        )
    )
    return drawn(key, forecast, sigma)


def policy_rates(problem: Problem, costs: TradeOff) -> np.ndarray | None:
    """Return the bandwidth and delay [N 2] that a policy reads: the row's values for a user's policy, else values at 1
    byte/s.

    None: the policy reads neither.
    """
    resolved = problem.resolved
    if is_own(resolved.policy):
        rates = units.to_gbps(costs.nic_Bps), costs.delay_s
    elif resolved.first == "pays":  # reads the demand alone
        return None
    else:
        rates = np.full(np.shape(costs.nic_Bps), units.to_gbps(1.0)), costs.delay_s * costs.nic_Bps
    return np.stack(rates, axis=-1).astype(resolved.case.run.dtype)


def split_keys(key: Any, shape: tuple[int, ...]) -> Any:
    """Return the data [N *shape 2] of the keys split from each key [N 2]."""
    split = lambda data: jax.random.key_data(jax.random.split(jax.random.wrap_key_data(data), shape))  # noqa: E731
    return jax.vmap(split)(key)
