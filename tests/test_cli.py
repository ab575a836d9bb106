"""The command line: what it prints, what it writes, and one sentence for every mistake."""

import json
import os
import pathlib
import stat
import subprocess
import sys

import jax
import numpy as np
import pytest

import mfabric_jax
from mfabric_jax import cli, commands, study
from mfabric_jax.commands import shared
from mfabric_jax.report import read_rows
from mfabric_jax.workload import NAMES, get, share_table
from tests.study.small import MODEL, as_a_user, configured

for _extra in ("tyro", "tqdm"):
    pytest.importorskip(_extra, reason=f"the command line needs {_extra}")

SMALL = ("compare", "--models", MODEL, "--fabrics", "fat-tree,mfabric", "--nic-gbps", "100", "--micro-batches", "2")
SMALL = (*SMALL, "--dtype", "float64")
FABRICS = ["fat-tree", "mfabric"]


@pytest.fixture(scope="module", autouse=True)
def as_users_have_it():
    """The rest of the tests are strict about dtypes."""
    with as_a_user():
        yield


@pytest.fixture
def start_jax():
    """The real thing, for the tests of it; what it sets is put back."""
    names = ("jax_enable_x64", "jax_default_device", "jax_compilation_cache_dir")
    names = (*names, "jax_persistent_cache_min_compile_time_secs")
    with configured(**{name: jax.config.values[name] for name in names}):
        yield shared.start_jax


@pytest.fixture(autouse=True)
def process_is_left_alone(request, monkeypatch):
    """`start_jax` sets up the process, which other tests would notice."""
    if "start_jax" not in request.fixturenames:
        monkeypatch.setattr(shared, "start_jax", lambda dtype, device: None)


@pytest.fixture
def never_computes(monkeypatch):
    """Fails the test where anything is solved."""

    def no(*args, **named):
        raise AssertionError("compute began")

    monkeypatch.setattr(study, "compare", no)


def status(*words):
    """Exit status, as a shell would see it."""
    try:
        return cli.main(list(words))
    except SystemExit as end:
        return end.code or 0


def mistake(capsys, *words):
    """The sentence: status 2, nothing on standard output, one line on standard error."""
    assert status(*words) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert said.err.startswith("mfabric: ")
    assert said.err.endswith(".\n")
    return said.err.removeprefix("mfabric: ").strip()


# ------------------------------------------------------------------------------------------------- help and mistakes
def test_version(capsys):
    assert status("--version") == 0
    assert capsys.readouterr().out == f"mfabric {mfabric_jax.__version__}\n"


@pytest.mark.parametrize("word", ["--help", "-h"])
def test_help(capsys, word):
    assert status(word) == 0
    said = capsys.readouterr()
    assert said.out.startswith("usage: mfabric COMMAND")
    assert said.err == ""
    for command in commands.NAMES:
        assert f"\n  {command} " in said.out


@pytest.mark.parametrize("command", ["compare", "traffic"])
def test_help_of_a_command(capsys, command, never_computes):
    assert status(command, "--help") == 0
    said = capsys.readouterr().out
    assert f"usage: mfabric {command}" in said
    assert "--micro-batches" in said
    assert "mixtral-8x22b" in said


def test_no_command(capsys):
    assert status() == 2
    assert "usage: mfabric COMMAND" in "".join(capsys.readouterr())


