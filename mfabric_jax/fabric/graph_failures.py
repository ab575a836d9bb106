"""What breaks in a graph: links of a GPU or a switch, after which routes are found anew."""

from __future__ import annotations

import numpy as np

from mfabric_jax.fabric.failures import KINDS, NO_OPTICS, ONE_PLANE, PLANES
from mfabric_jax.fabric.network import Network
from mfabric_jax.fabric.own_graph import IN_SERVERS, GraphFile, OwnGraph, own_graph
from mfabric_jax.fabric.relays import apart

NO_SPARE = "a graph has no spare server"
NO_SWITCH = "it has no switch behind its NICs"
NO_LINK = "no other link leads on from there"
NO_NVSWITCH = "it has no nvswitch"
NO_NAMES = "a graph does not say which of its switches are a plane"
FOUND = ("electrical-nic", "electrical-nics", "link", "switch")


def lacking(asked: GraphFile, gpu: int = 0) -> dict[str, str]:
    """Failures at a GPU that a graph cannot have: {kind: reason}."""
    lacks = dict.fromkeys(("gpu", "server"), NO_SPARE)
    lacks |= dict.fromkeys(PLANES, ONE_PLANE) if asked.split == 1 else {"plane": NO_NAMES}
    lacks |= dict.fromkeys(("optical-nic", "optical-switch", "controller"), NO_OPTICS)
    lacks |= {} if own_graph(asked).per_server > 1 else {"nvswitch": NO_NVSWITCH}
    for kind in (*FOUND, *(("plane-link",) if asked.split > 1 else ())):
        why = _refusal(asked, kind, gpu)
        lacks |= {} if why is None else {kind: why}
    return {kind: lacks[kind] for kind in KINDS if kind in lacks}


def broken_links(asked: GraphFile, kind: str, gpu: int) -> tuple[int, ...]:
    """Links that fail, in both directions: of a GPU's NIC (`electrical-nic`), one of several that it is split over
    (`plane-link`), or all NICs of its server; the first that
    leads on from the switch behind it, or without switches the first to another GPU (`link`); all of that `switch`, or
    where it would cut GPUs off, of the first switch behind it from which it does not. Empty: there is no such thing."""
    graph = own_graph(asked)
    outside = _outside(graph)
    node = graph.nodes[gpu]
    mine = np.flatnonzero(outside & (graph.network.tail == node))
    widest = mine[np.argsort(-graph.network.capacity[mine], kind="stable")]
    if kind == "electrical-nic":
        return _both(graph.network, widest[: asked.split])
    if kind == "plane-link":
        return _both(graph.network, widest[:1])
    if kind == "electrical-nics":
        server = gpu // graph.per_server * graph.per_server
        nodes = graph.nodes[server : server + graph.per_server]
        return _both(graph.network, np.flatnonzero(outside & np.isin(graph.network.tail, nodes)))
    if not len(widest):
        return ()
    switch = graph.network.head[widest[0]]
    onward = np.flatnonzero(_usable(graph.network) & (graph.network.tail == switch))
    onward = onward[~np.isin(graph.network.head[onward], graph.nodes)]
    if kind == "link":
        return _both(graph.network, widest[:1] if switch in graph.nodes else onward[:1])
    if switch in graph.nodes:
        return ()
    every = [_of_switch(graph.network, int(one)) for one in (switch, *graph.network.head[onward])]
    return next((links for links in every if not _cut(asked, links)), every[0])


def graph_devices(asked: GraphFile, nvswitches: int) -> dict[str, int]:
    """Number of devices by the kind of failure that they may have."""
    graph = own_graph(asked)
    outside, network = _outside(graph), graph.network
    kinds = np.repeat([kind for kind, _ in network.nodes], [count for _, count in network.nodes])
    inner = ~np.isin(kinds, IN_SERVERS)
    between = _usable(network) & inner[network.tail] & inner[network.head]
    links = between if between.any() else outside
    nics, servers = round(graph.nics * len(graph.nodes) / graph.per_server), len(graph.nodes) // graph.per_server
    found = {
        "plane-link": nics * asked.split,
        "electrical-nic": nics,
        "electrical-nics": servers,
        "link": int(links.sum()) // 2,
    }
    return found | {"switch": int(inner.sum()), "nvswitch": servers * nvswitches}


def _refusal(asked: GraphFile, kind: str, gpu: int) -> str | None:
    links = broken_links(asked, kind, gpu)
    if not links:
        return NO_LINK if kind == "link" else NO_SWITCH
    names = _cut(asked, links)
    return "then {} reaches {} in no way".format(*names) if names else None


def _cut(asked: GraphFile, links: tuple[int, ...]) -> tuple[str, str] | None:
    """Two GPUs, the first of which cannot reach the other without some links."""
    graph = own_graph(asked)
    network = graph.network.without(np.array(links, np.int64))
    end = np.zeros(network.size, bool)
    if asked.relay == "no":
        end[graph.nodes] = True
        lost = apart(network, end)
    else:
        lost = _unreached(network, graph.nodes)
    return None if lost[0] < 0 else (network.node_name(int(lost[0])), network.node_name(int(lost[1])))


def _unreached(network: Network, nodes: np.ndarray) -> tuple[int, int]:
    """A GPU that the first does not reach, or that does not reach the first, if all nodes forward."""
    for tail, head in ((network.tail, network.head), (network.head, network.tail)):
        seen, there = np.zeros(network.size, bool), network.capacity > 0
        seen[nodes[0]] = True
        while (fresh := there & seen[tail] & ~seen[head]).any():
            seen[head[fresh]] = True
        if not seen[nodes].all():
            other = nodes[~seen[nodes]][0]
            return (nodes[0], other) if tail is network.tail else (other, nodes[0])
    return -1, -1


def _usable(network: Network) -> np.ndarray:
    return network.capacity > 0


def _outside(graph: OwnGraph) -> np.ndarray:
    """Usable links that leave GPUs but for NVLinks [L]."""
    network = graph.network
    kinds = np.repeat([kind for kind, _ in network.nodes], [count for _, count in network.nodes])
    links = np.repeat([kind for kind, _ in network.links], [count for _, count in network.links])
    leaves = np.isin(network.tail, graph.nodes) & ~np.isin(kinds[network.head], ("nvswitch", "cpu", "pci"))
    return leaves & (links != "nvlink") & _usable(network)


def _of_switch(network: Network, switch: int) -> tuple[int, ...]:
    return tuple(np.flatnonzero((network.tail == switch) | (network.head == switch)).tolist())


def _both(network: Network, links: np.ndarray) -> tuple[int, ...]:
    """Links and, for each, the first the other way."""
    found = list(links)
    for link in links:
        back = np.flatnonzero((network.tail == network.head[link]) & (network.head == network.tail[link]))
        found += [one for one in back if one not in found][:1]
    return tuple(sorted(int(link) for link in found))
