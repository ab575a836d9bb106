"""A whole cluster as a picture: servers at the bottom, tiers of switches above them, circuits below, counts beside.

Of each kind the first few nodes and the last are shown, around an ellipsis. The cluster is read by its attributes alone
(`mfabric_jax.fabric.Cluster` or one like it). All lengths are inches.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, product
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from mfabric_jax.report import style
from mfabric_jax.report.figures import parts
from mfabric_jax.report.figures.circuits import CIRCUIT, DETAILED, ring
from mfabric_jax.report.figures.networks import build_graph
from mfabric_jax.report.figures.parts import LINK, draw_box, write
from mfabric_jax.report.style import mixed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LEFT, _NOTES, _WIDTH, _COLUMN = 0.25, 2.85, 7.2, 44  # margin, words, drawing; characters in a line of words
_SWITCH, _RISE, _PLUG = 0.25, 0.88, 0.24  # height of a switch; from tier to tier; from servers to the optical switch
_DOTS, _GAP = 0.7, 0.4  # an ellipsis and the space between sections, in nodes
_MOST, _REGIONS, _IN_REGION, _MANY_GPUS = 16, 4, 3, 16  # nodes of a row, regions, servers of one of several
_GPU, _NVSWITCH = style.PARTS["compute_s"].colour, style.FABRICS["nvl72"].colour
_PACKET = style.FABRICS["fat-tree"].colour
RAILS = ("#332288", "#88CCEE", "#117733", "#DDAA33", "#CC6677", "#44AA99", "#882255", "#999933")

INSIDE = ("gpu", "nvswitch", "optics")  # nodes of a server
Tokens = list[int | None]  # numbers of nodes; None: an ellipsis
Words = tuple[str, list[str]]  # a bold line and plain ones


def draw_fabric(cluster: Any, path: str | Path, *, utilisation: Any = None, title: str = "") -> Path:
    """Draw a cluster (`mfabric_jax.fabric.Cluster`, or what has its attributes); returns the path written.

    `utilisation` [L] of the links of `cluster.sprayed`, 0 to 1, colours them. Servers with links of their own from one
    to the other, on no switch, are drawn as a graph, at `cluster.mesh.places` [nodes, 2 or 3] where it has these.
    """
    return style.save(lambda: build_fabric(cluster, utilisation=utilisation, title=title), path)


def build_fabric(cluster: Any, *, utilisation: Any = None, title: str = "") -> Figure:
    """The figure itself."""
    label = style.fabric(cluster.name).label
    title = title or f"{label}: {many(cluster.servers, noun(cluster))}, {cluster.gpus:,} GPUs"
    if cluster.tree is None and cluster.regions is None:
        mesh = getattr(cluster, "mesh", None)
        servers, link = _between_servers(cluster)
        if len(servers.tail):
            load = None if utilisation is None else np.asarray(utilisation, dtype=float)[link]
            return build_graph(servers, utilisation=load, title=title, places=getattr(mesh, "places", None))
    busy = None if utilisation is None else parts.LinkHeat(cluster.sprayed, utilisation)
    return _Picture(cluster, layout(cluster), busy).draw(title)


def _between_servers(cluster: Any) -> tuple[Any, np.ndarray]:
    """The links between servers and routers as a network of these, and which links of the cluster's these are.

    GPUs, NVSwitches and optical NICs are taken as the server they are in.
    """
    network, server, others = cluster.sprayed, [], []
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


# -- which nodes are shown, and where


@dataclass
class Row:
    """Where the nodes of one kind stand, where ellipses are, and how wide a node is drawn."""

    at: dict[int, float] = field(default_factory=dict)
    dots: list[float] = field(default_factory=list)
    width: float = 0.0


@dataclass
class Layout:
    """Servers, then tiers of switches from below; intervals (number, left, right) of the regions that are shown."""

    width: float
    servers: Row
    tiers: list[Row]
    regions: list[tuple[int, float, float]]


def few(items: Iterable[int], most: int) -> Tokens:
    """All, or the first ones and the last around an ellipsis."""
    every: Tokens = list(items)
    return every if len(every) <= most + 1 else [*every[: most - 1], None, every[-1]]


def _gapped(items: Iterable[int]) -> Tokens:
    """Numbers in order, at most so many as fit, an ellipsis wherever some are missing."""
    every = [item for item in few(sorted(set(items)), _MOST) if item is not None]
    tokens: Tokens = [every[0]]
    for item, following in pairwise(every):
        tokens += [following] if following == item + 1 else [None, following]
    return tokens


def edge_table(cluster: Any) -> np.ndarray:
    """[server, NIC] edge switch."""
    server, nic = np.mgrid[: cluster.servers, : cluster.nics]
    return cluster.tree.edge_of(cluster.host(server, nic))


def climbed(tree: Any) -> int:
    """Tiers of switches that some path reaches: 1, 2 or 3."""
    return 1 + (tree.edges_per_part > 1) + (tree.pods_per_part > 1)


def layout(cluster: Any) -> Layout:
    """What is shown of a cluster, and where."""
    most = _MOST // 2 if cluster.gpus_per_server > _MANY_GPUS else _MOST
    sections, numbers = [few(range(cluster.servers), most)], [0]
    if cluster.regions is not None and len(cluster.regions) > 1:
        size = cluster.regions.shape[1]
        picked, none = few(range(len(cluster.regions)), _REGIONS - 1), cast(Tokens, [None])
        sections = [none if r is None else few(range(r * size, (r + 1) * size), _IN_REGION) for r in picked]
        numbers = [-1 if r is None else r for r in picked]
    width = _WIDTH if cluster.tree or cluster.regions is not None else max(2.0, 0.5 * len(sections[0]))
    servers, spans = _row(sections, width, 1.2 if cluster.gpus_per_server > _MANY_GPUS else 0.6)
    regions = [(r, *span) for r, span in zip(numbers, spans, strict=True) if r >= 0]
    tiers = [] if cluster.tree is None else [_row([one], width, 0.6)[0] for one in _switches(cluster, servers.at)]
    return Layout(width, servers, tiers, [] if cluster.regions is None else regions)


def _row(sections: list[Tokens], width: float, widest: float) -> tuple[Row, list[tuple[float, float]]]:
    """Nodes spread over a width, and the interval of every section."""
    slots = [sum(_DOTS if token is None else 1.0 for token in tokens) + _GAP for tokens in sections]
    unit = width / sum(slots)
    row, spans, x = Row(width=min(widest, 0.8 * unit)), [], 0.0
    for tokens, slot in zip(sections, slots, strict=True):
        spans.append((x + 0.1 * _GAP * unit, x + (slot - 0.1 * _GAP) * unit))
        inside = x + _GAP / 2 * unit
        for token in tokens:
            step = unit * (_DOTS if token is None else 1.0)
            if token is None:
                row.dots.append(inside + step / 2)
            else:
                row.at[token] = inside + step / 2
            inside += step
        x += slot * unit
    return row, spans


def _switches(cluster: Any, servers: Iterable[int]) -> list[Tokens]:
    """Switches of every tier: those to which the shown servers lead, and those above these."""
    tree = cluster.tree
    up, climb = tree.edge_ports[0], tree.pod_ports[0]
    rows = [_gapped(np.unique(edge_table(cluster)[list(servers)]).tolist())]
    if climbed(tree) > 1:
        pods = dict.fromkeys(int(tree.pod_of(np.asarray(edge))) for edge in rows[0] if edge is not None)
        each = max(2, _MOST // len(pods))
        own = [pod * up + a for pod in pods for a in few(range(up), each) if a is not None]
        rows.append(_gapped(own))
    if climbed(tree) > 2:
        first = [(a // up // tree.pods_per_part * up + a % up) * climb for a in rows[1] if a is not None]
        each = max(1, _MOST // len(set(first)))
        above = [number for number in few(range(climb), each) if number is not None][: max(each, 2)]
        rows.append(_gapped(one + number for one in first for number in above))
    return rows


# -- how it is drawn


class _Picture:
    """Where everything is, from the bottom up, and how it is drawn."""

    def __init__(self, cluster: Any, plan: Layout, busy: parts.LinkHeat | None):
        self.cluster, self.plan, self.busy, self.tree = cluster, plan, busy, cluster.tree
        self.columns = min(cluster.gpus_per_server, _MANY_GPUS)
        self.lines_of_gpus = -(-cluster.gpus_per_server // self.columns)
        self.optical = CIRCUIT if busy is None else style.FAINT  # frames and fibres: no colour that means a load
        self.box = plan.servers.width
        self.gpu = min(0.1, self.box / (self.columns + 0.6))
        self.deep = 0.1 if self.lines_of_gpus == 1 else self.gpu  # GPUs are upright boxes, or squares where many
        self.server_height = 0.38 + self.deep * self.lines_of_gpus
        self.panel = self._panel_height()
        self.bottom = 0.25 + (0.5 if busy else 0.0)
        self.floor = self.bottom + self.panel + (_PLUG if self.panel else 0.0)
        self.ceiling = self.floor + self.server_height
        self.edge = np.zeros((0, 0), int) if self.tree is None else edge_table(cluster)

    def _panel_height(self) -> float:
        if not self.plan.regions:
            return 0.0
        size, widest = self.cluster.regions.shape[1], max(right - left for _, left, right in self.plan.regions)
        most = {1: 0.5, 2: 0.5, 3: 1.6, 4: 1.8}.get(
            size, 2.4 if len(self.plan.regions) > 1 or size <= DETAILED else 4.0
        )
        return min(widest, most) + 0.2

    def level(self, tier: int) -> float:
        """Bottom of the switches of a tier."""
        return self.ceiling + _RISE + tier * (_SWITCH + _RISE)

    def draw(self, title: str) -> Figure:
        words, tiers = self._words(), self.plan.tiers
        top = self.level(len(tiers) - 1) + _SWITCH + 0.1 if tiers else self.ceiling + 0.15
        top += 0.5 if tiers and words[-1][1][1] else 0.0
        width, height = self.plan.width + 0.3 + _NOTES, top + 0.45
        figure = style.blank(_LEFT + width, height, arranged=False)
        self.axes = figure.add_axes((0, 0, 1, 1))
        self.axes.set(xlim=(-_LEFT, width), ylim=(0, height))
        self.axes.set_axis_off()
        for server in self.plan.servers.at:
            self._server(server)
        self._ellipses(self.plan.servers, self.floor + self.server_height / 2)
        for region, left, right in self.plan.regions:
            self._region(region, left, right)
        if tiers:
            self._nic_links()
        for tier, row in enumerate(tiers):
            self._switches(tier, row)
        self.axes.text(0, height - 0.17, title, va="top", fontsize=style.FONT + 2, fontweight="bold")
        for y, (head, lines) in words:
            self._note(y, head, lines)
        if self.busy is not None:
            parts.bar(figure, _LEFT + max(0.0, self.plan.width / 2 - 1.5), 0.32, min(3.0, self.plan.width))
        return figure

    def _note(self, y: float, head: str, lines: Sequence[str]) -> None:
        """Words at the right, centred around a height."""
        y += (0.17 * bool(head) + 0.145 * len(lines)) / 2
        self.axes.text(self.plan.width + 0.3, y, head, va="top", fontsize=style.FONT - 0.5, fontweight="bold")
        for number, line in enumerate(lines):
            place = self.plan.width + 0.3, y - 0.17 * bool(head) - 0.145 * number
            self.axes.text(*place, line, va="top", fontsize=style.FONT - 1.5, color="#444444")

    def _segments(self, lines: list, colours: list[str]) -> None:
        width = 0.9 if len(lines) <= 80 else 0.6 if len(lines) <= 200 else 0.4
        parts.draw_segments(self.axes, lines, colours, width)

    def _ellipses(self, row: Row, y: float) -> None:
        """Three dots for each run of nodes that is left out."""
        for middle in row.dots:
            x = middle + 0.07 * np.array([-1, 0, 1])
            self.axes.plot(x, [y] * 3, "o", color=style.INK, markersize=2.4, markeredgewidth=0, zorder=5)

    def _loaded(self, kind: str, number: int, otherwise: str) -> str:
        """The colour of a link of a kind, up and down: of its load, if loads are shown."""
        return otherwise if self.busy is None else self.busy.pair(f"{kind} up", f"{kind} down", number)

    def gpu_at(self, server: int, gpu: Any) -> Any:
        """Centre of a GPU, or of its column."""
        return self.plan.servers.at[server] + self.gpu * (gpu % self.columns + 0.5 - self.columns / 2)

    def _server(self, server: int) -> None:
        middle, count = self.plan.servers.at[server], self.cluster.gpus_per_server
        corner, size = (middle - self.box / 2, self.floor), (self.box, self.server_height)
        draw_box(self.axes, corner, size, "#F4F5F7", style.FAINT)
        gpus, deep = np.arange(count), self.deep - 0.22 * self.gpu
        colours = [self._loaded("nvswitch", server * count + gpu, _GPU) for gpu in range(count)]
        line = {"edgecolor": "#7C8794", "linewidth": 0.4, "zorder": 4, "snap": False}
        base = self.ceiling - 0.03 - deep - self.deep * (gpus // self.columns)
        self.axes.bar(self.gpu_at(server, gpus), deep, 0.78 * self.gpu, base, color=colours, **line)
        self.axes.bar(middle, 0.11, 0.86 * self.box, self.floor + 0.17, color=_NVSWITCH, zorder=4)
        write(self.axes, middle, self.floor + 0.085, str(server), min(7.5, 72 * self.box / (0.62 * len(str(server)))))

    def nic_at(self, server: int, nic: int) -> float:
        """Where a NIC on the packet switches leaves its server: above its GPU, or in step where these are many."""
        if self.lines_of_gpus > 1:
            return self.plan.servers.at[server] + self.box * 0.94 * ((nic + 0.5) / self.cluster.nics - 0.5)
        return self.gpu_at(server, int(self.cluster.at_gpu(np.asarray(nic), self.cluster.first_electrical_gpu)))

    def _nic_links(self) -> None:
        cluster, row, lines, colours = self.cluster, self.plan.tiers[0], [], []
        for server, nic in product(self.plan.servers.at, range(cluster.nics)):
            if (edge := int(self.edge[server, nic])) in row.at:
                port = int(cluster.host(np.asarray(server), np.asarray(nic)))
                lines.append([(self.nic_at(server, nic), self.ceiling), (row.at[edge], self.level(0))])
                colours.append(self._loaded("nic", port, RAILS[nic % len(RAILS)] if cluster.rails else LINK))
        self._segments(lines, colours)

    def _switches(self, tier: int, row: Row) -> None:
        """Switches of a tier and their links up."""
        base, digits, tiers = self.level(tier), len(f"{max(row.at)}"), self.plan.tiers
        font = min(8.0, 72 * 0.88 * row.width / (0.62 * digits))
        for number, x in row.at.items():
            colour = self._switch_colour(tier, number)
            draw_box(self.axes, (x - row.width / 2, base), (row.width, _SWITCH), mixed(colour, 0.82), colour)
            if font >= 5:
                write(self.axes, x, base + _SWITCH / 2 - 0.01, str(number), font)
        self._ellipses(row, base + _SWITCH / 2)
        lines, colours = [], []
        for low, high in product(row.at, tiers[tier + 1].at) if tier + 1 < len(tiers) else ():
            if self._joined(tier, low, high):
                lines.append([(row.at[low], base + _SWITCH), (tiers[tier + 1].at[high], self.level(tier + 1))])
                plain = self._switch_colour(tier, low) if self.tree.parts > 1 else LINK
                pool = ("pod", low // self.tree.edge_ports[0]) if tier else ("edge", low)
                colours.append(self._loaded(*pool, plain))
        self._segments(lines, colours)

    def _joined(self, tier: int, low: int, high: int) -> bool:
        """Whether a switch has a link up to another."""
        up, climb = self.tree.edge_ports[0], self.tree.pod_ports[0]
        if tier == 0:
            return int(self.tree.pod_of(np.asarray(low))) == high // up
        return low // up // self.tree.pods_per_part * up + low % up == high // climb

    def _switch_colour(self, tier: int, number: int) -> str:
        """Blue; of its rail where all ports below are of one."""
        if tier > 0:
            each = self.tree.switches[tier][1] // self.tree.parts
            separate = self.cluster.rails and self.tree.parts > 1
            return RAILS[number // each % len(RAILS)] if separate else _PACKET
        nics = np.unique(np.nonzero(self.edge == number)[1])
        return RAILS[nics[0] % len(RAILS)] if self.cluster.rails and len(nics) == 1 else _PACKET

    def _region(self, region: int, left: float, right: float) -> None:
        count, middle, width = self.cluster.regions[region], (left + right) / 2, right - left
        servers = range(region * len(count), (region + 1) * len(count))
        draw_box(self.axes, (left, self.bottom), (width, self.panel), mixed(self.optical, 0.93), self.optical)
        self._plugs(servers)
        words = many(int(np.triu(count).sum()), "circuit")
        words = f"region {region}: {words}" if len(self.cluster.regions) > 1 else words
        write(self.axes, middle, self.bottom + 0.1, words, 8)
        tall = (self.panel - 0.2) / 2 - 0.07
        radius = (min(width / 2 - 0.1, 1.6 * max(tall, 0.7)), min(width / 2 - 0.1, tall))
        centre = (middle, self.bottom + 0.1 + self.panel / 2)
        colour = lambda i, j: self._circuit_colour(servers[i], servers[j])  # noqa: E731
        ring(self.axes, centre, radius, count, [str(server) for server in servers], colour)

    def _circuit_colour(self, src: int, dst: int) -> str:
        if self.busy is None:
            return CIRCUIT
        rows = self.cluster.circuits.find(np.array([src, dst]), np.array([dst, src]))
        return self.busy.of(self.busy.network.run("circuit").start + rows)

    def _plugs(self, servers: range) -> None:
        """Fibres from the GPUs with optical NICs to the optical switch."""
        table, x = self.cluster.circuits, []
        for server in (s for s in self.plan.servers.at if s in servers):
            gpus = np.unique(table.gpu[table.src == server])
            x.extend(self.gpu_at(server, np.unique(gpus[gpus >= 0] % self.columns)))
        lines = [[(place, self.floor), (place, self.bottom + self.panel)] for place in x]
        parts.draw_segments(self.axes, lines, [self.optical] * len(lines), 1.0)

    def _words(self) -> list[tuple[float, Words]]:
        """What is said, each at the height of what it is about."""
        cluster, busy, tiers = self.cluster, self.busy, self.plan.tiers
        said = [(self.floor + self.server_height / 2, _of_servers(cluster, busy))]
        if cluster.regions is not None:
            said.append((self.bottom + self.panel / 2, _of_circuits(cluster, busy)))
        for tier in range(len(tiers)):
            said.append((self.level(tier) + _SWITCH / 2, _of_switches(cluster, tier)))
            said.append((self.level(tier) - _RISE / 2, _of_links(cluster, tier, busy)))
        if tiers:
            unused = [f"{count:,} {kind}" for kind, count in cluster.tree.switches[len(tiers) :]]
            words = [f"above, crossed by no path: {' and '.join(unused)}"] if unused else []
            said.append((self.level(len(tiers) - 1) + _SWITCH + 0.42, _wrapped("", words, None)))
        return said


# -- words: how many of each thing, of which bandwidth, and the oversubscription


def many(count: int, singular: str, plural: str = "") -> str:
    """ "1 switch", "2 switches"."""
    return f"{count:,} {singular if count == 1 else plural or singular + 's'}"


def noun(cluster: Any) -> str:
    """What a reader calls the GPUs around one NVSwitch."""
    return "domain" if cluster.gpus_per_server > _MANY_GPUS else "server"


def _wrapped(head: str, sentences: list[str], busy: parts.LinkHeat | None, *kinds: str) -> Words:
    """Sentences in lines, the last one about the load of links of some kinds."""
    load = [busy.words(*kinds)] if busy is not None and kinds else []
    return head, [line for sentence in [*sentences, *load] for line in wrap(sentence, _COLUMN)]


def _of_servers(cluster: Any, busy: parts.LinkHeat | None) -> Words:
    head = f"{many(cluster.servers, noun(cluster))} of {many(cluster.gpus_per_server, 'GPU')}"
    words = [f"NVSwitch (dark bar): {cluster.nvswitch_gigabytes_per_s:g} GB/s for a GPU"]
    if cluster.nics:
        coloured = ", coloured by rail" if busy is None else ""
        words.append(f"{many(cluster.nics, 'NIC')} each{coloured if cluster.rails else ' on packet switches'}")
    return _wrapped(head, words, busy, "nvswitch up", "nvswitch down")


def _of_links(cluster: Any, tier: int, busy: parts.LinkHeat | None) -> Words:
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
    return _wrapped("", words, busy, f"{kind} up", f"{kind} down")


def _of_switches(cluster: Any, tier: int) -> Words:
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
    return _wrapped(many(count, f"{kind} switch", f"{kind} switches"), words, None)


def _of_circuits(cluster: Any, busy: parts.LinkHeat | None) -> Words:
    """Regions, their optical switches and circuits."""
    regions, size = cluster.regions.shape[:2]
    what = "patch panel" if cluster.tree is None else "optical switch" if noun(cluster) == "domain" else "OCS"
    each = cluster.regions.sum(axis=2)
    total, most = int(np.triu(cluster.regions).sum()), int(each.max())
    head = f"1 {what}" if regions == 1 else f"{regions:,} regions of {many(size, noun(cluster))}"
    words = [f"one {what} for each region"] if regions > 1 else []
    words.append(f"{many(total, 'circuit')} of {cluster.nic_gbps:g} Gbps each way")
    words.append(f"{'up to ' if each.min() < most else ''}{many(most, 'circuit')} at a {noun(cluster)}")
    return _wrapped(head, words, busy, *(["circuit"] if total else []))