def test_unknown_commands(capsys):
    said = mistake(capsys, "compar")
    assert said.startswith("command 'compar' is unknown (did you mean 'compare'?); allowed: compare, calibrate, fail")
    assert mistake(capsys, "--verbose").startswith("command '--verbose' is unknown")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--modles", "llama-moe"], "option '--modles' is unknown (did you mean '--models'?); allowed: --"),
        (["--modles=llama-moe"], "option '--modles' is unknown (did you mean '--models'?); allowed: --"),
        (["--nic_gbps", "100"], "option '--nic_gbps' is unknown (did you mean '--nic-gbps'?)"),
        pytest.param(["--seed", "x"], "option --seed takes a whole number, got 'x'."),
        pytest.param(["--gpus", "1.5"], "option --gpus takes a whole number, got '1.5'."),
        pytest.param(["--delay-s", "soon"], "option --delay-s takes a number, got 'soon'."),
        pytest.param(["--models"], "option --models needs a value behind it"),
        pytest.param(["surplus"], "compare does not take 'surplus'"),
        (["--models", "llama-mo"], "models 'llama-mo' is unknown (did you mean 'llama-moe'?)"),
        (["--models", ","], "models must name at least one; allowed: mixtral-8x22b"),
        (["--models", "llama-moe,llama-moe"], "models must not repeat a name, got llama-moe, llama-moe."),
        (["--fabrics", "fattree"], "fabrics 'fattree' is unknown (did you mean 'fat-tree'?)"),
        (["--nic-gbps", "100,fast"], "nic_gbps must be numbers separated by commas, got 'fast'."),
        (["--nic-gbps", "50"], "nic_gbps 50 has no price; prices are listed from 100 to 800 Gbps."),
        (["--nic-gbps", "nan"], "nic_gbps must be finite and above 0, got nan."),
        (["--nic-gbps", "100,100.0"], "nic_gbps must not repeat a bandwidth, got [100.0, 100.0]."),
        (["--nic-use", "mine"], "nic_use 'mine' is unknown"),
        (["--policy", "greedi"], "policy 'greedi' is unknown (did you mean 'greedy'?)"),
        (["--rule", "prinetd"], "rule 'prinetd' is unknown (did you mean 'printed'?)"),
        (["--routing", "best-paht"], "routing 'best-paht' is unknown (did you mean 'best-path'?)"),
        (["--traffic", "generate"], "traffic 'generate' is unknown (did you mean 'generated'?)"),
        (["--dtype", "float16"], "dtype 'float16' is unknown"),
        (["--gpu", "H100"], "gpu 'H100' is unknown"),
        (["--delay-s", "-1"], "delay_s must be finite and not negative, got -1.0."),
        (["--skew", "nan"], "skew must be finite and not negative, got nan."),
        (["--efficiency", "0"], "efficiency must be finite and above 0, got 0.0."),
        (["--optical-degree", "-1"], "optical_degree must be a whole number of at least 0, got -1."),
        (["--electrical-nics", "0"], "electrical_nics must be at least 1"),
        (["--seed", "-1"], "seed must be a whole number of at least 0, got -1."),
        (["--iterations", "0"], "iterations must be a whole number of at least 1, got 0."),
        (["--models", "llama-moe", "--dp", "3"], "dp x tp x pp x ep must equal gpus, got 3 x 1 x 4 x 16 = 192"),
        (["--models", "llama-moe", "--tp", "3", "--gpus", "3072"], "tp must divide gpus_per_server (8), got 3."),
        (["--records", "5"], "records must be FIRST-LAST, such as 2011-5001, got '5'."),
        (["--trace", "x.npz", "--traffic", "balanced"], "traffic 'balanced' is not used beside a trace; leave out one"),
        (["--trace", "x.npz", "--skew", "0.5"], "skew 0.5 is not used beside a trace; leave out one of them."),
        (["--skew", "0.5"], "skew is of traffic 'generated' alone, got traffic 'measured'."),
        (["--records", "1-5"], "records chooses from a trace; name one with trace."),
    ],
)
def test_mistakes_in_a_comparison(capsys, never_computes, words, sentence):
    assert mistake(capsys, "compare", *words).startswith(sentence)


def test_traces_that_cannot_be_read(capsys, tmp_path):
    assert mistake(capsys, *SMALL, "--trace", str(tmp_path / "no.npz")).startswith("trace must be an existing file")
    (tmp_path / "rows.csv").write_text("a,b\n")
    assert ".npy or .npz" in mistake(capsys, *SMALL, "--trace", str(tmp_path / "rows.csv"))
    np.savez(tmp_path / "run.npz", tokens=np.ones((1, 1, 1, 3, 8)))
    assert "must divide the 3 source ranks" in mistake(capsys, *SMALL, "--trace", str(tmp_path / "run.npz"))


