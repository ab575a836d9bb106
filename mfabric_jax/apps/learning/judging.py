"""Judge policies by time over the degree bound. They see a forecast; their circuits then carry the true demand.

`scoreboard` (`mfabric policies bench`) also measures speed and compares with proved optima. `evaluate_policies`
(`mfabric evaluate`) reports confidence intervals on held-out demand.
"""

import dataclasses
import functools
import itertools
import math
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from mfabric_jax import policies
from mfabric_jax.apps.learning.demands import MEAN_OF, HeldOut, held_out_demands
from mfabric_jax.apps.learning.judged_schedules import SCHEDULED, schedules_over_bound
from mfabric_jax.case.policies import ROUTINGS, check_name
from mfabric_jax.checks import (
    InputError,
    check_list,
    check_together,
    check_unread,
    distinct,
    fraction,
    names,
    not_negative,
    one_of,
    positive,
    whole,
)
from mfabric_jax.evaluate.links import RELAY_STEPS
from mfabric_jax.evaluate.problem import DTYPES
from mfabric_jax.evaluate.rows.results import provenance
from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.routing import Plan, degree_bound, fluid_lower_bound, relay_shares
from mfabric_jax.routing.region import part_times
from mfabric_jax.traffic.demand_families import (
    FAMILIES,
    check_folds,
    draw_demands,
    fold_to_servers,
    gate_trace,
    noisy_forecasts,
)
from mfabric_jax.traffic.scenarios import likely_demands

RECORDED = "recorded"
STATIC, SAMPLED = "static", "sample-average"
PLANNED = "relay-planned"  # relay routing whose shares come from the forecast, like the circuits
ROUTED = ("unsplit", "split", "relay")
UNSCORED = ("previous", "exact", SAMPLED)  # with one demand, sample-average equals joint
BENCHED = tuple(name for name in policies.REGISTRY if name not in UNSCORED)
REFERENCE = "greedy"
BASELINES = ("untrained", "uniform", "previous")  # untrained; "previous" keeps the uniform circuits of the start
EVALUATED = ("learned", "index", REFERENCE, "greedy-next", "threshold", "local-search", *BASELINES, STATIC)
PROVED = 1e-4  # relative gap to the bound at which an optimum counts as proved
MOST_PROVED = 16  # optima are computed up to this many servers
RESAMPLED, CONFIDENCE = 2000, 0.95  # of the bootstrap
LATE = functools.partial(np.quantile, q=0.9)
Row = dict[str, Any]


@functools.partial(jax.jit, static_argnames=("routing", "steps"))
def over_bound(
    region: Region, circuits: Circuits, demand: Float[Array, "S S"], routing: str, steps: int
) -> Float[Array, ""]:
    """Return the time of paced flows over the degree bound; 1 without demand.

    Relay shares take `steps` gradient steps.
    """
    shares = relay_shares(region, circuits, demand, steps=steps) if routing == "relay" else None
    return plan_over_bound(region, Plan(circuits, shares), demand, routing)


def plan_over_bound(region: Region, plan: Plan, demand: Float[Array, "S S"], routing: str) -> Float[Array, ""]:
    """Return `over_bound` with the plan's own shares."""
    bound = degree_bound(region, demand)
    seconds = fluid_lower_bound(region, plan, demand, routing=routing)
    return jnp.where(bound > 0, seconds / jnp.where(bound > 0, bound, 1), 1)


class Forecast(NamedTuple):
    name: str  # the sigma, or "predicted"
    seen: Float[Array, "N S S"]
    sigma: float  # standard deviation of the log errors
    mean: Float[Array, "S S"]  # the mean of other demands of the workload


def plan_for(name: str, routing: str, mean: Float[Array, "S S"], sigma: float, risk: str = "mean") -> policies.Policy:
    """Return the policy with its settings for that routing."""
    if name == SAMPLED and routing == PLANNED:
        return policies.get(name, routes="fixed", risk=risk)
    if name == SAMPLED and routing == "relay":
        return policies.get(name, share_steps=0, risk=risk)  # shares are planned later, for the true demand
    steps = {} if routing == PLANNED else {"share_steps": 0}  # shares are planned later, too
    policy = policies.get_suitable(name, routing="unsplit" if routing == "unsplit" else "split", **steps)
    if name == STATIC:
        return jax.tree_util.Partial(policy, mean=mean)
    return jax.tree_util.Partial(policy, sigma=jnp.asarray(sigma)) if takes_sigma(policy) else policy


