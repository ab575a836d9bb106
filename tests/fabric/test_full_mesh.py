"""Full meshes by hand: loads of links under all ways, lanes, prices, broken links, UB-Mesh's availability."""

import itertools
from collections import defaultdict
from fractions import Fraction

import numpy as np
import pytest

from mfabric_jax import Case
from mfabric_jax.fabric import cluster, cluster_cost, degrade
from mfabric_jax.fabric.direct_links import DirectLinks, Mesh
from mfabric_jax.fabric.full_mesh import FULL_MESH, full_mesh
from mfabric_jax.fabric.grids import near_equal
from mfabric_jax.fabric.site import FabricSite
from mfabric_jax.routing import cluster_routes, links_of
from mfabric_jax.routing.fixed import add_paths, fixed_time
from mfabric_jax.units import to_gbps
from tests.fabric.links import every_pair, loads_of, of_all
from tests.small import JOB, refused, row, small

WAYS = ("shortest", "dimension-order", "detour")


def ways_of(shape, src, dst, rule):
    """{way: share} of a pair in plain Python; a way is a tuple of coordinates."""
    differ = [axis for axis in range(len(shape)) if src[axis] != dst[axis]]
    orders = list(itertools.permutations(differ)) if rule == "shortest" else [differ]
    found = defaultdict(Fraction)
    for order in orders:
        part = {(src,): Fraction(1, len(orders))}
        for axis in order:
            longer = defaultdict(Fraction)
            for way, share in part.items():
                at = way[-1]
                over = (
                    [via for via in range(shape[axis]) if via not in (at[axis], dst[axis])] if rule == "detour" else []
                )
                for via in [None, *over]:
                    steps = [] if via is None else [(*at[:axis], via, *at[axis + 1 :])]
                    end = (*at[:axis], dst[axis], *at[axis + 1 :])
                    longer[(*way, *steps, end)] += share / (1 + len(over))
            part = longer
        for way, share in part.items():
            found[way] += share
    return found


@pytest.mark.parametrize("shape", [(5,), (3, 4), (2, 3, 4), (2, 2), (1, 3), (4, 1, 2)])
@pytest.mark.parametrize("rule", WAYS)
def test_every_link_carries_what_listed_ways_make(shape, rule):
    nodes = [place[::-1] for place in itertools.product(*map(range, shape[::-1]))]  # the first dimension first
    demand = np.random.default_rng(3).integers(0, 50, (len(nodes),) * 2)
    want = defaultdict(Fraction)
    for (i, src), (j, dst) in itertools.product(enumerate(nodes), repeat=2):
        for way, share in ways_of(shape, src, dst, rule).items():
            for step in itertools.pairwise(way):
                want[tuple(nodes.index(end) for end in step)] += share * int(demand[i, j])
    found = loads_of(full_mesh(shape, 8, paths=rule), demand)
    assert set(want) <= set(found)
    assert {ends: found[ends] for ends in found} == pytest.approx({ends: float(want[ends]) for ends in found})


@pytest.mark.parametrize("shape", [(8, 8), (4, 8, 8), (6,), (3, 5)])
def test_uniform_all_to_alls_by_hand(shape):
    # One unit a pair: a link of dimension i carries the N / a_i pairs of rows whose i-th step it is; detours send
    # 1 / (a - 1) of that over it directly, and as first or second link of a - 2 ways each.
    servers = int(np.prod(shape))
    for ways in ("dimension-order", "detour"):
        mesh = full_mesh(shape, 1.0 * sum(size - 1 for size in shape), paths=ways)
        for (src, dst), load in loads_of(mesh, np.ones((servers, servers))).items():
            place = [np.unravel_index(node, shape, order="F") for node in (src, dst)]
            (axis,) = (axis for axis in range(len(shape)) if place[0][axis] != place[1][axis])
            more = (2 * shape[axis] - 3) / (shape[axis] - 1) if ways == "detour" else 1
            assert load == pytest.approx(servers / shape[axis] * more)


def test_how_much_of_the_ports_an_8x8_mesh_can_use():
    # 14 links of 1 byte/s a server; every pair a byte: 8 s, so 63 bytes of 14 x 8 = 56 %. No way can do better: all
    # links are busy all along, and all ways are shortest. Detours take 13/7 as long.
    group = of_all(full_mesh((8, 8), 14))
    seconds = float(fixed_time(group, np.ones((64, 64)), 1))
    assert seconds == pytest.approx(8)
    assert 63 / (14 * seconds) == pytest.approx(0.5625)
    detour = of_all(full_mesh((8, 8), 14, paths="detour"))
    assert float(fixed_time(detour, np.ones((64, 64)), 1)) == pytest.approx(8 * 13 / 7)
    # A pair alone in a line has seven ways of its own, a seventh of its bytes on each.
    alone = np.zeros((64, 64))
    alone[0, 5] = 7
    assert [float(fixed_time(one, alone, 1)) for one in (group, detour)] == pytest.approx([7, 1])


