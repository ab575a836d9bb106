"""Fat-trees: all NICs on one switch tree, non-blocking or 3:1; shared by other fabrics on trees. arXiv 2501.03905."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from mfabric_jax.fabric.cluster import Cluster
from mfabric_jax.fabric.cost import Attachment, PartGroup, attachment_of_links, tree_attachment
from mfabric_jax.fabric.design import (
    SERVER_GPUS,
    Asked,
    ClusterShape,
    Fabric,
    Form,
    check_own,
    nics_of,
)
from mfabric_jax.fabric.tree import DOWN, UP, Tree, needed_uplinks

if TYPE_CHECKING:
    from mfabric_jax.case.tree import Network
    from mfabric_jax.fabric.electrical import Electrical


def tree_groups(
    settings: Asked, job: ClusterShape, nic_gbps: float, nic_uses: Sequence[str], ratio: float = 1.0, **where: Any
) -> list[Electrical]:
    """A group for every use of NICs; `ratio`: default oversubscription, `where`: as of `on_switches`."""
    nics = nics_of(settings, job)
    for use in nic_uses:
        check_own(use, nics, job.gpus_per_server)
    return [on_switches(settings, job, nic_gbps, nics, ratio, nic_use=use, **where) for use in nic_uses]


def on_switches(
    settings: Asked,
    job: ClusterShape,
    nic_gbps: float,
    nics: int,
    usual: float = 1.0,
    *,
    nic_use: str = "own",
    rails: bool = False,
    pxn: bool = False,
    parts: int = 1,
    planes: int = 1,
) -> Electrical:
    """A group of servers on a tree with default oversubscription `usual`, in `parts` with a NIC of each rank."""
    from mfabric_jax.fabric.electrical import Electrical

    own: dict[str, Any] = {"nic_use": nic_use, "pxn": pxn}
    ratio = ratio_of(settings.case.network, usual)
    if ratio == 1:
        return Electrical(nic_gbps, nics, **own)
    if settings.leaf_servers is not None and not rails:
        return Electrical(nic_gbps, nics, ratio, **own)
    tiers = min(settings.tiers, 2) if parts > 1 or planes > 1 else settings.tiers
    tree = Tree(job.servers * nics, settings.case.network.radix * planes, tiers, ratio, parts=parts, planes=planes)
    if tree.edges_per_part == 1:
        return Electrical(nic_gbps, nics, **own)
    leaves = Cluster("", job.servers, 1.0, gpus_per_server=job.gpus_per_server, tree=tree, rails=rails, **own)
    return Electrical(nic_gbps, nics, leaves=leaves, **own)


def ratio_of(form: Form | Network, usual: float = 1.0) -> float:
    """Oversubscription of a tree: the setting, or the fabric's own."""
    return usual if form.oversubscription is None else form.oversubscription


def nic_tree(form: Form, ratio: float = 1.0, parts: int = 1) -> Tree:
    """The switch tree of a fabric with default oversubscription `ratio`, over one host in each part."""
    tiers = form.tiers if parts == 1 else min(form.tiers, 2)
    return Tree(parts, form.radix, tiers, ratio_of(form, ratio), form.at, parts)


def tree_parts(form: Form, ratio: float = 1.0) -> tuple[PartGroup, ...]:
    nics = SERVER_GPUS if form.nics is None else form.nics
    return (PartGroup(nics, "switch tree", attachment_of(form, nics, ratio)),)


def attachment_of(
    form: Form, nics: Any, usual: float = 1.0, *, most_tiers: int = 3, parts: int = 1, planes: int = 1
) -> Attachment:
    """Parts behind each of the `nics` (maybe an array) that a server has on a tree; `parts`, `planes`: as in `Tree`."""
    ratio, tiers = ratio_of(form, usual), np.minimum(form.tiers, most_tiers)
    full = tree_attachment(ratio, tiers, form.at)
    if not form.laid_out or not np.any(tiers > 1):
        return full
    tree = Tree(1, form.radix * planes, int(np.max(tiers)), ratio, form.at)
    ports, hosts = tree.edge_ports, np.maximum(form.servers * np.asarray(nics, float) / parts, 1)
    leads = (hosts > ports[DOWN]) | (tiers == 3)  # one switch of two tiers leads nowhere else
    up = np.where((tiers > 1) & leads, needed_uplinks(hosts, ports), 0) / hosts
    spine = np.where(tiers == 3, up * tree.pod_ports[UP] / tree.pod_ports[DOWN], 0)
    return attachment_of_links(1.0, *(links if links.ndim else float(links) for links in (up, spine)))


def tree_form(settings: Asked, job: ClusterShape) -> Form:
    """The form with NICs as set by the user, else one per GPU."""
    return Form(nics=nics_of(settings, job), gpu_tbps=settings.case.network.gpu_tbps, **switches_of(settings, job))


def switches_of(settings: Asked, job: ClusterShape) -> dict[str, Any]:
    """Fields of `Form` that describe a switch tree and its size."""
    return {
        "servers": job.servers,
        "tiers": settings.tiers,
        "radix": settings.case.network.radix,
        "oversubscription": settings.case.network.oversubscription,
        "laid_out": settings.leaf_servers is None and not settings.shares_network,
    }


OVERSUBSCRIPTION = 3.0

FAT_TREE = Fabric(
    name="fat-tree",
    summary="all NICs on one non-blocking switch tree",
    look=("Fat-tree", "#0072B2", "s"),
    groups=tree_groups,
    tree=nic_tree,
    parts=tree_parts,
    form=tree_form,
)
OVERSUB_FAT_TREE = Fabric(
    name="oversub-fat-tree",
    summary="all NICs on one switch tree, 3:1 at the edge unless `oversubscription` says otherwise",
    look=("Oversubscribed fat-tree", "#56B4E9", "v"),
    groups=partial(tree_groups, ratio=OVERSUBSCRIPTION),
    tree=partial(nic_tree, ratio=OVERSUBSCRIPTION),
    parts=partial(tree_parts, ratio=OVERSUBSCRIPTION),
    form=tree_form,
)


def made_alike(fabrics: Collection[str], ratio: float | None) -> str | None:
    """A sentence where `network.oversubscription` makes the full tree the oversubscribed one beside it; else None."""
    full, thin = FAT_TREE.name, OVERSUB_FAT_TREE.name
    if ratio is None or ratio == 1 or not {full, thin} <= set(fabrics):
        return None
    return (
        f"network.oversubscription {ratio:g} is that of {full}, too, which makes it the network of {thin}; leave it "
        f"out for a full {full} beside one of {OVERSUBSCRIPTION:g}:1."
    )
