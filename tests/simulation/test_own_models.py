"""Models of one's own in a comparison, a sweep, a whole cluster and on the command line."""

import json
import pathlib

import pytest

from mfabric_jax import cases, load, report, resolve, simulate, workload
from mfabric_jax.simulation.results import effective
from tests.command_line import status

TINY = """
blocks = 3
hidden = 64
attention = { heads = 2, kv_heads = 1, head_dim = 32 }
experts = 16
top_k = 2
expert_hidden = 32
dense_blocks = [1]
dense_hidden = 128
vocab = 1000
sequence = 512
tp = 1
ep = 16
pp = 2
dp = 1
"""


@pytest.fixture
def tiny(tmp_path):
    path = tmp_path / "tiny.toml"
    path.write_text(TINY)
    return str(path)


def given(tiny, changes=None):
    return load(preset="paper", changes={"model.name": tiny, "network.fabric": "fat-tree"} | (changes or {}))


def test_rows_of_a_file(tiny, tmp_path):
    case = given(tiny, {"network.nic_gbps": 100.0, "gpu.name": "H100-SXM"})
    asked = cases(case, {"job.batch.micro_batches": [6, 4]})
    rows = simulate(asked).rows()
    assert [row["model"] for row in rows] == ["tiny", "tiny"]
    assert rows[0]["iteration_s"] > rows[1]["iteration_s"] > 0  # 6 micro-batches and 4
    assert rows[0]["compute_source"] == "H100-SXM at 50% of peak, not calibrated"
    job = resolve(case.with_({"job.batch.micro_batches": 6})).job
    needs = workload.fullest_stage(job)[1].total / 1e9
    assert (rows[0]["memory_gb"], rows[0]["gpu_memory_gb"], rows[0]["fits"]) == (pytest.approx(needs), 80, True)
    report.write_rows(rows, tmp_path / "rows.csv", effective(asked))
    kept = json.loads(next(tmp_path.glob("*.json")).read_text())
    assert kept["resolved"]["model.name"] == tiny
    assert kept["resolved"]["job.batch.micro_batches"] == [6, 4]


def test_its_degrees_are_those_of_the_file_unless_a_case_says_others(tiny):
    one = resolve(given(tiny))
    parallel = one.case.job.parallel
    assert (parallel.tp, parallel.ep, parallel.pp, parallel.dp, parallel.gpus) == (1, 16, 2, 1, 32)
    assert (one.why["job.parallel.ep"], one.why["job.batch.sequence"]) == ("file of tiny", "file of tiny")
    assert resolve(given(tiny, {"job.parallel.dp": 2})).job.gpus == 64
    wider = resolve(given(tiny, {"job.parallel.pp": 1, "job.batch.sequence": 1024})).job
    assert (wider.pp, wider.sequence) == (1, 1024)


def test_a_file_that_is_changed_is_read_again(tiny):
    assert resolve(given(tiny)).job.architecture.top_k == 2
    pathlib.Path(tiny).write_text(TINY.replace("top_k = 2", "top_k = 4"))
    assert resolve(given(tiny)).job.architecture.top_k == 4


def test_what_a_case_says_of_the_model_wins(tiny):
    one = resolve(given(tiny, {"model.top_k": 4, "model.blocks": 4}))
    assert (one.job.architecture.top_k, one.job.architecture.blocks) == (4, 4)
    known = resolve(load(preset="paper", changes={"model.name": "mixtral-8x7b", "model.top_k": 1}))
    assert known.job.architecture.top_k == 1


def test_the_traffic_command_takes_a_file(tiny, capsys):
    assert status("traffic", "--model", tiny, "--seq", 1024, "--set", "job.precision=fp8") == 0
    said = capsys.readouterr().out
    assert "tiny: 32 GPUs = DP 1 x TP 1 x PP 2 x EP 16, 256 micro-batches of 1 x 1024 tokens" in said
    assert "memory of a GPU of stage" in said
    assert "B without embedding and head" in said
    assert "left open" not in said
    pathlib.Path(tiny).write_text(TINY.replace("ep = 16\n", ""))
    assert status("traffic", "--model", tiny) == 0
    said = capsys.readouterr().out
    assert "tiny: tp, pp, ep were left open and found: tp 1, ep 16, dp 1, pp 2 on 32 GPUs, 256 mi" in said
    assert status("traffic", "--preset", "paper", "--model", "llama-moe") == 0
    said = "llama-moe needs 115 GB of 80 GB a GPU (8% kept for buffers); what fits: recompute attention (73.5 GB); "
    assert said in capsys.readouterr().out
