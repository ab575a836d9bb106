"""Chakra traces written: read again the same, readable for others, and what cannot be said."""

import json

import numpy as np
import pytest

from mfabric_jax.tasks.formats.chakra_messages import read_stream, value_of
from mfabric_jax.tasks.formats.chakra_write import within_ranks
from mfabric_jax.tasks.formats.registry import read_tasks, write_tasks
from mfabric_jax.tasks.graph import Op, TaskKind, Tasks
from tests.mistakes import check_refused


def everything():
    """A graph with every field in use, tasks of all ranks mixed."""
    tasks = Tasks(4, groups=((0, 1), (2, 0, 1), (0, 2)))
    for rank in (1, 0, 2):
        tasks.add(TaskKind.COMPUTE, rank, f"é {rank}", seconds=rank + 0.1234567891, lane=rank - 1)
    tasks.add(TaskKind.SEND, 0, "there", after=[1], peer=2, bytes=1 / 3, match=0, lag=1e-6)
    tasks.add(TaskKind.RECV, 2, "here", after=[2], peer=0, match=0)
    tasks.add(TaskKind.SEND, 0, "away", peer=2, bytes=8.0, start=3.5, lane=2)
    tasks.add(TaskKind.SEND, 0, "again", peer=2, bytes=9.0, match=1)
    tasks.add(TaskKind.RECV, 2, "got", peer=0, match=1, lane=4)
    for match, (op, group) in enumerate([(Op.ALL_GATHER, 1), (Op.ALL_REDUCE, 1), (Op.BROADCAST, 0), (Op.BARRIER, 2)]):
        for rank in tasks.groups[group]:
            root = {"peer": 1} if op == Op.BROADCAST else {}
            size = 0.0 if op == Op.BARRIER else 10.0
            tasks.add(
                TaskKind.COLLECTIVE, rank, op.name, op=op, group=group, bytes=size, match=2 + match, lane=2, **root
            )
    tasks.add(TaskKind.MARKER, 1, "end", after=[0])
    return tasks.graph()


def test_written_and_read_it_is_the_same(tmp_path):
    graph = everything()
    assert write_tasks(graph, tmp_path / "job.et") == ("2 tasks have a start or a lag, which only this package reads.",)
    again = read_tasks(tmp_path / "job.et")
    assert again.equals(graph)
    assert read_tasks(tmp_path / "job").equals(graph)
    assert read_tasks(tmp_path / "job.2.et").equals(graph)
    assert json.loads((tmp_path / "job.json").read_text()) == {"1": [0, 1], "2": [2, 0, 1], "3": [0, 2]}
    write_tasks(Tasks(2).graph(), tmp_path / "none.et")
    assert (read_tasks(tmp_path / "none").ranks, read_tasks(tmp_path / "none").tasks) == (2, 0)


def test_other_readers_find_what_they_need(tmp_path):
    write_tasks(everything(), tmp_path / "job.et")
    metadata, nodes = read_stream(tmp_path / "job.0.et")
    assert metadata.version == "0.0.4"
    said = {node.name: (node, {one.name: value_of(one) for one in node.attr}) for node in nodes}
    node, attributes = said["there"]
    assert (node.type, list(node.data_deps)) == (5, [1])
    assert attributes == {
        **{"is_cpu_op": False, "comm_size": 0, "comm_dst": 2, "comm_tag": 0},
        **{"mfabric_bytes": 1 / 3, "mfabric_lag": 1e-6, "mfabric_lane": -1},
    }
    node, attributes = said["ALL_GATHER"]
    assert (node.type, attributes["comm_type"], attributes["comm_size"], attributes["pg_name"]) == (7, 2, 3, "2")
    assert said["é 0"][0].duration_micros == 123457
    _, (node,) = read_stream(tmp_path / "job.3.et")
    assert (node.type, node.name) == (1, "nothing to do")  # ASTRA-sim stops at a rank without a node


def across():
    tasks = Tasks(3)
    tasks.add(TaskKind.COMPUTE, 0, "a", seconds=1.0)
    tasks.add(TaskKind.SEND, 0, "b", after=[0], peer=1, bytes=8.0)
    tasks.add(TaskKind.COMPUTE, 1, "c", after=[1], seconds=1.0)
    tasks.add(TaskKind.MARKER, -1, "d", after=[0, 2])
    for rank in (0, 1, 2):
        tasks.add(TaskKind.COMPUTE, rank, "e", after=[3], seconds=1.0)
    return tasks.graph()


def test_waits_across_ranks_become_messages(tmp_path):
    graph, remarks = within_ranks(across())
    assert remarks == (
        "1 marker of nobody is given a rank.",
        "1 message is received where a rank waited for it.",
        "3 messages of no bytes say that another rank is done.",
    )
    assert (graph.rank[graph.after[:, 0]] == graph.rank[graph.after[:, 1]]).all()
    assert graph.tasks == 7 + 1 + 2 * 3
    received = {graph.name[task]: int(graph.match[task]) for task in np.flatnonzero(graph.of(TaskKind.RECV))}
    assert received["b arrived"] == graph.match[1]
    assert graph.bytes[graph.of(TaskKind.SEND)].tolist() == [8, 0, 0, 0]
    assert write_tasks(across(), tmp_path / "x.et") == remarks
    assert read_tasks(tmp_path / "x").equals(graph)
    assert within_ranks(graph).graph is graph


@pytest.mark.parametrize(("order", "said"), [([0, 1, 1, 0], "in the same order"), ([0, 1, 0], "in the same order")])
def test_collectives_out_of_order_or_without_members_are_refused(tmp_path, order, said):
    tasks = Tasks(2, groups=((0, 1),))
    for place, match in enumerate(order):
        tasks.add(TaskKind.COLLECTIVE, place // 2, op=Op.ALL_REDUCE, group=0, bytes=1.0, match=match)
    check_refused(said, write_tasks, tasks.graph(), tmp_path / "x.et")


def test_members_of_an_all_to_all_have_bytes_of_their_own(tmp_path):
    tasks = Tasks(2, groups=((0, 1),))
    for rank in range(2):
        what = {"op": Op.ALL_TO_ALL, "group": 0, "bytes": 8.0 + rank, "match": 0}
        tasks.add(TaskKind.COLLECTIVE, rank, lane=2, **what)
    write_tasks(tasks.graph(), tmp_path / "x.et")
    assert read_tasks(tmp_path / "x").equals(tasks.graph())


def test_what_could_not_be_matched_again_is_refused(tmp_path):
    tasks = Tasks(2, groups=((0, 1),))
    for rank in range(2):
        tasks.add(TaskKind.COLLECTIVE, rank, "c", op=Op.ALL_REDUCE, group=0, bytes=8.0)
    check_refused(r"^match of task 0 \('c'\) must .*, got -1\.$", write_tasks, tasks.graph(), tmp_path / "x.et")
    tasks = Tasks(2)
    tasks.add(TaskKind.SEND, 0, peer=1, bytes=8.0)
    tasks.add(TaskKind.RECV, 1, "r", peer=0, bytes=8.0)
    check_refused(r"^task 1 \('r'\) must have a task that sends", write_tasks, tasks.graph(), tmp_path / "x.et")


def test_another_set_of_that_name_is_in_the_way(tmp_path):
    write_tasks(Tasks(4).graph(), tmp_path / "x.et")
    check_refused("x.2.et' is of another set", write_tasks, Tasks(2).graph(), tmp_path / "x.et")
    write_tasks(Tasks(5).graph(), tmp_path / "x.et")
    assert read_tasks(tmp_path / "x").ranks == 5
