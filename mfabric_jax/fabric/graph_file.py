"""The graph of a file as a cluster: its GPUs, servers and NICs, and who forwards.

Ranks are on the gpu (or host) nodes in their order, or as the file `network.on-graph.ranks` says. The GPUs at one
NVSwitch are a server; without NVSwitches each GPU is one. A NIC is a GPU's widest non-NVLink link; if
`network.nic_gbps` is k times that width, k such links form one NIC. Parts are counted from links: a link has a
transceiver at each end, a port at a switch and a NIC at a server. Links inside servers cost nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from mfabric_jax import units
from mfabric_jax.case.network import Network as NetworkSettings
from mfabric_jax.checks import InputError, Misfit
from mfabric_jax.fabric.cost import Attachment
from mfabric_jax.fabric.graph import endpoints
from mfabric_jax.fabric.graphs.files import graph_files, read_graph
from mfabric_jax.fabric.network import FabricGraph
from mfabric_jax.fabric.rank_files import gpus_in
from mfabric_jax.fabric.relays import Relays, relays_of
from mfabric_jax.support.loops import at_first_call
from mfabric_jax.support.text_files import cached_by_files

_longest_delay = at_first_call("mfabric_jax.fabric.relay_loops:longest_delay")
IN_SERVERS = ("gpu", "host", "nvswitch", "cpu", "port", "pci", "nic")  # kinds of nodes
GBPS_DIGITS = 6


@dataclass(frozen=True, eq=False)
class FileGraph:
    """A graph that was read. As a cache key it is compared by identity, not by its links.

    - `file`: its name; `relays`: who forwards.
    - `nodes` [G]: nodes of the GPUs; `per_server`: GPUs at one NVSwitch.
    - `nic_Bps`: bandwidth of a NIC; `nics`: NICs of a server; `ends`: number of widest links at a GPU.
    - `inside_Bps`: bandwidth of a GPU into its NVSwitch; None: no NVSwitch.
    - `attachment`: parts behind a NIC; `longest`: links from the first GPU to the farthest.
    - `link_delay_s`: delay of the slowest path between servers, over `longest`; None: the file gives no delays.
    """

    file: str
    network: FabricGraph
    relays: Relays
    nodes: np.ndarray
    per_server: int
    nic_Bps: float
    nics: float
    ends: int
    inside_Bps: float | None
    attachment: Attachment
    longest: int
    link_delay_s: float | None


class GraphFile(NamedTuple):
    """Settings of a graph: its `file`, whether GPUs forward (`relay`), the file that gives the GPUs of `ranks`, the
    number of links that a NIC is `split` over, and the links that `failed`."""

    file: str | None
    relay: str = "auto"
    ranks: str | None = None
    split: int = 1
    failed: tuple[int, ...] = ()

    @staticmethod
    def of(network: NetworkSettings) -> GraphFile:
        options = GraphFile(network.graph, network.on_graph.relay, network.on_graph.ranks)
        graph = load_graph(options)
        times = units.gbps(network.nic_gbps) / graph.nic_Bps
        split = max(1, round(times))
        return options._replace(split=split) if np.isclose(times, split) and graph.ends % split == 0 else options


def load_graph(options: GraphFile) -> FileGraph:
    """Return the graph of a file. Raise `InputError` if the file is missing, unreadable or not a cluster."""
    if options.file is None:
        raise InputError("network.fabric graph needs network.graph, the file of the graph.")
    return _load_graph(options.file, options)


@cached_by_files(graph_files, maxsize=4)
def _network(file: str) -> FabricGraph:
    return read_graph(file)


@cached_by_files(lambda file, options: (*graph_files(file), options.ranks), maxsize=32)
def _load_graph(file: str, options: GraphFile) -> FileGraph:
    network = _network(file)
    nodes, kinds = endpoints(network), kinds_of(network)
    if not len(nodes):
        raise InputError(f"network.graph {file!r} has no nodes.")
    per_server = _per_server(file, network, nodes)
    if options.ranks is not None:
        nodes = nodes[gpus_in(options.ranks, len(nodes), len(nodes))]
        _check_servers(options, network, nodes, per_server)
    tail, head = kinds[network.tail], kinds[network.head]
    leaves = np.isin(network.tail, nodes) & (head != "nvswitch") & (network.capacity > 0)
    outside = np.isin(tail, IN_SERVERS) != np.isin(head, IN_SERVERS)  # to or from switches
    direct = np.isin(tail, ("gpu", "host")) & np.isin(head, ("gpu", "host")) & (_link_kinds(network) != "nvlink")
    between = ~np.isin(tail, IN_SERVERS) & ~np.isin(head, IN_SERVERS)
    ends = leaves & (outside | direct)
    ends = ends if ends.any() else outside
    if not np.any(ends):
        raise InputError(f"network.graph {file!r} has no links that leave its servers.")
    widest = float(network.capacity[ends].max())
    many = int(np.bincount(network.tail[leaves & np.isclose(network.capacity, widest)], minlength=1).max())
    nic_Bps = widest * options.split
    widths = [float(network.capacity[some].sum() / nic_Bps / 2) for some in (outside, direct, between)]
    nics = (widths[0] + 2 * widths[1]) * per_server / len(nodes)
    up = np.isin(network.tail, nodes) & (head == "nvswitch")
    inside_Bps = float(network.capacity[up].sum() / len(nodes)) if up.any() else None
    network = network.without(np.array(options.failed, np.int64)) if options.failed else network
    relays = relays_of(network, options.relay)
    longest = _most_hops(network, nodes[0], nodes, relays.forward)
    parts, delay_s = _attachment(*widths), _delay_s(network, nodes, per_server, longest, relays.forward)
    return FileGraph(file, network, relays, nodes, per_server, nic_Bps, nics, many, inside_Bps, parts, longest, delay_s)


def _attachment(outside: float, direct: float, between: float) -> Attachment:
    """Parts behind one NIC, from the widths in NICs of links to switches, between GPUs and between switches."""
    nics, links = outside + 2 * direct, outside + direct + between
    by_kind = (("nic-link", outside / nics), ("link", (direct + between) / nics))
    return Attachment((outside + 2 * between) / nics, 2 * links / nics, links / nics, links=by_kind)


def kinds_of(network: FabricGraph) -> np.ndarray:
    """Kind of every node [N]."""
    return np.repeat([kind for kind, _ in network.nodes], [count for _, count in network.nodes])


def _link_kinds(network: FabricGraph) -> np.ndarray:
    return np.repeat([kind for kind, _ in network.links], [count for _, count in network.links])


def _per_server(file: str, network: FabricGraph, nodes: np.ndarray) -> int:
    """GPUs at one NVSwitch; 1 without NVSwitches. Raise `InputError` unless all have equal runs of GPUs."""
    kinds = kinds_of(network)
    up = np.isin(network.tail, nodes) & (kinds[network.head] == "nvswitch")
    if not up.any():
        return 1
    switch = _switch_of(network, up)[nodes]
    cuts = np.flatnonzero(np.diff(switch)) + 1
    each = int(cuts[0]) if len(cuts) else len(nodes)
    if len(nodes) % each or (switch.reshape(-1, each) != switch[::each, None]).any() or (switch < 0).any():
        raise InputError(f"network.graph {file!r} must have equally many consecutive GPUs at every nvswitch.")
    return each


def _switch_of(network: FabricGraph, up: np.ndarray) -> np.ndarray:
    """The first NVSwitch at the other end of links `up`, of every node [N]; -1: none."""
    first = np.full(network.size, -1)
    first[network.tail[up][::-1]] = network.head[up][::-1]
    return first


def _check_servers(options: GraphFile, network: FabricGraph, nodes: np.ndarray, per_server: int) -> None:
    """Raise `InputError` if the ranks of a server are on GPUs of several NVSwitches."""
    up = np.isin(network.tail, nodes) & (kinds_of(network)[network.head] == "nvswitch")
    switch = _switch_of(network, up)[nodes].reshape(-1, per_server)
    apart = np.argwhere(switch != switch[:, :1])
    if len(apart):
        server, offset = (int(x) for x in apart[0])
        raise InputError(
            f"network.on-graph.ranks must keep the {per_server} ranks of each server on the GPUs of one nvswitch, but "
            f"{options.ranks!r} has ranks {server * per_server} and {server * per_server + offset} on two."
        )


def check_rate(options: GraphFile, nic_gbps: Any) -> None:
    """Raise `Misfit` if a bandwidth differs from the graph's NICs."""
    graph = load_graph(options)
    own = round(units.to_gbps(graph.nic_Bps), GBPS_DIGITS)
    others = np.atleast_1d(nic_gbps)[~np.isclose(np.atleast_1d(nic_gbps), own)]
    if len(others):
        several = f" (or a multiple, with several of a GPU's {graph.ends} links as one NIC)" if graph.ends > 1 else ""
        raise Misfit(
            f"network.nic_gbps must be {own:g}{several}, the bandwidth of the NICs of {options.file!r}, got "
            f"{others[0]:g}."
        )


