"""Chakra execution traces, `PREFIX.{rank}.et`, and the JSON form of their feeder: a whole set, or a file alone.

What nodes mean is what ASTRA-sim makes of them: both kinds of dependencies count, a duration is in microseconds, of an
all-gather `comm_size` is a rank's own part, and of what is ready on an NPU one CPU operation, one GPU computation, one
send or collective and one memory access run at a time, and receives at any time. Differences: a duration of 0 takes no
time (1 ns there), a broadcast is sent (there it takes its recorded time), and a node that waits for itself, for a node
that is not there, or in a cycle does not (there it never runs). Sources: Workload.cc, HardwareResource.cc, feeder_v3 of
github.com/astra-sim/astra-sim; src/feeder/JSONNode.cpp of github.com/mlcommons/chakra.
"""

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from mfabric_jax import units
from mfabric_jax.checks import COUNTS, InputError
from mfabric_jax.tasks.collectives.registry import ROOTED
from mfabric_jax.tasks.formats import files
from mfabric_jax.tasks.formats.chakra_messages import read_stream, value_of
from mfabric_jax.tasks.formats.chakra_nodes import (
    Communicators,
    Groups,
    Node,
    NodeType,
    groups_in,
    of_json,
    of_message,
    read_groups,
    waits_of,
)
from mfabric_jax.tasks.formats.files import LeftOut, Messages, Reading, Spot
from mfabric_jax.tasks.graph import Op, TaskGraph, TaskKind, Tasks, numbered
from mfabric_jax.text_files import mapping_in

# The nodes of all ranks of a Chakra trace, put together: collectives and messages matched, waits resolved.

CPU, GPU, COMM, MEMORY = range(4)  # lanes: one at a time of each, on each rank
OURS = "mfabric_"  # attributes that hold exactly what Chakra's own cannot
EXACT = ("seconds", "bytes", "start", "lag")
REDUCE_SCATTER_BLOCK = 8


class PutTogether(NamedTuple):
    """The graph, and remarks."""

    graph: TaskGraph
    remarks: tuple[str, ...]


class _Work(NamedTuple):
    """What grows node by node."""

    tasks: Tasks
    known: Communicators
    given: LeftOut
    noted: Counter
    messages: Messages
    place_in_group: Counter
    label: dict[int, tuple]
    absent: frozenset[int]


def put_together(
    ranks: list[list[Node]], known: Communicators, given: LeftOut, by_id: bool = False, absent: Iterable[int] = ()
) -> PutTogether:
    """A task for every node of every rank, by rank and id, or by id alone; ranks that are `absent` have no file.

    The nth collective of a communicator on one rank is the nth on all of its ranks, by id; a message is the nth of its
    source, destination and tag. `InputError` for collectives that differ or lack members, and messages nobody sends.
    """
    work = _Work(Tasks(len(ranks)), known, given, Counter(), Messages(), Counter(), {}, frozenset(absent))
    every = [(node.number, rank, node) for rank, nodes in enumerate(ranks) for node in nodes]
    every.sort(key=lambda one: one[:2] if by_id else (one[1], one[0]))
    files.few_enough("a Chakra trace", len(every))
    place: dict[tuple[int, int], int] = {}
    for number, rank, node in every:
        if (rank, number) in place:
            node.place.refuse("has the id of another node")
        place[rank, number] = _ADD[node.kind](node, rank, work)
    for nodes, alike in _alike(ranks):
        dropped = Counter()
        waits = waits_of(nodes, dropped)
        for rank in alike:
            work.noted.update(dropped)
            for first, then in waits:
                work.tasks.wait(place[rank, then], place[rank, first])
    _match_collectives(work)
    _match_messages(work, [node for _, _, node in every])
    tasks = work.tasks
    tasks.column("match")[:] = numbered([work.label.get(task) for task in range(len(every))])
    tasks.groups = tuple(known.groups)
    return PutTogether(tasks.graph(), _remarks(work.noted))


def _alike(ranks: list[list[Node]]) -> list[tuple[list[Node], list[int]]]:
    """Nodes, and the ranks that have just these: several, where a file was copied."""
    found: dict[int, tuple[list[Node], list[int]]] = {}
    for rank, nodes in enumerate(ranks):
        found.setdefault(id(nodes), (nodes, []))[1].append(rank)
    return [*found.values()]


