"""The command line: what it prints, what it writes, and one sentence for every mistake."""

import json
import os
import pathlib
import re
import subprocess
import sys

import jax
import numpy as np
import pytest

import mfabric_jax
from mfabric_jax import cases, commands, simulate
from mfabric_jax.apps.graphs.export import export_iteration, time_iteration
from mfabric_jax.apps.graphs.tasks.formats.registry import read_tasks
from mfabric_jax.commands import shared
from mfabric_jax.evaluate import example_timeline
from mfabric_jax.report import read_rows
from mfabric_jax.support import programs
from tests.command_line import mistake, status
from tests.small import MODEL, configured, row, small

pytestmark = pytest.mark.usefixtures("command_line")

SMALL = ("compare", "--model", MODEL, "--fabric", "fat-tree,mfabric", "--nic-gbps", "100", "--micro-batches", "2")

SMALL = (*SMALL, "--preset", "paper", "--efficiency", "0.5", "--set", "run.dtype=float64")

FABRICS = ["fat-tree", "mfabric"]

ROOT = pathlib.Path(mfabric_jax.__file__).parents[1]


def test_version_and_help(capsys, never_computes):
    assert status("--version") == 0
    line = (
        r"mfabric (\S+) \((?:commit [0-9a-f]{12}(?:\+changes)?|installed), Python 3\S+, JAX (\S+), device \w+: .*\)\n"
    )
    assert re.fullmatch(line, capsys.readouterr().out).groups() == (mfabric_jax.__version__, jax.__version__)
    for word in ("--help", "-h"):
        assert status(word) == 0
        output = capsys.readouterr()
        assert output.out.startswith("usage: mfabric COMMAND")
        assert output.err == ""
        assert all(output.out.count(f"\n  {command} ") == 1 for command in commands.COMMANDS)
    assert mistake(capsys).startswith("a command is needed first; allowed: compare, calibrate, ")
    words = {"compare": "--micro-batches mixtral-8x7b --preset", "report": "ROWS --out --pictures --title"}
    words |= {"serve": "deepseek-v3 --tpot-ms --arrivals serving. 5 names"}
    words |= {"traces": "--records --ranks-per-server router SmartMoE", "timeline": "--model --picture Perfetto"}
    for command in commands.COMMANDS:
        assert status(command, "--help") == 0
        output = capsys.readouterr().out
        assert f"usage: mfabric {command}" in output
        assert " ...\n" not in output, command  # options are not cut
        assert "rank|gpuEndpoints" not in output  # a text runs into no flag
        assert all(word in output for word in words.get(command, "").split()), command


