"""Fixed links between servers, and routers behind them; servers or routers forward for each other."""

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float, Int, Num

from mfabric_jax import units
from mfabric_jax.checks import not_negative, positive, whole
from mfabric_jax.fabric.failures import (
    CUT_OFF,
    NO_OPTICS,
    NO_PACKETS,
    ONE_NETWORK,
    ONE_PLANE,
    PLANES,
    Degraded,
    Failure,
)
from mfabric_jax.fabric.network import FabricGraph, find_links
from mfabric_jax.fabric.nic_use import RING_NICS, Handover
from mfabric_jax.support.arrays import FloatScalar

FIXED = "its circuits are set once"
MANY_RINGS = (
    "one of its optical switches joins many links; their loss is not simulated, so the job waits for the repair"
)
NO_SPARE = "no spare is wired to the neighbours, so the job waits for the repair"
NO_PATH = "no other path is left, so the job waits for the repair"
PASSIVE = "its patch panels are passive"
Kinds = tuple[tuple[str, int], ...]


class Mesh(eqx.Module):
    """Links between servers and optional routers, and the rule by which bytes cross them.

    - `tail`, `head` [L]: nodes, servers first; `nics` [L]: width of a link in NICs. A whole number n stands for n
      parallel links of one NIC; any other number is one link, made of lanes of split NICs.
    - `nodes`, `links`: runs of (kind, number), as in `FabricGraph`.
    - `following` [S S]: the server after s on the path to t. None: bytes take all shortest paths, in equal shares at
      every node.
    - `detours`: each step of `following` is divided equally over its direct link and every server linked to both ends.
    - `areas` [N]: area of every node. Bytes for another area use all links between the two areas in proportion to
      width, and shortest paths inside each area. None: no areas.
    - `thirds`: bytes for another area first go through all third areas, in equal shares (Valiant).
    - `places` [N D]: positions in a picture, in two or three dimensions.
    """

    tail: Int[Array | np.ndarray, "L"]
    head: Int[Array | np.ndarray, "L"]
    nics: Num[Array | np.ndarray, "L"]
    nodes: Kinds = eqx.field(static=True)
    links: Kinds = eqx.field(static=True)
    following: Int[Array | np.ndarray, "S S"] | None = None
    areas: Int[Array | np.ndarray, "N"] | None = None
    places: Num[Array | np.ndarray, "N D"] | None = None
    thirds: bool = eqx.field(static=True, default=False)
    detours: bool = eqx.field(static=True, default=False)

    def __check_init__(self):
        if isinstance(self.nics, np.ndarray):
            not_negative("nics of a link", self.nics)

    @property
    def servers(self) -> int:
        return self.nodes[0][1]

    @property
    def network(self) -> FabricGraph:
        tail, head, nics = (np.asarray(x) for x in (self.tail, self.head, self.nics))
        return FabricGraph(tail, head, nics.astype(float), np.zeros(len(tail)), self.nodes, self.links)

    @property
    def count(self) -> Num[np.ndarray, "N N"]:
        """Total width of the links from node to node, in NICs."""
        size = sum(count for _, count in self.nodes)
        total = np.zeros((size, size), np.asarray(self.nics).dtype)
        np.add.at(total, (np.asarray(self.tail), np.asarray(self.head)), np.asarray(self.nics))
        return total

    @property
    def present(self) -> "Mesh":
        """The mesh without links of width 0."""
        some = np.asarray(self.nics) > 0
        each = np.split(some, np.cumsum([count for _, count in self.links])[:-1])
        links = tuple((kind, int(part.sum())) for (kind, _), part in zip(self.links, each, strict=True))
        columns = {name: np.asarray(getattr(self, name))[some] for name in ("tail", "head", "nics")}
        return dataclasses.replace(self, links=links, **columns)

    @property
    def inner_links(self) -> int:
        """Number of two-way links between routers (without routers: between servers); lanes of a pair are one link."""
        first = self.servers if len(self.nodes) > 1 else 0
        inner = (np.asarray(self.tail) >= first) & (np.asarray(self.head) >= first)
        nics = np.asarray(self.nics)[inner]
        return round(np.where(nics % 1, 1, nics).sum() / 2)

    def without_one(self, node: int, other: int) -> "Mesh":
        """Return the mesh without one link between two nodes, in both directions.

        A link as wide as whole NICs loses one NIC; a link made of lanes is lost. Bytes take the shortest paths that are
        left, or other links between areas.
        """
        tail, head = np.asarray(self.tail), np.asarray(self.head)
        lost = find_links(tail, head, np.array([node, other]), np.array([other, node]))
        nics = np.array(self.nics)
        nics[lost] -= np.where(nics[lost] % 1, nics[lost], 1)
        return Mesh(tail, head, nics, self.nodes, self.links, areas=self.areas, thirds=self.thirds)

    def without_node(self, node: int) -> "Mesh":
        """Return the mesh without any link of a node; bytes take the paths that are left, as in `without_one`."""
        tail, head = np.asarray(self.tail), np.asarray(self.head)
        nics = np.where((tail == node) | (head == node), 0, np.asarray(self.nics))
        return Mesh(tail, head, nics, self.nodes, self.links, areas=self.areas, thirds=self.thirds)

    def reaches_all(self, before: "Mesh") -> bool:
        """Return whether all servers reach each other, and all areas linked in `before` still are."""
        some = np.asarray(self.nics) > 0
        tail, head = np.asarray(self.tail)[some], np.asarray(self.head)[some]
        seen = np.zeros(sum(count for _, count in self.nodes), bool)
        seen[0] = True
        while (fresh := seen[tail] & ~seen[head]).any():
            seen[head[fresh]] = True
        return bool(seen[: self.servers].all()) and self._area_pairs == before._area_pairs

    @property
    def _area_pairs(self) -> set[tuple[int, int]]:
        if self.areas is None:
            return set()
        some, area = np.asarray(self.nics) > 0, np.asarray(self.areas)
        return {
            *zip(area[np.asarray(self.tail)[some]].tolist(), area[np.asarray(self.head)[some]].tolist(), strict=True)
        }