def decision_routing(name: str, routing: str) -> str:
    """Return the routing that the policy optimises for; several judged routings may share one plan."""
    own_shares = name == SAMPLED or (routing == PLANNED and takes_sigma(policies.get(name)))
    return routing if own_shares or routing == "unsplit" else "split"


def takes_sigma(policy: policies.Policy) -> bool:
    return "sigma" in policies.settings_of(policy)


@eqx.filter_jit
def decide(policy: policies.Policy, region: Region, seen: Float[Array, "N ..."], keys: Array) -> Plan:
    return jax.vmap(lambda demand, key: policy(demand, region, previous=None, key=key))(seen, keys)


def legal(name: str, plans: Plan, region: Region) -> Plan:
    if plans.schedule is not None:
        raise InputError(f"policies must return circuits that stay; {name!r} returns a schedule: see schedules.")
    policies.check_legal(name, np.asarray(plans.circuits.count), int(region.optical_degree))
    return plans


def scenarios_of(forecast: Forecast, many: int, seed: int = 0) -> Float[Array, "N K S S"]:
    keys = jax.random.split(jax.random.key(seed), len(forecast.seen))
    return jax.vmap(lambda key, demand: likely_demands(key, demand, forecast.sigma, many))(keys, forecast.seen)


def plans_from(forecast: Forecast, region: Region, name: str, routing: str, many: int, risk: str = "mean") -> Plan:
    """Return one plan per forecast; sample-average sees `many` scenarios of each."""
    seen = scenarios_of(forecast, many) if name == SAMPLED else forecast.seen
    keys = jax.random.split(jax.random.key(0), len(seen))
    policy = plan_for(name, routing, forecast.mean, forecast.sigma, risk)
    plans = legal(name, decide(policy, region, seen, keys), region)
    return Plan(plans.circuits, plans.shares if name != SAMPLED or routing == PLANNED else None)


def known_demand(name: str, forecast: Forecast) -> Float[Array, "N S S"]:
    """Return the demand for which relay shares are planned if the policy returns none."""
    return jnp.broadcast_to(forecast.mean, forecast.seen.shape) if name == STATIC else forecast.seen


def summary_of(times: np.ndarray, reference: np.ndarray, seed: int) -> dict[str, float]:
    """Return the mean and 90th percentile of `times` [N], the mean gain over `reference` [N], and 95 % intervals."""
    times, gain = times.astype(float), (reference - times).astype(float)
    low, high = interval(times, seed)
    gain_low, gain_high = interval(gain, seed)
    summary = {"over_bound": times.mean(), "low": low, "high": high, "p90": np.quantile(times, 0.9)}
    summary |= {"gain": gain.mean(), "gain_low": gain_low, "gain_high": gain_high}
    return {name: float(value) for name, value in summary.items()}


