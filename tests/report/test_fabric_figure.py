"""The pictures of clusters and graphs: right numbers, right colours, no words over words; looks were judged by eye."""

import itertools
import re
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest

from mfabric_jax.checks import InputError
from mfabric_jax.fabric import Cluster, Tree, cluster
from mfabric_jax.fabric.graph import graph_of
from mfabric_jax.fabric.network import Network
from mfabric_jax.report.figures import cluster_layout as shown
from mfabric_jax.report.figures import network_layout as graph_layout
from mfabric_jax.report.figures.clusters import RAILS, build_fabric
from mfabric_jax.report.figures.networks import build_graph
from mfabric_jax.report.figures.parts import colours
from tests.report.readable import assert_readable

matplotlib = pytest.importorskip("matplotlib")
from matplotlib.collections import LineCollection  # noqa: E402
from matplotlib.colors import to_hex  # noqa: E402
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch  # noqa: E402

TREES = ("fat-tree", "oversub-fat-tree", "rail-optimized", "rail-only", "nvl72")
NAMES = (*TREES, "topoopt", "mfabric", "mfabric-cpo")


def circuits(regions, size, degree, seed=0):
    """Legal random circuits [G S S], at most `degree` at a server."""
    random, count = np.random.default_rng(seed), np.zeros((regions, size, size), int)
    for region in count:
        for _ in range(degree):
            order = random.permutation(size)
            for i, j in zip(order[: size // 2], order[size // 2 : size // 2 * 2], strict=True):
                region[i, j] += 1
                region[j, i] += 1
    return count


def made(name, servers, **settings):
    """A named cluster with circuits, if it has such."""
    size = {"topoopt": servers, "mfabric": min(8, servers), "mfabric-cpo": 2}.get(name)
    if size is not None:
        degree = {"topoopt": 8, "mfabric": 6, "mfabric-cpo": 256}[name]
        settings["regions"] = circuits(servers // size, size, degree)
    return cluster(name, servers, 800.0 if name in ("nvl72", "mfabric-cpo") else 400.0, **settings)


ODD = {
    "one server": lambda: made("fat-tree", 1),
    "one GPU": lambda: Cluster("own", 4, 100.0, 1, Tree(4, 4)),
    "no links": lambda: Cluster("own", 4, 100.0, nic_use="pooled"),
    "no links, many": lambda: Cluster("own", 40, 100.0, nic_use="pooled"),
    "NICs of a server at two switches": lambda: made("oversub-fat-tree", 15, radix=10),
    "such servers in two pods": lambda: made("oversub-fat-tree", 12, radix=14, oversubscription=2.0),
    "oversubscribed above": lambda: made("fat-tree", 40, radix=16, oversubscription=3.0, at="aggregation"),
    "two tiers": lambda: made("fat-tree", 128, tiers=2),
    "rails over pods": lambda: made("rail-optimized", 8, radix=8),
    "rails over many pods": lambda: made("rail-optimized", 16, radix=8),
    "rails of uneven blocks": lambda: made("rail-optimized", 33),
    "many rails": lambda: Cluster("own", 40, 100.0, 16, Tree(640, 16, 2, parts=16), rails=True),
    "separate trees of three tiers": lambda: Cluster("own", 40, 100.0, 2, Tree(80, 8, 3, parts=2), rails=True),
    "a region of 64": lambda: made("mfabric", 64, electrical_nics=2).with_circuits(circuits(1, 64, 6)),
    "regions of 16": lambda: made("mfabric", 128).with_circuits(circuits(8, 16, 6)),
    "regions of 32": lambda: made("mfabric", 128).with_circuits(circuits(4, 32, 6)),
    "regions without a tree": lambda: made("mfabric", 64, electrical_nics=0),
    "no circuits": lambda: made("mfabric", 16).with_circuits(np.zeros((2, 8, 8), int)),
    "circuits unlike": lambda: made("mfabric", 32).with_circuits(circuits(4, 8, 3) + circuits(4, 8, 1, 5)),
    "many pods and regions": lambda: made("mfabric", 64, radix=8),
    "domains of one tier": lambda: made("nvl72", 2, radix=512),
}


def words(figure):
    """All words of a figure, by line."""
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def lines(figure):
    """(start, end, colour) of every straight line of a cluster's picture."""
    return [
        (*map(tuple, (segment[0], segment[-1])), to_hex(collection.get_colors()[i % len(collection.get_colors())]))
        for collection in figure.axes[0].collections
        if isinstance(collection, LineCollection)
        for i, segment in enumerate(collection.get_segments())
    ]


@pytest.mark.parametrize("name", NAMES)
def test_words_tell_the_counts_and_every_node_that_is_shown_carries_its_number(name):
    for servers in (4, 128, 1024):
        drawn = made(name, servers)
        every = words(build_fabric(drawn))
        assert_counted(drawn, " | ".join(every), "domains" if name in ("nvl72", "mfabric-cpo") else "servers")
        if drawn.tree is not None:
            plan = shown.layout(drawn)
            tiers = [plan.edges, plan.high, plan.cores][: shown.climbed(drawn.tree)]
            numbers = Counter(str(number) for row in [plan.servers, *tiers] for number in row.at)
            assert numbers <= Counter(every)


def assert_counted(drawn, told, place):
    assert f"{drawn.servers:,} {place} of {drawn.gpus_per_server} GPUs" in told
    assert f"{drawn.servers:,} {place}, {drawn.gpus:,} GPUs" in told
    if drawn.regions is not None:
        assert f"{drawn.regions.sum() // 2:,} circuits of {drawn.nic_gbps:g} Gbps" in told
    if drawn.tree is not None:
        (up, down), counted, tiers = drawn.tree.edge_ports, dict(drawn.network.links), shown.climbed(drawn.tree)
        assert all(re.search(rf"\b{count:,} {kind}\b", told) for kind, count in drawn.tree.switches)
        for kind in ("nic up", "edge up", "aggregation up")[:tiers]:
            assert f"{counted[kind]:,} links of {drawn.nic_gbps:g} Gbps" in told
        assert told.count("crossed by no path") == (len(drawn.tree.switches) > tiers)
        assert tiers == 1 or f"{down} down + {up} up ports, {down / up:g}:1" in told


def test_small_fabrics_are_drawn_whole():
    drawn = made("fat-tree", 4, radix=8)
    plan = shown.layout(drawn)
    rows = (plan.servers, plan.edges, plan.high, plan.cores)
    assert [len(row.at) for row in rows] == [4, *(count for _, count in drawn.tree.switches)]
    assert not any(row.dots for row in rows)
    assert len(lines(build_fabric(drawn))) == 32 + 32 + 32


def test_lines_are_links():
    """The lines between switches are the links between those shown, and every NIC of a server shown has one."""
    for name, servers in itertools.product(TREES, (4, 16, 128)):
        assert_lines_are_links(made(name, servers))
    for name in ("separate trees of three tiers", "such servers in two pods"):
        assert_lines_are_links(ODD[name]())


def assert_lines_are_links(drawn):
    plan, first = shown.layout(drawn), drawn.gpus + drawn.servers
    joined = set(zip(drawn.network.tail.tolist(), drawn.network.head.tolist(), strict=True))
    wanted = Counter()
    rows = (plan.edges, plan.high, plan.cores)
    for (low, high), (_, count) in zip(itertools.pairwise(rows), drawn.tree.switches, strict=False):
        for a, b in itertools.product(low.at, high.at):
            wanted[round(0.25 + low.at[a], 6), round(0.25 + high.at[b], 6)] += (first + a, first + count + b) in joined
        first += count
    figure = build_fabric(drawn)
    found = Counter((round(start[0], 6), round(end[0], 6)) for start, end, _ in lines(figure))
    assert wanted <= found
    edge = shown.edge_table(drawn)
    nics = sum(int(np.isin(edge[server], list(plan.edges.at)).sum()) for server in plan.servers.at)
    assert found.total() == wanted.total() + nics


def test_rails_meet_in_the_colour_of_their_number():
    drawn = made("rail-optimized", 128)
    figure, plan = build_fabric(drawn), shown.layout(drawn)
    assert {0, 1, 2, 3, 4, 5, 6, 7} <= set(plan.edges.at)
    coloured = [line for line in lines(figure) if line[2].upper() in RAILS]
    assert len(coloured) == 8 * len(plan.servers.at)
    ports = {colour: sorted({round(end[0], 1) for _, end, c in coloured if c == colour}) for *_, colour in coloured}
    assert len(ports) == 8
    faces = {to_hex(p.get_edgecolor()).upper() for p in figure.axes[0].patches if isinstance(p, FancyBboxPatch)}
    assert set(RAILS) <= faces


def test_rail_only_has_no_line_between_rails():
    drawn = made("rail-only", 128)
    plan = shown.layout(drawn)
    assert len(plan.pods) == 8
    spans = [(left + 0.25, right + 0.25) for _, left, right in plan.pods]
    for start, end, colour in lines(build_fabric(drawn)):
        rail = RAILS.index(colour.upper())
        assert spans[rail][0] <= end[0] <= spans[rail][1]
        assert start[1] < end[1]


def test_every_circuit_of_a_shown_region_is_a_line():
    drawn = made("mfabric", 128)
    plan = shown.layout(drawn)
    assert [number for number, *_ in plan.regions] == [0, 1, 15]
    figure = build_fabric(drawn)
    curved = [c.get_segments() for c in figure.axes[0].collections if isinstance(c, LineCollection)]
    assert {len(np.argwhere(np.triu(drawn.regions[n]))) for n in (0, 1, 15)} <= {len(group) for group in curved}
    told = words(figure)
    for number in (0, 1, 15):
        assert f"region {number}: {drawn.regions[number].sum() // 2} circuits" in told


def test_parallel_circuits_carry_their_number():
    drawn = cluster("topoopt", 3, 400.0, regions=np.array([[[0, 5, 1], [5, 0, 2], [1, 2, 0]]]))
    told = words(build_fabric(drawn))
    assert sorted(text for text in told if text in "125") == sorted(["0", "1", "2"] * 2 + ["5", "2"])[2:]


def test_a_load_gives_links_its_colour_and_words():
    drawn = made("fat-tree", 4, radix=8)
    load = np.zeros(len(drawn.sprayed.tail))
    load[drawn.sprayed.run("edge up").start + 3] = 1.0
    load[drawn.sprayed.run("nic down")] = 0.5
    figure = build_fabric(drawn, utilisation=load)
    full, half, idle = (to_hex(colours()(value)) for value in (1.0, 0.5, 0.0))
    found = [colour for *_, colour in lines(figure)]
    assert (found.count(full), found.count(half), found.count(idle)) == (4, 32, 28 + 32)
    told = words(figure)
    assert "mean 6%, max 100%" in told
    assert "mean 25%, max 50%" in told
    assert figure.axes[1].get_title() == "utilisation, the busier direction"


def test_a_circuit_is_as_busy_as_its_busier_direction():
    drawn = cluster("topoopt", 3, 400.0, regions=np.array([[[0, 1, 1], [1, 0, 0], [1, 0, 0]]]))
    load = np.zeros(len(drawn.sprayed.tail))
    load[drawn.sprayed.run("circuit").start + drawn.circuits.find(np.array(2), np.array(0))] = 1.0
    found = [colour for *_, colour in lines(build_fabric(drawn, utilisation=load))]
    assert found.count(to_hex(colours()(1.0))) == 1
    assert found.count(to_hex(colours()(0.0))) == 1


# -- graphs


def network(links, kind=lambda name: "node", directed=False, extra=()):
    """A network from (source, target, Gbps)."""
    names = list(dict.fromkeys([*itertools.chain.from_iterable(link[:2] for link in links), *extra]))
    edges = [{"source": a, "target": b, "capacity_gbps": rate} for a, b, rate in links]
    nodes = [{"id": name, "kind": kind(name)} for name in names]
    return graph_of({"directed": directed, "nodes": nodes, "edges": edges})


def leaf_spine(leaves, spines, hosts):
    links = [(f"leaf{i}", f"spine{j}", 800) for i in range(leaves) for j in range(spines)]
    links += [(f"leaf{i}", f"h{i * hosts + j}", 400) for i in range(leaves) for j in range(hosts)]
    return network(links, lambda name: "host" if name[0] == "h" else "switch")


def random_graph(nodes, degree, seed):
    random = np.random.default_rng(seed)
    pairs = {tuple(sorted(map(int, random.choice(nodes, 2, replace=False)))) for _ in range(nodes * degree // 2)}
    return network([(a, b, float(random.choice([100, 400]))) for a, b in sorted(pairs)], extra=range(nodes))


GRAPHS = {
    "one node": lambda: network([], extra=["alone"]),
    "a pair": lambda: network([("left", "right", 400)]),
    "ring": lambda: network([(i, (i + 1) % 12, 400) for i in range(12)]),
    "grid": lambda: network(
        [((i, j), (i + 1, j), 9) for i in range(9) for j in range(10)]
        + [((i, j), (i, j + 1), 9) for i in range(10) for j in range(9)]
    ),
    "small leaf-spine": lambda: leaf_spine(3, 2, 3),
    "leaf-spine": lambda: leaf_spine(8, 4, 8),
    "odd names": lambda: network([("$a_1$", "$b", 1), ("$b", "a much longer name than any other in here", 2)]),
    "apart": lambda: network([("a", "b", 1), ("c", "d", 2)], extra="efg"),
    "100 nodes": lambda: random_graph(100, 4, 0),
    "60 nodes": lambda: random_graph(60, 3, 1),
    "long names": lambda: network(
        [(f"leaf-switch-{i % 4}", f"training-server-{i}", 200) for i in range(40)],
        lambda name: "host" if name[0] == "t" else "switch",
    ),
    "a tree": lambda: made("fat-tree", 2, radix=8).network,
    "tree and circuits": lambda: made("mfabric", 4, radix=8).network,
}


@pytest.mark.parametrize("name", GRAPHS)
def test_graphs_are_readable_and_show_every_node_and_pair(name):
    drawn = GRAPHS[name]()
    figure = build_graph(drawn, title="A graph")
    assert_readable(figure)
    frames = [patch for patch in figure.axes[0].patches if isinstance(patch, FancyBboxPatch)]
    assert len(frames) == drawn.size
    pairs = {(min(ends), max(ends)) for ends in zip(drawn.tail.tolist(), drawn.head.tolist(), strict=True)}
    assert len(lines(figure)) == len(pairs)
    names = drawn.names or [str(i) for _, count in drawn.nodes for i in range(count)]
    told = words(figure)
    assert all(told.count(text) >= names.count(text) for text in set(names))
    assert f"{drawn.size:,} nodes, {len(drawn.tail):,} links" in " ".join(told)


def test_names_without_room_are_left_out_and_this_is_said():
    figure = build_graph(random_graph(200, 4, 0))
    assert "names have no room" in " ".join(words(figure))
    assert len(words(figure)) <= 3


def test_lines_of_a_graph_carry_what_they_can():
    drawn = network([("a", "b", 100), ("b", "c", 400), ("c", "a", 0)])
    assert {"100", "400", "0"} <= set(words(build_graph(drawn)))
    (style_of,) = (c for c in build_graph(drawn).axes[0].collections if isinstance(c, LineCollection))
    dashes = [pattern is not None for _, pattern in style_of.get_linestyles()]
    thick = style_of.get_linewidths()
    assert dashes == [False, True, False]  # a-b, a-c, b-c
    assert thick[2] > thick[0]
    unlike = network([("a", "b", 100), ("b", "a", 400), ("b", "c", 50)], directed=True)
    assert {"100/400", "50"} <= set(words(build_graph(unlike)))
    alike = build_graph(network([("a", "b", 100), ("b", "c", 100)]))
    assert "100" not in words(alike)
    assert "100 Gbps between joined nodes" in " ".join(words(alike))


def test_a_link_of_one_direction_has_an_arrow_to_its_head():
    figure = build_graph(network([("a", "b", 100), ("c", "b", 100)], directed=True))
    arrows = [text.arrow_patch for text in figure.axes[0].texts if getattr(text, "arrow_patch", None)]
    assert len(arrows) == 2
    assert all(isinstance(arrow, FancyArrowPatch) for arrow in arrows)
    at = {text.get_text(): text.get_position() for text in figure.axes[0].texts if text.get_text() in "abc"}
    heads = [text for text in figure.axes[0].texts if getattr(text, "arrow_patch", None)]
    for head in heads:
        tip, start = np.array(head.xy), np.array(head.xyann)
        target = np.array(at["b"])
        assert np.linalg.norm(tip - target) < np.linalg.norm(start - target)


def test_a_hierarchy_stands_in_layers_with_few_crossings():
    links = [(f"h{i}", f"leaf{i % 4}", 400) for i in range(16)]
    links += [(f"leaf{i}", f"spine{j}", 800) for i in range(4) for j in range(2)]
    drawn = network(links, lambda name: "host" if name[0] == "h" else "switch")
    kinds = [kind for kind, count in drawn.nodes for _ in range(count)]
    pairs = np.unique(np.sort(np.stack([drawn.tail, drawn.head], axis=1), axis=1), axis=0)
    distance = graph_layout.hops(drawn.size, pairs)
    layer = graph_layout.layers(kinds, distance, pairs)
    names = np.array(drawn.names)
    assert all(name.startswith("h") for name in names[layer == 0])
    assert all(name.startswith("leaf") for name in names[layer == 1])
    assert all(name.startswith("spine") for name in names[layer == 2])
    low = graph_layout.ordered(layer, pairs)[0]
    leaf = [int(name[1:]) % 4 for name in names[low]]
    assert len([1 for a, b in itertools.pairwise(leaf) if a != b]) == 3


def test_hops_agree_with_powers_of_the_adjacency_matrix():
    drawn = random_graph(20, 2, 3)
    pairs = np.stack([drawn.tail, drawn.head], axis=1)
    step = np.eye(20, dtype=int)
    step[pairs[:, 0], pairs[:, 1]] = step[pairs[:, 1], pairs[:, 0]] = 1
    wanted = np.full((20, 20), -1)
    for steps in reversed(range(20)):
        wanted[np.linalg.matrix_power(step.astype(float), steps) > 0] = steps
    np.testing.assert_array_equal(graph_layout.hops(20, pairs), wanted)


def test_a_load_colours_the_lines_of_a_graph():
    drawn = network([("a", "b", 100), ("b", "c", 100)], directed=True)
    found = [colour for *_, colour in lines(build_graph(drawn, utilisation=[1.0, 0.0]))]
    assert found == [to_hex(colours()(1.0)), to_hex(colours()(0.0))]


def test_a_graph_too_large_is_refused():
    with pytest.raises(InputError, match=r"network must have 1 to 500 nodes to be drawn, got 1,280\."):
        build_graph(made("topoopt", 128).network)


def test_servers_joined_directly_are_a_graph_at_their_places():
    """A torus of 2 x 3 x 2 servers of 2 GPUs, which is no class of the package: report asks its network alone."""
    shape = (2, 3, 2)
    number = np.arange(12).reshape(shape)
    ends = [(number.ravel(), np.roll(number, -1, axis).ravel()) for axis in range(3)]
    pairs = np.unique(np.sort(np.concatenate([np.stack(end, axis=1) for end in ends]), axis=1), axis=0)
    gpus, switch = np.arange(24), 24 + np.arange(24) // 2
    tail = np.concatenate([gpus, switch, 24 + pairs[:, 0], 24 + pairs[:, 1]])
    head = np.concatenate([switch, gpus, 24 + pairs[:, 1], 24 + pairs[:, 0]])
    links = (("nvswitch up", 24), ("nvswitch down", 24), ("mesh", len(pairs)), ("wrap-around", len(pairs)))
    both = np.ones(len(tail)), np.zeros(len(tail))
    network = Network(tail, head, *both, (("gpu", 24), ("nvswitch", 12)), links)
    torus = SimpleNamespace(name="mesh", servers=12, gpus=24, gpus_per_server=2, tree=None, regions=None)
    torus.network = torus.sprayed = network
    torus.places = np.stack(np.unravel_index(np.arange(12), shape), axis=1)
    load = np.zeros(len(tail))
    load[48] = 1.0
    for figure in (build_fabric(torus), build_fabric(torus, utilisation=load)):
        assert_readable(figure)
        assert {"mesh: 12 servers, 24 GPUs", *map(str, range(12))} <= set(words(figure))
        assert len(lines(figure)) == len(pairs)
    assert [colour for *_, colour in lines(figure)].count(to_hex(colours()(1.0))) == 1
    nodes = {text.get_text(): np.array(text.get_position()) for text in figure.axes[0].texts}
    steps = [nodes[str(b)] - nodes[str(a)] for a, b in ((0, 6), (1, 7), (5, 11))]
    np.testing.assert_allclose(steps, [steps[0]] * 3, atol=1e-9)  # one step along the first axis looks alike everywhere
