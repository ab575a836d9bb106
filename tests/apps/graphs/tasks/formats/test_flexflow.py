"""FlexFlow's graphs, built slot by slot: TopoOpt's trap, MixNet's collectives, and damaged bytes."""

import flatbuffers
import numpy as np
import pytest

from mfabric_jax.apps.graphs.tasks.formats.registry import read_with_remarks
from mfabric_jax.apps.graphs.tasks.graph import Op, TaskKind
from mfabric_jax.checks import InputError
from tests.mistakes import check_refused

ADD = {"i2": "Int16", "i4": "Int32", "u4": "Uint32", "u8": "Uint64", "f4": "Float32"}
NODES = 4


def numbers(builder, values):
    builder.StartVector(8, len(values), 8)
    for value in reversed(values):
        builder.PrependUint64(value)
    return builder.EndVector()


def table(builder, slots, parts):
    """Of (slot, kind, value); strings and vectors are made before."""
    made = []
    for slot, kind, value in parts:
        if kind == "text":
            value = builder.CreateString(value)
        elif kind == "numbers":
            value = numbers(builder, value)
        made.append((slot, kind, value))
    builder.StartObject(slots)
    for slot, kind, value in made:
        if kind in ADD:
            getattr(builder, f"Prepend{ADD[kind]}Slot")(slot, value, 0)
        else:
            builder.PrependUOffsetTRelativeSlot(slot, value, 0)
    return builder.EndObject()


def tables(builder, offsets):
    builder.StartVector(4, len(offsets), 4)
    for offset in reversed(offsets):
        builder.PrependUOffsetTRelative(offset)
    return builder.EndVector()


def graph_of(path, tasks, devices, degrees=(), first=12, gpus=1):
    """A file with one switch; degrees of parallelism in the last slots, from `first` on."""
    builder = flatbuffers.Builder(1024)
    made = tables(builder, [table(builder, 15 if degrees else 6, parts) for parts in tasks])
    rows = [[(0, "i2", kind), (1, "u8", key), (2, "u8", node), (3, "u8", what)] for key, kind, node, what in devices]
    boxes = tables(builder, [table(builder, 5, parts) for parts in rows])
    parts = [(0, "u4", gpus), (1, "u4", NODES), (2, "u4", 1), (8, "tables", made), (9, "tables", boxes)]
    parts += [(first + order, "u4", degree) for order, degree in enumerate(degrees)]
    builder.Finish(table(builder, 16, parts))
    path.write_bytes(bytes(builder.Output()))
    return path


def topoopt(key, kind, device=0, runtime=0.0, size=0, follows=()):
    head = [(0, "i2", kind), (1, "u8", key), (2, "u8", device), (3, "f4", runtime), (4, "u8", size)]
    return [*head, (5, "numbers", list(follows))]


def mixnet(key, kind, follows=(), sources=(), targets=(), device=0, runtime=0.0, size=0, info=""):
    head = topoopt(key, kind, device, runtime, size)[:5]
    lists = [(6, "numbers", list(follows)), (7, "numbers", list(sources)), (8, "numbers", list(targets))]
    return [*head, (5, "i4", 3), *lists, (9, "text", ""), (10, "text", info)]


GPUS = [(90 + node, 0, node, node) for node in range(NODES)]
LINK = (80, 14, 2**64 - 1, 2 * (NODES + 1) + 3)  # node 2 to node 3


def test_the_nodes_of_an_allreduce_are_no_tasks_that_follow(tmp_path):
    tasks = [
        topoopt(1, 0, 92, 1.5, follows=[2, 3]),
        topoopt(2, 5, 80, 9.0, 1000, [4]),
        topoopt(3, 1, 92, 2.5, follows=[5]),
        topoopt(4, 1, 93, 2.5, follows=[5]),
        topoopt(5, 6, 0, 7.0, 64, [1, 3, 2]),
        topoopt(6, 6, 0, 7.0, 64, [2]),
    ]
    graph, kind, remarks = read_with_remarks(graph_of(tmp_path / "a.fbuf", tasks, [*GPUS, LINK]))
    assert (kind, graph.ranks) == ("FlexFlow task graph", NODES)
    compute, marker, collective = TaskKind.COMPUTE, TaskKind.MARKER, TaskKind.COLLECTIVE
    kinds = [compute, TaskKind.SEND, compute, compute, marker, *[collective] * 3, marker, collective]
    assert graph.kind.tolist() == kinds
    assert graph.rank.tolist() == [2, 2, 2, 3, -1, 1, 3, 2, -1, 2]
    assert graph.groups == ((1, 3, 2), (2,))
    np.testing.assert_allclose(graph.seconds[:4], [1.5e-3, 0, 2.5e-3, 2.5e-3])
    assert (graph.peer[1], graph.bytes[1], graph.bytes[5], graph.lane[:4].tolist()) == (3, 1000, 64, [0, -1, 0, 0])
    assert graph.after.tolist() == [[0, 1], [0, 2], [1, 3], [2, 4], [3, 4], [4, 5], [4, 6], [4, 7], [8, 9]]
    assert graph.name[0] == "FORWARD"
    assert remarks == ("estimated runtimes of messages and collectives are not used.",)


