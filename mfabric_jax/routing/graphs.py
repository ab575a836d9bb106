"""Traffic of a job on links that its groups share: all-to-alls, gradient rings, sends between stages.

The links belong to a graph, or to a switch tree whose edge switches hold several servers. Ranks are on GPUs in order:
stage by stage, expert-parallel group by group. All groups of a stage run the same all-to-all at once. A time is the
mean over the slowest groups: the group on the link that carries most in an even all-to-all of any stage, and the groups
that share links with it.
"""

import dataclasses
import functools
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from mfabric_jax.checks import Misfit
from mfabric_jax.fabric import Cluster, FabricGraph
from mfabric_jax.fabric.electrical import Damage, Electrical
from mfabric_jax.fabric.graph_file import FileGraph, kinds_of, load_graph
from mfabric_jax.fabric.graph_links import GraphLinks
from mfabric_jax.routing.cluster import links_of, nic_routes
from mfabric_jax.routing.fixed import leaving_flows
from mfabric_jax.routing.gradients import NEARLY, gradient_nics
from mfabric_jax.routing.graph_paths import GraphPaths, graph_paths_of
from mfabric_jax.routing.shortest import Routes, shortest_loads, shortest_routes
from mfabric_jax.routing.transfers import binding
from mfabric_jax.workload import Workload

SIZED = "least-loaded"  # needs the bytes of every flow, which differ from one all-to-all to the next
PAIRS_AT_ONCE = 1 << 22  # pairs of GPUs that reduce gradients, per batch
_ONE = threading.Lock()  # scenarios are solved in parallel, over the same paths


@dataclasses.dataclass(frozen=True, eq=False)
class SharedLinks:
    """Links that the groups of a stage share, and the paths of flows between GPUs.

    - `network`: capacities in NICs; `ports`: NICs of a GPU; `moved`: a GPU that works on a spare server.
    - `routes(src, dst)`: routes of flows between GPUs [F]; `load(src, dst, amount)`: amount on every link [L].
    """

    network: FabricGraph
    ports: float
    routes: Callable[[np.ndarray, np.ndarray], Routes]
    load: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
    moved: int | None = None

    def over(self, load: np.ndarray) -> float:
        """Return the largest ratio of a link's load to its capacity."""
        used = load > 0
        return float((load[used] / self.network.capacity[used]).max(initial=0))


@functools.singledispatch
def shared_links(group: Any, paths: str, seed: int = 0) -> SharedLinks:
    """Return the links of a graph, or of a tree whose edge switches hold several servers."""
    raise TypeError(f"group must be GraphLinks or Electrical, got {type(group).__name__}.")


@shared_links.register
def _(group: GraphLinks, paths: str, seed: int = 0) -> SharedLinks:
    return _of_graph(load_graph(group.graph_file), paths, seed)


@shared_links.register
def _(group: Electrical, paths: str, seed: int = 0) -> SharedLinks:
    assert group.leaves is not None
    return _of_tree(group.leaves, group.damage)


@functools.lru_cache(maxsize=8)
def _of_graph(graph: FileGraph, paths: str, seed: int) -> SharedLinks:
    if paths == SIZED:
        raise Misfit(f"network.paths must be spray, ecmp or weighted on a graph, got {paths}.")
    network = dataclasses.replace(graph.network, capacity=graph.network.capacity / graph.nic_Bps)
    how: dict[str, Any] = {"routing": paths, "seed": seed, "relay": graph.relays.forward}

    def routes(src: np.ndarray, dst: np.ndarray) -> Routes:
        return shortest_routes(network, graph.nodes[src], graph.nodes[dst], **how)

    def load(src: np.ndarray, dst: np.ndarray, amount: np.ndarray) -> np.ndarray:
        return shortest_loads(network, graph.nodes[src], graph.nodes[dst], amount, **how)

    return SharedLinks(network, _ports(graph, network), routes, load)


@functools.lru_cache(maxsize=8)
def _of_tree(cluster: Cluster, damage: Damage) -> SharedLinks:
    position = np.arange(cluster.gpus)
    if damage.moved is not None:
        position[damage.moved] = cluster.gpus
        tree = dataclasses.replace(cluster.nic_tree, hosts=cluster.nic_tree.hosts + cluster.nics)
        cluster = dataclasses.replace(cluster, servers=cluster.servers + 1, tree=tree)
    network = links_of(cluster)
    capacity = network.capacity / cluster.nic_Bps * damage.part
    for link, part in damage.links:
        capacity[link] *= part
    network = dataclasses.replace(network, capacity=capacity)

    def routes(src: np.ndarray, dst: np.ndarray) -> Routes:
        return nic_routes(cluster, position[src], position[dst], damage.heirs)

    def load(src: np.ndarray, dst: np.ndarray, amount: np.ndarray) -> np.ndarray:
        hops, share = routes(src, dst)
        there = hops >= 0
        return np.bincount(hops[there], (share * amount[:, None])[there], minlength=len(network.tail))

    return SharedLinks(network, cluster.nics / cluster.gpus_per_server, routes, load, damage.moved)