def _add(work: _Work, node: Node, kind: TaskKind, rank: int, lane: int, **values) -> int:
    """A task, with what only our own attributes say in place of what was rounded."""
    for field in EXACT:
        exact = node.number_of(OURS + field)
        if exact is not None:
            values[field] = exact
    own_lane = node.attributes.get(OURS + "lane")
    if own_lane is not None:
        lane = node.place.whole("lane", own_lane, -1)
    return work.tasks.add(kind, rank, node.name, lane=lane, **values)


def _marker(node: Node, rank: int, work: _Work) -> int:
    return _add(work, node, TaskKind.MARKER, rank, -1)


def _computation(node: Node, rank: int, work: _Work) -> int:
    return _add(work, node, TaskKind.COMPUTE, rank, CPU if node.on_cpu else GPU, seconds=_duration(node, work))


def _memory(node: Node, rank: int, work: _Work) -> int:
    work.noted["memory"] += not node.micros
    return _add(work, node, TaskKind.COMPUTE, rank, MEMORY, seconds=units.us(node.micros))


def _duration(node: Node, work: _Work) -> float:
    """Seconds as recorded, else by the roofline of what is given, else 0."""
    operations, given = node.number_of("num_ops"), work.given
    if node.micros or operations is None:
        return units.us(float(node.micros))
    if not given.tflops:
        work.noted["no duration"] += operations > 0
        return 0.0
    rate = units.tflops(given.tflops)
    moved = node.number_of("tensor_size")
    if given.memory_gigabytes_per_s and moved:
        rate = min(rate, units.gigabytes_per_s(given.memory_gigabytes_per_s) * operations / moved)
    return operations / rate if operations else 0.0


def _send(node: Node, rank: int, work: _Work) -> int:
    there, size, tag = _message(node, rank, "comm_dst", "comm_src", len(work.known.everyone))
    task = _add(work, node, TaskKind.SEND, rank, COMM, peer=there, bytes=size)
    work.messages.send(task, rank, there, tag)
    return task


def _receive(node: Node, rank: int, work: _Work) -> int:
    there, _, tag = _message(node, rank, "comm_src", "comm_dst", len(work.known.everyone))
    task = _add(work, node, TaskKind.RECV, rank, -1, peer=there)
    work.messages.receive(task, there, rank, tag)
    return task


def _message(node: Node, rank: int, other: str, own: str, ranks: int) -> tuple[int, int, int]:
    """The other end, bytes and tag of a message."""
    there, size = node.whole(other), node.whole("comm_size")
    if there is None or size is None:
        node.place.refuse(f"must say {other} and comm_size, without which a message cannot be simulated")
    if node.whole(own) not in (None, rank):
        node.place.refuse(f"must have its own rank, {rank}, for {own}, got {node.whole(own)}")
    return node.place.rank(other, there, ranks), size, node.whole("comm_tag") or 0


def _collective(node: Node, rank: int, work: _Work) -> int:
    said, size = node.whole("comm_type"), node.whole("comm_size")
    if said is None or (size is None and said != Op.BARRIER):
        work.noted["no comm_type"] += 1
        seconds = units.us(float(node.micros))
        return _add(work, node, TaskKind.COMPUTE, rank, CPU if node.on_cpu else COMM, seconds=seconds)
    if said not in (*Op, REDUCE_SCATTER_BLOCK):
        node.place.refuse(f"must have a comm_type from 0 to {max(Op)}, got {said}")
    op = Op.REDUCE_SCATTER if said == REDUCE_SCATTER_BLOCK else Op(said)
    group = work.known.of(node, rank)
    members = work.known.groups[group]
    size = (size or 0) * (len(members) if op == Op.ALL_GATHER else 1)
    root = -1
    if op in ROOTED:
        root = node.whole("root_rank")
        work.noted["no root"] += root not in members
        root = root if root in members else members[0]
    task = _add(work, node, TaskKind.COLLECTIVE, rank, COMM, op=op, bytes=size, group=group, peer=root)
    work.label[task] = (group, work.place_in_group[group, rank])
    work.place_in_group[group, rank] += 1
    return task


_ADD = {
    NodeType.INVALID: _marker,
    NodeType.METADATA: _marker,
    NodeType.MEM_LOAD: _memory,
    NodeType.MEM_STORE: _memory,
    NodeType.COMP: _computation,
    NodeType.COMM_SEND: _send,
    NodeType.COMM_RECV: _receive,
    NodeType.COMM_COLL: _collective,
}


