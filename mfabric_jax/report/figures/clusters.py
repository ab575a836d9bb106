"""Picture of a whole cluster: a row of servers, switches above, circuits of regions below, counts at the right.

Long rows show their first and last nodes around an ellipsis. Any object with the attributes of
`mfabric_jax.fabric.Cluster` can be drawn. Lengths are inches.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from textwrap import wrap
from typing import Any, cast

import numpy as np
from matplotlib.figure import Figure

from mfabric_jax.fabric import NAMES, get
from mfabric_jax.fabric.acos import NAME as ACOS
from mfabric_jax.report import style
from mfabric_jax.report.drawing import paper
from mfabric_jax.report.figures.circuits import CIRCUIT, DETAILED, draw_ring
from mfabric_jax.report.figures.networks import (
    LINK,
    LinkHeat,
    build_graph,
    draw_box,
    draw_segments,
    utilisation_bar,
    write,
)
from mfabric_jax.report.numerals import count_phrase, number
from mfabric_jax.report.style import mix_with_white

_LEFT, _NOTES, _WIDTH, _COLUMN = 0.25, 2.85, 7.2, 44  # inches of margin, notes, drawing; characters of a line of notes
_NODE, _RISE, _PLUG = 0.25, 1.13, 0.24  # height of a node; distance of rows; distance of servers and optical switch
_DOTS, _GAP = 0.7, 0.4  # widths of an ellipsis and of the space between sections, in nodes
_MOST, _REGIONS, _IN_REGION = 16, 4, 3  # most nodes of a row, regions, servers of one of several regions
_MANY_GPUS = 16  # most GPUs of a server; a node with more is a domain
_PACKET = style.FABRICS["fat-tree"].colour
_RAILS = ("#332288", "#88CCEE", "#117733", "#DDAA33", "#CC6677", "#44AA99", "#882255", "#999933")
_KINDS = ("nic", "edge", "aggregation")  # links from a row to the row above, by tier

INSIDE = ("gpu", "nvswitch", "optics")  # nodes of a server
Tokens = list[int | None]  # numbers of nodes; None: an ellipsis


def draw_fabric(cluster: Any, path: str | Path, *, utilisation: Any = None, title: str = "") -> Path:
    """Draw a cluster (`mfabric_jax.fabric.Cluster`, or an object with its attributes) and return the path.

    `utilisation` [L], 0 to 1, colours the links of `cluster.sprayed`. Servers with direct links and no switches are
    drawn as a graph, at `cluster.mesh.places` [nodes, 2 or 3] if these exist.
    """
    return paper.save(lambda: build_fabric(cluster, utilisation=utilisation, title=title), path)


def build_fabric(cluster: Any, *, utilisation: Any = None, title: str = "") -> Figure:
    label = style.fabric(cluster.name).label
    title = title or f"{label}: {count_phrase(cluster.servers, noun(cluster))}, {cluster.gpus:,} GPUs"
    if cluster.tree is None and cluster.regions is None:
        mesh = getattr(cluster, "mesh", None)
        servers, link = _between_servers(cluster)
        if len(servers.tail):
            load = None if utilisation is None else np.asarray(utilisation, dtype=float)[link]
            return build_graph(servers, utilisation=load, title=title, places=getattr(mesh, "places", None))
    busy = None if utilisation is None else LinkHeat(cluster.pooled_network, utilisation)
    return _Picture(cluster, busy).draw(title)


def _between_servers(cluster: Any) -> tuple[Any, np.ndarray]:
    """The network of servers (as single nodes) and routers, and the numbers of its links in `cluster.sprayed`."""
    network, server, others = cluster.pooled_network, [], []
    for kind, count in network.nodes:
        own = np.arange(count) + (0 if kind in INSIDE else cluster.servers + sum(n for _, n in others))
        server.append(own // cluster.gpus_per_server if kind == "gpu" else own)
        others += [] if kind in INSIDE else [(kind, count)]
    server = np.concatenate(server)
    tail, head = server[network.tail], server[network.head]
    link = np.flatnonzero(tail != head)
    kinds = [(kind, int((tail[run] != head[run]).sum())) for kind, _ in network.links for run in [network.run(kind)]]
    changed = {"tail": tail[link], "head": head[link], "capacity": network.capacity[link], "names": None}
    changed |= {"delay_s": network.delay_s[link], "nodes": ((noun(cluster), cluster.servers), *others)}
    return replace(network, links=tuple(pair for pair in kinds if pair[1]), **changed), link


# -- the nodes that are shown, and their positions


@dataclass
class NodeRow:
    """A row of nodes: x of each node by number, x of the ellipses, and the width of a node."""

    positions: dict[int, float] = field(default_factory=dict)
    dots: list[float] = field(default_factory=list)
    width: float = 0.0


def few(items: Iterable[int], most: int) -> Tokens:
    every: Tokens = list(items)
    return every if len(every) <= most + 1 else [*every[: most - 1], None, every[-1]]


def tier_count(tree: Any) -> int:
    """Return the number of switch tiers that paths reach: 1, 2 or 3; 0 without a tree."""
    return 0 if tree is None else 1 + (tree.edges_per_part > 1) + (tree.pods_per_part > 1)


def tier_links(cluster: Any) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the pairs [P 2] of a lower node and a switch, and the number of links [P] of each, for each tier on paths.

    The lower nodes of the first tier are servers.
    """
    if cluster.tree is None:
        return []
    network, tiers = cluster.network, []
    first = cluster.gpus + cluster.servers + np.cumsum([0, *(count for _, count in cluster.tree.switches)])
    for tier, kind in enumerate(_KINDS[: tier_count(cluster.tree)]):
        links = network.run(f"{kind} up")
        below = network.tail[links] - first[tier - 1] if tier else network.tail[links] // cluster.gpus_per_server
        ends = np.stack([below, network.head[links] - first[tier]], axis=1)
        tiers.append(np.unique(ends, axis=0, return_counts=True))
    return tiers


