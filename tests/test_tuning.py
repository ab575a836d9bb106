"""What tune keeps is what "auto" uses, on the device that it was measured on alone; and doctor says so."""

import json
import pathlib
import re
import tomllib

import jax
import numpy as np
import pytest

import mfabric_jax
from mfabric_jax import tuned_file, tuning
from mfabric_jax.checks import InputError
from mfabric_jax.evaluate.rows.results import provenance
from mfabric_jax.flows import kernels
from mfabric_jax.flows.kernels import chosen_kernel, usual
from mfabric_jax.support import extras, platforms
from tests.command_line import status
from tests.flows.test_star import lowered
from tests.mistakes import refused
from tests.small import configured

HERE = tuned_file.key_of(platforms.device())
H100 = tuned_file.Key("NVIDIA H100 80GB HBM3", "9.0", "cuda 12080", jax.__version__, HERE.package)
ON_CPU = pytest.mark.skipif(platforms.platform() != "cpu", reason="chunks of a CPU")


@pytest.fixture(autouse=True)
def tuned(monkeypatch, tmp_path):
    """A tuned file of this test's own; it is not there yet."""
    path = tmp_path / "kept" / "tuned.json"
    monkeypatch.setenv(tuned_file.ENVIRONMENT, str(path))
    return path


@pytest.fixture
def quick(monkeypatch):
    """Two chunk sizes, and few instances."""
    monkeypatch.setattr(tuning, "CHUNKS", (4, 8))
    monkeypatch.setattr(tuning, "DRAWN", 4)
    monkeypatch.setattr(tuning, "TURN_S", 1e-9)
    monkeypatch.setattr(tuning, "usual", lambda platform, n: kernels.Kernel("xla", 4))


def said(topic):
    return [line.says for line in tuning.doctor() if line.topic == topic]


@ON_CPU
def test_tune_keeps_and_auto_reads_back(tuned, quick, as_users_have_it):
    told = []
    rows = tuning.tune([8], batch=8, calls=1, progress=told.append)
    assert told == ["8 servers, xla:4", "8 servers, xla:8"]
    assert [(row["kernel"], row["usual"]) for row in rows] == [("xla:4", True), ("xla:8", False)]
    assert all(row["error"] < 1e-5 and row["regions_per_s"] > 0 and row["compile_s"] > 0 for row in rows)
    assert all(row["dropped"] is None for row in rows)
    (kept,) = [row["kernel"] for row in rows if row["kept"]]
    (entry,) = tuned_file.entries()
    assert (entry.key, entry.kernels, entry.rows) == (HERE, {8: kept}, rows)
    assert str(chosen_kernel("cpu", 8)) == kept
    assert {path.name for path in tuned.parent.iterdir()} <= {tuned.name, "tuned.lock"}  # no temporary file stays
    before = tuned.read_text()
    assert provenance("float32")["kernel"]["8"] == kept
    assert tuned.read_text() == before


def test_what_is_kept_changes_programs_of_this_device(tuned):
    # The size itself before the next power of two; nothing for what no size covers.
    assert not tuned.exists()
    assert str(chosen_kernel("cpu", 8)) == "xla:256"
    assert provenance("float32")["tuned"] is False
    tuned_file.keep_tuned(HERE, {8: "xla:8", 16: "xla:512"}, [{"servers": 8}, {"servers": 16}])
    tuned_file.keep_tuned(H100, {8: "fused:2"}, [])
    tuned_file.keep_tuned(HERE, {8: "xla:32", 12: "xla:24"}, [{"servers": 8}])  # sizes are kept one by one
    assert {entry.key for entry in tuned_file.entries()} == {HERE, H100}
    chosen = [str(chosen_kernel("cpu", n)) for n in (5, 8, 9, 12, 16)]
    assert chosen == ["xla:32", "xla:32", "xla:512", "xla:24", "xla:512"]
    assert [chosen_kernel("cpu", n) for n in (4, 17, 64)] == [usual("cpu", n) for n in (4, 17, 64)]
    assert [chosen_kernel("cuda", n) for n in (8, 16)] == [usual("cuda", n) for n in (8, 16)]  # no GPU was tuned
    assert "tensor<10x7x7x32xf32>" in lowered(7, 320, "cpu")
    with platforms.compiling_for("cpu"):
        assert chosen_kernel("cpu", 8) == usual("cpu", 8)  # for a device that is not there
    found = provenance("float32")
    assert (found["kernel"]["8"], found["kernel"]["12"], found["tuned"]) == ("xla:32", "xla:24", True)


