"""Replays on a graph of one's own."""

import pytest

from mfabric_jax.apps.graphs.export import export_iteration
from mfabric_jax.apps.graphs.replay import Replay, replay
from mfabric_jax.apps.graphs.tasks.graph import Op, TaskKind, Tasks
from tests.evaluate.rows.test_own_graph import graphs
from tests.fabric.test_graph_files import INFRAGRAPH, tray
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


def all_to_all(ranks, bytes_each):
    """An all-to-all in which every rank sends these bytes to every rank, itself included."""
    tasks = Tasks(ranks, (tuple(range(ranks)),))
    for rank in range(ranks):
        tasks.add(TaskKind.COLLECTIVE, rank, op=Op.ALL_TO_ALL, group=0, match=1, bytes=ranks * bytes_each)
    return tasks.graph()


@pytest.mark.filterwarnings("ignore::mfabric_jax.support.unread.Unread")
def test_an_all_to_all_on_a_graph_of_infragraph_by_hand(tmp_path):
    """Each rank sends 100 MB to each other: two times 100 MB cross its NIC of 50 GB/s in 4 ms, after 2 us to the switch
    and 2 us from it; 100 MB cross the NVSwitch in 1 ms, and the PCI link takes 200 MB in 3.1 ms."""
    (tmp_path / "pair.yaml").write_text(INFRAGRAPH)
    (done,) = replay(all_to_all(4, 1e8), config=Replay(graph=str(tmp_path / "pair.yaml")))
    assert done.makespan_s == pytest.approx(4e-3 + 4e-6, rel=1e-9)


def test_an_all_to_all_of_an_nvlink_domain_by_hand(tmp_path):
    """Two servers of four GPUs: each GPU sends 100 MB to 7 others over 18 NVLinks of 40.1 GB/s. Apart, 1.6 GB of each
    server cross the PCI link of 24 GB/s above its NIC."""
    file = tmp_path / "tray.xml"
    file.write_text(tray())
    for graph, seconds in ((f"{file}*2@rack", 7e8 / (18 * 40.1e9)), (f"{file}*2", 1.6e9 / 24e9)):
        (done,) = replay(all_to_all(8, 1e8), config=Replay(graph=graph))
        assert done.makespan_s == pytest.approx(seconds, rel=1e-9)
