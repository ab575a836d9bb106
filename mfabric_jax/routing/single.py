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

from mfabric_jax import units
from mfabric_jax.checks import InputError, whole
from mfabric_jax.fabric import Circuits, Electrical, Region, cluster
from mfabric_jax.flows import FlowProblem, completion_times, star_completion
from mfabric_jax.routing.cluster import cluster_routes, links_of
from mfabric_jax.routing.region import between_servers, direct_seconds

MOST_CIRCUITS = 64  # of a pair, for which draws are kept
WIDE = 1e15  # gigabytes/s: no limit
RADIX = 16  # of the tree of 1,024 GPUs: one server under every edge switch


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


def single_paths(
    fabric: Electrical, ranks: int, slices: int, gpus_per_server: int = 8, *, seed: int = 0, radix: int = RADIX
) -> SinglePaths:
    """Draw the path of every flow between the servers of a group of `ranks`, each of `slices` GPUs. Host side.

    The group has the fabric to itself; NVSwitches do not limit here (what crosses them is timed apart).
    """
    servers = max(2, -(-ranks * slices // gpus_per_server))
    over = None if fabric.oversubscription is None else float(fabric.oversubscription)
    settings = {"radix": radix, "oversubscription": over, "pxn": fabric.pxn, "nic_use": fabric.nic_use}
    settings |= {"gpus_per_server": gpus_per_server, "nvswitch_gigabytes_per_s": WIDE}
    if fabric.nics != gpus_per_server:
        raise InputError(f"single paths are drawn for one NIC a GPU ({gpus_per_server}), got {fabric.nics} nics.")
    where = cluster(fabric.name, servers, units.to_gbps(1.0), **settings)
    source, target, slice_ = (x.ravel() for x in np.mgrid[:ranks, :ranks, :slices])
    src, dst = source * slices + slice_, target * slices + slice_
    away = src // gpus_per_server != dst // gpus_per_server
    routes = cluster_routes(where, src[away], dst[away], routing="ecmp", seed=seed)
    hops, share = jnp.asarray(routes.hops, jnp.int32), jnp.asarray(routes.share)
    capacity = jnp.asarray(links_of(where, "ecmp").capacity)
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
