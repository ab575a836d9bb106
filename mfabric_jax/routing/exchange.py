"""Seconds of an all-to-all between servers, under a routing by name or a function of the user's own."""

from collections.abc import Callable

from jaxtyping import Float

from mfabric_jax.case.policies import ROUTINGS
from mfabric_jax.checks import one_of, whole
from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.routing.region import fluid_lower_bound
from mfabric_jax.routing.relay import Plan
from mfabric_jax.routing.relay_steps import relay_shares
from mfabric_jax.support.array_module import Array

SHARE_STEPS = 60  # gradient steps towards the relay shares of an all-to-all
Routing = str | Callable[..., Array]  # a name, or (region, circuits, demand) -> seconds


def check_routing(routing: Routing, share_steps: int) -> None:
    """Raise `InputError` for an unknown name, or for `share_steps` that are no whole number of at least 0."""
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
