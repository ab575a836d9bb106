"""A whole cluster as a picture: servers at the bottom, tiers of switches above them, circuits below, counts beside."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mfabric_jax.report import style
from mfabric_jax.report.figures import cluster_layout, parts
from mfabric_jax.report.figures.circuits import CIRCUIT, DETAILED, ring
from mfabric_jax.report.figures.cluster_layout import Row, many, noun
from mfabric_jax.report.figures.networks import build_graph
from mfabric_jax.report.figures.parts import LINK, draw_box, write
from mfabric_jax.report.style import mixed

if TYPE_CHECKING:
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
    """Where everything is, from the bottom up, and how it is drawn."""

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
        self.rows: list[Row] = []  # of switches, from below
        self.edge, self.framed = np.zeros((0, 0), int), False
        if self.tree is not None:
            self.rows = [plan.edges, plan.high, plan.cores][: cluster_layout.climbed(self.tree)]
            self.edge = cluster_layout.edge_table(cluster)
            self.framed = self.tree.parts > 1 or len(self.rows) == 3  # pods or rails are
        self.crest = 0.26 if self.framed and len(self.rows) < 3 else 0.06  # for names of rails, above their switches

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

    def draw(self, title: str) -> Figure:
        words = self._words()
        top = self.level(len(self.rows) - 1) + _SWITCH if self.rows else self.ceiling
        top += 0.62 if self.rows and words[-1][1][1] else self.crest + 0.08
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
        if self.rows:
            self._pods()
            self._nic_links()
        for tier, row in enumerate(self.rows):
            self._switches(tier, row)
        self.axes.text(0, height - 0.17, title, va="top", fontsize=style.FONT + 2, fontweight="bold")
        for y, (head, lines) in words:
            y += (0.17 * bool(head) + 0.145 * len(lines)) / 2  # centred
            self.axes.text(self.plan.width + 0.3, y, head, va="top", fontsize=style.FONT - 0.5, fontweight="bold")
            for number, line in enumerate(lines):
                place = self.plan.width + 0.3, y - 0.17 * bool(head) - 0.145 * number
                self.axes.text(*place, line, va="top", fontsize=style.FONT - 1.5, color="#444444")
        if self.busy is not None:
            parts.bar(figure, _LEFT + max(0.0, self.plan.width / 2 - 1.5), 0.32, min(3.0, self.plan.width))
        return figure

    def _segments(self, lines: list, colours: list[str]) -> None:
        width = 0.9 if len(lines) <= 80 else 0.6 if len(lines) <= 200 else 0.4
        parts.draw_segments(self.axes, lines, colours, width)

    def _ellipses(self, row: Row, y: float) -> None:
        """Three dots for each run of nodes that is left out."""
        for left, right in row.dots:
            step = min(0.07, (right - left) / 4)
            x = (left + right) / 2 + step * np.array([-1, 0, 1])
            small = {"markersize": min(2.4, 36 * step), "markeredgewidth": 0}
            self.axes.plot(x, [y] * 3, "o", color=style.INK, zorder=5, **small)

    def _loaded(self, kind: str, number: int, otherwise: str) -> str:
        """The colour of a link of a kind, up and down: of its load, if loads are shown."""
        return otherwise if self.busy is None else self.busy.pair(f"{kind} up", f"{kind} down", number)

    # -- servers and their NICs

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
        self.axes.bar(middle, 0.11, self.box - 0.06, self.floor + 0.17, color=_NVSWITCH, zorder=4)
        if self.box >= 0.52:
            write(self.axes, middle, self.floor + 0.222, "NVSwitch", 5.5, color="white")
        write(self.axes, middle, self.floor + 0.085, str(server), 7.5)

    def nic_at(self, server: int, nic: int) -> float:
        """Where a NIC on the packet switches leaves its server: above its GPU, or in step where these are many."""
        if self.lines_of_gpus > 1:
            return self.plan.servers.at[server] + self.box * 0.94 * ((nic + 0.5) / self.cluster.nics - 0.5)
        return self.gpu_at(server, int(self.cluster.at_gpu(np.asarray(nic), self.cluster.first_electrical_gpu)))

    def _nic_links(self) -> None:
        cluster, row, nics = self.cluster, self.plan.edges, np.arange(self.cluster.nics)
        hosts = {server: cluster.host(np.full(len(nics), server), nics) for server in self.plan.servers.at}
        every = np.unique(np.concatenate(list(hosts.values())))
        mates = {edge: every[self.tree.edge_of(every) == edge] for edge in row.at}
        lines, colours = [], []
        for server, nic in product(hosts, nics.tolist()):
            edge, port = int(self.edge[server, nic]), int(hosts[server][nic])
            if edge in row.at:
                place = (np.searchsorted(mates[edge], port) + 0.5) / len(mates[edge]) - 0.5
                top = (row.at[edge] + 0.86 * row.width * place, self.level(0))
                lines.append([(self.nic_at(server, nic), self.ceiling), top])
                colours.append(self._loaded("nic", port, RAILS[nic % len(RAILS)] if cluster.rails else LINK))
        self._segments(lines, colours)
        ends = [row.at[edge] + k * 0.25 * row.width for edge in row.at if not len(mates[edge]) for k in (-1, 0, 1)]
        stubs = [[(x, self.level(0)), (x, self.level(0) - 0.14)] for x in ends]  # to servers that are left out
        self._segments(stubs, [style.FAINT] * len(stubs))

    # -- switches

    def _pods(self) -> None:
        """A frame around each pod, or each rail."""
        top, base = self.level(min(len(self.rows), 2) - 1) + _SWITCH, self.level(0) - 0.06
        for pod, left, right in self.plan.pods if self.framed else ():
            rail, width = pod // self.tree.pods_per_part, right - left
            size, pale = (width, top + self.crest - base), mixed(self._rail_colour(rail), 0.9)
            draw_box(self.axes, (left, base), size, pale, "#CFCFCF", z=0.5)
            if len(self.rows) < 3:
                name = f"rail {pod}" if width > 0.37 + 0.06 * (pod > 9) else str(pod)
                write(self.axes, left + width / 2, top + 0.15, name, 8)
            else:
                name = f"rail {rail}, pod {pod}" if self.tree.parts > 1 else f"pod {pod}"
                write(self.axes, left + 0.1, (base + top) / 2, name, 8, rotation=90)

    def _rail_colour(self, rail: int) -> str:
        """Of a separate rail; grey if there is but one tree."""
        return RAILS[rail % len(RAILS)] if self.tree.parts > 1 else "#999999"

    def _switches(self, tier: int, row: Row) -> None:
        """Switches of a tier and their links up."""
        base, digits = self.level(tier), len(f"{max(row.at)}")
        font = min(8.0, 72 * 0.88 * row.width / (0.62 * digits))
        for number, x in row.at.items():
            colour, corner = self._switch_colour(tier, number), (x - row.width / 2, base)
            draw_box(self.axes, corner, (row.width, _SWITCH), mixed(colour, 0.82), colour)
            if font >= 5:
                write(self.axes, x, base + _SWITCH / 2 - 0.01, str(number), font)
        self._ellipses(row, base + _SWITCH / 2)
        lines, colours = [], []
        for low, high in product(row.at, self.rows[tier + 1].at) if tier + 1 < len(self.rows) else ():
            if self._joined(tier, low, high):
                lines.append([(row.at[low], base + _SWITCH), (self.rows[tier + 1].at[high], self.level(tier + 1))])
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
            return self._rail_colour(number // each) if self.cluster.rails and self.tree.parts > 1 else _PACKET
        nics = np.unique(np.nonzero(self.edge == number)[1])
        return RAILS[nics[0] % len(RAILS)] if self.cluster.rails and len(nics) == 1 else _PACKET

    # -- circuits

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

    # -- words

    def _words(self) -> list[tuple[float, cluster_layout.Words]]:
        """What is said, each at the height of what it is about."""
        cluster, busy = self.cluster, self.busy
        found = [(self.floor + self.server_height / 2, cluster_layout.servers(cluster, busy))]
        if cluster.regions is not None:
            found.append((self.bottom + self.panel / 2, cluster_layout.optics(cluster, busy)))
        for tier in range(len(self.rows)):
            found.append((self.level(tier) + _SWITCH / 2, cluster_layout.switches(cluster, tier)))
            found.append((self.level(tier) - _RISE / 2, cluster_layout.links(cluster, tier, busy)))
        if self.rows:
            found.append((self.level(len(self.rows) - 1) + _SWITCH + 0.42, cluster_layout.unused(cluster)))
        return found