def mesh_of(count: Array | np.ndarray | Sequence[Any], **rule: Any) -> Mesh:
    """Return a mesh with `count` [S S] links from server to server; absent links have width 0."""
    count = np.asarray(count)
    tail, head = (x.ravel() for x in np.mgrid[: len(count), : len(count)])
    return Mesh(tail, head, count.ravel(), (("server", len(count)),), (("circuit", len(tail)),), **rule)


def mesh_of_links(servers: int, tail: np.ndarray, head: np.ndarray, nics: Any, **rule: Any) -> Mesh:
    """Return a mesh of links from servers `tail` to `head` [L], each `nics` wide (one number or [L]).

    Parallel links are merged.
    """
    ends, which = np.unique(np.stack([tail, head]), axis=1, return_inverse=True)
    width = np.zeros(ends.shape[1])
    np.add.at(width, which.ravel(), nics)
    return Mesh(ends[0], ends[1], width, (("server", servers),), (("circuit", len(width)),), **rule)


class LinkRates:
    """Rates of a group on fixed links, from its `nic_gbps`, `ring_nics` and `stage_nics`."""

    nic_gbps: Any
    ring_nics: Any
    stage_nics: Any

    def with_bandwidth(self, nic_gbps: Any, gpu_tbps: Any = None) -> Any:
        """Return the group at another bandwidth, which may be traced."""
        return eqx.tree_at(lambda group: group.nic_gbps, self, nic_gbps)

    @property
    def nic_Bps(self):
        """Bytes per second of one NIC, and of one link in each direction."""
        return units.gbps(self.nic_gbps)

    @property
    def eps_Bps(self):
        """Bandwidth of a server around the all-reduce ring [bytes/s]."""
        return self.ring_nics * self.nic_Bps

    @property
    def send_Bps(self):
        """Bandwidth from a server to its peer in the next pipeline stage [bytes/s]."""
        return self.stage_nics * self.nic_Bps


