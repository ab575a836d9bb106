"""`network.alpha_s`: seconds of a message beside its bytes, and the column that says what they take."""

import json

import numpy as np
import pytest

from mfabric_jax import cases
from mfabric_jax.evaluate.rows.points import EvaluatedBlock
from tests.small import row, scenario, small

ALPHA = "network.alpha_s"


@pytest.mark.parametrize("fabric", ["fat-tree", "mfabric"])
def test_the_column_is_what_an_iteration_takes_longer(fabric):
    usual = row(small({"network.fabric": fabric}))
    assert usual["latency_s"] == 0.0
    late = row(small({"network.fabric": fabric, ALPHA: 1e-4}))
    assert late["latency_s"] == pytest.approx(late["iteration_s"] - usual["iteration_s"], rel=1e-9)
    assert late["latency_s"] > 4 * 1e-4  # two all-to-alls a block and pass at the least


def test_swept_as_columns_and_one_by_one():
    asked, alphas = {"network.fabric": "fat-tree"}, [0.0, 1e-5, 1e-3]
    (block,) = cases(small(asked), {ALPHA: alphas}).blocks
    swept = EvaluatedBlock(block).columns()
    for name in ("iteration_s", "latency_s", "ep_comm_s"):
        np.testing.assert_allclose(swept[name], [row(small(asked | {ALPHA: one}))[name] for one in alphas], rtol=1e-9)


def test_links_of_the_longest_way():
    """Regions of 4 servers: a torus has them in a square, a ring of a rail has two steps, on topoopt all meet."""
    for fabric, links in (("fat-tree", 6), ("torus", 2), ("photonic-rails", 2), ("topoopt", 1), ("dragonfly", 5)):
        assert scenario(small({"network.fabric": fabric})).path_links == links, fabric
    alpha = {"network.link_delay_s": 1e-3}
    near, far = (row(small({"network.fabric": "torus"} | one)) for one in ({"network.link_delay_s": 0.0}, alpha))
    assert far["ep_comm_s"] - near["ep_comm_s"] >= 4 * 2e-3  # two all-to-alls forward and backward, of two links each


@pytest.fixture
def on_graph(tmp_path):
    """A case on two servers of two GPUs whose links have these delays [s], and its settings."""

    def made(nvlink, nic, settings=None):
        gpus = [f"gpu {n}" for n in range(4)]
        kinds = dict.fromkeys(gpus, "gpu") | {"box 0": "nvswitch", "box 1": "nvswitch", "leaf": "edge"}
        edges = [(gpu, f"box {n // 2}", 7200, nvlink) for n, gpu in enumerate(gpus)]
        edges += [(gpu, "leaf", 400, delay) for gpu, delay in zip(gpus, nic, strict=True)]
        names = ("source", "target", "capacity_gbps", "latency_s")
        links = [{name: x for name, x in zip(names, edge, strict=True) if x is not None} for edge in edges]
        nodes = [{"id": name, "kind": kind} for name, kind in kinds.items()]
        file = tmp_path / f"{len(list(tmp_path.iterdir()))}.json"
        file.write_text(json.dumps({"directed": False, "nodes": nodes, "edges": links}))
        asked = {"network.fabric": "graph", "network.graph": str(file), "network.link_delay_s": 1e-6}
        asked |= {"gpu.gpus_per_server": 2, "network.nic_gbps": 400}
        job = {"job.parallel.gpus": 4, "job.parallel.tp": 1, "job.parallel.pp": 1, "job.parallel.ep": 4}
        return small(asked | job | (settings or {}))

    return made


def test_delays_of_a_graph_stand_in_the_place_of_the_usual_one(on_graph):
    """The slowest way, of GPUs 0 or 1 to GPU 3, has links of 2 and 30 us; in a server bytes cross no link of it."""
    none = (None,) * 4
    own = scenario(on_graph(5e-3, (2e-6, 2e-6, 1e-6, 30e-6))).rates(400.0)
    assert float(own.latency_s) == pytest.approx(32e-6, rel=1e-12)
    assert float(scenario(on_graph(None, none)).rates(400.0).latency_s) == pytest.approx(2e-6, rel=1e-12)
    assert float(scenario(on_graph(1e-6, (3e-6,) * 4)).rates(400.0).latency_s) == pytest.approx(6e-6, rel=1e-12)


def test_delays_of_a_graph_are_in_the_column(on_graph):
    late = (1e-4, 2e-4, 1e-4, 3e-4)
    usual, far, near = (row(on_graph(None, nic)) for nic in ((None,) * 4, late, (1e-7, 1e-7, 1e-7, 2e-7)))
    assert (usual["latency_s"], near["latency_s"]) == (0.0, 0.0)
    assert near["iteration_s"] < usual["iteration_s"]
    assert far["latency_s"] == pytest.approx(far["iteration_s"] - usual["iteration_s"], rel=1e-6)
    assert far["latency_s"] > 4 * 4e-4
    both = row(on_graph(None, late, {ALPHA: 1e-4}))
    assert both["latency_s"] == pytest.approx(both["iteration_s"] - usual["iteration_s"], rel=1e-6)


def test_delays_of_a_graph_in_a_sweep(on_graph):
    case, usual = on_graph(None, (1e-4, 2e-4, 1e-4, 3e-4)), [0.0, 1e-6, 1.0]
    (block,) = cases(case, {"network.link_delay_s": usual}).blocks
    swept = EvaluatedBlock(block).columns()
    one_by_one = [row(case.with_({"network.link_delay_s": one})) for one in usual]
    for name in ("iteration_s", "latency_s"):
        np.testing.assert_allclose(swept[name], [one[name] for one in one_by_one], rtol=1e-5)
    assert swept["iteration_s"][0] == swept["iteration_s"][2]
