"""A graph that is made has the rows of the fabric that it draws, in float64 to 1e-9: where they are the same by
definition. Elsewhere they differ: rings of gradients on a dragonfly are counted over all pairs of servers there and as
rings on a graph; a torus of servers takes one dimension after the other, a graph all shortest paths; rail-only sends
over the NVSwitch of the source alone, a graph of whole planes over that of either end."""

import dataclasses
import math

import jax
import numpy as np
import pytest

from mfabric_jax.case import Case
from mfabric_jax.fabric.graph import graph_text
from mfabric_jax.fabric.graphs.made import Numbers, made
from mfabric_jax.simulation import simulate

JOB = {"model.name": "llama-moe", "job.parallel.tp": 1, "job.parallel.pp": 2, "job.parallel.ep": 16}
QUICK = {"run.iterations": 1, "job.batch.micro_batches": 2, "run.dtype": "float64"}
TIMES = ("iteration_s", "compute_s", "ep_comm_s", "dp_comm_s", "bubble_s")
TIMES += ("flow_p50_s", "flow_p99_s", "busiest_link_use")
COSTS = ("network_cost_usd", "network_kw")


@pytest.fixture
def rows(tmp_path):
    """The rows of a graph that is made, and of a named fabric."""

    def both(kind, named, settings=None, **numbers):
        file = tmp_path / "own.json"
        file.write_text(graph_text(made(kind, Numbers(**numbers))))
        case = Case().with_(JOB | QUICK | {"job.parallel.gpus": numbers["gpus"]} | (settings or {}))
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
        ("fat-tree", {"fabric": "fat-tree", "tiers": 3, "radix": 8}, {"radix": 8}),
        ("planes", {"fabric": "multi-plane", "radix": 64, "multi-plane.planes": 4}, {"planes": 4, "split": True}),
    ],
)
def test_trees_and_planes_are_those_of_the_fabric(rows, kind, named, numbers):
    one, other = rows(kind, {f"network.{name}": value for name, value in named.items()}, gpus=64, **numbers)
    for column in TIMES:
        assert one[column] == pytest.approx(other[column], rel=1e-9), column
    for column in COSTS:
        assert one[column] == pytest.approx(other[column], rel=0.01), column
    assert "gpu" in one["busiest_link"] or "edge" in one["busiest_link"]


def test_all_to_alls_of_a_dragonfly_are_those_of_the_fabric(rows):
    quiet = {"network.link_delay_s": 0.0, "job.parallel.dp": 8}  # a graph's longest path is one of its own
    one, other = rows("dragonfly", {"network.fabric": "dragonfly"}, quiet, gpus=256)
    assert one["ep_comm_s"] == pytest.approx(other["ep_comm_s"], rel=1e-9)
    for column in COSTS:
        assert one[column] == pytest.approx(other[column], rel=0.01), column


@pytest.mark.parametrize(
    ("kind", "shape", "named"),
    [
        ("twisted-torus", (2, 4, 4), {"network.twisted-torus.shape": "2x4x4"}),
        ("full-mesh", (4, 4), {"network.full-mesh.shape": "4x4", "network.nics": 6}),
    ],
)
def test_all_to_alls_of_meshes_of_gpus_are_those_of_the_fabric(rows, kind, shape, named):
    """GPUs are the servers, a link is a NIC. Gradients go around a ring on a graph, and between all pairs there; a
    twisted torus closes its rings through optical switches, which a graph has not."""
    alone = {"job.parallel.pp": 1, "gpu.gpus_per_server": 1, "network.link_delay_s": 0.0}
    one, other = rows(kind, {"network.fabric": kind} | named, alone, gpus=math.prod(shape), shape=shape)
    for column in ("ep_comm_s", "flow_p50_s", "flow_p99_s"):
        assert one[column] == pytest.approx(other[column], rel=1e-9), column
    if kind == "full-mesh":
        assert one["network_cost_usd"] == pytest.approx(other["network_cost_usd"], rel=0.01)
