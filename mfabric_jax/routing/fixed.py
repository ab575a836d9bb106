"""Time of all-to-alls on links that do not change: packet switches, direct links with forwarding, NVSwitches.

Bytes spread over all shortest paths, or (`single_paths`) each flow takes one random path, drawn once from a seed, as in
packet simulators without spraying. A flow connects two GPUs: each pair of ranks has one per tensor-parallel slice.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Float, Int

from mfabric_jax import flows, routing
from mfabric_jax.checks import InputError, whole
from mfabric_jax.fabric import Circuits, Cluster, Region
from mfabric_jax.fabric.direct_links import DirectLinks, Mesh, mesh_of
from mfabric_jax.fabric.electrical import DegradedStar, Electrical
from mfabric_jax.fabric.nic_use import PORTS
from mfabric_jax.fabric.rail_rings import RailRings, RailsLeft
from mfabric_jax.flows.host import EXACT_PORTS
from mfabric_jax.flows.host.star import latest_ends
from mfabric_jax.flows.host_times import finish_times_now
from mfabric_jax.routing.demand import between_servers
from mfabric_jax.routing.region import direct_seconds
from mfabric_jax.support.array_module import Array, align_rank, array_module
from mfabric_jax.traffic.dispatch import by_server, summed_by_server

if TYPE_CHECKING:
    from mfabric_jax.routing.shortest import Routes

MOST_CIRCUITS = 64  # most circuits per pair for which draws are stored
EXACT_WORK = 2 * 256**4  # of a sample, in ports^4: 8 s on one core


class StarLoads(NamedTuple):
    """All-to-alls on a star.

    `size` [... N N]: bytes between ports. `port` [N]: capacity [bytes/s], the same up and down. `edge` [G]: common
    capacity of neighbouring ports; None: no limit.
    """

    size: Float[Array, "... N N"]
    port: Float[Array, "N"]
    edge: Float[Array, "G"] | None

    @property
    def capacities(self) -> tuple[Array, ...]:
        """The port capacities, as arguments of `star_completion`."""
        return (self.port, self.port) if self.edge is None else (self.port, self.port, self.edge, self.edge)


@functools.singledispatch
def fixed_time(group: Any, demand: Float[Array, "R R"], ranks_per_server: int) -> Float[Array, ""]:
    """Return the exact fluid completion time of one all-to-all between ranks of different servers [s].

    `group`: `Electrical` ports under spraying, the `DegradedStar` of ports that remain after a failure, or
    `DirectLinks`.
    """
    raise TypeError(f"group must be Electrical or DirectLinks, got {type(group).__name__}.")


@functools.singledispatch
def fixed_times_now(group: Any, demand: Float[np.ndarray, "B R R"], ranks_per_server: int) -> Float[np.ndarray, "B"]:
    """Return `fixed_time` for many all-to-alls, by compiled loops on the host in float64: no XLA program.

    Of many large ones only a sample is exact (`latest_ends_on`).
    """
    raise TypeError(f"group must be Electrical or DirectLinks, got {type(group).__name__}.")


def latest_ends_on(ports: StarLoads) -> Float[np.ndarray, "B"]:
    """Return when every all-to-all [B N N] ends [s]: exactly up to `EXACT_PORTS` ports, else of a sample.

    The work of an exact end grows with N^4. Of many large all-to-alls a sample, even by load, is computed exactly, so
    that all take about as long as `EXACT_WORK`; the others take `port_bounds` times the sample's mean ratio to it.
    """
    both = np.stack([ports.port, ports.port])
    edges = None if ports.edge is None else np.stack([ports.edge, ports.edge])
    many, n = ports.size.shape[:2]
    exact = many if n <= EXACT_PORTS else min(many, int(EXACT_WORK / n**4))
    if exact == many:
        return _ends_on_rails(ports.size, both, edges)
    bounds = port_bounds(ports)
    sample = np.argsort(bounds, kind="stable")[((np.arange(exact) + 0.5) * many / max(exact, 1)).astype(int)]
    ends = _ends_on_rails(ports.size[sample], both, edges)
    known = np.isfinite(ends) & (bounds[sample] > 0)
    ratio = ends[known].sum() / bounds[sample][known].sum() if known.any() else 1.0
    every = bounds * ratio
    every[sample] = ends
    return every


def _ends_on_rails(size: Float[np.ndarray, "B N N"], port: Float[np.ndarray, "2 N"], edges: Any) -> np.ndarray:
    """Return `latest_ends`. Without edges, ports that are `rails` apart are a star of their own if all bytes are
    between such ports."""
    many, n, _ = size.shape
    rails = 1 if edges is not None else np.gcd.reduce(np.subtract(*(size != 0).any(axis=0).nonzero()), initial=n)
    port_of_rail = port.reshape(2, -1, rails)
    if rails == 1:
        return latest_ends(size, port, edges)
    split = size.reshape(many, n // rails, rails, n // rails, rails)
    each = np.moveaxis(np.diagonal(split, axis1=2, axis2=4), -1, 1)
    if np.ptp(port_of_rail, axis=2).any():
        return np.max([latest_ends(each[:, rail], port_of_rail[..., rail]) for rail in range(rails)], axis=0)
    each = each.reshape(-1, n // rails, n // rails)
    return latest_ends(each, port_of_rail[..., 0]).reshape(many, rails).max(axis=1)


def port_bounds(ports: StarLoads) -> Float[np.ndarray, "B"]:
    """Return the seconds of the busiest port or edge of every all-to-all [B N N], below which none ends [s]."""
    load = np.stack([ports.size.sum(-1), ports.size.sum(-2)], 1)  # [B 2 N]
    capacities = [(load, ports.port)]
    if ports.edge is not None:
        capacities.append((load.reshape(*load.shape[:2], len(ports.edge), -1).sum(-1), ports.edge))
    with np.errstate(divide="ignore", invalid="ignore"):
        each = [np.where(bytes_ > 0, bytes_ / capacity, 0).max((1, 2), initial=0) for bytes_, capacity in capacities]
    return np.max(each, axis=0)


@fixed_time.register
def _(group: DegradedStar, demand: Array, ranks_per_server: int):
    ports = left_ports(group, demand)
    return flows.star_completion(ports.size, *ports.capacities).max(initial=0)


@fixed_times_now.register
def _(group: DegradedStar, demand: Array, ranks_per_server: int):
    return latest_ends_on(left_ports(group, demand))


def left_ports(group: DegradedStar, demand: Float[Array, "... R R"]) -> StarLoads:
    xp = array_module(demand)
    ranks, gpus = demand.shape[-1], group.gpus_per_rank
    demand = demand * (1 - xp.eye(ranks, dtype=demand.dtype))
    slices = xp.eye(gpus, dtype=demand.dtype)[None, :, None, :]
    of_gpus = (demand[..., :, None, :, None] * slices).reshape(*demand.shape[:-2], ranks * gpus, ranks * gpus) / gpus
    sits = xp.asarray(group.sits)
    between = away_from_server(sits.T @ of_gpus @ sits, group.per_server)
    between = by_rail(between, group.per_server) if group.pxn else between
    return StarLoads(group.carries.T @ between @ group.carries, group.port, group.edge)


@fixed_time.register
def _(group: DirectLinks, demand: Array, ranks_per_server: int):
    return forward_time(group, summed_by_server(demand, ranks_per_server))


@fixed_times_now.register
def _(group: DirectLinks, demand: Array, ranks_per_server: int):
    return forward_times_now(group, summed_by_server(demand, ranks_per_server))


@fixed_time.register
def _(group: RailRings, demand: Array, ranks_per_server: int):
    seconds = jax.vmap(lambda rail: forward_time(group, rail))(rail_bytes(demand, ranks_per_server))
    return seconds.max() * rail_port_factor(group, ranks_per_server)


@fixed_times_now.register
def _(group: RailRings, demand: Array, ranks_per_server: int):
    rails = rail_bytes(demand, ranks_per_server)
    seconds = forward_times_now(group, rails.reshape(-1, *rails.shape[-2:]))
    return seconds.reshape(rails.shape[:-2]).max(axis=-1) * rail_port_factor(group, ranks_per_server)


@fixed_times_now.register
def _(group: RailsLeft, demand: Array, ranks_per_server: int):
    rails = np.einsum("Ngst,bgst->Nbst", group.carried, rail_bytes(demand, ranks_per_server))
    there = np.array(group.joined_to)
    seconds = [forward_times_now(add_paths(group.first), rails[0][:, there[:, None], there])]
    seconds += [forward_times_now(group.ring, rail) for rail in rails[1:]]
    return np.max(seconds, axis=0) * PORTS


def rail_bytes(demand: Float[Array, "... R R"], ranks_per_server: int) -> Float[Array, "... g S S"]:
    """Return the bytes between servers on the rails of each local rank; the destination's rank decides the rail."""
    of_server = by_server(away_from_server(demand, ranks_per_server), ranks_per_server).sum(-3)  # [... s t g]
    return array_module(demand).moveaxis(of_server, -1, -3)


