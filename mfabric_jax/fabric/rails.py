"""Rails: the NICs of equal rank of all servers are on the same switch.

Rail-optimised: rails share a spine, so other ranks are reached over it or, with PXN, over the NVSwitch. Rail-only: each
rail is a two-tier tree, and data changes rails over the NVSwitch. Sources: arXiv 2501.03905, 2307.12169.
"""

from mfabric_jax.fabric.cost import PartGroup
from mfabric_jax.fabric.design import OnTree
from mfabric_jax.fabric.on_tree import attachment_of, nic_tree
from mfabric_jax.fabric.site import About, FabricLinks, FabricPaths, FabricSite


class RailOptimizedFabric(OnTree):
    def links(self, site: FabricSite) -> FabricLinks:
        return FabricLinks(nic_tree(site), rails=True, pxn=site.own.pxn)

    def paths(self, site: FabricSite) -> FabricPaths:
        return super().paths(site)._replace(links=2 if site.own.pxn else 2 * site.tiers)


class RailOnlyFabric(OnTree):
    def links(self, site: FabricSite) -> FabricLinks:
        tree = nic_tree(site, parts=site.server_nics)  # no spine joins the rails
        return FabricLinks(tree, rails=True, pxn=True, nic_use="own")

    def parts(self, site: FabricSite) -> tuple[PartGroup, ...]:
        rails = site.server_nics
        return (PartGroup(rails, "rail", attachment_of(site, rails, most_tiers=2, parts=rails)),)

    def paths(self, site: FabricSite) -> FabricPaths:
        return FabricPaths("spraying", 2, single=True)


RAIL_OPTIMIZED = RailOptimizedFabric(
    About(
        name="rail-optimized",
        summary="NICs of equal rank share edge switches, rails share a spine",
        look=("Rail-optimized", "#009E73", "D"),
    )
)
RAIL_ONLY = RailOnlyFabric(
    About(
        name="rail-only",
        summary="a tree of at most two tiers for every rail, no common spine; data changes rails over the NVSwitch",
        look=("Rail-only", "#C9B400", "^"),
    )
)
