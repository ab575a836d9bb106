"""Read and write graphs of nodes and links as the node-link JSON of networkx (which need not be installed).

`{"directed": bool, "nodes": [{"id", "kind"}], "edges": [{"source", "target", "capacity_bytes_per_s", "latency_s"}]}`.
Also accepted: `links` for `edges` (networkx before 3.4), `capacity_gbps`. Optional, with these defaults: `kind`
("node", "link"), `latency_s` (0). Source: networkx.readwrite.json_graph.node_link of networkx 3.6.
"""

import json
from collections.abc import Iterable
from itertools import chain
from typing import Any

import numpy as np

from mfabric_jax.checks import InputError, not_negative, number, one_of
from mfabric_jax.fabric.network import FabricGraph
from mfabric_jax.units import gbps

ENDPOINTS = ("gpu", "host")
NODE_FIELDS = ("id", "kind")
LINK_FIELDS = ("source", "target", "capacity_bytes_per_s", "capacity_gbps", "latency_s", "kind", "key")
GRAPH_FIELDS = ("directed", "multigraph", "graph", "nodes", "edges", "links")
UNITS = "capacity_bytes_per_s or capacity_gbps"


def graph_of(data: dict[str, Any]) -> FabricGraph:
    """Return the network of node-link data, as `networkx.node_link_data` gives it.

    Nodes and links are grouped by kind in order of first appearance. Ids become names. An undirected link becomes two,
    each with the full capacity and latency. `"multigraph": false` forbids parallel links. Raise `InputError` with the
    wrong node, link or field.
    """
    if not isinstance(data, dict):
        raise InputError(f"a graph must be an object with nodes and edges, got {data!r}.")
    for field in data:
        one_of("field of the graph", field, GRAPH_FIELDS)
    directed, multigraph = _flag(data, "directed"), _flag({"multigraph": True} | data, "multigraph")
    names, nodes = _nodes(_entries(data, "nodes"))
    numbers = _number_nodes(names)
    links = [_link(nth, entry, numbers) for nth, entry in enumerate(_entries(data, "edges", "links"))]
    if not multigraph:
        _check_single(links, names, directed)
    if not directed:
        links = list(chain.from_iterable((link, (link[1], link[0], *link[2:])) for link in links))
    order, runs = _group_by_kind([link[4] for link in links])
    tail, head = (np.array([link[end] for link in links], np.int64)[order] for end in (0, 1))
    capacity, delay_s = (np.array([link[column] for link in links], float)[order] for column in (2, 3))
    network = FabricGraph(tail, head, capacity, delay_s, nodes, runs)
    usual = all(name == network.node_name(node) for node, name in enumerate(names))
    return network if usual else FabricGraph(tail, head, capacity, delay_s, nodes, runs, names)


def graph_text(network: FabricGraph) -> str:
    """Return the network as node-link JSON, readable by `graph_of` and `networkx.node_link_graph`.

    Raise `InputError` for duplicate node names, a link from a node to itself, or an infinite number.
    """
    names = [network.node_name(node) for node in range(network.size)]
    _number_nodes(names)
    for field in ("capacity", "delay_s"):
        not_negative(field, getattr(network, field))
    if np.any(own := network.tail == network.head):
        raise InputError(f"no link may join a node to itself, as link {np.argmax(own)} does.")
    pairs = set(zip(network.tail.tolist(), network.head.tolist(), strict=True))
    data = {
        "directed": True,
        "multigraph": len(pairs) < len(network.tail),
        "graph": {},
        "nodes": [{"id": name, "kind": kind} for name, kind in zip(names, _kinds(network.nodes), strict=True)],
        "edges": [
            {"source": names[tail], "target": names[head], "capacity_bytes_per_s": rate, "latency_s": s, "kind": kind}
            for tail, head, rate, s, kind in zip(
                *(getattr(network, field).tolist() for field in ("tail", "head", "capacity", "delay_s")),
                _kinds(network.links),
                strict=True,
            )
        ],
    }
    return json.dumps(data, indent=1) + "\n"


def endpoints(network: FabricGraph) -> np.ndarray:
    """Return the nodes [E] where flows start and end: nodes of kind gpu or host, or all nodes if there are none."""
    named = np.array([kind in ENDPOINTS for kind in _kinds(network.nodes)], bool)
    return np.flatnonzero(named if named.any() else ~named)


def _kinds(runs: tuple[tuple[str, int], ...]) -> Iterable[str]:
    return chain.from_iterable([kind] * count for kind, count in runs)


