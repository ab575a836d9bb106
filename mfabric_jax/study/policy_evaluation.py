"""How good are policies on demand that they were not trained on, known exactly, with errors, or only predicted?"""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mfabric_jax import policies
from mfabric_jax.checks import InputError, distinct, names, not_negative, positive, whole
from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.routing import Plan, relay_shares
from mfabric_jax.study.evaluation_traffic import Workload, check_unseen, workloads
from mfabric_jax.study.judged import SHARE_STEPS, over_bound, plan_over_bound
from mfabric_jax.study.training_traffic import check_folds, misjudged_each

ROUTINGS = ("unsplit", "split", "relay", "relay-planned")
STATIC = "static"
REFERENCE = "greedy"
JUDGED = ("learned", "index", REFERENCE, "greedy-next", "threshold", "local-search", "uniform", STATIC)
RESAMPLED = 2000
CONFIDENCE = 0.95
Row = dict[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What to judge, and on what.

    - `policies`: names of the registry, "static" (greedy rule "next", once, from what is typical of the workload), or
      paths of files that `mfabric train` wrote. Those that know routings choose for the one judged (relay: for split).
    - `routings`: "relay": shares by gradient steps that know the true demand, for everybody's circuits;
      "relay-planned": shares are chosen with the circuits from the forecast, a network's by itself.
    - `sigmas`: standard deviations of the logarithms of forecasts; workloads with a past are predicted too.
    - `samples`: all-to-alls of each workload.   - `share_steps`: gradient steps towards shares.
    - `trace`, `records`: a recording to judge by too, and which part of it.
    """

    policies: tuple[str, ...] = JUDGED
    routings: tuple[str, ...] = ROUTINGS
    sizes: tuple[int, ...] = (8, 16)
    sigmas: tuple[float, ...] = (0.0, 0.1, 0.3, 0.6, 1.0)
    samples: int = 70
    seed: int = 0
    share_steps: int = SHARE_STEPS
    optical_degree: int = 6
    electrical_nics: int = 2
    relay_efficiency: float = 1.0
    trace: str | None = None
    records: tuple[int, int] | None = None

    def __post_init__(self):
        names("routings", self.routings, ROUTINGS)
        for field in ("policies", "sizes", "sigmas"):
            distinct(field, getattr(self, field))
        for name in self.policies:
            named(name, "split")
        for servers in self.sizes:
            whole("sizes", servers, at_least=2)
        if self.trace is not None:
            check_folds("sizes", self.sizes)
            check_unseen(self.policies, self.trace, self.records)
        for sigma in self.sigmas:
            not_negative("sigmas", sigma)
        for field in ("samples", "share_steps", "electrical_nics"):
            whole(field, getattr(self, field))
        for field in ("seed", "optical_degree"):
            whole(field, getattr(self, field), at_least=0)
        if positive("relay_efficiency", self.relay_efficiency) > 1:
            raise InputError(f"relay_efficiency must be at most 1, got {self.relay_efficiency}.")

    def region(self, servers: int) -> Region:
        """In float32, for that is what demands are in; no time over the bound depends on the bandwidth."""
        efficiency, electrical = (jnp.float32(x) for x in (self.relay_efficiency, self.electrical_nics))
        return Region(servers, jnp.float32(1), self.optical_degree, electrical, relay_efficiency=efficiency)


def named(name: str, routing: str) -> policies.Policy:
    """The policy of a name or in a file, choosing for a routing where it can."""
    return policies.get("greedy", rule="next") if name == STATIC else policies.suited(name, routing=routing)


def evaluate_policies(config: Evaluation, progress: Callable[[str], None] | None = None) -> Iterator[Row]:
    """A row for each workload, number of servers, forecast, routing and policy.

    - `forecast`: "0.3" (its sigma) or "predicted".   - `over_bound`: mean time over the degree bound; `low`, `high`:
      its 95 % interval by bootstrap over demands; `p90`.
    - `gain`, `gain_low`, `gain_high`: how much the mean is below that of greedy on the same demands, in degree bounds.
    """
    for servers in config.sizes:
        for workload in workloads(servers, config.samples, config.seed, config.trace, config.records):
            for forecast, seen in _forecasts(config, workload):
                plans = functools.cache(functools.partial(_planned, config.region(servers), workload, seen))
                for routing in config.routings:
                    place = {"workload": workload.name, "servers": servers, "forecast": forecast, "routing": routing}
                    if progress:
                        progress(f"{workload.name}, {servers} servers, forecast {forecast}, {routing}")
                    yield from _rows(config, place, workload, seen, plans)


def _forecasts(config: Evaluation, workload: Workload) -> Iterator[tuple[str, jax.Array]]:
    for sigma in config.sigmas:
        key = jax.random.key(config.seed + 1)  # the same noise, only larger
        keys = jax.random.split(key, len(workload.demand))
        yield f"{sigma:g}", misjudged_each(keys, jnp.asarray(workload.demand), sigma)
    if workload.predicted is not None:
        yield "predicted", jnp.asarray(workload.predicted)


def _seen_by(name: str, workload: Workload, forecast: jax.Array) -> jax.Array:
    """What the policy chooses by."""
    return jnp.broadcast_to(jnp.asarray(workload.mean), forecast.shape) if name == STATIC else forecast


def _planned(region: Region, workload: Workload, forecast: jax.Array, name: str, policy: policies.Policy) -> Plan:
    return _plans(policy, region, _seen_by(name, workload, forecast))


def _rows(
    config: Evaluation, place: Row, workload: Workload, seen: jax.Array, plans: Callable[[str, policies.Policy], Plan]
) -> Iterator[Row]:
    region, routing = config.region(place["servers"]), place["routing"]
    times = {}
    for name in dict.fromkeys((*config.policies, REFERENCE)):
        forecast = _seen_by(name, workload, seen)
        plan = plans(name, named(name, "unsplit" if routing == "unsplit" else "split"))
        demand, steps = jnp.asarray(workload.demand), config.share_steps
        if routing == "relay-planned":
            if plan.shares is None:
                plan = Plan(plan.circuits, _planned_shares(region, plan.circuits, forecast, steps))
            times[name] = np.asarray(_plan_times(region, plan, demand, "relay"))
        else:
            times[name] = np.asarray(_times(region, plan.circuits, demand, routing, steps))
    for name in config.policies:
        yield place | {"policy": name, "samples": len(seen)} | _summary(times[name], times[REFERENCE], config.seed)


@functools.partial(jax.jit, static_argnames="policy")
def _plans(policy: policies.Policy, region: Region, forecasts) -> Plan:
    keys = jax.random.split(jax.random.key(0), len(forecasts))
    return jax.vmap(lambda demand, key: policy(demand, region, key=key))(forecasts, keys)


@functools.partial(jax.jit, static_argnames=("routing", "steps"))
def _times(region: Region, circuits: Circuits, demands, routing: str, steps: int):
    return jax.vmap(lambda one, demand: over_bound(region, one, demand, routing, steps))(circuits, demands)


@functools.partial(jax.jit, static_argnames="routing")
def _plan_times(region: Region, plans: Plan, demands, routing: str):
    return jax.vmap(lambda plan, demand: plan_over_bound(region, plan, demand, routing))(plans, demands)


@functools.partial(jax.jit, static_argnames="steps")
def _planned_shares(region: Region, circuits: Circuits, forecasts, steps: int):
    return jax.vmap(lambda one, seen: relay_shares(region, one, seen, steps=steps))(circuits, forecasts)


def _summary(times: np.ndarray, reference: np.ndarray, seed: int) -> Row:
    times, gain = times.astype(float), (reference - times).astype(float)
    low, high = interval(times, seed)
    gain_low, gain_high = interval(gain, seed)
    found = {"over_bound": times.mean(), "low": low, "high": high, "p90": np.quantile(times, 0.9)}
    found |= {"gain": gain.mean(), "gain_low": gain_low, "gain_high": gain_high}
    return {name: float(value) for name, value in found.items()}


def interval(values: np.ndarray, seed: int) -> tuple[float, float]:
    """Where the mean lies with 95 % confidence: percentiles of the means of samples drawn again with replacement."""
    again = np.random.default_rng(seed).integers(len(values), size=(RESAMPLED, len(values)))
    low, high = np.quantile(values[again].mean(axis=1), [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)
