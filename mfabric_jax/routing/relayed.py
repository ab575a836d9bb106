"""Unsplit routing where one server has lost its way to the packet switches: a peer relays for it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.flows import FlowProblem, completion_times
from mfabric_jax.routing.region import between_servers, circuit_rates


@functools.partial(jax.jit, static_argnames="server")
def relayed_part_times(
    region: Region, circuits: Circuits, demand: Float[Array, "S S"], *, server: int
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """When the circuits and when the EPS are through with their parts of one all-to-all [s], as in `part_times`.

    What `server` has for (or gets from) servers to which it has no circuit crosses its circuits to the peer with which
    it has most, and that peer's electrical ports. Infinity where it has no circuit at all.
    """
    demand, servers = between_servers(region, demand), region.servers
    i, j = (x.ravel() for x in np.mgrid[:servers, :servers])
    links = servers * servers
    active = circuits.count.reshape(-1) > 0
    peer = jnp.argmax(circuits.count[server])
    away, back = ~active & (i == server), ~active & (j == server)
    circuit = jnp.where(active, i * servers + j, jnp.where(away, server * servers + peer, peer * servers + server))
    up, down = jnp.where(away, peer, i), jnp.where(back, peer, j)
    on_eps = ~active & (i != j)
    port_up = jnp.where(on_eps & (up != j), links + up, -1)
    port_down = jnp.where(on_eps & (down != i), links + servers + down, -1)
    hops = jnp.stack([jnp.where(active | away | back, circuit, -1), port_up, port_down], axis=1)
    port = jnp.broadcast_to(jnp.asarray(region.eps_Bps, demand.dtype), servers)
    capacity = jnp.concatenate([circuit_rates(region, circuits, demand).reshape(-1), port, port])
    finish = completion_times(FlowProblem(capacity, hops.astype(jnp.int32)), demand.reshape(-1)).finish
    optical = jnp.where((active | away | back) & (demand.reshape(-1) > 0), finish, 0).max(initial=0)
    return optical, jnp.where(on_eps & (demand.reshape(-1) > 0), finish, 0).max(initial=0)