def test_without_the_extra_only_the_bar_is_missing(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm", None)
    assert status(*SMALL) == 0
    output = capsys.readouterr()
    assert "fat-tree" in output.out
    assert "it/s" not in output.err


def test_rows_are_printed_and_written(capsys, tmp_path):
    csv = tmp_path / "rows.csv"
    assert status(*SMALL, "--seed", "1", "--all-columns", "--out", str(csv)) == 0
    output = capsys.readouterr()
    assert "fat-tree" in output.out
    assert "perf/$" in output.out
    assert f"2 rows in {csv}" in output.err
    rows, config = read_rows(csv)
    assert [row["fabric"] for row in rows] == FABRICS
    resolved = config["resolved"]
    assert (resolved["run.seed"], resolved["job.batch.micro_batches"], config["complete"]) == (1, 2, True)
    assert (resolved["model.name"], resolved["run.dtype"]) == (MODEL, "float64")
    assert config["sources"]["run.seed"] == "flag"
    assert config["stated"]["network.fabric"] == FABRICS
    assert rows == simulate(cases(small({"run.seed": 1}), {"network.fabric": FABRICS})).rows()


def test_a_trace_of_one_s_own_and_figures(capsys, tmp_path):
    run, out, folder = tmp_path / "run.npz", tmp_path / "rows.csv", tmp_path / "pictures"
    np.savez(run, tokens=np.random.default_rng(0).integers(1, 9, (3, 2, 4, 8, 8)))
    read = ("--trace", run, "--set", "traffic.trace.records=1-2")
    assert status(*SMALL, *read, "--out", out, "--figures", folder) == 0
    rows, config = read_rows(out)
    assert {row["traffic"] for row in rows} == {f"recorded {run}, records 1 to 1, layer l reads recorded layer l mod 2"}
    resolved = config["resolved"]
    assert (resolved["traffic.trace.path"], resolved["traffic.trace.records"]) == (str(run), [1, 2])
    output = capsys.readouterr()
    assert "fat-tree" in output.out
    assert output.out.count(f"traffic: {rows[0]['traffic']}\n") == 1
    pictures = sorted(path.name for path in folder.iterdir())
    assert {"token_price.png", "throughput.png", "breakdown.png", "pareto.png"} < set(pictures)
    assert [name.split("_")[0] for name in pictures].count("region") == 1
    assert [name.split("_")[0] for name in pictures].count("timeline") == 2
    assert all((folder / name).read_bytes().startswith(b"\x89PNG") for name in pictures)
    assert all(str(folder / name) in output.err for name in pictures)


def interrupted_after(monkeypatch, count):
    """`compare` gets made-up rows, then the user presses Ctrl-C."""
    row = {"model": MODEL, "fabric": "fat-tree", "policy": "none", "routing": "spraying", "nic_use": "own", "gpus": 8}
    row |= dict.fromkeys(("iteration_s", "compute_s", "exposed_comm_s", "reconfig_s", "bubble_s", "tp_comm_s"), 1.0)
    row |= dict.fromkeys(("ep_comm_s", "dp_comm_s", "network_cost_usd", "perf_per_dollar"), 1.0)

    def stopped(results, *, done):
        for number in range(count):
            yield number, [row | {"nic_gbps": 100.0 * 2**number}]
        raise KeyboardInterrupt

    monkeypatch.setattr("mfabric_jax.evaluate.rows.results.Results.each", stopped)


def test_an_interrupt_keeps_the_rows(capsys, tmp_path, monkeypatch):
    interrupted_after(monkeypatch, 2)
    out = tmp_path / "rows.csv"
    assert status(*SMALL, "--out", str(out), "--figures", str(tmp_path / "pictures")) == 130
    rows, config = read_rows(out)
    assert [row["nic_gbps"] for row in rows] == [100, 200]
    assert config["complete"] is False
    output = capsys.readouterr()
    assert "fat-tree" in output.out
    assert f"2 rows in {out}" in output.err
    assert "Traceback" not in output.err
    assert list((tmp_path / "pictures").iterdir()) == []


def test_an_interrupt_before_the_first_row_or_the_start(capsys, tmp_path, monkeypatch):
    interrupted_after(monkeypatch, 0)
    assert status(*SMALL, "--out", str(tmp_path / "rows.csv")) == 130
    assert list(tmp_path.iterdir()) == []
    assert "Traceback" not in capsys.readouterr().err

    def stop(dtype, device):
        raise KeyboardInterrupt

    monkeypatch.setattr(shared, "start_jax", stop)
    assert status("compare") == 130
    assert capsys.readouterr().err == "mfabric: interrupted.\n"


def test_traffic(capsys):
    words = ("--preset", "paper", "--model", MODEL, "--dp", "1", "--gpus", "128", "--micro-batches", "17")
    assert status("traffic", *words, "--set", "job.head=true") == 0
    output = capsys.readouterr()
    assert output.err == ""
    assert output.out.startswith(f"{MODEL}: 128 GPUs = DP 1 x TP 4 x PP 4 x EP 8, 17 micro-batches of 8 x 4096 tokens")
    assert ", a region (an EP group's servers) of 4\n" in output.out
    for kind in ("TP", "EP", "PP", "DP"):
        assert f"\n{kind} " in output.out
    assert "arXiv 2501.03905" in output.out
    assert status("traffic", "--model", "deepseek-v3") == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if "B parameters" in line)
    assert line.startswith("671.03 B parameters, 37.55 B of them active, 35.7 B without embedding and head; ")
    assert line.endswith("blocks that predict further tokens (job.mtp) have 11.61 B more, trained here")
    assert status("traffic", "--preset", "paper", "--model", "llama-moe") == 0
    said = capsys.readouterr().out
    assert "further tokens" not in said
    assert "\nA region is two servers, one pair: every policy " in said


def test_traffic_writes_what_ranks_send_and_what_a_byte_costs(tmp_path, capsys):
    matrix, cost = tmp_path / "matrix.txt", tmp_path / "cost.json"
    words = ("--model", "llama-moe", "--gpus", "16", "--ep", "16", "--fabric", "fat-tree", "--block", "1")
    assert status("traffic", *words, "--alltoallv", matrix, "--rank-cost", cost) == 0
    output = capsys.readouterr()
    assert output.err.split() == [str(matrix), str(cost)]
    sent = np.loadtxt(matrix)
    assert sent.shape == (16, 16)
    np.testing.assert_allclose(sent.sum(axis=1), 4096 * 2 * 4096 * 2, rtol=1e-6)  # tokens, experts of each, width, bf16
    largest = int(re.search(r"alltoallv_perf -b (\d+) ", output.out)[1])
    assert 0 <= largest - max(sent.sum(axis=0).max(), sent.sum(axis=1).max()) <= 16 * 16
    seconds = np.array(json.loads(cost.read_text())["cost"])
    inside = np.kron(np.eye(2), np.ones((8, 8))) - np.eye(16)
    np.testing.assert_allclose(seconds, inside / 450e9 + np.kron(1 - np.eye(2), np.ones((8, 8))) / 50e9)


START_JAX = shared.start_jax


@pytest.fixture
def start_jax(monkeypatch):
    """The real thing; what it sets is put back."""
    names = ("jax_enable_x64", "jax_default_device", "jax_compilation_cache_dir")
    names = (*names, "jax_persistent_cache_min_compile_time_secs")
    monkeypatch.setattr(shared, "start_jax", START_JAX)
    with configured(**{name: jax.config.values[name] for name in names}):
        yield START_JAX


