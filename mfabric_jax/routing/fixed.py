"""All-to-alls on links that do not change: packet switches, or circuits alone.

Over circuits alone, servers without one of their own reach each other through servers that forward.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from mfabric_jax.checks import InputError
from mfabric_jax.fabric.direct_links import DirectLinks
from mfabric_jax.fabric.electrical import Electrical
from mfabric_jax.fabric.network import Network, network_of
from mfabric_jax.flows import FlowProblem, completion_times
from mfabric_jax.routing.electrical import spray_time
from mfabric_jax.routing.region import between_servers
from mfabric_jax.routing.shortest import shortest_routes
from mfabric_jax.traffic import server_bytes


@functools.singledispatch
def fixed_time(group, demand: Float[Array, "R R"], ranks_per_server: int) -> Float[Array, ""]:
    """Exact fluid completion of one all-to-all between ranks of different servers [s].

    - `group`: `Electrical` ports, under spraying; or `DirectLinks`, whose servers forward.
    """
    raise TypeError(f"group must be Electrical or DirectLinks, got {type(group).__name__}.")


fixed_time.register(Electrical, spray_time)


@fixed_time.register
def _(group: DirectLinks, demand, ranks_per_server: int):
    return forward_time(group, server_bytes(demand, ranks_per_server))


def circuit_network(count) -> Network:
    """Circuits [W W] as a network of servers, its links in row-major order, of as many NICs as there are circuits."""
    count = np.asarray(count)
    servers = len(count)
    a, b = (x.ravel() for x in np.mgrid[:servers, :servers])
    return network_of([("circuit", a, b, count.ravel().astype(float))], (("server", servers),), 0.0)


def wired(fabric: DirectLinks, count) -> DirectLinks:
    """The fabric with circuits `count` [W W] and every pair's ways over them: all that are shortest, in equal parts.

    Host side. W / S groups share these circuits. `InputError` where the circuits do not join all servers.
    """
    count = np.asarray(count)
    servers = fabric.servers
    if len(count) % servers:
        raise InputError(f"count must be of whole groups of {servers} servers, got {list(count.shape)}.")
    group, i, j = (x.ravel() for x in np.mgrid[: len(count) // servers, :servers, :servers])
    a, b = group * servers + i, group * servers + j
    pair = np.flatnonzero(a != b)
    routes = shortest_routes(circuit_network(count), a[pair], b[pair])
    hops, share = np.full((len(a), routes.hops.shape[1]), -1), np.ones((len(a), routes.hops.shape[1]))
    hops[pair], share[pair] = routes.hops, np.where(routes.hops >= 0, routes.share, 1)
    return dataclasses.replace(
        fabric, count=jnp.asarray(count), hops=jnp.asarray(hops, jnp.int32), share=jnp.asarray(share)
    )


def forward_time(fabric: DirectLinks, demand: Float[Array, "S S"]) -> Float[Array, ""]:
    """Exact fluid completion of one all-to-all between servers [s]; forwarding costs nothing but bandwidth.

    - `demand` [S S] bytes of every group that shares the links; the diagonal is ignored. Of several groups the mean.
    """
    if fabric.count is None or fabric.hops is None or fabric.share is None:
        raise InputError("direct links need circuits before they carry anything; see wired(group, count).")
    return _forwarded(fabric, between_servers(fabric, demand))


@jax.jit
def _forwarded(fabric: DirectLinks, demand: Float[Array, "S S"]) -> Float[Array, ""]:
    assert fabric.count is not None
    assert fabric.hops is not None
    assert fabric.share is not None
    capacity = fabric.count.reshape(-1).astype(demand.dtype) * jnp.asarray(fabric.nic_Bps, demand.dtype)
    problem = FlowProblem(capacity, fabric.hops, fabric.share.astype(demand.dtype))
    finish = completion_times(problem, jnp.tile(demand.reshape(-1), fabric.groups)).finish
    return finish.reshape(fabric.groups, -1).max(axis=1, initial=0).mean()
