"""Read Chakra execution traces, `PREFIX.{rank}.et`, and the JSON of its feeder and jsonizer: a whole set, or one file.

Nodes mean the same as in ASTRA-sim: both kinds of dependencies count, durations are in microseconds, and `comm_size` of
an all-gather is a rank's own part. Of an NPU's ready nodes, one CPU operation, one GPU computation, one send or
collective and one memory access run at a time; receives run at any time.

Differences: a duration of 0 takes no time (1 ns in ASTRA-sim). A broadcast is simulated (ASTRA-sim uses its recorded
time). A node's wait for itself, for a missing node or in a cycle is dropped (ASTRA-sim never runs such nodes). Sources:
Workload.cc, HardwareResource.cc, feeder_v3 of github.com/astra-sim/astra-sim; src/feeder/JSONNode.cpp of
github.com/mlcommons/chakra.

A file, gzipped or not, is a GlobalMetadata and then Nodes, each preceded by its length as a varint. Field numbers are
those of schema/protobuf/et_def.proto of github.com/mlcommons/chakra, the same in 0.0.4 (May 2024) and 1.0.0 (May
2026). The jsonizer (src/jsonizer there) writes the same messages as JSON objects.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from enum import IntEnum
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mfabric_jax import units
from mfabric_jax.apps.graphs.tasks.collectives.registry import ROOTED
from mfabric_jax.apps.graphs.tasks.formats import files
from mfabric_jax.apps.graphs.tasks.formats.files import CollectiveOrder, Messages, Reading, Spot, Supplied
from mfabric_jax.apps.graphs.tasks.graph import Op, TaskGraph, TaskKind, Tasks, number_labels
from mfabric_jax.checks import COUNTS, InputError
from mfabric_jax.flows.dependencies import cycle_of
from mfabric_jax.support.extras import load_extra
from mfabric_jax.support.text_files import mapping_in, parse_json
from mfabric_jax.support.unread import name_unread, say_unread


def messages_module() -> Any:
    """Return the module `chakra_messages`. Raise `InputError` if the extra `formats` is missing."""
    return load_extra("formats", "a Chakra trace", "mfabric_jax.apps.graphs.tasks.formats.chakra_messages")


# -- one node, from protobuf or the feeder's JSON, and its waits


def value_of(attribute: Any) -> Any:
    kind = attribute.WhichOneof("value")
    if kind is None:
        return None
    value = getattr(attribute, kind)
    return list(value.values) if kind.endswith("_list") else value


class NodeType(IntEnum):
    INVALID = 0
    METADATA = 1
    MEM_LOAD = 2
    MEM_STORE = 3
    COMP = 4
    COMM_SEND = 5
    COMM_RECV = 6
    COMM_COLL = 7


class Node(NamedTuple):
    """A node of a trace. `data`, `control`: ids that it waits for; `inputs`: text with PyTorch's communicators."""

    spot: Spot
    number: int
    name: str
    kind: NodeType
    data: tuple[int, ...]
    control: tuple[int, ...]
    micros: int
    attributes: dict[str, Any]
    inputs: str = ""

    def whole(self, name: str) -> int | None:
        """Return an attribute of any integer type; None if it is missing."""
        value = self.attributes.get(name)
        return None if value is None else self.spot.whole(name, int(value) if isinstance(value, bool) else value)

    def number_of(self, name: str) -> float | None:
        """Return an attribute of any numeric type; None if it is missing."""
        value = self.attributes.get(name)
        return None if value is None else self.spot.number(name, value)

    @property
    def on_cpu(self) -> bool:
        """Whether the node is a CPU operation; False if the trace does not say."""
        flag = self.attributes.get("is_cpu_op")
        if flag is not None and (not isinstance(flag, bool | int) or flag not in (0, 1)):
            self.spot.refuse(f"must have true or false for is_cpu_op, got {str(flag)[:40]!r}")
        return bool(flag)


