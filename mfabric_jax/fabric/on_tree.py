"""NICs of a server on a switch tree: the tree, the parts behind a NIC, and what an expert-parallel group sees."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from mfabric_jax.fabric import views
from mfabric_jax.fabric.cluster import Cluster, check_own_nics
from mfabric_jax.fabric.cost import Attachment, attachment_of_links, tree_attachment
from mfabric_jax.fabric.site import FabricLinks, FabricSite
from mfabric_jax.fabric.tree import DOWN, UP, Tree, needed_uplinks

if TYPE_CHECKING:
    from mfabric_jax.fabric.electrical import Electrical


def nic_tree(site: FabricSite, usual: float = 1.0, parts: int = 1, planes: int = 1) -> Tree:
    """Return the switch tree of a fabric, with one host in each part; `usual`: its default oversubscription.

    A tree of several parts, or with NICs split over planes, has at most two tiers.
    """
    network, tiers = site.network, site.tiers if parts == planes == 1 else min(site.tiers, 2)
    return Tree(parts, network.radix * planes, tiers, site.ratio(usual), network.oversubscribed_at, parts, planes)


def attachment_of(
    site: FabricSite, nics: Any, usual: float = 1.0, *, most_tiers: int = 3, parts: int = 1, planes: int = 1
) -> Attachment:
    """Return the parts behind each of a server's `nics` (maybe an array) on a tree; `parts`, `planes`: as in `Tree`."""
    ratio, tiers, oversubscribed_at = (
        site.ratio(usual),
        np.minimum(site.tiers, most_tiers),
        site.network.oversubscribed_at,
    )
    full = tree_attachment(ratio, tiers, oversubscribed_at)
    if not site.laid_out or not np.any(tiers > 1):
        return full
    tree = Tree(1, site.network.radix * planes, int(np.max(tiers)), ratio, oversubscribed_at)
    ports, hosts = tree.edge_ports, np.maximum(site.servers * np.asarray(nics, float) / parts, 1)
    leads = (hosts > ports[DOWN]) | (tiers == 3)  # a single edge switch of two tiers has no uplinks
    up = np.where((tiers > 1) & leads, needed_uplinks(hosts, ports), 0) / hosts
    spine = np.where(tiers == 3, up * tree.pod_ports[UP] / tree.pod_ports[DOWN], 0)
    return attachment_of_links(1.0, *(links if links.ndim else float(links) for links in (up, spine)))


def on_switches(site: FabricSite, nic_gbps: Any, links: FabricLinks) -> Electrical:
    """Return what a group sees of the tree of `links`."""
    assert links.tree is not None
    nics, use = site.server_nics, "own" if links.pxn else links.nic_use or site.network.nic_use
    check_own_nics(use, nics, site.gpus_per_server)
    own: dict[str, Any] = {"nic_use": use, "pxn": links.pxn, "speeds": site.network.rails.speeds}
    ratio = links.tree.oversubscription
    if ratio == 1:
        return views.Electrical(nic_gbps, nics, **own)
    if site.leaf_servers is not None and not links.rails:
        return views.Electrical(nic_gbps, nics, ratio, **own)
    tree = dataclasses.replace(links.tree, hosts=site.servers * nics)
    if tree.edges_per_part == 1:
        return views.Electrical(nic_gbps, nics, **own)
    whole: dict[str, Any] = {"gpus_per_server": site.gpus_per_server, "tree": tree, "rails": links.rails}
    leaves = Cluster("", site.servers, 1.0, **whole, **own)
    return views.Electrical(nic_gbps, nics, leaves=leaves, **own)
