"""Graphs that are made: numbers of nodes and links and capacities by hand, loads of all-to-alls, files read back."""

import json
import math

import numpy as np
import pytest

from mfabric_jax import cli
from mfabric_jax.fabric import read_graph
from mfabric_jax.fabric.graph import graph_of, graph_text
from mfabric_jax.fabric.graphs.made import KINDS, GraphNumbers, make_graph
from mfabric_jax.routing.shortest import distances, shortest_routes
from tests.command_line import mistake
from tests.mistakes import refused

GBPS = 0.125e9  # bytes/s


def on_shape(kind, *shape):
    return make_graph(kind, GraphNumbers(gpus=math.prod(shape), shape=shape))


def capacities(network, kind):
    return set((network.capacity[network.run(kind)] / GBPS).tolist())


def loads_by_symmetry(network):
    """Load of a link of each direction if every two GPUs exchange one unit, on a graph that looks alike from all GPUs:
    what all links of that direction carry of GPU 0's units, in each kind (dimension) over two directions."""
    gpus = network.run("gpu", "nodes").stop
    routes = shortest_routes(network, np.zeros(gpus - 1, int), np.arange(1, gpus))
    there = routes.hops >= 0
    load = np.bincount(routes.hops[there], routes.share[there], minlength=len(network.tail))
    return np.bincount(network.kind_of_links(), load) / 2


def all_loads(network):
    """Load of every link [L] if every two GPUs exchange one unit, in equal shares of shortest paths."""
    gpus = network.run("gpu", "nodes").stop
    src, dst = (x.ravel() for x in np.mgrid[:gpus, :gpus])
    routes = shortest_routes(network, src[src != dst], dst[src != dst])
    there = routes.hops >= 0
    return np.bincount(routes.hops[there], routes.share[there], minlength=len(network.tail))


def test_torus_and_twisted_torus_of_128_gpus():
    # The published comparison: mean hops 4.031 -> 3.465, diameter 8 -> 6, busiest link 128 -> 73.3 = 128 / 1.745.
    for kind, mean, most, busiest in [("torus", 4.031, 8, 128), ("twisted-torus", 3.465, 6, 73.3)]:
        network = on_shape(kind, 4, 4, 8)
        assert (network.nodes, len(network.tail)) == ((("gpu", 128),), 128 * 6)
        hops = distances(network, np.arange(128))
        assert (hops.max(), round(hops.sum() / 128 / 127, 3)) == (most, mean)
        load = all_loads(network)
        assert round(load.max(), 1) == busiest
        if kind == "twisted-torus":
            np.testing.assert_allclose(load, 128 * hops.sum() / 128 / 768 * np.ones(768))  # balanced
            assert round(128 / load.max(), 3) == 1.745
        else:
            np.testing.assert_allclose(np.bincount(network.kind_of_links(), load) / 256, [64, 64, 128])
        np.testing.assert_allclose(loads_by_symmetry(network), np.bincount(network.kind_of_links(), load) / 256)


def test_cube_of_512_gpus_is_balanced():
    np.testing.assert_allclose(loads_by_symmetry(on_shape("torus", 8, 8, 8)), 512)


def test_twisted_torus_by_hand():
    # 2x4: closing the ring of 2 shifts the other dimension by 2, so GPU (0, y) has two neighbours in x: (1, y) and,
    # the other way around, (1, y + 2). GPU x + 2 y.
    network = on_shape("twisted-torus", 2, 4)
    x = network.run("dimension 0")
    assert sorted(network.head[x][network.tail[x] == 0].tolist()) == [1, 5]
    assert capacities(network, "dimension 0") == {400}
    plain = on_shape("torus", 2, 4)
    assert plain.head[plain.run("dimension 0")][:1].tolist() == [1]
    assert capacities(plain, "dimension 0") == {800}  # both links of a ring of two


