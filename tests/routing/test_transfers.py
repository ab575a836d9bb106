"""Flows on networks, solved: against ports alone, the all-to-alls of regions and fabrics, and by hand."""

import functools

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mfabric_jax import all_to_all_time, units
from mfabric_jax.fabric import Circuits, Region, cluster
from mfabric_jax.fabric.direct_links import DirectLinks
from mfabric_jax.fabric.electrical import Electrical
from mfabric_jax.fabric.network import network_of as joined
from mfabric_jax.routing import cluster_routes, links_of, transfer
from mfabric_jax.routing.fixed import add_paths, forward_time, spray_time
from mfabric_jax.routing.shortest import Routes
from mfabric_jax.routing.transfers import binding, latency, link_bytes
from tests.mistakes import refused
from tests.oracles import dense
from tests.oracles.tree import tree as star
from tests.routing.regions import dealt

NIC = units.gbps(100.0)
FAST = 1e6  # gigabytes/s: an NVSwitch that never limits


def pairs(ranks):
    src, dst = np.nonzero(~np.eye(ranks, dtype=bool))
    return src, dst


def draw(seed, ranks):
    """Heavy and light pairs, about a fifth of them empty."""
    rng = np.random.default_rng(seed)
    return rng.lognormal(0, 1.5, (ranks, ranks)) * (rng.random((ranks, ranks)) < 0.8) * 1e8


def simulated(network, routes, size, start=0.0):
    """Finish times by the oracle, propagation left out."""
    table = dense.matrix(routes.hops, routes.share, len(network.tail))
    return dense.completion(network.capacity, table, size, start)


def rates(network, routes, sending):
    return dense.max_min(network.capacity, dense.matrix(routes.hops, routes.share, len(network.tail)), sending)


def solved(network, routes, size, start=0.0, **settings):
    return transfer(network, routes, size, start, **{"dtype": "float64"} | settings)


HOSTS = 12
SRC, DST = pairs(HOSTS)
THREE_TO_ONE = {"radix": 8, "oversubscription": 3.0, "tiers": 2}


@functools.cache
def hosts(**settings):
    """12 hosts, a GPU and a NIC each."""
    given = {"gpus_per_server": 1, "radix": 4, "link_delay_s": 0.0, "nvswitch_gigabytes_per_s": FAST} | settings
    return cluster("fat-tree", HOSTS, 100.0, **given)


def test_the_engine_and_the_oracle_agree():
    for form, routing in (({}, "spray"), (THREE_TO_ONE, "spray"), (THREE_TO_ONE, "ecmp")):
        made = hosts(**form)
        network, size = links_of(made, routing), draw(1, HOSTS)[SRC, DST]
        start = np.random.default_rng(2).integers(0, 3, len(SRC)) * 0.05
        routes = cluster_routes(made, SRC, DST, routing=routing, size=size)
        done = solved(network, routes, size, start)
        np.testing.assert_allclose(done.finish, simulated(network, routes, size, start), rtol=1e-9)
        np.testing.assert_allclose(done.rate, rates(network, routes, size > 0), rtol=1e-9)
        table = dense.matrix(routes.hops, routes.share, len(network.tail))
        np.testing.assert_allclose(link_bytes(network, routes, size), table @ size, rtol=1e-12)
        np.testing.assert_allclose(done.link_bytes, table @ size, rtol=1e-12)
        np.testing.assert_array_equal(done.finish[size == 0], start[size == 0])
        assert (size == 0).any()


def test_a_transfer_is_as_precise_as_jax_is_set():
    network, size = links_of(hosts(), "spray"), draw(1, HOSTS)[SRC, DST]
    routes = cluster_routes(hosts(), SRC, DST)
    want, usual = solved(network, routes, size).finish, transfer(network, routes, size).finish
    np.testing.assert_array_equal(usual, want)  # x64 is on in tests
    assert np.any(transfer(network, routes, size, dtype="float32").finish != want)


def kinds(network, routes):
    return {network.links[kind][0] for kind in network.kind_of_links()[routes.hops[routes.hops >= 0]]}


