"""Connection matrices: times, triggers by htsim's rules, and the same after writing and reading."""

import gzip
import lzma

import numpy as np

from mfabric_jax.apps.graphs.tasks.formats.registry import read_tasks, read_with_remarks
from mfabric_jax.apps.graphs.tasks.graph import TaskKind

MATRIX = """Nodes 4
Connections 5
Triggers 3
0->1 id 1 start 2500000 size 100 send_done_trigger 1 recv_done_trigger 2
1->2 id 2 trigger 1 size 200
1->3 id 3 trigger 1 size 300 send_done_trigger 2 prio 1

2->0 id 4 trigger 2 size 400 recv_done_trigger 3
3->0 id 5 trigger 3 size 500
trigger id 1 oneshot
trigger id 2 barrier count 2
trigger id 3 multishot
"""


def read(tmp_path, text, **given):
    path = tmp_path / "a.cm"
    path.write_text(text)
    return read_with_remarks(path, **given)


def test_triggers_release_what_waits(tmp_path):
    graph, kind, remarks = read(tmp_path, MATRIX)
    assert (kind, graph.ranks, remarks) == ("htsim connection matrix", 4, ("1 connection has a priority: not used.",))
    assert set(graph.kind) == {TaskKind.SEND}
    assert (graph.rank.tolist(), graph.peer.tolist()) == ([0, 1, 1, 2, 3], [1, 2, 3, 0, 0])
    assert graph.bytes.tolist() == [100, 200, 300, 400, 500]
    np.testing.assert_allclose(graph.start, [2.5e-6, 0, 0, 0, 0])
    assert graph.after.tolist() == [[0, 1], [0, 2], [0, 3], [2, 3], [3, 4]]


def test_the_nth_firing_releases_the_nth_of_a_multishot(tmp_path):
    rows = ["0->1 id 1 start 0 size 1 send_done_trigger 1", "0->2 id 2 start 0 size 1 send_done_trigger 1"]
    rows += ["0->3 id 3 trigger 1 size 1", "0->1 id 4 trigger 1 size 1", "trigger id 1 multishot"]
    reading = read(tmp_path, "Nodes 4\nConnections 4\nTriggers 1\n" + "\n".join(rows))
    assert reading.graph.after.tolist() == [[0, 2], [1, 3]]
    assert "connections fire in the order of the file" in reading.remarks[0]


def test_a_flow_that_never_ends_is_said(tmp_path):
    text = "Nodes 2\nConnections 1\n0->1 start 0.000000 size 0\n"
    graph, _, remarks = read(tmp_path, text)
    assert graph.bytes.tolist() == [0]
    assert remarks == ("1 connection has size 0, which never ends in htsim: here it sends nothing (unbounded_bytes).",)
    assert read(tmp_path, text, unbounded_bytes=7.0).graph.bytes.tolist() == [7]


def test_a_packed_file_is_the_same(tmp_path):
    graph = read(tmp_path, MATRIX).graph
    for pack, ending in ((gzip.compress, ".gz"), (lzma.compress, ".xz")):
        (tmp_path / f"c.cm{ending}").write_bytes(pack(MATRIX.encode()))
        assert read_tasks(tmp_path / f"c.cm{ending}").equals(graph)
