"""A kept program is loaded where it was compiled, and nothing that happens to its file changes a number."""

import contextlib
import errno
import fcntl
import functools
import importlib.metadata
import os
import pathlib
import random
import re
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mfabric_jax import program_key, program_store, programs, tuned_file, tuning
from mfabric_jax.checks import InputError
from tests.command_line import status

ROOT = pathlib.Path(__file__).parents[1]
TRACED = []
X = np.linspace(0.0, 3.0, 9).reshape(3, 3)


def waves(x, n):
    """Loops and kernels, so that it is no trivial program."""
    TRACED.append(n)
    turned = jax.lax.fori_loop(0, n, lambda i, x: jnp.sin(x) @ x, x)
    return {"turned": turned, "sorted": jnp.sort(turned, axis=0), "n": None}


def called_back(x, kind):
    def host(x):
        return np.asarray(x) + 1

    if kind == "printed":
        jax.debug.print("{x}", x=x)
        return x + 1
    return jax.pure_callback(host, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of programs of this test; functions of this file count as the package's, unedited."""
    monkeypatch.setattr(program_key, "BEGAN", time.time())
    monkeypatch.setattr(program_key, "KNOWN", program_key.KNOWN | {"tests"})
    yield tmp_path / "kept"
    programs.forget()
    programs.keep_in("off")
    program_key.surroundings.cache_clear()


def again(folder, n=2, x=X):
    """What a new process would find: the results, and how many programs it loaded and compiled."""
    programs.forget()
    program_key.surroundings.cache_clear()
    programs.keep_in(folder)
    TRACED.clear()
    found = programs.run(waves, x, n)
    assert len(TRACED) == programs.counts().compiled
    return found["turned"], tuple(programs.counts())


def files(folder, suffix=".program"):
    return sorted(path for path in folder.iterdir() if path.suffix == suffix)


def troubles():
    return programs.store().troubles


def exact(n=2, x=X):
    programs.forget()
    programs.keep_in("off")
    return programs.run(waves, x, n)["turned"]


def test_a_kept_program_is_loaded_with_equal_bits(folder):
    want, counted = again(folder)
    assert (counted, troubles()) == ((0, 1), [])
    assert (folder.stat().st_mode & 0o777, files(folder)[0].stat().st_mode & 0o777) == (0o700, 0o600)
    for x in (X, X[::-1].copy()):
        found, counted = again(folder, x=x)
        assert counted == (1, 0)
        np.testing.assert_array_equal(found, exact(x=x))
    assert again(folder, n=3)[1] == (0, 1)
    assert len(files(folder)) == 2
    assert len(list(folder.iterdir())) == 2  # no lock and no temporary file stays
    np.testing.assert_array_equal(want, exact())


def test_what_jax_s_own_cache_holds_is_compiled_afresh(folder):
    program = exact()  # JAX has it in its cache on disk, and now the very executable came out of there
    programs.forget()
    jax.clear_caches()
    np.testing.assert_array_equal(program, exact())
    assert again(folder)[1] == (0, 1)
    assert troubles() == []
    found, counted = again(folder)
    assert counted == (1, 0)
    np.testing.assert_array_equal(found, program)


def test_flipped_bytes_and_cut_files_cost_compiling_alone(folder):
    want = exact()
    again(folder)
    (file,) = files(folder)
    whole = file.read_bytes()
    draw = random.Random(1)
    header = len(program_store.MAGIC) + program_store.HEADER.size
    places = [0, header - 40, header - 1, header + 9, len(whole) - 1, *(draw.randrange(len(whole)) for _ in range(12))]
    broken = [whole[:i] + bytes([whole[i] ^ (1 << draw.randrange(8))]) + whole[i + 1 :] for i in places]
    for content in (*broken, b"", whole[:9], whole[: header + 20], whole[:-1], whole + b"x"):
        file.write_bytes(content)
        found, counted = again(folder)
        assert counted == (0, 1)
        assert "a file was" in troubles()[0]
        np.testing.assert_array_equal(found, want)
        assert again(folder)[1] == (1, 0)  # it was written anew


@pytest.mark.parametrize("payload", [b"", b"no pickle", b"cbuiltins\nint\n."])
def test_what_cannot_be_loaded_in_spite_of_its_checksum(folder, payload):
    again(folder)
    (file,) = files(folder)
    words = programs.store().words(next(iter(asked_keys())))
    file.write_bytes(program_store.packed(words, payload))
    found, counted = again(folder)
    assert counted == (0, 1)
    assert troubles()[0].startswith("load: ")
    np.testing.assert_array_equal(found, exact())


def asked_keys():
    leaves, tree = jax.tree.flatten((X, 2))
    yield program_key.key_of(waves, leaves, tree, {})


@pytest.mark.parametrize("what", ["jaxlib", "processor", "flags", "x64", "sources", "tuned", "precision", "python"])
def test_a_program_of_another_world_is_compiled(folder, what, monkeypatch, tmp_path):
    assert again(folder)[1] == (0, 1)
    with contextlib.ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        if what == "jaxlib":
            version = importlib.metadata.version
            patch.setattr(importlib.metadata, "version", lambda name: "0.0" if name == "jaxlib" else version(name))
        elif what == "processor":
            (tmp_path / "cpuinfo").write_text("model name : A\nflags : sse\n\nflags : all\n")
            patch.setattr(tuned_file, "CPU_INFO", tmp_path / "cpuinfo")
            assert program_key.processor().endswith("model name : A flags : sse")
        elif what == "flags":
            patch.setenv("XLA_FLAGS", os.environ.get("XLA_FLAGS", "") + " --xla_cpu_enable_fast_math=true")
        elif what == "x64":
            stack.enter_context(jax.enable_x64(False))
        elif what == "sources":
            patch.setattr(program_key, "sources", lambda: "others")
        elif what == "tuned":
            patch.setattr(tuned_file, "entries", lambda: ("other",))
        elif what == "precision":
            stack.enter_context(jax.default_matmul_precision("highest"))
        else:
            patch.setattr(program_key.platform, "python_implementation", lambda: "Other")
        assert again(folder)[1] == (0, 1)
        assert again(folder)[1] == (1, 0)
    assert again(folder)[1] == (1, 0)
    assert len(files(folder)) == 2


def test_a_function_from_elsewhere_and_objects_without_words_are_never_kept(folder, monkeypatch):
    monkeypatch.setattr(program_key, "KNOWN", program_key.KNOWN - {"tests"})
    assert again(folder)[1] == (0, 1)
    assert again(folder)[1] == (0, 1)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("kind", ["printed", "pure"])
def test_programs_that_call_back_are_not_kept(folder, kind, capfd):
    programs.keep_in(folder)
    np.testing.assert_array_equal(programs.run(called_back, X, kind), X + 1)
    assert re.search("Can't (pickle|get) local object", troubles()[0])  # what calls back lives in this process
    assert files(folder) == []


def test_a_folder_that_others_can_write_is_not_used(folder, monkeypatch):
    want, _ = again(folder)
    folder.chmod(0o777)
    found, counted = again(folder)
    assert counted == (0, 1)
    np.testing.assert_array_equal(found, want)
    assert troubles() == ["folder: other users can write to it"]
    assert "not used, other users can write to it" in said()[0]
    with pytest.raises(InputError, match="other users"):
        program_store.clear(folder)
    folder.chmod(0o700)
    assert again(folder)[1] == (1, 0)
    me = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: me + 1)
    assert again(folder)[1] == (0, 1)
    assert troubles() == ["folder: it belongs to another user"]


