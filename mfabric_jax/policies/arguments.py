"""Checks of the arguments that all policies share, and circuits for demand that is NaN."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from mfabric_jax.checks import InputError, of_type
from mfabric_jax.fabric import Region
from mfabric_jax.fabric.region import NO_CIRCUITS
from mfabric_jax.routing import Plan
from mfabric_jax.routing.demand import between_servers, demands_between_servers
from mfabric_jax.support.arrays import known_values
from mfabric_jax.support.host_arrays import FROM_0_TO_INFINITY, NumberRule

WITHOUT_RELAY = ("unsplit", "split")  # routings that a policy may optimise for
ROUTINGS = (*WITHOUT_RELAY, "relay")


def demand_of(
    demand: Any, region: Region, field: str = "demand", rule: NumberRule = FROM_0_TO_INFINITY
) -> Float[Array, "S S"]:
    """Return the demand of one region, checked. Known NaN is refused, since circuits cannot mark it."""
    return between_servers(of_type("region", region, Region), demand, field, rule)


def demands_of(demands: Any, region: Region, field: str = "demand") -> Float[Array, "K S S"]:
    return demands_between_servers(of_type("region", region, Region), demands, field)


def circuits_before(previous: Plan | None, region: Region) -> Array | None:
    """Return the circuits [S S] of the previous plan; None if there is none."""
    if previous is None:
        return None
    count = of_type("previous", previous, Plan, hint="Plan(Circuits(count)) makes one from an array").circuits.count
    if count.shape != (region.servers, region.servers):
        wanted = f"[S S] with S = {region.servers} servers"
        raise InputError(f"previous must have circuits {wanted}, got {list(count.shape)}.")
    return count


def unless_nan(count: Int[Array, "S S"], demand: Float[Array, "S S"]) -> Int[Array, "S S"]:
    """Return the circuits, with `NO_CIRCUITS` for pairs whose demand is NaN in either direction.

    Known demand has been checked before. Inside a compiled program, NaN marks demand that is not allowed.
    """
    if known_values(demand) is not None:
        return count
    unknown = jnp.isnan(demand)
    return jnp.where(unknown | unknown.T, jnp.asarray(NO_CIRCUITS, count.dtype), count)
