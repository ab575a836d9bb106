"""The interface of a fabric: six members, of which a switch tree (`OnTree`) or a mesh (`OnMesh`) has defaults.

Each fabric is one file with one instance, and one line in `case/fabrics.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from mfabric_jax import units
from mfabric_jax.checks import InputError, Misfit
from mfabric_jax.fabric import views
from mfabric_jax.fabric.cluster import Cluster
from mfabric_jax.fabric.cost import DIRECT_LINK, PartGroup
from mfabric_jax.fabric.on_tree import attachment_of, nic_tree, on_switches
from mfabric_jax.fabric.site import NVSWITCH_GIGABYTES_PER_S, SERVER_GPUS, About, ClusterShape, Links, Paths, Site
from mfabric_jax.workload import Gpu

if TYPE_CHECKING:
    from mfabric_jax.fabric.direct_links import DirectLinks, Mesh
    from mfabric_jax.fabric.electrical import Electrical
    from mfabric_jax.fabric.region import Region

    EpGroup = Electrical | Region | DirectLinks
else:
    EpGroup = Any


class Fabric(ABC):
    """One fabric: facts and functions of a `Site`, no state.

    What a fabric says is `about` and the five methods below it. All else follows and is the same for every fabric:

    - `name`, `summary`, `reconfigures`, `phases`, `policy`: as of `About` and `Optics`.
    - `domain_gpus`: GPUs of a scale-up domain, unless the GPU sets it; None: there are servers.
    - `gpus_per_server`: GPUs of a server or scale-up domain, by default.
    - `leaves_spares`: settings state the size of a domain, so that a job may leave some of its GPUs idle.
    """

    def __init__(self, about: About):
        self.about = about
        self.name, self.summary = about.name, about.summary
        optics, domains = about.optics, about.domains
        self.reconfigures, self.phases, self.policy = optics.reconfigures, optics.phases, optics.policy
        self.domain_gpus = None if domains is None else domains.gpus
        self.gpus_per_server = self.domain_gpus or SERVER_GPUS
        self.leaves_spares = domains is not None and domains.stated is not None

    @abstractmethod
    def group(self, site: Site, nic_gbps: Any) -> EpGroup:
        """What one expert-parallel group sees of the fabric; routing solves it from the data alone."""

    @abstractmethod
    def links(self, site: Site) -> Links:
        """The links of the whole cluster, without circuits."""

    @abstractmethod
    def parts(self, site: Site) -> tuple[PartGroup, ...]:
        """NICs of one server and the parts behind each, for prices, watts and the number on the tree."""

    @abstractmethod
    def paths(self, site: Site) -> Paths:
        """How bytes cross the links."""

    def fills(self, site: Site) -> Mapping[str, Any]:
        """Values of the fabric's own settings that are left open, by name; those that are stated stay."""
        return {}

    # ---------------------------------------------------------------------------------------------- what follows
    def __repr__(self) -> str:
        return f"<Fabric {self.name}: {self.summary}>"

    def inside_Bps(self, gpu_tbps: Any, nic_gbps: Any, own_Bps: Any) -> Any:
        """Bytes/s of a GPU inside its server or domain; `own_Bps`: by its data sheet. Maybe traced."""
        domains = self.about.domains
        return own_Bps if domains is None else domains.inside_Bps(gpu_tbps, nic_gbps, own_Bps)

    def cluster(self, site: Site, nic_gbps: float, regions: np.ndarray | None = None, **rest: Any) -> Cluster:
        """The whole cluster; `regions`: circuits [G S S] where it has some, `rest`: further fields of `Cluster`."""
        optics, links, gpus = self.about.optics, self.links(site), site.gpus_per_server
        self.check_ratio(site.network.oversubscription, links)
        if (regions is None) != (optics.wires is None):
            given = "regions was not given" if regions is None else f"regions was {list(np.shape(regions))}"
            raise InputError(f"{self.name} {'has no' if optics.wires is None else 'needs'} circuits; {given}.")
        if links.tree is links.mesh is optics.wires is None:
            raise InputError(f"network.fabric {self.name} has no servers to lay out; replay and draw take its file.")
        on_tree = sum(group.nics for group in self.parts(site) if group.attachment.switch_ports)
        use = links.nic_use or (site.network.nic_use if on_tree == gpus else "pooled")
        if "nvswitch_gigabytes_per_s" not in rest:
            usual = units.gigabytes_per_s(NVSWITCH_GIGABYTES_PER_S)
            inside = units.to_gigabytes(self.inside_Bps(site.network.gpu_tbps, nic_gbps, usual))
            rest = {"nvswitch_gigabytes_per_s": inside} | rest
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
            phases=self.phases,
            **{"pxn": links.pxn, "link_delay_s": site.network.link_delay_s} | rest,
        )

    def check_ratio(self, oversubscription: float | None, links: Links) -> None:
        """`Misfit` for an oversubscribed tree where there are other links, but no tree."""
        treeless = links.tree is None and (links.mesh or self.about.optics.wires)
        if treeless and oversubscription not in (None, 1):
            raise Misfit(
                f"network.oversubscription must be auto or 1 on {self.name}, which has no switch tree, got "
                f"{oversubscription:g}."
            )

    def gpus_of(self, server: Gpu) -> int:
        if self.about.domains is None:
            return server.gpus_per_server
        return server.scale_up_gpus or self.about.domains.gpus

    def used_of(self, server: Gpu, group: int, stage: int, attention: int) -> int:
        """GPUs of a server, or of a part of a domain, on which a job runs.

        Domains that leave spares: the most that are whole expert-parallel groups (or divide one), fill the stage and
        hold whole tensor-parallel groups of `attention`. `Misfit` where these do not fit in a domain.
        """
        size = self.gpus_of(server)
        if not self.leaves_spares:
            return size
        fits = [
            n for n in range(attention, size + 1, attention) if stage % n == 0 and (group % n == 0 or n % group == 0)
        ]
        if not fits:
            raise Misfit(f"{self.name} needs domains of at least the {attention} GPUs of tp, got {size}.")
        return fits[-1]

    def built_of(self, server: Gpu) -> int:
        """GPUs of a server or domain, with those that never work."""
        built = self.about.domains and self.about.domains.built
        return self.gpus_of(server) if server.scale_up_gpus or not built else built

    def share_of(self, server: Gpu, part: int) -> float:
        """What `part` GPUs pay of the server or domain in which they work: all of it over the parts that fit.

        Parts of one size share a server or domain equally. So 4 GPUs of a server of 8 pay a half, and 32 GPUs of a
        domain of 72 a half too, with half of the 8 GPUs that stay idle.
        """
        return 1 / (self.gpus_of(server) // part)

    def paid_gpus(self, server: Gpu, job: ClusterShape) -> float:
        """GPUs that a job pays for: those in use, and the idle ones that it causes."""
        return job.servers * self.built_of(server) * self.share_of(server, job.gpus_per_server)


class OnTree(Fabric):
    """All NICs on one switch tree."""

    def links(self, site: Site) -> Links:
        return Links(nic_tree(site, self.about.ratio), nic_use=None if self.about.domains is None else "own")

    def group(self, site: Site, nic_gbps: Any) -> EpGroup:
        return on_switches(site, nic_gbps, self.links(site))

    def parts(self, site: Site) -> tuple[PartGroup, ...]:
        return (PartGroup(site.server_nics, "switch tree", attachment_of(site, site.server_nics, self.about.ratio)),)

    def paths(self, site: Site) -> Paths:
        return Paths("spraying", 2 * site.tiers, single=True)


class OnMesh(Fabric):
    """Links between servers, or routers behind them, that do not change; the groups of a stage share them."""

    @abstractmethod
    def mesh(self, site: Site) -> Mesh:
        """The links of the whole cluster and the rule by which bytes cross them (`direct_links.Mesh`).

        `views.mesh_of_links(servers, tail, head, nics)` makes it of links in both directions, each `nics` NICs wide;
        with `places` it can be drawn. Servers of an expert-parallel group have consecutive numbers. A cluster may be a
        single server, without links.
        """

    def links(self, site: Site) -> Links:
        return Links(mesh=lambda: self.mesh(site), nic_use="pooled")

    def group(self, site: Site, nic_gbps: Any) -> EpGroup:
        return views.DirectLinks.of_cluster(
            self.mesh(site), site.group_servers, site.stage_servers, nic_gbps, site.server_nics
        )

    def parts(self, site: Site) -> tuple[PartGroup, ...]:
        """A NIC that is split into lanes counts as one, and so do its transceiver and its half of a fibre."""
        return (PartGroup(site.server_nics, "direct link", DIRECT_LINK),)

    def paths(self, site: Site) -> Paths:
        return Paths("shortest paths", 1)
