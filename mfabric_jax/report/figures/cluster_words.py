"""What a picture of a cluster says in words: how many of each thing, of which bandwidth, and the oversubscription."""

from __future__ import annotations

from textwrap import wrap
from typing import TYPE_CHECKING, Any

import numpy as np

from mfabric_jax.report.figures.cluster_layout import climbed, edge_table

if TYPE_CHECKING:
    from mfabric_jax.report.figures.parts import LinkHeat

Words = tuple[str, list[str]]  # a bold line and plain ones

_COLUMN = 44  # characters


def many(count: int, singular: str, plural: str = "") -> str:
    """ "1 switch", "2 switches"."""
    return f"{count:,} {singular if count == 1 else plural or singular + 's'}"


def noun(cluster: Any) -> str:
    """What a reader calls the GPUs around one NVSwitch."""
    return "domain" if cluster.gpus_per_server > 16 else "server"


def _words(head: str, sentences: list[str], busy: LinkHeat | None, *kinds: str) -> Words:
    """Sentences in lines, the last one about the load of links of some kinds."""
    load = [busy.words(*kinds)] if busy is not None and kinds else []
    return head, [line for sentence in [*sentences, *load] for line in wrap(sentence, _COLUMN)]


def servers(cluster: Any, busy: LinkHeat | None) -> Words:
    """GPUs, NVSwitch and NICs of a server."""
    head = f"{many(cluster.servers, noun(cluster))} of {many(cluster.gpus_per_server, 'GPU')}"
    words = [f"NVSwitch (dark bar): {cluster.nvswitch_gigabytes_per_s:g} GB/s for a GPU"]
    if cluster.nics:
        coloured = ", coloured by rail" if busy is None else ""
        where = coloured if cluster.rails else " on packet switches"
        words.append(f"{many(cluster.nics, 'NIC')} each{where}")
    return _words(head, words, busy, "nvswitch up", "nvswitch down")


def links(cluster: Any, tier: int, busy: LinkHeat | None) -> Words:
    """Links from a tier of switches down to what is below."""
    tree = cluster.tree
    up, climb, pods = tree.edge_ports[0], tree.pod_ports[0], tree.parts * tree.pods_per_part
    count = (tree.hosts, tree.parts * tree.edges_per_part * up, pods * up * climb)[tier]
    words = [f"{many(count, 'link')} of {cluster.nic_gbps:g} Gbps"]
    if tier == 0 and cluster.rails:
        table = edge_table(cluster)
        single = all(len(np.unique(np.nonzero(table == edge)[1])) == 1 for edge in np.unique(table[0]))
        meet = many(int((table[:, 0] == table[0, 0]).sum()), "server")
        words.append(f"NIC r of {meet} on one switch" if single else "rails share edge switches")
    kind = ("nic", "edge", "pod")[tier]
    return _words("", words, busy, f"{kind} up", f"{kind} down")


def switches(cluster: Any, tier: int) -> Words:
    """A tier of switches and their ports."""
    tree, last = cluster.tree, climbed(cluster.tree) - 1
    kind, count = tree.switches[tier]
    pods = tree.parts * tree.pods_per_part
    words = [f"{count // tree.parts:,} on each of {tree.parts} separate rails"] if tree.parts > 1 else []
    if tier == 1 and tree.tiers == 3:
        words.append(f"{tree.edge_ports[0]} in each of {pods:,} pods" if pods > 1 else "in one pod")
    if tier == last:
        by_tier = (min(tree.edge_ports[1], tree.hosts_per_part), min(tree.edges_per_part, tree.pod_ports[1]))
        words.append(f"{(*by_tier, tree.pods_per_part)[tier]} of {tree.radix} ports in use")
    else:
        up, down = tree.pod_ports if tier else tree.edge_ports
        words.append(f"{down} down + {up} up ports, {down / up:g}:1{' oversubscribed' if down > up else ''}")
    return _words(many(count, f"{kind} switch", f"{kind} switches"), words, None)


def unused(cluster: Any) -> Words:
    """The switches above the last tier that a path reaches."""
    kinds = [f"{count:,} {kind}" for kind, count in cluster.tree.switches[climbed(cluster.tree) :]]
    return _words("", [f"above, crossed by no path: {' and '.join(kinds)}"] if kinds else [], None)


def optics(cluster: Any, busy: LinkHeat | None) -> Words:
    """Regions, their optical switches and circuits."""
    regions, size = cluster.regions.shape[:2]
    what = "patch panel" if cluster.tree is None else "optical switch" if noun(cluster) == "domain" else "OCS"
    each = cluster.regions.sum(axis=2)
    total, most = int(np.triu(cluster.regions).sum()), int(each.max())
    head = f"1 {what}" if regions == 1 else f"{regions:,} regions of {many(size, noun(cluster))}"
    words = [f"one {what} for each region"] if regions > 1 else []
    words.append(f"{many(total, 'circuit')} of {cluster.nic_gbps:g} Gbps each way")
    words.append(f"{'up to ' if each.min() < most else ''}{many(most, 'circuit')} at a {noun(cluster)}")
    return _words(head, words, busy, *(["circuit"] if total else []))
