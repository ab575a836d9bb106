"""Photonic rails: every rail is one optical switch, which turns between phases of communication.

All NICs of rank j of all servers are on switch j, and a NIC has two ports of half its bandwidth with one circuit each.
Expert, data and pipeline parallelism do not communicate at once, so circuits are those of one of them: in all-to-alls
the NICs of a rail in each expert-parallel group form a ring, and bytes, which change to their destination's rail inside
the server first (as with PXN), go around it the shorter way, half either way where both are equally long; gradients go
around the ring of the stage in both directions; a stage has one port to the stage before it and one to the next. Source
of the idea: arXiv 2602.12521, 2507.08119 (abstracts); ring, routing and turns are ours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mfabric_jax.checks import Misfit
from mfabric_jax.fabric import views
from mfabric_jax.fabric.cost import Attachment, PartGroup
from mfabric_jax.fabric.design import OnMesh
from mfabric_jax.fabric.grids import ring_circuits
from mfabric_jax.fabric.nic_use import PORTS
from mfabric_jax.fabric.on_tree import check_own
from mfabric_jax.fabric.site import About, Optics, Paths, Site

if TYPE_CHECKING:
    from mfabric_jax.fabric.direct_links import Mesh
    from mfabric_jax.fabric.rail_rings import RailRings

# A NIC that is split has one transceiver, and a fibre with a strand for each lane: to fail, one link.
RAIL_OCS = Attachment(ocs_ports=PORTS, links=(("link", 1),))


class PhotonicRails(OnMesh):
    def group(self, site: Site, nic_gbps: Any) -> RailRings:
        nics, switch, job = site.server_nics, site.ocs, site.job
        check_own("own", nics, site.gpus_per_server)
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
        stage = nics / min(PORTS, max(1, site.pp - 1))  # the only neighbour has both ports
        rates: dict[str, Any] = {"ring_nics": float(nics), "stage_nics": stage, "delay_s": site.delay_s}
        servers = site.group_servers
        return views.RailRings(servers, nic_gbps, nics, mesh=views.ring_of(servers), **rates)

    def mesh(self, site: Site) -> Mesh:
        """For pictures: the phase of gradients of one stage, half of the NICs of a server in either direction."""
        return views.mesh_of(ring_circuits(site.servers, [1]) * max(1, site.server_nics // PORTS))

    def parts(self, site: Site) -> tuple[PartGroup, ...]:
        return (PartGroup(site.server_nics, "rail OCS", RAIL_OCS),)

    def paths(self, site: Site) -> Paths:
        return Paths("rings", 1)


def _rails(site: Site) -> tuple[int, int]:
    """Ports of a rail, and rails."""
    return PORTS * site.servers, site.server_nics


PHOTONIC_RAILS = PhotonicRails(
    About(
        name="photonic-rails",
        summary="an optical switch for every rail, which turns between all-to-alls, sends and gradients",
        look=("Photonic rails", "#117A65", "h"),
        optics=Optics(switches=_rails, phases=True),
    )
)
