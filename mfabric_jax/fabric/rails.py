"""Rails: NICs of equal rank of all servers meet at the same switch.

Rail-optimised: rails share a spine, so other ranks are reached over it or, with PXN, over the NVSwitch. Rail-only: each
rail is a two-tier tree, and data changes rails over the NVSwitch. Sources: arXiv 2501.03905, 2307.12169.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mfabric_jax.fabric.cost import PartGroup
from mfabric_jax.fabric.design import (
    SERVER_GPUS,
    Asked,
    ClusterShape,
    Fabric,
    Form,
    check_own,
    nics_of,
    tree_links,
)
from mfabric_jax.fabric.fat_tree import attachment_of, nic_tree, on_switches, tree_form, tree_groups, tree_parts
from mfabric_jax.workload import Workload

if TYPE_CHECKING:
    from mfabric_jax.fabric.electrical import Electrical


def _over_nvswitch(settings: Asked, job: Workload, nic_gbps: float, apart: bool = False) -> list[Electrical]:
    """`apart`: no spine joins the rails."""
    nics = nics_of(settings, job)
    check_own("own", nics, job.gpus_per_server)
    return [on_switches(settings, job, nic_gbps, nics, rails=True, pxn=True, parts=nics if apart else 1)]


def _optimized_groups(settings: Asked, job: Workload, nic_gbps: float, nic_uses: Sequence[str]):
    if settings.case.network.rail_optimized.pxn:
        return _over_nvswitch(settings, job, nic_gbps)
    return tree_groups(settings, job, nic_gbps, nic_uses, rails=True)


def _only_groups(settings: Asked, job: Workload, nic_gbps: float, nic_uses: Sequence[str]):
    return _over_nvswitch(settings, job, nic_gbps, apart=True)


def _rail_parts(form: Form) -> tuple[PartGroup, ...]:
    rails = _rails(form)
    return (PartGroup(rails, "rail", attachment_of(form, rails, most_tiers=2, parts=rails)),)


def _rails(form: Form) -> Any:
    return SERVER_GPUS if form.nics is None else form.nics


def _with_pxn(settings: Asked, job: ClusterShape) -> Form:
    return dataclasses.replace(tree_form(settings, job), pxn=settings.case.network.rail_optimized.pxn)


RAIL_OPTIMIZED = Fabric(
    name="rail-optimized",
    summary="NICs of equal rank share edge switches, rails share a spine",
    look=("Rail-optimized", "#009E73", "D"),
    groups=_optimized_groups,
    tree=nic_tree,
    parts=tree_parts,
    form=_with_pxn,
    path_links=lambda settings: 2 if settings.case.network.rail_optimized.pxn else tree_links(settings),
    rails=True,
)
RAIL_ONLY = Fabric(
    name="rail-only",
    summary="a tree of at most two tiers for every rail, no spine; data changes rails over the NVSwitch",
    look=("Rail-only", "#C9B400", "^"),
    groups=_only_groups,
    tree=lambda form: nic_tree(form, parts=_rails(form)),
    parts=_rail_parts,
    form=tree_form,
    path_links=lambda settings: 2,
    rails=True,
    pxn=True,
    uses="own",  # no spine joins the rails
)