READ = ("comm_type", "comm_size", "comm_src", "comm_dst", "comm_tag", "root_rank", "pg_name", "num_ops", "tensor_size")
READ += ("is_cpu_op",)
HARMLESS = re.compile(  # attributes of converters and generators that affect neither bytes nor time
    r"mfabric_.*|inputs|outputs|op_type|op_schema|tid|fw_tid|fw_parent|seq_id|rf_id|scope|cid|stream|correlation"
    r"|kernel_backend|kernel_file|involved_dim|pg_desc|rank|python_.*|ts|cat|ph|pid|external_id|record_.*"
)
SCHEMAS = ("0.0.4", "1.0.0")
OF_METADATA = ("schema", "pid", "time", "start_ts", "finish_ts", "input_file", "collective")  # they change nothing
OF_FEEDER = ("Id", "Name", "NodeType", "runtime", "data_deps", "ctrlDeps")
FEEDER_FIELDS = ("workload_graph", "workload_name", "ngpus", "soc")  # fields of the feeder's file


def name_left_out(path: Path, nodes: Iterable[Node]) -> None:
    """Report the attributes of nodes that are not read but could affect results."""
    read = (node for node in nodes if node.kind != NodeType.METADATA)
    values = [item for node in read for item in node.attributes.items()]
    names = dict.fromkeys(name for name, value in values if name != "comm_priority" or value)
    left = [name for name in names if name not in (*READ, *OF_FEEDER) and not HARMLESS.fullmatch(name)]
    name_unread(repr(str(path)), "attributes of nodes", left)


def check_metadata(path: Path, metadata: Any) -> bool:
    """Return whether ids order the tasks of all ranks. Report an unknown version, and attributes that are not read."""
    fields = {item.name: value_of(item) for item in metadata.attr}
    schema = str(fields.get("schema") or "")
    for version in (metadata.version, schema.partition("chakra.")[2]):
        if version and version not in SCHEMAS:
            say_unread(f"{str(path)!r} states Chakra's schema {version:.40}; it is read as {SCHEMAS[-1]}.")
    left = [name for name in fields if name not in OF_METADATA and not name.startswith(OURS)]
    name_unread(repr(str(path)), "attributes of its GlobalMetadata", left)
    return bool(fields.get(BY_ID))


def of_message(message: Any, path: str) -> Node:
    spot = Spot(f"node {message.id} of {path!r}")
    if not 0 <= message.type < len(NodeType):
        spot.refuse(f"must have a type from 0 to {max(NodeType)}, got {message.type}")
    attributes = {attribute.name: value_of(attribute) for attribute in message.attr}
    waits = (tuple(message.data_deps), tuple(message.ctrl_deps))
    kind, micros = NodeType(message.type), message.duration_micros
    return Node(spot, message.id, message.name, kind, *waits, micros, attributes, message.inputs.values)


def of_json(fields: Any, order: int, path: str) -> Node:
    """Return the node of an object of the feeder's JSON.

    Its fields are Id, Name, NodeType, runtime (us), data_deps, ctrlDeps, and attributes by name.
    """
    spot = Spot(f"node {order} (counted from 0) of {path!r}")
    if not isinstance(fields, dict):
        spot.refuse("must be an object")
    number, kind = (spot.whole(field, fields.get(field, "")) for field in ("Id", "NodeType"))
    spot = Spot(f"node {number} of {path!r}")
    if kind > max(NodeType):
        spot.refuse(f"must have a NodeType from 0 to {max(NodeType)}, got {kind}")
    waits: dict[str, tuple[int, ...]] = {}
    for field in ("data_deps", "ctrlDeps"):
        listed = fields.get(field) or []
        if not isinstance(listed, list):
            spot.refuse(f"must have a list for {field}, got {str(listed)[:40]!r}")
        waits[field] = tuple(spot.whole(field, node_id) for node_id in listed)
    micros = spot.whole("runtime", fields.get("runtime", 0))
    return Node(
        spot, number, str(fields.get("Name", "")), NodeType(kind), waits["data_deps"], waits["ctrlDeps"], micros, fields
    )


