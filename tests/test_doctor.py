"""`mfabric doctor` says what is slow here, and which extras are missing."""

import pathlib
import re
import tomllib

import pytest

import mfabric_jax
from mfabric_jax.checks import InputError
from mfabric_jax.commands import speed_lines
from mfabric_jax.support import extras, platforms, programs
from tests.command_line import status
from tests.small import configured


def said(topic):
    return [line.says for line in speed_lines.doctor() if line.topic == topic]


def test_without_a_home_there_is_no_cache(monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    with pytest.raises(InputError, match="set XDG_CACHE_HOME"):
        programs.cache_folder()


def test_doctor_says_what_is_slow(monkeypatch, tmp_path):
    (tmp_path / "program").write_bytes(bytes(3 << 20))
    fine = {"jax_enable_x64": False, "jax_disable_most_optimizations": False}
    with configured(jax_compilation_cache_dir=str(tmp_path), **fine):
        monkeypatch.setattr(speed_lines, "nvidia_files", lambda: [])
        assert said("slow") == ["no known slow setting"]
        assert said("compilation cache") == [f"{tmp_path}: 1 files, 3 MiB"]
        assert said("precision") == ["float32 by default (jax_enable_x64 is off)"]
    slow = {"jax_enable_x64": True, "jax_debug_nans": True, "jax_disable_jit": True}
    with configured(jax_compilation_cache_dir=None, jax_disable_most_optimizations=False, **slow):
        monkeypatch.setattr(speed_lines, "nvidia_files", lambda: ["nvidia0"])
        monkeypatch.setattr(platforms, "platform", lambda: "cpu")
        starts = ["jax_enable_x64 is on", "the CPU computes", "no compilation cache", "jax_debug_nans"]
        starts += ["jax_disable_jit"]
        assert all(text.startswith(start) for text, start in zip(said("slow"), starts, strict=True))
        assert said("compilation cache") == ["none: every process compiles anew"]


def test_doctor_names_extras_and_loops(monkeypatch):
    monkeypatch.setattr(speed_lines, "PACKAGES", {"plot": ("numpy", "not-there")})
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


def test_the_command(command_line, capsys):
    assert status("doctor") == 0
    lines = capsys.readouterr().out.splitlines()
    begins = lines[0].index(mfabric_jax.__version__)
    assert {line[begins - 2 : begins] for line in lines} == {"  "}
    assert not any(line[begins] == " " for line in lines)