def test_without_the_extra(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "tyro", None)
    said = mistake(capsys, "compare")
    assert said == "the command line needs its extra: pip install 'mfabric-jax[cli]'."


# ----------------------------------------------------------------------------------------------------------- compare
def test_rows_to_csv_and_parquet(capsys, tmp_path):
    pytest.importorskip("pyarrow", reason="writing .parquet needs pyarrow")
    csv, parquet = tmp_path / "rows.csv", tmp_path / "more" / "rows.parquet"
    assert status(*SMALL, "--seed", "1", "--out", str(csv)) == 0
    said = capsys.readouterr()
    assert "fat-tree" in said.out
    assert "perf/$" in said.out
    assert f"2 rows in {csv}" in said.err
    assert status(*SMALL, "--seed", "1", "--out", str(parquet)) == 0
    assert capsys.readouterr().out == said.out
    rows, config = read_rows(csv)
    same, footer = read_rows(parquet)
    assert rows == same
    assert config == footer
    assert sorted(path.name for path in tmp_path.iterdir()) == ["more", "rows.config.json", "rows.csv"]
    assert json.loads((tmp_path / "rows.config.json").read_text()) == config
    assert [row["fabric"] for row in rows] == FABRICS
    assert (config["seed"], config["micro_batches"], config["complete"]) == (1, 2, True)
    assert (config["models"], config["dtype"]) == ([MODEL], "float64")
    want = list(
        study.compare(
            study.Compare(
                models=(MODEL,),
                fabrics=tuple(FABRICS),
                nic_gbps=(100.0,),
                micro_batches=2,
                dtype="float64",
                seed=1,
            )
        )
    )
    assert rows == want


def test_figures(capsys, tmp_path):
    pytest.importorskip("matplotlib", reason="pictures need matplotlib")
    folder = tmp_path / "pictures"
    assert status(*SMALL, "--figures", str(folder)) == 0
    pictures = sorted(path.name for path in folder.iterdir())
    assert {"iteration_time.png", "pareto.png", "breakdown.png"} <= set(pictures)
    assert sum(name.startswith("region_") for name in pictures) == 1
    assert sum(name.startswith("timeline_") for name in pictures) == 2
    assert all((folder / name).read_bytes().startswith(b"\x89PNG") for name in pictures)
    said = capsys.readouterr().err
    assert all(str(folder / name) in said for name in pictures)


def test_a_trace_of_one_s_own(capsys, tmp_path):
    run = tmp_path / "run.npz"
    np.savez(run, tokens=np.random.default_rng(0).integers(1, 9, (3, 2, 4, 8, 8)))
    out = tmp_path / "rows.csv"
    assert status(*SMALL, "--trace", str(run), "--records", "1-2", "--out", str(out)) == 0
    rows, config = read_rows(out)
    assert {row["traffic"] for row in rows} == {f"recorded {run}, records 1 to 1, layer l reads recorded layer l mod 2"}
    assert (config["trace"], config["records"]) == (str(run), [1, 2])
    said = capsys.readouterr().out
    assert "fat-tree" in said
    assert said.count(f"traffic: recorded {run}, records 1 to 1, layer l reads recorded layer l mod 2\n") == 1


# -------------------------------------------------------------------------------------------- where rows cannot go
@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("rows.txt", "extension '.txt' is unknown; allowed: .csv, .parquet"),
        ("rows", "has no extension; allowed: .csv, .parquet"),
        ("occupied/rows.csv", "cannot write into"),
    ],
)
def test_out_is_refused_before_compute(capsys, tmp_path, never_computes, path, words):
    (tmp_path / "occupied").write_text("a file, no folder")
    assert words in mistake(capsys, *SMALL, "--out", str(tmp_path / path))
    assert [one.name for one in tmp_path.iterdir()] == ["occupied"]


