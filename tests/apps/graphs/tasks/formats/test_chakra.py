"""Chakra traces made by hand, message by message: what becomes of each node, of sets, and of what is broken."""

import gzip
import json

import numpy as np
import pytest
from google.protobuf import json_format

from mfabric_jax.apps.graphs.tasks.formats.chakra import value_of
from mfabric_jax.apps.graphs.tasks.formats.chakra_messages import messages, read_stream, stream_of
from mfabric_jax.apps.graphs.tasks.formats.chakra_write import within_ranks
from mfabric_jax.apps.graphs.tasks.formats.registry import read_tasks, read_with_remarks, write_tasks
from mfabric_jax.apps.graphs.tasks.graph import Op, TaskKind, Tasks
from mfabric_jax.apps.graphs.tasks.lowering import lower_tasks
from mfabric_jax.checks import InputError
from mfabric_jax.support.unread import Unread
from tests.mistakes import check_refused

COMP, SEND, RECV, COLL, METADATA, LOAD = 4, 5, 6, 7, 1, 2


def node(number, kind, data=(), control=(), micros=0, name="", inputs="", **attributes):
    """A Node; an attribute's kind is told by its value, or said with it."""
    made = messages().Node(id=number, name=name or f"n{number}", type=kind, duration_micros=micros)
    made.data_deps.extend(data)
    made.ctrl_deps.extend(control)
    made.inputs.values = inputs
    for key, value in attributes.items():
        kinds = {bool: "bool_val", int: "int64_val", float: "double_val", str: "string_val"}
        slot, value = value if isinstance(value, tuple) else (kinds[type(value)], value)
        one = made.attr.add(name=key)
        if slot:
            setattr(one, slot, value)
    return made


def put(folder, *ranks, prefix="trace", pack=bytes, **metadata):
    """The files of a set."""
    for rank, nodes in enumerate(ranks):
        data = stream_of([messages().GlobalMetadata(**metadata), *nodes])
        (folder / f"{prefix}.{rank}.et").write_bytes(pack(data))
    return folder / prefix


def test_every_kind_of_node(tmp_path):
    nodes = [
        node(0, COMP, micros=3, is_cpu_op=True),
        node(7, COMP, [0], micros=5),
        node(3, COLL, [7], comm_type=2, comm_size=("uint64_val", 10), is_cpu_op=("int32_val", 0), x=(None, None)),
        node(4, COLL, comm_type=("int32_val", 5), comm_size=6, root_rank=1),
        node(5, METADATA, control=[4]),
        node(6, LOAD, micros=2, tensor_size=8),
        node(8, COLL, is_cpu_op=True, micros=4),
        node(9, COLL, comm_type=9),
        node(10, COLL, comm_type=8, comm_size=4),
    ]
    with pytest.warns(Unread, match="attributes of nodes are not read, .* a number: x"):
        graph, kind, remarks = read_with_remarks(put(tmp_path, nodes, nodes, pack=gzip.compress))
    assert (kind, graph.ranks, graph.tasks) == ("Chakra", 2, 18)
    assert graph.name[:9] == ("n0", "n3", "n4", "n5", "n6", "n7", "n8", "n9", "n10")
    compute, collective = TaskKind.COMPUTE, TaskKind.COLLECTIVE
    kinds = [compute, *[collective] * 2, TaskKind.MARKER, *[compute] * 3, *[collective] * 2]
    assert graph.kind[:9].tolist() == kinds
    np.testing.assert_allclose(graph.seconds[:9], [3e-6, 0, 0, 0, 2e-6, 5e-6, 4e-6, 0, 0])
    # of an all-gather each rank's part is said: both have 20 bytes at the end
    assert graph.bytes[:9].tolist() == [0, 20, 6, 0, 0, 0, 0, 0, 4]
    assert graph.op[:9].tolist() == [-1, Op.ALL_GATHER, Op.BROADCAST, -1, -1, -1, -1, Op.BARRIER, Op.REDUCE_SCATTER]
    assert graph.lane[:9].tolist() == [0, 2, 2, -1, 3, 1, 0, 2, 2]
    assert graph.peer[2] == 1
    assert graph.match.tolist() == [-1, 0, 1, -1, -1, -1, -1, 2, 3] * 2
    assert graph.after[:3].tolist() == [[0, 5], [2, 3], [5, 1]]
    assert graph.groups == ((0, 1),)
    assert remarks == ("2 collectives without comm_type or comm_size take their recorded time.",)


