"""Demand in circuits: how many a pair would need to be through by the degree bound, whatever the unit of bytes."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from mfabric_jax.fabric import Region
from mfabric_jax.routing.region import between_servers


class NormalisedDemand(NamedTuple):
    """- `pairs` [S S]: circuits that would carry i -> j just by the degree bound; the busiest server's rows or columns
      sum to its NICs, no other's to more.
    - `ports` [S]: NICs on the EPS.   - `efficiency` (): of relaying.
    """

    pairs: Float[Array, "S S"]
    ports: Float[Array, "S"]
    efficiency: Float[Array, ""]

    @property
    def dtype(self):
        """Of all numbers."""
        return self.pairs.dtype

    def single(self) -> "NormalisedDemand":
        """In float32, which networks compute in."""
        pairs, ports, efficiency = (x.astype(jnp.float32) for x in self)
        return NormalisedDemand(pairs, ports, efficiency)


def normalised(demand: Float[Array, "S S"], region: Region) -> NormalisedDemand:
    """The demand [bytes] of one all-to-all, measured by what the region can carry; 0 without any demand.

    Bytes of servers that have no NICs at all do not count: nothing can carry them.
    """
    return _normalised(between_servers(region, demand), region)


@jax.jit
def _normalised(demand: Float[Array, "S S"], region: Region) -> NormalisedDemand:
    dtype = demand.dtype
    ports = jnp.broadcast_to(jnp.asarray(region.electrical_nics, dtype), region.servers)
    nics = ports + region.degrees.astype(dtype)
    some = nics > 0
    demand = jnp.where(some[:, None] & some[None, :], demand, 0)
    largest = demand.max(initial=0)
    demand = demand / jnp.where(largest > 0, largest, 1)
    busiest = jnp.maximum(demand.sum(0), demand.sum(1)) / jnp.where(some, nics, 1)
    bound = busiest.max(initial=0)
    pairs = demand / jnp.where(bound > 0, bound, 1)
    return NormalisedDemand(pairs, ports, jnp.asarray(region.relay_efficiency, dtype))
