"""`mfabric replay`: what it prints and writes, and one sentence for every mistake."""

import csv
import json
import pathlib
import re
import shutil
import signal

import pytest

from mfabric_jax.apps.graphs.tasks.formats.registry import write_tasks
from mfabric_jax.apps.graphs.tasks.graph import TaskKind, Tasks
from mfabric_jax.report import read_rows
from mfabric_jax.report.grid import setting_name
from tests.apps.graphs.replay.test_replay import two_sends
from tests.command_line import mistake, status

pytestmark = pytest.mark.usefixtures("command_line")
ALONE = (  # every rank on a server of its own, whose NVLink is 900 GB/s
    *("--set", "gpu.gpus_per_server=1", "--set", "network.link_delay_s=0"),
    *("--set", "gpu.nvlink_gigabytes_per_s=900"),
)
APART = ("--set", "network.rail-optimized.pxn=false")


@pytest.fixture
def job(tmp_path):
    path = tmp_path / "job.json"
    write_tasks(two_sends(), path)
    return path


def star(gbps):
    """Three hosts around one switch."""
    nodes = [{"id": f"h{rank}", "kind": "host"} for rank in range(3)] + [{"id": "switch"}]
    edges = [{"source": f"h{rank}", "target": "switch", "capacity_gbps": gbps} for rank in range(3)]
    return json.dumps({"directed": False, "nodes": nodes, "edges": edges})


def test_a_row_for_every_graph_and_setting(job, tmp_path, capsys):
    """75 MB leave host 0 between computations of 1 and 2 ms: 75 ms at 1 GB/s, 37.5 ms at 2 GB/s."""
    files = [tmp_path / f"{name}.json" for name in ("slow", "fast")]
    for file, gbps in zip(files, (8, 16), strict=True):
        file.write_text(star(gbps))
    graphs = ",".join(map(str, files))
    assert (
        status("replay", job, "--graph", graphs, "--set", "network.paths=spray,ecmp", "--out", tmp_path / "r.csv") == 0
    )
    rows, _ = read_rows(tmp_path / "r.csv")
    assert [(row["graph"], row["network.paths"]) for row in rows] == [
        (str(file), name) for file in files for name in ("spray", "ecmp")
    ]
    assert [row["makespan_s"] for row in rows] == pytest.approx([0.078, 0.078, 0.0405, 0.0405], rel=1e-9)
    assert f"busiest links on {files[0]}" in capsys.readouterr().out


def test_a_row_for_every_fabric_and_bandwidth_and_files_of_the_first(job, tmp_path, capsys):
    files = {name: tmp_path / f"{name}.csv" for name in ("out", "links", "per-rank", "steps")}
    words = [word for name, file in files.items() for word in (f"--{name}", file)]
    trace, picture = tmp_path / "trace.json", tmp_path / "job.png"
    words += ["--timeline", trace, "--picture", picture]
    assert status("replay", job, "--fabrics", "fat-tree", "--nic-gbps", "400,800", *ALONE, *words) == 0
    output = capsys.readouterr().out
    rows, config = read_rows(files["out"])
    assert [(row["workload"], row["fabric"], row["nic_gbps"]) for row in rows] == [
        ("job.json", "fat-tree", 400),
        ("job.json", "fat-tree", 800),
    ]
    assert [row["makespan_s"] for row in rows] == pytest.approx([4.5e-3, 3.75e-3], rel=1e-9)
    assert [row["held_by"] for row in rows] == ["computation", "computation"]
    assert config.items() >= {"workload": str(job), "servers": 0, "table": "out"}.items()
    links, ranks, steps = (read_rows(files[name])[0] for name in ("links", "per-rank", "steps"))
    assert sum(row["holds_s"] for row in links) == pytest.approx(1.5e-3, rel=1e-9)
    assert [row["sent_bytes"] for row in ranks] == [75e6, 0, 0]
    assert [row["held_by"] for row in steps] == ["computation", "gpu 0 -> edge 0", "computation"]
    assert len(json.loads(trace.read_text())["traceEvents"]) > 6
    assert picture.stat().st_size > 5000
    for said in (
        *("3 ranks, 5 tasks", "nic up", "critical path on fat-tree at 400 Gbps: 3 steps", "gpu 0 -> edge 0"),
        *("makespan [ms]", "1 % more saves [ms]", "means over ranks", "1 GPU a server, NVLink 900 GB/s"),
    ):
        assert said in output


