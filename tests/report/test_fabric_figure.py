"""The pictures of clusters and graphs: right numbers, right colours, no words over words; looks were judged by eye."""

import dataclasses
import itertools
import re
from collections import Counter

import numpy as np
import pytest
from matplotlib.collections import LineCollection
from matplotlib.colors import to_hex
from matplotlib.patches import FancyBboxPatch

from mfabric_jax.case.network import Rails
from mfabric_jax.fabric import Cluster, cluster, get
from mfabric_jax.fabric.graph import graph_of
from mfabric_jax.fabric.graphs import made as graphs
from mfabric_jax.fabric.tree import Tree
from mfabric_jax.report.figures.circuits import build_region, region
from mfabric_jax.report.figures.clusters import build_fabric, layout, tier_count, tier_links
from mfabric_jax.report.figures.grouped import classes, part_of
from mfabric_jax.report.figures.layouts import layers
from mfabric_jax.report.figures.networks import build_graph, colours
from mfabric_jax.report.figures.pairs import pairs_of
from mfabric_jax.report.numerals import count_phrase
from tests.report import synthetic
from tests.report.readable import assert_readable

TREES = ("fat-tree", "oversub-fat-tree", "rail-optimized", "rail-only", "nvl72")
NAMES = (*TREES, "topoopt", "mfabric", "mfabric-cpo")


