"""Components of infragraph as nodes of a graph: which are GPUs, what belongs to a server, and what is part of a switch.

- In an instance with xpus, a server: xpu -> gpu, cpu -> cpu, nic -> nic, port and memory -> port; switch and custom ->
  pci, or nvswitch if they are linked to two or more xpus of the instance and to nothing else.
- In an instance without xpus every component is a switch, whatever its choice: ASICs of switches are called cpu or
  custom. A port or NIC there with one link inwards and one outwards is part of the outer link, which takes the smaller
  bandwidth and both delays; one without a link outwards is left out.
- GPUs of one nvswitch that share a pci switch, CPU or NIC are each behind a port, so that the nvswitch is the shorter
  path between them, as in `nccl`.
"""

from collections import Counter, defaultdict
from typing import NamedTuple

from mfabric_jax import units
from mfabric_jax.checks import InputError
from mfabric_jax.fabric.graphs.data import MOST_LINKS, GraphData, check_many
from mfabric_jax.support.unread import say_unread

INSIDE_GBps = 5000.0  # of a link in a switch that has no bandwidth, as `nccl.LOCAL`
KINDS = {"xpu": "gpu", "cpu": "cpu", "nic": "nic", "port": "port", "memory": "port", "switch": "pci", "custom": "pci"}
PORTS = ("port", "nic")
MOST_NAMED = 8


class Link(NamedTuple):
    """A link of a file: its `name`, what messages call it (`label`), its rate in bytes/s (None: not known), its delay,
    and the transfers per second that are stated instead of a rate."""

    name: str
    label: str
    Bps: float | None
    delay_s: float
    transfers: str


class _Edge(NamedTuple):
    first: str
    other: str
    name: str
    Bps: float
    delay_s: float


