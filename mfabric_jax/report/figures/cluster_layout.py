"""Which nodes of a cluster a picture has room for, and where they stand: the first few and the last of each kind.

All lengths are inches. The cluster is read by its attributes alone (`mfabric_jax.fabric.Cluster` or one like it).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

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
Section = tuple[int | None, Tokens, float]  # number, servers that are shown, least width


@dataclass
class Row:
    """Where the nodes of one kind stand, where an ellipsis is and how wide its gap, and how wide a node is drawn."""

    at: dict[int, float] = field(default_factory=dict)
    dots: list[tuple[float, float]] = field(default_factory=list)
    width: float = np.inf

    def add(self, tokens: Sequence[int | None], left: float, right: float, widest: float) -> None:
        """Spread nodes over an interval, about its centre if they do not fill it."""
        slots = [_DOTS if token is None else 1.0 for token in tokens]
        unit = min((right - left) / sum(slots), 1.6 * widest)
        x = (left + right) / 2 - unit * sum(slots) / 2
        for token, slot in zip(tokens, slots, strict=True):
            if token is None:
                self.skip(x, x + unit * slot)
            else:
                self.at[token] = x + unit * slot / 2
            x += unit * slot
        self.width = min(self.width, widest, 0.84 * unit)

    def skip(self, left: float, right: float) -> None:
        """An ellipsis in an interval."""
        self.dots.append(((left + right) / 2, right - left))


@dataclass
class Layout:
    """Rows of nodes, and intervals (number, left, right) of the regions and pods (or parts) that are shown."""

    width: float
    servers: Row
    regions: list[tuple[int, float, float]]
    pods: list[tuple[int, float, float]]
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


def layout(cluster: Any) -> Layout:
    """What is shown of a cluster, and where: as many servers as leave room for their switches."""
    least = DOMAIN if cluster.gpus_per_server > _MANY_GPUS else SERVER
    edge = np.zeros((cluster.servers, 0), int) if cluster.tree is None else edge_table(cluster)
    for most in _MOST:
        sections = _sections(cluster, edge, least, most)
        natural = sum(_natural(tokens, least, own) for _, tokens, own in sections)
        panels = (
            [] if cluster.tree is None else _panels(cluster.tree, edge, [s for _, t, _ in sections for s in numbers(t)])
        )
        if max(natural / _SQUEEZED, sum(wide for *_, wide in panels)) <= WIDEST:
            break
    floor = max(_floor(cluster.tree), min(WIDEST, sum(wide for *_, wide in panels)))
    plan = _in_sections(sections, natural, cluster.regions is not None, least, floor)
    if cluster.tree is not None:
        _place_edges(plan, cluster.tree, panels)
        _switches_above(plan, cluster.tree)
    return plan


def _sections(cluster: Any, edge: np.ndarray, least: float, most: int) -> list[Section]:
    """Groups of servers (number, servers, least width) that are shown: regions, or the servers of a pod each."""
    groups = _groups(cluster, edge)
    picked = few(range(len(groups)), 3 if most > 1 else 2)
    shown: list[Section] = []
    for number in picked:
        if number is None:
            shown.append((None, [], 0.3))
        elif cluster.regions is None:
            shown.append((number, few(groups[number], max(1, most // len(numbers(picked)))), 0.0))
        elif len(groups) == 1:
            whole = len(groups[0]) <= 16
            shown.append(
                (number, few(groups[number], min(most, 16 if whole and least == SERVER else 8)), 3.6 + (not whole))
            )
        else:
            detailed = number == 0 or len(groups) == 2
            servers = few(groups[number], min(most, 8) if detailed and least == SERVER else 2)
            shown.append((number, servers, 2.7 if detailed else 1.6))
    return shown


def _groups(cluster: Any, edge: np.ndarray) -> list[list[int]]:
    """Neighbouring servers that belong together: of a region, or of a pod; else all of them."""
    every = np.arange(cluster.servers)
    if cluster.regions is not None:
        return every.reshape(cluster.regions.shape[:2]).tolist()
    if cluster.tree is None or cluster.tree.parts > 1:
        return [every.tolist()]
    pods = cluster.tree.pod_of(edge)
    if (pods.min(axis=1) != pods.max(axis=1)).any():
        return [every.tolist()]
    return [group.tolist() for group in np.split(every, np.flatnonzero(np.diff(pods[:, 0])) + 1)]


def _natural(tokens: Tokens, least: float, own: float) -> float:
    """Width of a section that is not stretched."""
    return max(own, _BETWEEN + _slots(tokens) * least)


def _slots(tokens: Tokens) -> float:
    return sum(_DOTS if token is None else 1.0 for token in tokens)


def _switches(tokens: Tokens) -> float:
    """Least width of a row of switches."""
    return _slots(tokens) * SWITCH[min(len(str(max(numbers(tokens)))), 4)]


def _floor(tree: Any) -> float:
    """Width at which few core switches, or the names of the rails, can all be drawn."""
    if tree is None:
        return 0.0
    if tree.parts > 1:
        return 0.5 * min(tree.parts, 9)
    cores = tree.switches[-1][1]
    return 0.32 * cores if climbed(tree) == 3 and cores <= 20 else 0.0


def _in_sections(sections: list[Section], natural: float, optical: bool, least: float, floor: float) -> Layout:
    """Groups of servers next to each other."""
    width = min(WIDEST, natural * 1.2) if optical else max(min(WIDEST, natural * 1.7), min(WIDEST, 3.6), least)
    plan = Layout(max(width, floor), Row(), [], [])
    scale, x = plan.width / natural, 0.0
    for number, tokens, own in sections:
        right, pad = x + scale * _natural(tokens, least, own), scale * _BETWEEN / 2
        if number is None:
            plan.servers.skip(x, right)
        else:
            plan.servers.add(tokens, x + pad, right - pad, 1.6 * least)
            if optical:
                plan.regions.append((number, x + pad / 2, right - pad / 2))
        x = right
    return plan


def _panels(tree: Any, edge: np.ndarray, servers: list[int]) -> list[tuple[int | None, Tokens, float]]:
    """Pods (number, edge switches, width) of the edge switches of some servers; None: pods that are left out."""
    every = np.arange(tree.parts * tree.edges_per_part)
    pod, used = tree.pod_of(every), np.unique(edge[servers])
    kept = numbers(few(np.unique(pod[used]).tolist(), 9))
    panels: list[tuple[int | None, Tokens, float]] = []
    for number in gapped(kept, 0, int(pod[-1])):
        if number is None:
            panels.append((None, [], 0.3))
            continue
        own = every[pod == number]
        extra = numbers(few(own.tolist(), 3)) if tree.parts == 1 else []
        tokens = gapped([*used[pod[used] == number].tolist(), *extra], own[0], own[-1])
        panels.append((number, tokens, _name(tree) + 0.12 + _switches(tokens)))
    return panels


def _place_edges(plan: Layout, tree: Any, panels: list[tuple[int | None, Tokens, float]]) -> None:
    """Edge switches by pod, over the whole width."""
    scale, x = plan.width / sum(wide for *_, wide in panels), 0.0
    for number, tokens, wide in panels:
        right, pad = x + scale * wide, min(0.1, 0.06 * scale)
        if number is None:
            plan.edges.skip(x, right)
            plan.high.skip(x, right)
        else:
            plan.pods.append((number, x + pad / 2, right - pad / 2))
            plan.edges.add(tokens, x + pad + _name(tree), right - pad, 0.8)
        x = right


def _name(tree: Any) -> float:
    """Room for the name of a pod, left of its switches; where rails have no pods, their names stand above them."""
    return POD if climbed(tree) == 3 else 0.0


def _switches_above(plan: Layout, tree: Any) -> None:
    """Aggregation switches over their pods, cores over their part, grouped by the aggregation switch below."""
    tiers, up, climb = climbed(tree), tree.edge_ports[0], tree.pod_ports[0]
    if tiers == 1:
        return
    most = int(min(right - left for _, left, right in plan.pods) / 0.3)
    spans = _parts(plan, tree)
    if tiers == 3:
        narrowest = min(right - left for left, right in spans.values())
        most = min(most, int(narrowest / (0.3 * min(climb, 2.6))))
    picked = few(range(up), max(2, min(8, most - (tiers == 3))))
    for pod, left, right in plan.pods:
        tokens = [None if a is None else pod * up + a for a in picked]
        plan.high.add(tokens, left + 0.05 + _name(tree), right - 0.05, 0.8)
    for part, (left, right) in spans.items() if tiers == 3 else ():
        _cores(plan.cores, picked, (part * up, climb), left, right)


def _parts(plan: Layout, tree: Any) -> dict[int, tuple[float, float]]:
    """From where to where the pods of each part reach."""
    spans: dict[int, tuple[float, float]] = {}
    for pod, left, right in plan.pods:
        part = pod // tree.pods_per_part
        spans[part] = (spans[part][0], right) if part in spans else (left, right)
    return spans


def _cores(row: Row, picked: Tokens, numbering: tuple[int, int], left: float, right: float) -> None:
    first, climb = numbering
    fits = climb <= (right - left) / len(picked) / 0.24 - 0.3
    own = few(range(climb), climb if fits else 2)
    wide = [_DOTS if a is None else _slots(own) + 0.3 for a in picked]
    scale = (right - left) / sum(wide)
    for a, natural in zip(picked, wide, strict=True):
        if a is None:
            row.skip(left, left + scale * natural)
        else:
            tokens = [None if c is None else (first + a) * climb + c for c in own]
            row.add(tokens, left + 0.15 * scale, left + scale * (natural - 0.15), 0.8)
        left += scale * natural
