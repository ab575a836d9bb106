"""An iteration as a JAX function of a case's numbers, for gradients and for batches on accelerators."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from mfabric_jax.case import Case
from mfabric_jax.case.policies import BOUND
from mfabric_jax.checks import InputError
from mfabric_jax.evaluate.exchanges import exchanges_between, exchanges_inside
from mfabric_jax.evaluate.experts import busy_of_blocks, busy_of_layers, early_of_blocks, early_of_layers, moves_of
from mfabric_jax.evaluate.forecasts import guess_of, planning_selections, sigma_of
from mfabric_jax.evaluate.links import moving, switch_every_block
from mfabric_jax.evaluate.numbers import NetworkOf, Numbers
from mfabric_jax.evaluate.problem import Problem, network_of, numbers_of, own_keys, policy_of_mean
from mfabric_jax.evaluate.resolving.resolve import resolve
from mfabric_jax.evaluate.resolving.resolved import LONG
from mfabric_jax.evaluate.rules import CircuitRule, CircuitSpan, First, trade_off_of
from mfabric_jax.evaluate.solving import problem_at
from mfabric_jax.policies import Policy, takes_many
from mfabric_jax.support.array_module import Array
from mfabric_jax.timing import Rules, iterate
from mfabric_jax.timing.passes import Exchanges
from mfabric_jax.workload import Workload


class IterationOf(eqx.Module):
    """Map a case's numbers, by path (`NUMBERS`), to the seconds of `timing.Iteration` and `exposed_comm_s`."""

    workload: Workload = eqx.field(static=True)
    rules: Rules = eqx.field(static=True)
    rule: CircuitRule = eqx.field(static=True)
    routing: str = eqx.field(static=True)
    scenarios: int = eqx.field(static=True)
    horizon: float | None = eqx.field(static=True)  # of the rule "pays"
    experts: Any = eqx.field(static=True)  # `compute.experts`
    always: bool = eqx.field(static=True)  # the switch reconfigures for every block, even if circuits stay
    acks: float = eqx.field(static=True)  # bytes of acknowledgement per byte of data
    network: NetworkOf
    policy: Policy
    carry: Any
    iterations: dict[str, Any]  # by iteration [I ..]: tokens, key, guess, sigma, past, moves
    run: Any  # selections for which the circuits of a whole run are chosen, and the key of the run

    def __call__(self, case: Numbers) -> dict[str, Array]:
        return self.time(case, self.exchanges(case))

    def exchanges(self, case: Numbers) -> Exchanges:
        """Return the all-to-alls with NICs and NVSwitches of 1 byte/s."""
        group, inputs = (
            self.network.group_at(case),
            {name: x[case["run.sample"]] for name, x in self.iterations.items()},
        )
        tokens, busy, early, moved, experts = inputs["tokens"], None, None, None, self.experts
        if experts.name == "received":
            busy = busy_of_blocks(self.workload, busy_of_layers(self.workload, tokens, experts.tile))
            if experts.combine == "rank":
                parts = early_of_layers(self.workload, group, tokens, experts.tile)
                early = early_of_blocks(self.workload, parts)
        solved = exchanges_between(
            self.workload,
            group,
            tokens,
            self.policy,
            routing=self.routing,
            first=self._first(case, inputs, busy),
            span=self._span(inputs),
            partial=self.rule.partial,
            carry=self.carry,
            acks=self.acks,
            key=inputs["key"],
        )
        if self.always:
            solved = switch_every_block(self.workload, solved)
        if "moves" in inputs:
            moved = moving(self.workload, group, inputs["moves"], self.routing, self.carry)
        inside = exchanges_inside(self.workload, group, tokens)
        return solved._replace(busy=busy, early=early, moved=moved, inside=inside)

    def _first(self, case: Numbers, inputs: dict[str, Any], busy: Any) -> First:
        trade_off = None
        if self.network.weighs:
            trade_off = trade_off_of(self.workload, *self.network.costs(case), self.routing, self.horizon)
            trade_off = trade_off if busy is None else trade_off._replace(busy=busy)
        rule, guess, sigma = self.rule, inputs.get("guess"), inputs.get("sigma")
        return First(rule.name, guess, trade_off, rule.cold, self.scenarios, sigma)

    def _span(self, inputs: dict[str, Any]) -> CircuitSpan:
        if self.run is not None:
            return CircuitSpan(self.rule.span, *self.run)
        return CircuitSpan(self.rule.span, inputs["past"][None] if "past" in inputs else None)

    def time(self, case: Numbers, solved: Exchanges) -> dict[str, Array]:
        """Return the seconds of the iteration with these all-to-alls."""
        rates, seconds = self.network.costs(case)
        times = iterate(self.workload, rates, solved, seconds, rules=self.rules)
        every: dict[str, Any] = times._asdict()
        parts = {name: value for name, value in every.items() if name.endswith("_s")}
        return parts | {"exposed_comm_s": times.exposed_comm_s}


