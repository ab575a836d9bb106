"""Graphs generated from a few numbers: trees of switches, planes, tori, full meshes, dragonflies.

GPUs are numbered server by server; on tori and meshes along the first dimension first. Servers of several GPUs have an
NVSwitch; tori and meshes link the GPUs directly, and the GPUs forward for each other. Parallel links are merged into
one link of their summed capacity.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from mfabric_jax import units
from mfabric_jax.checks import InputError, not_negative, one_of, positive, whole
from mfabric_jax.fabric.cluster import LINK_DELAY_S
from mfabric_jax.fabric.design import NVSWITCH_GIGABYTES_PER_S
from mfabric_jax.fabric.dragonfly import dragonfly_mesh
from mfabric_jax.fabric.graphs.data import MOST_LINKS, MOST_NODES, check_many
from mfabric_jax.fabric.grids import lines, rings
from mfabric_jax.fabric.network import FabricGraph, network_of
from mfabric_jax.fabric.torus import near_cube
from mfabric_jax.fabric.tree import Tree
from mfabric_jax.fabric.twisted_torus import short_side

Run = tuple[str, np.ndarray, np.ndarray, np.ndarray]
Nodes = list[tuple[str, int]]


@dataclass(frozen=True, kw_only=True)
class GraphNumbers:
    """The numbers that define a generated graph; each kind of graph reads some of them (`KINDS`).

    - `gpus`: number of GPUs; `shape`: sizes of the dimensions of a torus or mesh; None: the usual ones for `gpus`.
    - `nic_gbps`: bandwidth of NICs and switch ports (on tori and meshes: of links between GPUs), per direction.
    - `nvlink_gbps`: bandwidth of a GPU into its server's NVSwitch, per direction; 0: no NVSwitch.
    - `oversubscription`: ratio of down to up ports of edge switches; `radix`: ports of a switch, as wide as NICs.
    - `pooled`: NICs are behind their server's NVSwitch and serve all its GPUs; else each GPU has its own.
    - `planes`: NIC j of a server is on plane j mod `planes`; `split`: instead, every NIC is split over all planes, and
      so are switch ports, as on the fabric multi-plane.
    """

    gpus: int
    shape: tuple[int, ...] | None = None
    nic_gbps: float = 400.0
    nvlink_gbps: float = NVSWITCH_GIGABYTES_PER_S * 8
    oversubscription: float = 1.0
    radix: int = 64
    planes: int = 1
    split: bool = False
    pooled: bool = False
    gpus_per_server: int = 8

    def __post_init__(self):
        for field in ("gpus", "planes", "gpus_per_server"):
            whole(field, getattr(self, field))
        check_many("gpus", self.gpus, MOST_NODES)
        positive("nic_gbps", self.nic_gbps)
        not_negative("nvlink_gbps", self.nvlink_gbps)
        for size in self.shape or ():
            whole("shape", size)
        if self.shape is not None and math.prod(self.shape) != self.gpus:
            raise InputError(f"shape must have {self.gpus} GPUs, got {'x'.join(map(str, self.shape))}.")

    @property
    def servers(self) -> int:
        if self.gpus % self.gpus_per_server:
            raise InputError(f"gpus_per_server must divide the {self.gpus} GPUs, got {self.gpus_per_server}.")
        return self.gpus // self.gpus_per_server

    @property
    def port(self) -> float:
        """Bytes per second of a NIC."""
        return units.gbps(self.nic_gbps)


def make_graph(kind: str, numbers: GraphNumbers) -> FabricGraph:
    """Return the graph of one of `KINDS`. Raise `InputError` if the numbers do not fit it."""
    return KINDS[one_of("kind of graph", kind, KINDS)].make(numbers)


# -------------------------------------------------------------------------------------------------- trees of switches
def leaf_spine(numbers: GraphNumbers) -> FabricGraph:
    """Return two tiers of switches above one NIC per GPU, in order; every leaf (edge) has a link to every spine."""
    return _on_tree(numbers, Tree(numbers.gpus, numbers.radix, 2, numbers.oversubscription))


def fat_tree(numbers: GraphNumbers) -> FabricGraph:
    """Return three tiers of switches above one NIC per GPU, in order; they are oversubscribed at the edge."""
    return _on_tree(numbers, Tree(numbers.gpus, numbers.radix, 3, numbers.oversubscription))


def planes(numbers: GraphNumbers) -> FabricGraph:
    """Return separate leaf-spine trees, which meet only in GPUs (`split`) or NVSwitches.

    Sources: DeepSeek-V3 (arXiv 2505.09343), one NIC per plane; OpenAI's MRC (arXiv 2605.04333), split NICs.
    """
    several, split, each = numbers.planes, numbers.split, numbers.gpus_per_server
    if not split and each % several:
        raise InputError(f"planes must divide the {each} GPUs of a server, got {several}; or split the NICs.")
    if not split and several > 1 and not numbers.nvlink_gbps:
        raise InputError("nvlink_gbps must be above 0 if planes meet only in NVSwitches, got 0; or split the NICs.")
    gpu = np.arange(numbers.gpus)
    if split:
        host = np.concatenate([plane * numbers.gpus + gpu for plane in range(several)])
        gpu, width = np.tile(gpu, several), 1 / several
    else:
        server, nic = np.divmod(gpu, each)
        host = nic % several * (numbers.servers * each // several) + server * (each // several) + nic // several
        width = 1.0
    ports = numbers.radix * (several if split else 1)
    tree = Tree(len(host), ports, 2, numbers.oversubscription, parts=several)
    return _on_tree(numbers, tree, gpu, host, width)


def _on_tree(
    numbers: GraphNumbers, tree: Tree, gpu: np.ndarray | None = None, host: np.ndarray | None = None, width: float = 1.0
) -> FabricGraph:
    """The graph with NICs of GPUs `gpu` at tree ports `host` ([NICs] each); None: in order. `width`: part of a NIC."""
    gpu = np.arange(numbers.gpus) if gpu is None else gpu
    host = gpu if host is None else host
    nodes, runs = _servers(numbers)
    first = sum(count for _, count in nodes)
    edge = first + tree.edge_of(host)
    runs += _nics(numbers, gpu, edge, width)
    if tree.tiers == 2 and tree.edges_per_part == 1:  # a single leaf needs no spine
        return _network(runs, [*nodes, tree.switches[0]])
    for kind, tail, head in tree.switch_links(first):
        parts = tree.uplink_parts if kind.startswith("edge") else tree.core_parts
        runs.append((kind, tail, head, numbers.port * width * parts))
    return _network(runs, [*nodes, *tree.switches])


def _servers(numbers: GraphNumbers) -> tuple[Nodes, list[Run]]:
    """GPUs, the NVSwitch of each server if there is one, and the NICs behind it if they are pooled."""
    nodes: Nodes = [("gpu", numbers.gpus)]
    if numbers.gpus_per_server == 1 or not numbers.nvlink_gbps:
        if numbers.pooled:
            raise InputError("pooled needs an NVSwitch: gpus_per_server of 2 or more, and nvlink_gbps above 0.")
        return nodes, []
    gpu = np.arange(numbers.gpus)
    switch = numbers.gpus + gpu // numbers.gpus_per_server
    inside = np.full(numbers.gpus, units.gbps(numbers.nvlink_gbps))
    nodes, runs = [*nodes, ("nvswitch", numbers.servers)], _both("nvswitch", gpu, switch, inside)
    if numbers.pooled:
        nic = numbers.gpus + numbers.servers + gpu
        nodes, runs = [*nodes, ("nic", numbers.gpus)], [*runs, *_both("pool", nic, switch, inside)]
    return nodes, runs


def _nics(numbers: GraphNumbers, gpu: np.ndarray, switch: np.ndarray, width: float = 1.0) -> list[Run]:
    """Links from NICs of GPUs `gpu` to nodes `switch` ([NICs] each); `width`: part of a NIC."""
    pooled = numbers.gpus + numbers.servers if numbers.pooled else 0  # nodes before NICs
    return _both("nic", pooled + gpu, switch, np.full(len(gpu), numbers.port * width))


def dragonfly(numbers: GraphNumbers) -> FabricGraph:
    """Return routers behind servers, fully meshed in groups, with links between all groups (`fabric.dragonfly`)."""
    mesh = dragonfly_mesh(numbers.servers, numbers.gpus_per_server, valiant=False)
    nodes, runs = _servers(numbers)
    first = sum(count for _, count in nodes)
    tail, head, nics = (np.asarray(x) for x in (mesh.tail, mesh.head, mesh.nics))
    router = first - numbers.servers  # routers follow the servers of the mesh
    gpu = np.arange(numbers.gpus)
    runs += _nics(numbers, gpu, router + head[gpu // numbers.gpus_per_server])
    start = 0
    for kind, count in mesh.links:
        if not kind.startswith("nic"):
            some = slice(start, start + count)
            runs.append((kind, router + tail[some], router + head[some], numbers.port * nics[some]))
        start += count
    return _network(runs, [*nodes, *mesh.nodes[1:]])


# ----------------------------------------------------------------------------------------------- links between GPUs
def torus(numbers: GraphNumbers) -> FabricGraph:
    """Return links between neighbours in every dimension, also from the last to the first; size 2 has both links."""
    return _network(_torus_runs(numbers, _shape(numbers)), [("gpu", numbers.gpus)])


def twisted_torus(numbers: GraphNumbers) -> FabricGraph:
    """Return a torus whose rings of n close with a shift along rings of 2n (`fabric.twisted_torus`), such as 4x4x8."""
    shape = _shape(numbers)
    return _network(_torus_runs(numbers, shape, short_side(shape)), [("gpu", numbers.gpus)])


def _torus_runs(numbers: GraphNumbers, shape: tuple[int, ...], twisted: int = 0) -> list[Run]:
    runs = []
    for axis, here, there in rings(shape, twisted):
        ends = np.concatenate([[here, there], [there, here]], axis=1)
        pairs, count = np.unique(ends, axis=1, return_counts=True)
        runs.append((f"dimension {axis}", *pairs, numbers.port * count))
    return runs


def full_mesh(numbers: GraphNumbers) -> FabricGraph:
    """Return links between GPUs that differ in exactly one dimension; several dimensions give HyperX or UB-Mesh."""
    shape = (numbers.gpus,) if numbers.shape is None else numbers.shape
    check_many("links", numbers.gpus * sum(size - 1 for size in shape), MOST_LINKS)
    links = [(f"dimension {axis}", tail, head, np.full(len(tail), numbers.port)) for axis, tail, head in lines(shape)]
    return _network(links, [("gpu", numbers.gpus)])


def _shape(numbers: GraphNumbers) -> tuple[int, ...]:
    return near_cube(numbers.gpus) if numbers.shape is None else numbers.shape


def _both(kind: str, low: np.ndarray, high: np.ndarray, capacity: np.ndarray) -> list[Run]:
    return [(f"{kind} up", low, high, capacity), (f"{kind} down", high, low, capacity)]


def _network(runs: list[Run], nodes: Nodes) -> FabricGraph:
    check_many("links", sum(len(run[1]) for run in runs), MOST_LINKS)
    return network_of(runs, nodes, LINK_DELAY_S)


@dataclass(frozen=True)
class Kind:
    """The function that makes a kind of graph, and the numbers that it reads besides `gpus` and `nic_gbps`."""

    make: Callable[[GraphNumbers], FabricGraph]
    reads: tuple[str, ...]


IN_SERVERS = ("nvlink_gbps", "gpus_per_server", "pooled")
ON_TREE = (*IN_SERVERS, "oversubscription", "radix")
KINDS = {
    "leaf-spine": Kind(leaf_spine, ON_TREE),
    "planes": Kind(planes, (*ON_TREE, "planes", "split")),
    "fat-tree": Kind(fat_tree, ON_TREE),
    "torus": Kind(torus, ("shape",)),
    "twisted-torus": Kind(twisted_torus, ("shape",)),
    "full-mesh": Kind(full_mesh, ("shape",)),
    "dragonfly": Kind(dragonfly, IN_SERVERS),
}
