"""A graph that is made has the rows of the fabric that it draws, in float64 to 1e-9, where they are the same by
definition. Elsewhere it is said by how much: a torus of servers takes one dimension after the other, a graph
all shortest paths; rail-only sends over the NVSwitch of the source alone, a graph of whole planes over that of either
end; servers of a dragonfly pool their NICs, so its flows are others, though they end together."""

import dataclasses
import math

import jax
import numpy as np
import pytest

from mfabric_jax.case import Case
from mfabric_jax.evaluate import simulate
from mfabric_jax.fabric.graph import graph_text
from mfabric_jax.fabric.graphs.made import GraphNumbers, make_graph

JOB = {"model.name": "llama-moe", "job.parallel.tp": 1, "job.parallel.pp": 2, "job.parallel.ep": 16}
QUICK = {"run.iterations": 1, "job.batch.micro_batches": 2, "run.dtype": "float64"}
PARTS = ("iteration_s", "compute_s", "ep_comm_s", "dp_comm_s", "bubble_s")
TIMES = (*PARTS, "flow_p50_s", "flow_p99_s", "busiest_link_use")
COSTS = ("network_cost_usd", "network_kw")


@pytest.fixture
def rows(tmp_path):
    """The rows of a graph that is made, and of a named fabric."""

    def both(kind, named, settings=None, **numbers):
        file = tmp_path / "own.json"
        network = make_graph(kind, GraphNumbers(**numbers))
        case = Case().with_(JOB | QUICK | {"job.parallel.gpus": numbers["gpus"]} | (settings or {}))
        delay_s = np.full(len(network.tail), case.network.link_delay_s)
        file.write_text(graph_text(dataclasses.replace(network, delay_s=delay_s)))
        own = case.with_({"network.fabric": "graph", "network.graph": str(file)})
        with jax.enable_x64(True):
            (one,), (other,) = simulate(own).rows(), simulate(case.with_(named)).rows()
        return one, other

    return both


@pytest.mark.parametrize(
    ("kind", "named", "numbers"),
    [
        ("leaf-spine", {"fabric": "fat-tree", "tiers": 2, "radix": 16}, {"radix": 16}),
        # one server at each leaf: 8 ports down, 4 up
        (
            "leaf-spine",
            {"fabric": "oversub-fat-tree", "tiers": 2, "radix": 12, "oversubscription": 2},
            {"radix": 12, "oversubscription": 2},
        ),
        # all servers below one leaf and a part of another, servers across leaves, three tiers, split planes
        ("leaf-spine", {"fabric": "oversub-fat-tree"}, {"oversubscription": 3}),
        (
            "leaf-spine",
            {"fabric": "fat-tree", "radix": 16, "oversubscription": 3},
            {"radix": 16, "oversubscription": 3},
        ),
        (
            "fat-tree",
            {"fabric": "oversub-fat-tree", "radix": 16, "tiers": 3},
            {"radix": 16, "oversubscription": 3, "gpus": 192},
        ),
        (
            "planes",
            {"fabric": "multi-plane", "radix": 8, "multi-plane.planes": 4, "oversubscription": 3},
            {"planes": 4, "split": True, "radix": 8, "oversubscription": 3},
        ),
        ("fat-tree", {"fabric": "fat-tree", "tiers": 3, "radix": 8}, {"radix": 8}),
        (
            "planes",
            {"fabric": "multi-plane", "radix": 8, "multi-plane.planes": 4},
            {"planes": 4, "split": True, "radix": 8},
        ),
    ],
)
def test_trees_and_planes_are_those_of_the_fabric(rows, kind, named, numbers):
    named = {f"network.{name}": value for name, value in named.items()}
    one, other = rows(kind, named, **{"gpus": 64} | numbers)
    for column in TIMES:
        assert one[column] == pytest.approx(other[column], rel=1e-9), column
    for column in COSTS:
        assert one[column] == pytest.approx(other[column], rel=1e-9), column
    assert "gpu" in one["busiest_link"] or "edge" in one["busiest_link"]