def test_a_folder_in_the_way_is_refused_before_compute(capsys, tmp_path, never_computes):
    (tmp_path / "rows.csv").mkdir()
    assert "is a folder" in mistake(capsys, *SMALL, "--out", str(tmp_path / "rows.csv"))


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission_is_refused_before_compute(capsys, tmp_path, never_computes):
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        assert "cannot write into" in mistake(capsys, *SMALL, "--out", str(tmp_path / "rows.csv"))
    finally:
        tmp_path.chmod(stat.S_IRWXU)


def test_figures_are_refused_before_compute(capsys, tmp_path, never_computes):
    (tmp_path / "file").write_text("")
    assert "cannot write into" in mistake(capsys, *SMALL, "--figures", str(tmp_path / "file"))


# -------------------------------------------------------------------------------------------------------- interrupted
def interrupted_after(monkeypatch, count):
    """`study.compare` yields made-up rows, then the user presses Ctrl-C."""
    row = {
        "model": MODEL,
        "fabric": "fat-tree",
        "policy": "none",
        "routing": "spraying",
        "nic_use": "own",
        "gpus": 1024,
        **dict.fromkeys(("iteration_s", "compute_s", "exposed_comm_s", "reconfig_s", "bubble_s"), 1.0),
        **dict.fromkeys(("tp_comm_s", "ep_comm_s", "dp_comm_s", "network_cost_usd", "perf_per_dollar"), 1.0),
    }

    def stopped(config, progress=None):
        for done in range(count):
            yield row | {"nic_gbps": 100.0 * 2**done}
        raise KeyboardInterrupt

    monkeypatch.setattr(study, "compare", stopped)


def test_an_interrupt_keeps_the_rows(capsys, tmp_path, monkeypatch):
    interrupted_after(monkeypatch, 2)
    out = tmp_path / "rows.csv"
    assert status(*SMALL, "--out", str(out), "--figures", str(tmp_path / "pictures")) == 130
    rows, config = read_rows(out)
    assert [row["nic_gbps"] for row in rows] == [100, 200]
    assert config["complete"] is False
    said = capsys.readouterr()
    assert "fat-tree" in said.out
    assert f"2 rows in {out}" in said.err
    assert "Traceback" not in said.err
    assert list((tmp_path / "pictures").iterdir()) == []


def test_an_interrupt_before_the_first_row(capsys, tmp_path, monkeypatch):
    interrupted_after(monkeypatch, 0)
    assert status(*SMALL, "--out", str(tmp_path / "rows.csv")) == 130
    assert list(tmp_path.iterdir()) == []
    assert "Traceback" not in capsys.readouterr().err


def test_an_interrupt_elsewhere(capsys, monkeypatch):
    def stop(dtype, device):
        raise KeyboardInterrupt

    monkeypatch.setattr(shared, "start_jax", stop)
    assert status("compare") == 130
    assert capsys.readouterr().err == "mfabric: interrupted.\n"


# ----------------------------------------------------------------------------------------------------------- traffic
def test_traffic(capsys):
    assert status("traffic", MODEL, "--dp", "1", "--gpus", "128") == 0
    said = capsys.readouterr()
    assert said.err == ""
    assert said.out.startswith(f"{MODEL}: 128 GPUs = DP 1 x TP 4 x PP 4 x EP 8, 4 micro-batches of 8 x 4096 tokens")
    for row in share_table(get(MODEL, dp=1, gpus=128)):
        (line,) = [line.split() for line in said.out.splitlines() if line.startswith(f"{row['parallelism']} ")]
        assert line[2] == f"{100 * row['share']:.1f}%"
        assert " ".join(line[3:]) == row["measured"]
        np.testing.assert_allclose(float(line[1]), row["bytes_per_iteration"] / 1e9, rtol=0.02)
    assert "arXiv 2501.03905" in said.out


