"""Failures in a graph: links of a GPU or of a switch fail, and paths are computed again."""

from __future__ import annotations

import numpy as np

from mfabric_jax.fabric.failures import KINDS, NO_OPTICS, ONE_PLANE, PLANES
from mfabric_jax.fabric.graph_file import IN_SERVERS, FileGraph, GraphFile, load_graph
from mfabric_jax.fabric.network import FabricGraph
from mfabric_jax.fabric.relays import unreachable_pair

NO_SPARE = "a graph has no spare server, so the job waits for the repair"
NO_SWITCH = "it has no switch behind its NICs"
NO_LINK = "no link leads further from there"
NO_NVSWITCH = "it has no nvswitch"
NO_SPINE = "all of its switches have GPUs behind them"
NO_PATH = "after the failure {} cannot reach {}"
NO_NAMES = "a graph does not say which of its switches form a plane"
OF_LINKS = "a link of its NICs to a switch is a plane-link"


def absent_parts(options: GraphFile, gpu: int = 0) -> dict[str, str]:
    """Return the kinds of failure that a graph lacks at a GPU: {kind: reason}."""
    lacks = dict.fromkeys(PLANES, ONE_PLANE) if options.split == 1 else {"plane": NO_NAMES, "nic-link": OF_LINKS}
    lacks |= dict.fromkeys(("optical-nic", "optical-link", "optical-switch", "controller"), NO_OPTICS)
    lacks |= {} if load_graph(options).per_server > 1 else {"nvswitch": NO_NVSWITCH}
    for kind, why in (("link", NO_LINK), ("spine-link", NO_SPINE), ("switch", NO_SWITCH), ("spine", NO_SPINE)):
        lacks |= {} if broken_links(options, kind, gpu) else {kind: why}
    lacks |= {"nic-link": NO_SWITCH} if "switch" in lacks else {}
    if names := _cut(options, broken_links(options, "electrical-nics", gpu)):  # several NICs at once are not one part
        lacks["electrical-nics"] = NO_PATH.format(*names)
    return {kind: lacks[kind] for kind in KINDS if kind in lacks}


def wait_reason(options: GraphFile, kind: str, gpu: int) -> str | None:
    """Return why the job waits for the repair of a part at a GPU; None: it continues."""
    if kind in ("gpu", "server"):
        return NO_SPARE
    names = _cut(options, broken_links(options, kind, gpu))
    return f"{NO_PATH.format(*names)}, so the job waits for the repair" if names else None


def broken_links(options: GraphFile, kind: str, gpu: int) -> tuple[int, ...]:
    """Return the links that fail, in both directions; empty if the graph has no such part.

    - `electrical-nic`: all links of the GPU's NIC; `plane-link`: one of the links that it is split over.
    - `electrical-nics`: the links of all NICs of its server.
    - `link`: the first link from the NIC's switch to another switch; without switches, the first to another GPU.
    - `switch`: all links of the NIC's switch; `spine`: all links of the first switch next to it without GPUs.
    - `spine-link`: the first link between such a spine and another.
    """
    graph = load_graph(options)
    outside = _outside(graph)
    node = graph.nodes[gpu]
    mine = np.flatnonzero(outside & (graph.network.tail == node))
    widest = mine[np.argsort(-graph.network.capacity[mine], kind="stable")]
    if kind == "electrical-nic":
        return _both(graph.network, widest[: options.split])
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
    if kind == "switch":
        return _of_switch(graph.network, int(switch))
    near = _at_gpus(graph)
    spines = [node for node in graph.network.head[onward] if not near[node]]
    if kind == "spine-link":
        above = _usable(graph.network) & np.isin(graph.network.tail, spines) & ~near[graph.network.head]
        return _both(graph.network, np.flatnonzero(above)[:1])
    return _of_switch(graph.network, int(spines[0])) if spines else ()