def test_a_file_that_others_can_write_and_a_link_are_not_trusted(folder, tmp_path):
    again(folder)
    (file,) = files(folder)
    file.chmod(0o666)
    assert again(folder)[1] == (0, 1)
    assert troubles() == ["load: a file was not this user's alone"]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    assert again(folder)[1] == (0, 1)
    assert not file.is_symlink()
    assert (tmp_path / "elsewhere").exists()


def refusing(monkeypatch, folder, number, of):
    """Files of the folder whose name ends with `of` cannot be made, read or synced."""
    opened = os.open

    def refuse(path, flags, *rest, **named):
        if str(path).startswith(f"{folder}/") and str(path).endswith(of):
            raise OSError(number, os.strerror(number))
        return opened(path, flags, *rest, **named)

    monkeypatch.setattr(os, "open", refuse)


@pytest.mark.parametrize(
    ("number", "of"),
    [(errno.EROFS, ""), (errno.ENOSPC, ".part"), (errno.ENOSPC, ".lock"), (errno.EACCES, ".program")],
)
def test_what_the_system_refuses_costs_time_alone(folder, number, of, monkeypatch):
    want = exact()
    with pytest.MonkeyPatch.context() as patch:
        refusing(patch, folder, number, of)
        found, counted = again(folder)
        assert counted == (0, 1)
        np.testing.assert_array_equal(found, want)
        assert any(os.strerror(number) in trouble for trouble in troubles())
    assert files(folder, ".part") == []


