"""ACOS: small optical switches choose one of a few graphs of circuits, wired beforehand, for every region.

Each optical NIC has a switch of one input and K outputs, one a graph; all of a region turn together, and the policy
`topologies` names the graph. The other NICs are on a switch tree, as on mFabric. Source of the idea: arXiv 2602.17449
(abstract); the graphs, the tree beside them and the price are ours: a 1xK switch counts as K ports of an optical
switch, an estimate, and two NICs share each of the K fibres behind it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mfabric_jax.case.fabrics import TOPOLOGIES
from mfabric_jax.checks import InputError, Misfit, one_of
from mfabric_jax.fabric.cost import Attachment, PartGroup
from mfabric_jax.fabric.mfabric import BesideTree
from mfabric_jax.fabric.site import About, Optics, Site

if TYPE_CHECKING:
    from mfabric_jax.fabric.region import Region

NAME, POLICY = "acos", "topologies"
LEAST = 2  # optical NICs, of a ring


class Acos(BesideTree):
    def group(self, site: Site, nic_gbps: Any) -> Region:
        degree = site.optical_degree
        if degree < LEAST:
            raise Misfit(f"network.nics must leave {LEAST} or more on the optical switches of acos, got {degree}.")
        if not site.own.topologies:
            raise InputError("network.acos.topologies must name at least one graph, got none.")
        for name in site.own.topologies:
            one_of("network.acos.topologies:", name, TOPOLOGIES)
        return super().group(site, nic_gbps)

    def parts(self, site: Site) -> tuple[PartGroup, ...]:
        _, tree = super().parts(site)
        graphs = len(site.own.topologies)
        switch = Attachment(ocs_ports=graphs, fibres=1 + graphs / 2, links=(("optical-link", 1),))
        return PartGroup(site.optical_degree, f"1x{graphs} switch", switch), tree


ACOS = Acos(
    About(
        name=NAME,
        summary="small optical switches choose one of a few graphs between the servers of a region, a tree beside them",
        look=("ACOS", "#E7298A", "p"),
        optics=Optics(
            wires=lambda site, nic_gbps, choose: choose(site.optical_degree, POLICY),
            policy=POLICY,
            reconfigures=True,
            switch_a_nic=True,
        ),
    )
)
