"""Clusters by themselves: where circuits end, what links carry, and what is refused in which words."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mfabric_jax import units
from mfabric_jax.fabric import Cluster, cluster
from mfabric_jax.fabric.tree import Tree
from mfabric_jax.routing import cluster_routes
from tests.mistakes import refused
from tests.routing.clusters import all_pairs, built


@st.composite
def regions(draw):
    groups, size, most = draw(st.integers(1, 3)), draw(st.integers(1, 6)), draw(st.integers(0, 3))
    drawn = draw(st.lists(st.integers(0, most), min_size=groups * size**2, max_size=groups * size**2))
    count = np.triu(np.array(drawn, int).reshape(groups, size, size), 1)
    return count + count.transpose(0, 2, 1)


@settings(max_examples=200, derandomize=True)
@given(regions(), st.sampled_from([1, 2, 4, 5, 8, 64]))
def test_every_circuit_ends_at_an_optical_nic_of_its_own(count, gpus):
    groups, size, _ = count.shape
    made = Cluster("optics", groups * size, 100.0, gpus, regions=count, nic_use="pooled")
    table, whole = made.circuits, np.zeros((groups * size,) * 2, int)
    for g in range(groups):
        whole[g * size : (g + 1) * size, g * size : (g + 1) * size] = count[g]
    src, dst = np.nonzero(whole)
    np.testing.assert_array_equal((table.src, table.dst, table.count), (src, dst, whole[src, dst]))
    np.testing.assert_array_equal((table.gpu >= 0).sum(1), table.count)
    row = table.find(*all_pairs(groups * size))
    np.testing.assert_array_equal(row >= 0, whole.ravel() > 0)
    np.testing.assert_array_equal(row[row >= 0], np.arange(len(src)))
    degree = int(count.sum(2).max(initial=0))
    for server in range(groups * size):
        at = np.bincount(table.gpu[table.src == server][table.gpu[table.src == server] >= 0], minlength=gpus)
        assert at.sum() == whole[server].sum()
        # NIC n sits at GPU n, cyclically; so a GPU has no more ends than NICs, and a full server has them all used.
        nics = np.bincount(np.arange(degree) % gpus, minlength=gpus)
        assert np.all(at <= nics)
    if len(src):
        np.testing.assert_allclose(made.network.capacity[made.network.run("circuit")], table.count * made.nic_Bps)


def test_where_circuits_end_in_a_server_by_hand():
    # 6 optical NICs at GPUs 0..5 of 8: NUMA nodes are GPUs 0..3 and 4..7. Dealt 0, 4, 1, 5, 2, 3. One peer takes two
    # circuits, one in each half of the server, then as many as are left go to a second.
    for gpus, degree in [(8, 6), (8, 8), (8, 5), (64, 256), (4, 8), (2, 2)]:
        count = np.zeros((1, 3, 3), int)
        count[0, 0, 1] = count[0, 1, 0] = 2
        count[0, 0, 2] = count[0, 2, 0] = degree - 2
        ends = Cluster("optics", 3, 100.0, gpus, regions=count, nic_use="pooled").circuits.gpu
        assert (ends[0, :2] >= (gpus + 1) // 2).tolist() in ([False, True], [True, False])
        if degree == 6:
            np.testing.assert_array_equal(ends, [[0, 4, -1, -1], [1, 5, 2, 3], [0, 4, -1, -1], [0, 4, 1, 5]])
        if degree == 256:
            np.testing.assert_array_equal(np.bincount(ends[:2][ends[:2] >= 0], minlength=64), 4)  # four NICs each


def test_a_scale_up_domain_keeps_its_bytes_off_the_nics():
    # 128 GPUs, one megabyte each to each. In servers of 8 a NIC has 120 to send; in domains of 64 it has 64, and the
    # circuits, 256 a domain, 64 x 64 between them.
    src, dst = all_pairs(128)
    src, dst = src[src != dst], dst[src != dst]
    nic, both = units.gbps(800.0), np.array([[[0, 256], [256, 0]]])
    for name, servers, megabytes in (("fat-tree", 16, 120), ("nvl72", 2, 64), ("mfabric-cpo", 2, 64 * 64 / 256)):
        made = cluster(name, servers, 800.0, regions=both if name == "mfabric-cpo" else None, link_delay_s=0.0)
        # The same 8 Tbps per GPU: 800 Gbps Ethernet, and 7.2 Tbps of NVLink or half as much beside the circuits.
        nvlink = 450e9 if name == "mfabric-cpo" else 900e9
        np.testing.assert_array_equal(made.network.capacity[made.network.run("nvswitch up")], nvlink)
        routes = cluster_routes(made, src, dst)
        carried = np.bincount(routes.hops.ravel() + 1, routes.share.ravel(), len(made.sprayed.tail) + 1)[1:]
        outside = ~np.isin(made.sprayed.kind_of_links(), [0, 1])
        busiest = np.max((carried / made.sprayed.capacity)[outside])
        assert busiest == pytest.approx(megabytes / nic, rel=1e-9)


def test_goodput_and_failed_links():
    made = built("fat-tree", goodput=0.5)
    network = made.network
    np.testing.assert_array_equal(network.capacity[network.run("edge up")], units.gbps(50.0))
    np.testing.assert_array_equal(network.capacity[network.run("nvswitch up")], units.gigabytes_per_s(900.0))
    assert made.sprayed.capacity[made.sprayed.run("edge up")].tolist() == [4 * units.gbps(50.0)] * 8
    broken = network.without(np.array([3]))
    assert broken.capacity[3] == 0
    assert np.array_equal(np.delete(broken.capacity, 3), np.delete(network.capacity, 3))
    assert network.capacity[3] > 0


def test_servers_that_nothing_joins():
    count = np.zeros((1, 4, 4), int)
    count[0, 0, 1] = count[0, 1, 0] = 1
    made = cluster("topoopt", 4, 100.0, regions=count)
    assert refused(cluster_routes, made, [0], [16]).startswith("no path leads from server 0 to server 2")
    alone = Cluster("rails", 2, 100.0, 4, Tree(8, 8, 2, parts=4), rails=True)
    assert "different rails have no way to each other without pxn" in refused(cluster_routes, alone, [0], [5])
    cluster_routes(alone, [0], [4])


def test_clusters_that_are_none():
    wrong = "regions must hold whole numbers of circuits"
    for changes, words in [
        ({"name": "fattree"}, "fabric 'fattree' is unknown (did you mean 'fat-tree'?)"),
        ({"regions": np.zeros((1, 4, 4), int)}, "fat-tree has no circuits; regions was [1, 4, 4]."),
        ({"name": "mfabric"}, "mfabric needs circuits; regions was not given."),
        ({"name": "mfabric", "regions": np.zeros((1, 3, 3), int)}, "regions must be circuits [G S S] with G x S = 4"),
        ({"name": "mfabric", "regions": np.ones((1, 4, 4), int)}, wrong),
        ({"name": "mfabric", "regions": np.zeros((1, 4, 4))}, wrong),
        ({"name": "mfabric", "regions": -np.ones((1, 4, 4), int)}, wrong),
        ({"oversubscription": 0.0}, "oversubscription must be finite and above 0, got 0.0."),
        ({"servers": 0}, "servers must be a whole number of at least 1"),
        ({"nic_gbps": 0.0}, "nic_gbps must be finite and above 0, got 0.0."),
        ({"nic_use": "shared"}, "nic_use 'shared' is unknown"),
        ({"goodput": 0.0}, "goodput must be above 0 and at most 1, got 0.0."),
        ({"goodput": 1.5}, "goodput must be above 0 and at most 1, got 1.5."),
        ({"link_delay_s": -1.0}, "link_delay_s must be finite and not negative, got -1.0."),
        ({"nvswitch_gigabytes_per_s": 0.0}, "nvswitch_gigabytes_per_s must be finite and above 0"),
        ({"radix": 2, "tiers": 2}, "a tree of 2 tiers and radix 2 has room for 2 hosts, got 32"),
    ]:
        given = {"name": "fat-tree", "servers": 4, "nic_gbps": 100.0} | changes
        assert refused(cluster, **given).startswith(words)
    said = refused(Cluster, "mine", 2, 100.0, 8, Tree(8, 8))
    assert said.startswith("nic_use 'own' gives each GPU its own NIC, but a server has 8 GPUs and 4 NICs")
    assert "divide evenly over 3 servers" in refused(Cluster, "mine", 3, 100.0, 4, Tree(8, 8))
