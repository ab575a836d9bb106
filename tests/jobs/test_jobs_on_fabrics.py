"""Jobs on built-in fabrics: what models and graphs of tasks take there, alone."""

import pytest

from mfabric_jax.case import Case
from mfabric_jax.jobs import placed
from mfabric_jax.jobs.jobs_file import jobs_of
from mfabric_jax.jobs.placed import model_phase, scene_from
from mfabric_jax.replay import Replay, replay
from mfabric_jax.simulation import simulate
from mfabric_jax.tasks.formats.registry import write_tasks
from mfabric_jax.tasks.graph import TaskKind, Tasks


def test_a_model_keeps_every_nic_of_a_server_busy(monkeypatch):
    monkeypatch.setattr(placed, "model_phase", lambda case: (2.0, 3e9))
    fabric = {"name": "fat-tree", "servers": 2, "nic_gbps": 8.0}
    given = {"fabric": fabric, "jobs": [{"model": "llama-moe", "nic_gbps": 8.0, "servers": [0, 1]}]}
    assert scene_from(jobs_of(given)).alone_s[0] == pytest.approx(5)  # 8 NICs, 3 GB at 1 GB/s each
    given["fabric"] = {"servers": 2, "case": {"network": {"fabric": "fat-tree", "nic_gbps": 8.0, "goodput": 0.5}}}
    assert scene_from(jobs_of(given)).alone_s[0] == pytest.approx(5)  # of which half is payload


TINY = """
blocks = 2
hidden = 1024
attention = { heads = 8, kv_heads = 8, head_dim = 128 }
experts = 16
top_k = 2
expert_hidden = 512
vocab = 1000
"""


def tiny(folder, **degrees):
    """A small model on 800 Gbps: a rank is a server, unless its degrees say otherwise."""
    (folder / "tiny.toml").write_text(TINY)
    degrees = {"tp": 8, "ep": 2, "pp": 1, "dp": 1} | degrees
    paths = {"model.name": str(folder / "tiny.toml"), "network.fabric": "fat-tree", "network.nic_gbps": 800}
    rest = {"job.batch.micro_batches": 1, "job.batch.sequence": 512, "network.link_delay_s": 0}
    rest |= {"job.overlap_gradients": False}
    return Case().with_(paths | rest | {f"job.parallel.{name}": degree for name, degree in degrees.items()})


@pytest.mark.usefixtures("as_users_have_it")
def test_a_model_sends_over_nics_what_leaves_its_servers(tmp_path):
    case = tiny(tmp_path)
    (row,) = simulate(case).rows()
    seconds, size = model_phase(case)
    # All-to-alls and gradients leave a server, all-reduces of its 8 GPUs do not.
    assert row["tp_comm_s"] > 0.05 * row["exposed_comm_s"]
    assert size / 100e9 == pytest.approx(row["ep_comm_s"] + row["dp_comm_s"], rel=1e-4)
    assert seconds + size / 100e9 == pytest.approx(row["iteration_s"])
    seconds, size = model_phase(tiny(tmp_path, tp=4))  # all of it in one server
    assert size / 100e9 < 1e-6 * seconds


@pytest.mark.parametrize("shared", ["links", "fabric"])
def test_a_case_alone_takes_as_long_as_its_simulation(shared, tmp_path):
    table = {"network": {"fabric": "fat-tree", "nic_gbps": 400}, "job": {"parallel": {"gpus": 64}}}
    (tmp_path / "case.toml").write_text(
        'model = "llama-moe"\njob.parallel.gpus = 64\n[network]\nfabric = "fat-tree"\nnic_gbps = 400\n'
    )
    places = {"links": {"links": ["a"]}, "fabric": {"servers": [0, 1]}}[shared]
    what = {"links": {"links": {"a": 400}}, "fabric": {"fabric": {"servers": 2, "case": {"network": table["network"]}}}}
    jobs = [{"case": {"model": "llama-moe"} | table}, {"case": str(tmp_path / "case.toml"), "name": "of a file"}]
    given = jobs_of(what[shared] | {"jobs": [job | places for job in jobs]})
    (row,) = simulate(given.jobs[0].case).rows()
    assert given.jobs[0].case == given.jobs[1].case
    assert scene_from(given).alone_s == pytest.approx([row["iteration_s"]] * 2, rel=1e-12)


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
    case = Case().with_({"network.fabric": "fat-tree", "network.nic_gbps": 8.0})
    (run,) = replay(tasks.graph(), case, Replay(servers=2, ranks_on="round-robin"))
    assert run.makespan_s == pytest.approx(6e-6)