def rail_port_factor(group: RailRings, ranks_per_server: int) -> float:
    """Return the factor from one whole NIC's time to the time on all rails of a rank, whose ports are half NICs."""
    return PORTS * ranks_per_server / group.nics


def add_paths(fabric: DirectLinks, count: Any = None) -> DirectLinks:
    """Return the fabric with every pair's paths over its links, or over circuits `count` [W W].

    Runs on the host. Raise `InputError` if the links do not connect all servers.
    """
    mesh, servers, groups = fabric.mesh, fabric.servers, fabric.groups
    if count is not None:
        mesh, groups = mesh_of(count), len(np.asarray(count)) // servers
        if len(np.asarray(count)) % servers:
            raise InputError(f"count must hold whole groups of {servers} servers, got {list(np.shape(count))}.")
    assert mesh is not None
    group, i, j = (x.ravel() for x in np.mgrid[:groups, :servers, :servers])
    a, b = group * servers + i, group * servers + j
    pair = np.flatnonzero(a != b)
    routes = routing.mesh_routes(mesh, a[pair], b[pair])
    hops, share = np.full((len(a), routes.hops.shape[1]), -1), np.ones((len(a), routes.hops.shape[1]))
    hops[pair], share[pair] = routes.hops, np.where(routes.hops >= 0, routes.share, 1)
    fields = {"hops": jnp.asarray(hops, jnp.int32), "share": jnp.asarray(share)}
    return dataclasses.replace(fabric, mesh=mesh, groups=groups, **fields, **_shared_rates(fabric, mesh))