class DirectLinks(eqx.Module, LinkRates):
    """Fixed links as expert-parallel groups see them.

    - `servers`, `nic_gbps`: as in `Region`; `nics`: NICs of a server for links inside its group, or one number per
      server.
    - `ring_nics`, `stage_nics`: NICs with which a server sends gradients, and activations to the next stage; fractions
      if servers share a link. None: what the links carry when all servers of a stage send at the same time.
    - `mesh`: the links; None until chosen for the expected demand.
    - `groups`: number of groups that use the links at the same time, from server 0 on; `stage`: servers of a stage.
    - `panels`: links end on patch panels, and spare servers are wired to them too.
    - `hops`, `share` [N H]: links (-1 pads) that carry the bytes of each of the N = S*S pairs of servers, and the share
      that each link carries, group after group. None until `routing.fixed.add_paths` computes them.
    """

    servers: int = eqx.field(static=True)
    nic_gbps: FloatScalar
    nics: Any = eqx.field(static=True, default=8)
    ring_nics: Any = 2
    stage_nics: Any = 1
    mesh: Mesh | None = None
    groups: int = eqx.field(static=True, default=1)
    stage: int = eqx.field(static=True, default=1)
    panels: bool = eqx.field(static=True, default=False)
    hops: Int[Array, "N H"] | None = None
    share: Float[Array, "N H"] | None = None

    nic_use = "pooled"
    reconfigures = pxn = own_ports = phases = shares_links = over_graph = False
    oversubscription = None
    speeds = ()
    forwards = True  # servers forward bytes of others
    delay_s = 0.0
    latency_s = 0.0
    handover: ClassVar[tuple[Handover, Handover]] = ("spread", "spread")

    def __check_init__(self):
        whole("servers", self.servers)
        positive("nic_gbps", self.nic_gbps)
        if not isinstance(self.nics, tuple):
            whole("nics", self.nics, at_least=0)
        for field in ("ring_nics", "stage_nics"):
            if getattr(self, field) is not None:
                not_negative(field, getattr(self, field))

    @classmethod
    def of_cluster(cls, mesh: Mesh, servers: int, stage: int, nic_gbps: Any, nics: int) -> "DirectLinks":
        """Return the groups of `servers` consecutive servers on the links of the whole cluster.

        The groups of a `stage` communicate at the same time. So do all servers when they reduce gradients
        (`routing.gradients`), and when they send to the next stage.
        """
        counts: dict[str, Any] = {"groups": max(1, stage // servers), "stage": stage}
        return cls(servers, nic_gbps, nics, None, None, mesh, **counts)

    @property
    def has_paths(self) -> bool:
        """Whether the paths of all pairs are known."""
        return self.hops is not None

    @property
    def longest_path_links(self) -> float | None:
        """Links between the two servers farthest apart, as the mean over their paths; None until paths are known."""
        if self.hops is None:
            return None
        return float(np.where(np.asarray(self.hops) >= 0, np.asarray(self.share, float), 0).sum(axis=1).max(initial=1))

    @property
    def routers(self) -> bool:
        return self.mesh is not None and len(self.mesh.nodes) > 1

    def lacks(self, routing: str) -> dict[str, str]:
        """Return the kinds of failure that cannot happen here: {kind: reason}."""
        reasons = dict.fromkeys(PLANES, ONE_PLANE) | {"electrical-nics": ONE_NETWORK}
        if not self.routers:
            reasons |= dict.fromkeys(("electrical-nic", "switch", "spine"), NO_PACKETS)
            return reasons | {"controller": FIXED} | ({"optical-switch": PASSIVE} if self.panels else {})
        reasons |= dict.fromkeys(("optical-nic", "optical-switch", "controller"), NO_OPTICS)
        return reasons if self._nodes("spine") else reasons | {"spine": "servers are behind all of its routers"}

    def after_failure(self, hit: Failure) -> Degraded:
        """Return the group after a failure.

        On panels, a spare takes all circuits of a failed server. Elsewhere no spare can replace a server, so the job
        waits for the repair. It also waits if no path is left.
        """
        if hit.kind in ("gpu", "server"):
            taken: dict[str, Any] = {"spare": True} if self.panels else {"waits": NO_SPARE}
            return Degraded(hit.kind, self, hit.server, **taken)
        if hit.kind == "switch" or (hit.kind == "electrical-nic" and self.nics < 2):
            return Degraded(hit.kind, self, hit.server, waits=CUT_OFF)
        if hit.kind == "optical-switch" and hit.many_rings:
            return Degraded(hit.kind, self, hit.server, waits=MANY_RINGS)
        if hit.kind == "optical-nic" and self.panels and self.servers > 1 and self.nics > self.ring_nics:
            nics = tuple(self.nics - (server == hit.server) for server in range(self.servers))
            return Degraded(hit.kind, dataclasses.replace(self, nics=nics, mesh=None, hops=None), hit.server)
        eps_left = 1 - 1 / self.nics if hit.kind == "electrical-nic" else 1.0
        if self.panels:  # one ring breaks; half of the last ring still works
            eps_left = max(self.ring_nics - RING_NICS, RING_NICS / 2) / self.ring_nics
        if self.mesh is None or not np.any(np.asarray(self.mesh.nics) > 0):  # links carry only gradients and sends
            eps_left = eps_left if self.panels else 1 - 1 / max(2.0, float(self.ring_nics))
            return Degraded(hit.kind, self, hit.server, eps_left=eps_left)
        mesh = self.mesh.without_node(self._nodes("spine")[0]) if hit.kind == "spine" else self._without_link(hit)
        if not mesh.reaches_all(self.mesh):
            return Degraded(hit.kind, self, hit.server, waits=NO_PATH)
        # All servers share these rates, so they are computed again.
        rates = {"ring_nics": None, "stage_nics": None} if self.stage > 1 else {}
        left = dataclasses.replace(self, mesh=mesh, hops=None, **rates)
        return Degraded(hit.kind, left, hit.server, eps_left=eps_left, everywhere=hit.kind == "spine")

    def _without_link(self, hit: Failure) -> Mesh:
        assert self.mesh is not None
        joined, node = self.mesh.count, hit.server
        if self.routers:  # its NICs lead to a router, whose links lead to other routers
            router = self.mesh.servers + int(joined[node, self.mesh.servers :].argmax())
            node = node if hit.kind == "electrical-nic" else router
            joined = joined * (np.arange(len(joined)) >= self.mesh.servers)
        if not joined[node].any():  # this router has no links: take the first one that has some
            node = int(joined.any(axis=1).argmax())
        return self.mesh.without_one(node, int(joined[node].argmax()))

    def _nodes(self, kind: str) -> range:
        """Numbers of the nodes of a kind."""
        first = 0
        for name, count in self.mesh.nodes if self.mesh is not None else ():
            if name == kind:
                return range(first, first + count)
            first += count
        return range(0)
