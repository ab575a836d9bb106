"""What circuits are worth: the time of an all-to-all over the degree bound, under each routing."""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.routing import Plan, degree_bound, fluid_lower_bound, relay_shares
from mfabric_jax.schedule.exchange import RELAY_STEPS

SHARE_STEPS = RELAY_STEPS  # as iterations take


@functools.partial(jax.jit, static_argnames=("routing", "steps"))
def over_bound(
    region: Region, circuits: Circuits, demand: Float[Array, "S S"], routing: str, steps: int
) -> Float[Array, ""]:
    """Time of paced flows over the degree bound; 1 without demand. Relay: with shares that know the demand, by so
    many gradient steps (`relay_shares`)."""
    shares = relay_shares(region, circuits, demand, steps=steps) if routing == "relay" else None
    return plan_over_bound(region, Plan(circuits, shares), demand, routing)


def plan_over_bound(region: Region, plan: Plan, demand: Float[Array, "S S"], routing: str) -> Float[Array, ""]:
    """The same for a plan that has its shares."""
    bound = degree_bound(region, demand)
    return jnp.where(
        bound > 0, fluid_lower_bound(region, plan, demand, routing=routing) / jnp.where(bound > 0, bound, 1), 1
    )