def test_a_full_disk_and_a_read_only_folder(folder, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", full)
        assert again(folder)[1] == (0, 1)
        assert "No space left" in troubles()[0]
        assert list(folder.iterdir()) == []
    again(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "utime", full)
        patch.setattr(os, "access", lambda path, mode: False)
        assert again(folder)[1] == (1, 0)
        assert said()[0].endswith("no more are kept, it cannot be written")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(1, 1, 0))
    assert said()[0].endswith("no more are kept, its disk is full")
    programs.keep_in(folder / "file" / "kept")
    (folder / "file").touch()
    np.testing.assert_array_equal(programs.run(waves, X, 2)["turned"], exact())


def test_a_program_is_kept_only_if_its_file_computes_the_same(folder, monkeypatch):
    load = program_store.loaded

    def altered(payload):
        return lambda *inputs: jax.tree.map(lambda out: out + 1e-9, load(payload)(*inputs))

    for loads, said in ((altered, "computes something else"), (lambda payload: failing, "RuntimeError: Function")):
        monkeypatch.setattr(program_store, "loaded", loads)
        found, counted = again(folder)
        assert counted == (0, 1)
        assert said in troubles()[0]
        np.testing.assert_array_equal(found, exact())
        assert list(folder.iterdir()) == []


def failing(*inputs):
    raise RuntimeError("Function not found")


@pytest.mark.parametrize("at", [1, 2])
def test_a_loaded_program_that_fails_when_it_runs_is_compiled(folder, at, monkeypatch):
    want, _ = again(folder)
    load, calls = program_store.loaded, []

    def breaks(payload):
        program = load(payload)

        def call(*inputs):
            calls.append(1)
            return failing() if len(calls) == at else program(*inputs)

        return call

    monkeypatch.setattr(program_store, "loaded", breaks)
    programs.forget()
    programs.keep_in(folder)
    for _ in range(3):
        np.testing.assert_array_equal(programs.run(waves, X, 2)["turned"], want)
    assert programs.counts() == (0, 1)
    assert troubles() == ["load: RuntimeError: Function not found"]
    assert again(folder)[1] == (1, 0)


