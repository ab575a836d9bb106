"""The folder of a sweep: the same files whatever stopped, divided or disturbed it."""

import contextlib
import errno
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest
from pyarrow import parquet

import mfabric_jax
from mfabric_jax.apps.sweep import Sweep, read_sweep, sweep
from mfabric_jax.apps.sweep.axes import columns
from mfabric_jax.checks import InputError
from mfabric_jax.report import QueryOptions, query, read_rows
from mfabric_jax.report.query import notes
from mfabric_jax.support.parts import CONFIG
from tests.mistakes import check_refused

FILES = [f"rows-{number:05d}.parquet" for number in range(3)]

WORKERS = ("ray::Worker", "ray::IDLE Worker")


def files_of(folder):
    """The rows of every file, and its footer but for the commit, which may change while tests run."""
    found = {path.name: read_rows(path) for path in folder.glob("*.parquet")}
    return {name: (rows, {**footer, "commit": None}) for name, (rows, footer) in found.items()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A sweep that nothing disturbed."""
    folder = tmp_path_factory.mktemp("whole")
    sweep(exchanges(), folder)
    return folder


@pytest.fixture
def copied(whole, tmp_path):
    """A copy of it, to be disturbed."""
    return shutil.copytree(whole, tmp_path / "copied")


def test_what_is_there_is_not_made_again_and_comes_out_the_same(whole, tmp_path):
    parts = [sweep(exchanges(), tmp_path, shard=(first, 2)) for first in (1, 2)]
    assert [[path.name for path in part] for part in parts] == [FILES[::2], FILES[1:2]]
    assert files_of(tmp_path) == files_of(whole)
    (tmp_path / FILES[1]).unlink()
    assert notes([tmp_path, whole]) == [
        f"{tmp_path} holds 2 of 3 files; {FILES[1]} is missing, so its sweep is unfinished; run it again."
    ]
    assert len(rows_of(tmp_path)) == 6
    kept, told = (tmp_path / FILES[0]).stat().st_mtime_ns, []
    sweep(exchanges(), tmp_path, progress=told.append)
    assert files_of(tmp_path) == files_of(whole)
    assert (tmp_path / FILES[0]).stat().st_mtime_ns == kept
    assert (told[0].rows_found, told[-1].done, told[-1].rows, told[-1].again) == (6, 10, 10, ())


def test_damaged_and_misplaced_files_are_refused_and_made_again(whole, copied):
    good, file = (whole / FILES[1]).read_bytes(), copied / FILES[1]

    def refused(fault):
        for path in (copied, file):
            check_refused(f"{FILES[1]}' .*{fault}", query, [path], QueryOptions())
        check_refused(f"{FILES[1]}' .*{fault}", read_rows, file)
        told = []
        assert sweep(exchanges(), copied, progress=told.append)[1] == file
        assert len(told[-1].again) == 1
        assert str(file) in told[-1].again[0]
        assert file.read_bytes() == good

    shutil.copy(whole / FILES[0], file)
    refused(f"holds the rows of {FILES[0]}")
    file.write_bytes(good[:-100])
    check_refused(f"{FILES[1]}'", query, [copied], QueryOptions())
    for place in [*range(0, len(good), 41), good.index(b'"sha256": "') + 20]:
        file.write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
        check_refused(f"{FILES[1]}'", query, [copied], QueryOptions())
    refused("is damaged")


def test_files_of_another_sweep_are_refused_and_others_are_not_its_rows(whole, copied, tmp_path):
    shutil.copy(whole / FILES[0], copied / "a copy.parquet")
    assert rows_of(copied) == rows_of(whole)
    (copied / "a copy.parquet").unlink()
    config = json.loads((copied / CONFIG).read_text())
    (copied / CONFIG).write_text(json.dumps({name: value for name, value in config.items() if name != "parts"}))
    assert len(rows_of(copied)) == 10  # of a version without digests: read, with a word
    version = mfabric_jax.__version__
    assert notes([copied]) == [f"{copied} was written by version {version} without digests, so it was not checked."]
    check_refused("holds another sweep: parts was None, now 3", sweep, exchanges(), copied)
    (copied / CONFIG).write_text(json.dumps(config))
    sweep(exchanges(fixed={"demand": "hot"}), tmp_path / "other")
    shutil.copy(tmp_path / "other" / FILES[1], copied)
    check_refused(
        rf"{FILES[1]}' belongs to another sweep; run its folder's sweep again", query, [copied], QueryOptions()
    )
    (copied / CONFIG).unlink()
    check_refused(f"holds {FILES[1]}, which is not of this sweep; give another folder", sweep, exchanges(), copied)
    assert "cannot be checked" in notes([copied])[0]
    (copied / FILES[1]).unlink()
    sweep(exchanges(), copied)  # what is left is its own
    assert files_of(copied).items() >= files_of(whole).items()


def test_a_removed_folder_and_a_full_disk_are_sentences_and_lose_nothing(whole, tmp_path, monkeypatch):
    def remove(now):
        if now.done == 4:
            shutil.rmtree(tmp_path / "rows", ignore_errors=True)

    def full(table, where):
        where.write(b"half of it")
        raise OSError(errno.ENOSPC, "No space left on device")

    folder = tmp_path / "rows"
    with pytest.raises(InputError, match=rf"incomplete: 1 of 3 files, {FILES[0]} first, were removed or changed while"):
        sweep(exchanges(), folder, progress=remove)
    assert notes([folder])[0].endswith("its sweep is unfinished; run it again.")
    shutil.rmtree(folder)
    sweep(exchanges(), folder, shard=(1, 3))
    with monkeypatch.context() as patched:
        patched.setattr(parquet, "write_table", full)
        check_refused(r"cannot write .*rows-00001.parquet' \(No space left on device\)", sweep, exchanges(), folder)
    assert sorted(path.name for path in folder.iterdir()) == [FILES[0], CONFIG]
    sweep(exchanges(), folder)
    assert files_of(folder) == files_of(whole)


KILLED = """
import os, signal, sys, tests.conftest
from mfabric_jax.apps.sweep import sweep
from tests.apps.sweep.test_sweep_folder import exchanges
def kill(now):
    if now.done:
        os.kill(os.getpid(), signal.SIGKILL)
sweep(exchanges(), sys.argv[1], progress=kill)
"""


@pytest.mark.slow
def test_a_killed_sweep_goes_on(whole, tmp_path):
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], capture_output=True, text=True, timeout=300)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert 0 < len(files_of(tmp_path)) < 3
    sweep(exchanges(), tmp_path)
    assert files_of(tmp_path) == files_of(whole)


def test_a_folder_that_cannot_be_written_or_is_of_another_sweep(copied, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    check_refused(r"cannot write into .*file' \(", sweep, exchanges(), tmp_path / "file")
    with pytest.raises(
        InputError, match=r"holds another sweep: fixed\.policy was .*, now 'greedy'.*; give another folder"
    ):
        sweep(exchanges(fixed={"policy": "greedy"}), copied)
    with monkeypatch.context() as patched:
        patched.setattr(mfabric_jax, "__version__", "999")
        with pytest.raises(InputError, match=r"holds another sweep: version was .*, now '999'; give another folder"):
            sweep(exchanges(), copied)
    (copied / CONFIG).write_text("{")
    for call in (lambda: sweep(exchanges(), copied), lambda: query([copied], QueryOptions())):
        check_refused(r"sweep.json' is not JSON \(.*\); delete it and run the sweep again", call)
    mine = tmp_path / "mine.py"  # a policy that has changed is another sweep
    head = "from mfabric_jax import policies\n\ndef mine(demand, region, *, previous=None, key=None):\n"
    mine.write_text(head + "    return policies.uniform(demand, region)\n")
    config = exchanges(fixed={"policy": f"{mine}:mine"}, grid={"sample": [0, 1]})
    sweep(config, tmp_path / "rows")
    assert sweep(config, tmp_path / "rows")
    mine.write_text(mine.read_text() + "# other\n")
    check_refused("holds another sweep: files..*mine.py:mine was '", sweep, config, tmp_path / "rows")


def test_a_folder_is_released_where_its_sweep_is_refused_before_any_row(tmp_path, monkeypatch, copied):
    def refuse(*args):
        raise InputError("trace: none.")

    with monkeypatch.context() as patched:
        patched.setattr("mfabric_jax.apps.sweep.run.Maker.make", refuse)
        for folder in (tmp_path / "new", copied):
            check_refused("trace: none", sweep, exchanges(), folder)
            (copied / FILES[0]).unlink(missing_ok=True)
        check_refused("trace: none", sweep, exchanges(), copied)
    assert [*(tmp_path / "new").iterdir()] == []  # another sweep may have it
    assert (copied / CONFIG).is_file()  # it has rows of this one


@pytest.mark.parametrize("parts", [-1, 1.5, "3", 10**12, None])
def test_a_folder_of_so_many_files(parts, copied):
    (copied / CONFIG).write_text(json.dumps({"parts": parts}))
    check_refused("parts must be .*; delete it and run the sweep again", query, [copied], QueryOptions())


@pytest.mark.slow
@pytest.mark.skipif(not pathlib.Path("/proc").exists(), reason="processes are found in /proc")
@pytest.mark.filterwarnings("ignore")
def test_two_workers_and_one_that_is_killed_make_the_rows_of_one_process(tmp_path):
    pytest.importorskip("ray")

    def workers():
        for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                if path.read_bytes().split(b"\0")[0].decode().startswith(WORKERS):
                    yield int(path.parent.name)

    config = exchanges(grid={"sample": list(range(20)), "nic_gbps": [100.0, 200.0]})
    sweep(config, tmp_path / "plain")
    killed = []

    def kill_one(now):
        if now.done and not killed:
            killed.append(next(workers()))
            os.kill(killed[0], signal.SIGKILL)

    sweep(config, tmp_path / "ray", engine="ray", workers=2, progress=kill_one)
    assert killed
    assert files_of(tmp_path / "ray") == files_of(tmp_path / "plain")
    assert len(files_of(tmp_path / "ray")) == 10


def exchanges(**tables):
    """All-to-alls of four servers, files of four rows."""
    fixed = {"servers": 4, "policy": "uniform", "optical_degree": 2} | tables.pop("fixed", {})
    given = {"grid": {"sample": list(range(5)), "nic_gbps": [100.0, 200.0]}} | tables
    return Sweep("all-to-all", fixed, **given, rows_per_shard=4, dtype="float64")


def rows_of(folder):
    """All rows, in order of the configurations."""
    return query([folder], QueryOptions(sort="configuration"))[0]


def test_a_grid_with_lists_is_every_combination_and_every_row_is_in_one_part():
    found = columns({"a": [1, 2], "b": ["x", "y"]}, {"c": [7.0, 8.0], "d": [True, False]}, {}, 1, 0)
    want = [(a, b, c, d) for a in (1, 2) for b in "xy" for c, d in ((7.0, True), (8.0, False))]
    assert list(zip(*(found[name].tolist() for name in "abcd"), strict=True)) == want
    # What is code makes groups.
    grid = {"sample": [0, 1, 2], "policy": ["greedy", "uniform"], "sigma": [0, 0.5]}
    config = Sweep("all-to-all", grid=grid, rows_per_shard=4)
    assert [group.code["policy"] for group in config.groups] == ["greedy", "uniform"]
    assert [group.rows.tolist() for group in config.groups] == [[0, 1, 4, 5, 8, 9], [2, 3, 6, 7, 10, 11]]
    assert [part.rows.tolist() for part in config.parts] == [[0, 1, 4, 5], [8, 9], [2, 3, 6, 7], [10, 11]]


def test_forecast_errors_cost_and_demand_has_the_size_that_was_asked(tmp_path):
    fixed = {"policy": "index", "optical_degree": 6, "demand": "lognormal", "gigabytes": 2.0}
    sweep(exchanges(fixed=fixed, grid={"sigma": [0.0, 2.0], "sample": list(range(20))}), tmp_path)
    found = rows_of(tmp_path)
    known, wrong = ([one["over_bound"] for one in found if one["sigma"] == sigma] for sigma in (0.0, 2.0))
    assert 1 <= min(known) <= max(known)
    assert np.mean(wrong) > np.mean(known)
    rate = 8 * 400 / 8 * 1e9  # of a server, 6 + 2 NICs
    assert all(one["bound_s"] > 2e9 / rate for one in found)


def test_files_are_read_strictly(tmp_path):
    space = tmp_path / "space.toml"
    space.write_text(
        'evaluate = "all-to-all"\ndraws = 3\n[grid]\nnic_gbps = [100, 400]\n'
        "[random]\nsample = { low = 0, high = 9, whole = true }\n"
    )
    config = read_sweep(space)
    assert (config.count, config.columns["nic_gbps"].tolist()) == (6, [100.0] * 3 + [400.0] * 3)
