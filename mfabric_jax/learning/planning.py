"""What policies decide from forecasts: a plan for each; one that plans for many demands is given scenarios of it.

And how times are summed up, with intervals by bootstrap.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from mfabric_jax import policies
from mfabric_jax.fabric import Region
from mfabric_jax.routing import Plan
from mfabric_jax.traffic.scenarios import likely_demands

STATIC, SAMPLED = "static", "sample-average"
PLANNED = "relay-planned"  # relay routing whose shares are chosen with the circuits, from the forecast


class Forecast(NamedTuple):
    """Demands as policies see them.

    - `name`: their sigma, or "predicted".   - `seen` [N S S].   - `sigma`: of errors, given or estimated.
    - `mean` [S S]: what is typical of other such demand.
    """

    name: str
    seen: Float[Array, "N S S"]
    sigma: float
    mean: Float[Array, "S S"]


def plan_for(name: str, routing: str, mean: Float[Array, "S S"], sigma: float, risk: str = "mean") -> policies.Policy:
    """The policy choosing for that routing where it can, told the sigma of forecasts where it takes one.

    - `mean`: what "static" chooses for.   - `risk`: of the scenarios, for sample-average.
    """
    if name == SAMPLED and routing == PLANNED:
        return policies.get(name, routes="fixed", risk=risk)
    if name == SAMPLED and routing == "relay":
        return policies.get(name, share_steps=0, risk=risk)  # shares of scenarios are of no use to the true demand
    steps = {} if routing == PLANNED else {"share_steps": 0}  # nor are those of the forecast
    policy = policies.suited(name, routing="unsplit" if routing == "unsplit" else "split", **steps)
    if name == STATIC:
        return jax.tree_util.Partial(policy, mean=mean)
    return jax.tree_util.Partial(policy, sigma=jnp.asarray(sigma)) if takes_sigma(policy) else policy


def decided_for(name: str, routing: str) -> str:
    """The routing that a plan for `routing` is made for: for several of them it is the same plan."""
    own_shares = name == SAMPLED or (routing == PLANNED and takes_sigma(policies.get(name)))
    return routing if own_shares or routing == "unsplit" else "split"


def takes_sigma(policy: policies.Policy) -> bool:
    """Whether a policy is told how far forecasts are off."""
    return "sigma" in policies.settings_of(policy)


@eqx.filter_jit
def decide(policy: policies.Policy, region: Region, seen: Float[Array, "N ..."], keys: Array) -> Plan:
    """One plan for each."""
    return jax.vmap(lambda demand, key: policy(demand, region, previous=None, key=key))(seen, keys)


def legal(name: str, plans: Plan, region: Region) -> Plan:
    """The plans, or an `InputError` where they are not legal."""
    policies.check_legal(name, np.asarray(plans.circuits.count), int(region.optical_degree))
    return plans


def scenarios_of(forecast: Forecast, many: int, seed: int = 0) -> Float[Array, "N K S S"]:
    """So many demands that may be true, for each forecast."""
    keys = jax.random.split(jax.random.key(seed), len(forecast.seen))
    return jax.vmap(lambda key, one: likely_demands(key, one, forecast.sigma, many))(keys, forecast.seen)


def plans_from(forecast: Forecast, region: Region, name: str, routing: str, many: int, risk: str = "mean") -> Plan:
    """What the policy decides for every demand; sample-average for `many` scenarios of it."""
    seen = scenarios_of(forecast, many) if name == SAMPLED else forecast.seen
    keys = jax.random.split(jax.random.key(0), len(seen))
    policy = plan_for(name, routing, forecast.mean, forecast.sigma, risk)
    plans = legal(name, decide(policy, region, seen, keys), region)
    return Plan(plans.circuits, plans.shares if name != SAMPLED or routing == PLANNED else None)


def known_to(name: str, forecast: Forecast) -> Float[Array, "N S S"]:
    """The demand from which shares are planned where the policy has none of its own."""
    return jnp.broadcast_to(forecast.mean, forecast.seen.shape) if name == STATIC else forecast.seen


RESAMPLED, CONFIDENCE = 2000, 0.95


def summary_of(times: np.ndarray, reference: np.ndarray, seed: int) -> dict[str, float]:
    """The mean and the late of `times` [N], what it gains on `reference` [N], and their intervals."""
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
