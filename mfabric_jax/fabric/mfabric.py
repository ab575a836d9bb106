"""mFabric: some NICs of a server on a regional optical switch, the others on a switch tree (arXiv 2501.03905)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mfabric_jax.fabric.cost import PATCH_PANEL, REGIONAL_OCS, PartGroup
from mfabric_jax.fabric.design import (
    Asked,
    ClusterShape,
    Fabric,
    Form,
)
from mfabric_jax.fabric.fat_tree import attachment_of, nic_tree, ratio_of, switches_of
from mfabric_jax.workload import Workload

if TYPE_CHECKING:
    from mfabric_jax.fabric.region import Region


def check_ports(settings: Asked, region: Region) -> Region:
    """Raise `InputError` if the optical switch has too few ports for the region."""
    if (switch := settings.parts.ocs) is not None:
        switch.check_region(region.servers, int(np.max(region.optical_degree)))
    return region


def _groups(settings: Asked, job: Workload, nic_gbps: float, nic_uses) -> list[Region]:
    from mfabric_jax.fabric.region import Region

    nics = settings.optical_degree, settings.electrical_nics / ratio_of(settings.case.network)
    return [check_ports(settings, Region(job.servers_per_region, nic_gbps, *nics, settings.delay_s))]


def _parts(form: Form) -> tuple[PartGroup, ...]:
    tree = attachment_of(form, form.electrical_nics)
    to = ("patch panel", PATCH_PANEL) if form.panels else ("regional OCS", REGIONAL_OCS)
    return PartGroup(form.optical_degree, *to), PartGroup(form.electrical_nics, "switch tree", tree)


def _form(settings: Asked, job: ClusterShape) -> Form:
    degree, nics = settings.optical_degree, settings.electrical_nics
    return Form(optical_degree=degree, electrical_nics=nics, **switches_of(settings, job))


def _optical_regions(form: Form, job: Workload) -> tuple[Any, int]:
    return job.servers_per_region * form.optical_degree, job.servers // job.servers_per_region


MFABRIC = Fabric(
    name="mfabric",
    summary="`electrical_nics` of a server on a tree, pooled; circuits between the servers of a region",
    look=("mFabric", "#D55E00", "o"),
    groups=_groups,
    tree=nic_tree,
    circuits=lambda job, form, nic_gbps, choose: choose(form.optical_degree),
    parts=_parts,
    form=_form,
    data=("optical_degree", "electrical_nics"),
    optical_regions=_optical_regions,
    policy=None,
    routing=None,
    reconfigures=True,
    uses="pooled",
)