QUIET = {"network.link_delay_s": 0.0}  # a graph's longest path is that of any two GPUs
ALONE = QUIET | {"gpu.gpus_per_server": 1}  # GPUs are the servers, a link is a NIC


def test_parts_of_a_dragonfly_are_those_of_the_fabric(rows):
    one, other = rows("dragonfly", {"network.fabric": "dragonfly"}, QUIET | {"job.parallel.dp": 8}, gpus=256)
    for column in PARTS:
        assert one[column] == pytest.approx(other[column], rel=1e-9), column
    for column in COSTS:
        assert one[column] == pytest.approx(other[column], rel=0.01), column


@pytest.mark.parametrize(
    ("kind", "shape", "stages", "named"),
    [
        ("twisted-torus", (2, 4, 4), 1, {"network.twisted-torus.shape": "2x4x4"}),
        ("full-mesh", (4, 8), 2, {"network.full-mesh.shape": "4x8", "network.nics": 10}),
    ],
)
def test_meshes_of_gpus_are_those_of_the_fabric(rows, kind, shape, stages, named):
    """A twisted torus closes its rings through optical switches, which a graph has not."""
    settings = ALONE | {"job.parallel.pp": stages}
    one, other = rows(kind, {"network.fabric": kind} | named, settings, gpus=math.prod(shape), shape=shape)
    for column in TIMES:
        assert one[column] == pytest.approx(other[column], rel=1e-9), column
    if kind == "full-mesh":
        assert one["network_cost_usd"] == pytest.approx(other["network_cost_usd"], rel=0.01)


def test_a_torus_of_all_shortest_paths_is_the_graph(rows):
    settings = ALONE | {"job.parallel.pp": 1, "network.torus.paths": "shortest"}
    named = {"network.fabric": "torus"}
    one, other = rows("torus", named, settings, gpus=64, shape=(4, 4, 4))
    for column in PARTS:
        assert one[column] == pytest.approx(other[column], rel=1e-9), column


def test_a_torus_differs_by_its_paths(rows):
    """All shortest paths even out what dimension order piles up; two more rings carry gradients that go around z alone
    there, where they are in the way of each other; ports of optical switches are the difference in price."""
    settings = ALONE | {"job.parallel.pp": 1}
    one, other = rows("torus", {"network.fabric": "torus"}, settings, gpus=64, shape=(4, 4, 4))
    ratios = [one[column] / other[column] for column in ("iteration_s", "ep_comm_s", "dp_comm_s", "network_cost_usd")]
    assert ratios == pytest.approx([0.959, 0.914, 1.016, 0.9375], abs=0.002)


def test_whole_planes_differ_from_rails_by_the_switches_that_bytes_cross(rows):
    named = {"network.fabric": "rail-only", "network.radix": 16}
    one, other = rows("planes", named, QUIET, gpus=64, planes=8, radix=16)
    ratios = [one[column] / other[column] for column in ("iteration_s", "ep_comm_s", "dp_comm_s")]
    assert ratios == pytest.approx([0.951, 0.906, 1.0], abs=0.002)


def test_a_sampled_iteration_of_a_graph(rows):
    """One of several iterations, and cases enough to be columns of one program."""
    settings = {"run.iterations": 2}
    one, _ = rows("leaf-spine", {"network.fabric": "fat-tree"}, settings | {"run.sample": 0}, gpus=32, radix=16)
    other, _ = rows("leaf-spine", {"network.fabric": "fat-tree"}, settings | {"run.sample": 1}, gpus=32, radix=16)
    both, _ = rows("leaf-spine", {"network.fabric": "fat-tree"}, settings, gpus=32, radix=16)
    mean = (one["iteration_s"] + other["iteration_s"]) / 2
    assert both["iteration_s"] == pytest.approx(mean, rel=1e-9)
    assert one["iteration_s"] != other["iteration_s"]