def test_nics_are_split_over_peers():
    mesh = full_mesh((4, 3), 8)  # 5 peers of 8/5 NICs
    assert mesh.count.sum(axis=1) == pytest.approx(8)
    assert set(np.round(mesh.nics, 9)) == {1.6}
    assert mesh.inner_links == 12 * 5 / 2  # lanes of a pair are one link
    mesh = full_mesh((4, 3), 8, split=(6, 2))  # 2 NICs to each of 3 peers, 1 to each of 2
    assert (mesh.count[0, :4] == [0, 2, 2, 2]).all()
    assert mesh.inner_links == 12 * 8 / 2  # whole NICs are a link each
    assert len(full_mesh((1,), 8).nics) == 0


def test_shapes():
    assert [near_equal(256, n) for n in (1, 2, 3, 4)] == [(256,), (16, 16), (8, 8, 4), (4, 4, 4, 4)]
    assert [near_equal(n, 2) for n in (1, 7, 12)] == [(1, 1), (7, 1), (4, 3)]


def test_a_broken_link():
    # Lanes of 8/3 NICs go together: a third server of the line carries, beside its own.
    group = of_all(full_mesh((4,), 8))
    left = add_paths(degrade(group, "link").group)
    assert left.mesh.nics.sum() == pytest.approx(group.mesh.nics.sum() - 2 * 8 / 3)
    alone = np.zeros((4, 4))
    alone[0, 1] = 8
    assert float(fixed_time(group, alone, 1)) == pytest.approx(3)
    assert float(fixed_time(left, alone, 1)) == pytest.approx(3 / 2)  # over two others
    # Of a link of two NICs one is left.
    whole = of_all(full_mesh((4,), 6))
    one = add_paths(degrade(whole, "link").group)
    assert one.mesh.count[0].tolist() == [0, 1, 2, 2]
    assert float(fixed_time(one, alone, 1)) == pytest.approx(8)


def test_flows_of_a_cluster_take_the_ways_of_their_group_and_lanes_of_their_nics():
    # 6 servers of 2 GPUs, a NIC each, 0.4 NICs to each of 5 peers: the third link has 0.2 of either NIC.
    made = cluster("full-mesh", 6, to_gbps(1.0), nics=2, gpus_per_server=2, shape=(6,), nvswitch_gigabytes_per_s=1e6)
    table = made.circuits
    assert table.count == pytest.approx(0.4)
    first = table.src == 0
    held = np.zeros((5, 2))
    np.add.at(
        held, (np.nonzero(first)[0][:, None], table.gpu[first]), np.where(table.gpu[first] >= 0, table.part[first], 0)
    )
    assert sorted(map(tuple, held.round(9))) == [(0, 0.4), (0, 0.4), (0.2, 0.2), (0.4, 0), (0.4, 0)]
    for ways in WAYS:
        made = cluster("full-mesh", 12, to_gbps(1.0), nics=5, gpus_per_server=2, shape=(4, 3), paths=ways)
        src, dst = (2 * x for x in every_pair(12))
        routes, network = cluster_routes(made, src, dst), links_of(made)
        there = routes.hops >= 0
        load = np.bincount(routes.hops[there], routes.share[there], len(network.tail))
        own = list(loads_of(made.mesh, np.ones((12, 12))).values())
        np.testing.assert_allclose(load[network.run("circuit")], own, rtol=1e-12)


@pytest.mark.parametrize("ways", WAYS)
def test_groups_of_one_server_and_clusters_of_one(ways):
    mesh = full_mesh((3, 2), 6, paths=ways)
    alone = add_paths(DirectLinks(1, to_gbps(1.0), 6, None, None, mesh, groups=6, stage=6))
    assert float(fixed_time(alone, np.ones((1, 1)), 1)) == 0
    # Gradients: a fifth of a server's bytes for each other. A link of two NICs in the line of two carries 6 / 2 of
    # these, in that of three 6 / 3, with detours 3/2 as many.
    assert alone.ring_nics == pytest.approx(2 / (3 / 5))
    one = of_all(full_mesh((1, 1), 8, paths=ways))
    assert float(fixed_time(one, np.ones((1, 1)), 1)) == 0


def test_what_a_server_pays():
    assert cluster_cost("full-mesh", 12, 400, nics=8, shape=(4, 3)) == pytest.approx(12 * 8 * (1499 + 659 + 75))


def test_what_does_not_fit():
    mesh = {"network.fabric": "full-mesh"}
    for changes, sentence in (
        ({"shape": "5x5"}, "network.full-mesh.shape must have 128 servers, got 5x5."),
        ({"shape": "16x"}, "network.full-mesh.shape must be 1 to 8 sizes such as 4x4x8, got '16x'."),
        (
            {"split": "6x3"},
            "network.full-mesh.split must share the 8 NICs of a server over the dimensions of 16x8 that",
        ),
        ({"shape": "128x1", "split": "6x2"}, "over the dimensions of 128x1 that have peers, got 6x2."),
    ):
        given = {f"network.full-mesh.{name}": value for name, value in changes.items()}
        assert sentence in refused(mesh | given, small())


