"""What policies decide from forecasts: a plan for each; one that plans for many demands is given scenarios of it."""

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


def plan_for(name: str, routing: str, mean: Float[Array, "S S"], sigma: float) -> policies.Policy:
    """The policy choosing for that routing where it can, told the sigma of forecasts where it takes one; `mean`: what
    "static" chooses for."""
    if name == SAMPLED and routing == PLANNED:
        return policies.get(name, routes="fixed")
    if name == SAMPLED and routing == "relay":
        return policies.get(name, share_steps=0)  # the scenarios' own shares are of no use to the true demand
    steps = {} if routing == PLANNED else {"share_steps": 0}  # shares of the forecast are of no use to the true demand
    policy = policies.suited(name, routing="unsplit" if routing == "unsplit" else "split", **steps)
    if name == STATIC:
        return jax.tree_util.Partial(policy, mean=mean)
    return jax.tree_util.Partial(policy, sigma=jnp.asarray(sigma)) if takes_sigma(policy) else policy


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


def plans_from(forecast: Forecast, region: Region, name: str, routing: str, many: int) -> Plan:
    """What the policy decides for every demand; sample-average for `many` scenarios of it."""
    seen, keys = forecast.seen, jax.random.split(jax.random.key(0), len(forecast.seen))
    if name == SAMPLED:
        seen = jax.vmap(lambda key, one: likely_demands(key, one, forecast.sigma, many))(keys, seen)
    plans = legal(name, decide(plan_for(name, routing, forecast.mean, forecast.sigma), region, seen, keys), region)
    return Plan(plans.circuits, plans.shares if name != SAMPLED or routing == PLANNED else None)


def known_to(name: str, forecast: Forecast) -> Float[Array, "N S S"]:
    """The demand from which shares are planned where the policy has none of its own."""
    return jnp.broadcast_to(forecast.mean, forecast.seen.shape) if name == STATIC else forecast.seen