def test_the_process_is_set_up_and_the_user_s_own_compilation_cache_stays(start_jax, monkeypatch, tmp_path):
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    monkeypatch.setenv("MFABRIC_PROGRAMS", str(tmp_path / "kept"))
    jax.config.update("jax_compilation_cache_dir", None)
    jax.config.update("jax_enable_x64", False)
    kept = programs.kept_in
    start_jax("float32", None)
    assert not jax.config.values["jax_enable_x64"]
    assert jax.config.values["jax_default_device"] is None
    start_jax("float64", "cpu")
    assert jax.config.values["jax_enable_x64"]
    assert jax.config.values["jax_default_device"].platform == "cpu"
    assert jax.config.values["jax_compilation_cache_dir"] == str(tmp_path / "kept" / "jax")
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "theirs")
    jax.config.update("jax_compilation_cache_dir", "theirs")
    start_jax("float32", None)
    assert jax.config.values["jax_compilation_cache_dir"] == "theirs"
    programs.keep_in(kept or "off")


def test_devices_that_are_not_there(start_jax, capsys, never_computes):
    assert mistake(capsys, "compare", "--device", "cpuu").startswith("device 'cpuu' is unknown")
    there = {device.platform for device in jax.devices()}
    absent = next(name for name in ("gpu", "tpu") if name not in there)
    output = mistake(capsys, "compare", "--device", absent)
    assert output == f"device {absent!r} is not on this machine; JAX finds {', '.join(sorted(there))}."


def test_as_a_program_in_a_poor_terminal():
    done = subprocess.run(
        [sys.executable, "-m", "mfabric_jax.cli", "compare", "surplus"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
        env=os.environ | {"PYTHONIOENCODING": "ascii", "COLUMNS": "40"},
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "mfabric: compare does not take 'surplus'; --help lists what it takes.\n"


@pytest.mark.slow
def test_a_reader_who_leaves():
    command = [sys.executable, "-u", "-m", "mfabric_jax.cli", "traffic", "--model", "llama-moe"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT) as program:
        assert program.stdout
        assert program.stderr
        program.stdout.close()
        assert program.stderr.read() == b""
        assert program.wait(60) == 1


TIMELINE = ("timeline", *SMALL[1:3], "--fabric", "mfabric", *SMALL[5:])
TIMELINE_SETTINGS = {"circuits.packets_wait": "true", "job.parts": "2", "job.overlap_gradients": "true"}
OWN = [word for path, value in TIMELINE_SETTINGS.items() for word in ("--set", f"{path}={value}")]
TIMELINE_CASE = small(
    {"network.fabric": "mfabric", "circuits.packets_wait": True, "job.parts": 2, "job.overlap_gradients": True}
)


@pytest.fixture(scope="module")
def solved(as_users_have_it):
    """Segments and rows of one job, solved once."""
    return example_timeline(TIMELINE_CASE)


def test_prints_a_row_for_every_stage_and_writes_both_files(capsys, tmp_path, solved):
    out, picture = tmp_path / "t.json", tmp_path / "g.png"
    assert status(*TIMELINE, *OWN, "--out", out, "--picture", picture) == 0
    output = capsys.readouterr()
    assert output.err.split() == [str(out), str(picture)]
    heading, job, columns, _, *lines = output.out.splitlines()
    _, rows = solved
    assert heading.endswith(f"an iteration of {rows[0]['iteration_s']:.4g} s; seconds of every pipeline stage")
    assert job.startswith(f"{MODEL}: 1024 GPUs = DP 8 x TP 4 x PP 4 x EP 8, 2 micro-batches of 8 x 4096 tokens, ")
    assert columns.split() == ["stage", "compute", "TP", "EP", "DP", "reconf", "bubble"]
    assert len(lines) == len(rows)
    trace = json.loads(out.read_text())
    assert trace["otherData"]["resolved"]["circuits.packets_wait"] is True
    slices = [one for one in trace["traceEvents"] if one["ph"] == "X" and one["name"] != "reconfigure"]
    assert max(one["ts"] + one["dur"] for one in slices) == pytest.approx(rows[0]["iteration_s"] * 1e6)
    assert picture.read_bytes().startswith(b"\x89PNG")


EXPORT = ("export", *TIMELINE[1:])


def test_an_iteration_is_written_and_takes_what_compare_says(capsys, tmp_path, as_users_have_it):
    out = tmp_path / "tasks.json"
    assert status(*EXPORT, "--contention", "none", "--out", out) == 0
    output = capsys.readouterr()
    seconds = row(small({"network.fabric": "mfabric"}))["iteration_s"]
    assert f"\ncompare: {seconds:.6g} s\n" in output.out
    assert f"contention none: {seconds:.6g} s, as in compare" in output.out
    assert output.err.split() == [str(out)]
    one = export_iteration(small({"network.fabric": "mfabric"}))
    assert read_tasks(out).equals(one.graph)
    assert time_iteration(one).iteration_s > seconds  # gradients hold the last send up
