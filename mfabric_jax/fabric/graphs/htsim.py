"""The `.topo` files of htsim: fat-trees of two or three tiers of switches.

A file has `key value` lines: Nodes, Tiers, Podsize, then a section for every tier from `Tier 0` (the ToR switches) up.
A section has Downlink_speed_Gbps, Downlink_Latency_ns, Radix_Down and, below the top, Radix_Up; optional are
Oversubscribed (1), Bundle (parallel links, 1), Switch_Latency_ns (0), Queue_Up and Queue_Down (not read). Every ToR
switch links to every aggregation switch of its pod; the a-th aggregation switch of every pod links to the same cores. A
bundle is one link of its summed capacity. The delay of a link is its own latency plus the latency of the switch at its
end. Source: csg-htsim, sim/datacenter/fat_tree_topology.cpp.
"""

from itertools import pairwise
from typing import Any, NamedTuple

from mfabric_jax import units
from mfabric_jax.checks import InputError, one_of
from mfabric_jax.fabric.graphs.data import MOST_LINKS, MOST_NODES, GraphData, check_many, whole_in

HEADER = ("nodes", "tiers", "podsize")
NEEDED = ("downlink_speed_gbps", "downlink_latency_ns", "radix_down")
OPTIONAL = {"oversubscribed": 1, "bundle": 1, "switch_latency_ns": 0, "queue_up": 0, "queue_down": 0}
KEYS = (*HEADER, "tier", *NEEDED, "radix_up", *OPTIONAL)
SWITCHES = ("ToR", "aggregation", "core")
FROM_0 = ("tier", "switch_latency_ns", "queue_up", "queue_down")
Tier = dict[str, int]


class _Sizes(NamedTuple):
    """Numbers of `hosts` and `pods`, of `tors` and `aggs` in a pod, and of `cores` above one aggregation switch."""

    hosts: int
    pods: int
    tors: int
    aggs: int
    cores: int


def graph_data(text: str) -> GraphData:
    """Return the graph of a `.topo` file. Raise `InputError` with the wrong line, key and value."""
    header, tiers = _read(text)
    size = _sizes(header, tiers)
    return _build_graph(size, tiers)


def _read(text: str) -> tuple[dict[str, int], list[Tier]]:
    header: dict[str, int] = {}
    sections: dict[int, Tier] = {}
    into: dict[str, int] = header
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split("#")[0].split()
        if not words:
            continue
        key, value = _pair(f"line {number}", words)
        if key == "tier":
            if value in sections:
                raise InputError(f"line {number}: tier {value} appears twice.")
            into = sections.setdefault(value, {})
            continue
        if (key in HEADER) != (into is header):
            where = "before the first tier" if key in HEADER else "in a tier"
            raise InputError(f"line {number}: {key} must come {where}.")
        if key in into:
            raise InputError(f"line {number}: {key} appears twice.")
        into[key] = value
    return header, _check_tiers(header, sections)


def _pair(label: str, words: list[str]) -> tuple[str, int]:
    key = one_of(f"{label}: key", words[0].lower(), KEYS)
    if len(words) != 2:
        raise InputError(f"{label}: {key} must have one value, got {len(words) - 1}.")
    return key, whole_in(label, key, words[1], 0 if key in FROM_0 else 1, MOST_NODES)


def _check_tiers(header: dict[str, int], sections: dict[int, Tier]) -> list[Tier]:
    for key in HEADER:
        if key not in header:
            raise InputError(f"the header has no {key}; it needs {', '.join(HEADER)}.")
    count = header["tiers"]
    if count not in (2, 3):
        raise InputError(f"tiers must be 2 or 3, got {count}.")
    if sorted(sections) != list(range(count)):
        raise InputError(f"a file of {count} tiers needs tier 0 to {count - 1}, each once, got {sorted(sections)}.")
    for nth in range(count):
        needed = NEEDED if nth == count - 1 else (*NEEDED, "radix_up")
        for key in needed:
            if key not in sections[nth]:
                raise InputError(f"tier {nth} has no {key}; it needs {', '.join(needed)}.")
    if "radix_up" in sections.get(2, {}):
        raise InputError("tier 2 must have no radix_up: nothing is above it.")
    return [OPTIONAL | sections[nth] for nth in range(count)]