def circuits(regions, size, degree, seed=0):
    """Legal random circuits [G S S], at most `degree` at a server."""
    random, count = np.random.default_rng(seed), np.zeros((regions, size, size), int)
    for own in count:
        for _ in range(degree):
            order = random.permutation(size)
            for i, j in zip(order[: size // 2], order[size // 2 : size // 2 * 2], strict=True):
                own[i, j] += 1
                own[j, i] += 1
    return count


def made(name, servers, **settings):
    """A named cluster with circuits, if it has such."""
    size = {"topoopt": servers, "mfabric": min(8, servers), "acos": min(8, servers), "mfabric-cpo": 2}.get(name)
    if size is not None:
        degree = {"topoopt": 8, "mfabric": 6, "acos": 6, "mfabric-cpo": 256}[name]
        settings["regions"] = circuits(servers // size, size, degree)
    return cluster(name, servers, 800.0 if get(name).domain_gpus else 400.0, **settings)


ODD = {
    "one server": lambda: made("fat-tree", 1),
    "no links": lambda: Cluster("own", 4, 100.0, nic_use="pooled"),
    "NICs of a server at two switches": lambda: made("oversub-fat-tree", 15, radix=10),
    "such servers in two pods": lambda: made("oversub-fat-tree", 12, radix=14, oversubscription=2.0),
    "rails over pods": lambda: made("rail-optimized", 8, radix=8),
    "separate trees of three tiers": lambda: Cluster("own", 40, 100.0, 2, Tree(80, 8, 3, parts=2), rails=True),
    "a region of 64": lambda: made("mfabric", 64, electrical_nics=2).with_circuits(circuits(1, 64, 6)),
    "regions of 32": lambda: made("mfabric", 128).with_circuits(circuits(4, 32, 6)),
    "regions without a tree": lambda: made("mfabric", 64, electrical_nics=0),
    "no circuits": lambda: made("mfabric", 16).with_circuits(np.zeros((2, 8, 8), int)),
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


@pytest.mark.parametrize("name", [*NAMES, "separate trees of three tiers", "such servers in two pods"])
def test_words_tell_the_counts_and_every_pair_of_nodes_shown_that_is_joined_has_a_line(name):
    """Pairs are those of the network, a GPU being the server that it is in."""
    for servers in (4, 128) if name in NAMES else (0,):
        drawn = made(name, servers) if servers else ODD[name]()
        figure, (_, rows, _) = build_fabric(drawn), layout(drawn)
        told, place = " | ".join(words(figure)), "domains" if name in NAMES and get(name).domain_gpus else "servers"
        assert f"{drawn.servers:,} {place} of {drawn.gpus_per_server} GPUs" in told
        numbers = Counter(str(number) for row in rows for number in row.positions)
        assert numbers <= Counter(words(figure))
        assert (name, servers) != ("fat-tree", 4) or not any(row.dots for row in rows)  # small ones are drawn whole
        if drawn.regions is not None:
            assert f"{drawn.regions.sum() // 2:,} circuits of {drawn.nic_gbps:g} Gbps" in told
        if drawn.tree is None:
            continue
        tiers, counted = tier_count(drawn.tree), dict(drawn.network.links)
        assert all(re.search(rf"\b{count:,} {kind}\b", told) for kind, count in drawn.tree.switches)
        assert told.count("above, on no path") == (len(drawn.tree.switches) > tiers)
        first, wanted = drawn.gpus + drawn.servers, Counter()
        starts = [0, first, first + drawn.tree.switches[0][1], first + drawn.tree.switches[0][1]]
        starts[3] += drawn.tree.switches[1][1]
        ends = zip(drawn.network.tail.tolist(), drawn.network.head.tolist(), strict=True)
        pairs = {(tail // drawn.gpus_per_server if tail < drawn.gpus else tail, head) for tail, head in ends}
        for tier, kind in enumerate(("nic up", "edge up", "aggregation up")[:tiers]):
            assert f"{counted[kind]:,} links of {drawn.nic_gbps:g} Gbps" in told
            for low, high in itertools.product(rows[tier].positions, rows[tier + 1].positions):
                at = round(rows[tier].positions[low], 6), round(rows[tier + 1].positions[high], 6)
                wanted[at] += (starts[tier] + low, starts[tier + 1] + high) in pairs
        assert wanted <= Counter((round(start[0], 6), round(end[0], 6)) for start, end, _ in lines(figure))


def test_links_of_unequal_nics_tell_their_ends():
    """16 servers on switches of 16 ports: links of 200 or of 400 Gbps on rails, of 300 on average in a fat-tree."""
    settings = {"radix": 16, "tiers": 2, "rails": Rails(speeds=(1.0, 0.5) * 4)}
    told = {
        name: " | ".join(words(build_fabric(cluster(name, 16, 400.0, **settings))))
        for name in ("fat-tree", "rail-only")
    }
    assert all("128 links of 200 to 400 Gbps" in each for each in told.values())
    assert told["rail-only"].count("links of 200 to 400 Gbps") == 2
    assert "128 links of 300 Gbps" in told["fat-tree"]


def test_narrow_uplinks_of_a_switch_for_each_server_are_told():
    """Eight NICs of 400 Gbps below eight uplinks of a third."""
    told = " | ".join(words(build_fabric(cluster("oversub-fat-tree", 16, 400.0, radix=16, leaf_servers=1))))
    assert "8 down + 8 up ports, 3:1 oversubscribed" in told
    assert told.count("128 links of 133 Gbps") == 2


def test_every_shown_server_has_links_to_its_switches():
    """32 domains with two edge switches each: 16 of them would need 32 switches, twice what a row shows."""
    drawn = made("nvl72", 32, radix=64)
    servers, edges = layout(drawn)[1][:2]
    ((pairs, _), *_) = tier_links(drawn)
    assert all(set(pairs[pairs[:, 0] == server, 1].tolist()) <= set(edges.positions) for server in servers.positions)


def test_every_circuit_of_a_shown_region_is_a_line_and_parallel_ones_carry_their_number():
    drawn = made("mfabric", 128)
    figure = build_fabric(drawn)
    drawn_sets = {len(c.get_segments()) for c in figure.axes[0].collections if isinstance(c, LineCollection)}
    for number in (0, 1, 15):
        assert len(np.argwhere(np.triu(drawn.regions[number]))) in drawn_sets
        assert f"region {number}: {drawn.regions[number].sum() // 2} circuits" in words(figure)
    three = cluster("topoopt", 3, 400.0, regions=np.array([[[0, 5, 1], [5, 0, 2], [1, 2, 0]]]))
    assert Counter(text for text in words(build_fabric(three)) if text == "5") == {"5": 1}


def test_a_load_gives_links_its_colour_and_words_and_a_circuit_is_as_busy_as_its_busier_direction():
    drawn = made("fat-tree", 4, radix=8)
    load = np.zeros(len(drawn.pooled_network.tail))
    load[drawn.pooled_network.run("edge up").start + 3] = 1.0
    load[drawn.pooled_network.run("nic down")] = 0.5
    figure = build_fabric(drawn, utilisation=load)
    full, half, idle = (to_hex(colours()(value)) for value in (1.0, 0.5, 0.0))
    found = Counter(colour for *_, colour in lines(figure))
    (nics, _), *above = tier_links(drawn)
    assert (found[full], found[half], found[idle]) == (4, len(nics), sum(len(pairs) for pairs, _ in above) - 4)
    assert {"mean 6.2%, max 100.0%", "mean 25.0%, max 50.0%"} <= set(words(figure))
    assert figure.axes[1].get_title() == "utilisation of the busier direction"

    direct = cluster("topoopt", 3, 400.0, regions=np.array([[[0, 1, 1], [1, 0, 0], [1, 0, 0]]]))
    load = np.zeros(len(direct.pooled_network.tail))
    load[direct.pooled_network.run("circuit").start + direct.circuits.find(np.array(2), np.array(0))] = 1.0
    found = Counter(colour for *_, colour in lines(build_fabric(direct, utilisation=load)))
    assert (found[full], found[idle]) == (1, 1)


def test_a_region_has_a_number_per_demand_and_a_line_per_joined_pair(tmp_path):
    for servers in (2, 8, 18):
        demand, count = synthetic.region(servers)
        heat, graph, *_ = build_region(demand, count, "title").axes
        assert len(heat.texts) == (servers * (servers - 1) if servers <= 16 else 0)
        pairs = np.triu(count)[np.triu(count) > 0]
        assert sum(len(c.get_segments()) for c in graph.collections if isinstance(c, LineCollection)) == len(pairs)
        assert graph.get_title(loc="left").startswith(f"{pairs.sum()} circuits")
    demand, count = np.full((2, 2), 5e9), np.array([[9, 1], [1, 9]])
    heat, graph, *_ = build_region(demand, count, servers=["left", "right"]).axes
    assert [text.get_text() for text in heat.texts] == ["5", "5"]
    assert [text.get_text() for text in graph.texts][:2] == ["left", "right"]
    assert graph.get_title(loc="left") == "1 circuit, 100.0% of the bytes between pairs with circuits"
    assert (demand[0, 0], count[0, 0]) == (5e9, 9)  # diagonals are ignored, not written
    assert region(np.zeros((4, 4)), np.zeros((4, 4), int), tmp_path / "r.png").exists()


def network(links, kind=lambda name: "node", directed=False, extra=()):
    """A network from (source, target, Gbps)."""
    names = list(dict.fromkeys([*itertools.chain.from_iterable(link[:2] for link in links), *extra]))
    edges = [{"source": a, "target": b, "capacity_gbps": rate} for a, b, rate in links]
    nodes = [{"id": name, "kind": kind(name)} for name in names]
    return graph_of({"directed": directed, "nodes": nodes, "edges": edges})


def leaf_spine(leaves, spines, hosts, names=("h", "leaf", "spine")):
    host, leaf, spine = names
    links = [(f"{leaf}{i}", f"{spine}{j}", 800) for i in range(leaves) for j in range(spines)]
    links += [(f"{leaf}{i}", f"{host}{i + j * leaves}", 400) for i in range(leaves) for j in range(hosts)]
    return network(links, lambda name: "host" if name.startswith(host) else "switch")


def random_graph(nodes, degree, seed):
    random = np.random.default_rng(seed)
    pairs = {tuple(sorted(map(int, random.choice(nodes, 2, replace=False)))) for _ in range(nodes * degree // 2)}
    return network([(a, b, float(random.choice([100, 400]))) for a, b in sorted(pairs)], extra=range(nodes))


def test_graphs_are_readable_and_show_every_node_and_pair():
    for drawn in (
        network([], extra=["alone"]),
        network([(i, (i + 1) % 12, 400) for i in range(12)]),
        leaf_spine(8, 4, 8),
        network([("$a_1$", "$b", 1), ("$b", "a much longer name than any other in here", 2)]),
        network([("a", "b", 1), ("c", "d", 2)], extra="efg"),
        random_graph(30, 4, 0),
        leaf_spine(8, 4, 5, ("training-server-", "leaf-switch-", "a spine ")),
        made("fat-tree", 2, radix=8).network,
        made("mfabric", 4, radix=8).network,
    ):
        figure = build_graph(drawn, title="A graph")
        assert_readable(figure)
        frames = [patch for patch in figure.axes[0].patches if isinstance(patch, FancyBboxPatch)]
        assert len(frames) == drawn.size
        pairs = {(min(ends), max(ends)) for ends in zip(drawn.tail.tolist(), drawn.head.tolist(), strict=True)}
        assert len(lines(figure)) == len(pairs)
        names = drawn.names or [str(i) for _, count in drawn.nodes for i in range(count)]
        assert Counter(names) <= Counter(words(figure))
        counts = f"{count_phrase(drawn.size, 'node')}, {count_phrase(len(drawn.tail), 'link')}"
        assert counts in " ".join(words(figure))


def test_names_without_room_are_left_out_and_this_is_said():
    figure = build_graph(leaf_spine(10, 4, 40))
    assert "no room for names" in " ".join(words(figure))
    assert len(words(figure)) <= 3


BOXES = {  # of graphs too large to be drawn whole, by hand: {box: {(other box, with how many of it each is joined)}}
    "leaf-spine": (
        {"gpus": 2048},
        {"2,048 gpu": {"nvswitch 1", "edge 1"}, "256 nvswitch": {"gpu 8"}, "64 edge": {"gpu 32", "spine 32"}}
        | {"32 spine": {"edge 64"}},
    ),
    "planes": (
        {"gpus": 2048, "planes": 4, "split": True, "radix": 16},
        {"2,048 gpu": {"nvswitch 1", "edge 4"}, "256 nvswitch": {"gpu 8"}, "256 edge": {"gpu 32", "spine 32"}}
        | {"128 spine": {"edge 64"}},
    ),
}


def joined_boxes(drawn):
    """The same of what is shown."""
    found = {name: set() for name in drawn.names}
    for pair in drawn.pairs:
        for one, other, each in zip(pair.ends, pair.ends[::-1], pair.each, strict=True):
            found[drawn.names[one]].add(f"{drawn.kinds[other]} {each}")
    return found


@pytest.mark.parametrize("kind", BOXES)
def test_nodes_of_a_large_graph_that_are_joined_alike_are_one_box(kind):
    numbers, expected = BOXES[kind]
    graph = graphs.make_graph(kind, graphs.GraphNumbers(**numbers))
    assert joined_boxes(part_of(graph, pairs_of(graph))) == expected
    figure = build_graph(graph, utilisation=np.linspace(0, 1, len(graph.tail)))
    assert_readable(figure)
    assert set(expected) <= set(words(figure))
    told = " ".join(words(figure))
    assert f"{graph.size:,} nodes" in told
    assert "nodes with equal links" in told


def test_what_differs_in_a_large_graph_is_a_box_of_its_own():
    """A leaf whose NICs run at half their rate, with its 32 GPUs, their 4 NVSwitches, and all others."""
    graph = graphs.make_graph("leaf-spine", graphs.GraphNumbers(gpus=1024))
    slow = (graph.tail < 32) & (graph.head >= 1024 + 128)
    graph = dataclasses.replace(graph, capacity=np.where(slow, graph.capacity / 2, graph.capacity))
    boxes = joined_boxes(part_of(graph, pairs_of(graph)))
    assert sorted(boxes) == sorted(
        ["32 gpu", "992 gpu", "4 nvswitch", "124 nvswitch", "1 edge", "31 edge", f"{graph.nodes[-1][1]} spine"]
    )
    assert boxes["1 edge"] == {"gpu 32", f"spine {graph.nodes[-1][1]}"}
    assert "200/400" in words(build_graph(graph))


def test_classes_are_fewer_where_there_is_no_room():
    """Nodes of a random graph are all different: they stay together by kind."""
    drawn = random_graph(600, 4, 0)
    assert set(classes(drawn)) == {0}
    line = network([(i, i + 1, 1) for i in range(9)])
    assert classes(line).tolist() == [0, 1, 2, 3, 4, 4, 3, 2, 1, 0]
    assert classes(line, most=4).tolist() == [0, 1, 2, 3, 3, 3, 3, 2, 1, 0]


def test_of_a_large_mesh_the_first_node_is_shown_with_those_around():
    torus = graphs.make_graph("torus", graphs.GraphNumbers(gpus=512, shape=(8, 8, 8)))
    shown = part_of(torus, pairs_of(torus))
    steps = [np.unravel_index(int(name), (8, 8, 8), order="F") for name in shown.names]
    near = [place for place in np.ndindex(8, 8, 8) if sum(min(x, 8 - x) for x in place) <= 2]
    assert sorted(tuple(map(int, step)) for step in steps) == near
    assert "nodes within 2 links of 0" in shown.note
    figure = build_graph(torus)
    assert_readable(figure)
    assert len(lines(figure)) == len(shown.pairs) == 6 + 6 * 1 + 12 * 2
    full = graphs.make_graph("full-mesh", graphs.GraphNumbers(gpus=200))
    assert "the first 80 of 200" in part_of(full, pairs_of(full)).note


@pytest.mark.parametrize("name", ["torus", "twisted-torus", "full-mesh", "railx", "dragonfly", "dragonfly-plus"])
def test_meshes_of_2048_gpus_are_readable(name):
    assert_readable(build_fabric(made(name, 256)))


def test_lines_of_a_graph_carry_what_they_can():
    figure = build_graph(network([("a", "b", 100), ("b", "c", 400), ("c", "a", 0)]))
    assert {"100", "400", "0"} <= set(words(figure))
    (drawn,) = (c for c in figure.axes[0].collections if isinstance(c, LineCollection))
    assert [pattern is not None for _, pattern in drawn.get_linestyles()] == [False, True, False]  # a-b, a-c, b-c
    assert drawn.get_linewidths()[2] > drawn.get_linewidths()[0]
    unlike = network([("a", "b", 100), ("b", "a", 400), ("b", "c", 50)], directed=True)
    assert {"100/400", "50"} <= set(words(build_graph(unlike)))
    alike = words(build_graph(network([("a", "b", 100), ("b", "c", 100)])))
    assert "100" not in alike
    assert "100 Gbps between linked nodes" in " ".join(alike)


def test_a_link_of_one_direction_has_an_arrow_to_its_head_and_the_colour_of_its_load():
    drawn = network([("a", "b", 100), ("c", "b", 100)], directed=True)
    figure = build_graph(drawn, utilisation=[1.0, 0.0])
    assert [colour for *_, colour in lines(figure)] == [to_hex(colours()(1.0)), to_hex(colours()(0.0))]
    texts = build_graph(drawn).axes[0].texts
    target = next(np.array(text.get_position()) for text in texts if text.get_text() == "b")
    heads = [text for text in texts if getattr(text, "arrow_patch", None)]
    assert len(heads) == 2
    for head in heads:
        tip, start = np.array(head.xy), np.array(head.xyann)
        assert np.linalg.norm(tip - target) < np.linalg.norm(start - target)


def test_a_hierarchy_stands_in_layers_with_few_crossings():
    drawn = leaf_spine(4, 2, 4)
    kinds = [kind for kind, count in drawn.nodes for _ in range(count)]
    pairs = list(zip(drawn.tail.tolist(), drawn.head.tolist(), strict=True))
    rows = [[drawn.names[node] for node in row] for row in layers(kinds, pairs)]
    assert [{name[0] for name in row} for row in rows] == [{"h"}, {"l"}, {"s"}]
    leaf = [int(name[1:]) % 4 for name in rows[0]]
    assert len([1 for a, b in itertools.pairwise(leaf) if a != b]) == 3


def test_servers_joined_directly_are_a_graph_at_their_places():
    shape = (2, 3, 2)
    torus = cluster("torus", 12, 400.0, shape=shape)
    step = (torus.mesh.places[:, None] - torus.mesh.places) % shape
    apart = np.minimum(step, np.array(shape) - step).sum(axis=-1)
    load = np.zeros(len(torus.pooled_network.tail))
    load[torus.pooled_network.run("circuit").start] = 1.0
    for figure in (build_fabric(torus), build_fabric(torus, utilisation=load)):
        assert_readable(figure)
        assert {"Torus: 12 servers, 96 GPUs", *map(str, range(12))} <= set(words(figure))
        assert len(lines(figure)) == (apart == 1).sum() / 2
    assert Counter(colour for *_, colour in lines(figure))[to_hex(colours()(1.0))] == 1
    nodes = {text.get_text(): np.array(text.get_position()) for text in figure.axes[0].texts}
    first = [tuple(place) for place in torus.mesh.places]
    steps = [nodes[str(first.index((1, *rest)))] - nodes[str(first.index((0, *rest)))] for rest in ((0, 0), (2, 1))]
    np.testing.assert_allclose(steps[0], steps[1], atol=1e-9)  # one step along an axis looks alike everywhere


def test_parts_of_domains_are_not_called_domains():
    """A domain of 384 holds several parts of a job, which a picture shows one by one."""
    from mfabric_jax.report.figures.clusters import noun

    assert noun(cluster("cloudmatrix384", 2, 400, gpus_per_server=128)) == "domain part"
    assert noun(cluster("nvl72", 2, 400)) == "domain"
    assert noun(cluster("fat-tree", 2, 400)) == "server"