def test_spraying_on_a_non_blocking_tree_leaves_the_ports():
    port, off = np.full(HOSTS, NIC), ~np.eye(HOSTS, dtype=bool)
    for seed, form in enumerate(({}, {"radix": 5}, {"tiers": 2, "radix": 8}, {"radix": 64})):
        demand, made = draw(seed, HOSTS), hosts(**form)
        routes = cluster_routes(made, SRC, DST)
        finish = simulated(made.pooled_network, routes, demand[SRC, DST])
        np.testing.assert_allclose(finish, star(demand * off, port, port)[SRC, DST], rtol=1e-9)
        kept = binding(made.pooled_network, routes)
        assert kinds(made.pooled_network, kept) == {"nic up", "nic down"}
        assert kept.hops.shape[1] == 2
    made = hosts(radix=8, oversubscription=3.0)  # an oversubscribed tree keeps its uplinks
    kept = binding(made.pooled_network, cluster_routes(made, SRC, DST))
    assert kinds(made.pooled_network, kept) >= {"nic up", "nic down", "edge up", "edge down"}


@settings(max_examples=150, derandomize=True)
@given(st.integers(0, 2**32 - 1))
def test_what_binding_drops_holds_nobody_back(seed):
    # Any links, any shares: a few capacities (ties), some links dead, some without end; flows without hops.
    rng = np.random.default_rng(seed)
    flows, links, width = rng.integers(1, 12), rng.integers(1, 8), rng.integers(1, 6)
    hops = np.array([rng.permutation(max(links, width))[:width] for _ in range(flows)])
    hops[(hops >= links) | (rng.random(hops.shape) < 0.2)] = -1
    share = np.where(hops >= 0, rng.choice([0.25, 0.5, 1.0, 1.0, rng.random() + 0.1], hops.shape), 0)
    capacity = rng.choice([1.0, 2.0, 3.0, 8.0, 20.0, rng.random(), 0.0 if seed % 3 else 1.0, np.inf], links)
    network = joined([("link", np.zeros(links), np.ones(links), capacity)], (("node", 2),), 0.0)
    routes = Routes(hops, share)
    kept = binding(network, routes)
    for _ in range(3):
        sending = rng.random(flows) < 0.8
        np.testing.assert_allclose(rates(network, kept, sending), rates(network, routes, sending), rtol=1e-8)
    before, after = (dense.matrix(r.hops, r.share, links) for r in (routes, kept))
    assert np.all((after == before) | (after == 0))
    assert np.all((after > 0).any(axis=0) == (before > 0).any(axis=0))  # nobody loses all of its links


SERVERS = 5
FROM, TO = pairs(SERVERS)


def legal(seed, degree=4):
    """Circuits of a region, some pairs without any."""
    return dealt(np.random.default_rng(seed), [degree] * SERVERS, 6).astype(int)


def one_gpu_each(name, count, **settings):
    given = {"gpus_per_server": 1, "link_delay_s": 0.0, "nvswitch_gigabytes_per_s": FAST} | settings
    return cluster(name, SERVERS, 100.0, regions=count[None], **given)


def test_a_region_ends_as_its_fast_path_says():
    unsplit = eqx.filter_jit(all_to_all_time)
    for seed in range(6):
        count, demand, nics = legal(seed), draw(seed, SERVERS), 1 + seed % 2
        made = one_gpu_each("mfabric", count, electrical_nics=nics)
        routes = cluster_routes(made, FROM, TO)
        want = unsplit(Region(SERVERS, 100.0, 4, jnp.asarray(float(nics))), Circuits(count), demand)
        np.testing.assert_allclose(simulated(made.pooled_network, routes, demand[FROM, TO]).max(), want, rtol=1e-9)
        if seed == 0:
            np.testing.assert_allclose(
                solved(made.pooled_network, routes, demand[FROM, TO]).finish.max(), want, rtol=1e-9
            )


def test_a_flat_fabric_ends_as_its_fast_path_says():
    ring = np.roll(np.eye(SERVERS, dtype=int), 1, axis=1)
    for seed in range(2):
        count = np.maximum(legal(seed, 3), ring + ring.T)
        made, demand = one_gpu_each("topoopt", count), draw(seed, SERVERS)
        assert np.any(made.circuits.find(FROM, TO) < 0)
        want = forward_time(add_paths(DirectLinks(SERVERS, 100.0), count), demand)
        finish = simulated(made.pooled_network, cluster_routes(made, FROM, TO), demand[FROM, TO])
        np.testing.assert_allclose(finish.max(), want, rtol=1e-9)


