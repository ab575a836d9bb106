"""Write Chakra execution traces: PREFIX.{rank}.et for every rank, and the communicators in PREFIX.json.

Chakra has whole bytes and whole microseconds. Additional attributes, which other readers ignore, hold what rounding
loses and what Chakra lacks (lag, start, other lanes). So the graph is the same when it is read again. Ids count the
tasks of all ranks; a message's tag is its number.
"""

import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mfabric_jax import units
from mfabric_jax.apps.graphs.tasks.collectives.registry import ROOTED
from mfabric_jax.apps.graphs.tasks.formats.chakra import (
    BY_ID,
    COMM,
    CPU,
    EMPTY,
    EXACT,
    GPU,
    ONE,
    OURS,
    NodeType,
    messages_module,
)
from mfabric_jax.apps.graphs.tasks.formats.files import count_phrase
from mfabric_jax.apps.graphs.tasks.graph import FIELDS, Op, TaskGraph, TaskKind, Tasks, number_labels
from mfabric_jax.checks import InputError
from mfabric_jax.flows.dependencies import run_order
from mfabric_jax.support.atomic import replacing

# -- a graph in which tasks wait only for tasks of their own rank, for formats with a file for every rank

REMARKS = {
    "home": ("marker without a rank is put on a rank", "markers without a rank are put on ranks"),
    "message": (
        "receive is added for a message that another rank waits for",
        "receives are added for messages that other ranks wait for",
    ),
    "empty": (
        "message of no bytes is added for a wait between ranks",
        "messages of no bytes are added for waits between ranks",
    ),
}


class WithinRanks(NamedTuple):
    graph: TaskGraph
    remarks: tuple[str, ...]


def within_ranks(graph: TaskGraph) -> WithinRanks:
    """Make tasks wait only for tasks of their own rank.

    A wait for a task of another rank becomes a message from that rank: the task's own, if it is a SEND without a RECV,
    else a message of no bytes. A MARKER without a rank goes to the rank of the first task it waits for, else to rank 0.
    """
    rank = _homes(graph)
    inside = rank[graph.after[:, 0]] == rank[graph.after[:, 1]]
    noted = Counter(home=int((graph.rank != rank).sum()))
    if inside.all() and not noted["home"]:
        return WithinRanks(graph, ())
    tasks = Tasks(graph.ranks, graph.groups)
    for name in FIELDS:
        if name != "after":
            tasks.column(name).extend(getattr(graph, name).tolist())
    tasks.column("name").extend(graph.name)
    tasks.column("rank")[:] = rank.tolist()
    tasks.after = [(first, then) for first, then in graph.after[inside].tolist()]
    waiting: dict[tuple[int, int], list[int]] = defaultdict(list)
    for first, then in graph.after[~inside].tolist():
        waiting[first, int(rank[then])].append(then)
    for match, ((first, there), others) in enumerate(waiting.items(), start=1 + int(graph.match.max())):
        here, name = int(rank[first]), graph.name[first]
        if graph.kind[first] == TaskKind.SEND and graph.peer[first] == there and graph.match[first] < 0:
            noted["message"] += 1
            tasks.column("match")[first] = match
        else:
            noted["empty"] += 1
            tasks.add(TaskKind.SEND, here, f"{name} ended", first, peer=there, match=match)
        arrived = tasks.add(TaskKind.RECV, there, f"{name} arrived", peer=here, match=match)
        for then in others:
            tasks.wait(then, arrived)
    return WithinRanks(
        tasks.graph(), tuple(f"{count_phrase(noted[key], *words)}." for key, words in REMARKS.items() if noted[key])
    )


def _homes(graph: TaskGraph) -> np.ndarray:
    rank = graph.rank.copy()
    before: dict[int, int] = {}
    for first, then in sorted(graph.after.tolist(), reverse=True):
        before[then] = first
    for task in run_order(graph.after, graph.tasks).tolist():
        if rank[task] < 0:
            rank[task] = rank[before[task]] if task in before else 0
    return rank


