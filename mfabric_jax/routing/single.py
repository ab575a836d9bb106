"""All-to-alls whose flows each take one path at random, as packet simulators without spraying run them.

A flow joins one GPU to one GPU: for every pair of ranks one for each tensor-parallel slice. Paths are drawn once, from
a seed, and stay. On circuits: each flow on one of its pair's. On a tree: each flow on one shortest path (ECMP).
"""

import functools
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from mfabric_jax.checks import whole
from mfabric_jax.fabric import Circuits, Cluster, Region
from mfabric_jax.fabric.electrical import Electrical
from mfabric_jax.flows import FlowProblem, completion_times, star_completion
from mfabric_jax.routing.cluster import cluster_routes, links_of
from mfabric_jax.routing.region import between_servers, direct_seconds

MOST_CIRCUITS = 64  # of a pair, for which draws are kept


class SinglePaths(eqx.Module):
    """The path of every flow of one expert-parallel group on an electrical fabric.

    - `source`, `target` [F]: ranks; each flow carries 1 / `slices` of what they exchange.
    - `hops`, `share` [F H]: the links of its path.   - `capacity` [L]: of the links, over that of a NIC.
    """

    source: Int[Array, "F"]
    target: Int[Array, "F"]
    hops: Int[Array, "F H"]
    share: Float[Array, "F H"]
    capacity: Float[Array, "L"]
    slices: int = eqx.field(static=True)

    @jax.jit
    def time(self, fabric: Electrical, demand: Float[Array, "R R"]) -> Float[Array, ""]:
        """Exact fluid completion of one all-to-all between ranks [s]."""
        capacity = self.capacity.astype(demand.dtype) * jnp.asarray(fabric.nic_Bps, demand.dtype)
        size = demand[self.source, self.target] / self.slices
        problem = FlowProblem(capacity, self.hops, self.share.astype(demand.dtype))
        return completion_times(problem, size).finish.max(initial=0)


def single_paths(cluster: Cluster, ranks: int, slices: int, *, seed: int = 0) -> SinglePaths:
    """Draw the path of every flow between the servers of a group of `ranks`, each of `slices` GPUs. Host side.

    - `cluster`: that group's servers, at any bandwidth; the group has the fabric to itself, and NVSwitches should not
      limit there (what crosses them is timed apart).
    """
    source, target, slice_ = (x.ravel() for x in np.mgrid[:ranks, :ranks, :slices])
    src, dst = source * slices + slice_, target * slices + slice_
    away = src // cluster.gpus_per_server != dst // cluster.gpus_per_server
    routes = cluster_routes(cluster, src[away], dst[away], routing="ecmp", seed=seed)
    hops, share = jnp.asarray(routes.hops, jnp.int32), jnp.asarray(routes.share)
    capacity = jnp.asarray(links_of(cluster, "ecmp").capacity / cluster.nic_Bps)
    return SinglePaths(jnp.asarray(source[away]), jnp.asarray(target[away]), hops, share, capacity, slices)


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