def _shared_rates(fabric: DirectLinks, mesh: Mesh) -> dict[str, float]:
    rates, stage = {}, fabric.stage
    if fabric.ring_nics is None:
        of_mesh = functools.partial(routing.most_at_once, mesh)
        whole = mesh.servers // stage * stage
        rates["ring_nics"] = fabric.nics if stage == 1 else routing.gradient_nics(of_mesh, np.inf, whole, stage)
    if fabric.stage_nics is None:
        src = np.arange(mesh.servers - stage)
        rates["stage_nics"] = routing.most_at_once(mesh, src, src + stage) if len(src) else fabric.nics
    return {name: float(rate) for name, rate in rates.items()}


def forward_time(fabric: DirectLinks, demand: Float[Array, "S S"]) -> Float[Array, ""]:
    """Return the exact fluid time of one all-to-all of `demand` [S S] bytes per group, with forwarding [s]: the mean
    over groups."""
    if fabric.mesh is None or not fabric.has_paths:
        raise InputError("direct links need circuits before they carry anything; see add_paths(fabric, count).")
    size = jnp.tile(between_servers(fabric, demand).reshape(-1), fabric.groups)
    return _mean_of_groups(
        jnp.asarray(fabric.mesh.nics), fabric.nic_Bps, fabric.hops, fabric.share, size, fabric.groups
    )


def forward_times_now(fabric: DirectLinks, demand: Float[np.ndarray, "B S S"]) -> Float[np.ndarray, "B"]:
    """Return `forward_time` for many all-to-alls, by compiled loops on the host in float64."""
    assert fabric.mesh is not None
    size = np.tile(_to_others(demand).reshape(len(demand), -1), fabric.groups)
    return _means_of_groups_now(fabric.mesh.nics, fabric.nic_Bps, fabric.hops, fabric.share, size, fabric.groups)