VERSION = "0.0.4"
TYPES = {
    TaskKind.MARKER: NodeType.METADATA,
    TaskKind.COMPUTE: NodeType.COMP,
    TaskKind.SEND: NodeType.COMM_SEND,
    TaskKind.RECV: NodeType.COMM_RECV,
    TaskKind.COLLECTIVE: NodeType.COMM_COLL,
}
LANES = {TaskKind.MARKER: -1, TaskKind.COMPUTE: GPU, TaskKind.SEND: COMM, TaskKind.RECV: -1, TaskKind.COLLECTIVE: COMM}
SLOTS = {bool: "bool_val", int: "int64_val", float: "double_val", str: "string_val"}


def write(graph: TaskGraph, path: Path) -> tuple[str, ...]:
    """Write the files of all ranks; `path` is PREFIX.et. Return remarks on additional attributes and added tasks.

    Raise `InputError` for messages without a sender, and for collectives that lack members or whose order differs
    between ranks.
    """
    inside, remarks = within_ranks(graph)
    _check_collectives(inside)
    _check_messages(inside)
    prefix = path.name.removesuffix(".et")
    files = [path.with_name(f"{prefix}.{rank}.et") for rank in range(graph.ranks)]
    beside = sorted(path.parent.glob(f"{prefix}.*.et*")) if path.parent.is_dir() else []
    for file in beside:
        if (name_match := ONE.fullmatch(file.name)) and name_match["prefix"] == prefix and file not in files:
            raise InputError(
                f"{str(file)!r} is of another set; remove it, or write to a name other than {path.name!r}."
            )
    nodes = _nodes(inside)
    metadata = messages_module().messages().GlobalMetadata(version=VERSION)
    metadata.attr.add(name=BY_ID).bool_val = True
    groups = {str(number + 1): list(ranks) for number, ranks in enumerate(graph.groups)}
    with replacing(path.with_name(f"{prefix}.json"), *files) as (listed, *parts):
        listed.write_text(json.dumps(groups) + "\n", encoding="utf-8")
        for rank, part in enumerate(parts):
            part.write_bytes(messages_module().stream_of([metadata, *(nodes[rank] or [_empty()])]))
    return (*remarks, *_ours(inside))


def _empty() -> Any:
    node = messages_module().messages().Node(name="nothing to do", type=NodeType.METADATA)
    node.attr.add(name=EMPTY).bool_val = True
    return node


