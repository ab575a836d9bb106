"""Unchanging links between servers, and routers behind them; servers or routers forward for each other."""

import dataclasses
from typing import Any, ClassVar

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float, Int, Num

from mfabric_jax import units
from mfabric_jax.checks import InputError, not_negative, positive, whole
from mfabric_jax.fabric.design import ClusterShape
from mfabric_jax.fabric.failures import NO_OPTICS, NO_PACKETS, ONE_PLANE, PLANES, Degraded, Hit
from mfabric_jax.fabric.network import Network, find_links
from mfabric_jax.fabric.nic_use import Handover

FIXED = "its optical switches are set once and not modelled by themselves"
NO_SPARE = "no spare is wired to the neighbours, so the job waits for the repair"
ALONE = "a group is one server"
Kinds = tuple[tuple[str, int], ...]


class Mesh(eqx.Module):
    """Links between servers and optional routers, and the rule by which bytes cross them.

    - `tail`, `head` [L]: nodes, servers first; `nics` [L]: width of a link in NICs. A whole number is so many parallel
      links of one NIC; any other number is one link of lanes that NICs are split into.
    - `nodes`, `links`: runs of (kind, number), as in `Network`.
    - `following` [S S]: the server after s on the way to t. None: all shortest paths, in equal shares at every node.
    - `detours`: every step of `following` also goes, in equal shares, over each server that is joined with both ends.
    - `areas` [N]: area of every node. Bytes for another area use all links between the two by their widths,
      and shortest paths inside each. None: no areas.
    - `thirds`: bytes for another area first go to each third area, in equal shares (Valiant).
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
    def network(self) -> Network:
        tail, head, nics = (np.asarray(x) for x in (self.tail, self.head, self.nics))
        return Network(tail, head, nics.astype(float), np.zeros(len(tail)), self.nodes, self.links)

    @property
    def count(self) -> Num[np.ndarray, "N N"]:
        """NICs of all links from node to node."""
        size = sum(count for _, count in self.nodes)
        total = np.zeros((size, size), np.asarray(self.nics).dtype)
        np.add.at(total, (np.asarray(self.tail), np.asarray(self.head)), np.asarray(self.nics))
        return total

    @property
    def present(self) -> "Mesh":
        some = np.asarray(self.nics) > 0
        each = np.split(some, np.cumsum([count for _, count in self.links])[:-1])
        links = tuple((kind, int(part.sum())) for (kind, _), part in zip(self.links, each, strict=True))
        columns = {name: np.asarray(getattr(self, name))[some] for name in ("tail", "head", "nics")}
        return dataclasses.replace(self, links=links, **columns)

    @property
    def inner_links(self) -> int:
        """Two-way links between routers, or between servers if there are no routers; lanes of a pair are one link."""
        first = self.servers if len(self.nodes) > 1 else 0
        inner = (np.asarray(self.tail) >= first) & (np.asarray(self.head) >= first)
        nics = np.asarray(self.nics)[inner]
        return round(np.where(nics % 1, 1, nics).sum() / 2)

    def without_one(self, node: int, other: int) -> "Mesh":
        """The mesh without the first link between two nodes, in both directions: one NIC less of a width of whole NICs,
        nothing left of lanes. Bytes take the shortest paths that are left, or other links from area to area."""
        tail, head = np.asarray(self.tail), np.asarray(self.head)
        lost = find_links(tail, head, np.array([node, other]), np.array([other, node]))
        nics = np.array(self.nics)
        nics[lost] -= np.where(nics[lost] % 1, nics[lost], 1)
        return Mesh(tail, head, nics, self.nodes, self.links, areas=self.areas, thirds=self.thirds)


def mesh_of(count: np.ndarray, **rule: Any) -> Mesh:
    """Mesh with `count` [S S] links from server to server; absent links have width 0."""
    count = np.asarray(count)
    tail, head = (x.ravel() for x in np.mgrid[: len(count), : len(count)])
    return Mesh(tail, head, count.ravel(), (("server", len(count)),), (("circuit", len(tail)),), **rule)


def mesh_of_links(servers: int, tail: np.ndarray, head: np.ndarray, nics: Any, **rule: Any) -> Mesh:
    """Mesh of links from servers `tail` to `head` [L], `nics` [L] (or all) wide; parallel links are one."""
    ends, which = np.unique(np.stack([tail, head]), axis=1, return_inverse=True)
    width = np.zeros(ends.shape[1])
    np.add.at(width, which.ravel(), nics)
    return Mesh(ends[0], ends[1], width, (("server", servers),), (("circuit", len(width)),), **rule)


class LinkRates:
    """Rates of groups on unchanging links, which have `nic_gbps`, `ring_nics` and `stage_nics`."""

    nic_gbps: Any
    ring_nics: Any
    stage_nics: Any

    @property
    def nic_Bps(self):
        """Bytes per second of one NIC, and of one link in each direction."""
        return units.gbps(self.nic_gbps)

    @property
    def eps_Bps(self):
        """What one server sends around the all-reduce ring [bytes/s]."""
        return self.ring_nics * self.nic_Bps

    @property
    def send_Bps(self):
        """What one server can send to its peer in the next pipeline stage [bytes/s]."""
        return self.stage_nics * self.nic_Bps


class DirectLinks(eqx.Module, LinkRates):
    """Unchanging links as expert-parallel groups see them.

    - `servers`, `nic_gbps`: as in `Region`; `nics`: NICs of a server for links inside its group, or one number per
      server.
    - `ring_nics`, `stage_nics`: NICs with which a server sends gradients, and activations to the next stage; fractions
      where servers share a link. None: what the links carry when all servers of a stage do so at once.
    - `mesh`: the links; None until chosen for the expected demand.
    - `groups`: groups that share the links at once, from server 0 on; `stage`: servers of a stage.
    - `panels`: links end on patch panels, and so do spares.
    - `hops`, `share` [N H]: links (-1 pads) and shares of each of the N = S*S pairs of servers, group after group. None
      until `routing.fixed.wired` computes them.
    """

    servers: int = eqx.field(static=True)
    nic_gbps: Float[Array, ""] | float
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
    reconfigures = pxn = own_ports = phases = shares_links = False
    oversubscription = None
    forwards = True  # servers carry what others send
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
    def of_cluster(cls, mesh: Mesh, job: ClusterShape, nic_gbps: Any, nics: int) -> "DirectLinks":
        """Groups of servers in a row on the links of the whole cluster: the groups of a stage run at once, all
        servers reduce gradients at once (`routing.gradients`), and all send to the next stage at once."""
        stage = job.servers // job.pp
        rest: dict[str, Any] = {"groups": max(1, stage // job.servers_per_region), "stage": stage}
        return cls(job.servers_per_region, nic_gbps, nics, None, None, mesh, **rest)

    @property
    def joined(self) -> bool:
        return self.hops is not None

    @property
    def longest(self) -> float | None:
        """Links of the longest way between two servers, the mean over its shares; None before ways are known."""
        if self.hops is None:
            return None
        return float(np.where(np.asarray(self.hops) >= 0, np.asarray(self.share, float), 0).sum(axis=1).max(initial=1))

    @property
    def routers(self) -> bool:
        return self.mesh is not None and len(self.mesh.nodes) > 1

    def lacks(self, routing: str) -> dict[str, str]:
        """Failures that cannot happen here: {kind: reason}."""
        found: dict[str, str] = dict.fromkeys(("electrical-nic", "electrical-nics", "switch"), NO_PACKETS)
        found |= dict.fromkeys(PLANES, ONE_PLANE)
        found |= dict.fromkeys(("optical-switch", "controller"), FIXED)
        if not self.panels:
            found["optical-nic"] = "a NIC is one end of a link"
            found |= dict.fromkeys(("gpu", "server"), NO_SPARE)
        elif self.nics <= self.ring_nics:
            found["optical-nic"] = "all NICs of a group are in its ring"
        if self.routers:
            found |= dict.fromkeys(("optical-nic", "optical-switch", "controller"), NO_OPTICS)
            found |= dict.fromkeys(("electrical-nics", "switch"), "of its routers a link is modelled, no whole router")
            if self.nics > 1:
                del found["electrical-nic"]
        return found | (dict.fromkeys(("link", "optical-nic"), ALONE) if self.servers < 2 else {})

    def broken(self, hit: Hit) -> Degraded:
        """The group after a failure; a spare takes all circuits of a failed server on panels."""
        if hit.kind in ("gpu", "server"):
            return Degraded(hit.kind, self, hit.server)
        if hit.kind == "optical-nic":
            nics = tuple(self.nics - (server == hit.server) for server in range(self.servers))
            return Degraded(hit.kind, dataclasses.replace(self, nics=nics, mesh=None, hops=None), hit.server)
        assert self.mesh is not None
        joined, node = self.mesh.count, hit.server
        if self.routers:  # its NICs lead to a router, whose links lead to other routers
            router = self.mesh.servers + int(joined[node, self.mesh.servers :].argmax())
            node = node if hit.kind == "electrical-nic" else router
            joined = joined * (np.arange(len(joined)) >= self.mesh.servers)
        peer = int(joined[node].argmax())
        if not joined[node, peer]:
            raise InputError("failure 'link' needs a link between servers of a group; there is none.")
        left = dataclasses.replace(self, mesh=self.mesh.without_one(node, peer), hops=None)
        eps_left = 1 - 1 / self.nics if hit.kind == "electrical-nic" else 1.0
        return Degraded(hit.kind, left, hit.server, eps_left=eps_left)