def _flag(data: dict, field: str) -> bool:
    if not isinstance(data.get(field), bool):
        problem = f"got {data[field]!r}" if field in data else "but it is missing"
        raise InputError(f"{field} must be true or false, {problem}.")
    return data[field]


def _entries(data: dict, *fields: str) -> list[dict]:
    there = [field for field in fields if field in data]
    if len(there) != 1:
        raise InputError(f"a graph must have {' or '.join(fields)}, got {'both' if there else list(data)}.")
    entries = data[there[0]]
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise InputError(f"{there[0]} must be a list of objects.")
    return entries


def _name(field: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float | list | tuple):
        raise InputError(f"{field} must be text, a number or a list of them, got {value!r}.")
    return json.dumps(value)


def _require_fields(label: str, entry: dict, *fields: str) -> None:
    for field in fields:
        if field not in entry:
            raise InputError(f"{label} has no {field}.")


def _kind(label: str, entry: dict, default: str) -> str:
    kind = entry.get("kind", default)
    if not isinstance(kind, str) or not kind:
        raise InputError(f"kind of {label} must be a word, got {kind!r}.")
    return kind


def _nodes(entries: list[dict]) -> tuple[tuple[str, ...], tuple[tuple[str, int], ...]]:
    names, kinds = [], []
    for nth, entry in enumerate(entries):
        _require_fields(f"node {nth}", entry, "id")
        names.append(_name(f"id of node {nth}", entry["id"]))
        label = f"node {nth} ({names[-1]})"
        for field in entry:
            one_of(f"field of {label}", field, NODE_FIELDS)
        kinds.append(kind := _kind(label, entry, "node"))
        meant = kind.strip().lower().removesuffix("s")
        if meant in ENDPOINTS and kind != meant:
            raise InputError(f"kind of {label} must be {meant!r} if flows start and end there, got {kind!r}.")
    order, runs = _group_by_kind(kinds)
    return tuple(names[node] for node in order), runs


def _number_nodes(names: Iterable[str]) -> dict[str, int]:
    numbers: dict[str, int] = {}
    for nth, name in enumerate(names):
        if numbers.setdefault(name, nth) != nth:
            raise InputError(f"id of a node must be unique, but two nodes are called {name!r}.")
    return numbers


def _link(nth: int, entry: dict, nodes: dict[str, int]) -> tuple[int, int, float, float, str]:
    _require_fields(f"link {nth}", entry, "source", "target")
    source, target = (_name(f"{end} of link {nth}", entry[end]) for end in ("source", "target"))
    label = f"link {nth} ({source} -> {target})"
    for end in (source, target):
        if end not in nodes:
            raise InputError(f"{label} names a node that is not in nodes: {end!r}.")
    if source == target:
        raise InputError(f"{label} joins a node to itself; its source and its target must differ.")
    if "capacity" in entry:
        raise InputError(f"{label}: capacity has no unit; give {UNITS}.")
    for field in entry:
        one_of(f"field of {label}", field, LINK_FIELDS)
    latency = _amount(label, "latency_s", {"latency_s": 0.0} | entry)
    return nodes[source], nodes[target], _capacity(label, entry), latency, _kind(label, entry, "link")


def _capacity(label: str, entry: dict) -> float:
    there = [field for field in ("capacity_bytes_per_s", "capacity_gbps") if field in entry]
    if len(there) != 1:
        raise InputError(f"{label} must have {UNITS}, got {'both' if there else 'neither'}.")
    value = _amount(label, there[0], entry)
    return gbps(value) if there[0] == "capacity_gbps" else value


def _amount(label: str, field: str, entry: dict) -> float:
    name = f"{field} of {label}"
    return float(not_negative(name, number(name, entry[field])))


def _check_single(links: list[tuple], names: tuple[str, ...], directed: bool) -> None:
    seen = set()
    for nth, (tail, head, *_) in enumerate(links):
        pair = (tail, head) if directed else (min(tail, head), max(tail, head))
        if pair in seen:
            label = f"link {nth} ({names[tail]} -> {names[head]})"
            raise InputError(f"{label} appears twice; parallel links need multigraph true.")
        seen.add(pair)


def _group_by_kind(kinds: list[str]) -> tuple[np.ndarray, tuple[tuple[str, int], ...]]:
    kind_index = {kind: number for number, kind in enumerate(dict.fromkeys(kinds))}
    number = np.array([kind_index[kind] for kind in kinds], np.int64)
    counts = np.bincount(number, minlength=len(kind_index)).tolist()
    return np.argsort(number, kind="stable"), tuple(zip(kind_index, counts, strict=True))
