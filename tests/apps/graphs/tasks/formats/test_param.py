"""PARAM's comms traces: what waits for what, bytes of every collective, and seconds by hand."""

import gzip
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
from tests.command_line import status

ALONE = ("--set", "gpu.gpus_per_server=1", "--set", "network.link_delay_s=0", "--set", "gpu.nvlink_gigabytes_per_s=900")


def comm(name, sent=0, received=None, dtype="float", **fields):
    sizes = {"in_msg_size": sent, "out_msg_size": sent if received is None else received, "dtype": dtype}
    return {"comms": name} | (sizes if name not in ("wait", "barrier", "init") else {}) | fields


def put(folder, *ranks, name="{}.json"):
    """A folder of one list a rank."""
    folder.mkdir(exist_ok=True)
    for rank, entries in enumerate(ranks):
        (folder / name.format(rank)).write_text(json.dumps(entries))
    return folder


def read_single(tmp_path, *entries, **given):
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(entries))
    return read_with_remarks(path, **given)


def refusal(tmp_path, *entries, **given):
    with pytest.raises(InputError) as refused:
        read_single(tmp_path, *entries, **given)
    return str(refused.value)


def chain(graph, rank):
    """Tasks of a rank by name, each with the names of those that it waits for."""
    return [
        (graph.name[task], sorted(graph.name[first] for first, then in graph.after.tolist() if then == task))
        for task in np.flatnonzero(graph.rank == rank)
    ]


# 8 ranks at 50 GB/s: a ring all-reduces 400 MB in 2 * 7/8 * 400 MB / 50 GB/s = 14 ms. 5 ms pass between its end, 2 ms
# after its start, and the start of an all-to-all, whose ranks send 7/8 of 200 MB in 3.5 ms.
TIMED = [
    comm("all_reduce", 10**8, req=0, startTime_ns=1000, latency_us=2000.0, world_size=8),
    comm("all_to_all", 10**8, dtype="bfloat16", req=1, startTime_ns=7_001_000, world_size=8),
]


@pytest.mark.usefixtures("command_line")
@pytest.mark.parametrize("single", [True, False])
def test_two_collectives_of_eight_ranks_take_known_seconds(tmp_path, capsys, single):
    where, out = put(tmp_path / "trace", *[TIMED] * (1 if single else 8)), tmp_path / "rows.csv"
    workload = where / "0.json" if single else where
    assert status("replay", workload, "--fabric", "fat-tree", "--nic-gbps", 400, *ALONE, "--out", out) == 0
    (row,), config = read_rows(out)
    assert row["makespan_s"] == pytest.approx(14e-3 + 5e-3 + 3.5e-3, rel=1e-9)
    assert (row["ranks"], row["compute_s"], config["format"]) == (8, pytest.approx(5e-3), "PARAM comms trace")
    output = capsys.readouterr().out
    assert ("one file for 8 ranks, each of which runs the entries of its groups." in output) == single
    assert "what passes between start times is computation: with all others 0.005 s on the mean rank." in output


@pytest.mark.usefixtures("command_line")
def test_an_all_to_all_with_unequal_splits_takes_the_time_of_the_busiest_rank(tmp_path):
    # Rank 0 sends 150 MB to rank 1 and 50 MB to rank 2, rank 1 sends 100 MB to rank 2: rank 0's NIC is busy for 4 ms.
    rows = [[0, 150, 50], [0, 0, 100], [0, 0, 0]]
    ranks = [
        [comm("alltoallv", sum(row), sum(to), "int8", in_split=row, out_split=list(to))]
        for row, to in zip(rows, zip(*rows, strict=True), strict=True)
    ]
    for (entry,) in ranks:
        entry |= {name: 1_000_000 * entry[name] for name in ("in_msg_size", "out_msg_size")}
    where, out = put(tmp_path / "trace", *ranks), tmp_path / "rows.csv"
    graph, _, remarks = read_with_remarks(where)
    assert bytes_by_kind(graph) == {"SEND": 300e6}
    assert (graph.op[graph.of(TaskKind.COLLECTIVE)] == Op.BARRIER).all()
    assert remarks[1].startswith("1 all-to-all has unequal splits")
    assert status("replay", where, "--fabric", "fat-tree", "--nic-gbps", 400, *ALONE, "--out", out) == 0
    assert read_rows(out)[0][0]["makespan_s"] == pytest.approx(4e-3, rel=1e-9)