def _sizes(header: dict[str, int], tiers: list[Tier]) -> _Sizes:
    hosts, pod = header["nodes"], header["podsize"]
    if len(tiers) == 2 and pod != hosts:
        raise InputError(f"podsize of two tiers must be all {hosts} nodes, as nothing joins pods, got {pod}.")
    pods = _over(hosts, pod, "podsize", "nodes")
    tors = _over(pod, tiers[0]["radix_down"], "tier 0: radix_down", "nodes of a pod")
    if tiers[0]["bundle"] != 1:
        raise InputError(f"tier 0: bundle must be 1, as a host has one link, got {tiers[0]['bundle']}.")
    above = [
        _over(low["radix_up"], high["bundle"], f"tier {nth + 1}: bundle", f"uplinks of a switch of tier {nth}")
        for nth, (low, high) in enumerate(pairwise(tiers))
    ]
    _check_ports(tiers, [tors, pods])
    for nth, (low, high) in enumerate(pairwise(tiers)):
        _check_ratio(nth, low, high)
    return _Sizes(hosts, pods, tors, above[0], above[1] if len(above) > 1 else 0)


def _over(whole: int, part: int, field: str, what: str) -> int:
    if whole % part:
        raise InputError(f"{field} must divide the {whole} {what}, got {part}.")
    return whole // part


def _check_ports(tiers: list[Tier], below: list[int]) -> None:
    """Check that a switch of tier 1 has a bundle to every ToR switch of its pod, one of tier 2 to every pod."""
    for nth, (tier, count) in enumerate(zip(tiers[1:], below, strict=False), 1):
        if tier["radix_down"] != count * tier["bundle"]:
            what = "ToR switches of a pod" if nth == 1 else "pods"
            raise InputError(
                f"tier {nth}: radix_down must be {count * tier['bundle']}, its bundle of {tier['bundle']} to each of "
                f"{count} {what}, got {tier['radix_down']}."
            )


def _check_ratio(nth: int, low: Tier, high: Tier) -> None:
    down, up = low["radix_down"] * low["downlink_speed_gbps"], low["radix_up"] * high["downlink_speed_gbps"]
    if down != up * low["oversubscribed"]:
        raise InputError(
            f"tier {nth}: oversubscribed must be {down / up:g}, {down} Gbps down over {up} Gbps up, got "
            f"{low['oversubscribed']}."
        )


def _build_graph(size: _Sizes, tiers: list[Tier]) -> GraphData:
    links = size.hosts + size.pods * size.aggs * (size.tors + size.cores)
    check_many("links", 2 * links, MOST_LINKS)
    graph = GraphData()
    hosts = graph.nodes("host", size.hosts)
    counts = (size.pods * size.tors, size.pods * size.aggs, size.aggs * size.cores)
    tors, aggs, cores = map(graph.nodes, SWITCHES, counts)
    each = size.hosts // len(tors)
    for n, host in enumerate(hosts):
        _join(graph, host, tors[n // each], tiers, 0)
    for pod in range(size.pods):
        for a in range(size.aggs):
            agg = aggs[pod * size.aggs + a]
            for tor in tors[pod * size.tors : (pod + 1) * size.tors]:
                _join(graph, tor, agg, tiers, 1)
            for core in cores[a * size.cores : (a + 1) * size.cores]:
                _join(graph, agg, core, tiers, 2)
    return graph


def _join(graph: GraphData, low: str, high: str, tiers: list[Tier], nth: int) -> None:
    """Add the bundle below a switch of tier `nth`, in both directions."""
    tier: dict[str, Any] = tiers[nth]
    capacity = units.gbps(tier["downlink_speed_gbps"] * tier["bundle"])
    own, below = tier["downlink_latency_ns"], tiers[nth - 1]["switch_latency_ns"] if nth else 0
    name = ("host", "ToR", "aggregation")[nth]
    graph.one_way(low, high, capacity, units.ns(own + tier["switch_latency_ns"]), f"{name} up")
    graph.one_way(high, low, capacity, units.ns(own + below), f"{name} down")