def waits_of(nodes: list[Node], dropped: Counter) -> list[tuple[int, int]]:
    """Return the waits of one rank's nodes as pairs (id waited for, id that waits).

    Waits that can never end are dropped and counted in `dropped`. These are waits of a node for itself or for a missing
    node, and control waits in a cycle (PyTorch's recorder derives them from the call stack). If a cycle remains, every
    wait in it for a higher id is dropped, too.
    """
    there = {node.number: order for order, node in enumerate(sorted(nodes, key=lambda node: node.number))}
    data = {(first, node.number) for node in nodes for first in node.data}
    control = {(first, node.number) for node in nodes for first in node.control} - data
    dropped["self"] += sum(first == then for first, then in data | control)
    dropped["missing"] += sum(first not in there for first, _ in data | control)
    pairs = sorted((first, then) for first, then in data | control if first != then and first in there)
    for leaves in (lambda pair: pair in control, lambda pair: pair[0] > pair[1]):
        after = np.array([(there[first], there[then]) for first, then in pairs], np.int64).reshape(-1, 2)
        if not cycle_of(after, len(there)):
            break
        circle = _components(after, len(there))
        inside = [circle[first] == circle[then] for first, then in after.tolist()]
        kept = [pair for pair, both in zip(pairs, inside, strict=True) if not (both and leaves(pair))]
        dropped["cycle"] += len(pairs) - len(kept)
        pairs = kept
    return pairs


def _components(after: np.ndarray, count: int) -> np.ndarray:
    sparse, graphs = (
        load_extra("exact", "a trace with a cycle", f"scipy.{part}") for part in ("sparse", "sparse.csgraph")
    )
    waits = sparse.csr_array((np.ones(len(after), np.int8), after.T), (count, count))
    return graphs.connected_components(waits, connection="strong")[1]


# -- communicators of a set: from the JSON file beside it, or from METADATA nodes of PyTorch's recorder

ALL = ("", "0")  # names of the communicator of all ranks, unless the set defines them
LISTED = re.compile(r"\[\s*\{.*\}\s*\]", re.S)

Groups = dict[str, tuple[int, ...]]


def read_groups(path: Path) -> Groups:
    communicators = mapping_in(files.read_unpacked(path), repr(str(path)), "communicators")
    return {
        name: ranks_of(Spot(f"communicator {name!r} of {str(path)!r}"), ranks) for name, ranks in communicators.items()
    }


def ranks_of(spot: Spot, ranks: object) -> tuple[int, ...]:
    if not isinstance(ranks, list) or len({str(rank) for rank in ranks}) < len(ranks):
        spot.refuse(f"must be a list of ranks, each once, got {str(ranks)[:40]!r}")
    return tuple(spot.rank("ranks", rank if isinstance(rank, int) else str(rank)) for rank in ranks)


def groups_in(nodes: list[Node]) -> Groups:
    groups: Groups = {}
    for node in nodes:
        text = LISTED.search(node.inputs.replace('\\"', '"')) if node.kind == NodeType.METADATA else None
        if text and '"pg_name"' in text[0]:
            try:
                listed = parse_json(text[0])
                groups |= {str(group["pg_name"]): ranks_of(node.spot, group["ranks"]) for group in listed}
            except (ValueError, KeyError, TypeError, RecursionError):
                node.spot.refuse("must list communicators as JSON, each with pg_name and ranks")
    return groups


