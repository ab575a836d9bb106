"""Photonic rails: every rail is one optical switch, which turns between phases of communication.

All NICs of rank j of all servers are on switch j, and a NIC has two ports of half its bandwidth with one circuit each.
Expert, data and pipeline parallelism do not communicate at once, so circuits are those of one of them: in all-to-alls
the NICs of a rail in each expert-parallel group form a ring, and bytes, which change to their destination's rail inside
the server first (as with PXN), go around it the shorter way, half either way where both are equally long; gradients go
around the ring of the stage in both directions; a stage has one port to the stage before it and one to the next. Source
of the idea: arXiv 2602.12521, 2507.08119 (abstracts); ring, routing and turns are ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mfabric_jax.checks import Misfit
from mfabric_jax.fabric.cost import Attachment, PartGroup
from mfabric_jax.fabric.design import SERVER_GPUS, Asked, ClusterShape, Fabric, Form, check_own, nics_of
from mfabric_jax.fabric.nic_use import PORTS
from mfabric_jax.fabric.topoopt import ring_circuits
from mfabric_jax.workload import Workload

if TYPE_CHECKING:
    from mfabric_jax.fabric.direct_links import Mesh
    from mfabric_jax.fabric.rail_rings import RailRings

# A NIC that is split has one transceiver, and a fibre with a strand for each lane: to fail, one link.
RAIL_OCS = Attachment(ocs_ports=PORTS, links=(("link", 1),))


def _groups(settings: Asked, job: Workload, nic_gbps: float, nic_uses: Sequence[str]) -> list[RailRings]:
    from mfabric_jax.fabric.rail_rings import RailRings, ring_of

    nics, switch = nics_of(settings, job), settings.parts.ocs
    check_own("own", nics, job.gpus_per_server)
    if switch is not None and switch.ports < (needed := PORTS * job.servers):
        raise Misfit(
            f"circuits.ocs {switch.name} has {switch.ports} ports, but a rail of {job.servers} servers needs {needed}."
        )
    if job.sequence_ranks > job.ranks_per_server:
        raise Misfit(
            f"photonic-rails needs the {job.sequence_ranks} ranks of a sequence (job.parallel.cp) in one server, as "
            f"rails carry one phase at a time; a server has {job.ranks_per_server}."
        )
    stage = nics / min(PORTS, max(1, job.pp - 1))  # the only neighbour has both ports
    rates: dict[str, Any] = {"ring_nics": float(nics), "stage_nics": stage, "delay_s": settings.delay_s}
    return [RailRings(job.servers_per_region, nic_gbps, nics, mesh=ring_of(job.servers_per_region), **rates)]


def _form(settings: Asked, job: ClusterShape) -> Form:
    return Form(nics=nics_of(settings, job), servers=job.servers)


def _nics(form: Form) -> int:
    return SERVER_GPUS if form.nics is None else form.nics


def _mesh(servers: int, form: Form) -> Mesh:
    """For pictures: the phase of gradients of one stage, half of the NICs of a server in either direction."""
    from mfabric_jax.fabric.direct_links import mesh_of

    return mesh_of(ring_circuits(servers, [1]) * max(1, _nics(form) // PORTS))


def _rails(form: Form, job: ClusterShape) -> tuple[int, int]:
    """Ports of a rail, and rails."""
    return PORTS * job.servers, _nics(form)


PHOTONIC_RAILS = Fabric(
    name="photonic-rails",
    summary="an optical switch for every rail, which turns between all-to-alls, sends and gradients",
    look=("Photonic rails", "#117A65", "h"),
    groups=_groups,
    mesh=_mesh,
    parts=lambda form: (PartGroup(_nics(form), "rail OCS", RAIL_OCS),),
    form=_form,
    optical_regions=_rails,
    path_links=lambda settings: 1,
    routing="rings",
    single_paths=lambda settings: False,
    uses="pooled",
    phases=True,
)
