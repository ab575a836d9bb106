"""All-to-all over circuits alone: servers without one of their own reach each other through servers that forward."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from mfabric_jax.checks import InputError
from mfabric_jax.fabric.direct_links import DirectLinks
from mfabric_jax.fabric.network import network_of
from mfabric_jax.flows import FlowProblem, completion_times
from mfabric_jax.routing.region import as_demand
from mfabric_jax.routing.shortest import shortest_routes


def wired(fabric: DirectLinks, count) -> DirectLinks:
    """The fabric with circuits `count` [S S] and every pair's ways over them: all that are shortest, in equal parts.

    Host side. `InputError` where the circuits do not join all servers.
    """
    count = np.asarray(count)
    servers = fabric.servers
    a, b = (x.ravel() for x in np.mgrid[:servers, :servers])
    network = network_of([("circuit", a, b, count.ravel().astype(float))], (("server", servers),), 0.0)
    pair = np.flatnonzero(a != b)
    routes = shortest_routes(network, a[pair], b[pair])
    hops, share = np.full((servers**2, routes.hops.shape[1]), -1), np.ones((servers**2, routes.hops.shape[1]))
    hops[pair], share[pair] = routes.hops, np.where(routes.hops >= 0, routes.share, 1)
    return dataclasses.replace(
        fabric, count=jnp.asarray(count), hops=jnp.asarray(hops, jnp.int32), share=jnp.asarray(share)
    )


def forward_time(fabric: DirectLinks, demand: Float[Array, "S S"]) -> Float[Array, ""]:
    """Exact fluid completion of one all-to-all between servers [s]; forwarding costs nothing but bandwidth.

    - `demand` [S S] bytes; the diagonal is ignored.
    """
    if fabric.count is None or fabric.hops is None or fabric.share is None:
        raise InputError("direct links need circuits before they carry anything; see wired(group, count).")
    demand = as_demand(demand)
    if demand.shape != (fabric.servers, fabric.servers):
        raise InputError(f"demand must be [S S] with S = {fabric.servers} servers, got {list(demand.shape)}.")
    return _forwarded(fabric, demand)


@jax.jit
def _forwarded(fabric: DirectLinks, demand: Float[Array, "S S"]) -> Float[Array, ""]:
    assert fabric.count is not None
    assert fabric.hops is not None
    assert fabric.share is not None
    size = jnp.where(jnp.eye(fabric.servers, dtype=bool), 0, demand).reshape(-1)
    capacity = fabric.count.reshape(-1).astype(demand.dtype) * jnp.asarray(fabric.nic_Bps, demand.dtype)
    problem = FlowProblem(capacity, fabric.hops, fabric.share.astype(demand.dtype))
    return completion_times(problem, size).finish.max(initial=0)
