"""Seconds of a step: those of its all-to-all, and those of waiting for the switch."""

from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Float, Int

from mfabric_jax.case.policies import ROUTINGS
from mfabric_jax.checks import one_of, whole
from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.fabric.region import new_circuits
from mfabric_jax.routing import Plan, fluid_lower_bound, relay_shares
from mfabric_jax.support.array_module import Array

SHARE_STEPS = 60  # gradient steps towards the relay shares of an all-to-all
Routing = str | Callable[..., Array]  # a name, or (region, circuits, demand) -> seconds


def check_routing(routing: Routing, share_steps: int) -> None:
    whole("share_steps", share_steps, at_least=0)
    if not callable(routing):
        one_of("routing", routing, ROUTINGS)


def exchange_s(
    region: Region, circuits: Circuits, demand: Float[Array, "S S"], routing: Routing, share_steps: int
) -> Float[Array, ""]:
    """Return the seconds of an all-to-all; relay shares are those after `share_steps` steps for this demand."""
    if callable(routing):
        return routing(region, circuits, demand)
    if routing == "relay":
        plan = Plan(circuits, relay_shares(region, circuits, demand, steps=share_steps))
        return fluid_lower_bound(region, plan, demand, routing=routing)
    return fluid_lower_bound(region, circuits, demand, routing=routing)


def change_s(before: Int[Array, "S S"], after: Int[Array, "S S"], delay_s: Array, each_s) -> Float[Array, ""]:
    """Return the seconds of a change: `delay_s`, plus `each_s` per new circuit; minus infinity if nothing changes."""
    anew = new_circuits(before, after).astype(delay_s.dtype)
    return jnp.where(jnp.any(after != before), delay_s + each_s * anew, -jnp.inf)
