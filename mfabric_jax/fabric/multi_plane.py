"""Multi-plane: every NIC is split over several trees of one or two tiers, which the split makes larger.

A NIC of b Gbps has a port of b / p on each of p planes, and a switch that splits its ports likewise has p times as
many: two tiers then have room for as many NICs as three had (64 ports split in 8: 131,072). Planes of whole NICs, NIC j
of a server on plane j, are `rail-only`. Sources: arXiv 2605.04333 (split NICs; second hand), 2505.09343 (whole NICs).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mfabric_jax.checks import Misfit
from mfabric_jax.fabric.cost import PartGroup
from mfabric_jax.fabric.design import SERVER_GPUS, Asked, ClusterShape, Fabric, Form
from mfabric_jax.fabric.fat_tree import attachment_of, ratio_of, tree_form, tree_groups
from mfabric_jax.fabric.tree import Tree
from mfabric_jax.workload import Workload

if TYPE_CHECKING:
    from mfabric_jax.fabric.electrical import Electrical

NAME = "multi-plane"


def _groups(settings: Asked, job: Workload, nic_gbps: float, nic_uses: Sequence[str]) -> list[Electrical]:
    own, planes = settings.own(NAME).flows == "own", settings.own(NAME).planes
    found = tree_groups(settings, job, nic_gbps, nic_uses, planes=planes)
    dataclasses.replace(_tree(_form(settings, job)), hosts=job.servers * found[0].nics)  # `InputError` without room
    if own and (ratio_of(settings.case.network) != 1 or any(use != "own" for use in nic_uses)):
        raise Misfit("network.multi-plane.flows own needs network.nic_use own and network.oversubscription auto or 1.")
    return [dataclasses.replace(one, planes=planes, own_plane=own) for one in found]


def _form(settings: Asked, job: ClusterShape) -> Form:
    planes = settings.own(NAME).planes
    return dataclasses.replace(tree_form(settings, job), planes=planes)


def _tree(form: Form) -> Tree:
    return Tree(1, form.radix * form.planes, min(form.tiers, 2), ratio_of(form), planes=form.planes)


def _parts(form: Form) -> tuple[PartGroup, ...]:
    """A split port counts as one, and so do its transceiver and its fibre, which has a strand for each lane anyway."""
    nics = SERVER_GPUS if form.nics is None else form.nics
    return (PartGroup(nics, "planes", attachment_of(form, nics, most_tiers=2, planes=form.planes)),)


MULTI_PLANE = Fabric(
    name=NAME,
    summary="every NIC split over `network.multi-plane.planes` trees of at most two tiers",
    look=("Multi-plane", "#AA4499", "H"),
    groups=_groups,
    tree=_tree,
    parts=_parts,
    form=_form,
    path_links=lambda settings: 2 * min(settings.tiers, 2),
)
