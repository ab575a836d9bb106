"""ACOS: small optical switches choose one of a few graphs of circuits, wired beforehand, for every region.

Each optical NIC has a switch of one input and K outputs, one a graph; all of a region turn together, and the policy
`topologies` names the graph. The other NICs are on a switch tree, as on mFabric. Source of the idea: arXiv 2602.17449
(abstract); the graphs, the tree beside them and the price are ours: a 1xK switch counts as K ports of an optical
switch, an estimate, and two NICs share each of the K fibres behind it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mfabric_jax.case.fabrics import TOPOLOGIES
from mfabric_jax.checks import InputError, Misfit, one_of
from mfabric_jax.fabric.cost import Attachment, PartGroup
from mfabric_jax.fabric.design import Asked, ClusterShape, Fabric, Form
from mfabric_jax.fabric.fat_tree import nic_tree, ratio_of
from mfabric_jax.fabric.mfabric import MFABRIC
from mfabric_jax.workload import Workload

if TYPE_CHECKING:
    from mfabric_jax.fabric.region import Region

NAME, POLICY = "acos", "topologies"
LEAST = 2  # optical NICs, of a ring


def _groups(settings: Asked, job: Workload, nic_gbps: float, nic_uses: Sequence[str]) -> list[Region]:
    from mfabric_jax.fabric.region import Region

    degree = settings.optical_degree
    if degree < LEAST:
        raise Misfit(f"network.nics must leave {LEAST} or more on the optical switches of acos, got {degree}.")
    if not settings.own(NAME).topologies:
        raise InputError("network.acos.topologies must name at least one graph, got none.")
    for name in settings.own(NAME).topologies:
        one_of("network.acos.topologies:", name, TOPOLOGIES)
    nics = degree, settings.electrical_nics / ratio_of(settings.case.network)
    return [Region(job.servers_per_region, nic_gbps, *nics, settings.delay_s)]


def _form(settings: Asked, job: ClusterShape) -> Form:
    return dataclasses.replace(MFABRIC.form(settings, job), graphs=len(settings.own(NAME).topologies))


def _parts(form: Form) -> tuple[PartGroup, ...]:
    _, tree = MFABRIC.parts(form)
    switch = Attachment(ocs_ports=form.graphs, fibres=1 + form.graphs / 2, links=(("optical-link", 1),))
    return PartGroup(form.optical_degree, f"1x{form.graphs} switch", switch), tree


ACOS = Fabric(
    name=NAME,
    summary="small optical switches choose one of a few graphs between the servers of a region, a tree beside them",
    look=("ACOS", "#E7298A", "p"),
    groups=_groups,
    tree=nic_tree,
    circuits=lambda job, form, nic_gbps, choose: choose(form.optical_degree, POLICY),
    parts=_parts,
    form=_form,
    policy=POLICY,
    routing=None,
    reconfigures=True,
    uses="pooled",
    switch_a_nic=True,
)
