"""Mistakes in graphs of tasks and in their files: each names the task, the line or the node."""

import json
import tempfile
from pathlib import Path

from mfabric_jax.apps.graphs.tasks.collectives.registry import ALGORITHMS, choices_of
from mfabric_jax.apps.graphs.tasks.formats.param_entries import GEMM_DIMS
from mfabric_jax.apps.graphs.tasks.formats.registry import read_tasks
from mfabric_jax.apps.graphs.tasks.graph import Op, TaskKind, Tasks
from mfabric_jax.apps.graphs.tasks.lowering import lower_tasks
from tests.apps.graphs.tasks.formats.pytorch_samples import Recorded, execution_trace, kineto_trace
from tests.apps.graphs.tasks.formats.test_chakra import COLL, COMP, RECV, SEND, as_jsonized, newest, node, put
from tests.apps.graphs.tasks.formats.test_flexflow import GPUS, graph_of, topoopt
from tests.apps.graphs.tasks.formats.test_goal import TWO
from tests.apps.graphs.tasks.formats.test_htsim import MATRIX
from tests.apps.graphs.tasks.formats.test_param import comm
from tests.apps.graphs.tasks.formats.test_param import put as put_param
from tests.apps.graphs.tasks.formats.test_simai import HEAD, ROWS


def text(name, whole, old="", new="", **given):
    """A file of this name, with a part of its text replaced."""

    def read():
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / name).write_text(whole.replace(old, new, 1))
            read_tasks(Path(folder) / name, **given)

    return read


def made(write, **given):
    """What `write` makes of a folder, read."""

    def read():
        with tempfile.TemporaryDirectory() as folder:
            read_tasks(write(Path(folder)), **given)

    return read


def chakra(*nodes):
    return made(lambda folder: put(folder, [*nodes], [node(5, COMP, micros=1, x=1)]))


def flexflow(task):
    return made(lambda folder: graph_of(folder / "a.fbuf", [task], GPUS))


def own(**changed):
    rows = [{"kind": "compute", "rank": 0, "seconds": 1}]
    return text("a.json", json.dumps({"format": "mfabric tasks", "version": 1, "ranks": 2, "tasks": rows} | changed))


def one(**fields):
    return own(tasks=[{"kind": "compute", "rank": 0} | fields])


def goal(old, new):
    return text("a.goal", TWO, old, new)


def htsim(old, new):
    return text("a.cm", MATRIX, old, new)


def simai(old, new, **given):
    return text("a.txt", HEAD + ROWS, old, new, **given)


def jsonized(old, new):
    return text("b.json", as_jsonized(*newest()), old, new)


def param(*entries, **given):
    return text("trace.json", json.dumps(entries), **{"ranks": 2} | given)


def param_set(*ranks, **given):
    return made(lambda folder: put_param(folder / "set", *ranks), **given)


def traced(call, old="", new="", kineto=False, **given):
    """An execution trace, or a Kineto trace, of one call, with a part of its text replaced."""
    trace = kineto_trace(0, [call]) if kineto else execution_trace([call])
    return text("rank.json", json.dumps(trace), old, new, **given)


def task(kind, rank=0, **values):
    """A graph of one task."""

    def build():
        tasks = Tasks(2, groups=((0, 1),))
        tasks.add(kind, rank, "odd", **values)
        return tasks.graph()

    return build


def pair(first, second, kind=TaskKind.COLLECTIVE):
    """Two tasks of one match, as flows: members of an all-reduce of ranks 0 and 1, or a SEND and a RECV."""

    def lower():
        tasks = Tasks(3, groups=((0, 1), (0, 1, 2)))
        usual = {"op": Op.ALL_REDUCE, "group": 0, "bytes": 8.0} if kind == TaskKind.COLLECTIVE else {}
        for rank, values in enumerate((first, second)):
            row = {"kind": kind, "rank": rank, "match": 0} | usual | values
            tasks.add(row.pop("kind"), row.pop("rank"), "ab"[rank], **row)
        lower_tasks(tasks.graph())

    return lower


def choice(words):
    return lambda: choices_of(words)


