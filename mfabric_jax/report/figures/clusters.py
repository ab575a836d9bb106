"""A whole cluster as a picture: servers at the bottom, tiers of switches above them, circuits below, counts beside."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mfabric_jax.report import style
from mfabric_jax.report.figures import cluster_layout, cluster_words, parts
from mfabric_jax.report.figures.circuits import CIRCUIT, DETAILED, ring
from mfabric_jax.report.figures.cluster_layout import Row
from mfabric_jax.report.figures.cluster_words import many, noun
from mfabric_jax.report.figures.networks import build_graph
from mfabric_jax.report.figures.parts import LINK, rounded_box
from mfabric_jax.report.style import mixed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LEFT, _NOTES = 0.25, 2.85  # margin; column of words
_SWITCH, _RISE = 0.25, 0.88  # height of a switch; from one tier to the next
_PLUG = 0.24  # from servers to the optical switch below
_GPU, _NVSWITCH = style.PARTS["compute_s"].colour, style.FABRICS["nvl72"].colour
_PACKET = style.FABRICS["fat-tree"].colour
RAILS = ("#332288", "#88CCEE", "#117733", "#DDAA33", "#CC6677", "#44AA99", "#882255", "#999933")


def draw_fabric(cluster: Any, path: str | Path, *, utilisation: Any = None, title: str = "") -> Path:
    """Draw a cluster (`mfabric_jax.fabric.Cluster`, or what has its attributes); returns the path written.

    `utilisation` [L] of the links of `cluster.sprayed`, 0 to 1, colours them. Servers with links of their own from one
    to the other, on no switch, are drawn as a graph, at `cluster.places` [servers, 2 or 3] where it has these.
    """
    return style.save(lambda: build_fabric(cluster, utilisation=utilisation, title=title), path)


def build_fabric(cluster: Any, *, utilisation: Any = None, title: str = "") -> Figure:
    """The figure itself."""
    label = style.fabric(cluster.name).label
    title = title or f"{label}: {many(cluster.servers, noun(cluster))}, {cluster.gpus:,} GPUs"
    if cluster.tree is None and cluster.regions is None:
        servers, link = _between_servers(cluster)
        if len(servers.tail):
            load = None if utilisation is None else np.asarray(utilisation, dtype=float)[link]
            return build_graph(servers, utilisation=load, title=title, places=getattr(cluster, "places", None))
    busy = None if utilisation is None else parts.LinkHeat(cluster.sprayed, utilisation)
    return _Picture(cluster, cluster_layout.layout(cluster), busy).draw(title)


def _between_servers(cluster: Any) -> tuple[Any, np.ndarray]:
    """The links from server to server as a network of servers, and which links of the cluster's these are.

    GPUs, NVSwitches and optical NICs are taken as the server they are in.
    """
    network, server = cluster.sprayed, []
    for kind, count in network.nodes:
        own = np.arange(count)
        server.append(own // cluster.gpus_per_server if kind == "gpu" else own)
    server = np.concatenate(server)
    tail, head = server[network.tail], server[network.head]
    link = np.flatnonzero(tail != head)
    kinds = [(kind, int((tail[run] != head[run]).sum())) for kind, _ in network.links for run in [network.run(kind)]]
    changed = {"tail": tail[link], "head": head[link], "capacity": network.capacity[link], "names": None}
    changed |= {"delay_s": network.delay_s[link], "nodes": ((noun(cluster), cluster.servers),)}
    return replace(network, links=tuple(pair for pair in kinds if pair[1]), **changed), link


class _Picture:
    """Where everything is, from the bottom up."""

    def __init__(self, cluster: Any, plan: cluster_layout.Layout, busy: parts.LinkHeat | None):
        self.cluster, self.plan, self.busy, self.tree = cluster, plan, busy, cluster.tree
        self.columns = min(cluster.gpus_per_server, 16)
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
        self.tiers = 0 if self.tree is None else cluster_layout.climbed(self.tree)
        self.edge = np.zeros((0, 0), int) if self.tree is None else cluster_layout.edge_table(cluster)

    def _panel_height(self) -> float:
        if not self.plan.regions:
            return 0.0
        size, widest = self.cluster.regions.shape[1], max(right - left for _, left, right in self.plan.regions)
        most = {2: 0.5, 3: 1.6, 4: 1.8}.get(size, 2.4)
        if len(self.plan.regions) == 1 and size > 4:
            most = (3.2 if self.tree is None else 2.4) if size <= DETAILED else 5.0 if self.tree is None else 3.6
        return min(widest, most) + 0.2

    def level(self, tier: int) -> float:
        """Bottom of the switches of a tier."""
        return self.ceiling + _RISE + tier * (_SWITCH + _RISE)

    @property
    def crest(self) -> float:
        """Height of the names of rails, above their switches."""
        return 0.26 if self.framed and self.tiers < 3 else 0.06

    @property
    def framed(self) -> bool:
        """Whether pods or rails are framed."""
        return self.tree is not None and (self.tree.parts > 1 or self.tiers == 3)

    def draw(self, title: str) -> Figure:
        top = self.level(self.tiers - 1) + _SWITCH if self.tiers else self.ceiling
        top += 0.62 if self.tiers and cluster_words.unused(self.cluster)[1] else self.crest + 0.08
        width, height = _LEFT + self.plan.width + 0.3 + _NOTES, top + 0.45
        figure = style.blank(width, height, arranged=False)
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set(xlim=(0, width), ylim=(0, height))
        axes.set_axis_off()
        self._everything(axes)
        axes.text(_LEFT, height - 0.17, title, va="top", fontsize=style.FONT + 2, fontweight="bold")
        for y, words in self._words():
            _write(axes, _LEFT + self.plan.width + 0.3, y, words)
        if self.busy is not None:
            parts.bar(figure, _LEFT + max(0.0, self.plan.width / 2 - 1.5), 0.32, min(3.0, self.plan.width))
        return figure

    def _everything(self, axes: Axes) -> None:
        for server in self.plan.servers.at:
            self._server(axes, server)
        _ellipses(axes, self.plan.servers, self.floor + self.server_height / 2)
        for region, left, right in self.plan.regions:
            self._region(axes, region, left, right)
        if self.tree is None:
            return
        self._pods(axes)
        self._nic_links(axes)
        self._tier_links(axes)
        for tier, row in enumerate((self.plan.edges, self.plan.high, self.plan.cores)[: self.tiers]):
            self._switches(axes, tier, row)

    def x(self, place: float) -> float:
        return _LEFT + place

    # -- servers and their NICs

    def gpu_at(self, server: int, gpu: int) -> float:
        """Centre of a GPU, or of its column."""
        left = self.x(self.plan.servers.at[server]) - self.gpu * self.columns / 2
        return left + self.gpu * (gpu % self.columns + 0.5)

    def _server(self, axes: Axes, server: int) -> None:
        from matplotlib.collections import PatchCollection
        from matplotlib.patches import Rectangle

        left = self.x(self.plan.servers.at[server]) - self.box / 2
        frame = {"facecolor": "#F4F5F7", "edgecolor": style.FAINT}
        axes.add_patch(rounded_box(left, self.floor, self.box, self.server_height, **frame))
        gpus = range(self.cluster.gpus_per_server)
        side, deep, top = 0.78 * self.gpu, self.deep - 0.22 * self.gpu, self.ceiling - 0.03
        boxes = [
            Rectangle((self.gpu_at(server, g) - side / 2, top - self.deep * (g // self.columns) - deep), side, deep)
            for g in gpus
        ]
        colours = [self._gpu_colour(server, g) for g in gpus]
        line = {"edgecolor": "#7C8794", "linewidth": 0.4, "zorder": 4, "snap": False}
        axes.add_collection(PatchCollection(boxes, facecolor=colours, **line))
        bar = self.floor + 0.17
        axes.add_patch(Rectangle((left + 0.03, bar), self.box - 0.06, 0.11, color=_NVSWITCH, linewidth=0, zorder=4))
        middle = left + self.box / 2
        if self.box >= 0.52:
            axes.text(middle, bar + 0.052, "NVSwitch", fontsize=5.5, color="white", ha="center", va="center", zorder=5)
        axes.text(middle, self.floor + 0.085, str(server), fontsize=7.5, ha="center", va="center", zorder=5)

    def _gpu_colour(self, server: int, gpu: int) -> str:
        """Of the link between a GPU and its NVSwitch."""
        if self.busy is None:
            return _GPU
        return self.busy.pair("nvswitch up", "nvswitch down", server * self.cluster.gpus_per_server + gpu)

    def nic_at(self, server: int, nic: int) -> float:
        """Where a NIC on the packet switches leaves its server: above its GPU, or in step where these are many."""
        if self.lines_of_gpus > 1:
            return self.x(self.plan.servers.at[server]) + self.box * 0.94 * ((nic + 0.5) / self.cluster.nics - 0.5)
        gpu = self.cluster.at_gpu(np.asarray(nic), self.cluster.first_electrical_gpu)
        return self.gpu_at(server, int(gpu))

    def _nic_links(self, axes: Axes) -> None:
        cluster, row = self.cluster, self.plan.edges
        host = {s: cluster.host(np.full(cluster.nics, s), np.arange(cluster.nics)) for s in self.plan.servers.at}
        every = np.unique(np.concatenate(list(host.values())))
        own = self.tree.edge_of(every)
        lines, colours = [], []
        for server, ports in host.items():
            for nic, port in enumerate(ports):
                edge = int(self.edge[server, nic])
                if edge not in row.at:
                    continue
                mates = every[own == edge]
                aside = ((np.searchsorted(mates, port) + 0.5) / len(mates) - 0.5) * 0.86 * row.width
                lines.append([(self.nic_at(server, nic), self.ceiling), (self.x(row.at[edge]) + aside, self.level(0))])
                colours.append(self._nic_colour(nic, int(port)))
        _segments(axes, lines, colours)
        bare = [e for e in row.at if e not in set(own.tolist())]
        ends = [(self.x(row.at[e]) + k * 0.25 * row.width, self.level(0)) for e in bare for k in (-1, 0, 1)]
        _segments(axes, [[(x, y), (x, y - 0.14)] for x, y in ends], [style.FAINT] * len(ends))

    def _nic_colour(self, nic: int, port: int) -> str:
        if self.busy is not None:
            return self.busy.pair("nic up", "nic down", port)
        return RAILS[nic % len(RAILS)] if self.cluster.rails else LINK

    # -- switches

    def _pods(self, axes: Axes) -> None:
        """A frame around each pod, or each rail."""
        top = self.level(max(1, min(self.tiers, 2)) - 1) + _SWITCH
        for pod, left, right in self.plan.pods if self.framed else ():
            base, width = self.level(0) - 0.06, right - left
            colour = mixed(self._rail_colour(pod // self.tree.pods_per_part), 0.9)
            frame = {"facecolor": colour, "edgecolor": "#CFCFCF", "zorder": 0.5}
            axes.add_patch(rounded_box(self.x(left), base, width, top + self.crest - base, **frame))
            centred = {"fontsize": 8, "ha": "center", "va": "center"}
            if self.tiers < 3:
                name = f"rail {pod}" if width > 0.37 + 0.06 * (pod > 9) else str(pod)
                axes.text(self.x(left + width / 2), top + 0.15, name, **centred)
            else:
                name = f"rail {pod // self.tree.pods_per_part}, pod {pod}" if self.tree.parts > 1 else f"pod {pod}"
                axes.text(self.x(left) + 0.1, (base + top) / 2, name, rotation=90, **centred)

    def _rail_colour(self, rail: int) -> str:
        """Of a separate rail; grey if there is but one tree."""
        return RAILS[rail % len(RAILS)] if self.tree.parts > 1 else "#999999"

    def _tier_links(self, axes: Axes) -> None:
        tree, up, climb = self.tree, self.tree.edge_ports[0], self.tree.pod_ports[0]
        edges, high, cores = self.plan.edges, self.plan.high, self.plan.cores
        pod = {e: int(tree.pod_of(np.asarray(e))) for e in edges.at}
        pairs = [(e, a) for e in edges.at for a in high.at if pod[e] == a // up]
        if self.tiers > 1:
            self._between(axes, 0, edges, high, pairs, ("edge", lambda e: e))
        if self.tiers > 2:
            below = {a: (a // up // tree.pods_per_part * up + a % up) for a in high.at}
            pairs = [(a, c) for a in high.at for c in cores.at if below[a] == c // climb]
            self._between(axes, 1, high, cores, pairs, ("pod", lambda a: a // up))

    def _between(self, axes: Axes, tier: int, low: Row, top: Row, pairs: list, pool: tuple) -> None:
        kind, number = pool
        ends = (self.level(tier) + _SWITCH, self.level(tier + 1))
        lines = [[(self.x(low.at[a]), ends[0]), (self.x(top.at[b]), ends[1])] for a, b in pairs]
        colours = [
            self._plain(tier, a) if self.busy is None else self.busy.pair(f"{kind} up", f"{kind} down", number(a))
            for a, _ in pairs
        ]
        _segments(axes, lines, colours)

    def _plain(self, tier: int, low: int) -> str:
        """Colour of a link up from a switch: of its rail where rails stay apart."""
        return self._switch_colour(tier, low) if self.tree.parts > 1 else LINK

    def _switches(self, axes: Axes, tier: int, row: Row) -> None:
        base, digits = self.level(tier), len(f"{max(row.at)}")
        font = min(8.0, 72 * 0.88 * row.width / (0.62 * digits))
        for number, place in row.at.items():
            colour = self._switch_colour(tier, number)
            left = self.x(place) - row.width / 2
            axes.add_patch(rounded_box(left, base, row.width, _SWITCH, facecolor=mixed(colour, 0.82), edgecolor=colour))
            if font >= 5:
                y = base + _SWITCH / 2 - 0.01
                axes.text(self.x(place), y, str(number), fontsize=font, ha="center", va="center", zorder=5)
        _ellipses(axes, row, base + _SWITCH / 2)

    def _switch_colour(self, tier: int, number: int) -> str:
        """Blue; of its rail where all ports below are of one."""
        if not self.cluster.rails:
            return _PACKET
        if tier > 0:
            each = self.tree.switches[tier][1] // self.tree.parts
            return self._rail_colour(number // each) if self.tree.parts > 1 else _PACKET
        nics = np.unique(np.nonzero(self.edge == number)[1])
        return RAILS[nics[0] % len(RAILS)] if len(nics) == 1 else _PACKET

    # -- circuits

    def _region(self, axes: Axes, region: int, left: float, right: float) -> None:
        count = self.cluster.regions[region]
        first, width = region * len(count), right - left
        frame = {"facecolor": mixed(self.optical, 0.93), "edgecolor": self.optical}
        axes.add_patch(rounded_box(self.x(left), self.bottom, width, self.panel, **frame))
        self._plugs(axes, range(first, first + len(count)))
        total = int(np.triu(count).sum())
        words = f"{total:,} circuit{'' if total == 1 else 's'}"
        if len(self.cluster.regions) > 1:
            words = f"region {region}: {words}"
        middle = self.x((left + right) / 2)
        axes.text(middle, self.bottom + 0.1, words, fontsize=8, ha="center", va="center", zorder=5)
        tall = (self.panel - 0.2) / 2 - 0.07
        radius = (min(width / 2 - 0.1, 1.6 * max(tall, 0.7)), min(width / 2 - 0.1, tall))
        centre = (middle, self.bottom + 0.2 + (self.panel - 0.2) / 2)
        names = [str(server) for server in range(first, first + len(count))]
        ring(axes, centre, radius, count, names, lambda i, j: self._circuit_colour(first + i, first + j))

    def _circuit_colour(self, src: int, dst: int) -> str:
        if self.busy is None:
            return CIRCUIT
        rows = self.cluster.circuits.find(np.array([src, dst]), np.array([dst, src]))
        return self.busy.of(self.busy.network.run("circuit").start + rows)

    def _plugs(self, axes: Axes, servers: range) -> None:
        """Fibres from the GPUs with optical NICs to the optical switch."""
        table, lines = self.cluster.circuits, []
        for server in (s for s in self.plan.servers.at if s in servers):
            gpus = np.unique(table.gpu[table.src == server])
            for column in np.unique(gpus[gpus >= 0] % self.columns):
                x = self.gpu_at(server, int(column))
                lines.append([(x, self.floor), (x, self.bottom + self.panel)])
        parts.draw_segments(axes, lines, [self.optical] * len(lines), 1.0)

    # -- words

    def _words(self) -> list[tuple[float, cluster_words.Words]]:
        """What is said, each at the height of what it is about."""
        cluster, busy = self.cluster, self.busy
        found = [(self.floor + self.server_height / 2, cluster_words.servers(cluster, busy))]
        if cluster.regions is not None:
            found.append((self.bottom + self.panel / 2, cluster_words.optics(cluster, busy)))
        for tier in range(self.tiers):
            found.append((self.level(tier) + _SWITCH / 2, cluster_words.switches(cluster, tier)))
            found.append((self.level(tier) - _RISE / 2, cluster_words.links(cluster, tier, busy)))
        if self.tiers:
            found.append((self.level(self.tiers - 1) + _SWITCH + 0.42, cluster_words.unused(cluster)))
        return found


def _segments(axes: Axes, lines: list, colours: list[str]) -> None:
    parts.draw_segments(axes, lines, colours, 0.9 if len(lines) <= 80 else 0.6 if len(lines) <= 200 else 0.4)


def _ellipses(axes: Axes, row: Row, y: float) -> None:
    """Three dots for each run of nodes that is left out."""
    for place, room in row.dots:
        step = min(0.07, room / 4)
        x = [_LEFT + place + k * step for k in (-1, 0, 1)]
        axes.plot(x, [y] * 3, "o", color=style.INK, markersize=min(2.4, 72 * step / 2), markeredgewidth=0, zorder=5)


def _write(axes: Axes, left: float, y: float, words: cluster_words.Words) -> None:
    """Words centred at a height, a bold line first."""
    head, lines = words
    y += (0.17 * bool(head) + 0.145 * len(lines)) / 2
    if head:
        axes.text(left, y, head, va="top", fontsize=style.FONT - 0.5, fontweight="bold")
        y -= 0.17
    for number, line in enumerate(lines):
        axes.text(left, y - 0.145 * number, line, va="top", fontsize=style.FONT - 1.5, color="#444444")
