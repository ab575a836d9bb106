"""Replays on a graph of one's own."""

from mfabric_jax.apps.graphs.export import export_iteration
from mfabric_jax.apps.graphs.replay import Replay, replay
from tests.evaluate.rows.test_own_graph import graphs
from tests.mistakes import refused


def test_a_replay_asks_whether_gpus_forward(tmp_path):
    on_graph = graphs(tmp_path)
    case = on_graph("torus", {"gpu.gpus_per_server": 1}, gpus=16, shape=(4, 4))
    no = case.with_({"network.on-graph.relay": "no"})
    tasks = export_iteration(on_graph("leaf-spine", gpus=16).with_({"network.fabric": "fat-tree"})).graph
    (done,) = replay(tasks, case, Replay())
    assert done.prepared.fabric == "graph"
    assert "no path leads from gpu" in refused(lambda: list(replay(tasks, no, Replay())))
    assert "no path leads from gpu" in refused(lambda: list(replay(tasks, no, Replay(graph=case.network.graph))))
