"""Rows of a run that is killed, stopped or refused: what is on disk, and what the same run makes of it."""

import contextlib
import os
import resource
import time

import pytest

from mfabric_jax.checks import InputError
from mfabric_jax.report import QueryOptions, query, read_rows
from mfabric_jax.report.query import notes
from mfabric_jax.report.rows import Kept, journal_of, jsonable, keeping, open_journal
from mfabric_jax.support.atomic import replacing
from tests.mistakes import check_refused

CONFIG = {"seed": 3, "models": ("llama-moe",), "delay_s": 0.025}
WORK = {0: [{"x": 0.1 + 0.2, "n": None}], 1: [{"x": float("inf"), "n": 1}, {"x": 2.0, "n": 2}], 2: [{"x": 3.0, "n": 3}]}
ROWS = [row for rows in WORK.values() for row in rows]


@pytest.fixture(params=["rows.csv", "rows.parquet"])
def path(request, tmp_path):
    return tmp_path / request.param


def killed(path, numbers, config=CONFIG):
    """What a run leaves that is killed after this work, in this order."""
    with open_journal(path, jsonable(config)) as (journal, done):
        for number in numbers:
            Kept(journal, done).add(WORK[number], number)


def go_on(path, config=CONFIG):
    """The run to its end; the numbers of the work that it had to do."""
    todo = []
    with keeping(path, config) as kept:
        for number in set(WORK) - set(kept.done):
            todo.append(number)
            kept.add(WORK[number], number)
    assert kept.rows == ROWS
    return todo


def test_a_killed_run_goes_on_and_ends_with_the_same_bytes(path):
    assert go_on(path) == [0, 1, 2]
    whole = path.read_bytes()
    files = sorted(os.listdir(path.parent))
    path.unlink()
    killed(path, (2, 1))
    assert not path.exists()
    assert go_on(path) == [0]
    assert path.read_bytes() == whole
    assert sorted(os.listdir(path.parent)) == files
    assert read_rows(path) == (ROWS, CONFIG | {"models": ["llama-moe"], "complete": True})


@pytest.mark.parametrize(
    "torn",
    [
        b'{"number": 2, "rows": [{"x": 3.0,',
        b'{"number": 2, "rows": [{"x": 9.0}]}',
        b'{"number": 2, "number": 3, "rows": []}\n',
        b"\xff\n",
    ],
)
def test_a_line_that_was_not_finished_is_dropped(path, torn):
    journal_of(path).write_bytes(b'{"config": {"seed"')  # a first line that is torn: nothing was done
    assert go_on(path) == [0, 1, 2]
    path.unlink()
    killed(path, (1, 0))
    with journal_of(path).open("ab") as opened:
        opened.write(torn)
    assert read_rows(path) == (ROWS[:3], CONFIG | {"models": ["llama-moe"], "complete": False})
    assert go_on(path) == [2]


def test_an_interrupt_leaves_the_rows_so_far_and_goes_on(path):
    def stopped():
        with keeping(path, CONFIG) as kept:
            kept.add(WORK[0])
            kept.add(WORK[1])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped()
    rows, config = read_rows(path)
    assert (rows, config["complete"]) == (ROWS[:3], False)
    assert go_on(path) == [2]
    assert not journal_of(path).exists()


def test_a_run_that_is_refused_before_its_first_row_leaves_nothing(path):
    with pytest.raises(InputError), keeping(path, CONFIG):
        raise InputError("no.")
    assert not list(path.parent.iterdir())


def test_another_run_is_refused_and_leaves_the_rows(path):
    killed(path, (0,))
    kept = journal_of(path).read_bytes()
    for change, said in (({"seed": 4}, "seed was 3, now 4"), ({"eps": 1}, "eps was None, now 1")):
        wanted = (
            rf"begun by another run \({said}\); give another file for the rows, or delete .*journal' to begin again"
        )
        check_refused(wanted, go_on, path, CONFIG | change)
    assert journal_of(path).read_bytes() == kept


def test_a_file_that_changed_makes_another_run(path):
    trace = path.with_name("trace.npy")
    trace.write_text("some")
    config = CONFIG | {"trace": str(trace), "policy": f"{trace}:function"}
    killed(path, (0,), config)
    assert go_on(path, config) == [1, 2]
    killed(path, (0,), config)
    trace.write_text("more")
    check_refused(r"the file '.*trace.npy' has changed since", go_on, path, config)


def test_two_runs_do_not_write_one_file(path):
    with keeping(path, CONFIG) as kept:
        kept.add(WORK[0])
        check_refused("another run writes .*; give another file, or wait for its end", go_on, path)
    assert read_rows(path)[0] == ROWS[:1]


def test_query_reads_the_rows_of_a_killed_run_and_says_so(path):
    killed(path, (0, 1))
    rows, config = query([path], QueryOptions(where=["n >= 1"]))
    assert ([row["n"] for row in rows], config["complete"]) == ([1, 2], False)
    assert notes([path]) == [f"{path} is from an unfinished run; run it again."]


def test_temporary_files_of_a_killed_run_are_swept_up(path):
    old, young, theirs = (path.with_name(f".{path.name}.{name}.part") for name in ("0123abcd", "89ef0123", "mine"))
    for part in (old, young, theirs):
        part.write_text("half")
    hours_ago = time.time() - 7200
    os.utime(old, (hours_ago, hours_ago))
    os.utime(theirs, (hours_ago, hours_ago))
    with replacing(path) as (part,):
        part.write_text("whole")
    assert not old.exists()
    assert young.exists()  # somebody may be writing it
    assert theirs.exists()
    go_on(path)  # nobody else writes this one
    assert not young.exists()
    assert theirs.exists()


@contextlib.contextmanager
def room(count):
    """Files have room for this many bytes, as on a disk that is full then."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (count, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("count", [0, 20, 300])
def test_a_disk_that_is_full_is_a_sentence(count, tmp_path):
    """Where the journal is opened, and where rows are added to it."""
    path = tmp_path / "rows.csv"

    def run():
        with keeping(path, CONFIG) as kept:
            for number in range(9):
                kept.add([{"number": number, "text": "x" * 50}])

    with room(count):
        check_refused(r"cannot write '.*rows\.csv.*' \(File too large\); give a file in a folder", run)
    with keeping(path, CONFIG) as kept:  # the same run goes on
        found = kept.earlier
        for number in range(found, 9):
            kept.add([{"number": number, "text": "x" * 50}])
    assert found == (0 if count < 300 else 2)
    assert [row["number"] for row in read_rows(path)[0]] == [*range(9)]
