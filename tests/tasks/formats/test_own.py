"""Our own files and flow sets: round trips, what is left out, and what is refused."""

import json

import pytest

from mfabric_jax.checks import InputError
from mfabric_jax.tasks.formats.registry import read_tasks, read_with_remarks, write_tasks
from mfabric_jax.tasks.graph import Op, TaskKind, Tasks
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
    for change, why in [
        ({"tasks": 3}, "must hold a list of tasks"),
        ({"version": 2}, "must say format"),
        ({"ranks": 0}, "for ranks, got '0'"),
        ({"groups": [0]}, "list of ranks for each of groups"),
        ({"groups": [[5]]}, "^'.*a.json': group 0 must hold ranks in 0..1"),
        ({"tasks": [{}]}, "^task 0 of .* must have one of marker, compute"),
        ({"tasks": [{"kind": "send", "rank": 0}]}, "^'.*a.json': peer of task 0"),
        ({"tasks": [{"kind": "marker", "rank": 0, "colour": 1}]}, "^task 0 of .* no other fields than"),
        ({"tasks": [{"kind": "compute", "rank": 0, "seconds": "1"}]}, "^task 0 of .* 0 to 1e.09 for seconds, got '1'"),
        ({"tasks": [{"kind": "compute", "rank": 0, "after": [1]}]}, "^task 0 of .* from 0 to 0 for after, got '1'"),
        ({"tasks": [{"kind": "compute", "rank": 0, "name": 1}]}, "^task 0 of .* a text for name, got '1'"),
        ({"tasks": [rows[1] | {"bytes": 10**400, "after": []}]}, "a number from 0 to 1e.21 for bytes, got '1000"),
        ({"tasks": [rows[0] | {"name": "a", "after": [1]}, rows[0] | {"after": 0}]}, "^'.*a.json': after .*'a'"),
    ]:
        path.write_text(json.dumps(said | {"tasks": rows} | change))
        check_refused(why, read_tasks, path)


def test_a_table_of_something_else_is_refused(tmp_path):
    import pyarrow
    from pyarrow import parquet

    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"kind": ["send"]}), path)
    check_refused("must say mfabric-tasks in its footer", read_tasks, path)
    path.write_bytes(b"PAR1")
    check_refused("must be a readable .parquet file", read_tasks, path)


def test_flow_sets(tmp_path):
    path = tmp_path / "flows.txt"
    path.write_text("2\n0 0 5 3 100 1000 0.25\n1 2 0 3 100 4000 1e-3\n")
    read, kind, remarks = read_with_remarks(path)
    assert (kind, read.ranks, remarks) == ("m4 flow set", 6, ("as many hosts as the flows name: 6 (ranks).",))
    assert (read.rank.tolist(), read.peer.tolist(), read.bytes.tolist()) == ([0, 2], [5, 0], [1000, 4000])
    assert read.start.tolist() == [0.25, 1e-3]
    assert read_tasks(path, ranks=8).ranks == 8
    check_refused("for dst, got '5'", read_tasks, path, ranks=4)
    path.write_text("3\n0 0 5 3 100 1000 0.25\n1 2 0 3 100 4000 1e-3\n")
    check_refused("^line 1 of .* says 3 flows, but 2 rows follow", read_tasks, path)
    path.write_text("1\n0 0 5 3 100 1000 0.25\n1 2\n")
    check_refused("^line 1", read_tasks, path)


def test_only_what_a_format_leaves_out_can_be_given(tmp_path):
    write_tasks(graph(), tmp_path / "a.json")
    with pytest.raises(
        InputError, match=r"^ranks cannot be given for '.*' \(mfabric tasks, JSON\); it leaves out: nothing"
    ):
        read_tasks(tmp_path / "a.json", ranks=3)
    check_refused("extension", write_tasks, graph(), tmp_path / "a.txt")
    check_refused("cannot read", read_tasks, tmp_path / "nothing.json")
    (tmp_path / "w.txt").write_text("[[1, 2], [3, 4]]")
    check_refused("but a matrix of weights", read_tasks, tmp_path / "w.txt")
    (tmp_path / "x.txt").write_text("hello")
    check_refused("is no file of tasks; formats that are read: Chakra, ", read_tasks, tmp_path / "x.txt")
