"""What a picture of a cluster says in words: how many of each thing, of which bandwidth, and the oversubscription."""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import numpy as np

from mfabric_jax.report.figures.shown import edge_table

if TYPE_CHECKING:
    from mfabric_jax.report.figures.heat import Heat

_COLUMN = 44  # characters
OPTICS = {"topoopt": "patch panel", "mfabric-cpo": "optical switch"}  # others: OCS


@dataclass
class Note:
    """A bold line and plain ones, centred at a height."""

    y: float
    head: str
    lines: list[str]


def notes(cluster: Any, places: dict[str, Any], tiers: int, busy: Heat | None) -> list[Note]:
    """All words, each at the height of what they are about."""
    written = [Note(places["servers"], *_servers(cluster, busy))]
    if cluster.regions is not None:
        written.append(Note(places["optics"], *_optics(cluster, busy)))
    for tier, y in enumerate(places["tiers"]):
        written.append(Note(y, *_switches(cluster, tier, tier == tiers - 1)))
    for tier, y in enumerate(places["links"]):
        written.append(Note(y, "", _links(cluster, tier, busy)))
    return written


def _wrapped(*sentences: str) -> list[str]:
    return [line for sentence in sentences for line in wrap(sentence, _COLUMN)]


def many(count: int, one: str, more: str = "") -> str:
    """ "1 switch", "2 switches"."""
    return f"{count:,} {one if count == 1 else more or one + 's'}"


def _gbps(cluster: Any) -> str:
    return f"{cluster.nic_gbps:g} Gbps"


def _servers(cluster: Any, busy: Heat | None) -> tuple[str, list[str]]:
    head = f"{many(cluster.servers, noun(cluster))} of {many(cluster.gpus_per_server, 'GPU')}"
    words = [f"NVSwitch (dark bar): {cluster.nvswitch_gigabytes_per_s:g} GB/s for a GPU"]
    if cluster.rails:
        words.append(f"{many(cluster.nics, 'NIC')} each" + (", coloured by rail" if busy is None else ""))
    elif cluster.nics:
        words.append(f"{many(cluster.nics, 'NIC')} each on packet switches")
    if busy is not None:
        words.append(busy.words("nvswitch up", "nvswitch down"))
    return head, _wrapped(*words)


def _links(cluster: Any, tier: int, busy: Heat | None) -> list[str]:
    """Links from a tier down to the one below it."""
    tree = cluster.tree
    up, climb = tree.edge_ports[0], tree.pod_ports[0]
    pods = tree.parts * tree.pods_per_part
    count = (tree.hosts, tree.parts * tree.edges_per_part * up, pods * up * climb)[tier]
    words = [f"{many(count, 'link')} of {_gbps(cluster)}"]
    if tier == 0 and cluster.rails:
        words.append(_rail_words(cluster))
    if busy is not None:
        kind = ("nic", "edge", "pod")[tier]
        words.append(busy.words(f"{kind} up", f"{kind} down"))
    return _wrapped(*words)


def _switches(cluster: Any, tier: int, last: bool) -> tuple[str, list[str]]:
    tree = cluster.tree
    kind, count = tree.switches[tier]
    head = many(count, f"{kind} switch", f"{kind} switches")
    words = [f"{count // tree.parts:,} on each of {tree.parts} separate rails"] if tree.parts > 1 else []
    if tier == 1 and tree.tiers == 3:
        pods = tree.parts * tree.pods_per_part
        words.append(f"{tree.edge_ports[0]} in each of {pods:,} pods" if pods > 1 else "in one pod")
    if last or tier == tree.tiers - 1:
        return head, _wrapped(*words, f"{_used(tree, tier)} of {tree.radix} ports in use")
    up, down = tree.pod_ports if tier else tree.edge_ports
    return head, _wrapped(*words, f"{down} down + {up} up ports, {_ratio(down, up)}")


def _used(tree: Any, tier: int) -> int:
    """Ports down that are in use, of the switch that has most."""
    if tier == 0:
        return min(tree.edge_ports[1], tree.hosts_per_part)
    if tier == 1:
        return min(tree.edges_per_part, tree.pod_ports[1])
    return tree.pods_per_part


def _rail_words(cluster: Any) -> str:
    """How many servers meet at a rail switch."""
    table = edge_table(cluster)
    single = all(len(np.unique(np.nonzero(table == edge)[1])) == 1 for edge in np.unique(table[0]))
    meet = int((table[:, 0] == table[0, 0]).sum())
    return f"NIC r of {many(meet, 'server')} on one switch" if single else "rails share edge switches"


def _ratio(down: int, up: int) -> str:
    return f"{down / up:g}:1" + (" oversubscribed" if down > up else "")


def _optics(cluster: Any, busy: Heat | None) -> tuple[str, list[str]]:
    regions, size = cluster.regions.shape[:2]
    what = OPTICS.get(cluster.name, "OCS")
    each = cluster.regions.sum(axis=2)
    total, most = int(np.triu(cluster.regions).sum()), int(each.max())
    head = f"1 {what}" if regions == 1 else f"{regions:,} regions of {many(size, noun(cluster))}"
    words = [f"one {what} for each region"] if regions > 1 else []
    words.append(f"{many(total, 'circuit')} of {_gbps(cluster)} each way")
    words.append(f"{'up to ' if each.min() < most else ''}{many(most, 'circuit')} at a {noun(cluster)}")
    if busy is not None and total:
        words.append(busy.words("circuit"))
    return head, _wrapped(*words)


def noun(cluster: Any) -> str:
    """What a reader calls the GPUs around one NVSwitch."""
    return "domain" if cluster.gpus_per_server > 16 else "server"
