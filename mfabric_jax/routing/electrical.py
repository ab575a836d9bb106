"""All-to-all on packet-switched fabrics under ideal spraying, and inside servers on the NVSwitch."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from mfabric_jax.fabric import Electrical
from mfabric_jax.flows import star_completion


def spray_time(fabric: Electrical, demand: Float[Array, "R R"], ranks_per_server: int) -> Float[Array, ""]:
    """Exact fluid completion of one all-to-all between ranks of different servers [s].

    - `demand` [R R]: bytes from rank to rank; pairs inside a server are ignored (`inside_time` has them).

    Every rank owns the NICs of its GPUs (a tensor-parallel group's slices are equal, so its NICs pool exactly), or a
    server's ranks pool all of its NICs. An edge switch's uplinks and downlinks are shared by its server's ranks.
    """
    ranks = demand.shape[0]
    servers = ranks // ranks_per_server
    away = jnp.kron(1 - jnp.eye(servers, dtype=demand.dtype), jnp.ones((ranks_per_server,) * 2, demand.dtype))
    between = demand * away
    edge = jnp.broadcast_to(jnp.asarray(fabric.eps_Bps, demand.dtype), servers)
    if fabric.nic_use == "pooled":
        per_server = between.reshape(servers, ranks_per_server, servers, ranks_per_server).sum((1, 3))
        return star_completion(per_server, edge, edge).max(initial=0)
    own = fabric.nics / ranks_per_server * fabric.nic_Bps
    port = jnp.broadcast_to(jnp.asarray(own, demand.dtype), ranks)
    behind = () if fabric.oversubscription is None else (edge, edge)
    return star_completion(between, port, port, *behind).max(initial=0)


def inside_time(demand: Float[Array, "S G G"], gpu_Bps) -> Float[Array, ""]:
    """The all-to-alls inside each server on its NVSwitch, side by side: the slowest [s].

    - `demand` [S G G]: bytes between the G ranks of each server.   - `gpu_Bps`: a rank's NVSwitch rate [bytes/s].
    """
    port = jnp.broadcast_to(jnp.asarray(gpu_Bps, demand.dtype), demand.shape[1])
    other = jnp.where(jnp.eye(demand.shape[1], dtype=bool), 0, 1).astype(demand.dtype)
    finish = jax.vmap(lambda one: star_completion(one * other, port, port))(demand)
    return finish.max(initial=0)