def interval(values: np.ndarray, seed: int) -> tuple[float, float]:
    again = np.random.default_rng(seed).integers(len(values), size=(RESAMPLED, len(values)))
    low, high = np.quantile(values[again].mean(axis=1), [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)


# ---------------------------------------------------------------------------------------------------- settings
def _check(config: "Scoreboard | Evaluation", sizes: str, many: str) -> None:
    for field in ("policies", sizes, "routings", "sigmas"):
        distinct(field, check_list(field, getattr(config, field)))
    for servers in getattr(config, sizes):
        whole(sizes, servers, at_least=2)
    for sigma in config.sigmas:
        not_negative("sigmas", sigma)
    most = max(getattr(config, sizes))
    check_together(**{many: whole(many, getattr(config, many)), f"{sizes}^2": most**2})
    whole("optical_degree", config.optical_degree, at_least=0)
    whole("electrical_nics", config.electrical_nics)
    fraction("relay_efficiency", config.relay_efficiency)
    whole("seed", config.seed, at_least=0)
    for name in config.policies:
        policies.get_checked(name, getattr(config, sizes), config.optical_degree, routing="split")
    if config.trace is not None:
        check_folds(sizes, getattr(config, sizes))
        policies.check_unseen(config.policies, config.trace, config.records, getattr(config, "axes", None))


@dataclasses.dataclass(frozen=True, kw_only=True)
class OnRegions:
    trace: str | None = None
    """Recorded routing to judge on as well; it is fitted to 16 expert-parallel ranks, and neighbours share a server."""
    records: tuple[int, int] | None = None
    """Range of records of the trace, FIRST-LAST (default for a gate trace: 2011-5001)."""
    optical_degree: int = 6
    """NICs of a server on the optical switch."""
    electrical_nics: int = 2
    """NICs of a server on the electrical fabric."""
    relay_efficiency: float = 1.0
    """Efficiency of forwarding by a third server, at most 1."""
    seed: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scoreboard(OnRegions):
    """What to score: one row for each combination of policy, workload, servers, routing and sigma.

    The policy "static" sees no forecast: it takes greedy-next's circuits for the mean of other demands of the workload.
    """

    policies: tuple[str, ...] = BENCHED
    """Names, FILE.py:FUNCTION, or files that mfabric train wrote."""
    workloads: tuple[str, ...] | None = None
    """zipf, hot, sparse, block, dense, lognormal, skewed (default: these), recorded (also a default with --trace)."""
    servers: tuple[int, ...] = (8, 16)
    """Servers of the region."""
    routings: tuple[str, ...] = ("unsplit", "split", "relay")
    """unsplit, best-path, split, relay."""
    sigmas: tuple[float, ...] = (0.0,)
    """Standard deviations of the forecasts' log errors."""
    instances: int = 60
    """Demands per workload. Of a recording, this number of all-to-alls is drawn without replacement, or all if it has
    fewer."""
    optimum_s: float = 0.0
    """Seconds of exact search per demand (0: none); only for sigma 0, unsplit and split routing, up to 16 servers."""
    axes: str | None = None
    """Axes of a trace that is an array, in order: iteration,layer,micro-batch,source,expert (or destination). Omit axes
    that it lacks."""
    nic_gbps: float = 400.0
    """Bandwidth of every NIC."""
    dtype: str = "float32"
    """float32 or float64."""

    def __post_init__(self):
        for name in check_list("workloads", self.scored_workloads):
            one_of("workloads", name, (*FAMILIES, RECORDED))
        distinct("workloads", self.scored_workloads)
        if RECORDED in self.scored_workloads and self.trace is None:
            raise InputError("workloads 'recorded' needs trace, the recording.")
        for field in ("trace", "records", "axes"):
            if getattr(self, field) is not None and RECORDED not in self.scored_workloads:
                scored_names = ", ".join(self.scored_workloads)
                raise InputError(f"{field} needs the workload 'recorded' in workloads, got {scored_names}.")
        for name in check_list("routings", self.routings):
            one_of("routings", name, ROUTINGS)
        _check(self, "servers", "instances")
        not_negative("optimum_s", self.optimum_s)
        positive("nic_gbps", self.nic_gbps)
        one_of("dtype", self.dtype, DTYPES)

    @property
    def scored_workloads(self) -> tuple[str, ...]:
        if self.workloads is not None:
            return self.workloads
        return tuple(FAMILIES) if self.trace is None else (*FAMILIES, RECORDED)

    @property
    def rows(self) -> int:
        axes = (self.policies, self.scored_workloads, self.servers, self.routings, self.sigmas)
        return math.prod(len(axis) for axis in axes)

    def region(self, servers: int) -> Region:
        gbps, nics, efficiency = (
            jnp.asarray(x, self.dtype) for x in (self.nic_gbps, self.electrical_nics, self.relay_efficiency)
        )
        degree = jnp.asarray(self.optical_degree, jnp.int32)
        return Region(servers, gbps, degree, nics, relay_efficiency=efficiency)

    def effective(self) -> dict[str, Any]:
        settings = dataclasses.asdict(self) | {"workloads": self.scored_workloads}
        return {"command": "policies bench"} | settings | provenance(self.dtype)


def scoreboard_demands(config: Scoreboard) -> list[HeldOut]:
    scored = []
    for servers, workload in itertools.product(config.servers, config.scored_workloads):
        true, others = (jnp.asarray(part, config.dtype) for part in _demands(config, workload, servers))
        scored.append(HeldOut(workload, true, None, others.mean(axis=0)))
    return scored


def _demands(config: Scoreboard, workload: str, servers: int):
    """Return demands of the workload, and others for the mean (the same if a recording has no more)."""
    if workload != RECORDED:
        keys = jax.random.split(jax.random.key(config.seed), config.instances + MEAN_OF)
        every = draw_demands(keys, np.full(len(keys), list(FAMILIES).index(workload)), servers)
        return every[: config.instances], every[config.instances :]
    assert config.trace is not None
    every = fold_to_servers(gate_trace(config.trace, config.records, config.axes).count, servers)
    mixed = np.random.default_rng(config.seed).permutation(len(every))
    chosen, others = np.sort(mixed[: config.instances]), mixed[config.instances :]
    return every[chosen], every[others if len(others) else chosen]


def scoreboard(config: Scoreboard, *, progress: Callable[[str], None] | None = None, start: int = 0) -> Iterator[Row]:
    """Yield each row when it is ready, ordered by size, workload, routing and policy; skip the first `start` rows.

    Times are relative to the degree bound. `mean`, `median` and `p90` are of paced flows (None if no demand has bytes);
    `max_min_mean` is of max-min fair flows (None under relay routing). `of_optimum` and `of_optimum_p90` are relative
    to the `proved` optima. `decisions_per_s` is for one batch of all demands, without `compile_s`.
    """
    tell, cases = progress or (lambda message: None), list(itertools.product(config.policies, config.sigmas))
    for number, (held, routing) in enumerate(itertools.product(scoreboard_demands(config), config.routings)):
        if not (left := cases[max(0, start - number * len(cases)) :]):
            continue
        where = f"{len(held.mean)} servers, {held.name}, {routing}"
        forecasts = {forecast.sigma: forecast for forecast in forecasts_of(config, held)}
        optimum = _optima(config, held, routing, lambda done, where=where: tell(f"{where}, optimum {done}"))
        for name, sigma in left:
            tell(f"{where}, {name}")
            yield _row(config, name, held, routing, forecasts[sigma], optimum)


def _row(config: Scoreboard, name: str, held: HeldOut, routing: str, forecast: Forecast, optimum: np.ndarray) -> Row:
    servers, seen, sigma = len(held.mean), forecast.seen, forecast.sigma
    region = config.region(servers)
    keys = jax.random.split(jax.random.key(config.seed + 2), len(seen))
    plans, compile_s, decide_s = _measure_time(
        decide, plan_for(name, routing, forecast.mean, sigma), region, seen, keys
    )
    count = legal(name, plans, region).circuits.count
    bound, over, max_min = (np.asarray(x, np.float64) for x in _carry(region, count, jnp.asarray(held.demand), routing))
    some = bound > 0
    row = {"policy": name, "workload": held.name, "servers": servers, "routing": routing, "sigma": sigma}
    row |= {"instances": int(some.sum()), "mean": _of(np.mean, over[some]), "median": _of(np.median, over[some])}
    row |= {"p90": _of(LATE, over[some]), "max_min_mean": _of(np.mean, max_min[some]) if routing != "relay" else None}
    proved = some & np.isfinite(optimum) & (sigma == 0)
    of = over[proved] * bound[proved] / optimum[proved]
    row |= {"proved": int(proved.sum()), "of_optimum": _of(np.mean, of), "of_optimum_p90": _of(LATE, of)}
    return row | {"decisions_per_s": len(seen) / decide_s, "compile_s": compile_s}


def _of(measure: Callable, values: np.ndarray) -> float | None:
    return float(measure(values)) if len(values) else None


def _measure_time(work: Callable, *arguments) -> tuple[Any, float, float]:
    marks = [time.perf_counter()]
    for _ in range(2):
        result = jax.block_until_ready(work(*arguments))
        marks.append(time.perf_counter())
    first, again = np.diff(marks)
    return result, max(first - again, 0.0), again


@eqx.filter_jit
def _carry(region: Region, count: Array, true: Float[Array, "N S S"], routing: str):
    """Return the degree bounds [N] in seconds, and times over them [N] of paced flows and of max-min fair flows (not
    for relay)."""

    def carry_demand(count, demand):
        circuits, bound = Circuits(count), degree_bound(region, demand)
        over = over_bound(region, circuits, demand, routing, RELAY_STEPS)
        if routing == "relay":
            return bound, over, over
        fair = jnp.maximum(*part_times(region, circuits, demand, routing=routing))  # the circuits are known to be legal
        return bound, over, fair / jnp.where(bound > 0, bound, 1)

    return jax.vmap(carry_demand)(count, true)


def _optima(config: Scoreboard, held: HeldOut, routing: str, tell: Callable[[int], None]) -> np.ndarray:
    """Return the least paced time of every demand [N] in seconds; NaN if it is not proved or not requested."""
    optima, servers = np.full(len(held.demand), np.nan), len(held.mean)
    if not config.optimum_s or servers > MOST_PROVED or routing not in ("unsplit", "split"):
        return optima
    region = config.region(servers)
    for number, demand in enumerate(np.asarray(held.demand, np.float64)):
        tell(number)
        _, seconds, bound = policies.exact_circuits(region, demand, routing=routing, seconds=config.optimum_s)
        if seconds <= bound * (1 + PROVED):
            optima[number] = seconds
    return optima


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluation(OnRegions):
    """Policies to judge, and the demand on which they are judged. Policies with a routing setting optimise for the
    judged routing (split for relay).
    """

    policies: tuple[str, ...] = EVALUATED
    """Names, FILE.py:FUNCTION, or files that mfabric train wrote. static takes greedy-next's circuits for the
    mean of other demand."""
    routings: tuple[str, ...] = (*ROUTED, PLANNED)
    """Routings. relay plans shares for the true demand; relay-planned takes the policy's shares, or plans them for
    the forecast."""
    sizes: tuple[int, ...] = (8, 16)
    """Servers of the region."""
    sigmas: tuple[float, ...] = (0.0, 0.1, 0.3, 0.6, 1.0)
    """Standard deviations of the forecasts' log errors. Workloads with earlier iterations are predicted as well."""
    samples: int = 70
    """All-to-alls of each workload."""
    share_steps: int = RELAY_STEPS
    """Gradient steps towards relay shares."""
    scenarios: int = 64
    """Scenarios per forecast for which sample-average plans; each adds new errors to the shrunk forecast."""
    schedules: tuple[str, ...] = ()
    """Schedulers that reconfigure during an all-to-all, by name or FILE.py:FUNCTION, whose code is run."""
    delay: float = 0.01
    """Reconfiguration delay of the schedulers' switch, over the degree bound of a demand."""

    def __post_init__(self):
        for name in distinct("schedules", check_list("schedules", self.schedules)) if self.schedules else ():
            check_name(name, "scheduler")
        not_negative("delay", self.delay)
        names("routings", self.routings, (*ROUTED, PLANNED))
        _check(self, "sizes", "samples")
        whole("share_steps", self.share_steps)
        whole("scenarios", self.scenarios)
        if not self.schedules:
            check_unread(self, ("delay",), "schedules")
        if SAMPLED not in self.policies:
            check_unread(self, ("scenarios",), f"policy {SAMPLED}")
        if not {"relay", PLANNED} & set(self.routings):
            check_unread(self, ("share_steps",), f"routings relay and {PLANNED}")
        if self.trace is None:
            check_unread(self, ("records",), "a trace")

    def region(self, servers: int) -> Region:
        """Return a region in float32, like the demands; results do not depend on its bandwidth."""
        efficiency, electrical = (jnp.float32(x) for x in (self.relay_efficiency, self.electrical_nics))
        return Region(servers, jnp.float32(1), self.optical_degree, electrical, relay_efficiency=efficiency)

    def effective(self) -> dict[str, Any]:
        return {"command": "evaluate"} | dataclasses.asdict(self) | provenance("float32")


def evaluate_policies(
    config: Evaluation, progress: Callable[[str], None] | None = None, *, start: int = 0
) -> Iterator[Row]:
    """Yield a row for each workload, number of servers, forecast, routing and policy; skip the first `start` rows.

    `forecast` is a sigma such as "0.3", or "predicted". `over_bound` is the mean time over the degree bound, `low` and
    `high` its 95 % bootstrap interval over demands, `p90` the 90th percentile. `gain` tells how many degree bounds the
    mean is below greedy's on the same demands; `gain_low` and `gain_high` bound it. Schedules have the routing
    "scheduled" and are compared with greedy under split routing.
    """
    done = 0
    each = [(routing, config.policies) for routing in config.routings]
    each += [(SCHEDULED, config.schedules)] if config.schedules else []
    for servers in config.sizes:
        region = config.region(servers)
        for held in held_out_demands(servers, config.samples, config.seed, config.trace, config.records):
            for forecast in forecasts_of(config, held):
                plans = functools.cache(functools.partial(plans_from, forecast, region, many=config.scenarios))
                for routing, judged in each:
                    left, done = judged[max(0, start - done) :], done + len(judged)
                    if not left:
                        continue
                    if progress:
                        progress(f"{held.name}, {servers} servers, forecast {forecast.name}, {routing}")
                    labels = {"workload": held.name, "servers": servers, "forecast": forecast.name, "routing": routing}
                    times = functools.partial(_over, config, region, held, forecast, routing, plans)
                    reference = times(REFERENCE)
                    for name in left:
                        summary = summary_of(times(name), reference, config.seed)
                        yield labels | {"policy": name, "samples": len(forecast.seen)} | summary


def forecasts_of(config: Scoreboard | Evaluation, held: HeldOut) -> Iterator[Forecast]:
    true, mean = jnp.asarray(held.demand), jnp.asarray(held.mean)
    for sigma in config.sigmas:
        keys = jax.random.split(jax.random.key(config.seed + 1), len(true))  # every sigma scales the same noise
        yield Forecast(f"{sigma:g}", noisy_forecasts(keys, true, sigma), sigma, mean)
    if held.predicted is not None:
        yield Forecast("predicted", jnp.asarray(held.predicted), held.error, mean)


def _over(config: Evaluation, region: Region, held: HeldOut, forecast: Forecast, routing, plans, name) -> np.ndarray:
    if routing == SCHEDULED and name != REFERENCE:
        return schedules_over_bound(name, region, forecast.seen, held.demand, config.delay)
    routing = "split" if routing == SCHEDULED else routing
    plan, known = plans(name, decision_routing(name, routing)), known_demand(name, forecast)
    return times_over_bound(region, plan, jnp.asarray(held.demand), known, routing, config.share_steps)


def times_over_bound(
    region: Region, plans: Plan, true: Float[Array, "N S S"], known: Float[Array, "N S S"], routing: str, steps: int
) -> Float[np.ndarray, "N"]:
    """Return every demand's time over its degree bound; relay-planned takes the plan's shares or plans for `known`."""
    return np.asarray(_times(region, plans, true, known, routing, steps))


@functools.partial(jax.jit, static_argnames=("routing", "steps"))
def _times(region: Region, plans: Plan, true, known, routing: str, steps: int) -> Float[Array, "N"]:
    def time(plan: Plan, demand, forecast):
        if routing != PLANNED:
            return over_bound(region, plan.circuits, demand, routing, steps)
        if plan.shares is None:
            plan = Plan(plan.circuits, relay_shares(region, plan.circuits, forecast, steps=steps))
        return plan_over_bound(region, plan, demand, "relay")

    return jax.vmap(time)(plans, true, known)
