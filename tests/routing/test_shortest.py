"""Shortest routes: against recursions over all paths, and laws that every row obeys."""

import itertools

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from mfabric_jax.fabric.network import FabricGraph
from mfabric_jax.fabric.network import network_of as joined
from mfabric_jax.routing.shortest import ROUTINGS, distances, shortest_routes, splitmix64
from tests.mistakes import refused
from tests.oracles.dense import matrix


def network_of(links, size):
    """A network of nodes 0..size - 1 from (tail, head, capacity) rows."""
    tail, head, capacity = np.array(links, float).reshape(-1, 3).T
    return joined([("link", tail, head, capacity)], (("node", size),), 0.0)


@st.composite
def connected(draw):
    """A directed graph in which every node reaches every other: a ring and links across; parallel and failed ones."""
    size = draw(st.integers(2, 7))
    pairs = [(n, (n + 1) % size) for n in draw(st.permutations(range(size)))]
    node = st.integers(0, size - 1)
    across = draw(st.lists(st.tuples(node, node, st.sampled_from([0.0, 1.0, 2.0, 4.0])), max_size=16))
    ring = [(*pair, draw(st.sampled_from([1.0, 2.0, 8.0]))) for pair in pairs]
    return network_of(ring + across, size)


def every_pair(network):
    pairs = np.array(list(itertools.product(range(network.size), repeat=2)))
    return pairs[:, 0], pairs[:, 1]


def all_paths(network, src, dst):
    """Every shortest path as a tuple of links: all walks, one hop longer each time until some arrive."""
    if src == dst:
        return [()]
    usable = np.flatnonzero(network.capacity > 0).tolist()
    walks = [((), src)]
    for _ in range(network.size):
        walks = [((*w, link), network.head[link]) for w, at in walks for link in usable if network.tail[link] == at]
        arrived = [walk for walk, at in walks if at == dst]
        if arrived:
            return arrived
    return []


def divided(network, paths, weight):
    """Share of each link when every node divides what it gets by weight over the next links of `paths`."""
    share = np.zeros(len(network.tail))

    def climb(prefix, part):
        following = sorted({path[len(prefix)] for path in paths if path[: len(prefix)] == prefix and path != prefix})
        for link in following:
            passed = part * weight[link] / sum(weight[following])
            share[link] += passed
            climb((*prefix, link), passed)

    climb((), 1.0)
    return share


def dense(network, routes):
    """[F L] share of every flow on every link."""
    return matrix(routes.hops, routes.share, len(network.tail)).T


def check_rows(network, src, dst, routes):
    """Flow conservation, and the form of the table: packed, no link twice, shares above 0, no failed link."""
    assert routes.hops.shape == routes.share.shape
    present = routes.hops >= 0
    assert np.all(present[:, :-1] >= present[:, 1:])
    assert np.all((routes.share > 0) == present)
    assert np.all(network.capacity[routes.hops[present]] > 0)
    assert all(len(set(row[row >= 0])) == (row >= 0).sum() for row in routes.hops)
    share, balance = dense(network, routes), np.zeros((len(src), network.size))
    for link, (tail, head) in enumerate(zip(network.tail, network.head, strict=True)):
        balance[:, tail] += share[:, link]
        balance[:, head] -= share[:, link]
    expected = np.zeros_like(balance)
    rows = np.arange(len(src))
    expected[rows, src] += 1
    expected[rows, dst] -= 1
    np.testing.assert_allclose(balance, expected, atol=1e-12)


def path_of(network, row, src):
    """The links of a row, which must follow each other from `src`."""
    links = row[row >= 0].tolist()
    at = src
    for link in links:
        assert network.tail[link] == at
        at = network.head[link]
    return tuple(links)


@given(connected(), st.integers(0, 2**32 - 1))
def test_single_paths_are_shortest_paths(network, seed):
    every = range(network.size)
    lengths = [[len(all_paths(network, node, target)[0]) for node in every] for target in every]
    assert distances(network, np.arange(network.size)).tolist() == lengths
    src, dst = every_pair(network)
    for routing in ("ecmp", "least-loaded"):
        routes = shortest_routes(network, src, dst, routing=routing, seed=seed, size=np.arange(len(src)))
        check_rows(network, src, dst, routes)
        assert set(routes.share.ravel()) <= {0.0, 1.0}
        for row, a, b in zip(routes.hops, src, dst, strict=True):
            assert path_of(network, row, a) in all_paths(network, a, b)


@given(connected())
def test_spray_and_weighted_equal_a_recursion_over_all_paths(network):
    src, dst = every_pair(network)
    for routing, weight in (("spray", np.ones(len(network.tail))), ("weighted", network.capacity)):
        routes = shortest_routes(network, src, dst, routing=routing)
        check_rows(network, src, dst, routes)
        expected = [divided(network, all_paths(network, a, b), weight) for a, b in zip(src, dst, strict=True)]
        np.testing.assert_allclose(dense(network, routes), expected, atol=1e-12)


@given(connected(), st.lists(st.tuples(*[st.integers(0, 6)] * 2, st.sampled_from([0, 1, 2, 3, 8])), max_size=12))
def test_least_loaded_takes_the_best_of_all_paths_in_turn(network, flows):
    """Sizes and capacities are whole and powers of two: every cost is exact, so equal means equal."""
    src, dst, size = np.array(flows, int).reshape(-1, 3).T
    src, dst = src % network.size, dst % network.size
    routes = shortest_routes(network, src, dst, routing="least-loaded", size=size, seed=5)
    check_rows(network, src, dst, routes)
    load = np.zeros(len(network.tail))
    for flow in sorted(range(len(src)), key=lambda f: (-size[f], f)):

        def cost(path, flow=flow):
            each = [(load[link] + size[flow]) / network.capacity[link] for link in path]
            return max(each, default=0), sum(each)

        taken = path_of(network, routes.hops[flow], src[flow])
        assert cost(taken) == min(map(cost, all_paths(network, src[flow], dst[flow])))
        load[list(taken)] += size[flow]


