"""What of an all-to-all's bytes takes circuits and what the electrical ports, and how fast at most: as messages."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from mfabric_jax.checks import one_of
from mfabric_jax.fabric import Region
from mfabric_jax.routing.region import (
    ROUTINGS,
    between_servers,
    circuit_rates,
    direct_seconds,
    kept_on_circuits,
    relay_part_bounds,
)
from mfabric_jax.routing.relay import Plan
from mfabric_jax.routing.split import split_seconds


class Ways(NamedTuple):
    """Of every pair of servers [S S]: bytes on circuits and over the electrical ports, and bytes/s of either at most
    (infinity: what max-min sharing gives)."""

    optical: Float[Array, "S S"]
    optical_rate: Float[Array, "S S"]
    electrical: Float[Array, "S S"]
    electrical_rate: Float[Array, "S S"]


def ways_of(region: Region, plan: Plan, demand: Float[Array, "S S"], *, routing: str = "unsplit") -> Ways:
    """Messages that, on ports shared max-min fairly, end when `part_times` says (of relay: `relay_part_bounds`).

    Circuits: each pair at their speed; under relay all at the pace at which the busiest circuit is through. Electrical
    ports: shared max-min fairly under unsplit and best-path, paced to end together under split and relay.
    """
    one_of("routing", routing, ROUTINGS)
    demand = between_servers(region, demand)
    rate, port = circuit_rates(region, plan.circuits, demand), jnp.asarray(region.eps_Bps, demand.dtype)
    if routing == "relay":
        assert plan.shares is not None
        optical_s, electrical_s = relay_part_bounds(region, plan, demand)
        electrical = demand * plan.shares[..., -1]
        optical = demand - electrical
        return Ways(optical, _paced(optical, optical_s), electrical, _paced(electrical, electrical_s))
    if routing == "split":
        seconds = split_seconds(demand, rate, port)
        optical = jnp.minimum(demand, jnp.where(rate > 0, rate * seconds, 0))
        return Ways(optical, rate, demand - optical, _paced(demand - optical, seconds))
    on_circuits = rate > 0
    if routing == "best-path":
        on_circuits = kept_on_circuits(direct_seconds(region, plan.circuits, demand), demand, port)
    optical = jnp.where(on_circuits, demand, 0)
    return Ways(optical, rate, demand - optical, jnp.full_like(demand, jnp.inf))


def _paced(size: Float[Array, "S S"], seconds: Float[Array, ""]) -> Float[Array, "S S"]:
    """Bytes/s with which all of them end together."""
    return jnp.where(seconds > 0, size / jnp.where(seconds > 0, seconds, 1), 0)
