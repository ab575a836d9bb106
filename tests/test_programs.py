"""A program is made once in a process and traced once on a machine; whatever happens to its file changes no number."""

import contextlib
import errno
import functools
import os
import pathlib
import subprocess
import sys
import threading
import time
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

import mfabric_jax
from mfabric_jax.commands import speed_lines
from mfabric_jax.flows import star_completion
from mfabric_jax.support import platforms, programs
from mfabric_jax.support.platforms import compiling_for
from tests.command_line import status

TRACED = []  # a name for every time that a function below was traced
X = np.linspace(0.0, 3.0, 9).reshape(3, 3)


class Pair(NamedTuple):
    left: jax.Array
    right: jax.Array


class Scaled(eqx.Module):
    by: jax.Array
    name: str | float = eqx.field(static=True)


def added(pair, more=None):
    TRACED.append("added")
    return {"sum": pair.left + pair.right, "more": more}


def times(x, by):
    TRACED.append(f"times {by!r}")
    return x * jnp.asarray(by, x.dtype)


def scaled(it, x):
    TRACED.append(it.name)
    return Scaled(it.by * x, it.name)


def waves(x, n):
    """Loops and a sort, so that it is no trivial program."""
    TRACED.append(n)
    turned = jax.lax.fori_loop(0, n, lambda i, x: jnp.sin(x) @ x, x)
    return {"turned": turned, "sorted": jnp.sort(turned, axis=0), "n": None}