class Communicators:
    """The communicators of all ranks; `groups`: their members. A name may mean different groups on different ranks."""

    def __init__(self, shared: Groups, of_rank: Mapping[int, Groups], ranks: int):
        self._shared, self._of_rank = shared, of_rank
        self.everyone = tuple(range(ranks))
        self.groups: list[tuple[int, ...]] = []
        self._number: dict[tuple[str, tuple[int, ...]], int] = {}
        self._found: dict[tuple[int, str], int] = {}
        for name, members in shared.items():
            self._number_of(name, members or self.everyone)

    def _number_of(self, name: str, members: tuple[int, ...]) -> int:
        number = self._number.setdefault((name, members), len(self.groups))
        if number == len(self.groups):
            self.groups.append(members)
        return number

    def of(self, node: Node, rank: int) -> int:
        """Return the number of a node's communicator. Raise `InputError` if it is unknown or `rank` is not a member."""
        name = str(node.attributes.get("pg_name") or "")
        if (rank, name) not in self._found:
            self._found[rank, name] = self._find(node, rank, name)
        return self._found[rank, name]

    def _find(self, node: Node, rank: int, name: str) -> int:
        stated = self._of_rank.get(rank, {}).get(name, self._shared.get(name))
        if stated is None and name not in ALL:
            node.spot.refuse(f"belongs to communicator {name!r}, which neither a JSON file nor a METADATA node defines")
        members = stated or self.everyone
        if rank not in members:
            node.spot.refuse(
                f"belongs to communicator {name!r}, whose ranks {list(members)[:8]} do not include rank {rank}"
            )
        return self._number_of("" if stated is None else name, members)


# -- nodes of all ranks together: match collectives and messages, resolve waits

CPU, GPU, COMM, MEMORY = range(4)  # lanes of each rank, each with one task at a time
OURS = "mfabric_"  # prefix of attributes for values that Chakra's own attributes cannot hold exactly
EXACT = ("seconds", "bytes", "start", "lag")
REDUCE_SCATTER_BLOCK = 8


class PutTogether(NamedTuple):
    graph: TaskGraph
    remarks: tuple[str, ...]


class _Work(NamedTuple):
    tasks: Tasks
    known: Communicators
    supplied: Supplied
    noted: Counter
    messages: Messages
    order: CollectiveOrder
    absent: frozenset[int]


def put_together(
    ranks: list[list[Node]], known: Communicators, supplied: Supplied, by_id: bool = False, absent: Iterable[int] = ()
) -> PutTogether:
    """Return a graph with one task for each node, ordered by rank and id, or by id alone; `absent` ranks have no file.

    In the order of ids, the nth collective of a communicator on one rank matches the nth on its other ranks, and the
    nth send matches the nth receive of the same source, destination and tag. Raise `InputError` for collectives that
    differ or lack members, and for messages without a sender.
    """
    work = _Work(Tasks(len(ranks)), known, supplied, Counter(), Messages(), CollectiveOrder(), frozenset(absent))
    every = [(node.number, rank, node) for rank, nodes in enumerate(ranks) for node in nodes]
    every.sort(key=lambda entry: entry[:2] if by_id else (entry[1], entry[0]))
    files.few_enough("a Chakra trace", len(every))
    task_numbers: dict[tuple[int, int], int] = {}
    for number, rank, node in every:
        if (rank, number) in task_numbers:
            node.spot.refuse("has the id of another node")
        task_numbers[rank, number] = _ADD[node.kind](node, rank, work)
    for nodes, alike in _alike(ranks):
        dropped = Counter()
        waits = waits_of(nodes, dropped)
        for rank in alike:
            work.noted.update(dropped)
            for first, then in waits:
                work.tasks.wait(task_numbers[rank, then], task_numbers[rank, first])
    work.order.check(work.tasks, known.groups, work.absent)
    label: dict[int, tuple] = {**work.order.label, **_match_messages(work, [node for _, _, node in every])}
    tasks = work.tasks
    tasks.column("match")[:] = number_labels([label.get(task) for task in range(len(every))])
    tasks.groups = tuple(known.groups)
    return PutTogether(tasks.graph(), _remarks(work.noted))


def _alike(ranks: list[list[Node]]) -> list[tuple[list[Node], list[int]]]:
    by_identity: dict[int, tuple[list[Node], list[int]]] = {}
    for rank, nodes in enumerate(ranks):
        by_identity.setdefault(id(nodes), (nodes, []))[1].append(rank)
    return [*by_identity.values()]