def test_messages_are_matched_in_order_of_their_tag(tmp_path):
    one = [
        node(1, SEND, comm_dst=1, comm_size=8, comm_tag=5, comm_src=0),
        node(2, SEND, comm_dst=1, comm_size=9, comm_type=5),
        node(3, SEND, [1], comm_dst=1, comm_size=10, comm_tag=5),
        node(4, SEND, comm_dst=1, comm_size=1, comm_tag=77),
    ]
    other = [node(number, RECV, comm_src=0, comm_size=8, comm_tag=tag) for number, tag in ((6, 5), (7, 0), (8, 5))]
    graph, _, remarks = read_with_remarks(put(tmp_path, one, other))
    assert graph.match.tolist() == [0, 1, 2, -1, 0, 1, 2]
    assert graph.bytes.tolist() == [8, 9, 10, 1, 0, 0, 0]
    assert (graph.peer.tolist(), graph.lane.tolist()) == ([1] * 4 + [0] * 3, [2] * 4 + [-1] * 3)
    assert remarks == ("1 send has no receive: no task waits for it.",)


def test_communicators_of_a_file_and_of_metadata(tmp_path):
    said = '["[{\\"pg_name\\": \\"4\\", \\"ranks\\": [2, 0]}, {\\"pg_name\\": \\"5\\", \\"ranks\\": []}]"]'
    first = [node(1, METADATA, inputs=said), node(2, COLL, comm_type=0, comm_size=8, pg_name="4")]
    first += [node(3, COLL, comm_type=0, comm_size=8, pg_name="5")]
    path = put(tmp_path, first, [first[0], first[2]], first)
    assert read_tasks(path).groups == ((2, 0), (0, 1, 2))
    only = [node(2, COLL, comm_type=6, comm_size=8, pg_name="4")]
    path = put(tmp_path, only, [node(1, COMP, micros=1, num_ops=1)], only, prefix="other")
    check_refused(r"^node 2 of '.*other.0.et' belongs to communicator '4', which neither", read_tasks, path)
    (tmp_path / "other.json").write_text(json.dumps({"9": [1], "4": [0, 2]}))
    graph = read_tasks(tmp_path / "other.1.et")  # a file of a set stands for it
    assert graph.groups == ((1,), (0, 2))
    assert graph.group.tolist() == [1, -1, 1]
    (tmp_path / "mine.json").write_text(json.dumps({"4": [0, 1, 2]}))
    mine = tmp_path / "mine.json"
    check_refused("equally many collectives on all its ranks, got 1 on rank 0", read_tasks, path, communicators=mine)
    check_refused("or a folder of one set", read_tasks, tmp_path)


def test_a_file_alone_is_copied_to_all_ranks(tmp_path):
    path = put(tmp_path, [node(1, COLL, comm_type=2, comm_size=8)])
    graph, _, remarks = read_with_remarks(path, ranks=4)
    assert (graph.ranks, graph.tasks, graph.bytes.tolist()) == (4, 4, [32] * 4)
    assert remarks == ("one file for 4 ranks: each runs the same tasks.",)
    assert "one file for 1 rank: set ranks to copy it to more." in read_with_remarks(path).remarks
    put(tmp_path, [node(1, SEND, comm_dst=1, comm_size=8)], prefix="alone")
    check_refused("^node 1 of .* a file for every rank", read_tasks, tmp_path / "alone.0.et")


def test_operations_take_the_time_of_the_roofline(tmp_path):
    nodes = [
        node(1, COMP, num_ops=1000, tensor_size=10),
        node(2, COMP, num_ops=10, tensor_size=10),
        node(3, COMP, num_ops=0),
    ]
    path = put(tmp_path, nodes)
    said = "2 computations have operations and no duration: they take no time without tflops."
    assert said in read_with_remarks(path).remarks
    # 2 TFLOP/s, 100 GB/s: 1000 operations at 2e12; 10 at 1 operation a byte, 1e11.
    graph = read_tasks(path, tflops=2.0, memory_gigabytes_per_s=100.0)
    np.testing.assert_allclose(graph.seconds, [5e-10, 1e-10, 0])


def test_waits_that_cannot_be_are_left_out_and_counted(tmp_path):
    nodes = [
        node(1, COMP, [2], [1], micros=1, tid=1),  # waits for itself; a control wait of 2 goes round
        node(2, COMP, [9], [1], micros=1),  # 9 is not there
        node(3, COMP, [4], micros=1),  # 3 and 4 wait for each other's data
        node(4, COMP, [3], micros=1),
        node(5, COMP, [4, 4], [2], micros=1),
        node(6, COMP, [7], micros=1),  # a wait for a higher id is nothing strange
        node(7, COMP, micros=1),
    ]
    graph, _, remarks = read_with_remarks(put(tmp_path, nodes))
    assert graph.after.tolist() == [[1, 0], [1, 4], [2, 3], [3, 4], [6, 5]]
    assert remarks[1:] == (
        "1 wait of a node for itself is dropped.",
        "1 wait for a missing node is dropped.",
        "2 waits in cycles are dropped.",
    )