class Components:
    """Components by name, their instances, and the links that join them."""

    def __init__(self):
        self._choice: dict[str, str] = {}
        self._instance: dict[str, str] = {}
        self._links: dict[tuple[str, str], Link] = {}

    def add(self, name: str, choice: str, instance: str) -> None:
        if name in self._choice:
            raise InputError(f"two components are called {name!r}; every component needs a unique name.")
        self._choice[name], self._instance[name] = choice, instance

    def join(self, first: str, other: str, link: Link) -> None:
        """Join two components. Raise `InputError` if another link joins them, or there are too many."""
        pair = (first, other) if first <= other else (other, first)
        check_many("links", len(self._links) + 1, MOST_LINKS)
        if self._links.setdefault(pair, link) != link:
            both = " and ".join(repr(each.name) for each in (self._links[pair], link))
            raise InputError(f"{first} and {other} must be joined by one link, got {both}.")

    def graph(self, named: str) -> GraphData:
        """Return the graph; `named`: the file in remarks. Raise `InputError` if a bandwidth is not known."""
        servers = {self._instance[name] for name, choice in self._choice.items() if choice == "xpu"}
        if not servers:
            raise InputError("an instance must have a component of choice xpu, but none has.")
        edges = self._without_ports(self._links_with_rates(servers, named), servers)
        nvswitches = self._nvswitches(edges, servers)
        joined = {end for edge in edges for end in (edge.first, edge.other)}
        graph = GraphData()
        for name, choice in self._choice.items():
            if self._instance[name] in servers:
                graph.node(name, "nvswitch" if name in nvswitches else KINDS[choice])
            elif name in joined:
                graph.node(name, "switch")
        apart = self._apart(edges, nvswitches)
        for edge in edges:
            for gpu, end in ((edge.first, edge.other), (edge.other, edge.first)):
                if (gpu, end) in apart:
                    _hang(graph, gpu, end, edge)
                    break
            else:
                graph.both_ways(edge.first, edge.other, edge.Bps, edge.delay_s, edge.name)
        return graph

    def _links_with_rates(self, servers: set[str], named: str) -> list[_Edge]:
        """The links with their rates. Raise `InputError` with the links whose rates are not known."""
        edges: list[_Edge] = []
        missing, unlimited = dict[str, None](), dict[str, None]()
        for (first, other), link in self._links.items():
            if link.transfers:
                raise InputError(
                    f"{link.label} gives {link.transfers}, but infragraph has no number of lanes: give "
                    "gigabits_per_second or gigabytes_per_second of the whole link."
                )
            if link.Bps is None:
                inside = self._instance[first] == self._instance[other] not in servers
                (unlimited if inside else missing)[link.label] = None
            edges.append(_Edge(first, other, link.name, link.Bps or units.gigabytes_per_s(INSIDE_GBps), link.delay_s))
        if missing:
            raise InputError(
                f"every link that is used must have a physical.bandwidth, but none is in {_list(missing)}."
            )
        if unlimited:
            say_unread(
                f"{named}: in switches a link without bandwidth is taken as {INSIDE_GBps:g} GB/s: {_list(unlimited)}."
            )
        return edges

    def _without_ports(self, edges: list[_Edge], servers: set[str]) -> list[_Edge]:
        """The links without ports of switches: the two links at a port become one, a link to an unused port none."""
        around = defaultdict[str, list[int]](list)
        for nth, edge in enumerate(edges):
            around[edge.first].append(nth)
            around[edge.other].append(nth)
        left: dict[int, _Edge] = dict(enumerate(edges))
        for port, choice in self._choice.items():
            if choice not in PORTS or self._instance[port] in servers:
                continue
            inward = [n for n in around[port] if self._instance[_beyond(left[n], port)] == self._instance[port]]
            if len(inward) != 1 or len(around[port]) > 2:
                continue
            inner = left.pop(inward[0])
            switch = _beyond(inner, port)
            around[switch].remove(inward[0])
            for nth in around.pop(port):
                if nth != inward[0]:
                    outer = left[nth]
                    ends, rate = (_beyond(outer, port), switch), min(inner.Bps, outer.Bps)
                    left[nth] = _Edge(*ends, outer.name, rate, inner.delay_s + outer.delay_s)
                    around[switch].append(nth)
        return list(left.values())

    def _nvswitches(self, edges: list[_Edge], servers: set[str]) -> set[str]:
        """Switches of servers that join xpus of their instance and nothing else."""
        beside = defaultdict[str, list[str]](list)
        for edge in edges:
            beside[edge.first].append(edge.other)
            beside[edge.other].append(edge.first)
        return {
            name
            for name, choice in self._choice.items()
            if choice in ("switch", "custom")
            and self._instance[name] in servers
            and len(beside[name]) > 1
            and all(self._choice[n] == "xpu" and self._instance[n] == self._instance[name] for n in beside[name])
        }

    def _apart(self, edges: list[_Edge], nvswitches: set[str]) -> set[tuple[str, str]]:
        """GPUs of nvswitches, each with a component of its instance that it shares with another of them."""
        ends = [pair for edge in edges for pair in ((edge.first, edge.other), (edge.other, edge.first))]
        of_nvswitch = {gpu for gpu, end in ends if end in nvswitches}
        hung = [
            (gpu, end)
            for gpu, end in ends
            if gpu in of_nvswitch and end not in nvswitches and self._choice[end] != "xpu"
        ]
        shared = Counter(end for _, end in hung)
        return {(gpu, end) for gpu, end in hung if shared[end] > 1 and self._instance[gpu] == self._instance[end]}


def _list(labels: dict[str, None]) -> str:
    more = f" and {len(labels) - MOST_NAMED} more" if len(labels) > MOST_NAMED else ""
    return ", ".join(list(labels)[:MOST_NAMED]) + more


def _beyond(edge: _Edge, end: str) -> str:
    return edge.other if edge.first == end else edge.first


def _hang(graph: GraphData, gpu: str, end: str, edge: _Edge) -> None:
    """Link a GPU to what it shares, through a separate port."""
    port = graph.node(f"{gpu} {edge.name} port of {end}", "port")
    graph.both_ways(end, port, edge.Bps, edge.delay_s, edge.name)
    graph.both_ways(port, gpu, edge.Bps, 0.0, edge.name)