def _add(work: _Work, node: Node, kind: TaskKind, rank: int, lane: int, **values) -> int:
    for field in EXACT:
        exact = node.number_of(OURS + field)
        if exact is not None:
            values[field] = exact
    own_lane = node.attributes.get(OURS + "lane")
    if own_lane is not None:
        lane = node.spot.whole("lane", own_lane, -1)
    return work.tasks.add(kind, rank, node.name, lane=lane, **values)


def _marker(node: Node, rank: int, work: _Work) -> int:
    return _add(work, node, TaskKind.MARKER, rank, -1)


def _computation(node: Node, rank: int, work: _Work) -> int:
    return _add(work, node, TaskKind.COMPUTE, rank, CPU if node.on_cpu else GPU, seconds=_duration(node, work))


def _memory(node: Node, rank: int, work: _Work) -> int:
    work.noted["memory"] += not node.micros
    return _add(work, node, TaskKind.COMPUTE, rank, MEMORY, seconds=units.us(node.micros))


def _duration(node: Node, work: _Work) -> float:
    operations, supplied = node.number_of("num_ops"), work.supplied
    if node.micros or operations is None:
        return units.us(float(node.micros))
    if not supplied.tflops or not operations:
        work.noted["no duration"] += operations > 0
        return 0.0
    return supplied.computation_s(operations, node.number_of("tensor_size") or 0)


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
    there, size = node.whole(other), node.whole("comm_size")
    if there is None or size is None:
        node.spot.refuse(f"must have {other} and comm_size, without which a message cannot be simulated")
    if node.whole(own) not in (None, rank):
        node.spot.refuse(f"must have its own rank, {rank}, for {own}, got {node.whole(own)}")
    return node.spot.rank(other, there, ranks), size, node.whole("comm_tag") or 0


def _collective(node: Node, rank: int, work: _Work) -> int:
    comm_type, size = node.whole("comm_type"), node.whole("comm_size")
    if comm_type is None or (size is None and comm_type != Op.BARRIER):
        work.noted["no comm_type"] += 1
        seconds = units.us(float(node.micros))
        return _add(work, node, TaskKind.COMPUTE, rank, CPU if node.on_cpu else COMM, seconds=seconds)
    if comm_type not in (*Op, REDUCE_SCATTER_BLOCK):
        node.spot.refuse(f"must have a comm_type from 0 to {max(Op)}, got {comm_type}")
    op = Op.REDUCE_SCATTER if comm_type == REDUCE_SCATTER_BLOCK else Op(comm_type)
    group = work.known.of(node, rank)
    members = work.known.groups[group]
    size = (size or 0) * (len(members) if op == Op.ALL_GATHER else 1)
    root = -1
    if op in ROOTED:
        root = node.whole("root_rank")
        work.noted["no root"] += root not in members
        root = root if root in members else members[0]
    task = _add(work, node, TaskKind.COLLECTIVE, rank, COMM, op=op, bytes=size, group=group, peer=root)
    work.order.add(task, group, rank)
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


def _match_messages(work: _Work, nodes: list[Node]) -> dict[int, tuple]:
    """Return the label of each task that sends or receives a message."""
    label: dict[int, tuple] = {}
    matches = work.messages.match()
    for receive, source in matches.unsent:
        if source not in work.absent:
            nodes[receive].spot.refuse(f"receives a message from rank {source}, which does not send it")
        work.tasks.column("bytes")[receive] = nodes[receive].whole("comm_size")
    for send, receive, _ in matches.pairs:
        label[send] = label[receive] = ("message", send)
    work.noted["no receive"] += matches.unreceived
    return label