def _check_collectives(graph: TaskGraph) -> None:
    members = np.array([len(group) for group in graph.groups], np.int64)
    alone = np.flatnonzero(graph.of(TaskKind.COLLECTIVE) & (graph.match < 0))
    alone = alone[members[graph.group[alone]] > 1]
    if alone.size:
        raise InputError(
            f"match of {graph.task_label(alone[0])} must equal the match of its collective's other members to be "
            "written as Chakra, got -1."
        )
    order: dict[int, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for task in np.flatnonzero(graph.of(TaskKind.COLLECTIVE)).tolist():
        order[int(graph.group[task])][int(graph.rank[task])].append(int(graph.match[task]))
    for group, ranks in order.items():
        members = graph.groups[group]
        for rank in members:
            if ranks.get(rank, []) != ranks.get(members[0], []):
                raise InputError(
                    f"ranks {members[0]} and {rank} must have the same collectives of group {group} in the same order "
                    "to be written as Chakra."
                )


def _check_messages(graph: TaskGraph) -> None:
    receive = np.flatnonzero(graph.of(TaskKind.RECV))
    sent = graph.match[graph.of(TaskKind.SEND) & (graph.match >= 0)]
    lost = receive[~np.isin(graph.match[receive], sent)]
    if lost.size:
        raise InputError(
            f"{graph.task_label(lost[0])} must have a task that sends its message to be written as Chakra; no "
            f"SEND has its "
            f"match, {graph.match[lost[0]]}."
        )


def _nodes(graph: TaskGraph) -> list[list[Any]]:
    before: list[list[int]] = [[] for _ in range(graph.tasks)]
    for first, then in graph.after.tolist():
        before[then].append(first)
    columns = {name: getattr(graph, name).tolist() for name in FIELDS if name != "after"}
    match = columns["match"] = number_labels(columns["match"])
    sends = np.flatnonzero(graph.of(TaskKind.SEND)).tolist()
    sent = {match[task]: columns["bytes"][task] for task in sends if match[task] >= 0}
    nodes: list[list[Any]] = [[] for _ in range(graph.ranks)]
    for task, values in enumerate(zip(*columns.values(), strict=True)):
        row = dict(zip(columns, values, strict=True))
        kind, micros = TaskKind(row["kind"]), round(units.to_us(row["seconds"]))
        node = (
            messages_module().messages().Node(id=task, name=graph.name[task], type=TYPES[kind], duration_micros=micros)
        )
        node.data_deps.extend(before[task])
        attributes, read = _CHAKRA[kind](row, graph, task, sent)
        read |= {"seconds": units.us(float(micros))}
        for name, value in (attributes | _exactly(row, read, attributes["is_cpu_op"], kind)).items():
            setattr(node.attr.add(name=name), SLOTS[type(value)], value)
        nodes[row["rank"]].append(node)
    return nodes


def _exactly(row: dict, read: dict, on_cpu: bool, kind: TaskKind) -> dict[str, Any]:
    usual = CPU if on_cpu else LANES[kind]
    ours = {f"{OURS}{name}": row[name] for name in EXACT if row[name] != read.get(name, 0.0)}
    return ours | ({} if row["lane"] == usual else {f"{OURS}lane": row["lane"]})


def _plain(row: dict, graph: TaskGraph, task: int, sent: dict) -> tuple[dict, dict]:
    return {"is_cpu_op": row["kind"] == TaskKind.COMPUTE and row["lane"] == CPU}, {}


def _send(row: dict, graph: TaskGraph, task: int, sent: dict) -> tuple[dict, dict]:
    size, tag = round(row["bytes"]), row["match"] if row["match"] >= 0 else graph.tasks + task
    attributes = {"is_cpu_op": False, "comm_size": size, "comm_tag": tag, "comm_dst": row["peer"]}
    return attributes, {"bytes": float(size)}


def _receive(row: dict, graph: TaskGraph, task: int, sent: dict) -> tuple[dict, dict]:
    tag = row["match"] if row["match"] >= 0 else graph.tasks + task
    size = round(sent.get(tag, 0.0))
    return {"is_cpu_op": False, "comm_size": size, "comm_tag": tag, "comm_src": row["peer"]}, {}


def _collective(row: dict, graph: TaskGraph, task: int, sent: dict) -> tuple[dict, dict]:
    op, group = Op(row["op"]), row["group"]
    parts = len(graph.groups[group]) if op == Op.ALL_GATHER else 1
    size = round(row["bytes"] / parts)
    attributes = {"is_cpu_op": False, "comm_type": int(op), "comm_size": size, "pg_name": str(group + 1)}
    root = {"root_rank": row["peer"]} if op in ROOTED and row["peer"] >= 0 else {}
    return attributes | root, {"bytes": float(size * parts)}


_CHAKRA = dict.fromkeys(TaskKind, _plain)
_CHAKRA |= {TaskKind.SEND: _send, TaskKind.RECV: _receive, TaskKind.COLLECTIVE: _collective}


def _ours(graph: TaskGraph) -> tuple[str, ...]:
    count = int(((graph.start > 0) | (graph.lag > 0)).sum())
    words = ("task has a start or a lag, which", "tasks have a start or a lag, which")
    return (f"{count_phrase(count, *words)} only this package reads.",) if count else ()
