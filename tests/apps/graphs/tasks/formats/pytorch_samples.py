"""Calls of torch.distributed as PyTorch's two recorders write them."""

import json
from typing import NamedTuple

TENSOR_TYPES = {"Float": "float", "Byte": "unsigned char", "BFloat16": "c10::BFloat16", "Long": "long int"}
SIZELESS = ("wait", "barrier", "init")


class Recorded(NamedTuple):
    """A call: elements, splits, group by its name and ranks, the root or other end in the group, and times in us."""

    name: str
    sent: int = 0
    received: int | None = None
    dtype: str = "Float"
    seq: int = 1
    group: str = "0"
    ranks: tuple[int, ...] = (0, 1)
    rank: int = 0
    in_split: tuple[int, ...] = ()
    out_split: tuple[int, ...] = ()
    ts: float = 0.0
    dur: float = 10.0

    @property
    def elements(self):
        return self.sent, self.sent if self.received is None else self.received


def calls_in_turn(rank, ts=()):
    """A call of each kind of 2 ranks at 50 GB/s, which take 2 + 2 + 2 + 2 + 3 + 1 ms, one after the other."""
    million = 10**6
    to, out = ((50, 150), (50, 100)) if rank == 0 else ((100, 0), (150, 0))
    kinds = [
        Recorded("allreduce", 25 * million),
        Recorded("_allgather_base", 25 * million, 50 * million),
        Recorded("_reduce_scatter_base", 50 * million, 25 * million),
        Recorded("broadcast", 50 * million, dtype="BFloat16", rank=1),
        Recorded("all_to_allv", sum(to), sum(out), "Long", in_split=to, out_split=out),
        Recorded("recv" if rank else "send", 50 * million, dtype="Byte", rank=1 - rank),
        Recorded("barrier", dtype="Byte", rank=rank),
    ]
    kinds[4] = kinds[4]._replace(
        **{  # rows of 125,000 elements of 8 bytes: 1 MB each
            "sent": 125_000 * sum(to),
            "received": 125_000 * sum(out),
        }
    )
    starts = ts or [0.0] * len(kinds)
    return [call._replace(seq=order, ts=starts[order]) for order, call in enumerate(kinds)]


def metadata(call, names):
    """Values of a call under the names of a format."""
    values = [call.name, call.dtype, *call.elements, str([*call.in_split]), str([*call.out_split])]
    values += [min(call.ranks), call.ranks[1] - call.ranks[0], len(call.ranks), call.group, "default_pg"]
    return dict(zip(names, values, strict=True))


ET_NAMES = ("collective_name", "dtype", "in_msg_nelems", "out_msg_nelems", "in_split_size", "out_split_size")
ET_NAMES += ("global_rank_start", "global_rank_stride", "pg_size", "pg_name", "pg_desc")
KINETO_NAMES = ("Collective name", "dtype", "In msg nelems", "Out msg nelems", "In split size", "Out split size")
KINETO_NAMES += ("Global rank start", "Global rank stride", "Group size", "Process Group Name")
KINETO_NAMES += ("Process Group Description",)


def tensor(elements):
    return [31, 32, 0, elements, 4, "cuda:0"]


def node_of(number, call, schema="1.1.1-chakra.0.0.4"):
    """A node record_param_comms of an execution trace; before schema 1.1 its inputs have the values."""
    sized = call.name not in SIZELESS
    message = call.name in ("send", "recv")
    lists = [[*call.in_split], [*call.out_split]]
    values = [tensor(call.sent)] * sized + [[call.seq, message], [call.group, "default_pg"], call.rank, call.name]
    values += [*lists, min(call.ranks), call.ranks[1] - call.ranks[0], len(call.ranks)]
    kind = f"Tensor({TENSOR_TYPES[call.dtype]})"
    outputs = [tensor(call.elements[1])] * sized
    attributes = metadata(call, ET_NAMES) if schema >= "1.1" else {}
    return {
        "id": number,
        "name": "record_param_comms",
        "ctrl_deps": 2,
        "inputs": {"values": values, "shapes": [], "types": [kind] * sized, "strides": []},
        "outputs": {"values": outputs, "shapes": [], "types": [kind] * sized, "strides": []},
        "attrs": [{"name": "tid", "type": "uint64", "value": 1}]
        + [{"name": name, "type": "string", "value": value} for name, value in attributes.items()],
    }


def groups_node(*groups):
    """The node that lists groups: (name, ranks, size)."""
    rows = [
        {"pg_name": name, "pg_desc": "", "ranks": [*ranks], "group_size": size, "group_count": len(groups)}
        for name, ranks, size in groups
    ]
    inputs = {"values": [json.dumps(rows)], "shapes": [[]], "types": ["String"]}
    return {"id": 3, "name": "## process_group:init ##", "ctrl_deps": 2, "inputs": inputs, "outputs": {}, "attrs": []}


def execution_trace(calls, groups=(("0", (), 2),), schema="1.1.1-chakra.0.0.4"):
    nodes = [groups_node(*groups)] if groups else []
    nodes.append({"id": 4, "name": "aten::mm", "ctrl_deps": 2})
    nodes += [node_of(10 + order, call, schema) for order, call in enumerate(calls)]
    return {"schema": schema, "pid": 7, "time": "2026-11-30", "start_ts": 1, "nodes": nodes, "finish_ts": 2}


def event_of(call, start=10**9):
    args = metadata(call, KINETO_NAMES) | {"Process Group Ranks": str([*call.ranks]), "Seq": call.seq, "Ev Idx": 3}
    args |= {"Rank": call.rank} if call.name not in ("send", "recv") else {}
    if call.name in ("send", "recv"):
        args["Dst Rank" if call.name == "send" else "Src Rank"] = call.ranks[call.rank]
    times = {"ts": start + call.ts, "dur": call.dur}
    return {"ph": "X", "cat": "cpu_op", "name": "record_param_comms", "pid": 7, "tid": 8, **times, "args": args}


def kineto_trace(rank, calls, ranks=2):
    job = {"backend": "nccl", "rank": rank, "world_size": ranks, "pg_count": 1}
    job["pg_config"] = [{"pg_name": "0", "pg_desc": "default_pg", "pg_size": ranks, "ranks": [*range(ranks)]}]
    kernel = {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 10**9, "dur": 5, "args": {}}
    named = {"ph": "M", "name": "process_name", "pid": 7, "args": {"name": "python"}}
    events = [kernel, named, *(event_of(call) for call in reversed(calls))]  # in no order of times
    return {"schemaVersion": 1, "distributedInfo": job, "record_shapes": 1, "traceEvents": events, "traceName": "t"}