def test_the_feeder_s_json(tmp_path):
    rows = [{"Id": 4, "NodeType": 4, "Name": "a", "runtime": 7, "data_deps": [], "is_cpu_op": True}]
    rows += [
        {"Id": 6, "NodeType": 7, "data_deps": [4], "ctrlDeps": [3], "comm_type": 0, "comm_size": 16, "is_cpu_op": False}
    ]
    (tmp_path / "trace.0.json").write_text(json.dumps({"workload_graph": rows}))
    graph, _, remarks = read_with_remarks(tmp_path / "trace.0.json", ranks=2)
    assert (graph.tasks, graph.after.tolist(), graph.lane.tolist()) == (4, [[0, 1], [2, 3]], [0, 2, 0, 2])
    assert remarks[1] == "2 waits for missing nodes are dropped."


def test_collectives_that_differ_and_gaps_are_refused(tmp_path):
    ranks = [[node(1, COLL, comm_type=0, comm_size=size)] for size in (8, 9, 8)]
    path = put(tmp_path, *ranks)
    check_refused("must be the same on all ranks, but those of ranks 0 and 1 differ", read_tasks, path)
    (tmp_path / "trace.1.et").unlink()
    check_refused(
        r"trace.RANK.et' must have a file for every rank, got 2 files without rank 1; .* at least 3\.", read_tasks, path
    )


def test_some_files_of_a_set(tmp_path):
    first = [
        node(1, COLL, comm_type=0, comm_size=8, pg_name="4"),
        node(2, RECV, comm_src=3, comm_size=70),
        node(3, SEND, comm_dst=1, comm_size=9, comm_tag=5),
    ]
    path = put(tmp_path, first, [node(1, RECV, comm_src=0, comm_size=9, comm_tag=5)])
    (tmp_path / "trace.json").write_text(json.dumps({"4": [0, 2, 3]}))
    check_refused(r"^'.*trace.RANK.et' must .*, got 2 files without rank 3; .* at least 4\.$", read_tasks, path)
    check_refused("got 2 files without rank 2; .* at least 4", read_tasks, path, ranks=3)
    check_refused("for ranks, got '1000000000'", read_tasks, path, ranks=10**9)
    graph, _, remarks = read_with_remarks(path, ranks=4)
    assert remarks == ("files of 2 of 4 ranks: the others are absent, which absent='assume' allows.",)
    assert (graph.ranks, graph.bytes.tolist(), graph.match.tolist()) == (4, [8, 70, 9, 0], [0, -1, 1, 1])
    flows = lower_tasks(graph, absent="assume")
    assert (flows.src[1], flows.dst[1], flows.bytes[1]) == (3, 0, 70)
    first[1] = node(2, RECV, comm_src=1, comm_size=70)
    check_refused("receives a message from rank 1, which does not", read_tasks, put(tmp_path, first, []), ranks=4)


def test_a_communicator_of_another_size_than_the_job(tmp_path):
    put(tmp_path, [node(1, COLL, comm_type=0, comm_size=8, pg_name="4")], prefix="alone")
    (tmp_path / "alone.json").write_text(json.dumps({"4": [0, 1, 2]}))
    for ranks in (2, 4):
        said = f"is a collective of 3 ranks, not of all {ranks} to which its file is copied: its set"
        check_refused(said, read_tasks, tmp_path / "alone.0.et", ranks=ranks)


def test_bytes_that_are_no_trace(tmp_path):
    path = put(tmp_path, [node(1, COMP, micros=3), node(2, COMP, [1], micros=3, x=1)]).with_name("trace.0.et")
    whole = path.read_bytes()
    seen, said = [], set()
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        try:
            seen.append(read_tasks(path).tasks)
        except InputError as error:
            said.add(str(error).partition(" of ")[0] if "cut off" in str(error) else "empty")
    assert seen == [0, 1]  # cut between messages it is a shorter trace
    assert said == {"empty", "node 1 (counted from 1)", "node 2 (counted from 1)"}
    # As schema 0.0.1 has it: comm_size is field 18 of a node, and there is no attribute.
    old = messages().Node.FromString(node(1, COLL).SerializeToString() + b"\x90\x01\x08")
    check_refused("Chakra's schema 0.0.1", read_tasks, put(tmp_path, [old]))


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
        "1 marker without a rank is put on a rank.",
        "1 receive is added for a message that another rank waits for.",
        "3 messages of no bytes are added for waits between ranks.",
    )
    assert (graph.rank[graph.after[:, 0]] == graph.rank[graph.after[:, 1]]).all()
    assert graph.tasks == 7 + 1 + 2 * 3
    received = {graph.name[task]: int(graph.match[task]) for task in np.flatnonzero(graph.of(TaskKind.RECV))}
    assert received["b arrived"] == graph.match[1]
    assert graph.bytes[graph.of(TaskKind.SEND)].tolist() == [8, 0, 0, 0]
    assert write_tasks(across(), tmp_path / "x.et") == remarks
    assert read_tasks(tmp_path / "x").equals(graph)
    assert within_ranks(graph).graph is graph