REMARKS = {
    "self": ("wait of a node for itself is dropped", "waits of nodes for themselves are dropped"),
    "missing": ("wait for a missing node is dropped", "waits for missing nodes are dropped"),
    "cycle": ("wait in a cycle is dropped", "waits in cycles are dropped"),
    "no comm_type": (
        "collective without comm_type or comm_size takes its recorded time",
        "collectives without comm_type or comm_size take their recorded time",
    ),
    "no duration": (
        "computation has operations and no duration: it takes no time without tflops",
        "computations have operations and no duration: they take no time without tflops",
    ),
    "no root": (
        "collective has no root: its first rank becomes the root",
        "collectives have no root: their first ranks become the roots",
    ),
    "memory": (
        "memory access has no duration: it takes no time",
        "memory accesses have no duration: they take no time",
    ),
    "no receive": ("send has no receive: no task waits for it", "sends have no receive: no task waits for them"),
}


def _remarks(noted: Counter) -> tuple[str, ...]:
    return tuple(f"{files.count_phrase(noted[key], *words)}." for key, words in REMARKS.items() if noted[key])


# -- the files of a set

ONE = re.compile(r"(?P<prefix>.*)\.(?P<rank>\d{1,8})\.(?P<kind>et|json)(\.(gz|xz))?")
BY_ID = "mfabric_ids_over_all_ranks"  # attribute of the GlobalMetadata: ids order the tasks of all ranks
JSONIZED = re.compile(  # the beginning of what the jsonizer writes: a GlobalMetadata
    rb'\s*\{\s*("version"\s*:\s*"[^"]*"\s*,?\s*)?("attr"\s*:\s*\[\s*\{\s*"name"|\}\s*\{\s*"(id|name|type)"\s*:)'
)
EMPTY = "mfabric_empty"  # attribute of a placeholder node: ASTRA-sim stops at a rank without nodes


def tells(head: bytes) -> bool:
    return b'"workload_graph"' in head or bool(JSONIZED.match(head))


def is_set(path: Path) -> bool:
    """Return whether a path that is not a file is PREFIX, PREFIX.et or the folder of a set."""
    return bool(_set_of(path))


def read(path: Path, supplied: Supplied) -> Reading:
    """Return the tasks of all ranks. `path` is a file of the set, its prefix, or its folder.

    Communicators come from `supplied.communicators`, PREFIX.json beside the set, or METADATA nodes. A single file is
    copied to all ranks: `supplied.ranks` of them, or those that its communicators name. For a set of several files,
    `supplied.ranks` is the number of ranks of the job; ranks without a file are then absent.
    """
    files_by_rank = _set_of(path)
    if not files_by_rank:
        raise InputError(f"{str(path)!r} must be a Chakra trace PREFIX.RANK.et, its PREFIX, or a folder of one set.")
    ordered = [files_by_rank[rank] for rank in sorted(files_by_rank)]
    traces, by_id = zip(*map(_nodes, ordered), strict=True)
    name_match = ONE.fullmatch(ordered[0].name)
    prefix = name_match["prefix"] if name_match else files.plain_name(ordered[0]).removesuffix(".et")
    beside = Path(supplied.communicators) if supplied.communicators else ordered[0].with_name(f"{prefix}.json")
    shared = read_groups(beside) if supplied.communicators or beside.is_file() else {}
    if len(traces) == 1:
        reading = _read_single(ordered[0], traces[0], shared | groups_in(traces[0]), supplied)
    else:
        pattern, by_rank = (
            ordered[0].with_name(f"{prefix}.RANK.et"),
            dict(zip(sorted(files_by_rank), traces, strict=True)),
        )
        reading = _read_set(pattern, by_rank, shared, supplied, all(by_id))
    for file, nodes in zip(ordered, traces, strict=True):
        name_left_out(file, nodes)
    return reading