def test_fabrics_that_end_alike_say_why(job, capsys):
    assert status("replay", job, "--fabrics", "fat-tree,rail-optimized", "--no-gradient", *ALONE, *APART) == 0
    assert "fat-tree and rail-optimized end at the same time: with spraying" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "column", "values"),
    [
        (("--gpu", "H100-SXM,A100-80GB-SXM"), "gpu.name", ["H100-SXM", "A100-80GB-SXM"]),
        (("--set", "network.link_delay_s=1e-6,1e-5"), "network.link_delay_s", ["1e-06", "1e-05"]),
    ],
)
def test_a_setting_that_varies_is_a_column(job, tmp_path, capsys, words, column, values):
    out = tmp_path / "rows.csv"
    assert status("replay", job, "--fabric", "fat-tree", "--no-gradient", "--out", out, *words) == 0
    with out.open(encoding="utf-8") as opened:
        assert [row[column] for row in csv.DictReader(opened)] == values
    assert setting_name(column) in capsys.readouterr().out


def test_an_interrupt_keeps_the_rows_so_far(job, tmp_path, capsys, monkeypatch):
    """It comes while the engine runs, inside of a compiled program."""
    from mfabric_jax.flows.host import instance

    run, calls = instance.run_instance, []

    def interrupted(one):
        calls.append(one)
        if len(calls) == 2:
            signal.raise_signal(signal.SIGINT)
        return run(one)

    monkeypatch.setattr(instance, "run_instance", interrupted)
    words = ("--fabrics", "fat-tree,rail-optimized", "--no-gradient", "--out", tmp_path / "rows.csv")
    assert status("replay", job, *words, *ALONE) == 130
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.endswith("mfabric: interrupted.\n")
    assert "Traceback" not in output.err
    assert [row["fabric"] for row in read_rows(tmp_path / "rows.csv")[0]] == ["fat-tree"]


def test_a_picture_of_nothing_is_refused_before_anything_is_written(tmp_path, capsys):
    tasks, job = Tasks(2), tmp_path / "still.json"
    tasks.add(TaskKind.MARKER, 0, "nothing", lag=1.0)
    write_tasks(tasks.graph(), job)
    words = ("--picture", tmp_path / "still.png", "--out", tmp_path / "rows.csv")
    assert "picture needs tasks that take time" in mistake(capsys, "replay", job, *words)
    assert [path.name for path in tmp_path.iterdir()] == ["still.json"]


def test_several_graphs_beside_a_fabric(tmp_path, capsys, monkeypatch):
    """Each has a row with its file, and what it has alone: all the same is said once."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(pathlib.Path(__file__).parents[3] / "golden" / "job.json", "job.json")
    for kind, gbps in (("leaf-spine", 400), ("leaf-spine", 200), ("torus", 400)):
        words = f"make-graph {kind} --gpus 16 --nic-gbps {gbps} --out {kind}-{gbps}.json"
        assert status(*words.split()) == 0
    files = ["leaf-spine-400.json", "leaf-spine-200.json", "torus-400.json"]
    asked = f"replay job.json --fabrics fat-tree,{','.join(files)} --no-gradient --out rows.csv".split()
    capsys.readouterr()
    assert status(*asked) == 0
    said = capsys.readouterr().out
    rows = read_rows("rows.csv")[0]
    assert [(row["fabric"], row["graph"] or None) for row in rows] == [("fat-tree", None)] + [
        ("graph", x) for x in files
    ]
    for row in rows[1:]:
        (alone,) = replayed_alone(row["graph"])
        assert row["makespan_s"] == pytest.approx(alone["makespan_s"], rel=1e-9)
    assert rows[2]["makespan_s"] > 1.5 * rows[1]["makespan_s"]
    assert all(re.search(rf"^{file} ", said, re.M) for file in files)
    assert "leaf-spine-400.json, leaf-spine-200.json: as the graph says; GPUs do not forward" in said
    assert "torus-400.json: as the graph says; GPUs forward for others" in said


def replayed_alone(file):
    assert status("replay", "job.json", "--fabrics", file, "--no-gradient", "--out", f"{file}.csv") == 0
    return read_rows(f"{file}.csv")[0]
