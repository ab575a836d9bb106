"""The dragonfly+ by hand: counts, all-to-alls over both kinds of ways, prices, what broken parts leave."""

import itertools
from collections import defaultdict
from fractions import Fraction

import numpy as np
import pytest

from mfabric_jax.fabric import cluster, cluster_cost, degrade
from mfabric_jax.fabric.dragonfly_plus import most_hosts, plus_mesh, plus_shape
from mfabric_jax.routing import cluster_routes, links_of
from mfabric_jax.routing.fixed import add_paths, fixed_time
from tests.fabric.links import carried, every_pair, of_all
from tests.small import JOB, refused, row, small


def by_kind(mesh, demand):
    """Seconds of every link, by kind."""
    load = carried(mesh, demand) / mesh.nics
    return {kind: load[mesh.network.run(kind)] for kind, _ in mesh.links}


def test_counts():
    # From memory, unverified: (r/2)^4 + (r/2)^2 hosts in (r/2)^2 + 1 groups.
    assert [most_hosts(radix) for radix in (4, 36, 64)] == [20, 105_300, 1_049_600]
    for radix in (4, 6, 8):
        half = radix // 2
        most = most_hosts(radix)
        assert plus_shape(most, 1, radix) == (half, half**2 + 1, half, half, 1)
        with pytest.raises(ValueError, match=f"room for {most:,} servers"):
            plus_shape(most + 1, 1, radix)
    for servers, nics, radix in ((20, 1, 4), (7, 1, 4), (13, 2, 8), (33, 2, 8), (256, 8, 64)):
        shape, mesh = plus_shape(servers, nics, radix), plus_mesh(servers, nics, radix)
        count, leaves = mesh.count, shape.groups * shape.leaves
        np.testing.assert_array_equal(count, count.T)
        assert shape.per_leaf * leaves >= servers
        up = count[servers : servers + leaves, servers + leaves :]
        assert (up.sum(axis=1) == radix // 2).all()
        assert (count[servers:].sum(axis=1) <= radix).all()
        spines = count[servers + leaves :, servers + leaves :].reshape([shape.groups, shape.spines] * 2)
        assert (spines.sum(axis=(1, 3))[~np.eye(shape.groups, dtype=bool)] == shape.between).all()
        assert mesh.inner_links == shape.links


def test_the_largest_of_four_ports_by_hand():
    # 5 groups of 2 leaves with 2 servers, 2 spines with 2 links to other groups. Every pair has a byte, a second a
    # link. A link between groups: 4 x 4 pairs. From a leaf to a spine: half of 2 x 2 bytes for the other leaf, and
    # from 2 servers to 4 in both groups that the spine leads to: 2 + 16. A NIC: 19.
    mesh = plus_mesh(20, 1, 4)
    found = by_kind(mesh, np.ones((20, 20)))
    for kind, load in {"nic up": 19, "nic down": 19, "leaf up": 18, "leaf down": 18, "global": 16}.items():
        np.testing.assert_allclose(found[kind], load, rtol=1e-12)
    assert float(fixed_time(of_all(mesh), np.ones((20, 20)), 1)) == pytest.approx(19)
    # Valiant: a link between groups carries 3 x 16 / 3 as the first leg of bytes for other groups, as many as the
    # last.
    valiant = by_kind(plus_mesh(20, 1, 4, valiant=True), np.ones((20, 20)))
    np.testing.assert_allclose(valiant["global"], 32, rtol=1e-12)
    np.testing.assert_allclose(valiant["nic up"], 19, rtol=1e-12)


def test_valiant_ways_relieve_the_link_between_two_groups():
    # Each group sends 16 bytes to the next alone: over three third groups 16/3 on a link as the first leg, as many as
    # the last.
    group = np.arange(20) // 4
    demand = np.where((group[:, None] + 1) % 5 == group, 1.0, 0.0)
    busiest = [by_kind(plus_mesh(20, 1, 4, valiant), demand)["global"].max() for valiant in (False, True)]
    assert busiest == pytest.approx([16, 32 / 3])


def oracle(mesh, shape, demand):
    """Minimal ways in plain Python: seconds of the busiest link."""
    servers, leaves, spines = mesh.servers, shape.leaves, shape.spines
    first = servers + shape.groups * leaves
    width = {
        ends: int(nics)
        for *ends, nics in zip(mesh.tail.tolist(), mesh.head.tolist(), mesh.nics, strict=True)
        for ends in [tuple(ends)]
    }
    load = defaultdict(Fraction)

    def leaf(server):
        return servers + server // shape.per_leaf

    def walk(way, size):
        for step in itertools.pairwise(way):
            load[step] += size

    for (src, dst), size in np.ndenumerate(demand):
        size, a, b = Fraction(int(size)), leaf(src), leaf(dst)
        here, there = ((one - servers) // leaves for one in (a, b))
        if a == b:
            walk([src, a, dst] if src != dst else [], size)
        elif here == there:
            for spine in range(spines):
                walk([src, a, first + here * spines + spine, b, dst], size / spines)
        else:
            ends = {
                (one, other): nics
                for (one, other), nics in width.items()
                if min(one, other) >= first and ((one - first) // spines, (other - first) // spines) == (here, there)
            }
            for (one, other), nics in ends.items():
                walk([src, a, one, other, b, dst], size * nics / sum(ends.values()))
    return float(max(size / width[ends] for ends, size in load.items()))


@pytest.mark.parametrize(("servers", "nics", "radix"), [(20, 1, 4), (11, 1, 4), (24, 2, 8), (17, 1, 8)])
def test_the_busiest_link_is_that_of_a_plain_loop(servers, nics, radix):
    mesh, rng = plus_mesh(servers, nics, radix), np.random.default_rng(7)
    for _ in range(3):
        demand = rng.integers(0, 100, (servers, servers))
        busiest = max(kind.max() for kind in by_kind(mesh, demand).values())
        assert busiest == pytest.approx(oracle(mesh, plus_shape(servers, nics, radix), demand), rel=1e-9)


def test_flows_of_a_cluster_take_the_ways_of_their_group():
    for name, valiant in (("dragonfly-plus", False), ("dragonfly-plus-valiant", True)):
        made = cluster(name, 20, 8e-9, nics=1, radix=4, gpus_per_server=2, nvswitch_gigabytes_per_s=1e6)
        src, dst = (2 * x for x in every_pair(20))
        routes, network = cluster_routes(made, src, dst), links_of(made)
        there = routes.hops >= 0
        load = np.bincount(routes.hops[there], routes.share[there], len(network.tail))
        own = by_kind(plus_mesh(20, 1, 4, valiant), np.ones((20, 20)))
        np.testing.assert_allclose(load[network.run("nic up").start :], np.concatenate(list(own.values())), rtol=1e-12)


def test_what_a_server_pays():
    # 20 servers of a NIC: 5 x 4 links of leaves and 10 between groups have 60 ends, 3 for each NIC.
    per_nic = 1499 + 4 * 1090 + 5 * 659 + 2.5 * 150
    assert cluster_cost("dragonfly-plus", 20, 400, nics=1, radix=4) == pytest.approx(20 * per_nic)


def test_what_broken_parts_leave():
    whole = of_all(plus_mesh(20, 1, 4))
    assert {"link", "nvswitch"}.isdisjoint(whole.lacks("unsplit"))
    left = add_paths(degrade(whole, "link").group)  # from the first leaf to a spine: bytes go around by the other leaf
    assert left.mesh.nics.sum() == whole.mesh.nics.sum() - 2
    alone = np.zeros((20, 20))
    alone[0, 2] = 6
    assert [float(fixed_time(one, alone, 1)) for one in (whole, left)] == pytest.approx([6, 6])


def test_what_does_not_fit():
    plus = {"network.fabric": "dragonfly-plus"}
    said = "network.radix must be at least 16 on dragonfly-plus, twice the NICs of a server, got 8."
    assert refused(plus | {"network.radix": 8}, small()) == said


@pytest.mark.usefixtures("as_users_have_it")
def test_an_iteration():
    # 16 servers at 4 leaves of one group: groups of two servers share a leaf, as fast as pooled NICs of a fat-tree.
    found, valiant, tree = (
        row(small(JOB | {"network.fabric": name, "network.nic_use": "pooled"}))
        for name in ("dragonfly-plus", "dragonfly-plus-valiant", "fat-tree")
    )
    assert (found["nic_use"], found["routing"], valiant["routing"]) == ("pooled", "minimal", "Valiant")
    assert found["ep_comm_s"] == pytest.approx(tree["ep_comm_s"])
    assert found["ep_comm_s"] == pytest.approx(valiant["ep_comm_s"])