@pytest.mark.parametrize("model", NAMES)
def test_traffic_of_every_model(capsys, model):
    assert status("traffic", model) == 0
    assert capsys.readouterr().out.startswith(f"{model}: ")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "traffic needs the name of a model first; allowed: mixtral-8x22b"),
        (["--dp", "1"], "traffic needs the name of a model first"),
        (["mixtral"], "model 'mixtral' is unknown (did you mean 'mixtral-8x7b'?)"),
        pytest.param([MODEL, "llama-moe"], "traffic does not take 'llama-moe'"),
        ([MODEL, "--gpsu", "8"], "option '--gpsu' is unknown (did you mean '--gpus'?)"),
        pytest.param([MODEL, "--dp", "x"], "option --dp takes a whole number, got 'x'."),
        ([MODEL, "--dp", "3"], "dp x tp x pp x ep must equal gpus, got 3 x 4 x 4 x 8 = 384 but gpus = 1024"),
    ],
)
def test_mistakes_in_traffic(capsys, words, sentence):
    assert mistake(capsys, "traffic", *words).startswith(sentence)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "validate needs to know what first; allowed: packet"),
        (["--runs", "here"], "validate needs to know what first"),
        (["pakcet"], "validation 'pakcet' is unknown (did you mean 'packet'?)"),
        (["packet"], "validate packet needs --runs"),
        (["packet", "--rnus", "here"], "option '--rnus' is unknown (did you mean '--runs'?)"),
    ],
)
def test_mistakes_in_a_validation(capsys, words, sentence):
    assert mistake(capsys, "validate", *words).startswith(sentence)


# ------------------------------------------------------------------------------------------------------- the process
def test_the_process_is_set_up(start_jax, monkeypatch, tmp_path):
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    jax.config.update("jax_enable_x64", False)
    start_jax("float32", None)
    assert not jax.config.values["jax_enable_x64"]
    assert jax.config.values["jax_default_device"] is None
    start_jax("float64", "cpu")
    assert jax.config.values["jax_enable_x64"]
    assert jax.config.values["jax_default_device"].platform == "cpu"
    assert jax.config.values["jax_compilation_cache_dir"] == str(tmp_path / "mfabric_jax")


def test_the_user_s_own_compilation_cache_stays(start_jax, monkeypatch):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "theirs")
    jax.config.update("jax_compilation_cache_dir", "theirs")
    start_jax("float32", None)
    assert jax.config.values["jax_compilation_cache_dir"] == "theirs"


def test_devices_that_are_not_there(start_jax, capsys, never_computes):
    assert mistake(capsys, "compare", "--device", "cpuu").startswith("device 'cpuu' is unknown")
    there = {device.platform for device in jax.devices()}
    absent = next(name for name in ("gpu", "tpu") if name not in there)
    said = mistake(capsys, "compare", "--device", absent)
    assert said == f"device {absent!r} is not on this machine; JAX finds {', '.join(sorted(there))}."


@pytest.mark.parametrize(
    "terminal",
    [
        {"PYTHONIOENCODING": "utf-8"},
        pytest.param({"PYTHONIOENCODING": "ascii"}),
        pytest.param({"PYTHONIOENCODING": "utf-8", "COLUMNS": "40"}),
    ],
)
def test_as_a_program(terminal):
    root = pathlib.Path(mfabric_jax.__file__).parents[1]
    command = [sys.executable, "-m", "mfabric_jax.cli", "compare", "surplus"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=root, timeout=60, env=os.environ | terminal)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "mfabric: compare does not take 'surplus'; mfabric compare --help lists what it takes.\n"


def test_a_reader_who_leaves():
    root = pathlib.Path(mfabric_jax.__file__).parents[1]
    command = [sys.executable, "-u", "-m", "mfabric_jax.cli", "traffic", "llama-moe"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=root) as program:
        program.stdout.close()
        assert program.stderr.read() == b""
        assert program.wait(60) == 1
