"""Switch trees: ports and links against closed forms, and what fits through the middle of every cluster."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import coo_array
from scipy.sparse.csgraph import maximum_flow

from mfabric_jax import InputError, units
from mfabric_jax.fabric import cluster
from mfabric_jax.fabric.cost import tree_attachment as attachment
from mfabric_jax.fabric.tree import Tree
from tests.routing.clusters import GPUS, SERVERS, built, circuits


def links_of(tree):
    """(tail, head) of every link between switches by kind, switches counted from 0."""
    return {kind: (tail, head) for kind, tail, head in tree.switch_links(0)}


def ports_used(tree):
    """Ports in use at every switch, from its links and its hosts; up and down links are the two directions of one."""
    used = np.bincount(tree.edge_of(np.arange(tree.hosts)), minlength=sum(count for _, count in tree.switches))
    for kind, (tail, head) in links_of(tree).items():
        if kind.endswith("up"):
            np.add.at(used, tail, 1)
            np.add.at(used, head, 1)
    return used


def counts(tree):
    return dict(tree.switches)


# Switch ports, transceivers and fibres for each host of a full tree, with the host's own link.
def test_a_full_tree_has_what_its_hosts_pay_for():
    for form, by_hand in [
        ({}, (5, 6, 3)),
        ({"tiers": 2}, (3, 4, 2)),
        ({"tiers": 1}, (1, 2, 1)),
        ({"oversubscription": 3.0}, (1 + 4 / 3, 2 + 4 / 3, 1 + 2 / 3)),
        ({"oversubscription": 7.0}, (1 + 4 / 7, 2 + 4 / 7, 1 + 2 / 7)),
        ({"oversubscription": 3.0, "oversubscribed_at": "aggregation"}, (3 + 2 / 3, 4 + 2 / 3, 2 + 1 / 3)),
        ({"oversubscription": 3.0, "tiers": 2}, (1 + 2 / 3, 2 + 2 / 3, 1 + 1 / 3)),
    ]:
        for parts in (1, 3):
            tree = Tree(parts * Tree(1, radix=8, **form).most_hosts, radix=8, parts=parts, **form)
            links = tree.hosts + sum(len(tail) for kind, (tail, _) in links_of(tree).items() if kind.endswith("up"))
            ports = ports_used(tree).sum()
            np.testing.assert_allclose(np.array([ports, 2 * links, links]) / tree.hosts, by_hand, rtol=1e-12)
        paid = attachment(**form)
        np.testing.assert_allclose((paid.switch_ports, paid.transceivers, paid.fibres), by_hand, rtol=1e-12)


@st.composite
def trees(draw):
    """Any tree that has room for its hosts."""
    radix, tiers = draw(st.integers(2, 12)), draw(st.sampled_from([1, 2, 3]))
    at = draw(st.sampled_from(["edge", "aggregation"])) if tiers == 3 else "edge"
    over = 1.0 if tiers == 1 else draw(st.sampled_from([1.0, 1.5, 2.0, 3.0, 1 / 3]))
    parts = draw(st.integers(1, 3))
    try:
        most = Tree(1, radix, tiers, over, at).most_hosts
    except InputError:  # no port left for one direction
        radix, over = 2, 1.0
        most = Tree(1, radix, tiers, over, at).most_hosts
    return Tree(parts * draw(st.integers(1, most)), radix, tiers, over, at, parts)


def test_ports_that_a_ratio_leaves_over_stay_unused():
    tree = Tree(6, radix=10, tiers=2, oversubscription=3.0)
    assert (tree.edge_ports, counts(tree)) == ((2, 6), {"edge": 1, "spine": 2})
    assert Tree(10, radix=11).edge_ports == (5, 5)
    assert Tree(1, radix=7, oversubscription=2.5).edge_ports == (2, 5)


@settings(max_examples=150, derandomize=True)
@given(trees())
def test_a_partly_filled_tree_is_a_tree(tree):
    hosts = np.arange(tree.hosts)
    edge, kinds = tree.edge_of(hosts), counts(tree)
    assert np.all(ports_used(tree) <= tree.radix)
    assert np.bincount(edge).max() <= tree.edge_ports[1]
    assert np.all(np.diff(edge) >= 0)
    assert edge.max() + 1 == kinds["edge"]  # the last one too has a host
    assert np.all(np.bincount(edge) > 0)
    assert tree.pods_per_part <= tree.radix
    part = tree.part_of(hosts)
    np.testing.assert_array_equal(np.bincount(part), tree.hosts // tree.parts)
    links = links_of(tree)
    none = np.zeros((2, 0), int)  # of one switch
    up, down = (
        np.hstack([none, *(ends for kind, ends in links.items() if kind.endswith(way))]) for way in ("up", "down")
    )
    np.testing.assert_array_equal(up, down[::-1])
    up_tail, up_head = up
    assert len(set(zip(up_tail.tolist(), up_head.tolist(), strict=True))) == len(up_tail)  # no parallel links
    ranges = np.cumsum([0, *kinds.values()])
    tier = np.searchsorted(ranges, up_tail, side="right"), np.searchsorted(ranges, up_head, side="right")
    np.testing.assert_array_equal(tier[1], tier[0] + 1)  # a tier at a time
    # Every switch belongs to the part of the hosts below it, and every part is in one piece.
    count = sum(kinds.values())
    whose = np.full(count, -1)
    whose[edge] = part
    for tail, head in zip(up_tail, up_head, strict=True):  # lower tiers come first
        assert whose[head] in (-1, whose[tail])
        whose[head] = whose[tail]
    assert np.all(whose >= 0)


@settings(max_examples=200, derandomize=True)
@given(trees(), st.integers(0, 2**32 - 1))
def test_paths_lead_from_edge_to_edge(tree, seed):
    rng = np.random.default_rng(seed)
    part = rng.integers(tree.parts, size=40)
    src, dst = part * tree.hosts_per_part + rng.integers(tree.hosts_per_part, size=(2, 40))
    a, c = np.divmod(rng.integers(tree.paths, size=40), tree.pod_ports[0])
    links = [np.zeros((2, 0), int), *(ends for _, *ends in tree.switch_links(0))]
    tail, head = (np.concatenate([ends[end] for ends in links]) for end in (0, 1))
    table = tree.hops(src, dst, a, c)
    assert table.shape == (40, 4)
    for row, one in enumerate(table):
        at = tree.edge_of(src[[row]])[0]
        for link in one[one >= 0]:
            assert tail[link] == at
            at = head[link]
        assert at == tree.edge_of(dst[[row]])[0]
    # As few hops as there are: none below one edge switch, 2 in one pod, else 4.
    e, f = tree.edge_of(src), tree.edge_of(dst)
    pods = tree.pod_of(e) != tree.pod_of(f)
    np.testing.assert_array_equal((table >= 0).sum(1), np.where(e == f, 0, np.where(pods, 4, 2)))


def test_all_paths_are_different_and_meet_every_core_once():
    for form in ({"radix": 4}, {"radix": 6, "oversubscription": 2.0}, {"radix": 6, "tiers": 2}):
        tree = Tree(Tree(1, **form).most_hosts, **form)
        a, c = np.divmod(np.arange(tree.paths), tree.pod_ports[0])
        table = tree.hops(np.zeros(tree.paths, int), np.full(tree.paths, tree.hosts - 1), a, c)
        assert len({tuple(row) for row in table.tolist()}) == tree.paths
        head = np.concatenate([head for _, _, head in tree.switch_links(0)])
        top = head[table[:, 1 if tree.tiers == 3 else 0]]  # a core; two tiers: a spine
        assert len(np.unique(top)) == tree.paths == tree.switches[-1][1]


def most_between(built, src, dst, *, nvswitch=True):
    """The largest flow from GPUs `src` to GPUs `dst` in units of a NIC. Optical NICs belong to their servers."""
    network = built.network
    unit = built.nic_Bps
    rows = [network.tail, network.head, np.round(network.capacity / unit).astype(int)]
    if not nvswitch:
        rows[2] = np.where(np.isin(network.kind_of_links(), [0, 1]), 0, rows[2])
    source, sink, plenty = network.size, network.size + 1, 10**6
    extra = [(source, gpu, plenty) for gpu in src] + [(gpu, sink, plenty) for gpu in dst]
    if len(built.circuits.src):
        optics = network.run("optics", of="nodes").start
        at = optics + np.arange(built.gpus) // built.gpus_per_server
        extra += [(g, o, plenty) for g, o in enumerate(at)] + [(o, g, plenty) for g, o in enumerate(at)]
    tail, head, capacity = np.hstack([rows, np.array(extra).T])
    size = (network.size + 2,) * 2
    graph = coo_array((capacity.astype(np.int32), (tail, head)), shape=size).tocsr()
    return int(maximum_flow(graph, source, sink).flow_value)


NVSWITCH = float(units.gbps(100.0)) / 1e9 * 50  # 50 NICs a GPU: it never limits
WIDE = circuits(1, SERVERS)  # one region of all servers
SIX = {"gpus_per_server": 6, "nvswitch_gigabytes_per_s": NVSWITCH}
HALF = np.arange(SERVERS * GPUS // 2)
OTHER = HALF + len(HALF)
ACROSS = WIDE[0, : SERVERS // 2, SERVERS // 2 :].sum()  # circuits from half to half, one way
MIDDLE = [
    ("fat-tree", {}, len(HALF)),
    ("fat-tree", {"radix": 16, "tiers": 2}, len(HALF)),
    ("fat-tree", {"radix": SERVERS * GPUS, "tiers": 1}, len(HALF)),
    ("rail-only", {"radix": SERVERS, "tiers": 1}, len(HALF)),
    ("rail-optimized", {}, len(HALF)),
    ("rail-only", {}, len(HALF)),
    ("nvl72", {}, len(HALF)),
    ("mfabric", {}, SERVERS // 2 * 2),  # no circuits between regions
    ("mfabric", {"regions": WIDE, "electrical_nics": 1}, SERVERS // 2 + ACROSS),
    ("mfabric", {"regions": WIDE, "electrical_nics": 0}, ACROSS),
    ("mfabric-cpo", {}, len(HALF) + ACROSS),
    ("topoopt", {}, ACROSS),
]


def test_what_fits_through_the_middle():
    for name, form, nics in MIDDLE:
        made = built(name, nvswitch_gigabytes_per_s=NVSWITCH, **{k: v for k, v in form.items() if k != "regions"})
        if "regions" in form:
            made = made.with_circuits(form["regions"])
        assert most_between(made, HALF, OTHER) == most_between(made, OTHER, HALF) == nics, name
    # A third of 3:1: servers of 6 on edge switches of 6 hosts and 2 uplinks, or in pods of 24 hosts and 8 links up.
    for name, over in (("oversub-fat-tree", {}), ("fat-tree", {"oversubscription": 3.0})):
        for at, servers in (("edge", 6), ("aggregation", 8)):
            made, half = cluster(name, servers, 100.0, radix=8, at=at, **SIX, **over), np.arange(servers * 3)
            assert most_between(made, half, half + len(half)) == len(half) // 3


def test_rails_meet_over_the_nvswitch_alone():
    one, other = HALF[HALF % GPUS == 0], OTHER[OTHER % GPUS == 1]
    same = OTHER[OTHER % GPUS == 0]
    wide = {"nvswitch_gigabytes_per_s": NVSWITCH}
    for name, apart in (("rail-only", 0), ("rail-optimized", 4), ("fat-tree", 4)):
        assert most_between(built(name, **wide), one, same, nvswitch=False) == 4
        assert most_between(built(name, **wide), one, other, nvswitch=False) == apart
    # Through NVSwitches each GPU of one rail reaches the NICs of all four, the receivers of the other likewise.
    assert most_between(built("rail-only", **wide), one, other) == 16