@pytest.mark.parametrize(("name", "gpus", "radix", "over"), [("fat-tree", 4, 8, None), ("oversub-fat-tree", 3, 4, 3.0)])
def test_a_fabric_of_own_nics_ends_as_its_fast_path_says(name, gpus, radix, over):
    # Every edge switch has as many ports down as a server has NICs.
    settings = {"gpus_per_server": gpus, "link_delay_s": 0.0, "nvswitch_gigabytes_per_s": FAST}
    made = cluster(name, 4, 100.0, radix=radix, oversubscription=over, **settings)
    assert made.tree.edge_ports[1] == gpus
    src, dst = pairs(4 * gpus)
    away, sprayed = src // gpus != dst // gpus, eqx.filter_jit(spray_time)
    for seed in range(3):
        demand = draw(seed, 4 * gpus)
        finish = simulated(made.pooled_network, cluster_routes(made, src, dst), demand[src, dst])
        want = sprayed(Electrical(100.0, nics=gpus, oversubscription=over), demand, gpus)
        np.testing.assert_allclose(finish[away].max(), want, rtol=1e-9)


def test_links_carry_what_they_can_and_bottlenecks_are_full():
    # A skewed all-to-all between the GPUs of 4 servers on mfabric that starts after 100 s.
    count = np.zeros((1, 4, 4), int)
    count[0, [0, 1, 2, 3], [1, 0, 3, 2]] = 2
    made = cluster("mfabric", 4, 100.0, regions=count, gpus_per_server=3, electrical_nics=1, radix=4)
    (src, dst), network = pairs(12), made.pooled_network
    size, routes = draw(5, 12)[src, dst], cluster_routes(made, src, dst)
    done = solved(network, routes, size, 100.0)
    assert np.all((done.utilisation >= 0) & (done.utilisation <= 1 + 1e-12))
    assert done.utilisation.max() > 0.5
    took = done.finish.max() - 100  # seconds
    np.testing.assert_allclose(done.utilisation, done.link_bytes / (network.capacity * took), rtol=1e-9)
    carried = dense.matrix(routes.hops, routes.share, len(network.tail)) @ done.rate
    assert np.all(carried <= network.capacity * (1 + 1e-9))
    for flow, link in enumerate(done.bottleneck):
        if size[flow]:
            assert link in routes.hops[flow]
            assert carried[link] == pytest.approx(network.capacity[link], rel=1e-9)
        else:
            assert (link, done.rate[flow]) == (-1, 0)


def test_propagation_comes_on_top():
    # Below one edge switch 2 links, in one pod 4, else 6, 1 us each; nothing without bytes.
    made = hosts(link_delay_s=units.us(1.0))
    src, dst, far = [0, 2, 5, 3], [1, 0, 8, 7], np.array([2, 4, 6, 0])
    size = np.array([1e9, 1e9, 1e9, 0.0])
    for routing in ("spray", "ecmp"):
        network = links_of(made, routing)
        done = solved(network, cluster_routes(made, src, dst, routing=routing), size)
        np.testing.assert_allclose(done.finish, size / NIC + units.us(far), rtol=1e-13)


def test_latency_is_the_mean_over_the_bytes():
    # Inside a server 2 us. Over 2 circuits at GPUs 0 and 1 from GPU 0: half crosses the NVSwitch, 2 us, then 1 us.
    made = cluster("mfabric", 2, 100.0, regions=np.array([[[0, 2], [2, 0]]]), gpus_per_server=4, electrical_nics=2)
    routes = cluster_routes(made, [0, 0, 3, 0], [1, 4, 7, 7])
    np.testing.assert_allclose(latency(made.pooled_network, routes), units.us(np.array([2, 3, 5, 4])), rtol=1e-12)


def test_flows_that_cannot_end_and_nothing_to_move():
    made = hosts()
    routes = cluster_routes(made, [0, 1], [2, 3], routing="ecmp")
    broken = made.network.without(np.setdiff1d(routes.hops[0], routes.hops[1]))
    said = "the flows cannot all end: A flow never finishes: its cap or a link on its path is zero"
    assert said in refused(solved, broken, routes, [1.0, 1.0])
    np.testing.assert_allclose(solved(broken, routes, [0.0, 1e9]).finish, [0, 1e9 / NIC], rtol=1e-12)
    done = solved(made.pooled_network, cluster_routes(made, [], []), [])
    assert done.finish.shape == (0,)
    assert not done.link_bytes.any() | done.utilisation.any()
