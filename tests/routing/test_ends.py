"""When flows of an all-to-all end and the busiest link, against simulation in exact fractions and the engine."""

import math
from fractions import Fraction

import jax.numpy as jnp
import numpy as np
import pytest

from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.fabric.direct_links import DirectLinks
from mfabric_jax.fabric.electrical import Electrical
from mfabric_jax.routing import fixed
from mfabric_jax.routing.ends import FlowEnds, ends, ends_on_circuits, ends_on_paths
from mfabric_jax.routing.fixed import add_paths, fixed_times_now, single_shortest_paths
from mfabric_jax.routing.region import part_times
from mfabric_jax.units import to_gbps
from tests.oracles.max_min import max_min

UNIT = to_gbps(1.0)  # a NIC of 1 byte/s
RTOL = 1e-9


def played(capacity, paths, size):
    """End of every flow with bytes, event by event, in exact fractions."""
    left, now, end = {f: Fraction(s) for f, s in enumerate(size) if s}, Fraction(0), {}
    while left:
        some = sorted(left)
        rate = max_min(capacity, [paths[f] for f in some], [1] * len(some), [math.inf] * len(some))
        rate = dict(zip(some, rate, strict=True))
        step = min(left[f] / rate[f] for f in some)
        now += step
        for f in some:
            left[f] -= step * rate[f]
            if left[f] == 0:
                end[f] = float(now)
                del left[f]
    return sorted(end.values())


def drawn(seed, ranks, most=9):
    return np.random.default_rng(seed).integers(0, most, (ranks, ranks)).astype(float)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("over", [None, 2])
