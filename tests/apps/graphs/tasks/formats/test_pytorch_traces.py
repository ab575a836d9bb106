"""Execution traces and Kineto traces of PyTorch: bytes, groups, what waits for what, and seconds by hand."""

import json
import re

import numpy as np
import pytest

from mfabric_jax.apps.graphs.tasks.formats.registry import read_with_remarks
from mfabric_jax.apps.graphs.tasks.graph import Op, TaskKind
from mfabric_jax.checks import InputError
from mfabric_jax.report import read_rows
from mfabric_jax.support.unread import Unread
from tests.apps.graphs.tasks.formats.contents import bytes_by_kind
from tests.apps.graphs.tasks.formats.pytorch_samples import (
    Recorded,
    calls_in_turn,
    execution_trace,
    kineto_trace,
)
from tests.apps.graphs.tasks.formats.test_param import ALONE, chain, put
from tests.command_line import status

OLD = "1.0.3-chakra.0.0.4"
MILLION = 10**6


def replay_seconds(where, tmp_path):
    """Makespan and computation of the mean rank on a fat-tree with 50 GB/s a rank and no latency, and the format."""
    out = tmp_path / "rows.csv"
    assert status("replay", where, "--fabric", "fat-tree", "--nic-gbps", 400, *ALONE, "--out", out) == 0
    (row,), config = read_rows(out)
    return row["makespan_s"], row["compute_s"], config["format"]


def read_in(tmp_path, trace, name="trace.0.json", **given):
    (tmp_path / name).write_text(json.dumps(trace))
    return read_with_remarks(tmp_path / name, **given)


def refusal(tmp_path, trace, **given):
    with pytest.raises(InputError) as refused:
        read_in(tmp_path, trace, **given)
    return str(refused.value)


@pytest.mark.usefixtures("command_line")
@pytest.mark.parametrize("schema", [OLD, "1.1.1-chakra.0.0.4"])
def test_an_execution_trace_of_two_ranks_takes_known_seconds(tmp_path, capsys, schema):
    # 100 MB all-reduced: 2 * 1/2 * 100 MB / 50 GB/s = 2 ms. Gathered to, and reduced from, 200 MB: 1/2 * 200 / 50 =
    # 2 ms each. 100 MB broadcast: 2 ms. The larger message of the all-to-all, 150 MB: 3 ms. 50 MB sent: 1 ms.
    traces = [execution_trace(calls_in_turn(rank), schema=schema) for rank in range(2)]
    where = put(tmp_path / "trace", *traces)
    makespan, computed, name = replay_seconds(where, tmp_path)
    assert makespan == pytest.approx((2 + 2 + 2 + 2 + 3 + 1) * 1e-3, rel=1e-9)
    assert (computed, name) == (0, "PyTorch execution trace")
    assert "an execution trace has no times: ranks compute nothing." in capsys.readouterr().out


@pytest.mark.usefixtures("command_line")
def test_a_kineto_trace_of_two_ranks_takes_known_seconds(tmp_path):
    # As above, and rank 0 computes 4 ms between the first two calls, rank 1 computes 1 ms: calls take 10 us themselves.
    starts = [[0.0, 4010.0, *(4020.0 + 10 * order for order in range(5))], [0.0, 1010.0, *range(1020, 1070, 10)]]
    traces = [kineto_trace(rank, calls_in_turn(rank, starts[rank])) for rank in range(2)]
    where = put(tmp_path / "trace", *traces, name="worker{}_step_12.1694128201545.pt.trace.json")
    makespan, computed, name = replay_seconds(where, tmp_path)
    assert makespan == pytest.approx((2 + 4 + 2 + 2 + 2 + 3 + 1) * 1e-3, rel=1e-9)
    assert (computed, name) == (pytest.approx((4 + 1) / 2 * 1e-3), "Kineto trace")