def test_another_device_or_version_does_not_apply(tuned):
    older = HERE._replace(jax="0.9.0")
    tuned_file.keep_tuned(H100, {8: "fused:2"}, [])
    tuned_file.keep_tuned(older, {8: "xla:1"}, [])
    assert chosen_kernel("cpu", 8) == usual("cpu", 8)
    assert chosen_kernel("cuda", 8) == usual("cuda", 8)
    assert said("tuned") == [
        f"tuned for {H100.device}, this is {HERE.device}: does not apply",
        f"tuned with jax 0.9.0, this is {jax.__version__}: does not apply",
    ]
    assert said("kernel, 8 servers") == ["xla:256 (usual)"]
    tuned_file.keep_tuned(HERE, {8: "xla:32", 16: "xla:128"}, [])
    assert said("tuned")[2].startswith("applies: 8 xla:32, 16 xla:128 (20")
    assert said("kernel, 8 servers") == ["xla:32 (tuned; usual is xla:256)"]
    assert said("kernel, 16 servers") == ["xla:128 (tuned)"]


@ON_CPU
def test_inexact_and_failing_kernels_are_dropped(quick, monkeypatch, as_users_have_it):
    real = tuning.star_completion

    def wrong(size, up, down, kernel):
        if kernel == "xla:8":
            raise RuntimeError("no such\nthing")
        return real(size, up, down, kernel=kernel) * (1.001 if kernel == "xla:4" else 1)

    monkeypatch.setattr(tuning, "star_completion", wrong)
    rows = tuning.tune([8], batch=8, calls=1)
    assert [row["dropped"] for row in rows] == [
        "finish times are off by 0.001, more than 0.0001",
        "does not run here (RuntimeError: no such)",
    ]
    assert [(row["regions_per_s"], row["kept"]) for row in rows] == [(None, False)] * 2
    assert tuned_file.kernels_of(platforms.device()) == {}
    assert chosen_kernel("cpu", 8) == usual("cpu", 8)


def test_the_fastest_is_kept_unless_the_usual_one_is_hardly_slower():
    def fastest(*speeds):
        names = ("regions_per_s", "usual", "dropped", "kernel")
        rows = [dict(zip(names, (speed, n == 0, why, n), strict=True)) for n, (speed, why) in enumerate(speeds)]
        return [row["kernel"] for row in tuning.fastest(rows)]

    assert fastest((96.0, None), (100.0, None), (90.0, None)) == [0]
    assert fastest((94.0, None), (100.0, None), (90.0, None)) == [1]
    assert fastest((None, "inexact"), (100.0, None), (101.0, None)) == [2]
    assert fastest((None, "inexact"), (None, "inexact")) == []


def test_errors_candidates_and_batches():
    exact = np.array([[[0.0, 1.0]]])
    assert tuning.largest_error(np.array([[[0.0, 1.5]]]), exact) == 0.5
    for wrong in ([0.0, np.nan], [0.0, np.inf], [1.0, 1.0]):  # no flow may be missing, or be there
        assert tuning.largest_error(np.array([[wrong]]), exact) is None
    assert tuning.candidates("cpu", 8, 100) == ["xla:256", "xla:16", "xla:32", "xla:64"]
    assert tuning.candidates("gpu", 64, 9) == ["fused:4", "fused:1", "fused:2", "fused:8", "xla:0"]
    assert [tuning.usual_batch("gpu", n) for n in (8, 32, 64)] == [65536, 16384, 1024]


@pytest.mark.parametrize("text", ["{", "[]", '{"entries": [{}]}', '{"entries": 3}', "\udcff", "kernel", "type", "rows"])
def test_a_broken_file_is_named_in_a_sentence(tuned, text):
    tuned_file.keep_tuned(HERE, {8: "xla:32"}, [])
    kept = json.loads(tuned.read_text())
    if text in ("kernel", "type", "rows"):
        kept["entries"][0]["kernels"]["8"] = {"kernel": "fused:3", "type": 3, "rows": "xla:32"}[text]
        kept["entries"][0]["rows"] = [1] if text == "rows" else []
        text = json.dumps(kept)
    tuned.write_text(text, encoding="utf-8", errors="surrogateescape")
    with pytest.warns(UserWarning, match="is broken") as warned:  # nobody's run ends for it
        assert chosen_kernel("cpu", 8) == usual("cpu", 8)
    sentence = str(warned[0].message)
    assert sentence.startswith(f"tuned file {str(tuned)!r} is broken (")
    assert sentence.endswith("): delete it, then run mfabric tune again.")
    assert sentence in [line.says for line in tuning.doctor()]