def paths_on_links(group: GraphLinks | Electrical, job: Workload, paths: str, seed: int = 0) -> GraphPaths:
    """Return links and shares of every flow between servers, for the slowest groups of the slowest stage.

    `paths` on a graph: spray (equal shares at every node), weighted, or ecmp (one path, drawn by `seed`).
    """
    with _ONE:
        return _paths(shared_links(group, paths, seed), _Shape.of(job), group.pxn)


class _Shape(NamedTuple):
    """Sizes of a job: GPUs of the job, of a `stage`, of a `server`; ranks of a group; GPUs (`slices`) of a rank."""

    gpus: int
    stage: int
    server: int
    ranks: int
    slices: int

    @staticmethod
    def of(job: Workload) -> "_Shape":
        return _Shape(job.gpus, job.gpus // job.pp, job.gpus_per_server, job.ep, job.tp)


@functools.lru_cache(maxsize=8)
def _paths(links: SharedLinks, shape: _Shape, pxn: bool) -> GraphPaths:
    groups = shape.stage // (shape.ranks * shape.slices)
    moved = None if links.moved is None else links.moved % shape.stage
    src, dst = leaving_flows(shape.server, groups, shape.ranks, shape.slices, moved)
    pxn = pxn and moved is None  # a moved GPU no longer sends the flows of its server
    if pxn:  # bytes leave by the NIC of the destination's rank
        own_rail = src % shape.server == dst % shape.server
        src, dst = src[own_rail], dst[own_rail]
    first = _slowest_stage(links, src, dst, shape)
    routes = binding(links.network, links.routes(first + src, first + dst))
    per_rail = shape.server // shape.slices if pxn else 0
    return graph_paths_of((src, dst), routes, links.network.capacity, shape.slices, shape.ranks, per_rail)


def _slowest_stage(links: SharedLinks, src: np.ndarray, dst: np.ndarray, shape: _Shape) -> int:
    """Return the first GPU of the (first) stage whose busiest link carries most in an even all-to-all."""
    if not len(src):
        return 0
    if links.moved is not None:
        return links.moved // shape.stage * shape.stage
    starts, even = range(0, shape.gpus, shape.stage), np.ones(len(src))
    busiest = [links.over(links.load(first + src, first + dst, even)) for first in starts]
    return starts[int(np.argmax(np.array(busiest) >= max(busiest) * (1 - NEARLY)))]


def add_rates(group: Any, job: Workload, paths: str, seed: int = 0) -> Any:
    """Return the group with the bandwidth of its servers for gradients (`gradient_nics`) and to the next stage.

    All servers send at once, each GPU to the one of equal rank in the other server.
    """
    with _ONE:
        rates = _rates(shared_links(group, paths, seed), _Shape.of(job))
    every = {name: float(group.nics if rate is None else rate * job.gpus_per_server) for name, rate in rates.items()}
    return dataclasses.replace(group, **every)


@functools.lru_cache(maxsize=8)
def _rates(links: SharedLinks, shape: _Shape) -> dict[str, float | None]:
    stage, servers = shape.stage // shape.server, shape.gpus // shape.server

    def most(src: np.ndarray, dst: np.ndarray, part: float) -> float:
        """Return the bandwidth of each GPU, in NICs, if servers send to servers at once, GPU to GPU."""
        step = max(1, PAIRS_AT_ONCE // shape.server)
        parts = [slice(first, first + step) for first in range(0, len(src), step)]
        ends = ([_gpus_of(shape.server, server[some]) for server in (src, dst)] for some in parts)
        load = sum(links.load(src, dst, np.full(len(src), part)) for src, dst in ends)
        return 1 / links.over(np.asarray(load))

    onward = np.arange(servers - stage)
    return {
        "ring_nics": None if stage < 2 else gradient_nics(most, links.ports, servers, stage),
        "stage_nics": most(onward, onward + stage, 1.0) if len(onward) else None,
    }


def _gpus_of(per_server: int, server: np.ndarray) -> np.ndarray:
    return np.add.outer(server * per_server, np.arange(per_server)).ravel()


def _ports(graph: FileGraph, network: FabricGraph) -> float:
    """Return the NICs of a GPU: the links that leave the server with the fewest, divided by its GPUs."""
    server = np.full(network.size, -1)
    server[graph.nodes] = np.arange(len(graph.nodes)) // graph.per_server
    up = np.isin(network.tail, graph.nodes) & (kinds_of(network)[network.head] == "nvswitch")
    server[network.head[up]] = server[network.tail[up]]
    tail, head = server[network.tail], server[network.head]
    out = (tail >= 0) & (tail != head)
    return float(np.bincount(tail[out], network.capacity[out]).min()) / graph.per_server
