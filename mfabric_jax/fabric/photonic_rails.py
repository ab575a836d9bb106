"""Photonic rails: every rail is one optical switch, reconfigured between phases of communication.

NIC j of every server is on switch j. It has two ports of half its bandwidth, with one circuit each. Expert, data and
pipeline parallelism communicate at different times, so circuits serve one of them at a time:

- All-to-alls: the NICs of a rail in each expert-parallel group form a ring. Bytes first change to their destination's
  rail inside the server (as with PXN), then take the shorter direction of the ring, or half each if both are equal.
- Gradients: the NICs of a rail in a stage form a ring, used in both directions.
- Sends: a NIC has one port to the stage before its own and one to the next.

Assumptions: a send starts right after the last all-to-all of its pass, and both of its ends reconfigure together. A
stage waits for another stage's ports no longer than for its own. Source of the idea: arXiv 2602.12521, 2507.08119
(abstracts); the ring, routing and reconfigurations are ours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mfabric_jax.checks import Misfit
from mfabric_jax.fabric import views
from mfabric_jax.fabric.cluster import check_own_nics
from mfabric_jax.fabric.cost import Attachment, PartGroup
from mfabric_jax.fabric.design import OnMesh
from mfabric_jax.fabric.grids import ring_circuits
from mfabric_jax.fabric.nic_use import PORTS
from mfabric_jax.fabric.site import About, FabricPaths, FabricSite, Optics

if TYPE_CHECKING:
    from mfabric_jax.fabric.direct_links import Mesh
    from mfabric_jax.fabric.rail_rings import RailRings

# A split NIC has one transceiver and one fibre with a strand per lane, so it fails as one link.
RAIL_OCS = Attachment(ocs_ports=PORTS, links=(("link", 1),))


class PhotonicRailsFabric(OnMesh):
    joins_groups = True

    def group(self, site: FabricSite, nic_gbps: Any) -> RailRings:
        nics, switch, job = site.server_nics, site.ocs, site.job
        check_own_nics("own", nics, site.gpus_per_server)
        if switch is not None and switch.ports < (needed := PORTS * site.servers):
            raise Misfit(
                f"circuits.ocs {switch.name} has {switch.ports} ports, but a rail of {site.servers} servers needs "
                f"{needed}."
            )
        if job is not None and job.sequence_ranks > job.ranks_per_server:
            raise Misfit(
                f"photonic-rails needs the {job.sequence_ranks} ranks of a sequence (job.parallel.cp) in one server, "
                f"as rails carry one phase at a time; a server has {job.ranks_per_server}."
            )
        stage = nics / min(PORTS, max(1, site.pp - 1))  # both ports lead to the only neighbour
        rates: dict[str, Any] = {"ring_nics": float(nics), "stage_nics": stage, "delay_s": site.delay_s}
        servers = site.group_servers
        return views.RailRings(servers, nic_gbps, nics, mesh=views.ring_of(servers), **rates)

    def mesh(self, site: FabricSite) -> Mesh:
        """Return the links of the gradient phase of one stage, for pictures: half of a server's NICs per direction."""
        return views.mesh_of(ring_circuits(site.servers, [1]) * max(1, site.server_nics // PORTS))

    def parts(self, site: FabricSite) -> tuple[PartGroup, ...]:
        return (PartGroup(site.server_nics, "rail OCS", RAIL_OCS),)

    def paths(self, site: FabricSite) -> FabricPaths:
        return FabricPaths("rings", 1)


def _rails(site: FabricSite) -> tuple[int, int]:
    """Ports of a rail's switch, and number of rails."""
    return PORTS * site.servers, site.server_nics


PHOTONIC_RAILS = PhotonicRailsFabric(
    About(
        name="photonic-rails",
        summary="an optical switch for every rail, reconfigured between all-to-alls, sends and gradients",
        look=("Photonic rails", "#117A65", "h"),
        optics=Optics(switches=_rails, phases=True),
    )
)
