"""All-to-alls whose flows each take one path at random, as packet simulators without spraying run them.

A flow joins one GPU to one GPU: for every pair of ranks one for each tensor-parallel slice. Paths are drawn once, from
a seed, and stay. On circuits: each flow on one of its pair's. On a tree: each flow on one shortest path (ECMP).
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from mfabric_jax.checks import InputError, whole
from mfabric_jax.fabric import Circuits, Cluster, Region
from mfabric_jax.fabric.direct_links import DirectLinks
from mfabric_jax.fabric.electrical import Electrical
from mfabric_jax.flows import FlowProblem, completion_times, star_completion
from mfabric_jax.routing.cluster import cluster_routes, links_of
from mfabric_jax.routing.region import between_servers, direct_seconds
from mfabric_jax.routing.shortest import Routes, shortest_routes

MOST_CIRCUITS = 64  # of a pair, for which draws are kept


class SinglePaths(eqx.Module):
    """The path of every flow of expert-parallel groups whose all-to-alls, all alike, share links that do not change.

    - `source`, `target` [F]: ranks, of one group after the other; each flow carries 1 / `slices` of what they exchange.
    - `hops`, `share` [F H]: the links of its path.   - `capacity` [L]: of the links, over that of a NIC.
    - `groups` (static): as many flows each.
    """

    source: Int[Array, "F"]
    target: Int[Array, "F"]
    hops: Int[Array, "F H"]
    share: Float[Array, "F H"]
    capacity: Float[Array, "L"]
    slices: int = eqx.field(static=True)
    groups: int = eqx.field(static=True, default=1)

    @jax.jit
    def time(self, fabric: Electrical | DirectLinks, demand: Float[Array, "R R"]) -> Float[Array, ""]:
        """Exact fluid completion of one all-to-all between ranks [s]; of several groups the mean of theirs."""
        capacity = self.capacity.astype(demand.dtype) * jnp.asarray(fabric.nic_Bps, demand.dtype)
        size = demand[self.source, self.target] / self.slices
        problem = FlowProblem(capacity, self.hops, self.share.astype(demand.dtype))
        return completion_times(problem, size).finish.reshape(self.groups, -1).max(axis=1, initial=0).mean()


class _GroupFlows(NamedTuple):
    """Flows that leave their server: groups and ranks, GPUs of the cluster [F] each."""

    group: np.ndarray
    source: np.ndarray
    target: np.ndarray
    src: np.ndarray
    dst: np.ndarray

    @classmethod
    def between(cls, gpus_per_server: int, groups: int, ranks: int, slices: int) -> "_GroupFlows":
        """Of every pair of ranks of a group, one for each of the `slices` GPUs of a rank; groups follow each other."""
        group, source, target, slice_ = (x.ravel() for x in np.mgrid[:groups, :ranks, :ranks, :slices])
        src, dst = ((group * ranks + rank) * slices + slice_ for rank in (source, target))
        away = src // gpus_per_server != dst // gpus_per_server
        return cls(*(column[away] for column in (group, source, target, src, dst)))


def single_paths(cluster: Cluster, ranks: int, slices: int, *, groups: int = 1, seed: int = 0) -> SinglePaths:
    """Draw the path of every flow between the servers of groups of `ranks`, each of `slices` GPUs. Host side.

    - `cluster`: the servers of these groups, at any bandwidth; nothing else is on the fabric, and NVSwitches should not
      limit there (what crosses them is timed apart).

    Of several groups those are kept that share links with the first, directly or through others: the rest cannot change
    when it is done.
    """
    flows = _GroupFlows.between(cluster.gpus_per_server, groups, ranks, slices)
    routes = cluster_routes(cluster, flows.src, flows.dst, routing="ecmp", seed=seed)
    return _first_and_its_neighbours(flows, routes, links_of(cluster, "ecmp").capacity / cluster.nic_Bps, slices)


def single_ways(links: DirectLinks, ranks: int, slices: int, gpus_per_server: int, *, seed: int = 0) -> SinglePaths:
    """`single_paths` over circuits alone, where servers forward: one shortest way each, all groups that share links."""
    if links.mesh is None:
        raise InputError("direct links need circuits before ways are drawn; see wired(group, count).")
    network = links.mesh.network
    flows = _GroupFlows.between(gpus_per_server, links.groups, ranks, slices)
    here, there = flows.src // gpus_per_server, flows.dst // gpus_per_server
    routes = shortest_routes(network, here, there, routing="ecmp", seed=seed)
    return _first_and_its_neighbours(flows, routes, network.capacity, slices)


def _first_and_its_neighbours(flows: _GroupFlows, routes: Routes, capacity: np.ndarray, slices: int) -> SinglePaths:
    """The flows of the groups that the first group shares links with, by however many others."""
    there, links = routes.hops >= 0, np.maximum(routes.hops, 0)
    near = flows.group == 0
    while True:
        used = np.zeros(len(capacity), bool)
        used[links[near][there[near]]] = True
        groups = np.unique(flows.group[(used[links] & there).any(axis=1)])
        if len(groups) == len(np.unique(flows.group[near])):
            break
        near = np.isin(flows.group, groups)
    hops, share = jnp.asarray(routes.hops[near], jnp.int32), jnp.asarray(routes.share[near])
    source, target = jnp.asarray(flows.source[near]), jnp.asarray(flows.target[near])
    return SinglePaths(source, target, hops, share, jnp.asarray(capacity), slices, max(1, len(groups)))


@functools.lru_cache(maxsize=32)
def single_part_times(flows: int, nics: int, *, seed: int = 0) -> Callable:
    """`part_times` of a region (unsplit) whose flows do not spread: a function of (region, circuits, demand).

    - `flows`: from a server to another, of equal size; each takes one of the pair's circuits, or one electrical NIC at
      either end.   - `nics`: electrical NICs of a server.
    """
    whole("flows", flows)
    whole("nics", nics)

    @jax.jit
    def parts(region: Region, circuits: Circuits, demand: Float[Array, "S S"]):
        demand = between_servers(region, demand)
        heaviest, ends = _drawn(region.servers, flows, nics, seed)
        count = jnp.clip(circuits.count.astype(jnp.int32), 0, MOST_CIRCUITS)
        active = count > 0
        worst = jnp.take_along_axis(jnp.asarray(heaviest, demand.dtype), count[..., None], 2)[..., 0]
        alone = direct_seconds(region, circuits, demand) * jnp.maximum(count, 1).astype(demand.dtype)
        direct = jnp.where(active, alone, 0) * worst
        rest = jnp.where(active, 0, demand)[:, :, None, None] * jnp.asarray(ends, demand.dtype)  # [S S nic nic]
        ports = region.servers * nics
        star = rest.transpose(0, 2, 1, 3).reshape(ports, ports)
        nic_Bps = jnp.broadcast_to(jnp.asarray(region.eps_Bps, demand.dtype)[..., None] / nics, (region.servers, nics))
        nic_Bps = nic_Bps.reshape(-1)
        return direct.max(initial=0), star_completion(star, nic_Bps, nic_Bps).max(initial=0)

    return parts


@functools.lru_cache(maxsize=32)
def _drawn(servers: int, flows: int, nics: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Of each pair's flows: part on its fullest circuit, by circuits [S S MOST+1]; parts by NIC at either end."""
    rng = np.random.default_rng(seed)
    draw = rng.random((servers, servers, flows))
    heaviest = np.zeros((servers, servers, MOST_CIRCUITS + 1))
    for count in range(1, MOST_CIRCUITS + 1):
        taken = (draw * count).astype(int)
        heaviest[..., count] = (taken[..., None] == np.arange(count)).mean(2).max(2)
    up, down = rng.integers(0, nics, (2, servers, servers, flows))
    on = (up[..., None, None] == np.arange(nics)[:, None]) & (down[..., None, None] == np.arange(nics))
    return heaviest, on.mean(2)
