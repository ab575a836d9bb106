"""The demand of an all-to-all: checked bytes between servers, and the seconds that loads take."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from mfabric_jax.checks import InputError
from mfabric_jax.fabric import Region
from mfabric_jax.fabric.direct_links import DirectLinks
from mfabric_jax.support.array_module import array_module
from mfabric_jax.support.arrays import floats, known_values, mark_forbidden
from mfabric_jax.support.host_arrays import FROM_0_TO_INFINITY, NAN_OR_NOT_NEGATIVE, NumberRule, refuse


def between_servers(
    region: Region | DirectLinks, demand: Any, field: str = "demand", rule: NumberRule = NAN_OR_NOT_NEGATIVE
) -> Float[Array, "S S"]:
    """Return the demand as floats with a zero diagonal.

    Raise `InputError` if bytes between servers break `rule`. Traced negative values become NaN instead.
    """
    demand, servers = floats(field, demand), region.servers
    if demand.shape != (servers, servers):
        raise InputError(f"{field} must be [S S] with S = {servers} servers, got {list(demand.shape)}.")
    return _without_own(field, demand, rule)


def demands_between_servers(region: Region, demands: Any, field: str, axis: str = "K") -> Float[Array, "K S S"]:
    """Return `between_servers` of one or more demands; NaN is not allowed."""
    demands, servers = floats(field, demands), region.servers
    if demands.ndim != 3 or demands.shape[1:] != (servers, servers) or not len(demands):
        wanted = f"[{axis} S S] with S = {servers} servers and at least one demand"
        raise InputError(f"{field} must be {wanted}, got {list(demands.shape)}.")
    return _without_own(field, demands, FROM_0_TO_INFINITY)


def _without_own(field: str, demand: Float[Array, "... S S"], rule: NumberRule) -> Float[Array, "... S S"]:
    own = np.eye(demand.shape[-1], dtype=bool)
    if (known := known_values(demand)) is not None:
        refuse(field, np.where(own, 0, known), rule)
    else:
        demand, own = mark_forbidden(demand, FROM_0_TO_INFINITY), jnp.eye(demand.shape[-1], dtype=bool)
    return jnp.where(own if demand.ndim == 2 else own[None], 0, demand)


def over(load: Any, capacity: Any):
    xp, dead = array_module(load, capacity), capacity <= 0  # not true of NaN, which stays NaN
    return xp.where(load != 0, xp.where(dead, xp.inf, load / xp.where(dead, 1, capacity)), 0)
