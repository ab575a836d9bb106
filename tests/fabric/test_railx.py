"""RailX: sizes as published, links of nodes that Hamilton cycles make, all-to-alls by hand, prices."""

import itertools
from collections import Counter

import numpy as np
import pytest

from mfabric_jax.fabric import cluster_cost
from mfabric_jax.fabric.full_mesh import full_mesh
from mfabric_jax.fabric.railx import most_servers, railx_mesh, side_of
from mfabric_jax.routing.fixed import fixed_time
from mfabric_jax.routing.shortest import distances
from tests.fabric.links import carried, loads_of, of_all, oracle
from tests.small import JOB, refused, row, small


def test_sizes_as_published():
    # (m R / 2)^2 chips on switches of R = 128 ports (arXiv 2507.18889, second hand).
    assert [most_servers(side, 128) for side in (5, 7)] == [102_400, 200_704]


def walecki(nodes):
    """Hamilton cycles of an odd number of nodes in which every two are neighbours once: zigzags around a hub."""
    turned = nodes - 1
    zigzag = [(-1) ** (k + 1) * ((k + 1) // 2) for k in range(turned)]
    return [[turned, *((step + start) % turned for step in zigzag)] for start in range(turned // 2)]


@pytest.mark.parametrize("nodes", [3, 5, 7])
@pytest.mark.parametrize("side", [2, 3])
def test_links_are_those_of_hamilton_cycles_run_through_both_ways(nodes, side):
    cycles = walecki(nodes)
    met = Counter(frozenset(pair) for cycle in cycles for pair in itertools.pairwise([*cycle, cycle[0]]))
    assert set(met.values()) == {1}
    assert len(met) == nodes * (nodes - 1) / 2
    # (n - 1) / 2 cycles share a border server's NICs; half of their lanes lead around the other way.
    want = Counter()
    for cycle, row_ in itertools.product([*cycles, *(cycle[::-1] for cycle in cycles)], range(side)):
        for one, other in itertools.pairwise([*cycle, cycle[0]]):
            east = one * side**2 + row_ * side + side - 1
            west = other * side**2 + row_ * side
            want[east, west] += 3 / (nodes - 1)
            want[west, east] += 3 / (nodes - 1)
    mesh = railx_mesh((nodes, 1), side, 3)
    ends = zip(mesh.tail.tolist(), mesh.head.tolist(), strict=True)
    between = {
        pair: nics for pair, nics in zip(ends, mesh.nics, strict=True) if pair[0] // side**2 != pair[1] // side**2
    }
    assert between == pytest.approx(dict(want))


@pytest.mark.parametrize(("shape", "side"), [((4, 4), 2), ((5, 3), 3), ((2, 3), 1)])
def test_nodes_are_two_apart_at_most_and_servers_have_four_directions(shape, side):
    mesh = railx_mesh(shape, side, 2)
    nodes = np.zeros([np.prod(shape)] * 2)
    np.add.at(nodes, (mesh.tail // side**2, mesh.head // side**2), mesh.nics)
    apart = (nodes > 0) | ((nodes @ nodes) > 0)
    assert apart.all()
    np.testing.assert_allclose(mesh.count.sum(axis=1), 8)  # four directions of two NICs, border or not
    hops = distances(mesh.network, np.arange(mesh.servers))
    assert hops.max() <= 2 + 3 * 2 * (side - 1)  # two rails, and across three meshes


def test_one_server_a_node_is_a_full_mesh():
    railx, mesh = railx_mesh((4, 3), 1, 2), full_mesh((4, 3), 8, split=(4, 4))
    np.testing.assert_allclose(railx.count, mesh.count)


def test_two_nodes_by_hand():
    # Two nodes of 2 x 2: rails close four servers to a ring in x, twice. Each pair has a byte: from every server
    # 1 + 2 + 1 steps in x to either y, 8 servers x 8 steps over 16 links; 8 x 4 pairs cross 8 links in y.
    mesh = railx_mesh((2, 1), 2, 1)
    assert len(mesh.tail) == 16 + 8
    np.testing.assert_allclose(carried(mesh, np.ones((8, 8))), 4, rtol=1e-12)
    assert float(fixed_time(of_all(mesh), np.ones((8, 8)), 1)) == pytest.approx(4)


@pytest.mark.parametrize(("shape", "side"), [((3, 2), 2), ((2, 2), 3), ((5, 1), 2)])
def test_every_link_carries_what_a_plain_loop_says(shape, side):
    mesh = railx_mesh(shape, side, 2)
    demand = np.random.default_rng(5).integers(0, 50, (mesh.servers,) * 2)
    assert loads_of(mesh, demand) == pytest.approx(oracle(mesh, demand))


def test_what_a_server_pays():
    # m = 2: of 8 NICs half are inside of nodes and share fibres, half on rails with a port of an optical switch each.
    dollars = 8 * (1499 + 659) + 4 / 2 * 150 + 4 * (150 + 520)
    assert cluster_cost("railx", 64, 400, nics=8, shape=(4, 4)) == pytest.approx(64 * dollars)
    # A row alone: the NICs of its upper and lower border are not in use.
    dollars = 6 * (1499 + 659) + 4 / 2 * 150 + 2 * (150 + 520)
    assert cluster_cost("railx", 16, 400, nics=8, shape=(4, 1)) == pytest.approx(16 * dollars)


def test_what_does_not_fit():
    railx = {"network.fabric": "railx"}
    for changes, sentence in (
        ({"network.railx.side": 3}, "network.railx.side 3 needs a multiple of 9 servers, got 128."),
        ({"network.railx.shape": "4x4"}, "network.railx.shape must be two sizes with the product 32 (nodes), got 4x4."),
        (
            {"circuits.ocs": "epiphotonics", "network.railx.shape": "32x1"},
            "has 16 ports, but rails over the 32x1 nodes of",
        ),
    ):
        assert sentence in refused(railx | changes, small())


def test_a_side_that_is_open():
    assert [side_of(*asked) for asked in ((8, None), (6, None), (6, 3), (8, 1))] == [2, 1, 3, 1]


@pytest.mark.usefixtures("as_users_have_it")
def test_an_iteration():
    # Groups of two servers in a row of a node: two NICs join them, as on a torus, whose ring of two is as wide.
    found, torus = (row(small(JOB | {"network.fabric": name})) for name in ("railx", "torus"))
    assert (found["nic_use"], found["routing"]) == ("pooled", "shortest paths")
    assert found["ep_comm_s"] == pytest.approx(torus["ep_comm_s"], rel=1e-6)


@pytest.mark.parametrize(
    ("servers", "group", "side"), [(128, 8, 4), (32, 4, 2), (8, 4, 2), (8, 1, 2), (8, 8, 2), (81, 8, 3), (7, 1, 1)]
)
def test_a_node_holds_a_group_where_nodes_can(servers, group, side):
    assert side_of(servers, None, group) == side
