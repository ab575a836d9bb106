"""mFabric: some NICs of a server on a regional optical switch, the others on a switch tree (arXiv 2501.03905)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mfabric_jax.fabric import views
from mfabric_jax.fabric.cost import PATCH_PANEL, REGIONAL_OCS, PartGroup
from mfabric_jax.fabric.design import OnTree
from mfabric_jax.fabric.on_tree import attachment_of, nic_tree
from mfabric_jax.fabric.site import About, FabricLinks, FabricPaths, FabricSite, Optics

if TYPE_CHECKING:
    from mfabric_jax.fabric.region import Region


def check_ports(site: FabricSite, region: Region) -> Region:
    """Raise `Misfit` if the optical switch has too few ports for the region."""
    if site.ocs is not None:
        site.ocs.check_region(region.servers, int(np.max(region.optical_degree)))
    return region


class BesideTree(OnTree):
    """Circuits join the servers of a region; the other NICs of a server are on a tree and pooled."""

    def links(self, site: FabricSite) -> FabricLinks:
        return FabricLinks(nic_tree(site), nic_use="pooled")

    def group(self, site: FabricSite, nic_gbps: Any) -> Region:
        nics = site.optical_degree, site.electrical_nics / site.ratio()
        return views.Region(site.group_servers, nic_gbps, *nics, site.delay_s)

    def parts(self, site: FabricSite) -> tuple[PartGroup, ...]:
        tree = attachment_of(site, site.electrical_nics)
        to = ("patch panel", PATCH_PANEL) if site.panels else ("regional OCS", REGIONAL_OCS)
        return PartGroup(site.optical_degree, *to), PartGroup(site.electrical_nics, "switch tree", tree)

    def paths(self, site: FabricSite) -> FabricPaths:
        return super().paths(site)._replace(rule=None)


class RegionalFabric(BesideTree):
    def group(self, site: FabricSite, nic_gbps: Any) -> Region:
        return check_ports(site, super().group(site, nic_gbps))


def _switches(site: FabricSite) -> tuple[Any, int]:
    return site.group_servers * site.optical_degree, site.servers // site.group_servers


MFABRIC = RegionalFabric(
    About(
        name="mfabric",
        summary="`electrical_nics` of a server are on a tree and pooled; circuits join the servers of a region",
        look=("mFabric", "#D55E00", "o"),
        optics=Optics(
            wires=lambda site, nic_gbps, choose: choose(site.optical_degree),
            switches=_switches,
            policy=None,
            reconfigures=True,
            degree_varies=True,
        ),
    )
)
