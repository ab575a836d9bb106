"""The interface of a fabric: six members. `OnTree` (a switch tree) and `OnMesh` (fixed links) give defaults.

A fabric is one file with one instance, and one line in `case/network.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from mfabric_jax import units
from mfabric_jax.checks import InputError, Misfit
from mfabric_jax.fabric import views
from mfabric_jax.fabric.cluster import Cluster
from mfabric_jax.fabric.cost import DIRECT_LINK, PartGroup
from mfabric_jax.fabric.on_tree import attachment_of, nic_tree, on_switches
from mfabric_jax.fabric.site import (
    NO_OPTICS,
    NVSWITCH_GIGABYTES_PER_S,
    SERVER_GPUS,
    About,
    ClusterShape,
    FabricLinks,
    FabricPaths,
    FabricSite,
)
from mfabric_jax.workload import Gpu

if TYPE_CHECKING:
    from mfabric_jax.fabric.direct_links import DirectLinks, Mesh
    from mfabric_jax.fabric.electrical import Electrical
    from mfabric_jax.fabric.region import Region

    EpGroup = Electrical | Region | DirectLinks
else:
    EpGroup = Any


class Fabric(ABC):
    """One fabric: facts, and functions of a `FabricSite`; it has no state.

    A fabric defines `about` and the methods `group`, `links`, `parts`, `paths` and `fills`. The rest follows from them:

    - `name`, `summary`, `reconfigures`, `phases`, `policy`: as in `About` and `Optics`.
    - `domain_gpus`: default GPUs of a scale-up domain, which the GPU may override; None: the fabric has servers.
    - `gpus_per_server`: default GPUs of a server or scale-up domain.
    - `unequal_nics`: the NICs of a server may differ in bandwidth (`network.rails.speeds`).
    - `joins_groups`: switches lead from an expert-parallel group to others; fixed links join the servers of one group.
    - `leaves_spares`: settings give the size of a domain, so a job may leave some of its GPUs idle.
    """

    unequal_nics = False
    joins_groups = True

    def __init__(self, about: About):
        self.about = about
        self.name, self.summary = about.name, about.summary
        optics, domains = about.optics, about.domains
        self.reconfigures, self.phases, self.policy = optics.reconfigures, optics.phases, optics.policy
        self.domain_gpus = None if domains is None else domains.gpus
        self.gpus_per_server = self.domain_gpus or SERVER_GPUS
        self.leaves_spares = domains is not None and domains.stated is not None

    @abstractmethod
    def group(self, site: FabricSite, nic_gbps: Any) -> EpGroup:
        """Return what one expert-parallel group sees of the fabric: all the data that routing needs."""

    @abstractmethod
    def links(self, site: FabricSite) -> FabricLinks:
        """Return the links of the whole cluster, without circuits."""

    @abstractmethod
    def parts(self, site: FabricSite) -> tuple[PartGroup, ...]:
        """Return the NICs of one server and the parts behind each; prices, watts and tree ports follow from them."""

    @abstractmethod
    def paths(self, site: FabricSite) -> FabricPaths:
        """Return how bytes cross the links."""

    def fills(self, site: FabricSite) -> Mapping[str, Any]:
        """Return values for the fabric's own settings that the user left open, by name; the others do not change."""
        return {}

    # ---------------------------------------------------------------------------------- what follows from these
    def __repr__(self) -> str:
        return f"<Fabric {self.name}: {self.summary}>"

    def inside_Bps(self, gpu_tbps: Any, nic_gbps: Any, own_Bps: Any) -> Any:
        """Return the bandwidth of a GPU inside its server or domain [bytes/s]; arguments may be traced.

        `own_Bps`: the bandwidth on its data sheet.
        """
        domains = self.about.domains
        return own_Bps if domains is None else domains.inside_Bps(gpu_tbps, nic_gbps, own_Bps)

    def cluster(self, site: FabricSite, nic_gbps: float, regions: np.ndarray | None = None, **fields: Any) -> Cluster:
        """Return the whole cluster. Further keywords are fields of `Cluster`.

        `regions`: circuits [G S S]. Raise `InputError` if they are missing, or if the fabric has no circuits.
        """
        optics, links, gpus = self.about.optics, self.links(site), site.gpus_per_server
        self.check_ratio(site.network.oversubscription, links)
        self.check_speeds(site.network.rails.speeds, site.server_nics)
        if (regions is None) != (optics.wires is None):
            detail = "regions was not given" if regions is None else f"regions was {list(np.shape(regions))}"
            raise InputError(f"{self.name} {'has no' if optics.wires is None else 'needs'} circuits; {detail}.")
        if links.tree is links.mesh is optics.wires is None:
            raise InputError(f"network.fabric {self.name} has no servers to lay out; replay and draw take its file.")
        on_tree = sum(group.nics for group in self.parts(site) if group.attachment.switch_ports)
        use = links.nic_use or (site.network.nic_use if on_tree == gpus else "pooled")
        if "nvswitch_gigabytes_per_s" not in fields:
            usual = units.gigabytes_per_s(NVSWITCH_GIGABYTES_PER_S)
            inside = units.to_gigabytes(self.inside_Bps(site.network.gpu_tbps, nic_gbps, usual))
            fields = {"nvswitch_gigabytes_per_s": inside} | fields
        tree, mesh = links.tree, None if links.mesh is None else links.mesh()
        if tree is not None and tree.oversubscription != 1 and site.leaf_servers is not None and not links.rails:
            tree = replace(tree, leaf_hosts=site.leaf_servers * on_tree or None)
        return Cluster(
            self.name,
            site.servers,
            nic_gbps,
            gpus_per_server=gpus,
            tree=replace(tree, hosts=site.servers * on_tree) if tree is not None and on_tree else None,
            rails=links.rails,
            nic_use=use,
            regions=regions,
            mesh=mesh and mesh.present,
            speeds=site.network.rails.speeds,
            phases=self.phases,
            **{"pxn": links.pxn, "link_delay_s": site.network.link_delay_s} | fields,
        )

    def check_ratio(self, oversubscription: float | None, links: FabricLinks) -> None:
        """Raise `Misfit` if a fabric without a switch tree is to be oversubscribed."""
        treeless = links.tree is None and (links.mesh or self.about.optics.wires)
        if treeless and oversubscription not in (None, 1):
            raise Misfit(
                f"network.oversubscription must be auto or 1 on {self.name}, which has no switch tree, got "
                f"{oversubscription:g}."
            )

    def check_speeds(self, speeds: Sequence[float], nics: Any) -> None:
        """Raise `Misfit` for NICs of unequal bandwidth that do not fit a server, or that the fabric does not model."""
        if not speeds:
            return
        if not self.unequal_nics:
            raise Misfit(
                f"network.rails.speeds needs servers whose NICs are all on switch trees, as on fat-tree, "
                f"oversub-fat-tree, rail-optimized, rail-only and multi-plane; leave it empty on {self.name}, got "
                f"{list(speeds)}."
            )
        if np.any(len(speeds) != np.asarray(nics)) or max(speeds) != 1:
            raise Misfit(
                f"network.rails.speeds must have {nics} numbers up to 1, a speed for each NIC of a server "
                f"(network.nics), and 1 for the fastest, got {list(speeds)}."
            )

    def check_sharp(self, links: FabricLinks) -> None:
        """Raise `Misfit` if switches are to reduce on a fabric whose gradients cross no switch tree."""
        if links.tree is None:
            raise Misfit(
                f"network.in-network.sharp needs a switch tree that adds up gradients, and {self.name} has none: "
                f"{self.summary}; leave it out, or choose another fabric, such as fat-tree."
            )

    def gpus_of(self, server: Gpu) -> int:
        """Return the GPUs of a server, or of a scale-up domain if the fabric has domains."""
        if self.about.domains is None:
            return server.gpus_per_server
        return server.scale_up_gpus or self.about.domains.gpus

    def used_of(self, server: Gpu, group: int, stage: int, attention: int) -> int:
        """Return the GPUs of a server or domain on which a job runs.

        In a domain that leaves spares, it is the largest multiple of `attention` (the GPUs of a tensor-parallel group)
        that divides the `stage`, and that divides the `group` or is a multiple of it. Raise `Misfit` if there is none.
        """
        size = self.gpus_of(server)
        if not self.leaves_spares:
            return size
        fits = [
            n for n in range(attention, size + 1, attention) if stage % n == 0 and (group % n == 0 or n % group == 0)
        ]
        if not fits:
            if size < attention:
                raise Misfit(f"{self.name} needs domains of at least the {attention} GPUs of tp, got {size}.")
            raise Misfit(
                f"{self.name} needs expert-parallel groups of a multiple of the {attention} GPUs of tp, got {group}."
            )
        return fits[-1]

    def physical_gpus(self, server: Gpu) -> int:
        """Return the GPUs that a server or domain physically has, including those that never work."""
        built = self.about.domains and self.about.domains.built
        return self.gpus_of(server) if server.scale_up_gpus or not built else built

    def share_of(self, server: Gpu, part: int) -> float:
        """Return the fraction of a server or domain that a job on `part` of its GPUs pays for.

        It is 1 over the number of such parts that fit, because parts of one size share a server or domain equally. So
        4 GPUs of a server of 8 pay for half of it. 32 GPUs of a domain of 72 also pay for half of it, including half of
        the 8 idle GPUs.
        """
        return 1 / (self.gpus_of(server) // part)

    def paid_gpus(self, server: Gpu, job: ClusterShape) -> float:
        """Return the GPUs that a job pays for: those in use, and those that it leaves idle."""
        return job.servers * self.physical_gpus(server) * self.share_of(server, job.gpus_per_server)


class OnTree(Fabric):
    """All NICs on one switch tree."""

    @property
    def unequal_nics(self) -> bool:  # type: ignore[override]
        return self.about.domains is None and self.about.optics is NO_OPTICS

    def links(self, site: FabricSite) -> FabricLinks:
        return FabricLinks(nic_tree(site, self.about.ratio), nic_use=None if self.about.domains is None else "own")

    def group(self, site: FabricSite, nic_gbps: Any) -> EpGroup:
        return on_switches(site, nic_gbps, self.links(site))

    def parts(self, site: FabricSite) -> tuple[PartGroup, ...]:
        return (PartGroup(site.server_nics, "switch tree", attachment_of(site, site.server_nics, self.about.ratio)),)

    def paths(self, site: FabricSite) -> FabricPaths:
        return FabricPaths("spraying", 2 * site.tiers, single=True)


class OnMesh(Fabric):
    """Fixed links between servers, or routers behind them; the groups of a stage share these links."""

    joins_groups = False

    @abstractmethod
    def mesh(self, site: FabricSite) -> Mesh:
        """Return the links of the whole cluster and the rule by which bytes cross them (`direct_links.Mesh`).

        `views.mesh_of_links(servers, tail, head, nics)` builds it from links listed in both directions, each `nics`
        NICs wide; add `places` to have it drawn. Servers of an expert-parallel group have consecutive numbers. A
        cluster may be a single server without links.
        """

    def links(self, site: FabricSite) -> FabricLinks:
        return FabricLinks(mesh=lambda: self.mesh(site), nic_use="pooled")

    def group(self, site: FabricSite, nic_gbps: Any) -> EpGroup:
        return views.DirectLinks.of_cluster(
            self.mesh(site), site.group_servers, site.stage_servers, nic_gbps, site.server_nics
        )

    def parts(self, site: FabricSite) -> tuple[PartGroup, ...]:
        """Count a NIC that is split into lanes as one NIC with one transceiver and half a fibre."""
        return (PartGroup(site.server_nics, "direct link", DIRECT_LINK),)

    def paths(self, site: FabricSite) -> FabricPaths:
        return FabricPaths("shortest paths", 1)
