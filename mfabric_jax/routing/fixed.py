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
from mfabric_jax.fabric.direct_links import DirectLinks, Mesh, mesh_of
from mfabric_jax.fabric.electrical import Electrical, Star
from mfabric_jax.flows import FlowProblem, completion_times, star_completion
from mfabric_jax.routing.electrical import away_from_server, by_rail, spray_time
from mfabric_jax.routing.mesh import mesh_routes, most_at_once
from mfabric_jax.routing.region import between_servers
from mfabric_jax.traffic import server_bytes


@functools.singledispatch
def fixed_time(group, demand: Float[Array, "R R"], ranks_per_server: int) -> Float[Array, ""]:
    """Exact fluid completion of one all-to-all between ranks of different servers [s].

    - `group`: `Electrical` ports, under spraying; the `Star` of ports that a failure leaves of them; or `DirectLinks`.
    """
    raise TypeError(f"group must be Electrical or DirectLinks, got {type(group).__name__}.")


fixed_time.register(Electrical, spray_time)


@fixed_time.register
def _(group: Star, demand, ranks_per_server: int):
    demand = demand * (1 - jnp.eye(len(demand), dtype=demand.dtype))
    gpus = jnp.kron(demand, jnp.eye(group.gpus_per_rank, dtype=demand.dtype)) / group.gpus_per_rank
    sits = jnp.asarray(group.sits)
    between = away_from_server(sits.T @ gpus @ sits, group.per_server)
    between = by_rail(between, group.per_server) if group.pxn else between
    carried = group.carries.T @ between @ group.carries
    return star_completion(carried, group.port, group.port, group.edge, group.edge).max(initial=0)


@fixed_time.register
def _(group: DirectLinks, demand, ranks_per_server: int):
    return forward_time(group, server_bytes(demand, ranks_per_server))


def wired(fabric: DirectLinks, count=None) -> DirectLinks:
    """The fabric with every pair's ways over its links, or over circuits `count` [W W] in their place.

    Host side. W / S groups share these circuits. `InputError` where the links do not join all servers.
    """
    mesh, servers, groups = fabric.mesh, fabric.servers, fabric.groups
    if count is not None:
        mesh, groups = mesh_of(count), len(np.asarray(count)) // servers
        if len(np.asarray(count)) % servers:
            raise InputError(f"count must be of whole groups of {servers} servers, got {list(np.shape(count))}.")
    assert mesh is not None
    group, i, j = (x.ravel() for x in np.mgrid[:groups, :servers, :servers])
    a, b = group * servers + i, group * servers + j
    pair = np.flatnonzero(a != b)
    routes = mesh_routes(mesh, a[pair], b[pair])
    hops, share = np.full((len(a), routes.hops.shape[1]), -1), np.ones((len(a), routes.hops.shape[1]))
    hops[pair], share[pair] = routes.hops, np.where(routes.hops >= 0, routes.share, 1)
    ways = {"hops": jnp.asarray(hops, jnp.int32), "share": jnp.asarray(share)}
    return dataclasses.replace(fabric, mesh=mesh, groups=groups, **ways, **_shared_rates(fabric, mesh))


def _shared_rates(fabric: DirectLinks, mesh: Mesh) -> dict[str, float]:
    """`ring_nics` and `stage_nics`, where the fabric leaves them to its links."""
    rates, stage = {}, fabric.stage
    if fabric.ring_nics is None:
        src, dst = (x.ravel() for x in np.mgrid[:stage, :stage])
        away = src != dst
        one = stage == 1
        rates["ring_nics"] = fabric.nics if one else most_at_once(mesh, src[away], dst[away], 1 / (stage - 1))
    if fabric.stage_nics is None:
        src = np.arange(mesh.servers - stage)
        rates["stage_nics"] = most_at_once(mesh, src, src + stage) if len(src) else fabric.nics
    return {name: float(rate) for name, rate in rates.items()}


def forward_time(fabric: DirectLinks, demand: Float[Array, "S S"]) -> Float[Array, ""]:
    """Exact fluid completion of one all-to-all between servers [s]; forwarding costs nothing but bandwidth.

    - `demand` [S S] bytes of every group that shares the links; the diagonal is ignored. Of several groups the mean.
    """
    if not fabric.joined:
        raise InputError("direct links need circuits before they carry anything; see wired(group, count).")
    return _forwarded(fabric, between_servers(fabric, demand))


@jax.jit
def _forwarded(fabric: DirectLinks, demand: Float[Array, "S S"]) -> Float[Array, ""]:
    assert fabric.mesh is not None
    assert fabric.hops is not None
    assert fabric.share is not None
    capacity = jnp.asarray(fabric.mesh.nics, demand.dtype) * jnp.asarray(fabric.nic_Bps, demand.dtype)
    problem = FlowProblem(capacity, fabric.hops, fabric.share.astype(demand.dtype))
    finish = completion_times(problem, jnp.tile(demand.reshape(-1), fabric.groups)).finish
    return finish.reshape(fabric.groups, -1).max(axis=1, initial=0).mean()