def _means_of_groups_now(
    nics: Array, nic_Bps: ArrayLike, hops: Any, share: Any, size: Float[np.ndarray, "B F"], groups: int
) -> np.ndarray:
    capacity = np.asarray(nics, float) * np.asarray(nic_Bps, float)
    finish = finish_times_now(capacity, np.asarray(hops), np.asarray(share, float), size)
    return finish.reshape(len(size), groups, -1).max(axis=2, initial=0).mean(axis=1)


@functools.partial(jax.jit, static_argnames="groups")
def _mean_of_groups(
    nics: Array, nic_Bps: ArrayLike, hops: Any, share: Any, size: Array, groups: int
) -> Float[Array, ""]:
    capacity = nics.astype(size.dtype) * jnp.asarray(nic_Bps, size.dtype)
    finish = flows.completion_times(flows.FlowProblem(capacity, hops, share.astype(size.dtype)), size).finish
    return finish.reshape(groups, -1).max(axis=1, initial=0).mean()


# ------------------------------------------------------------------------------------------ packet switches, NVSwitches
@fixed_time.register(Electrical)
@functools.partial(jax.jit, static_argnames="ranks_per_server")
def spray_time(fabric: Electrical, demand: Float[Array, "R R"], ranks_per_server: int) -> Float[Array, ""]:
    """Return the exact fluid completion time of one all-to-all of `demand` [R R] bytes between ranks, sprayed [s].

    Pairs inside a server are ignored. Each rank owns the NICs of its GPUs, or a server's ranks pool them; with pxn,
    bytes leave by the NIC of the destination's rank.
    """
    ports = spray_ports(fabric, demand, ranks_per_server)
    return flows.star_completion(ports.size, *ports.capacities).max(initial=0)


@fixed_times_now.register
def _(group: Electrical, demand: Array, ranks_per_server: int):
    return latest_ends_on(spray_ports(group, demand, ranks_per_server))


