"""Jobs on built-in fabrics: what models and graphs of tasks take there, alone."""

import pytest
from mfabric_jax.study.legacy import compare

from mfabric_jax.jobs import placed
from mfabric_jax.jobs.jobs_file import jobs_of
from mfabric_jax.jobs.placed import scene_from
from mfabric_jax.jobs.sources import model_phase
from mfabric_jax.replay import Replay, replay
from mfabric_jax.study.config import Compare
from mfabric_jax.study.presets import PRESETS
from mfabric_jax.tasks.formats.registry import write_tasks
from mfabric_jax.tasks.graph import TaskKind, Tasks


def test_a_model_keeps_every_nic_of_a_server_busy(monkeypatch):
    monkeypatch.setattr(placed, "model_phase", lambda *words: (2.0, 3e9))
    fabric = {"name": "fat-tree", "servers": 2, "nic_gbps": 8.0}
    given = {"fabric": fabric, "jobs": [{"model": "llama-moe", "nic_gbps": 8.0, "servers": [0, 1]}]}
    assert scene_from(jobs_of(given)).alone_s[0] == pytest.approx(5)  # 8 NICs, 3 GB at 1 GB/s each


TINY = """
blocks = 2
hidden = 1024
attention = { heads = 8, kv_heads = 8, head_dim = 128 }
experts = 16
top_k = 2
expert_hidden = 512
vocab = 1000
sequence = 512
tp = 8
ep = 2
pp = 1
dp = 1
"""


@pytest.mark.usefixtures("as_users_have_it")
def test_a_model_sends_over_nics_what_leaves_its_servers(tmp_path):
    file = tmp_path / "tiny.toml"
    file.write_text(TINY)
    whole = {"models": (str(file),), "fabrics": ("fat-tree",), "nic_gbps": (800.0,), "nic_use": ("own",)}
    (row,) = compare(Compare(**whole, **PRESETS["today"]))
    seconds, size = model_phase(str(file), 800.0)
    # A rank is a server: all-to-alls and gradients leave it, all-reduces of its 8 GPUs do not.
    assert row["tp_comm_s"] > 0.05 * row["exposed_comm_s"]
    assert size / 100e9 == pytest.approx(row["ep_comm_s"] + row["dp_comm_s"], rel=1e-4)
    assert seconds + size / 100e9 == pytest.approx(row["iteration_s"])
    file.write_text(TINY.replace("tp = 8", "tp = 4"))  # all of it in one server
    model_phase.cache_clear()
    seconds, size = model_phase(str(file), 800.0)
    assert size / 100e9 < 1e-6 * seconds


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
