"""Which nodes of a cluster a picture has room for, and where they stand: the first few and the last of each kind.

All lengths are inches. The cluster is read by its attributes alone (`mfabric_jax.fabric.Cluster` or one like it).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, product
from typing import Any

import numpy as np

WIDEST = 7.2  # of the whole drawing
SERVER, DOMAIN = 0.4, 0.78  # least width of a server, and of one with many GPUs
SWITCH = {1: 0.2, 2: 0.2, 3: 0.22, 4: 0.26}  # least width of a switch whose number has so many digits
_DOTS = 0.6  # width of an ellipsis, in nodes
_BETWEEN = 0.14  # between groups of servers
POD = 0.17  # for the name of a pod
_MANY_GPUS = 16
_COUNTS = ((4, 3, 2), (8, 4, 3, 2, 1), (16, 8, 4, 3, 2), (8, 4, 3, 2))  # pods, blocks, servers, edge switches

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
    """What is shown of a cluster, and where."""
    least = DOMAIN if cluster.gpus_per_server > _MANY_GPUS else SERVER
    if cluster.tree is None:
        return _in_sections(*_sections(cluster, least), least, 0.0)
    tree, edge = cluster.tree, edge_table(cluster)
    blocks = _blocks(edge)
    if cluster.regions is None and tree.parts == 1 and _nested(tree, edge, blocks):
        plan = _by_block(tree, edge, blocks, least)
    else:
        sections = _sections(cluster, least) if cluster.regions is not None else _runs(edge, blocks, least)
        plan = _in_sections(*sections, least, _floor(tree))
        _panels(plan, tree, edge)
    _switches_above(plan, tree)
    return plan


def _blocks(edge: np.ndarray) -> list[np.ndarray]:
    """Runs of servers that share edge switches."""
    shared = (edge[1:, :, None] == edge[:-1, None, :]).any(axis=(1, 2))
    return np.split(np.arange(len(edge)), np.flatnonzero(~shared) + 1)


def _nested(tree: Any, edge: np.ndarray, blocks: list[np.ndarray]) -> bool:
    """Whether every block lies in one pod."""
    return all(len(np.unique(tree.pod_of(edge[block]))) == 1 for block in blocks)


def _by_block(tree: Any, edge: np.ndarray, blocks: list[np.ndarray], least: float) -> Layout:
    """Servers below their edge switches, these in their pods: as many servers as there is room for."""
    pod = np.array([tree.pod_of(edge[block[0], 0]) for block in blocks])
    members = [np.flatnonzero(pod == p) for p in range(pod[-1] + 1)]
    switches = [np.unique(edge[block]) for block in blocks]
    frame = _BETWEEN + _name(tree)
    best: tuple = ()
    for p, b, s, e in product(*_COUNTS):
        tree_of_tokens = [
            (n, [] if n is None else [_block(i, blocks, switches, s, e) for i in few(members[n], b)])
            for n in few(range(len(members)), p)
        ]
        natural = sum(_wide(shown, least, frame) for _, shown in tree_of_tokens)
        count = sum(len(numbers(servers)) for _, shown in tree_of_tokens for servers, _ in shown)
        whole = not any(None in edges for _, shown in tree_of_tokens for _, edges in shown)
        rank = (natural <= WIDEST, -natural if natural > WIDEST else whole, b > 1, count)
        if not best or rank > best[0]:
            best = (rank, tree_of_tokens, natural)
    return _place_blocks(best[1], best[2], least, frame, _floor(tree))


def _block(number: int | None, blocks: list, switches: list, s: int, e: int) -> tuple[Tokens, Tokens]:
    """(servers, edge switches) of a block that are shown; none of an ellipsis."""
    return ([], []) if number is None else (few(blocks[number].tolist(), s), few(switches[number].tolist(), e))


def _wide(shown: list[tuple[Tokens, Tokens]], least: float, frame: float) -> float:
    """Least width of a pod, or of the ellipsis between pods."""
    return frame + sum(_wide_block(block, least) for block in shown) if shown else _DOTS * least


def _wide_block(block: tuple[Tokens, Tokens], least: float) -> float:
    servers, edges = block
    return _BETWEEN + max(_slots(servers) * least, _switches(edges)) if servers else _DOTS * least


def _slots(tokens: Tokens) -> float:
    return sum(_DOTS if token is None else 1.0 for token in tokens)


def _switches(tokens: Tokens) -> float:
    """Least width of a row of switches."""
    return _slots(tokens) * SWITCH[min(len(str(max(numbers(tokens)))), 4)]


def _floor(tree: Any) -> float:
    """Width at which few core switches, or the names of the rails, can all be drawn."""
    if tree.parts > 1:
        return 0.5 * min(tree.parts, 9)
    cores = tree.switches[-1][1]
    return 0.32 * cores if climbed(tree) == 3 and cores <= 20 else 0.0


def _stretched(natural: float, least: float) -> float:
    """Width of the drawing: more than the least, but no more than looks well."""
    return max(min(WIDEST, natural * 1.7), min(WIDEST, 3.6), least)


def _place_blocks(pods: list, natural: float, least: float, frame: float, floor: float) -> Layout:
    plan = Layout(max(floor, _stretched(natural, least)), Row(), [], [])
    scale, x = plan.width / natural, 0.0
    for number, shown in pods:
        right = x + scale * _wide(shown, least, frame)
        if number is None:
            for row in (plan.servers, plan.edges, plan.high):
                row.skip(x, right)
        else:
            pad = scale * _BETWEEN / 2
            plan.pods.append((number, x + pad / 2, right - pad / 2))
            _place_pod(plan, shown, x + pad + scale * (frame - _BETWEEN), scale, least)
        x = right
    return plan


def _place_pod(plan: Layout, shown: list, x: float, scale: float, least: float) -> None:
    for block in shown:
        right = x + scale * _wide_block(block, least)
        if block[0]:
            pad = scale * _BETWEEN / 2
            plan.servers.add(block[0], x + pad, right - pad, 1.6 * least)
            plan.edges.add(block[1], x + pad, right - pad, 0.8)
        else:
            plan.servers.skip(x, right)
            plan.edges.skip(x, right)
        x = right


def _sections(cluster: Any, least: float) -> tuple[list[Section], bool]:
    """Regions (number, servers, least width) that are shown, the first in detail; and that they are regions."""
    if cluster.regions is None:
        return [(0, few(range(cluster.servers), round(WIDEST / least) - 1), 0.0)], False
    count, size = cluster.regions.shape[:2]
    if count == 1:
        return [(0, few(range(size), 8 if size > 16 or least > SERVER else 16), 4.6 if size > 16 else 3.6)], True
    shown: list[Section] = []
    for region in few(range(count), 3):
        if region is None:
            shown.append((None, [], 0.3))
            continue
        first = region == 0 or count == 2
        servers = range(region * size, (region + 1) * size)
        shown.append((region, few(servers, 8 if first and least == SERVER else 2), 2.7 if first else 1.6))
    return shown, True


def _runs(edge: np.ndarray, blocks: list[np.ndarray], least: float) -> tuple[list[Section], bool]:
    """Blocks (number, servers, least width) that are shown where each shares switches of every part or pod."""
    last = len(np.unique(edge[blocks[0]])) * len(blocks) - 1
    best: tuple = ()
    for b, s in product(_COUNTS[1], _COUNTS[2]):
        picked = few(range(len(blocks)), b)
        tokens = [[] if n is None else few(blocks[n].tolist(), s) for n in picked]
        natural = sum(_BETWEEN + _slots(t) * least if t else _DOTS * least for t in tokens)
        own = [None if n is None else last for n in picked]
        switches = min(last // len(blocks) + 1, 9) * (_switches(own) + 0.12)
        fits = max(natural, switches) <= WIDEST
        rank = (fits, b > 1, sum(map(len, tokens)) if fits else -natural - switches)
        if not best or rank > best[0]:
            best = (rank, [(n, t, 0.0 if t else 0.3) for n, t in zip(picked, tokens, strict=True)])
    return best[1], False


def _in_sections(sections: list[Section], optical: bool, least: float, floor: float) -> Layout:
    """Groups of servers next to each other."""
    wide = [max(own, _BETWEEN + _slots(tokens) * least) for _, tokens, own in sections]
    natural = sum(wide)
    width = min(WIDEST, natural * 1.2) if optical else _stretched(natural, least)
    plan = Layout(max(width, floor), Row(), [], [])
    scale, x = plan.width / natural, 0.0
    for (number, tokens, _), own in zip(sections, wide, strict=True):
        right, pad = x + scale * own, scale * _BETWEEN / 2
        if number is None:
            plan.servers.skip(x, right)
        else:
            plan.servers.add(tokens, x + pad, right - pad, 1.6 * least)
            if optical:
                plan.regions.append((number, x + pad / 2, right - pad / 2))
        x = right
    return plan


def _panels(plan: Layout, tree: Any, edge: np.ndarray) -> None:
    """The edge switches of the servers shown, by pod, over the whole width."""
    every = np.arange(tree.parts * tree.edges_per_part)
    pod = tree.pod_of(every)
    used = np.unique(edge[sorted(plan.servers.at)])
    kept = numbers(few(np.unique(pod[used]).tolist(), 9))
    tokens: dict[int, Tokens] = {}
    for p in kept:
        own = every[pod == p]
        extra = numbers(few(own.tolist(), 3)) if tree.parts == 1 else []
        tokens[p] = gapped([*used[pod[used] == p].tolist(), *extra], own[0], own[-1])
    order = gapped(kept, 0, int(pod[-1]))
    wide = [0.3 if p is None else _name(tree) + 0.12 + _switches(tokens[p]) for p in order]
    scale, x = plan.width / sum(wide), 0.0
    for p, natural in zip(order, wide, strict=True):
        right = x + scale * natural
        if p is None:
            plan.edges.skip(x, right)
            plan.high.skip(x, right)
        else:
            pad = min(0.1, 0.06 * scale)
            plan.pods.append((p, x + pad / 2, right - pad / 2))
            plan.edges.add(tokens[p], x + pad + _name(tree), right - pad, 0.8)
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