def called_back(x):
    TRACED.append("called back")
    return jax.pure_callback(lambda x: np.asarray(x) + 1, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


def applied(rule, x):
    TRACED.append("applied")
    return rule(x)


@pytest.fixture(autouse=True)
def fresh():
    programs.forget()
    TRACED.clear()
    yield
    programs.forget()
    programs.keep_in("off")


# ---------------------------------------------------------------------------------------------------------- one process
def test_results_are_numpy_in_the_trees_of_the_function():
    pair = Pair(np.arange(3.0), jnp.ones(3))
    found = programs.run(added, pair)
    assert type(found["sum"]) is np.ndarray
    assert found["more"] is None
    np.testing.assert_array_equal(found["sum"], [1, 2, 3])
    made = programs.run(scaled, Scaled(np.array([2.0, 3.0]), "twice"), np.array([4.0, 5.0]))
    assert made.name == "twice"
    np.testing.assert_array_equal(made.by, [8, 15])


def test_values_of_arrays_are_data():
    for value in (1.0, 2.0, 5.0):
        assert programs.run(times, np.full(2, value), np.array([2.0, 3.0])).tolist() == [2 * value, 3 * value]
    assert len(TRACED) == 1


def test_shapes_dtypes_static_values_types_options_and_settings_are_other_programs():
    x = np.ones(2)
    for value in (1, 1.0, True, 0.0, -0.0):
        programs.run(times, x, value)
    assert TRACED == ["times 1", "times 1.0", "times True", "times 0.0", "times -0.0"]
    programs.run(times, np.ones(3), 1)
    programs.run(times, np.ones(2, np.float32), 1)
    programs.run(times, x, 1, options={"xla_backend_optimization_level": 0})
    with jax.default_matmul_precision("highest"):
        programs.run(times, x, 1)
    assert len(TRACED) == 9
    for name in ("a", "b", 1, 1.0):  # static inside of a tree
        programs.run(scaled, Scaled(x, name), x)
    assert TRACED[9:] == ["a", "b", 1, 1.0]
    with jax.enable_x64(False):
        assert programs.run(times, x, 1).dtype == np.float32


def test_functions_and_objects_that_no_name_tells_apart_are_other_programs():
    rules = [lambda x: x + 1, lambda x: x + 2]
    for rule in (*rules, *rules, functools.partial(jnp.add, 3), functools.partial(jnp.add, 4)):
        programs.run(applied, rule, X)
    assert len(TRACED) == 4
    np.testing.assert_array_equal(programs.run(applied, rules[1], X), X + 2)


@pytest.mark.parametrize("function", [lambda x: x, functools.partial(times, by=2), jnp.ones(2).sum, Scaled.__init__])
def test_a_program_is_a_function_at_the_top_of_its_module(function):
    with pytest.raises(ValueError, match="top of its module"):
        programs.run(function, np.ones(2))


def test_a_program_runs_with_values():
    with pytest.raises(ValueError, match="traced arguments"):
        jax.jit(lambda x: programs.run(times, x, 2))(np.ones(2))


def test_threads_that_ask_at_once_make_one_program():
    start, found = threading.Barrier(8), []

    def ask(value):
        start.wait()
        found.append(programs.run(times, np.full(2, value), 3)[0] == 3 * value)

    threads = [threading.Thread(target=ask, args=(float(i),)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 8
    assert TRACED == ["times 3"]


# ---------------------------------------------------------------------------------------------------------------- files
@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder for programs; functions of this file count as the package's, whose sources are one file."""
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "module.py").write_text("one = 1\n")
    monkeypatch.setattr(programs, "PACKAGE", tmp_path / "package")
    monkeypatch.setattr(mfabric_jax, "BEGAN", time.time() + 1)
    monkeypatch.setattr(programs, "KNOWN", (*programs.KNOWN, "tests"))
    programs._sources.cache_clear()
    yield tmp_path / "kept"
    programs._sources.cache_clear()


def again(folder, n=2):
    """What another process would find: whether it traces. Every answer is compared with that of no store."""
    answers = []
    for place in ("off", folder):
        programs.forget()
        programs.keep_in(place)
        TRACED.clear()
        answers.append(programs.run(waves, X, n))
    jax.tree.map(np.testing.assert_array_equal, *answers)
    return bool(TRACED)


def files(folder):
    return sorted(folder.glob("*.program"))


def test_what_is_kept_is_not_traced_again(folder):
    assert again(folder)
    assert not again(folder)
    assert again(folder, n=3)
    assert not again(folder)
    assert len(files(folder)) == len(list(folder.iterdir())) == 2  # nothing else stays
    assert (folder.stat().st_mode & 0o777, files(folder)[0].stat().st_mode & 0o777) == (0o700, 0o600)


def test_flipped_bytes_cut_and_foreign_files_are_traced_again(folder):
    again(folder, 3)
    (other,) = files(folder)
    again(folder)
    (one,) = set(files(folder)) - {other}
    whole = one.read_bytes()
    places = range(0, len(whole), len(whole) // 12)
    broken = [whole[:i] + bytes([whole[i] ^ 4]) + whole[i + 1 :] for i in (*places, len(whole) - 1)]
    for content in (*broken, b"", whole[:9], whole[:-1], whole + b"x", other.read_bytes(), os.urandom(999)):
        one.write_bytes(content)
        assert again(folder)
        assert not again(folder)  # it was written anew
    one.write_bytes(programs._with_checksum(one, b"no program, though its checksum is right"))
    assert again(folder)
    assert not again(folder)


@pytest.mark.parametrize("what", ["jax", "numpy", "device", "sources", "x64", "precision"])
def test_a_program_of_another_world_is_traced_again(folder, what):
    assert again(folder)
    assert not again(folder)
    with pytest.MonkeyPatch.context() as patch:
        if what in ("jax", "numpy"):
            patch.setattr(f"{what}.__version__", "0.0")
        elif what == "device":
            patch.setattr(platforms, "kind_of", lambda device: "another")
        elif what == "sources":
            (programs.PACKAGE / "module.py").write_text("one = 2\n")
            programs._sources.cache_clear()
        setting = {"x64": jax.enable_x64(False), "precision": jax.default_matmul_precision("highest")}
        with setting.get(what, contextlib.nullcontext()):
            assert again(folder)
            assert not again(folder)
    assert len(files(folder)) == 2


def test_sources_that_change_while_a_process_runs_keep_nothing(folder, monkeypatch):
    again(folder)
    monkeypatch.setattr(mfabric_jax, "BEGAN", (programs.PACKAGE / "module.py").stat().st_ctime)
    assert again(folder, 2)  # what is there is not loaded, what is not is not kept
    assert again(folder, 3)
    assert len(files(folder)) == 1


def test_what_is_a_user_s_own_is_never_kept(folder, monkeypatch):
    programs.keep_in(folder)
    programs.run(applied, lambda x: x + 1, X)
    programs.run(applied, functools.partial(applied, lambda x: x + 1), X)
    monkeypatch.setattr(programs, "KNOWN", programs.KNOWN[:-1])
    assert again(folder)
    assert again(folder)
    assert files(folder) == []


def test_what_cannot_be_exported_runs_all_the_same(folder, capfd):
    programs.keep_in(folder)
    np.testing.assert_array_equal(programs.run(called_back, X), X + 1)
    np.testing.assert_array_equal(programs.run(scaled, Scaled(X, "a"), X).by, X * X)
    assert TRACED == ["called back", "a"]
    assert files(folder) == []


def test_kernels_for_gpus_can_be_exported():
    fused = jax.jit(functools.partial(star_completion, kernel="fused:1"))
    shapes = [jax.ShapeDtypeStruct(shape, np.float32) for shape in ((4, 4), (4,), (4,))]
    try:
        with compiling_for("gpu"):
            exported = export.export(fused, platforms=["cuda"], disabled_checks=[programs.TRITON])(*shapes)
    except (ImportError, RuntimeError) as error:
        pytest.skip(f"this JAX cannot lower for GPUs here: {error}")
    assert "triton" in export.deserialize(exported.serialize()).mlir_module()


def test_a_folder_that_others_can_write_is_not_used(folder, monkeypatch):
    again(folder)
    for mode in (0o777, 0o770, 0o702):
        folder.chmod(mode)
        assert again(folder)
        assert "not used, it belongs to another user, or others can write to it" in said()[0]
    folder.chmod(0o700)
    assert not again(folder)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert again(folder)
    programs.keep_in(folder / "file" / "kept")
    (folder / "file").touch()
    programs.run(waves, X, 2)


def test_a_file_that_others_can_write_is_not_read(folder):
    again(folder)
    (file,) = files(folder)
    file.chmod(0o666)
    assert again(folder)
    assert not again(folder)
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_full_disk_costs_time_alone(folder, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        assert again(folder)
        assert list(folder.iterdir()) == []
    assert again(folder)


def test_those_not_used_for_longest_go_first(folder, monkeypatch):
    for n in (1, 2, 3):
        again(folder, n)
        for file in files(folder):
            about = file.stat()
            os.utime(file, (about.st_atime - 100, about.st_mtime - 100))
    (oldest, *_) = sorted(files(folder), key=lambda file: file.stat().st_mtime)
    os.utime(oldest)  # it was used
    monkeypatch.setattr(programs, "MOST", int(3.5 * oldest.stat().st_size))
    again(folder, 4)
    assert [again(folder, n) for n in (1, 3, 4)] == [False] * 3
    assert again(folder, 2)


def test_the_folder_that_is_asked_for(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("MFABRIC_PROGRAMS", str(tmp_path / "named"))
    for asked, expected in ((None, "named"), (tmp_path / "asked", "asked"), ("off", None)):
        programs.keep_in(asked)
        assert programs.kept_in == (expected and tmp_path / expected)
    monkeypatch.setenv("MFABRIC_PROGRAMS", "off")
    programs.keep_in()
    assert programs.kept_in is None
    monkeypatch.delenv("MFABRIC_PROGRAMS")
    programs.keep_in()
    assert programs.kept_in == tmp_path / "mfabric_jax" / "programs"
    monkeypatch.setenv("XDG_CACHE_HOME", "~nobody")
    programs.keep_in()
    assert programs.kept_in is None


def said():
    return [line.says for line in speed_lines.doctor() if line.topic == "kept programs"]


def test_doctor_counts_and_clears(folder, capsys, command_line):
    again(folder)
    assert said() == [f"{folder}: 1 programs; their files take 0.0 of at most 512 MiB"]
    for name in ("of a user.txt", "jax/jit_call-1-cache", ".x.program.01234567.part"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("something")
    folder.chmod(0o777)
    assert status("doctor", "--clear-programs") == 2
    assert len(files(folder)) == 1
    folder.chmod(0o700)
    capsys.readouterr()
    assert status("doctor", "--clear-programs") == 0
    assert capsys.readouterr().out == f"1 programs removed from {folder}\n"
    assert [path.name for path in folder.rglob("*") if path.is_file()] == ["of a user.txt"]
    programs.keep_in("off")
    assert said() == ["none: off, or programs.keep_in() was not called"]


# ---------------------------------------------------------------------------------------------------- several processes
PROBE = """
import jax, jax.numpy as jnp

traced = 0

def waves(x, n):
    global traced
    traced += 1
    return jax.lax.fori_loop(0, n, lambda i, x: jnp.sin(x) @ x, x) * 1.5
"""
SCRIPT = """
import sys, jax, numpy as np
hits = []
jax.monitoring.register_event_listener(lambda event, **_: hits.append(event.endswith("/cache_hits")))
before = jax.jit(abs)(-1.0)  # JAX has looked for its cache and found none
from mfabric_jax.support import programs
import probe
programs.KNOWN += ("probe",)
settings = dict(jax.config.values)
programs.keep_in(sys.argv[1])
if sys.argv[1] == "off":
    assert settings == jax.config.values
found = programs.run(probe.waves, np.linspace(0, 3, 9, dtype=np.float32).reshape(3, 3), 2)
print(probe.traced, sum(hits), found.tobytes().hex())
"""


def process(place, folder, **more):
    """How often it traced, executables from JAX's cache, bits."""
    (place / "probe.py").write_text(PROBE)
    ours = str(pathlib.Path(mfabric_jax.__file__).parents[1])
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "MFABRIC_"))}
    environment |= {"PYTHONPATH": os.pathsep.join([str(place), ours]), "JAX_PLATFORMS": "cpu", **more}
    command = [sys.executable, "-c", SCRIPT, str(folder)]
    done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


def test_a_second_process_loads_what_the_first_traced(tmp_path):
    first = process(tmp_path, tmp_path / "kept")
    assert first[:2] == ["1", "0"]
    assert process(tmp_path, tmp_path / "kept") == ["0", "1", first[2]]


@pytest.mark.slow
def test_processes_of_other_settings_and_of_none(tmp_path):
    first = process(tmp_path, tmp_path / "kept")
    for more in ({"JAX_ENABLE_X64": "1"}, {"JAX_DEFAULT_MATMUL_PRECISION": "highest"}):
        assert process(tmp_path, tmp_path / "kept", **more)[0] == "1"
        assert process(tmp_path, tmp_path / "kept", **more)[:2] == ["0", "1"]
    own = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "own")}  # the folder that a user gives to JAX
    assert process(tmp_path, tmp_path / "kept", **own)[:2] == ["0", "0"]
    assert process(tmp_path, tmp_path / "kept", **own)[:2] == ["0", "1"]
    for _ in range(2):
        assert process(tmp_path, "off") == ["1", "0", first[2]]
