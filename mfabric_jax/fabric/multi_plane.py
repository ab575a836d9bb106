"""Multi-plane: every NIC is split over several trees (planes) of one or two tiers, so each tree holds more NICs.

A NIC of b Gbps has a port of b / p on each of p planes. A switch that splits its ports likewise has p times as many, so
two tiers hold as many NICs as three without the split (64 ports split in 8: 131,072 NICs). For planes of whole NICs,
with NIC j of a server on plane j, see `rail-only`. Sources: arXiv 2605.04333 (split NICs; second hand), 2505.09343
(whole NICs).
"""

import dataclasses
from typing import Any

from mfabric_jax.checks import Misfit
from mfabric_jax.fabric.cost import PartGroup
from mfabric_jax.fabric.design import OnTree
from mfabric_jax.fabric.on_tree import attachment_of, nic_tree
from mfabric_jax.fabric.site import About, FabricLinks, FabricPaths, FabricSite


class MultiPlaneFabric(OnTree):
    def links(self, site: FabricSite) -> FabricLinks:
        return FabricLinks(dataclasses.replace(nic_tree(site, planes=site.own.planes), tiers=min(site.tiers, 2)))

    def group(self, site: FabricSite, nic_gbps: Any) -> Any:
        own, planes = site.own.flows == "own", site.own.planes
        group: Any = super().group(site, nic_gbps)
        tree = self.links(site).tree
        assert tree is not None
        dataclasses.replace(tree, hosts=site.servers * group.nics)  # raises `InputError` if the planes lack room
        if own and (site.ratio() != 1 or site.network.nic_use != "own"):
            raise Misfit(
                "network.multi-plane.flows own needs network.nic_use own and network.oversubscription auto or 1."
            )
        return dataclasses.replace(group, planes=planes, own_plane=own)

    def parts(self, site: FabricSite) -> tuple[PartGroup, ...]:
        """Count a split port as one port, with one transceiver and one fibre that has a strand per lane."""
        nics = site.server_nics
        return (PartGroup(nics, "planes", attachment_of(site, nics, most_tiers=2, planes=site.own.planes)),)

    def paths(self, site: FabricSite) -> FabricPaths:
        return FabricPaths("spraying", 2 * min(site.tiers, 2), single=True)


MULTI_PLANE = MultiPlaneFabric(
    About(
        name="multi-plane",
        summary="every NIC split over `network.multi-plane.planes` trees of at most two tiers",
        look=("Multi-plane", "#AA4499", "H"),
    )
)
