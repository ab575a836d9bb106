"""Jobs on built-in fabrics: what models and graphs of tasks take there, alone."""

import pytest

from mfabric_jax.study import Replay, replay
from mfabric_jax.study.jobs import placed
from mfabric_jax.study.jobs.jobs_file import jobs_of
from mfabric_jax.study.jobs.placed import scene_from
from mfabric_jax.tasks.formats.registry import write_tasks
from mfabric_jax.tasks.graph import TaskKind, Tasks


def test_a_model_keeps_every_nic_of_a_server_busy(monkeypatch):
    monkeypatch.setattr(placed, "model_phase", lambda *words: (2.0, 3e9))
    fabric = {"name": "fat-tree", "servers": 2, "nic_gbps": 8.0}
    given = {"fabric": fabric, "jobs": [{"model": "llama-moe", "nic_gbps": 8.0, "servers": [0, 1]}]}
    assert scene_from(jobs_of(given)).alone_s[0] == pytest.approx(5)  # 8 NICs, 3 GB at 1 GB/s each


def test_a_graph_takes_as_long_alone_as_in_a_replay(tmp_path):
    tasks = Tasks(2)
    send = tasks.add(TaskKind.SEND, 0, peer=1, bytes=1e3, match=1)
    receive = tasks.add(TaskKind.RECV, 1, peer=0, bytes=1e3, match=1)
    tasks.add(TaskKind.SEND, 1, peer=0, bytes=1e3, match=2, after=receive)
    tasks.add(TaskKind.RECV, 0, peer=1, bytes=1e3, match=2, after=send)
    file = tmp_path / "tasks.json"
    write_tasks(tasks.graph(), file)
    fabric = {"name": "fat-tree", "servers": 2, "nic_gbps": 8.0}
    found = scene_from(jobs_of({"fabric": fabric, "jobs": [{"graph": str(file), "servers": [0, 1]}]}))
    # 1 us for the bytes, twice, and 1 us for each of two links, up to a switch and down.
    assert found.alone_s[0] == pytest.approx(6e-6)
    setting = Replay(fabrics=("fat-tree",), servers=2, nic_gbps=(8.0,), ranks_on="round-robin")
    (run,) = replay(tasks.graph(), setting)
    assert run.makespan_s == pytest.approx(6e-6)