@pytest.mark.parametrize("shape", [(8, 8), (4, 6), (3, 4, 5), (7,)])
def test_full_mesh_carries_n_over_size_on_each_link(shape):
    network = on_shape("full-mesh", *shape)
    gpus, kinds = math.prod(shape), network.kind_of_links()
    assert network.links == tuple((f"dimension {n}", gpus * (size - 1)) for n, size in enumerate(shape))
    expected = np.array([gpus / size for size in shape])
    np.testing.assert_allclose(all_loads(network), expected[kinds])
    np.testing.assert_allclose(in_dimension_order(network, shape), expected[kinds])


def in_dimension_order(network, shape):
    """Load of every link [L] where bytes put the dimensions right one after the other."""
    number = {pair: n for n, pair in enumerate(zip(network.tail.tolist(), network.head.tolist(), strict=True))}
    load, gpus = np.zeros(len(network.tail)), math.prod(shape)
    for src in range(gpus):
        for dst in range(gpus):
            at, to = (list(np.unravel_index(gpu, shape, order="F")) for gpu in (src, dst))
            for axis in range(len(shape)):
                before = int(np.ravel_multi_index(at, shape, order="F"))
                at[axis] = to[axis]
                after = int(np.ravel_multi_index(at, shape, order="F"))
                if before != after:
                    load[number[before, after]] += 1
    return load


def test_leaf_spine_of_64_ports():
    network = make_graph("leaf-spine", GraphNumbers(gpus=2048))
    assert network.nodes == (("gpu", 2048), ("nvswitch", 256), ("edge", 64), ("spine", 32))
    assert {kind: count for kind, count in network.links if kind.endswith("up")} == {
        **{"nvswitch up": 2048, "nic up": 2048, "edge up": 64 * 32}
    }
    assert capacities(network, "nvswitch up") == {7200}
    assert capacities(network, "nic up") == capacities(network, "edge down") == {400}
    assert "room for 2048 hosts" in refused(make_graph, "leaf-spine", GraphNumbers(gpus=2056))


def test_oversubscription_and_plain_gpus():
    network = make_graph("leaf-spine", GraphNumbers(gpus=96, oversubscription=3, gpus_per_server=1, nic_gbps=100))
    assert network.nodes == (("gpu", 96), ("edge", 2), ("spine", 16))  # 48 ports down, 16 up
    assert dict(network.links)["edge up"] == 32


def test_planes_of_a_nic_each():
    # 64 ports: 2,048 NICs a plane; 8 planes: 16,384 GPUs, 8 x (64 + 32) = 768 switches, 16,384 links between them.
    network = make_graph("planes", GraphNumbers(gpus=16384, planes=8))
    assert network.nodes == (("gpu", 16384), ("nvswitch", 2048), ("edge", 512), ("spine", 256))
    assert dict(network.links)["edge up"] == 16384
    nic = network.run("nic up")
    plane = (network.head[nic] - (16384 + 2048)) // 64
    assert np.array_equal(plane, np.arange(16384) % 8)
    assert np.bincount(network.head[nic]).max() == 32
    assert "room for 2048 hosts" in refused(make_graph, "planes", GraphNumbers(gpus=16392, planes=8))


def test_planes_of_split_nics():
    network = make_graph("planes", GraphNumbers(gpus=64, planes=4, split=True, nic_gbps=800, radix=4, nvlink_gbps=0))
    assert network.nodes == (("gpu", 64), ("edge", 4 * 8), ("spine", 4 * 8))
    assert network.links == (("nic up", 256), ("nic down", 256), ("edge up", 256), ("edge down", 256))
    assert capacities(network, "nic up") == capacities(network, "edge up") == {200}
    network = make_graph("planes", GraphNumbers(gpus=131072, planes=1, radix=512, gpus_per_server=1))
    assert network.nodes[1:] == (("edge", 512), ("spine", 256))  # a plane of MRC
    split = GraphNumbers(gpus=4096, planes=8, split=True, radix=64, gpus_per_server=1)  # 8 x 64 ports: 256 down
    assert make_graph("planes", split).nodes[1:] == (("edge", 8 * 16), ("spine", 8 * 256))


