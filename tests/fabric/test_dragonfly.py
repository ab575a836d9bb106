"""The dragonfly by hand: its form, its price, all-to-alls over both kinds of ways, what broken parts leave."""

import itertools
from collections import defaultdict
from fractions import Fraction

import numpy as np
import pytest

from mfabric_jax.fabric import cluster, cluster_cost, degrade
from mfabric_jax.fabric.direct_links import DirectLinks
from mfabric_jax.fabric.dragonfly import dragonfly_mesh, dragonfly_shape
from mfabric_jax.fabric.failures import PLANES
from mfabric_jax.routing import cluster_routes, links_of
from mfabric_jax.routing.fixed import add_paths, fixed_time
from mfabric_jax.units import to_gbps
from tests.small import JOB, row, small

WAYS = ("dragonfly", "dragonfly-valiant")


def links_of_all(servers, nics, valiant=False, stage=None):
    """All servers as one group, at 1 byte/s a NIC."""
    mesh = dragonfly_mesh(servers, nics, valiant)
    return add_paths(DirectLinks(servers, to_gbps(1.0), nics, None, None, mesh, stage=stage or servers))


def test_the_form_is_balanced_and_joins_all():
    # Published: a = 2p = 2h and a h + 1 groups. 8 NICs a server: 16 routers of 31 ports in each of 129 groups.
    assert dragonfly_shape(2064, 8) == (1, 129, 16, 1, 1, 8)
    assert dragonfly_shape(2065, 8) == (2, 33, 32, 1, 16, 16)
    assert dragonfly_shape(6, 1) == (1, 3, 2, 1, 1, 1)
    assert dragonfly_shape(4, 8) == (1, 1, 4, 5, 32, 8)  # 15 ports for 3 other routers
    for servers, nics in ((6, 1), (13, 1), (36, 2), (50, 3), (128, 8), (400, 1)):
        shape, mesh = dragonfly_shape(servers, nics), dragonfly_mesh(servers, nics, False)
        p = shape.ports
        assert p == nics * shape.per_router
        assert shape.per_router * shape.routers * shape.groups >= servers
        assert (shape.routers <= 2 * p, shape.groups <= 2 * p**2 + 1) == (True, True)
        count = mesh.count
        np.testing.assert_array_equal(count, count.T)
        assert (count[servers:].sum(axis=1) <= 4 * p - 1).all()
        inner = count[servers:, servers:].reshape([shape.groups, shape.routers] * 2)
        between = inner.sum(axis=(1, 3))[~np.eye(shape.groups, dtype=bool)]
        assert (between == shape.between).all()
        assert shape.links == inner.sum() / 2 == mesh.inner_links


def test_all_to_alls_by_hand():
    # Three groups of two routers with a server each: router 0 of a group leads to the next group, router 1 to the last.
    # Every pair has b bytes, a second a link. Minimal: a local link carries its pair, 2 b that leave the group by the
    # other router and 2 b that come in by this one: 5 b, as every NIC; a link between groups 2 x 2 b.
    even = np.ones((6, 6))
    minimal, valiant = links_of_all(6, 1), links_of_all(6, 1, valiant=True)
    assert float(fixed_time(minimal, even, 1)) == pytest.approx(5)
    # Valiant: what is for the next group leaves for the last and crosses it: 2 b out, 2 b in, and 4 b that pass.
    assert float(fixed_time(valiant, even, 1)) == pytest.approx(1 + 2 + 2 + 4)
    # A server alone: to the next group over its own router's link, or over two links between groups.
    one = np.zeros((6, 6))
    one[0, 3] = 7
    assert float(fixed_time(minimal, one, 1)) == float(fixed_time(valiant, one, 1)) == pytest.approx(7)
    assert (minimal.ring_nics, valiant.ring_nics) == pytest.approx((1, 5 / 9))  # gradients: an even all-to-all
    # To the next stage of two servers, a group: both servers' bytes over the one link between the groups.
    assert links_of_all(6, 1, stage=2).stage_nics == pytest.approx(1 / 2)


def test_valiant_ways_relieve_the_link_between_two_groups():
    # 9 groups of 4 servers with 2 NICs. Each group sends to the next alone, a byte a server: 4 bytes cross one link.
    # Over 7 third groups: 4/7 on a link as the first leg and as much as the second.
    group = np.arange(36) // 4
    ahead = (group[:, None] + 1) % 9 == group
    demand = np.where(ahead, 1 / 4, 0)
    between = [loads(links_of_all(36, 2, valiant), demand)["global"] for valiant in (False, True)]
    assert [busy.max() for busy in between] == pytest.approx([4, 8 / 7])
    assert between[1].min() == 0  # the links from each group to the next


def loads(group, demand):
    """Seconds of every link, by kind."""
    mesh, there = group.mesh, np.asarray(group.hops) >= 0
    carried = np.asarray(group.share) * demand.reshape(-1, 1)
    load = np.bincount(np.asarray(group.hops)[there], carried[there], len(mesh.nics)) / mesh.nics
    return {kind: load[mesh.network.run(kind)] for kind, _ in mesh.links}