@pytest.mark.parametrize("order", [[0, 1, 1, 0], [0, 1, 0]])
def test_collectives_out_of_order_or_without_members_are_refused(tmp_path, order):
    tasks = Tasks(2, groups=((0, 1),))
    for place, match in enumerate(order):
        tasks.add(TaskKind.COLLECTIVE, place // 2, op=Op.ALL_REDUCE, group=0, bytes=1.0, match=match)
    check_refused("in the same order", write_tasks, tasks.graph(), tmp_path / "x.et")


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


def as_jsonized(metadata, nodes):
    """What Chakra's jsonizer writes of a file: one object after another, types of nodes by name."""
    objects = [json_format.MessageToDict(message) for message in (metadata, *nodes)]
    for fields in objects[1:]:
        fields["type"] = {COMP: "COMP_NODE", COLL: "COMM_COLL_NODE", METADATA: "METADATA_NODE"}[fields["type"]]
    return "".join(json.dumps(fields, indent=2) for fields in objects)


def newest():
    """A GlobalMetadata as the converter of version 1.0.0 writes it, and nodes with its attributes."""
    metadata = messages().GlobalMetadata(version="1.0.0")
    metadata.attr.add(name="schema", string_val="1.1.1-chakra.1.0.0")
    metadata.attr.add(name="pid", uint64_val=7)
    groups = '["[{\\"pg_name\\": \\"4\\", \\"ranks\\": [0, 1]}]"]'
    return metadata, [
        node(1, METADATA, inputs=groups, name="process_group:init"),
        node(2, COMP, micros=5, is_cpu_op=False, rf_id=3, fw_parent=0, stream=7, comm_priority=("int32_val", 0)),
        node(3, COLL, [2], [1], comm_type=6, comm_size=80, pg_name="4", is_cpu_op=False),
    ]


@pytest.mark.parametrize("single", [True, False])
def test_what_the_jsonizer_writes_is_the_same_graph(tmp_path, single):
    metadata, nodes = newest()
    for rank in range(2):
        (tmp_path / f"a.{rank}.et").write_bytes(stream_of([metadata, *nodes]))
        (tmp_path / (f"b.{rank}.json" if not single else "b.json")).write_text(as_jsonized(metadata, nodes))
    graph, kind, _ = read_with_remarks(tmp_path / ("b.json" if single else "b.1.json"))
    assert (kind, graph.ranks, graph.groups) == ("Chakra", 2, ((0, 1),))
    assert graph.equals(read_tasks(tmp_path / "a"))
    assert graph.bytes[graph.of(TaskKind.COLLECTIVE)].tolist() == [80, 80]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"1.0.0"', '"1.1.0"', "states Chakra's schema 1.1.0; it is read as 1.0.0."),
        ("chakra.1.0.0", "chakra.2.0.0", "states Chakra's schema 2.0.0; it is read as 1.0.0."),
        ('"pid"', '"process_groups"', "attributes of its GlobalMetadata are not read, .* number: process_groups"),
        ('"durationMicros"', '"duration"', "fields of nodes are not read, .* number: duration"),
        ('"int32Val": 0', '"int32Val": 2', "attributes of nodes are not read, .* number: comm_priority"),
        ('"comm_size"', '"comm_bytes"', "attributes of nodes are not read, .* number: comm_bytes"),
    ],
)
def test_what_is_newer_than_the_schema_is_named(tmp_path, old, new, words):
    text = as_jsonized(*newest())
    assert old in text
    (tmp_path / "b.json").write_text(text.replace(old, new))
    with pytest.warns(Unread, match=words):
        read_tasks(tmp_path / "b.json")


def test_a_field_that_the_schema_lacks_is_named(tmp_path):
    path = put(tmp_path, [node(1, COMP, micros=1, is_cpu_op=True)])
    file = tmp_path / "trace.0.et"
    field_15 = bytes([15 << 3, 1])  # a varint
    data = file.read_bytes()
    head = stream_of([messages().GlobalMetadata()])
    inside = data[len(head) + 1 :] + field_15
    file.write_bytes(head + bytes([len(inside)]) + inside)
    with pytest.warns(Unread, match="fields of protobuf are not read, though they could change a number: 15"):
        assert read_tasks(path).tasks == 1