def iteration_of(case: Case) -> tuple[IterationOf, dict[str, Any]]:
    """Return a case's iteration as a function of its numbers, and these numbers by path, to change or sweep.

    Numbers are bandwidths, delays, the rate of computation, `run.sample` (index of the iteration, from 0) and, on
    mFabric, `network.mfabric.optical_degree`. They may be traced and batched, and are not checked; those that are not
    whole may be differentiated. The case fixes everything else; the function raises InputError for any other path.

    Example: `function, numbers = iteration_of(Case())`, then `evaluate(function, grid(**{path: [value] for path, value
    in numbers.items()} | {"circuits.delay_s": [0.001, 0.025]}))`.
    """
    if case.run.replicas != 1:
        raise InputError(f"run.replicas must be 1 for a function of numbers, got {case.run.replicas}.")
    return function_of(problem_at(resolve(case), (case.network.nic_gbps,)))


def function_of(problem: Problem) -> tuple[IterationOf, dict[str, Any]]:
    """Return `iteration_of` for a problem at its first bandwidth."""
    settings, changes, job = problem.resolved, problem.group.reconfigures, problem.workload
    case: Any = settings.case
    if changes and settings.is_scheduled:
        raise InputError("circuits.schedule must be none for a traced function: schedules are planned on the host.")
    dtype, reconfigure, bound = case.run.dtype, case.circuits.reconfigure, changes and settings.first == BOUND
    first = settings.first if changes else "block"
    span = problem.circuits_for if changes and not bound else "all-to-all"
    policy = policy_of_mean(problem)
    function = IterationOf(
        workload=job,
        rules=settings.rules,
        rule=CircuitRule(first, span, case.circuits.cold_start, case.circuits.partial and changes),
        routing=BOUND if bound else settings.routing,
        horizon=settings.horizon,
        scenarios=reconfigure.scenarios if first == "predict" and takes_many(policy) else 0,
        experts=case.compute.experts,
        always=reconfigure.name == "always" and changes,
        acks=settings.carried_by.acks_back,
        network=jax.tree.map(jnp.asarray, network_of(problem, dtype)),
        policy=policy,
        carry=problem.carry,
        iterations=_iterations(problem, first, span),
        run=(jnp.asarray(planning_selections(problem), dtype), jax.random.key(case.run.seed))
        if span == "run"
        else None,
    )
    return function, numbers_of(problem)


def _iterations(problem: Problem, first: str, span: str) -> dict[str, Any]:
    dtype, moves = problem.resolved.case.run.dtype, moves_of(problem)
    values = {"tokens": problem.selections}
    if first == "predict":
        values |= {"guess": guess_of(problem), "sigma": sigma_of(problem)}
    if span in LONG and span != "run":
        values["past"] = planning_selections(problem)
    values |= {} if moves is None else {"moves": moves}
    each = {name: jnp.asarray(x, dtype) for name, x in values.items()}
    return each | {"key": jax.random.wrap_key_data(jnp.asarray(own_keys(problem)))}
