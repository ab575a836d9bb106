"""ACOS: small optical switches give every region one of a few prewired graphs of circuits.

Each optical NIC has a 1xK switch, with one output per graph. All switches of a region reconfigure together; the policy
`topologies` chooses the graph. The other NICs are on a switch tree, as on mFabric. The idea is from arXiv 2602.17449
(abstract). The graphs, the tree and the price are ours. We estimate that a 1xK switch costs as much as K ports of an
optical switch, and let two NICs share each of the K fibres behind it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mfabric_jax.case.network import TOPOLOGIES
from mfabric_jax.checks import InputError, Misfit, one_of
from mfabric_jax.fabric.cost import Attachment, PartGroup
from mfabric_jax.fabric.mfabric import BesideTree
from mfabric_jax.fabric.site import About, FabricSite, Optics

if TYPE_CHECKING:
    from mfabric_jax.fabric.region import Region

NAME, POLICY = "acos", "topologies"
LEAST = 2  # optical NICs that a ring needs


class AcosFabric(BesideTree):
    def group(self, site: FabricSite, nic_gbps: Any) -> Region:
        degree = site.optical_degree
        if degree < LEAST:
            raise Misfit(f"network.nics must leave at least {LEAST} on the optical switches of acos, got {degree}.")
        if not site.own.topologies:
            raise InputError("network.acos.topologies must name at least one graph, got none.")
        for name in site.own.topologies:
            one_of("network.acos.topologies:", name, TOPOLOGIES)
        return super().group(site, nic_gbps)

    def parts(self, site: FabricSite) -> tuple[PartGroup, ...]:
        _, tree = super().parts(site)
        graphs = len(site.own.topologies)
        switch = Attachment(ocs_ports=graphs, fibres=1 + graphs / 2, links=(("optical-link", 1),))
        return PartGroup(site.optical_degree, f"1x{graphs} switch", switch), tree


ACOS = AcosFabric(
    About(
        name=NAME,
        summary="small optical switches choose one of a few circuit graphs per region; the other NICs are on a tree",
        look=("ACOS", "#E7298A", "p"),
        optics=Optics(
            wires=lambda site, nic_gbps, choose: choose(site.optical_degree, POLICY),
            policy=POLICY,
            reconfigures=True,
            switch_a_nic=True,
        ),
    )
)