@pytest.mark.usefixtures("as_users_have_it")
def test_an_iteration_by_hand():
    # 16 servers in 4 x 4, 8 NICs over 6 peers. Groups of 2 servers in a line: the pair's link alone is used.
    asked = JOB | {"network.fabric": "full-mesh", "network.full-mesh.dimensions": 2}
    found = row(small(asked | {"network.full-mesh.paths": "shortest"}))
    assert (found["nic_use"], found["routing"]) == ("pooled", "shortest")
    single = row(small(asked | {"network.full-mesh.paths": "detour"}))
    assert single["routing"] == "detour"
    torus = row(small(JOB | {"network.fabric": "torus"}))  # two NICs join the pair
    assert found["ep_comm_s"] - torus["ep_comm_s"] == pytest.approx(torus["ep_comm_s"] * (2 / (8 / 6) - 1), rel=0.2)


def test_a_mesh_of_fractions_is_a_mesh():
    one = Mesh(np.array([0, 1]), np.array([1, 0]), np.array([0.5, 0.5]), (("server", 2),), (("link", 2),))
    group = add_paths(DirectLinks(2, to_gbps(1.0), 1, None, None, one, stage=2))
    assert float(fixed_time(group, np.array([[0.0, 3.0], [0.0, 0.0]]), 1)) == pytest.approx(6)


def filled(servers, group, nics=8, **stated):
    stated = {"network.fabric": "full-mesh"} | {f"network.full-mesh.{name}": value for name, value in stated.items()}
    network = Case().with_(stated).network
    return FULL_MESH.fills(FabricSite(network=network, servers=servers, servers_per_region=group, nics=nics))


@pytest.mark.parametrize(
    ("servers", "group", "shape", "ways"),
    [
        (8, 8, "8", "shortest"),  # a link of 8/7 NICs to each; 4x2: 2 NICs, with 4 bytes
        (8, 4, "4x2", "shortest"),  # a byte on 2 NICs; on 8/7 NICs, detours of a line of 8: 5/7 bytes
        (8, 2, "8", "detour"),  # seven paths of 8/7 NICs, more than a link of 2 and one third server's
        (8, 1, "8", "detour"),  # alone: as two neighbours
        (128, 8, "8x4x4", "shortest"),  # a line on links of 8/13 NICs; 16x8: 13/15 of a byte on 8/22
        (65, 65, "65", "shortest"),  # a lane of a NIC to each of 64
        (66, 66, "11x6", "shortest"),  # 65 peers are too many for eight NICs of eight lanes
        (127, 127, "127", "shortest"),  # prime: no shape has a lane for every peer
        (1, 1, "1", "shortest"),
    ],
)
def test_what_is_open_carries_the_all_to_alls_of_a_group(servers, group, shape, ways):
    assert filled(servers, group) == {"shape": shape, "paths": ways}


def test_what_is_stated_stays():
    # Lines of two have no third servers: 4 bytes on 8/3 NICs; a line of 8: 13/7 on 8/7.
    assert filled(8, 8, paths="detour") == {"shape": "2x2x2", "paths": "detour"}
    assert filled(8, 8, dimensions=2) == {"shape": "4x2", "paths": "shortest"}
    assert filled(16, 8, shape="16") == filled(16, 8, shape="16", paths="detour") == {"shape": "16", "paths": "detour"}
    assert filled(8, 8, split="6x2") == {"shape": "4x2", "paths": "shortest"}


def test_no_other_shape_or_path_carries_the_all_to_all_of_a_group_faster():
    drawn = np.random.default_rng(5)
    for _ in range(12):
        servers, nics = int(drawn.integers(2, 25)), int(drawn.integers(1, 10))
        group = int(drawn.integers(2, servers + 1))
        seconds = {}
        for count, ways in itertools.product((1, 2, 3), ("shortest", "detour")):
            shape = near_equal(servers, count)
            nodes = [place[::-1] for place in itertools.product(*map(range, shape[::-1]))][:group]
            width, load = Fraction(nics, sum(size - 1 for size in shape)), defaultdict(Fraction)
            for src, dst in itertools.permutations(nodes, 2):
                for way, share in ways_of(shape, src, dst, ways).items():
                    for step in itertools.pairwise(way):
                        load[step] += share / width
            if width >= Fraction(1, 8):
                seconds.setdefault(("x".join(map(str, shape)), ways), max(load.values()))
        if seconds:
            found = filled(servers, group, nics)
            assert (found["shape"], found["paths"]) == min(seconds, key=seconds.get)


def test_what_is_open_of_an_iteration_is_the_fastest():
    """Groups of two servers; of 16 in a line, the others forward."""
    asked = JOB | {"network.fabric": "full-mesh"}
    usual = row(small(asked))["iteration_s"]
    others = [{"dimensions": count, "paths": ways} for count in (1, 2) for ways in ("detour", "shortest")]
    each = [row(small(asked | {f"network.full-mesh.{name}": one[name] for name in one})) for one in others]
    assert usual == min(one["iteration_s"] for one in each) == each[0]["iteration_s"]