def _match_collectives(work: _Work) -> None:
    """Every member takes part in each collective, with the same operation and size."""
    columns = {name: work.tasks.column(name) for name in ("op", "bytes", "peer", "rank", "name")}
    first: dict[tuple, int] = {}
    for task, label in work.label.items():
        one = first.setdefault(label, task)
        alike = ("op", "peer") if columns["op"][task] == Op.ALL_TO_ALL else ("op", "bytes", "peer")
        if any(columns[name][one] != columns[name][task] for name in alike):
            ranks = sorted(columns["rank"][each] for each in (one, task))
            members = list(work.known.groups[label[0]])[:8]
            raise InputError(
                f"collective {label[1]} of communicator {members} must be the same on all ranks, but "
                f"those of ranks {ranks[0]} and {ranks[1]} differ ({columns['name'][task]!r})."
            )
    for number, members in enumerate(work.known.groups):
        count = {rank: work.place_in_group[number, rank] for rank in members if rank not in work.absent}
        if len(set(count.values())) > 1:
            most, least = (pick(count, key=lambda rank: count[rank]) for pick in (max, min))
            raise InputError(
                f"communicator {list(members)[:8]} must have as many collectives on all its ranks, "
                f"got {count[most]} on rank {most} and {count[least]} on rank {least}."
            )


def _match_messages(work: _Work, nodes: list[Node]) -> None:
    found = work.messages.matched()
    for receive, source in found.unsent:
        if source not in work.absent:
            nodes[receive].place.refuse(f"receives from rank {source}, which does not send it")
        work.tasks.column("bytes")[receive] = nodes[receive].whole("comm_size")
    for send, receive, _ in found.pairs:
        work.label[send] = work.label[receive] = ("message", send)
    work.noted["no receive"] += found.unheard


SAID = {
    "self": ("node that waits for itself does not", "nodes that wait for themselves do not"),
    "missing": ("wait for a node that is not there is left out", "waits for nodes that are not there are left out"),
    "cycle": ("wait in a cycle is left out", "waits in cycles are left out"),
    "no comm_type": (
        "collective without comm_type or comm_size takes its recorded time",
        "collectives without comm_type or comm_size take their recorded time",
    ),
    "no duration": (
        "computation has operations and no duration: it takes no time without tflops",
        "computations have operations and no duration: they take no time without tflops",
    ),
    "no root": ("collective says no root: the first rank", "collectives say no root: the first rank"),
    "memory": (
        "memory access has no duration: it takes no time",
        "memory accesses have no duration: they take no time",
    ),
    "no receive": ("send has no receive: nobody waits for it", "sends have no receive: nobody waits for them"),
}


def _remarks(noted: Counter) -> tuple[str, ...]:
    return tuple(f"{files.so_many(noted[key], *words)}." for key, words in SAID.items() if noted[key])


ONE = re.compile(r"(?P<prefix>.*)\.(?P<rank>\d{1,8})\.(?P<kind>et|json)(\.(gz|xz))?")
BY_ID = "mfabric_ids_over_all_ranks"  # attribute of the GlobalMetadata: ids order the tasks of all ranks
EMPTY = "mfabric_empty"  # attribute of a node that is there because ASTRA-sim stops at a rank without any


def tells(head: bytes) -> bool:
    """Whether JSON begins as the feeder's does."""
    return b'"workload_graph"' in head


def is_set(path: Path) -> bool:
    """Whether a path that is no file is PREFIX, PREFIX.et or the folder of a set."""
    return bool(_set_of(path))


def read(path: Path, given: LeftOut) -> Reading:
    """The tasks of all ranks of the set that `path` is one file, the prefix, or the folder of.

    Communicators are those of `given.communicators`, of PREFIX.json beside the set, or of its METADATA nodes. A file
    that stands alone is copied to `given.ranks` ranks, or to as many as its communicators name; of a set of several
    `given.ranks` says that there are so many, and that some have no file.
    """
    found = _set_of(path)
    if not found:
        raise InputError(f"{str(path)!r} must be a Chakra trace PREFIX.RANK.et, its PREFIX, or a folder of one set.")
    ordered = [found[rank] for rank in sorted(found)]
    traces, by_id = zip(*map(_nodes, ordered), strict=True)
    one = ONE.fullmatch(ordered[0].name)
    prefix = one["prefix"] if one else files.plain_name(ordered[0]).removesuffix(".et")
    beside = Path(given.communicators) if given.communicators else ordered[0].with_name(f"{prefix}.json")
    shared = read_groups(beside) if given.communicators or beside.is_file() else {}
    if len(traces) == 1:
        return _alone(ordered[0], traces[0], shared | groups_in(traces[0]), given)
    pattern, by_rank = ordered[0].with_name(f"{prefix}.RANK.et"), dict(zip(sorted(found), traces, strict=True))
    return _some(pattern, by_rank, shared, given, all(by_id))


