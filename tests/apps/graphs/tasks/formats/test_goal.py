"""GOAL, read: what waits for what, messages matched in order, and places named where a text is wrong."""

import numpy as np

from mfabric_jax.apps.graphs.tasks.formats.registry import read_tasks, read_with_remarks
from mfabric_jax.apps.graphs.tasks.graph import TaskKind

TWO = """num_ranks 2 // two of them
rank 0 { /* over
lines */
l1: calc 1500 cpu 1
l2: send 8b to 1 tag 4
l2 requires l1
send 9b to 1 tag 4
l3: recv 1b from -1
l4: calc 7
l4 irequires l2
}
rank 1 {
a: recv 8b from 0 tag 4
b: recv 9b from 0 tag 4
c: send 1b to 0
c requires b
}
"""


def read(tmp_path, text):
    path = tmp_path / "a.goal"
    path.write_text(text)
    return read_with_remarks(path)


def test_tasks_waits_and_messages(tmp_path):
    graph, kind, remarks = read(tmp_path, TWO)
    assert (kind, graph.ranks, graph.tasks) == ("GOAL", 2, 8)
    assert graph.name == ("l1", "l2", "", "l3", "l4", "a", "b", "c")
    # l4 waits for what l2 waits for: l1.
    assert graph.after.tolist() == [[0, 1], [0, 4], [6, 7]]
    np.testing.assert_allclose(graph.seconds, [1.5e-6, 0, 0, 0, 7e-9, 0, 0, 0])
    assert graph.lane.tolist() == [1, -1, -1, -1, 0, -1, -1, -1]
    assert graph.match.tolist() == [-1, 0, 1, 2, -1, 0, 1, 2]
    assert graph.peer.tolist() == [-1, 1, 1, 1, -1, 0, 0, 0]  # l3 took any source: rank 1
    assert graph.bytes[graph.of(TaskKind.SEND)].tolist() == [8, 9, 1]
    assert remarks == ("1 receive takes any source or tag: the remaining sends match in the order of the file.",)


def test_sizes_that_differ_are_said(tmp_path):
    graph, _, remarks = read(tmp_path, TWO.replace("recv 9b", "recv 20b"))
    assert graph.bytes[graph.of(TaskKind.SEND)].tolist() == [8, 9, 1]
    assert remarks[1] == "1 receive differs in size from its send: the sizes of sends count."


def test_a_text_of_another_name_is_known_by_what_is_in_it(tmp_path):
    (tmp_path / "trace.txt").write_text("// Schedgen\n" + TWO)
    (tmp_path / "a.goal").write_text(TWO)
    assert read_tasks(tmp_path / "trace.txt").equals(read_tasks(tmp_path / "a.goal"))