def test_own_nics_beside_fractions(seed, over):
    demand, ranks, per = drawn(seed, 6), 6, 2
    group = Electrical(UNIT, nics=per, oversubscription=over)
    pairs = [(i, j) for i in range(ranks) for j in range(ranks) if i // per != j // per]
    paths = [[(i, 1), (ranks + j, 1)] for i, j in pairs]
    capacity = [1] * (2 * ranks)
    if over:
        edges = ranks // per
        beyond = [[(2 * ranks + i // per, 1), (2 * ranks + edges + j // per, 1)] for i, j in pairs]
        paths = [[*own, *further] for own, further in zip(paths, beyond, strict=True)]
        capacity += [Fraction(per, over)] * (2 * edges)
    want = played(capacity, paths, [int(demand[pair]) for pair in pairs])
    got = ends(group, demand, per)
    np.testing.assert_allclose(np.sort(got.seconds), want, rtol=RTOL)
    alone = {
        link: sum(demand[pair] for pair, path in zip(pairs, paths, strict=True) if (link, 1) in path) / float(rate)
        for link, rate in enumerate(capacity)
    }
    assert got.busiest_s == pytest.approx(max(alone.values()))
    assert got.busiest_use == pytest.approx(max(alone.values()) / want[-1])


def test_names_of_busiest_ports_by_hand():
    demand = np.zeros((4, 4))
    demand[0, 2] = demand[1, 2] = 3.0  # 6 into rank 2, 3 out of either sender
    got = ends(Electrical(UNIT, nics=2), demand, 2)
    assert got == FlowEnds(pytest.approx([6.0, 6.0]), "NIC of rank 2, in", 6.0)
    assert ends(Electrical(UNIT, nics=2, nic_use="pooled"), demand, 2).busiest == "NICs of server 0, out"
    edge = ends(Electrical(UNIT, nics=2, oversubscription=4.0), demand, 2)
    assert (edge.busiest, edge.busiest_s) == ("edge switch of server 0, out", 12.0)
    own = ends(Electrical(UNIT, nics=2, planes=2, own_plane=True), demand, 2)
    assert own.busiest == "NIC of rank 0, plane 0, out"  # (0 + 2) mod 2; half a NIC
    assert own.busiest_s == 6.0


def test_nothing_leaves_a_server():
    got = ends(Electrical(UNIT, nics=2), np.kron(np.eye(2), np.ones((2, 2))), 2)
    assert (len(got.seconds), got.busiest, got.busiest_use, got.quantile(0.5)) == (0, None, None, None)


@pytest.mark.parametrize(("part", "want"), [(0.5, 2.0), (0.99, 4.0), (0.25, 1.0), (0.26, 2.0)])
def test_quantiles_are_ends_of_flows(part, want):
    assert FlowEnds(np.array([4.0, 1.0, 2.0, 3.0]), "x", 1.0).quantile(part) == want


@pytest.mark.parametrize("name", ["NIC use own", "pooled", "rails", "planes"])
def test_last_end_is_the_engine_s(name):
    rest = {"pooled": {"nic_use": "pooled"}, "rails": {"pxn": True}, "planes": {"planes": 4, "own_plane": True}}
    group, demand = Electrical(UNIT, nics=4, **rest.get(name, {})), drawn(5, 12, 100)
    last = fixed_times_now(group, demand[None], 4)[0]
    assert ends(group, demand, 4).seconds.max() == pytest.approx(last, rel=RTOL)


def test_direct_links_forward():
    ring = np.array([[0, 1, 0, 1], [1, 0, 1, 0], [0, 1, 0, 1], [1, 0, 1, 0]])
    group = add_paths(DirectLinks(4, UNIT, nics=2), ring)
    demand = np.zeros((4, 4))
    demand[0, 2], demand[0, 1] = 4.0, 1.0  # half of 0 -> 2 by 1, half by 3
    got = ends(group, demand, 1)
    np.testing.assert_allclose(
        np.sort(got.seconds), played([1] * 4, [[(0, 0.5), (1, 0.5), (2, 0.5), (3, 0.5)], [(0, 1)]], [4, 1])
    )
    assert (got.busiest, got.busiest_s) == ("server 0 -> server 1", 3.0)
    assert got.seconds.max() == pytest.approx(fixed_times_now(group, demand[None], 1)[0])
    ways = single_shortest_paths(group, 4, 1, 1)
    alone = ends_on_paths(ways, 1.0, demand, group.mesh.network.link_name)
    assert alone.seconds.max() == pytest.approx(ways.times_now(group, demand[None])[0])
    assert alone.busiest_s in (4.0, 5.0)


@pytest.mark.parametrize("routing", ["unsplit", "best-path", "split"])
@pytest.mark.parametrize("seed", range(4))
def test_circuits_beside_the_engine(routing, seed):
    demand = drawn(seed, 4, 50)
    region = Region(4, UNIT, 3, 1)
    count = np.array([[0, 2, 1, 0], [2, 0, 0, 1], [1, 0, 0, 2], [0, 1, 2, 0]])
    optical, electrical = (float(x) for x in part_times(region, Circuits(jnp.asarray(count)), demand, routing=routing))
    got = ends_on_circuits(region, count, demand, routing, optical, electrical)
    last = max(optical, electrical)
    assert got.seconds.max() == pytest.approx(last, rel=1e-5)
    assert len(got.seconds) == np.count_nonzero(demand * (1 - np.eye(4)))
    if routing == "unsplit":
        pairs = [(i, j) for i in range(4) for j in range(4) if i != j]
        on = {pair: n for n, pair in enumerate(pair for pair in pairs if count[pair])}
        capacity = [int(count[pair]) for pair in on] + [1] * 8
        paths = [[(on[p], 1)] if p in on else [(len(on) + p[0], 1), (len(on) + 4 + p[1], 1)] for p in pairs]
        want = played(capacity, paths, [int(demand[pair]) for pair in pairs])
        np.testing.assert_allclose(np.sort(got.seconds), want, rtol=RTOL)
    assert (got.busiest_use or 0) <= 1 + 1e-5


def test_relayed_pairs_end_together():
    got = ends_on_circuits(
        Region(2, UNIT, 1, 1), np.array([[0, 1], [1, 0]]), np.array([[9.0, 4], [2, 9]]), "relay", 2, 3
    )
    assert got == FlowEnds(pytest.approx([3.0, 3.0]), None, 3)


@pytest.mark.parametrize("edges", [None, np.array([9.0, 7.0, 8.0])])
@pytest.mark.parametrize("exact", [0, 1, 5])
def test_large_all_to_alls_are_estimated_from_a_sample(edges, exact, monkeypatch):
    rng = np.random.default_rng(0)
    size = rng.uniform(0, 1, (20, 6, 6)) ** 3 * (1 - np.eye(6)) * rng.uniform(1, 9, (20, 1, 1))
    size[3] = 0
    ports = fixed.StarLoads(size, np.full(6, 4.0), edges)
    every, bounds = fixed.latest_ends_on(ports), fixed.port_bounds(ports)
    assert (every >= bounds * (1 - 1e-12)).all()
    assert (every > bounds * 1.001).any()
    monkeypatch.setattr(fixed, "EXACT_PORTS", 5)
    monkeypatch.setattr(fixed, "EXACT_WORK", exact * 6**4)
    got = fixed.latest_ends_on(ports)
    assert (got == every).sum() >= exact
    assert got[3] == 0
    np.testing.assert_allclose(got, every, rtol=0.2)
    if not exact:
        np.testing.assert_array_equal(got, bounds)
    dead = ports._replace(port=ports.port * [1, 0, 1, 1, 1, 1])
    assert np.isinf(fixed.latest_ends_on(dead)[bounds > 0]).all()


def test_rails_are_timed_apart_as_together(monkeypatch):
    """Whatever is the largest step between ports with bytes; rails that differ follow each other, edges join all."""
    rng, ports = np.random.default_rng(0), np.arange(12)
    size = rng.uniform(0, 1, (8, 12, 12)) ** 3
    size[0] = 0
    shapes, ends = [], fixed.latest_ends
    monkeypatch.setattr(fixed, "latest_ends", lambda size, *given: (shapes.append(size.shape), ends(size, *given))[1])
    for rails in (1, 2, 3, 4, 12):
        own = size * ((ports[:, None] - ports) % rails == 0) * (1 - np.eye(12) * (rails < 12))
        for port, edges in ((np.full(12, 4.0), None), (1.0 + ports, None), (np.full(12, 4.0), np.array([9.0, 7, 8]))):
            got = fixed.latest_ends_on(fixed.StarLoads(own, port, edges))
            apart, alike = edges is None and rails > 1, port[0] == port[1]
            batch = 8 * rails if apart and alike else 8  # rails whose ports differ follow each other
            assert set(shapes) == {(batch, 12 // rails, 12 // rails) if apart else (8, 12, 12)}
            shapes.clear()
            both = None if edges is None else np.stack([edges, edges])
            np.testing.assert_allclose(got, ends(own, np.stack([port, port]), both), rtol=1e-13)


def test_no_port_bound_is_above_the_exact_end():
    ports = fixed.StarLoads(np.array([[[0, 3.0], [1, 0]]]), np.array([1.0, 2.0]), np.array([0.5, 4.0]))
    assert fixed.port_bounds(ports).tolist() == [6.0]  # the first edge has 3 bytes to send at 0.5 bytes/s