def _set_of(path: Path) -> dict[int, Path]:
    """The files of a set by rank: of the one that has this file, this prefix, or is alone in this folder."""
    whole = ONE.fullmatch(path.name) if path.is_file() else None
    folder = path if path.is_dir() else path.parent
    prefix = whole["prefix"] if whole else path.name.removesuffix(".et")
    if path.is_file() and not whole:
        return {0: path}
    sets: dict[tuple[str, str], dict[int, Path]] = {}
    for file in sorted(folder.iterdir()) if folder.is_dir() else ():
        if one := ONE.fullmatch(file.name):
            sets.setdefault((one["prefix"], one["kind"]), {}).setdefault(int(one["rank"]), file)
    if path.is_dir():
        sets = {key: ranks for key, ranks in sets.items() if key[1] == "et"}
        return next(iter(sets.values())) if len(sets) == 1 else {}
    return sets.get((prefix, whole["kind"] if whole else "et"), {})


def _nodes(path: Path) -> tuple[list[Node], bool]:
    """A rank's nodes, and whether their ids order the tasks of all ranks."""
    if ".json" in path.suffixes:
        said = mapping_in(files.unpacked(path), repr(str(path)), "tasks").get("workload_graph")
        if not isinstance(said, list):
            raise InputError(f"{str(path)!r} must hold a list workload_graph of Chakra nodes.")
        return [of_json(one, order, str(path)) for order, one in enumerate(said)], False
    metadata, messages = read_stream(path)
    nodes = [of_message(one, str(path)) for one in messages]
    if not any(node.attributes for node in nodes) and any(node.kind >= NodeType.COMM_SEND for node in nodes):
        raise InputError(f"{str(path)!r} must have attributes, none of its nodes has: it is of an old schema.")
    told = {one.name: value_of(one) for one in metadata.attr}
    return [node for node in nodes if EMPTY not in node.attributes], bool(told.get(BY_ID))


def _some(name: Path, traces: dict[int, list[Node]], shared: Groups, given: LeftOut, by_id: bool) -> Reading:
    """A file for every rank, or for some of `given.ranks`."""
    place, ranks = Spot(repr(str(name))), given.ranks or len(traces)
    place.whole("ranks", ranks, 1, COUNTS["gpus"])
    of_rank = {rank: groups_in(nodes) for rank, nodes in traces.items()}
    beyond = max([*traces, *(max(named, default=0) for one in (shared, *of_rank.values()) for named in one.values())])
    absent = [rank for rank in range(ranks) if rank not in traces]
    if beyond >= ranks or (absent and not given.ranks):
        lost = absent[0] if absent else beyond
        place.refuse(
            f"must have a file for every rank, got {len(traces)} without rank {lost}; without the others it is read "
            f"when ranks says how many there are, {beyond + 1} or more"
        )
    nodes = [traces.get(rank, []) for rank in range(ranks)]
    graph, remarks = put_together(nodes, Communicators(shared, of_rank, ranks), given, by_id, absent)
    some = f"files of {len(traces)} of {ranks} ranks: the others are left out, for absent='assume'."
    return Reading(graph, "Chakra", (some, *remarks) if absent else remarks)


def _alone(path: Path, nodes: list[Node], groups: dict, given: LeftOut) -> Reading:
    """One file for all ranks: each does the same."""
    place = Spot(repr(str(path)))
    named = 1 + max((rank for ranks in groups.values() for rank in ranks), default=0)
    ranks = place.whole("ranks", given.ranks or named, 1, COUNTS["gpus"])
    files.few_enough(path, ranks * len(nodes))
    known = Communicators(groups, {}, ranks)
    for node in nodes:
        if node.kind in (NodeType.COMM_SEND, NodeType.COMM_RECV):
            node.place.refuse("must name its other end, in a set with a file for every rank, PREFIX.RANK.et")
        if node.kind == NodeType.COMM_COLL and groups and "comm_type" in node.attributes:
            members = len(known.groups[known.of(node, 0)])
            if members != ranks:
                said = f"is a collective of {members} ranks, not of all {ranks} that its file is copied to"
                node.place.refuse(f"{said}: its set needs a file for every rank")
    graph, remarks = put_together([nodes] * ranks, known, given)
    said = "ranks copies it to more" if ranks == 1 else "each does the same"
    return Reading(graph, "Chakra", (f"one file for {files.so_many(ranks, 'rank')}: {said}.", *remarks))
