"""Every hop table is a path: nothing is lost at switches and servers, and NICs and delegates are the right ones."""

import dataclasses
import functools
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mfabric_jax.fabric import Cluster, cluster
from mfabric_jax.routing import cluster as routing_cluster
from mfabric_jax.routing import cluster_routes, links_of
from mfabric_jax.routing.cluster import PATHS, nic_routes
from tests.oracles import dense
from tests.routing.clusters import CIRCUITS, CLUSTERS, COUNT, GPUS, SERVERS, all_pairs, built

VARIANTS = [
    *((name, {}) for name in CLUSTERS),
    ("full-mesh", {"shape": (8,)}),  # 4/7 of a NIC to each peer
    ("full-mesh", {"shape": (4, 2), "paths": "detour"}),
    ("fat-tree", {"pxn": True}),
    ("fat-tree", {"nic_use": "pooled"}),
    ("fat-tree", {"tiers": 2, "radix": 16}),
    ("fat-tree", {"tiers": 1, "radix": 32}),
    ("rail-only", {"tiers": 1}),
    ("fat-tree", {"radix": 6}),  # 4 pods, the last one hardly filled
    ("oversub-fat-tree", {"at": "aggregation"}),
    ("rail-optimized", {"pxn": True}),
    ("rail-optimized", {"radix": 12}),  # 6 servers at a rail switch, then 2
    ("mfabric", {"electrical_nics": 1}),
    ("mfabric", {"electrical_nics": 4}),
]

SRC, DST = all_pairs()

SIZE = np.random.default_rng(3).lognormal(16, 1.5, COUNT**2)


@functools.cache
def routed(name, routing, seed=0, **variant):
    """(network, [L F] shares) of every ordered pair of GPUs, those from a GPU to itself too."""
    made = built(name, **variant)
    network = links_of(made, routing)
    routes = cluster_routes(made, SRC, DST, routing=routing, seed=seed, size=SIZE)
    return network, dense.matrix(routes.hops, routes.share, len(network.tail)), routes


def surplus(network, table, part_of):
    """[part F] what leaves each part of the network less what enters it."""
    parts = part_of.max() + 1
    out = np.zeros((parts, table.shape[1]))
    np.add.at(out, part_of[network.tail], table)
    np.add.at(out, part_of[network.head], -table)
    return out


def server_of_nodes(network):
    """Server of every GPU, NVSwitch and optics node; switches are parts of their own."""
    server = np.full(network.size, -1)
    runs = {kind: network.run(kind, of="nodes") for kind, _ in network.nodes}
    server[runs["gpu"]] = np.arange(COUNT) // GPUS
    server[runs["nvswitch"]] = np.arange(SERVERS)
    if "optics" in runs:
        server[runs["optics"]] = np.arange(SERVERS)
    switches = np.flatnonzero(server < 0)
    server[switches] = SERVERS + np.arange(len(switches))
    return server


@pytest.mark.parametrize(("name", "variant"), VARIANTS)
def test_nothing_is_lost(name, variant):
    for routing in PATHS:
        network, table, routes = routed(name, routing, **variant)
        assert_rows(routes)
        assert_conserved(built(name, **variant), network, table)
        mesh = built(name, **variant).mesh
        spread = mesh is not None and (mesh.areas is not None or mesh.detours)  # whatever the routing
        if routing != "spray" and not spread:
            assert_walks(network, routes)


def assert_rows(routes):
    """Shares above 0 where there is a link; every link once."""
    assert np.all((routes.share > 0) == (routes.hops >= 0))
    ordered = np.sort(routes.hops, axis=1)
    assert not ((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)).any()


