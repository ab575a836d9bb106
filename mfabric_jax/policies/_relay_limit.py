"""What no circuits and no relaying can beat when forwarded bytes count more."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from mfabric_jax.fabric import Region
from mfabric_jax.routing import degree_bound
from mfabric_jax.routing.region import between_servers


@jax.jit
def relay_limit(region: Region, demand: Float[Array, "S S"]) -> Float[Array, ""]:
    """A bound from below on the time of one all-to-all under relay routing, whatever the circuits [s].

    - `demand` [S S]: bytes from server i to server j; the diagonal is ignored.

    At least the degree bound (`degree_bound`), and that at efficiency 1. Of what a server receives, the bytes K of its
    `degree` largest senders can take circuits directly; the EPS carries what its E ports can, and the rest is relayed:
    K + (all - K - E B T) / efficiency <= degree B T.
    """
    demand = between_servers(region, demand)
    dtype, servers = demand.dtype, region.servers
    place = jnp.arange(servers, dtype=jnp.int32)
    senders = jnp.sort(demand, axis=0, descending=True)  # of every receiver: column
    near = jnp.where(place[:, None] < region.degrees[None], senders, 0).sum(0)
    far = jnp.maximum(demand.sum(0) - near, 0)
    efficiency = jnp.asarray(region.relay_efficiency, dtype)
    ports = jnp.broadcast_to(jnp.asarray(region.electrical_nics, dtype), servers)
    speed = (region.degrees.astype(dtype) + ports / efficiency) * jnp.asarray(region.nic_Bps, dtype)
    seconds = jnp.where(speed > 0, (near + far / efficiency) / jnp.where(speed > 0, speed, 1), 0)
    return jnp.maximum(degree_bound(region, demand), seconds.max(initial=0))