def test_those_loaded_longest_ago_go_first(folder, monkeypatch):
    for n in (1, 2, 3):
        again(folder, n)
        for file in files(folder):
            os.utime(file, (file.stat().st_mtime - 100,) * 2)
    assert again(folder, 1)[1] == (1, 0)  # the second is now the one not used for longest
    sizes = program_store.sizes(folder)
    monkeypatch.setattr(program_store, "MOST", sum(sizes) + max(sizes) // 2)
    again(folder, 4)
    assert len(files(folder)) == 3
    assert [again(folder, n)[1] for n in (1, 3, 4)] == [(1, 0)] * 3
    assert again(folder, 2)[1] == (0, 1)


def test_what_killed_writers_left_is_swept(folder):
    again(folder)
    left = [folder / ".x.program.01234567.part", folder / "x.lock"]
    for path in left:
        path.touch()
    program_store.evict(folder)
    assert all(path.exists() for path in left)
    for path in left:
        os.utime(path, (time.time() - 7200,) * 2)
    program_store.evict(folder)
    assert not any(path.exists() for path in left)
    assert len(files(folder)) == 1


def test_without_the_lock_in_time_both_compile(folder, monkeypatch):
    monkeypatch.setattr(program_store, "WAIT_S", 0.1)
    again(folder)
    (file,) = files(folder)
    file.unlink()
    with file.with_suffix(".lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert again(folder)[1] == (0, 1)
        assert files(folder) == [file]
    assert again(folder)[1] == (1, 0)


def test_who_waits_for_the_lock_loads(folder):
    again(folder)
    (file,) = files(folder)
    whole = file.read_bytes()
    file.unlink()
    other = file.with_suffix(".lock").open("w")
    fcntl.flock(other, fcntl.LOCK_EX)

    def finish():
        file.write_bytes(whole)
        file.chmod(0o600)
        file.with_suffix(".lock").unlink()
        other.close()

    later = threading.Timer(0.3, finish)
    later.start()
    assert again(folder)[1] == (1, 0)
    later.join()


def test_sources_that_change_while_a_process_runs_keep_nothing(folder, monkeypatch):
    again(folder)
    monkeypatch.setattr(program_key, "BEGAN", 0.0)
    for number in (2, 3):  # what is there is not loaded, what is not is not kept
        assert again(folder, number)[1] == (0, 1)
        assert troubles() == ["sources: files of the package changed after this process began"]
    assert len(files(folder)) == 1


def test_a_folder_that_takes_no_more_leaves_programs_to_jax_s_own_cache(folder, monkeypatch):
    again(folder)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    monkeypatch.setattr(program_store, "compiled_afresh", None)  # which passes that cache by
    assert [again(folder, n)[1] for n in (2, 3)] == [(1, 0), (0, 1)]
    assert troubles() == []


def test_the_folder_that_is_asked_for(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv(program_store.ENVIRONMENT, str(tmp_path / "named"))
    assert program_store.folder_of() == tmp_path / "named"
    assert program_store.folder_of(tmp_path / "asked") == tmp_path / "asked"
    monkeypatch.setenv(program_store.ENVIRONMENT, "off")
    assert program_store.folder_of() is None
    monkeypatch.delenv(program_store.ENVIRONMENT)
    assert program_store.folder_of() == tmp_path / "mfabric_jax" / "programs"
    monkeypatch.setenv("XDG_CACHE_HOME", "~nobody")
    assert program_store.folder_of() is None


def said():
    return [line.says for line in tuning.doctor() if line.topic == "kept programs"]


def test_doctor_counts_and_clears(folder, capsys, command_line):
    again(folder)
    assert said() == [f"{folder}: 1 programs, 0 of at most 512 MiB"]
    (folder / "of a user.txt").touch()
    assert status("doctor", "--clear-programs") == 0
    assert capsys.readouterr().out == f"1 programs removed from {folder}\n"
    assert [path.name for path in folder.iterdir()] == ["of a user.txt"]
    programs.keep_in("off")
    assert said() == ["none: off, or no programs.keep_in() yet"]


# ------------------------------------------------------------------------------------------------ several processes
SCRIPT = """
import sys, jax, numpy as np
from mfabric_jax import programs
from mfabric_jax.probe import waves
jax.devices()
seen = []
jax.monitoring.register_event_duration_secs_listener(lambda event, seconds, **more: seen.append(event))
{before}
programs.keep_in(sys.argv[1])
found = programs.run(waves, np.linspace(0, 3, 9, dtype=np.float32).reshape(3, 3), 2)
print(*programs.counts(), sum("compile" in event for event in seen), found.tobytes().hex())
print(programs.store().troubles, file=sys.stderr)
"""
PROBE = """
import jax
import jax.numpy as jnp

def waves(x, n):
    return jax.lax.fori_loop(0, n, lambda i, x: jnp.sin(x) @ x, x) * 1.5
"""


@pytest.fixture(scope="module")
def copied(tmp_path_factory):
    """A copy of the package with a module of its own."""
    place = tmp_path_factory.mktemp("copied")
    shutil.copytree(ROOT / "mfabric_jax", place / "mfabric_jax", ignore=shutil.ignore_patterns("__pycache__"))
    (place / "mfabric_jax" / "probe.py").write_text(PROBE)
    return place


@functools.cache
def environment():
    return {**os.environ, "PYTHONPATH": ".", "JAX_PLATFORMS": "cpu", "PYTHONDONTWRITEBYTECODE": "1"}


def started(place, folder, before="", **more):
    command = [sys.executable, "-c", SCRIPT.format(before=before), str(folder)]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, cwd=place, env=environment() | more, text=True, **streams)


def finished(process):
    """Loaded, compiled, events of tracing and compiling, bits."""
    out, err = process.communicate(timeout=100)
    assert process.returncode == 0, err
    assert err == "[]\n"
    return out.split()


@pytest.mark.slow
def test_a_second_process_neither_traces_nor_compiles(copied, tmp_path):
    first = finished(started(copied, tmp_path / "kept"))
    assert first[:2] == ["0", "1"]
    assert int(first[2]) >= 3
    assert finished(started(copied, tmp_path / "kept")) == ["1", "0", "0", first[3]]
    for more in ({"XLA_FLAGS": "--xla_cpu_enable_fast_min_max=true"}, {"JAX_ENABLE_X64": "1"}):
        assert finished(started(copied, tmp_path / "kept", **more))[:2] == ["0", "1"]
        assert finished(started(copied, tmp_path / "kept", **more))[:3] == ["1", "0", "0"]


@pytest.mark.slow
def test_processes_at_once_compile_once(copied, tmp_path):
    both = [started(copied, tmp_path / "kept") for _ in range(3)]
    found = [finished(process) for process in both]
    assert sorted(each[:2] for each in found) == [["0", "1"], ["1", "0"], ["1", "0"]]
    assert len({each[3] for each in found}) == 1
    assert len(list((tmp_path / "kept").iterdir())) == 1


@pytest.mark.slow
@pytest.mark.parametrize("call", ["replace", "fsync"])
def test_a_writer_that_is_killed(copied, tmp_path, call):
    folder = tmp_path / "kept"
    killed = started(copied, folder, f"import os, signal; os.{call} = lambda *a: os.kill(os.getpid(), signal.SIGKILL)")
    killed.communicate(timeout=100)
    assert killed.returncode == -signal.SIGKILL
    assert {path.suffix for path in folder.iterdir()} == {".part", ".lock"}
    first = finished(started(copied, folder))
    assert first[:2] == ["0", "1"]
    assert finished(started(copied, folder)) == ["1", "0", "0", first[3]]
    for path in files(folder, ".part"):
        os.utime(path, (time.time() - 7200,) * 2)
    program_store.evict(folder)
    assert [path.suffix for path in folder.iterdir()] == [".program"]


@pytest.mark.slow
def test_other_sources_compute_anew(copied, tmp_path):
    folder, probe = tmp_path / "kept", copied / "mfabric_jax" / "probe.py"
    first = finished(started(copied, folder))
    probe.write_text(PROBE.replace("1.5", "2.5"))
    other = finished(started(copied, folder))
    assert other[:2] == ["0", "1"]
    assert other[3] != first[3]
    probe.write_text(PROBE)
    assert finished(started(copied, folder)) == ["1", "0", "0", first[3]]


@pytest.mark.slow
def test_a_process_whose_cache_of_jax_holds_the_program(copied, tmp_path):
    cache = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "jax"), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    plain = "programs.run(waves, np.linspace(0, 3, 9, dtype=np.float32).reshape(3, 3), 2); programs.forget()"
    first = finished(started(copied, tmp_path / "kept", plain, **cache))
    in_cache = len(list((tmp_path / "jax").iterdir()))
    assert in_cache
    shutil.rmtree(tmp_path / "kept")
    again = finished(started(copied, tmp_path / "kept", plain, **cache))
    assert again[:2] == ["0", "1"]
    assert finished(started(copied, tmp_path / "kept", **cache)) == ["1", "0", "0", first[3]]
    assert len(list((tmp_path / "jax").iterdir())) == in_cache  # nothing that only this process would find