def graph_devices(options: GraphFile) -> dict[str, int]:
    """Return the number of parts by the kind of failure that they may have."""
    graph = load_graph(options)
    outside, network = _outside(graph), graph.network
    kinds = np.repeat([kind for kind, _ in network.nodes], [count for _, count in network.nodes])
    inner = ~np.isin(kinds, IN_SERVERS)
    between = _usable(network) & inner[network.tail] & inner[network.head]
    at_gpu, near = np.isin(network.head, graph.nodes), _at_gpus(graph)
    spine_link = between & ~near[network.tail] & ~near[network.head]
    links = (between & ~spine_link) | (outside & at_gpu)
    nics, servers = round(graph.nics * len(graph.nodes) / graph.per_server), len(graph.nodes) // graph.per_server
    counts = {
        "plane-link": nics * options.split,
        "electrical-nic": nics,
        "electrical-nics": servers,
        "nic-link": int((outside & ~at_gpu).sum()),
        "link": int(links.sum()) // 2,
        "spine-link": int(spine_link.sum()) // 2,
        "gpu": len(graph.nodes),
        "server": servers,
    }
    return counts | {"switch": int((inner & near).sum()), "spine": int((inner & ~near).sum())}


def _at_gpus(graph: FileGraph) -> np.ndarray:
    """Mask of the switches with GPUs or servers behind them [N]."""
    near = np.zeros(graph.network.size, bool)
    near[graph.network.head[_outside(graph)]] = True
    near[graph.nodes] = False
    return near


def _cut(options: GraphFile, links: tuple[int, ...]) -> tuple[str, str] | None:
    """A GPU and another that it cannot reach without `links`; None: all reach each other."""
    graph = load_graph(options)
    network = graph.network.without(np.array(links, np.int64))
    end = np.zeros(network.size, bool)
    if options.relay == "no":
        end[graph.nodes] = True
        lost = unreachable_pair(network, end)
    else:
        lost = _pair_cut_off(network, graph.nodes)
    return None if lost[0] < 0 else (network.node_name(int(lost[0])), network.node_name(int(lost[1])))


def _pair_cut_off(network: FabricGraph, nodes: np.ndarray) -> tuple[int, int]:
    """A source and a target GPU without a path although all nodes forward; (-1, -1): none. One is the first GPU."""
    for tail, head in ((network.tail, network.head), (network.head, network.tail)):
        seen, there = np.zeros(network.size, bool), network.capacity > 0
        seen[nodes[0]] = True
        while (fresh := there & seen[tail] & ~seen[head]).any():
            seen[head[fresh]] = True
        if not seen[nodes].all():
            other = nodes[~seen[nodes]][0]
            return (nodes[0], other) if tail is network.tail else (other, nodes[0])
    return -1, -1


def _usable(network: FabricGraph) -> np.ndarray:
    return network.capacity > 0


def _outside(graph: FileGraph) -> np.ndarray:
    """Mask of the usable links that leave GPUs, except NVLinks [L]."""
    network = graph.network
    kinds = np.repeat([kind for kind, _ in network.nodes], [count for _, count in network.nodes])
    links = np.repeat([kind for kind, _ in network.links], [count for _, count in network.links])
    leaves = np.isin(network.tail, graph.nodes) & ~np.isin(kinds[network.head], ("nvswitch", "cpu", "pci"))
    return leaves & (links != "nvlink") & _usable(network)


def _of_switch(network: FabricGraph, switch: int) -> tuple[int, ...]:
    return tuple(np.flatnonzero((network.tail == switch) | (network.head == switch)).tolist())


def _both(network: FabricGraph, links: np.ndarray) -> tuple[int, ...]:
    """Links, and for each the first link in the other direction."""
    both = list(links)
    for link in links:
        back = np.flatnonzero((network.tail == network.head[link]) & (network.head == network.tail[link]))
        both += [reverse for reverse in back if reverse not in both][:1]
    return tuple(sorted(int(link) for link in both))