def leaf_spine(up=1.0):
    """16 hosts first, then 4 leaves, then 4 spines."""
    host = np.arange(16)
    leaf = 16 + host // 4
    low, high = (x.ravel() for x in np.mgrid[16:20, 20:24])
    parts = [
        ("up", host, leaf, 1.0),
        ("down", leaf, host, 1.0),
        ("leaf up", low, high, up),
        ("leaf down", high, low, up),
    ]
    kinds = (("host", 16), ("leaf", 4), ("spine", 4))
    return joined([(*part, np.full(16, speed)) for *part, speed in parts], kinds, 0.0)


def test_equals_are_drawn_by_the_hash():
    network = leaf_spine()
    taken = [
        shortest_routes(network, [0], [4], routing="least-loaded", size=[1], seed=seed).hops[0, 1] for seed in range(60)
    ]
    assert len(set(taken)) == 4
    np.testing.assert_array_equal(np.sort(np.unique(taken)), np.arange(4) + network.run("leaf up").start)


def test_splitmix64_gives_the_published_numbers():
    """First output of the generator from the states 0 and 1234567."""
    assert splitmix64(np.array([0, 1234567], np.uint64)).tolist() == [0xE220A8397B1DCDAF, 6457827717110365317]


def test_ecmp_is_uniform_and_independent_from_node_to_node():
    """20,000 flows over 2 x 3 choices: chi-square with 5 degrees of freedom stays below its 99.9 % point, 20.5."""
    network = network_of(
        [(0, 1, 1), (0, 2, 1), *((m, e, 1) for m in (1, 2) for e in (3, 4, 5)), *((e, 6, 1) for e in (3, 4, 5))], 7
    )
    for seed in range(3):
        routes = shortest_routes(network, [0] * 20000, [6] * 20000, routing="ecmp", seed=seed)
        _, counts = np.unique(routes.hops[:, 1], return_counts=True)
        assert ((counts - 20000 / 6) ** 2 / (20000 / 6)).sum() < 20.5
        assert len(counts) == 6


def test_ecmp_depends_on_seed_flow_and_ends_only():
    network = leaf_spine()
    src, dst = np.zeros(64, int), np.full(64, 12)
    routes = shortest_routes(network, src, dst, routing="ecmp", seed=3)
    np.testing.assert_array_equal(routes.hops, shortest_routes(network, src, dst, routing="ecmp", seed=3).hops)
    np.testing.assert_array_equal(
        routes.hops[:10], shortest_routes(network, src[:10], dst[:10], routing="ecmp", seed=3).hops
    )
    assert np.any(routes.hops != shortest_routes(network, src, dst, routing="ecmp", seed=4).hops)
    assert len(np.unique(routes.hops, axis=0)) == 4  # the number of the flow counts


@pytest.mark.parametrize("routing", ROUTINGS)
def test_flows_that_cross_nothing_none_and_ends_with_links_beyond(routing):
    network = leaf_spine()
    routes = shortest_routes(network, [2, 3, 2], [2, 3, 9], routing=routing, size=np.ones(3))
    assert np.all(routes.hops[:2] == -1)
    check_rows(network, [2, 3, 2], [2, 3, 9], routes)
    routes = shortest_routes(network, [2], [2], routing=routing, size=[1])
    assert (routes.hops.tolist(), routes.share.tolist()) == ([[-1]], [[0.0]])
    assert shortest_routes(network, [], [], routing=routing, size=[]).hops.shape == (0, 1)
    # A flow ends at its destination, also where links lead on from there to a node that cannot come back.
    network = network_of([(0, 1, 1), (1, 2, 1), (3, 1, 1), (0, 3, 1), (3, 0, 1)], 4)
    routes = shortest_routes(network, [0, 1], [1, 1], routing=routing, size=[1, 1])
    assert routes.hops.tolist() == [[0], [-1]]


@pytest.mark.parametrize("routing", ROUTINGS)
def test_failed_links_do_not_exist(routing):
    network = network_of([(0, 1, 1), (1, 2, 1), (0, 2, 1)], 3)
    args = {"routing": routing, "size": [1]}
    assert shortest_routes(network, [0], [2], **args).hops.tolist() == [[2]]
    assert shortest_routes(network.without(np.array([2])), [0], [2], **args).hops.tolist() == [[0, 1]]
    said = refused(shortest_routes, network.without(np.array([1, 2])), [0], [2], **args)
    assert said.startswith("no path leads from node 0 to node 2 (flow 0): ")
    assert "capacity 0 is broken" in said
    named = FabricGraph(
        *np.array([[0], [1]]), np.ones(1), np.zeros(1), (("host", 3),), (("link", 1),), ("ann", "bo", "cy")
    )
    said = refused(shortest_routes, named, [0, 2, 1], [1, 2, 0], routing=routing, size=np.ones(3))
    assert "no path leads from bo to ann (flow 2)" in said
    assert distances(named, np.array([1, 2])).tolist() == [[1, 0, -1], [-1, -1, 0]]