def test_a_wait_makes_its_entry_asynchronous(tmp_path):
    entries = [
        comm("allreduce", 4, req=5, world_size=2),
        comm("broadcast", 4, req=[6, False], root=1, world_size=2),
        {"compute": "gemm", "mm_dim": 1000, "dtype": "half", "count": 3},
        comm("wait", req=5),
        comm("barrier", world_size=2),
    ]
    graph, _, remarks = read_single(tmp_path, *entries, tflops=100.0)
    assert chain(graph, 1) == [
        ("allreduce", []),
        ("broadcast", ["allreduce"]),
        ("gemm", ["broadcast"]),
        ("barrier", ["allreduce", "broadcast", "gemm"]),
    ]
    assert graph.seconds.max() == pytest.approx(3 * 2 * 1000**3 / 100e12)
    assert graph.peer[graph.op == Op.BROADCAST].tolist() == [1, 1]
    assert remarks[1:] == ("no entry has startTime_ns: ranks compute nothing between entries.",)


def test_waits_without_a_req_take_entries_in_order(tmp_path):
    entries = [comm("gather", 4), comm("scatter", 4), comm("wait"), comm("barrier")]
    graph, _, remarks = read_single(tmp_path, *entries, ranks=2)
    assert chain(graph, 0) == [("gather", []), ("scatter", ["gather"]), ("barrier", ["gather", "scatter"])]
    assert "2 collectives have no root: their first ranks become the roots." not in remarks
    assert "4 collectives have no root: their first ranks become the roots." in remarks
    assert read_single(tmp_path, comm("wait", req=3), comm("barrier"), ranks=2).remarks[2] == (
        "1 wait names no entry before it."
    )


SIZES = {  # bytes of a collective of 4 ranks with 8 FP32 elements in and 32 out
    "all_reduce": 32,
    "reduce": 32,
    "broadcast": 128,
    "all_gather": 128,
    "_allgather_base_": 128,
    "all_gather_v": 128,
    "reduce_scatter_base": 32,
    "gather": 128,
    "scatter": 512,
    "ALLTOALL": 32,
}


@pytest.mark.parametrize("name", SIZES)
def test_bytes_of_every_collective(tmp_path, name):
    graph = read_single(tmp_path, comm(name, 8, 32), ranks=4).graph
    assert graph.bytes.tolist() == [SIZES[name]] * 4


def test_splits_may_count_rows(tmp_path):
    splits = {"in_split": [1, 3], "out_split": [1, 3]}
    graph = read_single(tmp_path, comm("all_to_allv", 40, dtype="double", **splits)).graph
    assert graph.bytes[graph.of(TaskKind.SEND)].tolist() == [3 * 80, 80]
    even = read_single(tmp_path, comm("all_to_allv", 40, in_split=[2, 2], out_split=[])).graph
    assert (bytes_by_kind(even), even.ranks) == ({"ALL_TO_ALL": 2 * 160}, 2)


def test_groups_by_their_global_ranks(tmp_path):
    entries = [
        {"comms": "init", "pg_id": 7, "global_ranks": [2, 0], "world_size": 2},
        comm("all_gather", 4, 8, pg_id=7, world_size=2),
        comm("all_reduce", 4, pg_id=0, global_ranks=[]),
        comm("reduce", 4, global_ranks=[1, 2], root=2),
    ]
    graph, _, remarks = read_single(tmp_path, *entries)
    assert (graph.ranks, graph.groups) == (3, ((2, 0), (0, 1, 2), (1, 2)))
    assert [name for name, _ in chain(graph, 1)] == ["all_reduce", "reduce"]
    assert "2 collectives of groups without the rank are skipped." in remarks
    lists = [entries[:3], entries[2:], entries]
    graph = read_with_remarks(put(tmp_path / "set", *lists, name="comms.rank{}.of8.json".replace(".of8", ""))).graph
    assert [sum(graph.rank == rank) for rank in range(3)] == [2, 2, 3]


