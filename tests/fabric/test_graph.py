"""Graphs as node-link JSON: exact round trips, what networkx makes of them, and what is refused in which words."""

import dataclasses
import json

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from mfabric_jax.fabric.graph import endpoints, graph_of, graph_text
from mfabric_jax.fabric.network import FabricGraph
from tests.mistakes import refused

GBPS = 0.125e9  # bytes/s


def equal(one, other):
    """Every field, numbers to the last bit."""
    fields = ("tail", "head", "capacity", "delay_s")
    same = all(np.array_equal(getattr(one, field), getattr(other, field)) for field in fields)
    return same and (one.nodes, one.links, one.names) == (other.nodes, other.links, other.names)


def two():
    """Two GPUs and the switch between them, undirected."""
    return {
        "directed": False,
        "nodes": [{"id": "s", "kind": "switch"}, {"id": "a", "kind": "gpu"}, {"id": "b", "kind": "gpu"}],
        "links": [
            {"source": "a", "target": "s", "capacity_gbps": 400, "latency_s": 1e-6},
            {"source": "s", "target": "b", "capacity_bytes_per_s": 7.5},
        ],
    }


NUMBERS = st.just(0.0) | st.floats(1, 1e9)


@st.composite
def networks(draw):
    """Any network: named or not, kinds in runs, parallel links, failed ones."""
    kinds = st.lists(st.text(min_size=1, max_size=3), min_size=1, max_size=3, unique=True)
    nodes = tuple((kind, draw(st.integers(1, 4))) for kind in draw(kinds))
    links = tuple((kind, draw(st.integers(1, 5))) for kind in draw(st.one_of(st.just([]), kinds)))
    size = sum(n for _, n in nodes)
    links = links if size > 1 else ()
    count = sum(n for _, n in links)
    tails = draw(st.lists(st.integers(0, size - 1), min_size=count, max_size=count))
    further = draw(st.lists(st.integers(1, max(1, size - 1)), min_size=count, max_size=count))
    ends = [*tails, *((tail + more) % size for tail, more in zip(tails, further, strict=True))]
    amounts = draw(st.lists(NUMBERS, min_size=2 * count, max_size=2 * count))
    names = draw(st.none() | st.lists(st.text(max_size=4), min_size=size, max_size=size, unique=True).map(tuple))
    return FabricGraph(
        *np.array(ends, np.int64).reshape(2, count), *np.array(amounts, float).reshape(2, count), nodes, links, names
    )


@given(networks())
def test_a_network_survives_its_text(network):
    back = graph_of(json.loads(graph_text(network)))
    if network.names is not None and back.names is None:  # the names that were given were the usual ones
        assert network.names == tuple(back.node_name(node) for node in range(back.size))
        back = dataclasses.replace(back, names=network.names)
    assert equal(back, network)


def directed_links(graph):
    """(tail, head, capacity, latency, kind) of a networkx graph by name, sorted."""
    return sorted(
        (tail, head, link["capacity_bytes_per_s"], link["latency_s"], link["kind"])
        for tail, head, link in graph.edges(data=True)
    )


def links_of(network):
    tail, head = ([network.node_name(node) for node in ends.tolist()] for ends in (network.tail, network.head))
    kinds = [network.links[kind][0] for kind in network.kind_of_links()]
    return sorted(zip(tail, head, network.capacity.tolist(), network.delay_s.tolist(), kinds, strict=True))


@given(networks())
def test_networkx_reads_what_is_written_and_writes_what_is_read(network):
    networkx = pytest.importorskip("networkx")
    graph = networkx.node_link_graph(json.loads(graph_text(network)), edges="edges")
    assert graph.is_directed()
    assert graph.is_multigraph() == (len(set(zip(network.tail, network.head, strict=True))) < len(network.tail))
    names = [network.node_name(node) for node in range(network.size)]
    kinds = [kind for kind, count in network.nodes for _ in range(count)]
    assert list(graph.nodes(data="kind")) == list(zip(names, kinds, strict=True))
    assert directed_links(graph) == links_of(network)
    for edges in ("edges", "links"):
        back = graph_of(json.loads(json.dumps(networkx.node_link_data(graph, edges=edges))))
        assert (back.nodes, [back.node_name(node) for node in range(back.size)]) == (network.nodes, names)
        assert links_of(back) == links_of(network)


def test_a_graph_of_networkx_with_tuples_as_nodes():
    networkx = pytest.importorskip("networkx")
    grid = networkx.grid_2d_graph(2, 3)
    networkx.set_edge_attributes(grid, 100.0, "capacity_gbps")
    network = graph_of(networkx.node_link_data(grid, edges="edges"))
    assert network.names == ("[0, 0]", "[0, 1]", "[0, 2]", "[1, 0]", "[1, 1]", "[1, 2]")
    assert (len(network.tail), set(network.capacity)) == (14, {100 * GBPS})


def test_undirected_by_hand():
    network = graph_of(two())
    assert network.nodes == (("switch", 1), ("gpu", 2))
    assert (network.names, network.links) == (("s", "a", "b"), (("link", 4),))
    assert network.tail.tolist() == [1, 0, 0, 2]
    assert network.head.tolist() == [0, 1, 2, 0]
    assert network.capacity.tolist() == [400 * GBPS, 400 * GBPS, 7.5, 7.5]
    assert network.delay_s.tolist() == [1e-6, 1e-6, 0, 0]
    assert network.link_name(0) == "a -> s"


def test_directed_links_have_one_direction_and_kinds_are_grouped():
    data = two() | {"directed": True}
    data["nodes"] = [{"id": 7}, {"id": "x", "kind": "host"}, {"id": [1, "y"]}]
    links = [("x", 7, "up", 1), (7, "x", "down", 2), ([1, "y"], "x", "up", 0), (7, "x", "down", 2)]
    data["links"] = [dict(zip(("source", "target", "kind", "capacity_gbps"), link, strict=True)) for link in links]
    network = graph_of(data)
    assert network.names == ("7", '[1, "y"]', "x")
    assert (network.nodes, network.links) == ((("node", 2), ("host", 1)), (("up", 2), ("down", 2)))
    assert network.tail.tolist() == [2, 1, 0, 0]
    assert network.head.tolist() == [0, 2, 2, 2]
    assert network.capacity.tolist() == [GBPS, 0, 2 * GBPS, 2 * GBPS]


def test_endpoints_and_an_empty_graph():
    for kinds, expected in [
        (["switch", "gpu", "host", "gpu"], [1, 2, 3]),
        (["host", "switch", "host", "nvswitch"], [0, 1]),
        (["switch", None, "switch", None], [0, 1, 2, 3]),
    ]:
        nodes = [{"id": n} | ({"kind": kind} if kind else {}) for n, kind in enumerate(kinds)]
        assert endpoints(graph_of({"directed": True, "nodes": nodes, "edges": []})).tolist() == expected
    empty = graph_of({"directed": True, "nodes": [], "edges": []})
    assert (empty.size, len(empty.tail), endpoints(empty).size) == (0, 0, 0)
    assert equal(graph_of(json.loads(graph_text(empty))), empty)


def test_multigraph_false_has_no_parallel_links():
    data = two() | {"multigraph": False}
    graph_of(data)
    data["links"].append({"source": "s", "target": "a", "capacity_gbps": 1})
    assert "link 2 (s -> a) appears twice; parallel links need multigraph true" in refused(graph_of, data)
    assert len(graph_of(data | {"directed": True}).tail) == 3  # there and back are two links
    assert len(graph_of(data | {"multigraph": True}).tail) == 6