def test_nodes_of_several_gpus(tmp_path):
    tasks = [topoopt(1, 0, 70, 1.0, follows=[2]), topoopt(2, 5, 80, 9.0, 1000), topoopt(3, 6, size=64, follows=[1, 3])]
    path = graph_of(tmp_path / "a.fbuf", tasks, [(70, 0, 2, 5), LINK], gpus=2)
    graph = read_with_remarks(path).graph
    assert (graph.ranks, graph.groups) == (2 * NODES, ((2, 6),))  # the first GPU of nodes 1 and 3
    assert (graph.rank[:2].tolist(), graph.peer[1]) == ([5, 4], 6)


@pytest.mark.parametrize("first", [11, 12])  # without rings, which MixNet does not write, or with their slot
def test_mixnet_s_collectives_and_messages(tmp_path, first):
    tasks = [
        mixnet(1, 0, [2], device=90, runtime=1.0),
        mixnet(2, 13, [3], [0, 1, 2, 3], [0, 1, 2, 3], size=10, info="forward GROUP_BY"),
        mixnet(3, 6, [4], [0, 1], [2, 1], size=7),
        mixnet(4, 8, [5], targets=[0, 2], size=6),
        mixnet(5, 12, targets=[1, 3], size=8),
    ]
    path = graph_of(tmp_path / "a.fbuf", tasks, GPUS, degrees=(1, 2, 1, 2), first=first)
    graph, _, remarks = read_with_remarks(path)
    # The all-to-all: places 0 and 1 of tensor-parallel groups of 2 each talk among themselves, 10 bytes for each.
    assert graph.groups == ((0, 2), (1, 3))
    assert graph.op[2:6].tolist() == [Op.ALL_TO_ALL] * 4
    assert graph.bytes[2:6].tolist() == [20] * 4
    assert graph.kind[6:8].tolist() == [TaskKind.SEND, TaskKind.MARKER]  # 0 to 2; of 1 to itself nothing moves
    assert (graph.peer[6], graph.bytes[6]) == (2, 7)
    assert graph.op[9:11].tolist() == [Op.ALL_REDUCE] * 2
    assert {tuple(pair) for pair in graph.after.tolist()} >= {(2, 6), (5, 7), (6, 8), (7, 8), (9, 11), (10, 11)}
    assert "since weights, MixNet's matrix, is not given" in remarks[1]
    tasks[1] = mixnet(2, 13, [3], [0, 1], [0, 1], size=10, info="all of them")
    wrong = graph_of(path, tasks, GPUS, degrees=(1, 2, 1, 2))
    check_refused("^task 1 .* must have GROUP_BY or AGGREGATE", read_with_remarks, wrong)


@pytest.mark.parametrize(("info", "back"), [("forward GROUP_BY", False), ("forward AGGREGATE", True)])
@pytest.mark.parametrize("turned", [False, True])
def test_mixnet_s_weights(tmp_path, info, back, turned):
    # Two expert-parallel ranks of two GPUs each: 0 and 1, 2 and 3. Backward what was dispatched comes back.
    info, back = (info.replace("forward", "backward"), not back) if turned else (info, back)
    tasks = [mixnet(1, 0, [2], device=90), mixnet(2, 13, [3], range(4), range(4), size=1001, info=info), mixnet(3, 4)]
    (tmp_path / "w.txt").write_text("[[8192, 24576], [32768, 0]]")
    path = graph_of(tmp_path / "a.fbuf", tasks, GPUS, degrees=(1, 2, 1, 2))
    graph = read_with_remarks(path, weights=tmp_path / "w.txt").graph
    sends = graph.of(TaskKind.SEND)
    there, here = (1502, 2002) if not back else (2002, 1502)  # 2 x 1001 x 3/4, rounded up, and 2 x 1001
    got = dict(zip(zip(graph.rank[sends], graph.peer[sends], strict=True), graph.bytes[sends], strict=True))
    assert got == {(0, 2): there, (2, 0): here, (1, 3): there, (3, 1): here}
    # what follows waits for all of it
    assert {tuple(pair) for pair in graph.after.tolist()} == {(0, 1), (2, 7)} | {(1, s) for s in range(3, 7)} | {
        (s, 2) for s in range(3, 7)
    }
    (tmp_path / "w.txt").write_text("[[1]]")
    check_refused("but weights has 1 row\\.", read_with_remarks, path, weights=tmp_path / "w.txt")


def test_damaged_bytes_get_a_sentence(tmp_path):
    path = graph_of(
        tmp_path / "a.fbuf", [topoopt(1, 0, 90, 1.0, follows=[2]), topoopt(2, 6, size=4, follows=[0, 1])], GPUS
    )
    whole = path.read_bytes()
    random = np.random.default_rng(0)
    for change in range(300):
        data = bytearray(whole)
        if change < 100:
            data = data[: len(data) * change // 100]
        else:
            for at in random.integers(0, len(data), 3):
                data[at] = random.integers(256)
        path.write_bytes(bytes(data))
        try:
            read_with_remarks(path)
        except InputError:
            continue
