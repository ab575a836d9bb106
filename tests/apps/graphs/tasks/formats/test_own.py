"""Our own files: round trips, what is left out, and what is refused."""

import json

import pytest

from mfabric_jax.apps.graphs.tasks.formats.registry import read_tasks, write_tasks
from mfabric_jax.apps.graphs.tasks.graph import Op, TaskKind, Tasks
from tests.mistakes import check_refused


def graph():
    tasks = Tasks(3, groups=((0, 1), (2, 0, 1)))
    tasks.add(TaskKind.COMPUTE, 0, "forward é", seconds=0.1, lane=2)
    tasks.add(TaskKind.SEND, 0, "there", after=[0], peer=2, bytes=1 / 3, match=0, lag=1e-6)
    tasks.add(TaskKind.RECV, 2, "here", peer=0, match=0)
    for rank in (0, 1):
        tasks.add(TaskKind.COLLECTIVE, rank, after=[2], op=Op.ALL_REDUCE, group=0, bytes=4.0, match=1, start=2.5)
    tasks.add(TaskKind.MARKER, -1, "end", after=[3, 4])
    return tasks.graph()


@pytest.mark.parametrize("ending", [".json", ".parquet"])
def test_written_and_read_it_is_the_same(tmp_path, ending):
    path = tmp_path / f"a{ending}"
    assert write_tasks(graph(), path) == ()
    assert read_tasks(path).equals(graph())
    write_tasks(Tasks(4).graph(), path)
    assert (read_tasks(path).ranks, read_tasks(path).tasks) == (4, 0)


def test_a_file_by_hand_says_what_is_not_usual(tmp_path):
    path = tmp_path / "a.json"
    said = {"format": "mfabric tasks", "version": 1, "ranks": 2}
    rows = [
        {"kind": "compute", "rank": 0, "seconds": 1},
        {"kind": "send", "rank": 0, "peer": 1, "bytes": 8, "after": [0]},
    ]
    path.write_text(json.dumps({"tasks": rows * 200} | said))
    assert read_tasks(path).tasks == 400  # whatever comes first in it
    path.write_text(json.dumps(said | {"tasks": rows}))
    read = read_tasks(path)
    assert (read.after.tolist(), read.bytes.tolist(), read.lane.tolist()) == ([[0, 1]], [0, 8], [-1, -1])
    path.write_text(json.dumps(said | {"tasks": [rows[0], rows[1] | {"after": 0}]}))
    assert read_tasks(path).equals(read)


def test_a_table_of_something_else_is_refused(tmp_path):
    import pyarrow
    from pyarrow import parquet

    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"kind": ["send"]}), path)
    check_refused("must have mfabric-tasks in its footer", read_tasks, path)
    path.write_bytes(b"PAR1")
    check_refused("must be a readable .parquet file", read_tasks, path)