def oracle(mesh, demand, area, router, valiant):
    """Seconds of the busiest link, in plain Python: all links from area to area in equal parts, one link inside."""
    ends = list(zip(mesh.tail.tolist(), mesh.head.tolist(), strict=True))
    between = defaultdict(list)
    for link, (tail, head) in enumerate(ends):
        between[area[tail], area[head]].append(link)
    load = defaultdict(Fraction)

    def inside(src, dst, size):
        way = [src, *(router[node] for node in (src, dst) if node in router), dst]
        for step in itertools.pairwise(way):
            if step[0] != step[1]:
                load[ends.index(step)] += size

    def send(src, dst, size):
        if area[src] == area[dst]:
            inside(src, dst, size)
            return
        links = between[area[src], area[dst]]
        for link in links:
            inside(src, ends[link][0], size / len(links))
            load[link] += size / len(links)
            inside(ends[link][1], dst, size / len(links))

    for (src, dst), size in np.ndenumerate(demand):
        size = Fraction(int(size))
        thirds = set(area.values()) - {area[src], area[dst]} if valiant and area[src] != area[dst] else set()
        for third in thirds:
            links = between[area[src], third]
            for link in links:
                part = size / len(thirds) / len(links)
                inside(src, ends[link][0], part)
                load[link] += part
                send(ends[link][1], dst, part)
        if not thirds:
            send(src, dst, size)
    return float(max(size / int(mesh.nics[link]) for link, size in load.items()))


@pytest.mark.parametrize(("servers", "nics"), [(6, 1), (13, 1), (10, 2)])
@pytest.mark.parametrize("valiant", [False, True])
def test_the_busiest_link_is_that_of_a_plain_loop(servers, nics, valiant):
    group, rng, shape = links_of_all(servers, nics, valiant), np.random.default_rng(7), dragonfly_shape(servers, nics)
    router = {server: servers + server // shape.per_router for server in range(servers)}
    nodes = range(group.mesh.network.size)
    area = {node: (router.get(node, node) - servers) // shape.routers for node in nodes}
    for _ in range(3):
        demand = rng.integers(0, 100, (servers, servers)) * ~np.eye(servers, dtype=bool)
        busiest = max(kind.max() for kind in loads(group, demand).values())
        assert busiest == pytest.approx(oracle(group.mesh, demand, area, router, valiant), rel=1e-9)


def test_flows_of_a_cluster_take_the_ways_of_their_group():
    for name, valiant in zip(WAYS, (False, True), strict=True):
        made = cluster(name, 6, to_gbps(1.0), nics=1, gpus_per_server=2, nvswitch_gigabytes_per_s=1e6)
        src, dst = (2 * x.ravel() for x in np.mgrid[:6, :6])
        routes, network = cluster_routes(made, src, dst), links_of(made)
        there, first = routes.hops >= 0, network.run("nic up").start
        load = np.bincount(routes.hops[there], routes.share[there], len(network.tail))
        even = loads(links_of_all(6, 1, valiant), np.ones((6, 6)))
        np.testing.assert_allclose(load[first:], np.concatenate(list(even.values())), rtol=1e-12)
        assert made.nic_use == "pooled"


def test_what_a_server_pays():
    # 36 servers of 2 NICs: 9 x 6 links inside groups and 36 between them have 180 ends, 2.5 for each NIC.
    per_nic = 1499 + 3.5 * 1090 + 4.5 * 659 + 2.25 * 150
    assert cluster_cost("dragonfly", 36, 400, nics=2) == pytest.approx(72 * per_nic)


def test_what_broken_parts_leave():
    whole = links_of_all(36, 2)
    lacks = whole.lacks("unsplit")
    assert {"link", "electrical-nic", "nvswitch"}.isdisjoint(lacks)
    assert set(lacks) == {"optical-nic", "optical-switch", "controller", "electrical-nics", "spine", *PLANES}
    for kind in ("switch", "gpu", "server"):
        assert degrade(whole, kind).waits.endswith("the job waits for the repair")
    alone = np.zeros((36, 36))
    alone[0, 1] = 6  # to the next router of the group
    assert float(fixed_time(whole, alone, 1)) == pytest.approx(6)
    link = add_paths(degrade(whole, "link").group)  # that link: over the two other routers then
    assert link.mesh.nics.sum() == whole.mesh.nics.sum() - 2
    assert float(fixed_time(link, alone, 1)) == pytest.approx(3)
    nic = degrade(whole, "electrical-nic")
    assert nic.eps_left == 1 / 2
    assert (add_paths(nic.group).mesh.nics[:3] == [1, 2, 2]).all()


@pytest.mark.usefixtures("as_users_have_it")
def test_an_iteration():
    # 16 servers, a router each, in one group: two ranks of two servers, joined by one link of one NIC.
    asked = small(JOB | {"network.fabric": "dragonfly"})
    found, valiant = row(asked), row(asked.with_({"network.fabric": "dragonfly-valiant"}))
    assert (found["nic_use"], found["routing"], valiant["routing"]) == ("pooled", "minimal", "Valiant")
    assert found["ep_comm_s"] == pytest.approx(valiant["ep_comm_s"])  # inside a group ways are the same
