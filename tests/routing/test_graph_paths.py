"""All-to-alls in parts: as long as the same flows on all links, whether parts are stars or not."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mfabric_jax.fabric.graphs.made import GraphNumbers, make_graph
from mfabric_jax.fabric.network import network_of
from mfabric_jax.flows.host_times import finish_times_now
from mfabric_jax.routing.fixed import leaving_flows
from mfabric_jax.routing.graph_paths import _Hops, graph_paths_of, narrowest
from mfabric_jax.routing.shortest import shortest_loads, shortest_routes
from mfabric_jax.routing.transfers import binding
from tests.oracles import graph as oracle

NUMBERS = {"gpus_per_server": 2, "nvlink_gbps": 0.0, "nic_gbps": 8e-9}  # 1 byte/s a NIC


class Nics:
    nic_Bps = 2.0


@st.composite
def drawn(draw, gpus=8):
    """GPUs at some of a few switches that are joined at random; whole capacities, links both ways."""
    switches = draw(st.integers(1, 4))
    ends = [(gpu, gpus + draw(st.integers(0, switches - 1))) for gpu in range(gpus)]
    ends += [(gpu, gpus + draw(st.integers(0, switches - 1))) for gpu in draw(st.sets(st.integers(0, gpus - 1)))]
    ends += [(gpus + at, gpus + at + 1) for at in range(switches - 1)]
    joined = st.tuples(*[st.integers(0, switches - 1)] * 2).filter(lambda pair: pair[0] != pair[1])
    ends += [(gpus + a, gpus + b) for a, b in draw(st.lists(joined, max_size=3))] if switches > 1 else []
    tail, head = np.array(ends).T
    wide = [np.array(draw(st.lists(st.integers(1, 3), min_size=len(ends), max_size=len(ends)))) for _ in range(2)]
    runs = [("up", tail, head, wide[0]), ("down", head, tail, wide[1])]
    return network_of(runs, [("gpu", gpus), ("switch", switches)], 0.0)


def both_ways(network, groups, ranks, slices, routing, each=1):
    """Flows of all groups, their routes, and the parts of the slowest."""
    src, dst = leaving_flows(each, groups, ranks, slices)
    routes = shortest_routes(network, src, dst, routing=routing)
    ways = graph_paths_of((src, dst), binding(network, routes), network.capacity, slices, ranks)
    return src, dst, routes, ways


@given(drawn(), st.sampled_from(["spray", "weighted", "ecmp"]), st.integers(0, 99))
def test_parts_end_as_the_same_flows_on_all_links(network, routing, seed):
    demand = np.random.default_rng(seed).integers(0, 5, (3, 4, 4)).astype(float)
    src, dst, routes, ways = both_ways(network, 2, 4, 1, routing)
    size = demand[:, src % 4, dst % 4]
    ends = finish_times_now(network.capacity * 2.0, routes.hops, routes.share, size).reshape(3, 2, -1).max(axis=2)
    slowest = slow_groups(network, src // 4, routes)
    np.testing.assert_allclose(ways.times_now(Nics, demand), ends[:, slowest].mean(axis=1), rtol=1e-9)
    assert float(ways.time(Nics, demand[0].astype("float32"))) == pytest.approx(ends[0, slowest].mean(), rel=1e-4)


def slow_groups(network, group, routes):
    """Both groups where they share a link that can hold a flow back, else the one with the busiest link."""
    kept = binding(network, routes)
    load = [np.zeros(len(network.tail)) for _ in range(2)]
    for mine in (0, 1):
        there = kept.hops[group == mine] >= 0
        np.add.at(load[mine], kept.hops[group == mine][there], kept.share[group == mine][there])
    worst = [(each / network.capacity).max() for each in load]
    if ((load[0] > 0) & (load[1] > 0)).any() and not dominated(network, kept, load):
        return [0, 1]
    return [int(worst[1] > worst[0] * (1 + 1e-9))]


def dominated(network, kept, load):
    """Whether every link that both groups cross has the flows of another, narrower for all of them, that is kept."""
    from mfabric_jax.routing.graph_paths import _hops_of

    left = narrowest(_hops_of(kept, network.capacity)).link
    return not ((load[0] > 0) & (load[1] > 0))[np.unique(left)].any()


@given(drawn(gpus=4), st.integers(0, 9))
def test_parts_end_as_in_exact_fractions(network, seed):
    demand = np.random.default_rng(seed).integers(0, 4, (4, 4))
    src, dst, routes, ways = both_ways(network, 1, 4, 1, "spray")
    paths = [
        [
            (int(link), Fraction(float(part)).limit_denominator(10**6))
            for link, part in zip(*row, strict=True)
            if link >= 0
        ]
        for row in zip(routes.hops, routes.share, strict=True)
    ]
    _, finish = oracle.run([Fraction(2 * float(x)) for x in network.capacity], paths, demand[src, dst].tolist())
    expected = max([x for x, size in zip(finish, demand[src, dst], strict=True) if size], default=0)
    assert ways.times_now(Nics, demand[None].astype(float))[0] == pytest.approx(float(expected), rel=1e-9)


def test_of_links_with_the_same_flows_the_narrowest_stays():
    flow, link = np.repeat([0, 1, 2, 3], [3, 3, 2, 2]), np.array([0, 1, 2, 0, 1, 2, 3, 4, 3, 4])
    share = np.array([1, 2, 0.5, 0.5, 1, 2.0 / 8, 1, 2, 2, 1])  # link 1 is the narrowest for both of its flows
    assert np.unique(narrowest(_Hops(flow, link, share)).link).tolist() == [1, 3, 4]


def test_groups_of_one_form_are_solved_once():
    network = make_graph(
        "leaf-spine", GraphNumbers(gpus=32, radix=8, oversubscription=3, **NUMBERS)
    )  # 6 GPUs at a leaf
    *_, ways = both_ways(network, 4, 8, 1, "spray", each=2)
    assert (ways.groups, len(ways.parts)) == (3, 1)  # 24 GPUs have 4 leaves; the last group has its own 2
    network = make_graph("leaf-spine", GraphNumbers(gpus=32, radix=8, **NUMBERS))
    *_, ways = both_ways(network, 4, 8, 1, "spray", each=2)
    assert (ways.groups, len(ways.parts), ways.parts[0].star is not None) == (1, 1, True)
    np.testing.assert_allclose(ways.times_now(Nics, np.ones((1, 8, 8))), 6 / 2.0)  # 6 bytes leave by each NIC


def test_slices_take_ports_of_their_own():
    network = make_graph("leaf-spine", GraphNumbers(gpus=16, radix=16, **NUMBERS))
    *_, ways = both_ways(network, 1, 4, 4, "spray", each=4)
    assert (len(ways.parts), len(ways.group)) == (1, 4)  # 4 slices, one form
    np.testing.assert_allclose(ways.times_now(Nics, np.full((1, 4, 4), 8.0)), 3 * 8 / 4 / 2.0)


def test_a_slow_link_is_seen_in_whatever_group_it_is():
    network = make_graph("leaf-spine", GraphNumbers(gpus=32, radix=8, **NUMBERS))
    slow = network.capacity.copy()
    slow[(network.tail == 27) | (network.head == 27)] /= 4  # a NIC of the last group
    *_, ways = both_ways(type(network)(**{**vars(network), "capacity": slow}), 4, 8, 1, "spray", each=2)
    np.testing.assert_allclose(ways.times_now(Nics, np.ones((1, 8, 8))), 4 * 6 / 2.0)


@given(drawn(), st.sampled_from(["spray", "weighted", "ecmp"]), st.integers(0, 99))
def test_loads_are_the_sums_of_routes(network, routing, seed):
    rng = np.random.default_rng(seed)
    src, dst = rng.integers(0, 8, (2, 20))
    amount = rng.random(20)
    routes = shortest_routes(network, src, dst, routing=routing, seed=seed)
    expected = np.zeros(len(network.tail))
    np.add.at(expected, routes.hops[routes.hops >= 0], (routes.share * amount[:, None])[routes.hops >= 0])
    np.testing.assert_allclose(
        shortest_loads(network, src, dst, amount, routing=routing, seed=seed), expected, atol=1e-12
    )