def test_fat_tree_and_dragonfly():
    network = make_graph("fat-tree", GraphNumbers(gpus=1024, radix=16))
    assert network.nodes[2:] == (("edge", 128), ("aggregation", 128), ("core", 64))
    assert dict(network.links)["edge up"] == dict(network.links)["aggregation up"] == 1024
    # 64 servers of 8 NICs: p = h = 8, a = 16: 4 groups of 16 routers; 105 links of two routers of a group are single,
    # and 16 x 8 ports of a group hold 42 links to each of 3 others.
    network = make_graph("dragonfly", GraphNumbers(gpus=512))
    assert network.nodes == (("gpu", 512), ("nvswitch", 64), ("router", 64))
    assert dict(network.links)["local"] == 4 * 16 * 15
    assert network.capacity[network.run("global")].sum() / GBPS == 4 * 3 * 42 * 400
    assert capacities(network, "nic up") == {400}


SMALL = {
    **{"leaf-spine": {"gpus": 32, "radix": 8}, "fat-tree": {"gpus": 32, "radix": 8}},
    **{"planes": {"gpus": 32, "planes": 2, "radix": 8}, "dragonfly": {"gpus": 64, "gpus_per_server": 2}},
    **{"torus": {"gpus": 24}, "twisted-torus": {"gpus": 32, "shape": (2, 4, 4)}},
    "full-mesh": {"gpus": 12, "shape": (3, 4)},
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_survives_its_file_and_joins_all_gpus(kind):
    network = make_graph(kind, GraphNumbers(**SMALL[kind]))
    back = graph_of(json.loads(graph_text(network)))
    for field in ("tail", "head", "capacity", "delay_s"):
        np.testing.assert_array_equal(getattr(back, field), getattr(network, field))
    assert (back.nodes, back.links, back.names) == (network.nodes, network.links, None)
    assert distances(network, np.arange(network.run("gpu", "nodes").stop)).min() == 0


def test_make_graph_writes_what_is_read(tmp_path, capsys):
    file = tmp_path / "torus.json"
    assert not cli.main(["make-graph", "torus", "--shape", "2x3", "--nic-gbps", "100", "--out", str(file)])
    assert "torus: 6 gpu; 18 one-way links" in capsys.readouterr().out
    network = read_graph(file)
    assert (network.nodes, capacities(network, "dimension 1")) == ((("gpu", 6),), {100})
    assert not cli.main(["make-graph", "planes", "--gpus", "16", "--planes", "2", "--split", "--out", str(file)])
    assert "16 gpu, 2 nvswitch, 2 edge; 96 one-way links" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("torus --out t.json", "make-graph needs --gpus"),
        ("torus --gpus 8 --out t.txt", "extension '.txt' is unknown"),
        ("torus --gpus 8 --planes 2 --out t.json", "planes is not read by torus; leave it out."),
        ("torus --gpus 8 --split --out t.json", "split is not read by torus"),
        ("torus --gpus 8 --shape 2x2 --out t.json", "shape must have 8 GPUs, got 2x2."),
        ("torus --shape 2y2 --out t.json", "shape must be 1 to 8 sizes such as 4x4x8, got '2y2'."),
        ("torus --shape 0x2 --out t.json", "whole number of at least 1, got 0"),
        ("twisted-torus --shape 4x4x12 --out t.json", "only sizes n and 2n, such as 4x4x8, got 4x4x12."),
        ("full-mesh --gpus 100000 --out t.json", "links of a graph must be at most 4,194,304"),
        ("leaf-spine --gpus 12 --out t.json", "gpus_per_server must divide the 12 GPUs, got 8."),
        ("planes --gpus 16 --planes 3 --out t.json", "planes must divide the 8 GPUs of a server, got 3"),
        ("planes --gpus 16 --planes 2 --nvlink-gbps 0 --out t.json", "nvlink_gbps must be above 0"),
        ("ring --gpus 8 --out t.json", "kind of graph 'ring' is unknown"),
    ],
)
def test_mistakes_of_make_graph(words, sentence, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert sentence in mistake(capsys, "make-graph", *words.split())
    assert not list(tmp_path.iterdir())