REDUCED, SENT = Recorded("allreduce", 4, seq=7), Recorded("send", 4, rank=1)
RANKS = 'ranks\\": {}'  # as the list of groups stands, a text in a text
RECEIVED = {"kind": TaskKind.RECV, "peer": 2}
REFUSED = [
    (task(TaskKind.COMPUTE, seconds=-1.0), "seconds of task 0 ('odd') must be a number from 0 to 1e+09, got -1"),
    (task(TaskKind.COMPUTE, seconds=float("nan")), "seconds of task 0"),
    (task(TaskKind.SEND), "peer of task 0 ('odd') must be in 0..1, got -1."),
    (task(TaskKind.COLLECTIVE, group=0), "op of task 0"),
    (task(TaskKind.COLLECTIVE, op=Op.ALL_REDUCE, group=2), "must be one of groups, got 2."),
    (task(TaskKind.COMPUTE, rank=2), "rank of task 0"),
    (pair({}, {"op": Op.ALL_GATHER}), "op must be the same", "task 0 ('a') has 0 and task 1 ('b') has 2."),
    (pair({}, {"group": 1}), "group must be the same"),
    (pair({}, {"rank": 0}), "a collective must have one task of each rank, but", "are both of rank 0"),
    (pair({}, {"rank": 2}), "rank of task 1 ('b') must be one of its group 0, got 2."),
    (pair({}, {"bytes": 9.0}), "bytes must be the same for all members of a collective (ring),"),
    (pair({"op": Op.REDUCE}, {"op": Op.REDUCE}), "peer of task 0 ('a') must be its root, a rank of group 0, got -1"),
    (pair({"op": Op.REDUCE, "peer": 0}, {"op": Op.REDUCE, "peer": 1}), "peer must be the same"),
    (pair({"peer": 1}, RECEIVED, TaskKind.SEND), "task 0 ('a') sends from rank 0 to 1, but", "waits for 2."),
    (pair({"peer": 1}, {"peer": 2}, TaskKind.SEND), "one SEND and one RECV, but task 0 ('a') and task 1 ('b') share"),
    (choice("all-reduce"), "OP=ALGORITHM"),
    (choice("allreduce=ring"), "collective 'allreduce' is unknown (did you mean 'all-reduce'?)"),
    (choice("all-reduce=pairwise"), "algorithm of all-reduce 'pairwise' is unknown", "allowed: ring, rings,"),
    (choice("all-reduce:65536=ring"), "OP:<BYTES=ALGORITHM"),
    (choice("all-reduce:<x=ring"), "'x' in 'all-reduce:<x=ring' must be a whole number"),
    (choice("all-reduce=ring,all-reduce=direct"), "once, but 'all-reduce=direct' repeats"),
    (lambda: ALGORITHMS["hierarchical"][Op.ALL_REDUCE]((0, 0, 1)), "equally many members on each server, got 1 to 2."),
    (jsonized('"id": "3"', '"id": "-3"'), "node 3 (counted from 1) of", "is no node as Chakra's jsonizer writes it"),
    (
        jsonized("COMM_COLL_NODE", "COMM_NODE"),
        "node 3 (counted from 1) of",
        "is no node as Chakra's jsonizer writes it",
    ),
    (jsonized('"id": "3"', '"id": "3",,'), "b.json' is not JSON of Chakra's jsonizer"),
    (jsonized("{", '{"attr": [{"name"}]}[]{'), "b.json' is not JSON of Chakra's jsonizer"),
    (param({"comms": "barrier", "compute": "gemm"}), "entry 0 (counted from 0) of", "either comms or compute"),
    (param(comm("allreduc", 4)), "must have comms of", "got 'allreduc'"),
    (param(comm("all_reduce", 4, dtype="fp8")), "must have a dtype of bool, byte,", "got 'fp8'"),
    (param({"comms": "all_reduce", "dtype": "int"}), "must have in_msg_size and out_msg_size"),
    (param(comm("all_reduce", -4)), "must have a whole number from 0", "in_msg_size, got '-4'"),
    (param(comm("all_reduce", 4, req=1.5)), "a list of one and true or false, for req, got '1.5'"),
    (param(comm("all_reduce", 4, startTime_ns="5")), "must have a number from 0 to 9.22e+18 for startTime_ns, got '5'"),
    (param(comm("all_reduce", 4, pg_id=3)), "belongs to pg_id 3, for which neither it nor an init has global_ranks"),
    (param(comm("all_reduce", 4, pg_id=[])), "must have a number or a name for pg_id"),
    (param(comm("all_reduce", 4, global_ranks=[1, 1])), "each once, for global_ranks, got [1, 1]"),
    (
        param(comm("all_reduce", 4, world_size=4)),
        "a world_size of 2, the number of all ranks of the job (ranks), got 4",
    ),
    (param(comm("all_reduce", 4, global_ranks=[0], world_size=2)), "of 1, the number of its global_ranks, got 2"),
    (param(comm("reduce", 4, root=2)), "must have a root of its ranks [0, 1], got 2"),
    (param(comm("alltoallv", 4, in_split=[1, 2])), "in_split that adds up to its in_msg_size, 4, or to a divisor", "3"),
    (param(comm("alltoallv", 4, in_split=[4])), "must have 2 numbers for in_split, one of each rank, got 1"),
    (param(comm("send", 4, src_rank=0)), "must have src_rank and dst_rank"),
    (param(comm("send", 4, src_rank=0, dst_rank=2)), "names rank 2, so ranks must be at least 3, got 2"),
    (param(comm("send", 4, src_rank=0, dst_rank=1, use_batch="yes")), "true or false for use_batch, got 'yes'"),
    (param({"compute": "gemm", "mm0_dim0": 4}), "must have all sizes of its gemm, or latency_us"),
    (param({"compute": "gemm", "mm_dim": 4}), "must have a dtype of"),
    (
        param({"compute": "gemm", "dtype": "int"} | dict(zip(GEMM_DIMS, (1, 2, 3, 4), strict=True))),
        "equal inner sizes mm0_dim1 and mm1_dim0, got 2 and 3",
    ),
    (param({"compute": "softmax"}), "must have gemm or emb_lookup for compute"),
    (param({"compute": "emb_lookup", "direction": "up"}), "forward or backward for direction, got 'up'"),
    (param(comm("barrier"), ranks=None), "names no ranks (global_ranks, world_size): set ranks to the number of GPUs"),
    (param_set([comm("all_reduce", 4)], [comm("all_reduce", 8)]), "ranks 0 and 1 differ ('all_reduce')"),
    (param_set([comm("barrier")], [comm("init")]), "must have equally many collectives on all its ranks"),
    (
        param_set(*[[comm("alltoallv", 5, in_split=[2, 3], out_split=[1, 4])]] * 2),
        "entry 0 (counted from 0) of",
        "sends 8 bytes to rank 0, whose out_split expects 4",
    ),
    (
        traced(REDUCED, '"value": "allreduce"', '"value": "allreduc"'),
        "node 10 of",
        "must have collective_name of",
        "'allreduc'",
    ),
    (traced(REDUCED, '"value": "Float"', '"value": "Floa"'), "node 10 of", "must have a dtype of", "got 'floa'"),
    (traced(REDUCED, '"value": 4', '"value": -4'), "node 10 of", "from 0 to", "for in_msg_nelems, got '-4'"),
    (
        traced(REDUCED, '"value": 2}', '"value": 3}'),
        "must have a pg_size of 2, the number of its ranks of pg_name",
        "3",
    ),
    (traced(REDUCED, "[7, false]", "[7, 8]"), "node 10 of", "true or false, for seq, got '[7, 8]'"),
    (traced(REDUCED, '0, "allreduce", [], [], 0, 1, 2', '0, "allreduce"'), "node 10 of", "must have inputs of seq"),
    (traced(REDUCED, "[7, false], [", "[7, false], [[], "), "node 10 of", "must have a number or a name for pg_name"),
    (traced(REDUCED, '"id": 10', '"id": 4'), "position 2 (counted from 0) of", "that no other node has, got 4"),
    (traced(REDUCED, '"id": 10', '"id": -1'), "position 2", "from 0 to 9007199254740992 for id, got '-1'"),
    (traced(REDUCED, '"name": "tid"', '"name": "dtype"'), "must have each attribute once, got 'dtype' twice"),
    (traced(REDUCED, '"name": "tid"', '"nam": "tid"'), "node 10 of", "must have attrs with name and value"),
    (traced(REDUCED, "[31, 32, 0, 4", "[31, 32, 4"), "node 10 of", "must have tensors of 6 values"),
    (traced(REDUCED, "record_param_comms", "record"), "must have entries of a PyTorch execution trace, got none"),
    (
        traced(REDUCED, RANKS.format("[]"), RANKS.format(5)),
        "node 3 of",
        "must have a list for ranks of group '0', got '5'",
    ),
    (
        traced(REDUCED, RANKS.format("[]"), RANKS.format([1])),
        "node 3 of",
        "must have 2 ranks, each once, for group '0'",
    ),
    (traced(REDUCED, RANKS.format("[]"), RANKS.format([-1])), "node 3 of", "for ranks, got '-1'"),
    (traced(SENT), "node 10 of", "is a message, and the trace does not say of which rank: name the file by it"),
    (traced(Recorded("broadcast", 4, rank=2)), "node 10 of", "a rank below 2, the size of its group, got 2"),
    (
        traced(REDUCED, '"name": "tid", "type": "uint64", "value": 1', '"name": "is_asynchronized_op", "value": 5'),
        "must have true or false for is_asynchronized_op, got '5'",
    ),
    (
        traced(Recorded("all_to_allv", 4), '"[]"', '"[1, 2"'),
        "node 10 of",
        "must have a list for in_split_size, got '[1, 2'",
    ),
    (
        traced(REDUCED, '"Collective name": "allreduce", ', "", True),
        "event 2 (counted",
        "'Collective name' in its args",
    ),
    (traced(REDUCED, '"In msg nelems": 4', '"In msg nelems": "4"', True), "for In msg nelems, got", "'4'"),
    (traced(REDUCED, '"ts": 1000000000.0', '"ts": "now"', True), "event 2 (counted", "for ts, got", "now"),
    (traced(REDUCED, "record_param_comms", "rec", True), "must have events called record_param_comms, got none of 3"),
    (traced(REDUCED, '"args": {"Coll', '"args": 5, "b": {"Coll', True), "event 2", "an object for args, got '5'"),
    (traced(REDUCED, '"Process Group Ranks": "[0, 1]"', '"Process Group Ranks": "0, 1"', True), "must have a list for"),
    (traced(REDUCED, '"rank": 0', '"rank": -1', True), "for rank of distributedInfo, got '-1'"),
    (traced(REDUCED, '"world_size": 2', '"world_size": 0', True), "for world_size of distributedInfo, got '0'"),
    (traced(REDUCED, '"pg_config": [', '"pg_config": [5, ', True), "must list groups, each with pg_name and ranks"),
    (
        traced(REDUCED, '"distributedInfo": {', '"distributedInfo": 5, "b": {', True),
        "object for distributedInfo",
        "'5'",
    ),
    (traced(SENT, '"Dst Rank": 1', '"Dst Rank": 2', True), "the other end of its message in its group, (0, 1), got 2"),
    (traced(SENT, ', "Dst Rank": 1', "", True), "event 2", "must have the rank of the other end of its message"),
    (param_set([], []), "must be a file of tasks, or a folder of one set: of Chakra, PREFIX.RANK.et, or of PARAM"),
    (text("x.txt", "hello"), "must be a file of tasks in one of the formats Chakra, "),
    (text("w.txt", "[[1, 2], [3, 4]]"), "but a matrix of weights"),
    (text("a.goal", TWO, ranks=3), "ranks cannot be given for", "(GOAL); it leaves out: nothing"),
    (own(tasks=3), "must hold a list of tasks"),
    (own(version=2), "must have format"),
    (own(groups=[0]), "list of ranks for each of groups"),
    (own(groups=[[5]]), "a.json': group 0 must hold ranks in 0..1"),
    (own(tasks=[{}]), "task 0 of", "must have one of marker, compute"),
    (own(tasks=[{"kind": "send", "rank": 0}]), "a.json': peer of task 0"),
    (one(colour=1), "task 0 of", "must have only the fields"),
    (one(seconds="1"), "task 0 of", "for seconds, got '1'"),
    (one(after=[1]), "from 0 to 0 for after, got '1'"),
    (one(name=1), "text for name, got '1'"),
    (one(bytes=10**400), "bytes is a whole number beyond 1e308"),
    (
        goal("9b to 1 tag 4", "9b to 1 tag 5"),
        "line 14 of",
        "receives on rank 1, but no send has",
        "; 1 of 3 receives has no send",
    ),
    (goal("l2 requires l1", "l2 requires l9"), "line 6 of", "names 'l9', which rank 0 has not defined yet."),
    (goal("9b to 1", "9b to 2"), "whole number from 0 to 1 for to, got '2'"),
    (goal("l4: calc", "l2: calc"), "line 9 of", "defines 'l2' a second time"),
    (goal("calc 7", "wait 7"), "line 9 of", "must be a statement of GOAL, got 'l4: wait 7'."),
    (goal("c requires b\n}", "c requires b"), "ends rank 1 without"),
    (goal("l2 requires l1", "l2 requires l1\nl1 requires l2"), "after must have no cycle, but 2"),
    (goal("9b to 1 tag 4", "9b to 1 tag 4 tag 5"), "tag, cpu and nic at most once, got 'tag 4 tag 5'."),
    (htsim("Triggers 3", "Triggers 4"), "must have 4 rows of triggers, the number it declares, got 3"),
    (htsim("Nodes 4\n", ""), "line 3 of"),
    (htsim("trigger 3 size", "trigger 4 size"), "line 9 of", "names trigger 4, which no row declares"),
    (htsim("count 2", "count 3"), "line 11 of", "barrier with too few firings: 3 needed, got 2"),
    (htsim("recv_done_trigger 3", ""), "line 12 of", "multishot with too few firings: 1 needed, got 0"),
    (htsim("id 5 trigger 3", "trigger 3"), "line 9 of", "must have an id"),
    (htsim("id 5 trigger", "id 5 start 0 trigger"), "line 9 of", "either start or trigger"),
    (htsim("size 500", "size 1 colour 2"), "line 9 of", "pairs NAME NUMBER with the names start"),
    (htsim("trigger id 3 multishot", "trigger id 3 sometimes"), "line 12 of", "must be trigger id K"),
    (htsim("trigger id 3", "trigger id 2"), "line 12 of", "declares trigger 2 a second time"),
    (htsim("1->2", "1>2"), "line 5 of", "must be a row of a connection matrix, got '1>2"),
    (simai(HEAD.split()[0], "HYBRID_DLRM"), "line 1 of", "must have a policy of", "got 'HYBRID_DLRM'"),
    (simai("ga: 1", "colour: 1"), "line 1 of", "got 'colour'"),
    (simai("all_gpus: 16", "all_gpus: 18"), "a multiple of pp x tp x ep for all_gpus, got 18"),
    (simai("\n2\n", "\n3\n"), "line 2 of", "declares 3 rows, got 2"),
    (simai("ALLTOALL_EP", "ALLREDUCEALLTOALL"), "line 4 of", "got 'ALLREDUCEALLTOALL'"),
    (simai("128 2", "128"), "line 4 of", "must have 12 fields, got 11"),
    (simai(" all_gpus: 16", " all_gpus: 16 checkpoints: 1 2"), "for a checkpoint, got '2'"),
    (simai(" all_gpus: 16", " checkpoints: 3 0"), "declares 3 numbers of checkpoints, got 1"),
    (simai("", "", ranks=3), "needs ranks to be a multiple of tp x ep (4), at most the 8 ranks of a stage, got 3."),
    (simai(" all_gpus: 16", "", ranks=3), "needs ranks to be a multiple of tp x ep (4), got 3."),
    (chakra(node(1, 8, x=1)), "node 1 of", "must have a type from 0 to 7, got 8"),
    (chakra(node(1, COMP, x=1), node(1, COMP)), "node 1 of", "has the id of another node"),
    (chakra(node(1, SEND, comm_size=8)), "node 1 of", "must have comm_dst and comm_size"),
    (chakra(node(1, SEND, comm_dst=2, comm_size=8)), "from 0 to 1 for comm_dst, got '2'"),
    (chakra(node(1, SEND, comm_dst=1, comm_size=8, comm_src=1)), "must have its own rank, 0, for comm_src, got 1"),
    (
        chakra(node(1, RECV, comm_src=1, comm_size=8)),
        "node 1 of",
        "receives a message from rank 1, which does not send it",
    ),
    (
        chakra(node(1, COLL, comm_type=7, comm_size=8)),
        "equally many collectives on all its ranks, got 1 on rank 0 and 0",
    ),
    (chakra(node(1, COLL, comm_type=10, comm_size=8)), "comm_type from 0 to 9, got 10"),
    (chakra(node(1, COLL)), "must have nodes with attributes"),
    (text("trace.0.json", json.dumps({"workload_graph": [{"Id": 1, "NodeType": 9}]})), "NodeType from 0 to 7"),
    (text("trace.0.json", json.dumps({"workload_graph": [3]})), "an object"),
    (flexflow(topoopt(1, 7)), "task 0 (counted from 0)", "type from 0 to 6, got 7"),
    (flexflow(topoopt(1, 0, 5)), "runs on device 5, which is not in the file"),
    (flexflow(topoopt(1, 5, 90)), "must have a connection of two nodes for its device, got 90"),
    (flexflow(topoopt(1, 6, 0, size=4, follows=[4])), "for its nodes, got '4'"),
    (flexflow(topoopt(1, 6, 0, size=4, follows=[1, 1])), "must have nodes, each once"),
    (flexflow(topoopt(1, 0, 90, follows=[7])), "is followed by task 7, which is not in the file"),
    (flexflow(topoopt(1, 0, 90, float("nan"))), "for runtime, got 'nan'"),
]