def spray_ports(fabric: Electrical, demand: Float[Array, "... R R"], ranks_per_server: int) -> StarLoads:
    """Return the ports that carry all-to-alls between ranks, with their bytes."""
    xp = array_module(fabric, demand)
    ranks = demand.shape[-1]
    between = away_from_server(demand, ranks_per_server)
    edge = xp.broadcast_to(xp.asarray(fabric.together_Bps, demand.dtype), (ranks // ranks_per_server,))
    if fabric.nic_use == "pooled":
        return StarLoads(summed_by_server(between, ranks_per_server), edge, None)
    own = fabric.nics / ranks_per_server * fabric.nic_Bps
    port = xp.broadcast_to(xp.asarray(own, demand.dtype), (ranks,))
    if fabric.own_plane:
        between, port = on_planes(between, fabric.planes), xp.repeat(port, fabric.planes) / fabric.planes
    if fabric.pxn:
        between = by_rail(between, ranks_per_server)
    if fabric.speeds:
        between, port = on_unequal_nics(fabric, between, ranks_per_server)
    below = fabric.oversubscription is None or fabric.pxn  # uplinks do not limit, or bytes stay on rails
    return StarLoads(between, port, None if below else edge)


def away_from_server(demand: Float[Array, "... R R"], ranks_per_server: int) -> Float[Array, "... R R"]:
    server = np.arange(demand.shape[-1]) // ranks_per_server
    same = align_rank(server[:, None] == server[None, :], demand)
    return array_module(demand).where(same, np.zeros((), demand.dtype), demand)


def on_planes(between: Float[Array, "... R R"], planes: int) -> Float[Array, "... N N"]:
    """Return the bytes between ports on planes, N = R x planes; ranks i and j use plane (i + j) mod `planes`."""
    xp, ranks = array_module(between), np.arange(between.shape[-1])
    taken = np.eye(planes)[(ranks[:, None] + ranks) % planes]  # [R R planes]
    both = taken.transpose(0, 2, 1)[..., None] * np.eye(planes)[:, None, :]  # [R planes R planes]
    split = between[..., :, None, :, None] * xp.asarray(both, between.dtype)
    return xp.reshape(split, (*between.shape[:-2], len(ranks) * planes, len(ranks) * planes))


def on_unequal_nics(
    fabric: Electrical, between: Float[Array, "... N N"], ranks_per_server: int
) -> tuple[Float[Array, "... M M"], Float[Array, "M"]]:
    """Return the bytes between NICs of unequal bandwidth, and their bandwidth; `between`: of ranks, or on planes.

    The GPUs of a rank send equal parts, each by its own NIC. GPUs with equal NICs count as one.
    """
    xp, planes = array_module(between), fabric.planes if fabric.own_plane else 1
    speed = np.reshape(fabric.speeds, (ranks_per_server, 1, -1))  # of ranks and their slices
    if not np.ptp(speed, axis=2).any():
        speed = speed.sum(axis=2, keepdims=True)
    slices, n = speed.shape[2], between.shape[-1]
    of_server = np.broadcast_to(speed / planes, (ranks_per_server, planes, slices)).ravel()
    port = np.tile(of_server, n * slices // len(of_server))
    same = align_rank(np.eye(slices, dtype=between.dtype)[:, None, :], between[..., None, :, None])
    sliced = between[..., :, None, :, None] * same / slices
    sliced = xp.reshape(sliced, (*between.shape[:-2], n * slices, n * slices))
    return sliced, xp.asarray(port, between.dtype) * xp.asarray(fabric.nic_Bps, between.dtype)


def by_rail(between: Float[Array, "... R R"], ranks_per_server: int) -> Float[Array, "... R R"]:
    """Return the bytes between NICs under pxn: a server's bytes for rank g elsewhere leave by its own rank g's NICs."""
    rail = np.eye(ranks_per_server, dtype=between.dtype)
    of_server = by_server(between, ranks_per_server).sum(-3)  # [... s t g]
    wide = of_server[..., :, None, :, :]
    return (wide * align_rank(rail[:, None, :], wide)).reshape(between.shape)  # [... s h t g]


def delegated_bytes(fabric: Any, demand: Float[Array, "... R R"], ranks_per_server: int) -> Float[Array, "... S g g"]:
    """Return the bytes that cross each server's NVSwitch to or from the NICs that carry them [... S g g].

    The group's `handover` decides. "none": GPUs use their own NICs; "to the rail": bytes go to the destination's rank;
    "levelled": only a rank's excess over the mean moves; "spread": bytes go to all ranks equally.
    """
    blocks = by_server(away_from_server(demand, ranks_per_server), ranks_per_server)
    gather, scatter = fabric.handover
    if gather in ("none", "to the rail"):
        moved = blocks.sum(-2)  # from rank g of a server to rank h elsewhere
        return moved if gather == "to the rail" else array_module(moved).zeros_like(moved)
    level = functools.partial(_level_load, own=nic_parts(fabric.speeds, ranks_per_server))
    move = {"levelled": level, "spread": _spread}
    return move[gather](blocks.sum((-2, -1))) + move[scatter](blocks.sum((-4, -3))).swapaxes(-1, -2)


def nic_parts(speeds: Sequence[float], ranks: int) -> np.ndarray | None:
    """Return the part of a server's bandwidth at each of its `ranks` [g], in order of NICs; None: all are equal."""
    if not speeds:
        return None
    edges = np.interp(np.linspace(0, len(speeds), ranks + 1), np.arange(len(speeds) + 1), np.cumsum([0, *speeds]))
    return np.diff(edges) / sum(speeds)


def _spread(load: Float[Array, "... S g"]) -> Float[Array, "... S g g"]:
    return array_module(load).broadcast_to(load[..., None] / load.shape[-1], (*load.shape, load.shape[-1]))


def _level_load(load: Float[Array, "... S g"], own: np.ndarray | None) -> Float[Array, "... S g g"]:
    """Return the bytes that ranks move so that each has the same load, or its `own` part [g] of the load."""
    xp = array_module(load)
    if own is None:
        above = load - load.mean(axis=-1, keepdims=True)
    else:
        above = load - load.sum(axis=-1, keepdims=True) * align_rank(xp.asarray(own, load.dtype), load)
    over, under = xp.maximum(above, 0), xp.maximum(-above, 0)
    total = under.sum(axis=-1)[..., None, None]
    part = over[..., :, None] * under[..., None, :]
    return xp.where(total > 0, part / xp.where(total > 0, total, 1), 0)


@jax.jit
def inside_time(demand: Float[Array, "S G G"], gpu_Bps: ArrayLike) -> Float[Array, ""]:
    """Return the time of the slowest all-to-all inside a server [s]: `demand` [S G G] bytes, `gpu_Bps` per rank."""
    rate = lax.optimization_barrier(jnp.asarray(gpu_Bps, demand.dtype))  # XLA would fold each constant copy
    port = jnp.broadcast_to(rate, demand.shape[1])
    finish = jax.vmap(lambda server_demand: flows.star_completion(server_demand, port, port))(_to_others(demand))
    return finish.max(initial=0)


def inside_times_now(demand: Float[np.ndarray, "B S G G"], gpu_Bps: float) -> Float[np.ndarray, "B"]:
    """Return `inside_time` for many demands, by compiled loops on the host in float64."""
    *many, ranks, _ = demand.shape
    ports = StarLoads(_to_others(demand).reshape(-1, ranks, ranks), np.full(ranks, float(gpu_Bps)), None)
    return latest_ends_on(ports).reshape(many).max(axis=-1, initial=0)


def _to_others(demand: Float[Array, "... G G"]) -> Float[Array, "... G G"]:
    return demand * align_rank(1 - np.eye(demand.shape[-1], dtype=demand.dtype), demand)


# ------------------------------------------------------------------------------------------------ one path per flow
class SinglePaths(eqx.Module):
    """One fixed path per flow, for equal expert-parallel groups on shared links; `capacity` [L] is in NICs.

    Each flow carries 1 / `slices` of the bytes between its `source` and `target` rank.
    """

    source: Int[Array, "F"]
    target: Int[Array, "F"]
    hops: Int[Array, "F H"]
    share: Float[Array, "F H"]
    capacity: Float[Array, "L"]
    slices: int = eqx.field(static=True)
    groups: int = eqx.field(static=True, default=1)

    def time(self, fabric: Electrical | DirectLinks, demand: Float[Array, "R R"]) -> Float[Array, ""]:
        """Return the exact fluid completion time of one all-to-all between ranks [s]: the mean over groups."""
        size = demand[self.source, self.target] / self.slices
        return _mean_of_groups(self.capacity, fabric.nic_Bps, self.hops, self.share, size, self.groups)

    def times_now(self, fabric: Electrical | DirectLinks, demand: Float[np.ndarray, "B R R"]) -> Float[np.ndarray, "B"]:
        """Return `time` for many all-to-alls, by compiled loops on the host in float64."""
        size = demand[:, np.asarray(self.source), np.asarray(self.target)] / self.slices
        return _means_of_groups_now(self.capacity, fabric.nic_Bps, self.hops, self.share, size, self.groups)


def single_paths(cluster: Cluster, ranks: int, slices: int, *, groups: int = 1, seed: int = 0) -> SinglePaths:
    """Draw the path of every flow between the servers of `groups` groups of `ranks` ranks, each of `slices` GPUs.

    `cluster` holds the servers of these groups only. The result keeps the groups that share links with the first,
    directly or through others.
    """
    src, dst = leaving_flows(cluster.gpus_per_server, groups, ranks, slices)
    routes = routing.cluster_routes(cluster, src, dst, routing="ecmp", seed=seed)
    return first_and_its_neighbours(
        (src, dst), routes, routing.links_of(cluster, "ecmp").capacity / cluster.nic_Bps, slices, ranks
    )


def single_shortest_paths(
    links: DirectLinks, ranks: int, slices: int, gpus_per_server: int, *, seed: int = 0
) -> SinglePaths:
    """Draw `single_paths` on circuits with forwarding only: one shortest path per flow."""
    if links.mesh is None:
        raise InputError("direct links need circuits before paths are drawn; see add_paths(fabric, count).")
    network = links.mesh.network
    src, dst = leaving_flows(gpus_per_server, links.groups, ranks, slices)
    routes = routing.shortest_routes(network, src // gpus_per_server, dst // gpus_per_server, routing="ecmp", seed=seed)
    return first_and_its_neighbours((src, dst), routes, network.capacity, slices, ranks)


def leaving_flows(
    gpus_per_server: int, groups: int, ranks: int, slices: int, moved: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return both GPUs [F] of all groups' flows between servers; `moved`: a GPU that moved to a spare server."""
    group, source, target, slice_ = (x.ravel() for x in np.mgrid[:groups, :ranks, :ranks, :slices])
    src, dst = ((group * ranks + rank) * slices + slice_ for rank in (source, target))
    away = src // gpus_per_server != dst // gpus_per_server
    if moved is not None:
        away |= (src != dst) & ((src == moved) | (dst == moved))
    return src[away], dst[away]


def first_and_its_neighbours(
    ends: tuple[np.ndarray, np.ndarray], routes: "Routes", capacity: np.ndarray, slices: int, ranks: int
) -> SinglePaths:
    there, links, group = routes.hops >= 0, np.maximum(routes.hops, 0), ends[0] // (slices * ranks)
    near = group == 0
    while True:
        used = np.zeros(len(capacity), bool)
        used[links[near][there[near]]] = True
        groups = np.unique(group[(used[links] & there).any(axis=1)])
        if len(groups) == len(np.unique(group[near])):
            break
        near = np.isin(group, groups)
    hops, share = jnp.asarray(routes.hops[near], jnp.int32), jnp.asarray(routes.share[near])
    source, target = (jnp.asarray(gpu[near] // slices % ranks) for gpu in ends)
    return SinglePaths(source, target, hops, share, jnp.asarray(capacity), slices, max(1, len(groups)))


@functools.lru_cache(maxsize=32)
def single_part_times(many: int, nics: int, *, seed: int = 0) -> Callable[..., Any]:
    """Return the function (region, circuits, demand) -> `part_times` of an unsplit region whose flows do not spread.

    Each of a pair's `many` flows takes one circuit, or one of the `nics` electrical NICs at either end.
    """
    whole("flows", many)
    whole("nics", nics)

    @jax.jit
    def parts(region: Region, circuits: Circuits, demand: Float[Array, "S S"]):
        demand = between_servers(region, demand)
        heaviest, ends = _draw_choices(region.servers, many, nics, seed)
        count = jnp.clip(circuits.count.astype(jnp.int32), 0, MOST_CIRCUITS)
        active = count > 0
        worst = jnp.take_along_axis(jnp.asarray(heaviest, demand.dtype), count[..., None], 2)[..., 0]
        alone = direct_seconds(region, circuits, demand) * jnp.maximum(count, 1).astype(demand.dtype)
        direct = jnp.where(active, alone, 0) * worst
        electrical = jnp.where(active, 0, demand)[:, :, None, None] * jnp.asarray(ends, demand.dtype)  # [S S nic nic]
        ports = region.servers * nics
        star = electrical.transpose(0, 2, 1, 3).reshape(ports, ports)
        nic_Bps = jnp.broadcast_to(jnp.asarray(region.eps_Bps, demand.dtype)[..., None] / nics, (region.servers, nics))
        nic_Bps = nic_Bps.reshape(-1)
        return direct.max(initial=0), flows.star_completion(star, nic_Bps, nic_Bps).max(initial=0)

    return parts


@functools.lru_cache(maxsize=32)
def _draw_choices(servers: int, flows: int, nics: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    draw = rng.random((servers, servers, flows))
    heaviest = np.zeros((servers, servers, MOST_CIRCUITS + 1))
    for count in range(1, MOST_CIRCUITS + 1):
        taken = (draw * count).astype(int)
        heaviest[..., count] = (taken[..., None] == np.arange(count)).mean(2).max(2)
    up, down = rng.integers(0, nics, (2, servers, servers, flows))
    on = (up[..., None, None] == np.arange(nics)[:, None]) & (down[..., None, None] == np.arange(nics))
    return heaviest, on.mean(2)
