"""Number of parts of each kind in a cluster, as its bill counts them."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from mfabric_jax.evaluate.resolving.resolve import Resolved
from mfabric_jax.fabric.design import Fabric
from mfabric_jax.fabric.graph_failures import graph_devices
from mfabric_jax.fabric.site import FabricLinks, FabricSite
from mfabric_jax.fabric.tree import DOWN
from mfabric_jax.workload import Workload

LINKS = ("nic-link", "optical-link", "link", "spine-link")


class ServerNics(NamedTuple):
    """NICs of one server: `electrical` ones on packet switches, and `optical` NICs or ports (the mean if servers
    differ)."""

    electrical: int
    optical: float


class SwitchCounts(NamedTuple):
    """Packet switches of a cluster.

    - `edges`: switches with servers attached; `spines`: all others.
    - `uplinks`: uplinks in use at an edge switch; None without a tree.
    - `above`: switches that these uplinks reach; infinite if one edge switch holds all NICs, so that no traffic
      uses the uplinks; None without a tree.
    """

    edges: int
    spines: int
    uplinks: float | None = None
    above: float | None = None


class ClusterParts(NamedTuple):
    """The cluster whose parts are counted: the site of its bill without idle spare GPUs of domains."""

    on: Fabric
    resolved: Resolved
    job: Workload
    group: Any
    site: FabricSite
    nvswitches: int  # of the whole cluster

    @classmethod
    def of(cls, resolved: Resolved, group: Any) -> ClusterParts:
        on, job = resolved.fabric, resolved.job
        return cls(on, resolved, job, group, resolved.site, nvswitches_of(resolved))

    @property
    def nics(self) -> ServerNics:
        """NICs of one server: the fabric's parts give them, and the group gives ports that the price of a GPU
        includes."""
        switched, others = 0, 0.0
        for part in self.on.parts(self.site):
            if part.attachment.switch_ports:
                switched += part.nics
            else:
                others += part.nics
        own = int(self.group.optical_degree) if self.group.own_ports else 0
        return ServerNics(int(switched), others + own)

    @property
    def cluster_links(self) -> FabricLinks:
        return self.on.links(self.site)

    @property
    def switches(self) -> SwitchCounts:
        hosts, tree = self.job.servers * self.nics.electrical, self.cluster_links.tree
        if tree is None or not hosts:
            mesh = self.cluster_links.mesh() if hosts and self.cluster_links.mesh else None
            edges, spines = (*(count for _, count in mesh.nodes[1:]), 0, 0)[:2] if mesh else (0, 0)
            return SwitchCounts(edges, spines)
        planes, links = tree.planes, dict(self._tree_links)
        below = min(hosts // tree.parts, tree.edge_ports[DOWN])
        up, core = (hosts // tree.parts * links.get(kind, 0) for kind in ("link", "spine-link"))
        first, cores = math.ceil((up + core) / tree.radix), math.ceil(core / tree.radix)
        edges = tree.edges_of(hosts)
        pods = math.ceil(edges / tree.parts / tree.pod_ports[DOWN]) if core else 1
        spines = planes * tree.parts * (first + cores)
        above = planes * max(1, first // pods) if edges > tree.parts else math.inf
        return SwitchCounts(planes * edges, spines, below * links.get("link", 0), above)

    @property
    def _tree_links(self) -> tuple[tuple[str, float], ...]:
        return next(part.attachment.links for part in self.on.parts(self.site) if part.attachment.switch_ports)

    @property
    def optical_switches(self) -> int:
        on, switch = self.on, self.resolved.parts.ocs
        if on.about.optics.switch_a_nic:
            return round(self.job.servers * self.nics.optical)
        if on.about.optics.switches is None:
            return self.regions if self.group.own_ports else 0
        ports, regions = on.about.optics.switches(self.site)
        return math.ceil(round(regions, 6) if switch is None else switch.switches(ports, regions))

    @property
    def many_rings(self) -> bool:
        """Whether a fixed optical switch joins the ports of more than one ring."""
        switch, regions = self.resolved.parts.ocs, self.on.about.optics.switches
        if switch is None or regions is None or self.group.reconfigures or self.group.phases:
            return False
        return switch.ports // max(1, regions(self.site)[0]) > 1

    @property
    def regions(self) -> int:
        return -(-self.job.servers // self.job.servers_per_region)

    def links(self, kind: str) -> int:
        behind = ((part.nics, dict(part.attachment.links)) for part in self.on.parts(self.site))
        return round(self.job.servers * sum(nics * links.get(kind, 0) for nics, links in behind))

    def devices(self, kind: str) -> int:
        """Return the number of parts of a kind; 0 if the cluster has none.

        Links are those of the bill, which serve NICs; an empty switch port has no link. `electrical-nics` counts a
        server's NICs as one part; `switch` counts switches with servers attached.
        """
        if kind == "nvswitch":
            return self.nvswitches
        if self.group.over_graph:
            return graph_devices(self.group.graph_file).get(kind, 0)
        if kind in LINKS:
            return self.links(kind)
        tree = self.cluster_links.tree
        nics, servers, planes = self.nics, self.job.servers, 1 if tree is None else tree.planes
        several = planes > 1
        each = {
            "electrical-nic": lambda: servers * nics.electrical,
            "electrical-nics": lambda: servers if nics.electrical else 0,
            "optical-nic": lambda: round(servers * nics.optical),
            "gpu": lambda: self.job.gpus,
            "server": lambda: servers,
            "optical-switch": lambda: self.optical_switches,
            "controller": lambda: self.optical_switches if self.group.phases else self.regions,
            "switch": lambda: self.switches.edges,
            "spine": lambda: self.switches.spines,
            "plane": lambda: planes if several else 0,
            "plane-link": lambda: planes * servers * nics.electrical if several else 0,
        }
        return each[kind]()


def nvswitches_of(resolved: Resolved) -> int:
    """Return the number of NVSwitches in the cluster; 0 if none are known.

    They are counted per server or domain if the case states them or the fabric has domains, else per board or rack of
    the GPU.
    """
    each, gpu = resolved.case.gpu.nvswitches, resolved.server
    if each is None:
        return 0
    if resolved.original.gpu.nvswitches is not None or resolved.fabric.domain_gpus is not None:
        return resolved.job.servers * each
    return math.ceil(resolved.job.gpus / gpu.nvswitch_gpus * each)