def assert_conserved(made, network, table):
    """At every GPU what comes in and its own bytes go out, by its circuits too, at every switch all goes on; a flow
    leaves its server once and never returns, enters the other one once, and never leaves if that is its own."""
    left, flows = -surplus(network, table, np.arange(network.size)), np.arange(len(SRC))  # entered less left [node F]
    np.add.at(left, (SRC, flows), 1)
    np.add.at(left, (DST, flows), -1)
    circuits = made.circuits
    for row in range(len(circuits.src)):
        part = table[len(network.tail) - len(circuits.src) + row] / circuits.count[row]
        back = circuits.find(circuits.dst[[row]], circuits.src[[row]])[0]
        for node, gpus, sent in ((circuits.src[row], row, -part), (circuits.dst[row], back, part)):
            if node < SERVERS:  # no router
                for copy in np.flatnonzero(circuits.gpu[gpus] >= 0):
                    left[node * GPUS + circuits.gpu[gpus, copy]] += sent * circuits.part[gpus, copy]
    if len(circuits.src):
        left = np.delete(left, np.r_[network.run("optics", of="nodes")], axis=0)
    np.testing.assert_allclose(left, 0, atol=1e-12)
    away, part = SRC // GPUS != DST // GPUS, server_of_nodes(network)
    beyond = part[network.tail] != part[network.head]
    for one, other, server in ((network.tail, network.head, SRC), (network.head, network.tail, DST)):
        out, back = (table * (beyond[:, None] & (part[end][:, None] == server // GPUS)) for end in (one, other))
        np.testing.assert_allclose(out.sum(0), away, atol=1e-12)
        assert np.all(back == 0)
    inside = np.isin(network.kind_of_links(), [0, 1])
    assert np.all(table[~inside][:, ~away] == 0)
    assert np.all(table[:, SRC == DST] == 0)


def assert_walks(network, routes):
    """One path is a walk from server to server."""
    part, tail, head = server_of_nodes(network), network.tail, network.head
    for flow, (at, end) in enumerate(zip(SRC // GPUS, DST // GPUS, strict=True)):
        links = routes.hops[flow][routes.hops[flow] >= 0]
        onwards = {part[tail[link]]: part[head[link]] for link in links if part[tail[link]] != part[head[link]]}
        while onwards:
            at = onwards.pop(at)
        assert at == end


def merged_names(made, network):
    """What each node of `network` is called in `sprayed`."""
    tree = made.tree
    up, climb = tree.edge_ports[0], tree.pod_ports[0]
    whole = {"aggregation": ("pod", up), "core": ("cores", up * climb), "spine": ("spines", up)}
    names = []
    for kind, count in network.nodes:
        to, size = whole.get(kind, (kind, 1))
        names += [f"{to} {n // size}" for n in range(count)]
    return names


def linked(network, names):
    """(tail, head) -> capacity and kinds, of all links between two nodes together."""
    found = {}
    for link in range(len(network.tail)):
        key = names[network.tail[link]], names[network.head[link]]
        found[key] = found.get(key, 0) + network.capacity[link]
    return found


def needed(made):
    """Whether a link is one that its edge switch, maybe partly empty, needs: k:1 of the hosts below it, rounded up."""
    tree, network = made.tree, made.network
    up, down = tree.edge_ports
    found = np.ones(len(network.tail), bool)
    if tree.tiers == 1:
        return found
    hosts = np.bincount(tree.edge_of(np.arange(tree.hosts)))
    for kind in ("edge up", "edge down"):
        first = network.run(kind).start
        for number in range(len(hosts) * up):
            edge, place = divmod(number, up)
            found[first + number] = place < (-(-hosts[edge] * up // down) if tree.edges_per_part > 1 else 1)
    return found


@pytest.mark.parametrize(("name", "variant"), [v for v in VARIANTS if built(v[0]).tree is not None])
def test_sprayed_is_the_network_with_its_links_merged(name, variant):
    made = built(name, **variant)
    network, sprayed = made.network, made.pooled_network
    names, plain = merged_names(made, network), [sprayed.node_name(node) for node in range(sprayed.size)]
    network = dataclasses.replace(network, capacity=np.where(needed(made), network.capacity, 0))
    want, got = linked(network, names), linked(sprayed, plain)
    assert got.keys() == want.keys()
    for key in want:
        assert got[key] == pytest.approx(want[key], rel=1e-12)
    assert set(plain) == set(names)
    assert len(sprayed.tail) == len(got)  # no parallel links are left
    assert sum(count for _, count in sprayed.links) == len(sprayed.tail)
    # Sprayed routes are the mean of all single paths.
    if made.nic_use == "pooled":
        return
    tree, place = made.tree, {}
    for pool, key in enumerate(zip(sprayed.tail.tolist(), sprayed.head.tolist(), strict=True)):
        place[plain[key[0]], plain[key[1]]] = pool
    pool_of = np.array([place[names[a], names[b]] for a, b in zip(network.tail, network.head, strict=True)])
    mean = np.zeros((len(sprayed.tail), len(SRC)))
    for path in range(tree.paths):
        choice = divmod(path, tree.pod_ports[0])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(routing_cluster, "ecmp", lambda t, s, d, seed, of=choice: [np.full(len(s), x) for x in of])
            routes = cluster_routes(made, SRC, DST, routing="ecmp")
        np.add.at(mean, pool_of, dense.matrix(routes.hops, routes.share, len(network.tail)) / tree.paths)
    np.testing.assert_allclose(routed(name, "spray", **variant)[1], mean, atol=1e-12)


def nics_used(name, routing, **variant):
    """[GPU F] part of each flow that leaves by the NICs of each GPU, and that enters by them."""
    network, table, _ = routed(name, routing, **variant)
    out, into = np.zeros((2, COUNT, len(SRC)))
    up, down = network.run("nic up"), network.run("nic down")
    np.add.at(out, network.tail[up], table[up])
    np.add.at(into, network.head[down], table[down])
    return out, into


AWAY = SRC // GPUS != DST // GPUS

HOLDS = np.arange(COUNT)[:, None]


def test_own_nics_and_pxn():
    # Own: a flow leaves by its GPU's NIC. PXN: by that of the rank of the destination. It enters by the destination's.
    cases = [(name, {}, False) for name in ("fat-tree", "oversub-fat-tree", "rail-optimized", "nvl72")]
    for (name, variant, pxn), routing in itertools.product(
        [*cases, ("rail-only", {}, True), ("rail-optimized", {"pxn": True}, True)], PATHS
    ):
        out, into = nics_used(name, routing, **variant)
        np.testing.assert_array_equal(out, AWAY & ((SRC // GPUS * GPUS + DST % GPUS if pxn else SRC) == HOLDS))
        np.testing.assert_array_equal(into, AWAY & (HOLDS == DST))
        if pxn:
            network, table, _ = routed(name, routing, **variant)
            gather = table[network.run("nvswitch up")][:, AWAY]  # only where the ranks differ
            np.testing.assert_array_equal(gather, ((HOLDS == SRC) & (SRC % GPUS != DST % GPUS))[:, AWAY])


def test_pooled_nics_sit_at_the_last_gpus_and_share_evenly():
    for nics in (1, 2, 4):
        variant, holders = {} if nics == 2 else {"electrical_nics": nics}, set(range(GPUS - nics, GPUS))
        held = np.isin(np.arange(COUNT) % GPUS, list(holders))[:, None]
        rest = AWAY & (built("mfabric", **variant).circuits.find(SRC // GPUS, DST // GPUS) < 0)
        assert rest.any()
        for end, used in zip((SRC, DST), nics_used("mfabric", "spray", **variant), strict=True):
            own = end // GPUS == HOLDS // GPUS
            np.testing.assert_allclose(used, np.where(held & own & rest, 1 / nics, 0), atol=1e-15)
        for routing in ("ecmp", "least-loaded"):
            out, into = nics_used("mfabric", routing, **variant)
            np.testing.assert_array_equal(out.sum(0), rest)
            np.testing.assert_array_equal(np.argmax(out, 0)[rest] % GPUS, np.argmax(into, 0)[rest] % GPUS)
            assert set(np.argmax(out, 0)[rest] % GPUS) == holders


def test_pairs_with_circuits_use_nothing_else():
    for name in CIRCUITS:
        network, table, _ = routed(name, "spray")
        made = built(name)
        row = made.circuits.find(SRC // GPUS, DST // GPUS)
        direct = AWAY & (row >= 0)
        active = table[network.run("circuit")]
        np.testing.assert_array_equal(active[:, direct], np.arange(len(active))[:, None] == row[direct])
        if made.tree is not None:
            assert np.all(table[network.run("nic up")][:, direct] == 0)
            assert np.all(active[:, ~direct] == 0)


def test_a_seed_repeats_and_another_one_differs():
    for routing in ("ecmp", "least-loaded"):
        first, again, other = (
            cluster_routes(built("fat-tree"), SRC, DST, routing=routing, seed=seed, size=SIZE) for seed in (4, 4, 5)
        )
        np.testing.assert_array_equal(first.hops, again.hops)
        assert np.any(first.hops != other.hops)


def test_hashes_spread_evenly():
    # 8 x 8 GPUs in different pods, 100 seeds: each of the 16 paths is hit 400 times of 6,400; 6 sigma is 116.
    made = built("fat-tree")
    src, dst = (x.ravel() for x in np.mgrid[0:8, 16:24])
    hits = np.zeros(len(made.network.tail))
    for seed in range(100):
        routes = cluster_routes(made, src, dst, routing="ecmp", seed=seed)
        np.add.at(hits, routes.hops[routes.hops >= 0], 1)
    climbed = hits[made.network.run("aggregation up")]
    assert climbed.sum() == 6400
    assert np.count_nonzero(climbed) == 16
    assert np.all(np.abs(climbed[climbed > 0] - 400) < 116)


def test_the_least_loaded_path_is_the_emptiest():
    # 4 equal flows from one edge switch to one other have 4 uplinks, each flow one for itself; hashes collide. So do
    # flows from four edge switches, of one pod or of two, on the downlinks to one, and from one to four.
    made = built("fat-tree")
    network, together, apart = made.network, np.arange(16, 20), np.arange(0, 16, 4)
    for src, dst in ((np.arange(4), together), (apart, together), (together, apart), (apart[:2], together[:2])):
        routes = cluster_routes(made, src, dst, routing="least-loaded", size=np.ones(len(src)))
        for kind in ("edge up", "aggregation up", "aggregation down", "edge down"):
            links = np.arange(len(network.tail))[network.run(kind)]
            used = routes.hops[np.isin(routes.hops, links)]
            assert len(np.unique(used)) == len(src)
    # The largest first: 3 alone on its uplink, 1 + 1 on the other.
    narrow = cluster("fat-tree", 16, 100.0, gpus_per_server=1, radix=10, tiers=2, oversubscription=4.0)
    routes = cluster_routes(narrow, [0, 1, 2], [8, 9, 10], routing="least-loaded", size=[1.0, 3.0, 1.0])
    assert narrow.tree.edge_ports == (2, 8)
    up = np.arange(len(narrow.network.tail))[narrow.network.run("edge up")]
    taken = [next(link for link in row if link in up) for row in routes.hops]
    assert taken[0] == taken[2] != taken[1]


def test_chunks_change_nothing_and_no_flows_have_no_hops(monkeypatch):
    for name, routing in itertools.product(("fat-tree", "mfabric", "topoopt"), PATHS):
        _, whole, _ = routed(name, routing)
        with monkeypatch.context() as patch:
            patch.setattr(routing_cluster, "AT_ONCE", 100)
            routes = cluster_routes(built(name), SRC, DST, routing=routing, size=SIZE)
        np.testing.assert_array_equal(dense.matrix(routes.hops, routes.share, len(whole)), whole)
        routes = cluster_routes(built(name), [], [], routing=routing, size=[])
        assert routes.hops.shape[0] == routes.share.shape[0] == 0


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


def test_a_lost_nic_of_separate_rails_leaves_and_arrives_on_its_heirs_rail():
    tree = built("rail-only", oversubscription=3.0)  # 6 servers below the first edge switch of a rail
    network = links_of(tree)
    src, dst = all_pairs()
    src, dst = (gpus[src // GPUS != dst // GPUS] for gpus in (src, dst))
    lost, heir = (int(tree.host(np.array(0), np.array(nic))) for nic in (0, 1))
    hops, share = nic_routes(tree, src, dst, ((lost, (heir,)),))
    for row, part, here, there in zip(hops, share, src, dst, strict=True):
        used = row[row >= 0]
        assert np.all(part[row >= 0] == 1)
        tails, heads = (set(ends[used].tolist()) for ends in (network.tail, network.head))
        (first,), (last,) = tails - heads, heads - tails
        assert len(used) == (4 if (here // GPUS < 6) != (there // GPUS < 6) else 2)
        rail = there % GPUS or int(0 in (here // GPUS, there // GPUS))
        assert (first, last) == (here // GPUS * GPUS + rail, there // GPUS * GPUS + rail)
