"""Models of one's own in a comparison, a sweep, a whole cluster and on the command line."""

import dataclasses
import json
import pathlib

import pytest
from mfabric_jax.study.legacy import compare

from mfabric_jax import report, workload
from mfabric_jax.cluster import WholeCluster
from mfabric_jax.failures._failures import Failures
from mfabric_jax.simulation.rows import effective
from mfabric_jax.study.config import Compare
from mfabric_jax.sweep import Sweep, sweep
from mfabric_jax.sweep.run import sweep_folder
from tests.command_line import mistake, status
from tests.mistakes import check_refused

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


def test_rows_of_a_file_and_of_a_workload(tiny, tmp_path):
    job = workload.get(tiny)
    other = workload.get(f"{tiny}:micro_batches=4")
    assert (job.model, other.model, other.micro_batches) == ("tiny", "tiny:micro_batches=4", 4)
    config = Compare(models=(tiny, other), fabrics=("fat-tree",), nic_gbps=(100.0,), gpu="H100-SXM")
    rows = list(compare(config))
    assert [row["model"] for row in rows] == ["tiny", "tiny:micro_batches=4"]
    assert rows[0]["iteration_s"] > rows[1]["iteration_s"] > 0  # 6 micro-batches and 4
    assert rows[0]["compute_source"] == "H100-SXM at 50% of peak, not calibrated"
    needs = workload.fullest_stage(job)[1].total / 1e9
    assert (rows[0]["memory_gb"], rows[0]["gpu_memory_gb"], rows[0]["fits"]) == (pytest.approx(needs), 80, True)
    assert list(effective(config)["workloads"]) == ["tiny", "tiny:micro_batches=4"]
    report.write_rows(rows, tmp_path / "rows.csv", effective(config))
    assert json.loads(next(tmp_path.glob("*.json")).read_text())["models"][1]["model"] == "tiny:micro_batches=4"


def test_two_models_of_one_name_are_refused(tiny):
    job = workload.get(tiny)
    check_refused("models must not repeat a name, got tiny, tiny", Compare, models=(tiny, job), fabrics=("fat-tree",))


def test_a_sweep_knows_its_models_by_name_and_by_what_they_hold(tiny, tmp_path):
    config = Sweep(fixed={"fabric": "fat-tree"}, grid={"model": [tiny, f"{tiny}:pp=1", "llama-moe"]})
    shown = [config.program(group).shown() for group in config.groups]
    assert [row["model"] for row in shown] == ["tiny", "tiny:pp=1", "llama-moe"]
    assert [row["gpus"] for row in shown] == [32, 16, 1024]
    before = sweep_folder(config, tmp_path / "rows").sweep["files"]
    assert set(before) == {tiny, f"{tiny}:pp=1"}
    (tmp_path / "tiny.toml").write_text(TINY.replace("top_k = 2", "top_k = 4"))
    assert sweep_folder(config, tmp_path / "rows").sweep["files"] != before
    check_refused("model 'llama-mo' is unknown", Sweep, fixed={"model": "llama-mo"})


def test_a_sweep_takes_a_workload_and_keeps_all_of_it(tiny, tmp_path):
    fixed = {"fabric": "fat-tree", "compute": "achieved"}
    jobs = [workload.get(tiny), workload.get(f"{tiny}:micro_batches=4")]
    config = Sweep(fixed=fixed, grid={"model": jobs, "nic_gbps": [100.0, 200.0]})
    by_name = Sweep(
        fixed=fixed, grid={"model": [job.model.replace("tiny", tiny) for job in jobs], "nic_gbps": [100.0, 200.0]}
    )
    rows, same = (
        report.query([sweep(one, tmp_path / str(n))[0].parent], report.Asked())[0]
        for n, one in enumerate((config, by_name))
    )
    assert rows == same
    assert [row["model"] for row in rows] == ["tiny", "tiny", "tiny:micro_batches=4", "tiny:micro_batches=4"]
    kept = json.loads((tmp_path / "0" / "sweep.json").read_text())["grid"]["model"]
    assert kept == json.loads(json.dumps([dataclasses.asdict(job) for job in jobs]))
    assert sweep(config, tmp_path / "0")  # goes on
    check_refused(
        "holds another sweep: grid was",
        sweep,
        Sweep(fixed=fixed, grid={"model": jobs[:1], "nic_gbps": [100.0]}),
        tmp_path / "0",
    )
    for grid in ([jobs[0], tiny], [jobs[0], dataclasses.replace(jobs[0], micro_batches=5)]):
        check_refused("grid.model must not repeat a name, got tiny, tiny", Sweep, fixed=fixed, grid={"model": grid})
    check_refused("fixed.model must be text or in Python a Workload, got 3", Sweep, fixed={"model": 3})


def test_other_commands_take_a_file(tiny, capsys):
    assert WholeCluster(model=tiny, fabric="fat-tree").job().gpus == 32
    assert WholeCluster(model=f"{tiny}:dp=2", fabric="fat-tree").job().gpus == 64
    setting = Compare(models=(tiny,), fabrics=("mfabric",), nic_gbps=(400.0,))
    check_refused("stage must be below the 2 pipeline stages of tiny, got 2", Failures, setting=setting, stage=2)
    assert status("traffic", tiny, "--seq", 1024, "--precision", "fp8") == 0
    said = capsys.readouterr().out
    assert "tiny: 32 GPUs = DP 1 x TP 1 x PP 2 x EP 16, 6 micro-batches of 1 x 1024 tokens" in said
    assert "memory of a GPU of stage" in said
    assert "B without embedding and head" in said
    assert "left open" not in said
    assert status("traffic", f"{tiny}", "--gpus", 64) == 0
    assert "left open" not in capsys.readouterr().out
    pathlib.Path(tiny).write_text(TINY.replace("ep = 16\n", ""))
    assert status("traffic", tiny) == 0
    assert (
        "tiny: degrees were left open and found: tp 1, ep 16, dp 1, pp 2 on 32 GPUs, 256 mi" in capsys.readouterr().out
    )
    assert status("traffic", "llama-moe") == 0
    assert (
        "llama-moe needs 115 GB of 80 GB a GPU (8% kept for buffers); what fits: recompute attention (73.5 GB); "
        in capsys.readouterr().out
    )
    said = mistake(capsys, "timeline", "--model", tiny, "--dtype", "fp8")
    assert said.startswith("dtype is that of the simulator, float32 or float64")
    check_refused("dtype is that of the simulator", Compare, models=(tiny,), fabrics=("fat-tree",), dtype="bf16")
