"""Whole clusters: GPUs, the NVSwitch of every server, and a switch tree, circuits, or both between servers.

Fabrics differ in which NICs are on a tree, which edge switch each of them has, and which circuits exist. Each NIC
belongs to one GPU of its server; other GPUs reach it through the NVSwitch (delegation). Source: arXiv 2501.03905.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from mfabric_jax import units
from mfabric_jax.checks import MOST_WHOLE, InputError, fraction, not_negative, one_of, positive, whole
from mfabric_jax.fabric import views
from mfabric_jax.fabric.network import FabricGraph, find_links, network_of
from mfabric_jax.fabric.nic_use import NIC_USES
from mfabric_jax.fabric.tree import Tree
from mfabric_jax.support.host_arrays import host_indices

if TYPE_CHECKING:
    from mfabric_jax.fabric.direct_links import Mesh

LINK_DELAY_S = units.us(1.0)
TINY = 1e-9  # tolerance for rounding, in NICs


@dataclass(frozen=True)
class CircuitTable:
    """Circuits of a cluster, listed in both directions.

    - `src`, `dst` [C]: servers, or routers behind them; `count` [C]: NICs that the circuits of this pair use.
    - `gpu` [C most]: GPU (within its server) of every NIC at the source end; -1 as padding and at routers.
    - `part` [C most]: the fraction of each of these NICs that the pair uses; 1 unless NICs are split.
    """

    src: np.ndarray
    dst: np.ndarray
    count: np.ndarray
    gpu: np.ndarray
    part: np.ndarray

    def find(self, src: np.ndarray, dst: np.ndarray) -> np.ndarray:
        """Return the row of each ordered pair of servers; -1 if it has no circuit."""
        return find_links(self.src, self.dst, src, dst)


@dataclass(frozen=True)
class Cluster:
    """GPUs in servers, and the fabric between the servers.

    - `nic_gbps`: bandwidth of every NIC and circuit, per direction; `goodput`: the fraction that is payload.
    - `nvswitch_gigabytes_per_s`: bandwidth of a GPU to its server's NVSwitch, per direction.
    - `tree`: switch tree over `tree.hosts / servers` NICs of each server; None: no NICs on packet switches.
    - `speeds`: bandwidth of each NIC of a server over `nic_gbps`, in order; empty: all are equal. The uplinks of a
      switch together carry the bandwidth of the NICs below it over the oversubscription.
    - `rails`: NICs of equal rank share edge switches, instead of the NICs of a server.
    - `pxn`: data crosses the NVSwitch to the NIC of the destination's rank before it leaves the server.
    - `nic_use`: "own": each GPU uses its own NIC; "pooled": a server's NICs carry any of its data.
    - `regions` [G S S]: circuits of each run of S consecutive servers; None: no optics. `directed`: matrices may be
      asymmetric, because the two fibres of a transceiver may lead to different peers.
    - `mesh`: fixed links between servers, and routers behind them; None: no fixed links.
    - `phases`: circuits serve one kind of communication at a time; `mesh` holds the links of one kind, for pictures.
    - `link_delay_s`: propagation delay of every link.
    """

    name: str
    servers: int
    nic_gbps: float
    gpus_per_server: int = 8
    tree: Tree | None = None
    rails: bool = False
    pxn: bool = False
    nic_use: str = "own"
    regions: np.ndarray | None = field(default=None, repr=False)
    directed: bool = False
    mesh: Mesh | None = field(default=None, repr=False)
    nvswitch_gigabytes_per_s: float = 900.0
    link_delay_s: float = LINK_DELAY_S
    goodput: float = 1.0
    phases: bool = False
    speeds: tuple[float, ...] = ()

    def __post_init__(self):
        whole("servers", self.servers)
        whole("gpus_per_server", self.gpus_per_server)
        positive("nic_gbps", self.nic_gbps)
        positive("nvswitch_gigabytes_per_s", self.nvswitch_gigabytes_per_s)
        not_negative("link_delay_s", self.link_delay_s)
        one_of("nic_use", self.nic_use, NIC_USES)
        fraction("goodput", self.goodput)
        if self.tree is not None and self.tree.hosts % self.servers:
            raise InputError(f"the {self.tree.hosts} hosts of the tree must divide evenly over {self.servers} servers.")
        check_own_nics(self.nic_use, self.nics, self.gpus_per_server)
        if self.speeds and len(positive("speeds", self.speeds)) != self.nics:
            raise InputError(f"speeds must be {self.nics} numbers, one per NIC of a server, got {list(self.speeds)}.")
        if self.regions is not None:
            self._check_regions(self.regions)

    def _check_regions(self, count: np.ndarray) -> None:
        if count.ndim != 3 or count.shape[1] != count.shape[2] or count.shape[0] * count.shape[1] != self.servers:
            raise InputError(
                f"regions must be circuits [G S S] with G x S = {self.servers} servers, got {list(count.shape)}."
            )
        both_ways = self.directed or (count == count.transpose(0, 2, 1)).all()
        legal = both_ways and (count >= 0).all() and np.einsum("gii->", count) == 0
        if not legal or not np.issubdtype(count.dtype, np.integer):
            raise InputError("regions must hold whole numbers of circuits, symmetric, none from a server to itself.")

    @property
    def gpus(self) -> int:
        return self.servers * self.gpus_per_server

    @property
    def nic_tree(self) -> Tree:
        assert self.tree is not None
        return self.tree

    @property
    def nics(self) -> int:
        """NICs of a server on the tree."""
        return 0 if self.tree is None else self.tree.hosts // self.servers

    @property
    def nic_Bps(self) -> float:
        """Payload bytes per second of one NIC."""
        return units.gbps(self.nic_gbps) * self.goodput

    def at_gpu(self, nic: np.ndarray, first: int) -> np.ndarray:
        """Return the GPU (within its server) of NIC `nic`; the first NIC of this kind is at GPU `first`."""
        return (first + host_indices("nic", nic, 0, MOST_WHOLE)) % self.gpus_per_server

    @property
    def first_electrical_gpu(self) -> int:
        """The first GPU (within its server) with a NIC on packet switches: optical NICs come first."""
        return (self.gpus_per_server - self.nics) % self.gpus_per_server if self.nics else 0

    def host(self, server: np.ndarray, nic: np.ndarray) -> np.ndarray:
        """Return the tree port of NIC `nic` of a server."""
        server, nic = host_indices("server", server, 0, self.servers - 1), host_indices("nic", nic, 0, self.nics - 1)
        if not self.rails:
            return server * self.nics + nic
        if self.nic_tree.parts > 1:
            return nic * self.servers + server
        block = min(self.nic_tree.edge_ports[1], self.servers)  # servers whose NICs meet at one rail switch
        group, offset = np.divmod(server, block)
        first = group * block * self.nics
        in_group = np.minimum(block, self.servers - group * block)
        return first + nic * in_group + offset

    @cached_property
    def circuits(self) -> CircuitTable:
        """Circuits and the NICs at their ends.

        A server gives its optical NICs to its peers in order. NICs alternate between the two halves of its GPUs, so
        parallel circuits end in different NUMA nodes.
        """
        src, dst, count = self._circuit_rows()
        return CircuitTable(src, dst, count, *self._nics_at(src, dst, count))

    @cached_property
    def far_nics(self) -> tuple[np.ndarray, np.ndarray]:
        """`gpu` and `part` at the destination ends of `circuits`."""
        table = self.circuits
        return self._nics_at(table.dst, table.src, table.count)

    def _nics_at(self, src: np.ndarray, dst: np.ndarray, count: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        own = src < self.servers  # not at routers
        if not own.any():
            nothing = np.zeros((len(src), 1))
            return nothing.astype(np.int64), nothing
        degree, order = math.ceil(np.bincount(src[own], count[own]).max() - TINY), np.lexsort((dst, src))
        before = np.zeros(len(src))
        before[order] = np.cumsum(count[order]) - count[order]
        first_of_server = np.full(int(src.max()) + 1, np.inf)
        np.minimum.at(first_of_server, src, before)
        begin = (before - first_of_server[src])[:, None]  # in NICs of the source
        far = self.at_gpu(np.arange(degree), 0) >= (self.gpus_per_server + 1) // 2
        order = np.lexsort((far, np.where(far, np.cumsum(far), np.cumsum(~far))))  # the first NIC of each half, ...
        nth = np.floor(begin + TINY).astype(np.int64) + np.arange(math.ceil(count[own].max()) + 1)
        part = np.minimum(begin + count[:, None], nth + 1) - np.maximum(begin, nth)
        part = np.where(own[:, None] & (part > TINY), part, 0)
        gpu = np.where(part > 0, self.at_gpu(order[np.minimum(nth, degree - 1)], 0), -1)
        some = slice(max(1, int((part > 0).sum(axis=1).max())))
        return gpu[:, some], part[:, some]

    def _circuit_rows(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        if self.mesh is not None:
            return tuple(np.asarray(x) for x in (self.mesh.tail, self.mesh.head, self.mesh.nics))  # type: ignore[return-value]
        regions = np.zeros((1, 0, 0), np.int64) if self.regions is None else self.regions
        region, i, j = np.nonzero(regions)
        size = regions.shape[1]
        return region * size + i, region * size + j, regions[region, i, j].astype(np.int64)

    @property
    def forwarding(self) -> Mesh:
        """Links over which bytes reach servers without a direct link, in the order of `circuits`."""
        if self.mesh is not None:
            return self.mesh
        table = self.circuits
        links = (("circuit", len(table.src)),)
        return views.Mesh(table.src, table.dst, table.count, (("server", self.servers),), links)

    def _runs(self, switch_links) -> list:
        gpu, server = np.arange(self.gpus), np.arange(self.gpus) // self.gpus_per_server
        nvswitch = self.gpus + server
        inside = np.full(self.gpus, units.gigabytes_per_s(self.nvswitch_gigabytes_per_s))
        runs = [("nvswitch up", gpu, nvswitch, inside), ("nvswitch down", nvswitch, gpu, inside)]
        if self.tree is not None:
            host_gpu, edge = self.host_gpu, self.gpus + self.servers + self.tree.edge_of(np.arange(self.tree.hosts))
            port = np.full(self.tree.hosts, self.nic_Bps) * self.host_speeds
            runs += [("nic up", host_gpu, edge, port), ("nic down", edge, host_gpu, port)]
            between = self.nic_Bps * self.tree.width
            wide = self.tree.means_above(self.host_speeds)
            runs += [
                (kind, tail, head, np.full(len(tail), between) * wide[kind.split()[0]])
                for kind, tail, head in switch_links
            ]
        table = self.circuits
        ends = (self._optics + server_ for server_ in (table.src, table.dst))
        tail, head, rate = *ends, table.count * self.nic_Bps
        cuts = np.cumsum([count for _, count in self._circuit_kinds])[:-1]
        columns = (np.split(x, cuts) for x in (tail, head, rate))
        return [*runs, *zip([kind for kind, _ in self._circuit_kinds], *columns, strict=True)]

    @property
    def _circuit_kinds(self) -> tuple[tuple[str, int], ...]:
        return (("circuit", len(self.circuits.src)),) if self.mesh is None else self.mesh.links

    @property
    def _optics(self) -> int:
        switches = 0 if self.tree is None else sum(count for _, count in self.tree.switches)
        return self.gpus + self.servers + switches

    @cached_property
    def host_gpu(self) -> np.ndarray:
        """GPU (of the cluster) at each host port of the tree."""
        server, nic = (x.ravel() for x in np.mgrid[: self.servers, : self.nics])
        gpu = np.zeros(self.nic_tree.hosts, np.int64)
        gpu[self.host(server, nic)] = server * self.gpus_per_server + self.at_gpu(nic, self.first_electrical_gpu)
        return gpu

    @cached_property
    def host_speeds(self) -> np.ndarray:
        """Bandwidth of the NIC at each host port of the tree, over `nic_gbps`."""
        speed = np.ones(self.nic_tree.hosts)
        for nic, own in enumerate(self.speeds):
            speed[self.host(np.arange(self.servers), np.full(self.servers, nic))] = own
        return speed

    @cached_property
    def network(self) -> FabricGraph:
        """The network of all single links; only parallel circuits of two servers are merged into one link.

        Links come in runs: nvswitch up, nvswitch down [GPU]; nic up, nic down [host]; the links of the tree; circuit.
        """
        first = self.gpus + self.servers
        switches = () if self.tree is None else self.tree.switches
        nodes = (
            ("gpu", self.gpus),
            ("nvswitch", self.servers),
            *switches,
            ("optics", self._optical_nodes),
            *self._routers,
        )
        return network_of(
            self._runs([] if self.tree is None else self.tree.switch_links(first)), nodes, self.link_delay_s
        )

    @property
    def _optical_nodes(self) -> int:
        return self.servers if len(self.circuits.src) else 0

    @property
    def _routers(self) -> tuple[tuple[str, int], ...]:
        return () if self.mesh is None else self.mesh.nodes[1:]

    @cached_property
    def pooled_network(self) -> FabricGraph:
        """The network under spraying: parallel links of equal load are merged (`Tree.pool`), which is exact."""
        if self.tree is None:
            return self.network
        network, tree = self.network, self.tree
        before = 2 * (self.gpus + tree.hosts)
        pool, (merged, kinds) = tree.pool(), tree.merged_nodes()
        links = [run for run in network.links if not _between_switches(run[0])]
        edges, pods = (tree.parts * n for n in (tree.edges_per_part, tree.pods_per_part))
        tiers = [("edge up", edges), ("edge down", edges)] if tree.tiers > 1 else []
        if tree.tiers == 3:
            tiers += [("pod up", pods), ("pod down", pods)]
        own, circuits = links[:4], links[4:]
        pools = sum(count for _, count in tiers)
        to = np.concatenate([np.arange(before), before + pool, before + pools + np.arange(len(self.circuits.src))])
        fixed, optics = np.arange(self.gpus + self.servers), np.arange(self._optical_nodes)
        node = np.concatenate([fixed, len(fixed) + merged, len(fixed) + sum(n for _, n in kinds) + optics])
        network = replace(network, capacity=self._used_capacity(network))
        nodes = (("gpu", self.gpus), ("nvswitch", self.servers), *kinds, ("optics", self._optical_nodes))
        return network.merge_links(to, node, tuple(n for n in nodes if n[1]), (*own, *tiers, *circuits))

    def _used_capacity(self, network: FabricGraph) -> np.ndarray:
        """Bytes per second of every link; for links above edge switches, only the part that is needed."""
        tree, capacity = self.nic_tree, network.capacity.copy()
        if tree.tiers > 1:
            first, parts = 2 * (self.gpus + tree.hosts), np.tile(tree.uplink_parts, 2)
            capacity[first : first + len(parts)] *= parts
        return capacity

    def with_circuits(self, regions: np.ndarray, *, directed: bool = False) -> Cluster:
        return replace(self, regions=host_indices("regions", regions, 0, MOST_WHOLE), directed=directed)


def _between_switches(kind: str) -> bool:
    return kind.startswith(("edge", "aggregation"))


def check_own_nics(nic_use: str, nics: float, gpus_per_server: int) -> None:
    """Raise `InputError` if "own" is used with fewer NICs than GPUs."""
    if nic_use == "own" and nics != gpus_per_server:
        raise InputError(
            f"nic_use 'own' gives each GPU its own NIC, but a server has {gpus_per_server} GPUs and "
            f"{nics} NICs; use nic_use 'pooled' or {gpus_per_server} NICs."
        )