def _most_hops(network: FabricGraph, start: int, ends: np.ndarray, forward: np.ndarray) -> int:
    """Links from node `start` to the farthest of `ends` that it reaches over nodes that `forward`."""
    hops = np.full(network.size, -1)
    hops[start], there = 0, network.capacity > 0
    while True:
        last = (hops == hops.max()) & (forward | (hops == 0))
        fresh = there & last[network.tail] & (hops[network.head] < 0)
        if not fresh.any():
            return int(hops[ends].max())
        hops[network.head[fresh]] = hops.max() + 1


def _delay_s(
    network: FabricGraph, nodes: np.ndarray, per_server: int, longest: int, forward: np.ndarray
) -> float | None:
    """Largest delay of a shortest path between GPUs of two servers, over `longest` links; None: no delays are given."""
    usable = np.flatnonzero(network.capacity > 0)
    delays = np.unique(network.delay_s[usable])
    if len(delays) < 2:
        return float(delays[0]) if delays.any() else None
    server = np.full(network.size, -1)
    server[nodes] = np.arange(len(nodes)) // per_server
    order = usable[np.argsort(network.tail[usable], kind="stable")]
    first = np.concatenate([[0], np.cumsum(np.bincount(network.tail[usable], minlength=network.size))])
    links = first, order, network.head.astype(np.int64), network.delay_s
    most_s = _longest_delay(nodes.astype(np.int64), server, *links, np.ascontiguousarray(forward))
    return float(most_s) / max(1, longest)
