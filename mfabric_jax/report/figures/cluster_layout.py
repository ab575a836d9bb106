"""What a picture of a cluster shows: the first few and the last nodes of each kind, where they stand, and words.

All lengths are inches. The cluster is read by its attributes alone (`mfabric_jax.fabric.Cluster` or one like it).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from mfabric_jax.report.figures.parts import LinkHeat

WIDEST = 7.2  # of the whole drawing
SERVER, DOMAIN = 0.4, 0.78  # least width of a server, and of one with many GPUs
SWITCH = {1: 0.2, 2: 0.2, 3: 0.22, 4: 0.26}  # least width of a switch whose number has so many digits
_DOTS = 0.6  # width of an ellipsis, in nodes
_SQUEEZED = 1.1  # servers and regions may be so much narrower than they should
_BETWEEN = 0.14  # between groups of servers
POD = 0.17  # for the name of a pod
_MANY_GPUS = 16
_MOST = (17, 15, 12, 9, 6, 4, 3, 2, 1)  # servers that are tried

Tokens = list[int | None]  # numbers of nodes; None: an ellipsis
Section = tuple[int | None, Tokens, float]  # number (None: an ellipsis), what is shown of it, width at least
Span = tuple[int | None, float, float]  # number of a section, from where to where it reaches


def _slots(tokens: Tokens) -> list[float]:
    """Widths in nodes."""
    return [_DOTS if token is None else 1.0 for token in tokens]


def _stretched(widths: Sequence[float], left: float, right: float) -> list[tuple[float, float]]:
    """From where to where each of some widths reaches when together they fill an interval."""
    ends = left + (right - left) * np.cumsum([0.0, *widths]) / sum(widths)
    return list(pairwise(ends.tolist()))


@dataclass
class Row:
    """Where the nodes of one kind stand, from where to where ellipses reach, and how wide a node is drawn."""

    at: dict[int, float] = field(default_factory=dict)
    dots: list[tuple[float, float]] = field(default_factory=list)
    width: float = np.inf

    def add(self, tokens: Tokens, left: float, right: float, widest: float) -> None:
        """Spread nodes over an interval, about its centre if they do not fill it."""
        slots = _slots(tokens)
        unit = min((right - left) / sum(slots), 1.6 * widest)
        spare = (right - left - unit * sum(slots)) / 2
        for token, (low, high) in zip(tokens, _stretched(slots, left + spare, right - spare), strict=True):
            if token is None:
                self.dots.append((low, high))
            else:
                self.at[token] = (low + high) / 2
        self.width = min(self.width, widest, 0.84 * unit)

    def add_sections(
        self, sections: list[Section], left: float, right: float, pad: float, widest: float, name: float = 0.0
    ) -> list[Span]:
        """Sections beside each other, over the whole interval; where each is.

        `pad` is left free at both ends of a section, `name` at its left besides.
        """
        ends = _stretched([width for *_, width in sections], left, right)
        for (number, tokens, _), (low, high) in zip(sections, ends, strict=True):
            if number is None:
                self.dots.append((low, high))
            else:
                self.add(tokens, low + pad + name, high - pad, widest)
        return [(number, *span) for (number, *_), span in zip(sections, ends, strict=True)]


@dataclass
class Layout:
    """Rows of nodes, and intervals (number, left, right) of the regions and pods (or parts) that are shown."""

    width: float
    regions: list[tuple[int, float, float]] = field(default_factory=list)
    pods: list[tuple[int, float, float]] = field(default_factory=list)
    servers: Row = field(default_factory=Row)
    edges: Row = field(default_factory=Row)
    high: Row = field(default_factory=Row)
    cores: Row = field(default_factory=Row)


def few(items: Iterable[int], most: int) -> Tokens:
    """All, or the first ones and the last around an ellipsis; one: the first."""
    every: Tokens = list(items)
    if len(every) <= most + (most > 1):
        return every
    return [every[0], None] if most == 1 else [*every[: most - 1], None, every[-1]]


def gapped(items: Iterable[int], first: int, last: int) -> Tokens:
    """Numbers in order, an ellipsis wherever some of `first`..`last` are missing."""
    every = sorted(set(items))
    tokens: Tokens = [] if every[0] == first else [None]
    for item, following in pairwise([*every, last + 1]):
        tokens += [item] if following == item + 1 else [item, None]
    return tokens


def numbers(tokens: Iterable[int | None]) -> list[int]:
    """Without the ellipses."""
    return [token for token in tokens if token is not None]


def edge_table(cluster: Any) -> np.ndarray:
    """[server, NIC] edge switch."""
    server, nic = np.mgrid[: cluster.servers, : cluster.nics]
    return cluster.tree.edge_of(cluster.host(server, nic))


def climbed(tree: Any) -> int:
    """Tiers of switches that some path reaches: 1, 2 or 3."""
    return 1 + (tree.edges_per_part > 1) + (tree.pods_per_part > 1)


def _inside(spans: list[Span], pad: float) -> list[tuple[int, float, float]]:
    """Sections without the ellipses, and without so much at their ends."""
    return [(number, left + pad, right - pad) for number, left, right in spans if number is not None]


def layout(cluster: Any) -> Layout:
    """What is shown of a cluster, and where: as many servers as leave room for their switches."""
    tree, optical = cluster.tree, cluster.regions is not None
    least = DOMAIN if cluster.gpus_per_server > _MANY_GPUS else SERVER
    edge = np.zeros((cluster.servers, 0), int) if tree is None else edge_table(cluster)
    for most in _MOST:
        groups = _sections(cluster, edge, least, most)
        shown = [server for _, tokens, _ in groups for server in numbers(tokens)]
        pods = [] if tree is None else _pods(tree, edge, shown)
        natural, wide = (sum(width for *_, width in sections) for sections in (groups, pods))
        if max(natural / _SQUEEZED, wide) <= WIDEST:
            break
    stretched = min(WIDEST, 1.2 * natural) if optical else max(min(WIDEST, 1.7 * natural), 3.6)
    plan = Layout(max(stretched, _floor(tree), min(WIDEST, wide)))
    pad = plan.width / natural * _BETWEEN / 2
    spans = plan.servers.add_sections(groups, 0.0, plan.width, pad, 1.6 * least)
    plan.regions = _inside(spans, pad / 2) if optical else []
    if tree is not None:
        _place_switches(plan, tree, pods)
    return plan


def _sections(cluster: Any, edge: np.ndarray, least: float, most: int) -> list[Section]:
    """Groups of servers that are shown: regions, or the servers of a pod each."""
    groups = _groups(cluster, edge)
    picked = few(range(len(groups)), 3 if most > 1 else 2)
    small, shown = least == SERVER, []
    for number in picked:
        if number is None:
            shown.append((None, [], 0.3))
            continue
        if cluster.regions is None:
            count, width = max(1, most // len(numbers(picked))), 0.0
        elif len(groups) == 1:
            whole = len(groups[0]) <= 16
            count, width = min(most, 16 if whole and small else 8), 3.6 + (not whole)
        else:
            detailed = number == 0 or len(groups) == 2
            count, width = min(most, 8) if detailed and small else 2, 2.7 if detailed else 1.6
        tokens = few(groups[number], count)
        shown.append((number, tokens, max(width, _BETWEEN + sum(_slots(tokens)) * least)))
    return shown


def _groups(cluster: Any, edge: np.ndarray) -> list[list[int]]:
    """Neighbouring servers that belong together: of a region, or of a pod; else all of them."""
    every = np.arange(cluster.servers)
    if cluster.regions is not None:
        return every.reshape(cluster.regions.shape[:2]).tolist()
    if cluster.tree is None or cluster.tree.parts > 1:
        return [every.tolist()]
    pods = cluster.tree.pod_of(edge)
    if np.ptp(pods, axis=1).any():
        return [every.tolist()]
    return [group.tolist() for group in np.split(every, np.flatnonzero(np.diff(pods[:, 0])) + 1)]


def _floor(tree: Any) -> float:
    """Width at which few core switches, or the names of the rails, can all be drawn."""
    if tree is None:
        return 0.0
    if tree.parts > 1:
        return 0.5 * min(tree.parts, 9)
    cores = tree.switches[-1][1]
    return 0.32 * cores if climbed(tree) == 3 and cores <= 20 else 0.0


def _pods(tree: Any, edge: np.ndarray, servers: list[int]) -> list[Section]:
    """Pods with those edge switches to which some servers lead."""
    every = np.arange(tree.parts * tree.edges_per_part)
    pod, used = tree.pod_of(every), np.unique(edge[servers])
    kept = numbers(few(np.unique(pod[used]).tolist(), 9))
    sections: list[Section] = []
    for number in gapped(kept, 0, int(pod[-1])):
        if number is None:
            sections.append((None, [], 0.3))
            continue
        own = every[pod == number]
        extra = numbers(few(own.tolist(), 3)) if tree.parts == 1 else []
        tokens = gapped([*used[pod[used] == number].tolist(), *extra], own[0], own[-1])
        digits = min(len(str(max(numbers(tokens)))), 4)
        sections.append((number, tokens, _name(tree) + 0.12 + sum(_slots(tokens)) * SWITCH[digits]))
    return sections


def _name(tree: Any) -> float:
    """Room for the name of a pod, left of its switches; where rails have no pods, their names stand above them."""
    return POD if climbed(tree) == 3 else 0.0


def _place_switches(plan: Layout, tree: Any, pods: list[Section]) -> None:
    """Edge switches in their pods, aggregation switches above them, cores over their part."""
    tiers, up, climb = climbed(tree), tree.edge_ports[0], tree.pod_ports[0]
    pad, name = min(0.1, 0.06 * plan.width / sum(width for *_, width in pods)), _name(tree)
    spans = plan.edges.add_sections(pods, 0.0, plan.width, pad, 0.8, name)
    plan.pods = _inside(spans, pad / 2)
    if tiers == 1:
        return
    most = int(min(right - left for _, left, right in plan.pods) / 0.3)
    parts = [list(own) for _, own in groupby(plan.pods, lambda pod: pod[0] // tree.pods_per_part)]
    if tiers == 3:
        narrowest = min(own[-1][2] - own[0][1] for own in parts)
        most = min(most - 1, int(narrowest / (0.3 * min(climb, 2.6))) - 1)
    picked = few(range(up), max(2, min(8, most)))
    plan.high.dots = [(left, right) for number, left, right in spans if number is None]
    for pod, left, right in plan.pods:
        plan.high.add([None if a is None else pod * up + a for a in picked], left + 0.05 + name, right - 0.05, 0.8)
    for own in parts if tiers == 3 else ():
        (pod, left, _), right = own[0], own[-1][2]
        fits = climb <= (right - left) / len(picked) / 0.24 - 0.3
        above = few(range(climb), climb if fits else 2)
        first, wide = pod // tree.pods_per_part * up, sum(_slots(above)) + 0.3
        sections: list[Section] = [
            (a, [None if c is None else ((first + a) * climb + c) for c in above], wide)
            if a is not None
            else (None, [], _DOTS)
            for a in picked
        ]
        scale = (right - left) / sum(width for *_, width in sections)
        plan.cores.add_sections(sections, left, right, 0.15 * scale, 0.8)


# -- words: how many of each thing, of which bandwidth, and the oversubscription

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