def _set_of(path: Path) -> dict[int, Path]:
    whole = ONE.fullmatch(path.name) if path.is_file() else None
    folder = path if path.is_dir() else path.parent
    prefix = whole["prefix"] if whole else path.name.removesuffix(".et")
    if path.is_file() and not whole:
        return {0: path}
    sets: dict[tuple[str, str], dict[int, Path]] = {}
    for file in sorted(folder.iterdir()) if folder.is_dir() else ():
        if name_match := ONE.fullmatch(file.name):
            sets.setdefault((name_match["prefix"], name_match["kind"]), {}).setdefault(int(name_match["rank"]), file)
    if path.is_dir():
        sets = {key: ranks for key, ranks in sets.items() if key[1] == "et"}
        return next(iter(sets.values())) if len(sets) == 1 else {}
    return sets.get((prefix, whole["kind"] if whole else "et"), {})


def _nodes(path: Path) -> tuple[list[Node], bool]:
    """Return the nodes of a file, and whether ids order the tasks of all ranks."""
    data = files.read_unpacked(path) if ".json" in path.suffixes else b""
    if data and not JSONIZED.match(data):
        return _of_feeder(path, data), False
    types = [f"{kind.name}_NODE" for kind in NodeType]
    read = messages_module()
    metadata, messages = read.read_json_stream(path, data, types) if data else read.read_stream(path)
    nodes = [of_message(item, str(path)) for item in messages]
    if not any(node.attributes for node in nodes) and any(node.kind >= NodeType.COMM_SEND for node in nodes):
        raise InputError(f"{str(path)!r} must have nodes with attributes, got none: its schema is too old.")
    by_id = check_metadata(path, metadata)
    return [node for node in nodes if EMPTY not in node.attributes], by_id


def _of_feeder(path: Path, data: bytes) -> list[Node]:
    fields = mapping_in(data, repr(str(path)), "tasks")
    rows = fields.get("workload_graph")
    if not isinstance(rows, list):
        raise InputError(f"{str(path)!r} must have a list of Chakra nodes, workload_graph.")
    listed = [of_json(item, order, str(path)) for order, item in enumerate(rows)]
    name_unread(repr(str(path)), "fields", [name for name in fields if name not in FEEDER_FIELDS])
    return listed


def _read_set(name: Path, traces: dict[int, list[Node]], shared: Groups, supplied: Supplied, by_id: bool) -> Reading:
    of_rank = {rank: groups_in(nodes) for rank, nodes in traces.items()}
    named = (max(members, default=0) for groups in (shared, *of_rank.values()) for members in groups.values())
    absent = files.absent_ranks(Spot(repr(str(name))), traces, max([*traces, *named]), supplied.ranks)
    ranks = len(absent) + len(traces)
    nodes = [traces.get(rank, []) for rank in range(ranks)]
    graph, remarks = put_together(nodes, Communicators(shared, of_rank, ranks), supplied, by_id, absent)
    some = f"files of {len(traces)} of {ranks} ranks: the others are absent, which absent='assume' allows."
    return Reading(graph, "Chakra", (some, *remarks) if absent else remarks)


def _read_single(path: Path, nodes: list[Node], groups: dict, supplied: Supplied) -> Reading:
    spot = Spot(repr(str(path)))
    named = 1 + max((rank for ranks in groups.values() for rank in ranks), default=0)
    ranks = spot.whole("ranks", supplied.ranks or named, 1, COUNTS["gpus"])
    files.few_enough(path, ranks * len(nodes))
    known = Communicators(groups, {}, ranks)
    for node in nodes:
        if node.kind in (NodeType.COMM_SEND, NodeType.COMM_RECV):
            node.spot.refuse("is a message, which needs a set with a file for every rank, PREFIX.RANK.et")
        if node.kind == NodeType.COMM_COLL and groups and "comm_type" in node.attributes:
            members = len(known.groups[known.of(node, 0)])
            if members != ranks:
                text = f"is a collective of {members} ranks, not of all {ranks} to which its file is copied"
                node.spot.refuse(f"{text}: its set needs a file for every rank")
    graph, remarks = put_together([nodes] * ranks, known, supplied)
    text = "set ranks to copy it to more" if ranks == 1 else "each runs the same tasks"
    return Reading(graph, "Chakra", (f"one file for {files.count_phrase(ranks, 'rank')}: {text}.", *remarks))