@pytest.mark.usefixtures("command_line")
@pytest.mark.parametrize("kineto", [False, True])
def test_eight_ranks_take_known_seconds(tmp_path, kineto):
    # A ring all-reduces 400 MB in 2 * 7/8 * 400 / 50 = 14 ms while ranks compute 20 ms before they wait. Then pairs of
    # ranks (0, 4), (1, 5), ... gather 100 MB each: 100 / 50 = 2 ms; then all send 7/8 of 200 MB: 3.5 ms.
    everyone = tuple(range(8))
    traces = []
    for rank in everyone:
        pair = {"group": str(1 + rank % 4), "ranks": (rank % 4, 4 + rank % 4)}
        calls = [
            Recorded("allreduce", 100 * MILLION, seq=1, ranks=everyone, rank=rank),
            Recorded("wait", seq=1, ranks=everyone, ts=20_000.0),
            Recorded("allgather", 25 * MILLION, 50 * MILLION, seq=1, rank=rank // 4, ts=20_010.0, **pair),
            Recorded("all_to_all", 100 * MILLION, dtype="BFloat16", seq=2, ranks=everyone, rank=rank, ts=20_020.0),
        ]
        traces.append(kineto_trace(rank, calls, 8) if kineto else execution_trace(calls, (("0", (), 8),)))
    where = put(tmp_path / "trace", *traces)
    makespan, computed, _ = replay_seconds(where, tmp_path)
    assert makespan == pytest.approx(((20 if kineto else 14) + 2 + 3.5) * 1e-3, rel=1e-9)
    assert computed == pytest.approx(20e-3 if kineto else 0)
    graph = read_with_remarks(where).graph
    assert (4, sorted(graph.groups)[1:3]) == (graph.groups.index((3, 7)), [(0, 4), (1, 5)])
    names = ["allreduce", "before wait"] if kineto else ["allreduce"]
    waits = dict(chain(graph, 3))
    assert (waits["allgather"], waits["all_to_all"]) == (names, ["allgather", "allreduce"])


def test_messages_that_start_together_wait_together(tmp_path):
    # Each rank receives before it sends: with a wait for only the last of the two calls neither could ever end.
    calls = [
        [
            Recorded("recv", 4 * MILLION, seq=5, rank=1 - rank),
            Recorded("send", 4 * MILLION, seq=5, rank=1 - rank),
            Recorded("allreduce", 4, seq=5),
            Recorded("wait", seq=5),
            Recorded("barrier", seq=6),
        ]
        for rank in range(2)
    ]
    traces = [execution_trace(listed) for listed in calls]
    for trace in traces:
        trace["nodes"][-2]["inputs"]["values"][0] = [5, True]
    graph = read_with_remarks(put(tmp_path / "trace", *traces)).graph
    assert chain(graph, 0) == [
        ("recv", []),
        ("send", []),
        ("allreduce", []),
        ("barrier", ["allreduce", "recv", "send"]),
    ]


@pytest.mark.parametrize("schema", ["1.0.1", OLD, "1.1.0-chakra.0.0.4"])
def test_schemas(tmp_path, schema):
    # 1.0.1 has flat nodes, names a group by the number of a backend, and has no ranks behind the splits.
    call = Recorded("all_to_allv", 6, 4, "Long", in_split=(2, 4), out_split=(2, 2))
    trace = execution_trace([call], schema=schema)
    if schema == "1.0.1":
        node = trace["nodes"][-1]
        values, types = node["inputs"]["values"][:7], node["inputs"]["types"]
        values[1], values[2] = 9, 94428220485728
        node |= {"inputs": values, "input_types": types, "outputs": node["outputs"]["values"], "parent": 2}
        del node["attrs"], node["ctrl_deps"]
        rows = [{"pg_name": "0", "backend_id": 94428220485728, "ranks": [], "group_size": 2}]
        trace["nodes"][0]["inputs"] = [json.dumps(rows)]
    graph, name, remarks = read_in(tmp_path, trace)
    assert (graph.ranks, name, bytes_by_kind(graph)) == (2, "PyTorch execution trace", {"SEND": 8 * (4 + 2)})
    assert not any("no ranks of" in remark for remark in remarks)


def test_a_list_of_tensors_has_the_splits_of_its_tensors(tmp_path):
    trace = execution_trace([Recorded("all_to_all", 6)], schema=OLD)
    trace["nodes"][-1]["inputs"]["values"][0] = [[7, 8, 0, 1, 4, "cuda:0"], [7, 8, 0, 5, 4, "cuda:0"]]
    graph = read_in(tmp_path, trace).graph
    assert graph.bytes[graph.of(TaskKind.SEND)].tolist() == [5 * 4, 1 * 4]


def test_groups_come_from_lists_or_from_calls(tmp_path):
    calls = [
        Recorded("allreduce", 4, group="5", ranks=(1, 3)),
        Recorded("broadcast", 4, group="6", ranks=(0, 2, 4), rank=2),
    ]
    listed = execution_trace(calls, (("0", (), 6), ("5", (1, 3), 2), ("6", (4, 2, 0), 3)))
    graph = read_in(tmp_path, listed).graph
    assert (graph.ranks, graph.groups) == (6, ((1, 3), (4, 2, 0)))
    assert set(graph.peer[graph.op == Op.BROADCAST]) == {0}
    strided = execution_trace(calls, ())
    graph = read_in(tmp_path, strided).graph
    assert (graph.ranks, graph.groups) == (5, ((1, 3), (0, 2, 4)))
    assert set(graph.peer[graph.op == Op.BROADCAST]) == {4}
    cut = execution_trace(calls)
    cut["nodes"][0]["inputs"]["values"] = ['[{"pg_name": "0", "ran']
    graph, _, remarks = read_in(tmp_path, cut)
    assert graph.groups == ((1, 3), (0, 2, 4))
    assert "the list of groups is cut off: ranks of groups come from the calls." in remarks


def test_shortened_lists_of_kineto(tmp_path):
    ranks = tuple(range(0, 80, 2))
    call = Recorded("all_to_allv", 400, in_split=tuple(range(1, 41)), group="5", ranks=ranks)
    trace = kineto_trace(0, [call], 80)
    trace["traceEvents"][-1]["args"] |= {"Process Group Ranks": "[0, 2, ..., 78]", "In split size": "[1, 2, ..., 40]"}
    graph, _, remarks = read_in(tmp_path, trace)
    assert (graph.ranks, graph.groups, bytes_by_kind(graph)) == (80, (ranks,), {"ALL_TO_ALL": 40 * 400 * 4})
    assert "1 all-to-all has shortened splits: equal parts." in remarks
    del trace["traceEvents"][-1]["args"]["Global rank stride"]
    said = refusal(tmp_path, trace)
    assert "event 2 (counted from 0) of " in said
    assert said.endswith("belongs to Process Group Name 5, for which neither it nor an init has Process Group Ranks.")


def test_waits_without_numbers_take_calls_of_their_thread(tmp_path):
    calls = [
        Recorded("allreduce", 4, ts=0),
        Recorded("broadcast", 4, ts=20),
        Recorded("wait", ts=40),
        Recorded("barrier", ts=60),
    ]
    trace = kineto_trace(0, calls)
    for event in trace["traceEvents"][2:]:
        del event["args"]["Seq"]
    trace["traceEvents"][-1]["tid"] = 9  # of the all-reduce, which is last in the list
    graph, _, remarks = read_in(tmp_path, trace)
    assert chain(graph, 0)[:4] == [
        ("allreduce", []),
        ("before broadcast", ["allreduce"]),
        ("broadcast", ["allreduce", "before broadcast"]),
        ("before wait", ["before broadcast"]),
    ]
    np.testing.assert_allclose(graph.seconds[graph.rank == 0][[1, 3]], [10e-6, 20e-6])
    assert remarks[2].startswith("1 wait names no call (no Seq)")


def test_a_unitrace_of_param_holds_all_ranks(tmp_path):
    fields = {"comms": "all_to_allv", "in_msg_size": 6, "out_msg_size": 6, "dtype": "Int"}
    splits = [[2, 4], [4, 2]]
    events = [
        {"ph": "X", "name": "record_param_comms", "ts": 5 + rank, "dur": 1}
        | {"args": fields | {"rank": rank, "in_split": splits[rank], "out_split": splits[rank]}}
        for rank in range(2)
    ]
    graph, name, _ = read_in(tmp_path, events)
    assert (graph.ranks, name, bytes_by_kind(graph)) == (2, "Kineto trace", {"SEND": 4 * (4 + 4)})
    events[0]["args"]["out_split"] = [5, 1]
    assert "sends 8 bytes to rank 0, whose out_split expects 20" in refusal(tmp_path, events)


def test_a_rank_in_the_trace_prevails_over_the_name_of_the_file(tmp_path):
    calls = [Recorded("allreduce", 4)]
    put(tmp_path / "a", kineto_trace(1, calls), kineto_trace(0, calls), name="t{}.json")
    assert read_with_remarks(tmp_path / "a").graph.ranks == 2
    put(tmp_path / "b", kineto_trace(1, calls), kineto_trace(1, calls), name="t{}.json")
    with pytest.raises(InputError, match=r"t1\.json' is a trace of rank 1, as is another file of its folder\."):
        read_with_remarks(tmp_path / "b")
    put(tmp_path / "c", kineto_trace(1, calls, 4), kineto_trace(0, calls, 4))
    with pytest.raises(InputError, match="must have a file for every rank, got 2 files without rank 3"):
        read_with_remarks(tmp_path / "c")
    assert read_with_remarks(tmp_path / "c", ranks=4).graph.ranks == 4


def test_a_folder_of_both_kinds_is_read_by_its_times(tmp_path):
    calls = [Recorded("allreduce", 4)]
    where = put(tmp_path / "both", *[kineto_trace(rank, calls) for rank in range(2)], name="kineto_{}.json")
    put(where, *[execution_trace(calls)] * 2, name="et_{}.json")
    with pytest.warns(Unread, match=r"files are not read, though they could change a number: et_0\.json, et_1\.json"):
        assert read_with_remarks(where).format == "Kineto trace"


def renamed(trace, old, new):
    return json.loads(json.dumps(trace).replace(old, new))


ET = execution_trace(calls_in_turn(0))
KINETO = kineto_trace(0, calls_in_turn(0))


@pytest.mark.parametrize(
    ("trace", "old", "new", "words"),
    [
        (ET, '"in_msg_nelems"', '"in_msg_nelem"', "fields of record_param_comms are not read"),
        (ET, '"strides"', '"stride"', "number: stride."),
        (ET, '"pid"', '"zz"', "fields are not read, though they could change a number: zz."),
        (ET, "1.1.1-chakra", "1.2.0-chakra", "schema '1.2.0-chakra.0.0.4' is not known; it is read as 1.1.1"),
        (KINETO, '"Global rank start"', '"Global rank starts"', "number: Global rank starts."),
        (KINETO, '"distributedInfo"', '"distributed"', "number: distributed."),
        (KINETO, '"world_size"', '"worldsize"', "number: worldsize."),
        (KINETO, '"cat": "cpu_op"', '"cats": "cpu_op"', "number: cats."),
    ],
)
def test_content_that_is_not_read_is_named(tmp_path, trace, old, new, words):
    changed = renamed(trace, old, new)
    with pytest.warns(Unread, match=re.escape(words)):
        read_in(tmp_path, changed, ranks=2)