def layout(cluster: Any) -> tuple[float, list[NodeRow], list[tuple[int, float, float]]]:
    """Return the width, the rows (servers, then switches by tier), and shown regions as (number, left, right)."""
    tiers = tier_links(cluster)
    sections, numbers = [_shown_servers(cluster.servers, tiers)], [0]
    if cluster.regions is not None and len(cluster.regions) > 1:
        size = cluster.regions.shape[1]
        picked, none = few(range(len(cluster.regions)), _REGIONS - 1), cast(Tokens, [None])
        sections = [none if r is None else few(range(r * size, (r + 1) * size), _IN_REGION) for r in picked]
        numbers = [-1 if r is None else r for r in picked]
    width = _WIDTH if cluster.tree or cluster.regions is not None else max(2.0, 0.5 * len(sections[0]))
    servers, spans = _row(sections, width)
    rows = [servers]
    for pairs, _ in tiers:
        groups = dict.fromkeys(_above(pairs, node) for node in rows[-1].positions)
        each = max(2, _MOST // len(groups))
        rows.append(
            _row([_tokens_with_gaps(node for group in groups for node in few(group, each) if node is not None)], width)[
                0
            ]
        )
    regions = [(r, *span) for r, span in zip(numbers, spans, strict=True) if r >= 0]
    return width, rows, [] if cluster.regions is None else regions


def _shown_servers(servers: int, tiers: Sequence[tuple[np.ndarray, np.ndarray]]) -> Tokens:
    """Return as many servers as leave room for both ends of each one's edge switches."""
    most, shown = _MOST, few(range(servers), _MOST)
    while tiers and most > _IN_REGION:
        above = [few(_above(tiers[0][0], node), 2) for node in shown if node is not None]
        ends = {end for some in above for end in some if end is not None}
        if len(ends) <= _MOST + 1:
            break
        most //= 2
        shown = few(range(servers), most)
    return shown


def _above(pairs: np.ndarray, node: int) -> tuple[int, ...]:
    return tuple(pairs[pairs[:, 0] == node, 1].tolist())


def _tokens_with_gaps(items: Iterable[int]) -> Tokens:
    every = [item for item in few(sorted(set(items)), _MOST) if item is not None]
    tokens: Tokens = [every[0]]
    for item, following in pairwise(every):
        tokens += [following] if following == item + 1 else [None, following]
    return tokens


def _row(sections: list[Tokens], width: float) -> tuple[NodeRow, list[tuple[float, float]]]:
    slots = [sum(_DOTS if token is None else 1.0 for token in tokens) + _GAP for tokens in sections]
    unit = width / sum(slots)
    row, spans, x = NodeRow(width=min(0.6, 0.8 * unit)), [], 0.0
    for tokens, slot in zip(sections, slots, strict=True):
        spans.append((x + 0.1 * _GAP * unit, x + (slot - 0.1 * _GAP) * unit))
        inside = x + _GAP / 2 * unit
        for token in tokens:
            step = unit * (_DOTS if token is None else 1.0)
            if token is None:
                row.dots.append(inside + step / 2)
            else:
                row.positions[token] = inside + step / 2
            inside += step
        x += slot * unit
    return row, spans


# -- drawing


class _Picture:
    def __init__(self, cluster: Any, busy: LinkHeat | None):
        self.cluster, self.busy = cluster, busy
        self.width, self.rows, self.regions = layout(cluster)
        self.bottom = 0.25 + (0.5 if busy else 0.0)
        self.panel = self._panel_height()
        # Frames and fibres are grey if colours show the utilisation of links.
        self.optical = CIRCUIT if busy is None else style.FAINT

    def _panel_height(self) -> float:
        if not self.regions:
            return 0.0
        size, widest = self.cluster.regions.shape[1], max(right - left for _, left, right in self.regions)
        large = 2.4 if len(self.regions) > 1 or size <= DETAILED else 4.0
        return min(widest, {1: 0.5, 2: 0.5, 3: 1.6, 4: 1.8}.get(size, large)) + 0.2

    def level(self, row: int) -> float:
        return self.bottom + self.panel + (_PLUG if self.panel else 0.0) + row * (_NODE + _RISE)

    def draw(self, title: str) -> Figure:
        notes = self._notes()
        top = self.level(len(self.rows) - 1) + _NODE + (0.6 if len(self.rows) > 1 else 0.3)
        width, height = self.width + 0.3 + _NOTES, top + 0.35
        figure = paper.blank(_LEFT + width, height, arranged=False)
        self.axes = figure.add_axes((0, 0, 1, 1))
        self.axes.set(xlim=(-_LEFT, width), ylim=(0, height))
        self.axes.set_axis_off()
        for level, row in enumerate(self.rows):
            self._nodes(level, row)
        for tier, (pairs, count) in enumerate(tier_links(self.cluster)):
            self._links(tier, pairs, count)
        for region, left, right in self.regions:
            self._region(region, left, right)
        self.axes.text(0, height - 0.17, title, va="top", fontsize=style.FONT + 2, fontweight="bold")
        for y, head, lines in notes:
            self._note(y, head, [line for text in lines for line in wrap(text, _COLUMN)])
        if self.busy is not None:
            utilisation_bar(figure, _LEFT + max(0.0, self.width / 2 - 1.5), 0.32, min(3.0, self.width))
        return figure

    def _note(self, y: float, head: str, lines: Sequence[str]) -> None:
        y += (0.17 * bool(head) + 0.145 * len(lines)) / 2
        self.axes.text(self.width + 0.3, y, head, va="top", fontsize=style.FONT - 0.5, fontweight="bold")
        for below, line in enumerate(lines):
            position = self.width + 0.3, y - 0.17 * bool(head) - 0.145 * below
            self.axes.text(*position, line, va="top", fontsize=style.FONT - 1.5, color=style.SOFT)

    def _nodes(self, number: int, row: NodeRow) -> None:
        base, font = self.level(number), min(8.0, 72 * 0.88 * row.width / (0.62 * len(f"{max(row.positions)}")))
        colour = _PACKET if number else style.FAINT
        for node, x in row.positions.items():
            draw_box(self.axes, (x - row.width / 2, base), (row.width, _NODE), mix_with_white(colour, 0.82), colour)
            if font >= 5:
                write(self.axes, x, base + _NODE / 2 - 0.01, str(node), font)
        for middle in row.dots:
            x = middle + 0.07 * np.array([-1, 0, 1])
            self.axes.plot(x, [base + _NODE / 2] * 3, "o", color=style.INK, markersize=2.4, markeredgewidth=0, zorder=5)

    def _links(self, tier: int, pairs: np.ndarray, count: np.ndarray) -> None:
        below, above, lines, colours, widths = self.rows[tier].positions, self.rows[tier + 1].positions, [], [], []
        for (low, high), links in zip(pairs.tolist(), count.tolist(), strict=True):
            if low in below and high in above:
                lines.append([(below[low], self.level(tier) + _NODE), (above[high], self.level(tier + 1))])
                colours.append(self._colour(tier, low, high))
                widths.append(min(3.0, 0.5 + 0.25 * links))
        draw_segments(self.axes, lines, colours, widths)

    def _colour(self, tier: int, low: int, high: int) -> str:
        tree = self.cluster.tree
        if self.busy is None:
            rail = high // tree.edges_per_part if tree.parts > 1 else high
            return _RAILS[rail % len(_RAILS)] if tier == 0 and self.cluster.rails else LINK
        if tier:
            return self.busy.pair(*(("edge", [low]) if tier == 1 else ("pod", [low // tree.edge_ports[0]])))
        host = np.arange(tree.hosts)
        between = (self.cluster.host_gpu // self.cluster.gpus_per_server == low) & (tree.edge_of(host) == high)
        return self.busy.pair("nic", host[between])

    def _region(self, region: int, left: float, right: float) -> None:
        count, middle, width = self.cluster.regions[region], (left + right) / 2, right - left
        servers = range(region * len(count), (region + 1) * len(count))
        draw_box(self.axes, (left, self.bottom), (width, self.panel), mix_with_white(self.optical, 0.93), self.optical)
        plugs = [
            x for server, x in self.rows[0].positions.items() if server in servers and count[server - servers[0]].any()
        ]
        lines = [[(x, self.level(0)), (x, self.bottom + self.panel)] for x in plugs]
        draw_segments(self.axes, lines, [self.optical] * len(lines), 1.5)
        words = count_phrase(int(np.triu(count).sum()), "circuit")
        words = f"region {region}: {words}" if len(self.cluster.regions) > 1 else words
        write(self.axes, middle, self.bottom + 0.1, words, 8)
        radius = min(width / 2 - 0.1, (self.panel - 0.2) / 2 - 0.07 if len(count) > 2 else 0.7)
        centre = (middle, self.bottom + 0.1 + self.panel / 2)
        colour = lambda i, j: self._circuit_colour(servers[i], servers[j])  # noqa: E731
        draw_ring(self.axes, centre, radius, count, [str(server) for server in servers], colour)

    def _circuit_colour(self, src: int, dst: int) -> str:
        if self.busy is None:
            return CIRCUIT
        rows = self.cluster.circuits.find(np.array([src, dst]), np.array([dst, src]))
        return self.busy.of(self.busy.network.run("circuit").start + rows)

    # -- texts: counts, bandwidths and oversubscription

    def _notes(self) -> list[tuple[float, str, list[str]]]:
        cluster = self.cluster
        notes = [(self.level(0) + _NODE / 2, *self._of_servers())]
        if cluster.regions is not None:
            notes.append((self.bottom + self.panel / 2, *self._of_circuits()))
        for tier, (_, count) in enumerate(tier_links(cluster)):
            notes.append((self.level(tier + 1) + _NODE / 2, *self._of_switches(tier)))
            planes = cluster.tree.planes if cluster.tree else 1
            width = cluster.network.capacity[cluster.network.run(f"{_KINDS[tier]} up")] / cluster.nic_Bps
            gbps = cluster.nic_gbps / planes * width
            ends = " to ".join(dict.fromkeys(map(number, (gbps.min(), gbps.max()))))
            words = [f"{count_phrase(int(count.sum()), 'link')} of {ends} Gbps"]
            words[0] += " on each plane" if planes > 1 else ""
            if tier == 0 and cluster.rails:
                alone = int(count.max()) == 1
                words.append("a switch for each rail of these servers" if alone else "rails share edge switches")
            kind = ("nic", "edge", "pod")[tier]
            notes.append((self.level(tier + 1) - _RISE / 2, "", words + self._load(f"{kind} up", f"{kind} down")))
        if cluster.tree is not None and (unused := cluster.tree.switches[tier_count(cluster.tree) :]):
            words = " and ".join(f"{count:,} {kind}" for kind, count in unused) + " switches"
            top = self.level(len(self.rows) - 1) + _NODE + 0.42
            notes.append((top, "", ["above, on no path:", words]))
        return notes

    def _load(self, *kinds: str) -> list[str]:
        return [] if self.busy is None else [self.busy.words(*kinds)]

    def _of_servers(self) -> tuple[str, list[str]]:
        cluster = self.cluster
        words = [f"NVSwitch: {number(cluster.nvswitch_gigabytes_per_s)} GB/s for a GPU"]
        if cluster.nics:
            words.append(f"{count_phrase(cluster.nics, 'NIC')} each on packet switches")
        head = f"{count_phrase(cluster.servers, noun(cluster))} of {count_phrase(cluster.gpus_per_server, 'GPU')}"
        return head, words + self._load("nvswitch up", "nvswitch down")

    def _of_switches(self, tier: int) -> tuple[str, list[str]]:
        tree, (kind, count) = self.cluster.tree, self.cluster.tree.switches[tier]
        pods = tree.parts * tree.pods_per_part
        words = [f"{count // tree.parts:,} on each of {tree.parts} separate rails"] if tree.parts > 1 else []
        words += [f"on each of {tree.planes} planes"] if tree.planes > 1 else []
        if tier == 1 and tree.tiers == 3:
            words.append(f"{tree.edge_ports[0]} in each of {pods:,} pods" if pods > 1 else "in one pod")
        if tier + 1 < tier_count(tree):
            up, down = tree.pod_ports if tier else tree.edge_ports
            ratio = down / up / (1.0 if tier else tree.width)
            words.append(f"{down} down + {up} up ports, {number(ratio)}:1{' oversubscribed' if ratio > 1 else ''}")
        else:
            by_tier = (min(tree.edge_ports[1], tree.hosts_per_part), min(tree.edges_per_part, tree.pod_ports[1]))
            words.append(f"{(*by_tier, tree.pods_per_part)[tier]} of {tree.radix} ports in use")
        return count_phrase(count, f"{kind} switch", f"{kind} switches"), words

    def _of_circuits(self) -> tuple[str, list[str]]:
        cluster = self.cluster
        regions, size = cluster.regions.shape[:2]
        what = "patch panel" if cluster.tree is None else "optical switch" if noun(cluster) == "domain" else "OCS"
        each = cluster.regions.sum(axis=2)
        total, most = int(np.triu(cluster.regions).sum()), int(each.max())
        words = [f"one {what} for each region"] if regions > 1 else []
        if cluster.name == ACOS:
            words = ["small switches, one for each optical NIC,", "select one of several prewired graphs"]
            what = "region of small switches"
        words.append(f"{count_phrase(total, 'circuit')} of {number(cluster.nic_gbps)} Gbps each way")
        words.append(f"{'up to ' if each.min() < most else ''}{count_phrase(most, 'circuit')} at a {noun(cluster)}")
        head = f"1 {what}" if regions == 1 else f"{regions:,} regions of {count_phrase(size, noun(cluster))}"
        return head, words + (self._load("circuit") if total else [])


def noun(cluster: Any) -> str:
    """Return the word for a node with an NVSwitch: a server, a domain, or the part of a domain that a job uses."""
    if cluster.name in NAMES and get(cluster.name).leaves_spares:
        return "domain part"
    return "domain" if cluster.gpus_per_server > _MANY_GPUS else "server"