def test_messages(tmp_path):
    message = {"src_rank": 0, "dst_rank": 1}
    entries = [
        comm("isend", 4, **message, use_batch=True, req=1),
        comm("irecv", 4, **message, use_batch=True, req=2),
        {"comms": "batch_isend_irecv", "req": 3},
        comm("barrier"),
        {"comms": "wait", "req": 3},
        comm("recvAnySource", 2, src_rank=-1, dst_rank=0),
        comm("send", 3, src_rank=1, dst_rank=0),
    ]
    graph, _, remarks = read_single(tmp_path, *entries)
    assert chain(graph, 0) == [("isend", []), ("barrier", []), ("recvAnySource", ["barrier", "isend"])]
    assert chain(graph, 1) == [("irecv", []), ("barrier", []), ("send", ["barrier", "irecv"])]
    receives = np.flatnonzero(graph.of(TaskKind.RECV))
    assert graph.peer[receives].tolist() == [1, 0]
    assert sorted(graph.bytes[graph.of(TaskKind.SEND)]) == [12, 16]
    assert remarks[2:] == (
        "4 messages that the rank neither sends nor receives are skipped.",
        "1 receive differs in size from its send, whose size counts.",
    )
    lonely = refusal(tmp_path, comm("recv", 2, **message), ranks=2)
    assert lonely.endswith("receives a message from rank 0, which does not send it.")


def test_computations_are_part_of_the_time_between_entries(tmp_path):
    lookup = {"compute": "emb_lookup", "direction": "backward", "emb_dim": 64, "num_embs": 1000, "batch_size": 100}
    lookup |= {"num_emb_tables": 5, "bag_size": 20}
    entries = [comm("barrier", startTime_ns=10**18), lookup, comm("barrier", startTime_ns=10**18 + 3000), lookup]
    graph, _, remarks = read_single(tmp_path, *entries, ranks=1, memory_gigabytes_per_s=1000.0)
    seconds = graph.seconds[graph.of(TaskKind.COMPUTE)]
    np.testing.assert_allclose(seconds, [3e-6, 2 * 4 * 64 * 100 * 5 * 20 / 1e12])
    assert remarks[2:] == (
        "1 computation is part of the time between two entries.",
        "1 entry that blocks has no latency_us: the computation after it includes its recorded time.",
    )
    back = [comm("barrier", startTime_ns=9), comm("barrier", startTime_ns=5), lookup | {"latency_us": 7}]
    graph, _, remarks = read_single(tmp_path, *back, ranks=1)
    assert graph.seconds.sum() == pytest.approx(7e-6)
    assert "1 entry starts before the one before it: no time passes between them." in remarks


def test_files_by_rank(tmp_path):
    entry = [comm("all_reduce", 4)]
    for name in ("rank10.json", "rank9.json"):
        put(tmp_path / "b", entry, name=name)
    with pytest.raises(InputError, match="must have a file for every rank, got 2 files without rank 0"):
        read_with_remarks(tmp_path / "b")
    graph, _, remarks = read_with_remarks(tmp_path / "b", ranks=11)
    assert (graph.ranks, sorted(graph.rank)) == (11, [9, 10])
    assert remarks[0] == "files of 2 of 11 ranks: the others are absent, which absent='assume' allows."
    for name in ("first.json", "second.json"):
        put(tmp_path / "c", entry, name=name)
    assert read_with_remarks(tmp_path / "c").remarks[0] == (
        "names of files have no rank of their own: they are ranks 0 to 1 in order of their names."
    )
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "0.json.gz").write_bytes(gzip.compress(json.dumps(entry).encode()))
    assert read_with_remarks(tmp_path / "d", ranks=3).graph.ranks == 3


def test_content_that_is_not_read_is_named(tmp_path):
    with pytest.warns(Unread, match=re.escape("fields of entries are not read, though they could change a number: rq")):
        read_single(tmp_path, comm("all_reduce", 4, rq=3, markers=["a"]), ranks=2)
    where = put(tmp_path / "set", [comm("init")], [])
    (where / "notes.json").write_text("{}")
    with pytest.warns(Unread, match=r"files are not read, though they could change a number: notes\.json"):
        read_with_remarks(where, ranks=2)