def test_tune_refuses_before_it_measures(tuned, monkeypatch):
    monkeypatch.setattr(tuning, "measured", None)
    assert refused(tuning.tune, [1]) == "sizes must be a whole number of at least 2, got 1."
    assert "none twice" in refused(tuning.tune, [8, 8])
    assert refused(tuning.tune, [8], calls=0) == "calls must be a whole number of at least 1, got 0."
    tuned.parent.mkdir()
    tuned.write_text("{")
    assert "is broken" in refused(tuning.tune, [8])
    tuned.unlink()
    monkeypatch.setenv(tuned_file.ENVIRONMENT, str(tuned.parent / "file" / "tuned.json"))
    (tuned.parent / "file").touch()
    assert "cannot write into" in refused(tuning.tune, [8])
    with platforms.compiling_for("gpu"):
        assert "only compiled for" in refused(tuning.tune, [8])


def test_without_a_home_nothing_was_tuned(monkeypatch):
    for name in (tuned_file.ENVIRONMENT, "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(tuned_file.os.path, "expanduser", lambda path: path)
    assert chosen_kernel("cpu", 8) == usual("cpu", 8)
    with pytest.raises(InputError, match="set XDG_CACHE_HOME"):
        tuned_file.cache_folder()


def test_doctor_says_what_is_slow(monkeypatch, tmp_path):
    (tmp_path / "program").write_bytes(bytes(3 << 20))
    fine = {"jax_enable_x64": False, "jax_disable_most_optimizations": False}
    with configured(jax_compilation_cache_dir=str(tmp_path), **fine):
        monkeypatch.setattr(tuning, "nvidia_files", lambda: [])
        assert said("slow") == ["nothing that is known to be"]
        assert said("compilation cache") == [f"{tmp_path}: 1 files, 3 MiB"]
        assert said("precision") == ["float32 by default (jax_enable_x64 is off)"]
    slow = {"jax_enable_x64": True, "jax_debug_nans": True, "jax_disable_jit": True}
    with configured(jax_compilation_cache_dir=None, jax_disable_most_optimizations=False, **slow):
        monkeypatch.setattr(tuning, "nvidia_files", lambda: ["nvidia0"])
        monkeypatch.setattr(platforms, "platform", lambda: "cpu")
        starts = ["jax_enable_x64 is on", "the CPU computes", "no compilation cache", "jax_debug_nans"]
        starts += ["jax_disable_jit"]
        assert all(text.startswith(start) for text, start in zip(said("slow"), starts, strict=True))
        assert said("compilation cache") == ["none: every process compiles anew"]


def test_doctor_names_extras_and_loops(monkeypatch):
    monkeypatch.setattr(tuning, "PACKAGES", {"plot": ("numpy", "not-there")})
    assert said("extra plot") == ["without not-there: pip install 'mfabric-jax[plot]'"]
    assert said("loops of a GPU") == ["no GPU is in use"]
    monkeypatch.setattr(platforms, "platform", lambda: "gpu")
    for flags, start in (
        ("", "started by the host"),
        ("--xla_gpu_enable_command_buffer=-WHILE", "started by the host"),
        ("--a=1 --xla_gpu_enable_command_buffer=fusion,while --b", "inside command buffers"),
        (platforms.RECORDED, "inside command buffers"),
    ):
        monkeypatch.setenv("XLA_FLAGS", flags)
        assert said("loops of a GPU")[0].startswith(start), flags


def test_extras_are_those_of_the_project():
    text = (pathlib.Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8")
    declared = tomllib.loads(text)["project"]["optional-dependencies"]
    for name, packages in extras.PACKAGES.items():
        assert [re.split("[>=]", text)[0] for text in declared[name]] == list(packages)


@ON_CPU
def test_the_commands(quick, command_line, capsys, tmp_path, tuned):
    out = tmp_path / "rows.csv"
    assert status("tune", "--sizes", "8", "--batch", "8", "--calls", "1", "--out", out) == 0
    printed = capsys.readouterr().out
    assert "regions/s" in printed
    assert "usual" in printed
    assert printed.endswith(f"kept in {tuned}\n")
    assert out.exists()
    assert status("doctor") == 0
    lines = capsys.readouterr().out.splitlines()
    begins = lines[0].index(mfabric_jax.__version__)
    assert {line[begins - 2 : begins] for line in lines} == {"  "}
    assert not any(line[begins] == " " for line in lines)
    assert any(line.startswith("tuned file  ") and line.endswith(str(tuned)) for line in lines)
