"""Read FlexFlow's task graphs, `.fbuf`, as TopoOpt and MixNet write them: a flatbuffer without an identifier.

A computation runs on its GPU, one at a time, for its `runtime` [ms]. A NOMINAL_COMM sends between two nodes, whose
numbers are in its device. An ALLREDUCE lists its nodes in `to_node_ids` (MixNet) or instead of the tasks that follow it
(TopoOpt). Estimated runtimes of communication are not used. MixNet's ALLTOALL sends `xfersize` between ranks at the
same position of the tensor-parallel groups; its simulator weights these bytes by a matrix that the file lacks.

Slots and types of TopoOpt are those of its published graphs. Those of MixNet follow its writer
(Graph::get_taskgraph_flatbuf) and its simulator's FFTaskType; they are untested, since no file is published. Sources:
github.com/hipersys-team/TopoOpt, the packet simulator released with arXiv 2501.03905.
"""

import math
import struct
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from flatbuffers import encode, packer
from flatbuffers.table import Table

from mfabric_jax import units
from mfabric_jax.apps.graphs.tasks.formats import files
from mfabric_jax.apps.graphs.tasks.formats.files import Reading, Spot, Supplied
from mfabric_jax.apps.graphs.tasks.graph import Op, TaskKind, Tasks
from mfabric_jax.checks import COUNTS, InputError
from mfabric_jax.support.text_files import value_in

# -- tables of a flatbuffer by slot number, without code generated from a schema; everything is checked

BROKEN = (struct.error, IndexError, ValueError, OverflowError, TypeError, EOFError)  # errors from damaged bytes


class FlatTable(NamedTuple):
    """A table over the flatbuffers library's `inner`; methods raise one of `BROKEN` for damaged bytes."""

    inner: Any

    @property
    def slots(self) -> int:
        table = self.inner.Pos - encode.Get(packer.soffset, self.inner.Bytes, self.inner.Pos)
        if table < 0:
            raise EOFError
        return (encode.Get(packer.voffset, self.inner.Bytes, table) - 4) // 2

    def number(self, slot: int, kind: str) -> Any:
        """Return a number of a NumPy type such as "i2", "u4", "u8" or "f4"; 0 if the slot is empty."""
        offset = self._at(slot)
        if not offset:
            return 0
        size = np.dtype(kind).itemsize
        return np.frombuffer(self._bytes(self.inner.Pos + offset, size), np.dtype(kind).newbyteorder("<"))[0].item()

    def numbers(self, slot: int, kind: str) -> list:
        start, count = self._vector(slot)
        size = np.dtype(kind).itemsize
        return np.frombuffer(self._bytes(start, count * size), np.dtype(kind).newbyteorder("<")).tolist()

    def text(self, slot: int) -> str:
        start, count = self._vector(slot)
        return bytes(self._bytes(start, count)).decode("utf-8", "replace")

    def tables(self, slot: int) -> list["FlatTable"]:
        start, count = self._vector(slot)
        offsets = np.frombuffer(self._bytes(start, 4 * count), "<u4").tolist()
        return [FlatTable(Table(self.inner.Bytes, start + 4 * order + to)) for order, to in enumerate(offsets)]

    def _at(self, slot: int) -> int:
        return self.inner.Offset(4 + 2 * slot)

    def _vector(self, slot: int) -> tuple[int, int]:
        offset = self._at(slot)
        return (self.inner.Vector(offset), self.inner.VectorLen(offset)) if offset else (0, 0)

    def _bytes(self, start: int, size: int) -> memoryview:
        if start < 0 or start + size > len(self.inner.Bytes):
            raise EOFError
        return memoryview(self.inner.Bytes)[start : start + size]


def root(data: bytes) -> FlatTable:
    return FlatTable(Table(bytearray(data), encode.Get(packer.uoffset, data, 0)))


# -- the graph of a FlexFlow file's tasks


class FlexType(IntEnum):
    FORWARD = 0
    BACKWARD = 1
    COMM = 2
    UPDATE = 3
    BARRIER = 4
    NOMINAL_COMM = 5
    P2P = 6
    SUB_ALLREDUCE = 7
    DP_ALLREDUCE = 8
    TP_ALLREDUCE = 9
    ALLREDUCE = 10
    REDUCESCATTER = 11
    ALLGATHER = 12
    ALLTOALL = 13


OPS = dict.fromkeys(range(FlexType.SUB_ALLREDUCE, FlexType.ALLREDUCE + 1), Op.ALL_REDUCE)
OPS |= {FlexType.REDUCESCATTER: Op.REDUCE_SCATTER, FlexType.ALLGATHER: Op.ALL_GATHER, FlexType.ALLTOALL: Op.ALL_TO_ALL}
NETWORK = (13, 14)  # types of devices: a connection of two nodes, physical or nominal
GPU = 0
WEIGHT_ROW = 32768  # sum of a row of MixNet's matrix


class FlexDevice(NamedTuple):
    """A device of a file. `property`: the number of a GPU; for a connection, one number for both nodes."""

    kind: int
    node: int
    property: int


class FlexTask(NamedTuple):
    """A task of a file. `follows`: ids of tasks that wait for it; `sources`, `targets`: nodes of its messages."""

    spot: Spot
    kind: FlexType
    device: int
    seconds: float
    size: int
    follows: list[int]
    sources: list[int]
    targets: list[int]
    name: str = ""
    info: str = ""


class FlexSystem(NamedTuple):
    """The system of a file.

    - `ends`: number of nodes and switches. A connection's number holds its two nodes as digits in this base.
    - `tp`: the tensor-parallel degree. `step`: ranks per number in a collective (TopoOpt numbers nodes, MixNet GPUs).
    - `weights`: of all-to-alls; None: all equal.
    """

    gpus: int
    ends: int
    ranks: int
    tp: int
    step: int
    devices: dict[int, FlexDevice]
    weights: list[list[int]] | None = None


class _Built(NamedTuple):
    tasks: Tasks
    groups: dict[tuple[int, ...], int]
    begin: dict[int, list[int]]
    end: dict[int, list[int]]


def tasks_of(flex_tasks: dict[int, FlexTask], system: FlexSystem) -> Tasks:
    """Return the tasks of a file. A collective becomes a MARKER without a rank, and after it a task of each member."""
    built = _Built(Tasks(system.ranks), {}, {}, {})
    for key, task in flex_tasks.items():
        _BUILD[task.kind](key, task, system, built)
    for key, task in flex_tasks.items():
        for other in task.follows:
            if other not in flex_tasks:
                task.spot.refuse(f"is followed by task {other}, which is not in the file")
            for begin in built.begin[other]:
                built.tasks.wait(begin, built.end[key])
    built.tasks.groups = tuple(built.groups)
    return built.tasks


def _compute(key: int, task: FlexTask, system: FlexSystem, built: _Built) -> None:
    device = system.devices.get(task.device)
    if device is None:
        task.spot.refuse(f"runs on device {task.device}, which is not in the file")
    if device.kind in NETWORK:
        _send(key, task, system, built)
        return
    rank = device.property if device.kind == GPU else device.node * system.gpus
    rank = task.spot.rank("its device", rank, system.ranks)
    lane = 0 if device.kind == GPU else 1 + device.kind
    number = built.tasks.add(TaskKind.COMPUTE, rank, task.name, lane=lane, seconds=task.seconds)
    built.begin[key] = built.end[key] = [number]


def _send(key: int, task: FlexTask, system: FlexSystem, built: _Built) -> None:
    device = system.devices.get(task.device)
    if device is None or device.kind not in NETWORK:
        task.spot.refuse(f"must have a connection of two nodes for its device, got {task.device}")
    nodes = system.ranks // system.gpus
    source, target = (task.spot.rank("its nodes", end, nodes) for end in divmod(device.property, system.ends))
    _messages(key, task, [(source * system.gpus, target * system.gpus, task.size)], built)


def _point_to_point(key: int, task: FlexTask, system: FlexSystem, built: _Built) -> None:
    if len(task.sources) != len(task.targets):
        task.spot.refuse(f"must have a target for every source, got {len(task.targets)} for {len(task.sources)}")
    sources, targets = _ranks(task, task.sources, system), _ranks(task, task.targets, system)
    _messages(key, task, [(*ends, task.size) for ends in zip(sources, targets, strict=True)], built)


def _messages(key: int, task: FlexTask, pairs: list[tuple[int, int, int]], built: _Built) -> None:
    built.begin[key] = built.end[key] = [
        built.tasks.add(TaskKind.SEND, source, task.name, peer=target, bytes=size)
        if source != target
        else built.tasks.add(TaskKind.MARKER, source, task.name)
        for source, target, size in pairs
    ] or [built.tasks.add(TaskKind.MARKER, -1, task.name)]


def _barrier(key: int, task: FlexTask, system: FlexSystem, built: _Built) -> None:
    built.begin[key] = built.end[key] = [built.tasks.add(TaskKind.MARKER, -1, task.name)]


def _reduce(key: int, task: FlexTask, system: FlexSystem, built: _Built) -> None:
    _collective(key, task, [_ranks(task, task.targets, system)], task.size, built)


def _all_to_all(key: int, task: FlexTask, system: FlexSystem, built: _Built) -> None:
    """Add an all-to-all among ranks at one position of their tensor-parallel groups, even or by MixNet's weights.

    With weights W of `ep` ranks, s sends ceil(xfersize ep W[s][d] / 32768) bytes to d. Where tokens return (AGGREGATE
    forward, GROUP_BY backward), W[d][s] replaces W[s][d]. Deviation: MixNet's simulator takes indices modulo 8 for any
    `ep`.
    """
    ranks, tp, weights = _ranks(task, task.targets, system), system.tp, system.weights
    if task.sources != task.targets or len(ranks) % tp:
        task.spot.refuse("must have equal sources and targets, whose number the tensor-parallel degree divides")
    parts = [ranks[tp_rank::tp] for tp_rank in range(tp)]
    if weights is None:
        _collective(key, task, parts, task.size * len(parts[0]), built)
        return
    ep, backward = len(weights), "backward" in task.info.lower()
    if len(parts[0]) != ep:
        ranks_of_part, rows = files.count_phrase(len(parts[0]), "rank"), files.count_phrase(ep, "row")
        task.spot.refuse(f"is an all-to-all of {ranks_of_part}, but weights has {rows}")
    goes = ("AGGREGATE" in task.info.upper()) == backward
    pairs = []
    for part in parts:
        for source in part:
            for target in part:
                ends = source // tp % ep, target // tp % ep
                weight = weights[ends[0]][ends[1]] if goes else weights[ends[1]][ends[0]]
                pairs += [(source, target, math.ceil(task.size * ep * weight / WEIGHT_ROW))] * (source != target)
    first, last = (built.tasks.add(TaskKind.MARKER, -1, task.name) for _ in range(2))
    _messages(key, task, pairs, built)
    for send in built.begin[key]:
        built.tasks.wait(send, first)
    built.tasks.wait(last, built.end[key])
    built.begin[key], built.end[key] = [first], [last]


def _ranks(task: FlexTask, nodes: list[int], system: FlexSystem) -> list[int]:
    return [task.spot.rank("its nodes", node * system.step, system.ranks) for node in nodes]


def _collective(key: int, task: FlexTask, parts: list[list[int]], size: int, built: _Built) -> None:
    marker = built.tasks.add(TaskKind.MARKER, -1, task.name)
    built.begin[key], built.end[key] = [marker], []
    for part in map(tuple, parts):
        if not part or len(set(part)) < len(part):
            task.spot.refuse(f"must have nodes, each once, got {list(part)[:8]}")
        group, match = built.groups.setdefault(part, len(built.groups)), len(built.tasks.column("kind"))
        values = {"op": OPS[task.kind], "bytes": size, "group": group, "match": match}
        built.end[key] += [built.tasks.add(TaskKind.COLLECTIVE, rank, task.name, marker, **values) for rank in part]


_BUILD: dict[FlexType, Callable[[int, FlexTask, FlexSystem, _Built], None]] = dict.fromkeys(FlexType, _reduce)
_BUILD |= dict.fromkeys((FlexType.FORWARD, FlexType.BACKWARD, FlexType.COMM, FlexType.UPDATE), _compute)
_BUILD |= {FlexType.NOMINAL_COMM: _send, FlexType.P2P: _point_to_point, FlexType.BARRIER: _barrier}
_BUILD |= {FlexType.ALLTOALL: _all_to_all}


GPUS, NODES, SWITCHES, TASKS, DEVICES = 0, 1, 2, 8, 9  # slots of the graph
DEGREES = 4  # last slots of MixNet's graph: dp, tp, pp, ep
TOPOOPT_SLOTS = 6  # slots of a task; MixNet's tasks have more
TOPOOPT_ALLREDUCE = 6


def read(path: Path, supplied: Supplied) -> Reading:
    data, flex_tasks = files.read_unpacked(path), {}
    try:
        table = root(data)
        listed = table.tables(TASKS)
        mixnet = any(entry.slots > TOPOOPT_SLOTS for entry in listed)
        devices = {entry.number(1, "u8"): _device(entry) for entry in table.tables(DEVICES)}
        for order, entry in enumerate(listed):
            spot, key = Spot(f"task {order} (counted from 0) of {str(path)!r}"), entry.number(1, "u8")
            if key in flex_tasks:
                spot.refuse("has the id of another task")
            flex_tasks[key] = _of_mixnet(entry, spot) if mixnet else _of_topoopt(entry, spot)
        gpus, nodes, switches = (table.number(slot, "u4") for slot in (GPUS, NODES, SWITCHES))
        tp = table.number(table.slots - DEGREES + 1, "u4") if mixnet else 1
    except InputError:
        raise
    except BROKEN as error:
        raise InputError(f"{str(path)!r} is cut off or not a FlexFlow task graph.") from error
    whole = Spot(repr(str(path)))
    if not flex_tasks:
        whole.refuse("must be a FlexFlow task graph with tasks, got none")
    gpus, nodes = whole.whole("ngpupernode", gpus, 1, 2**12), whole.whole("nnode", nodes, 1, COUNTS["servers"])
    files.few_enough(path, sum(1 + len(task.targets) * max(len(task.sources), 1) for task in flex_tasks.values()))
    weights = None if supplied.weights is None else _weights(Path(supplied.weights))
    system = FlexSystem(gpus, nodes + switches, nodes * gpus, max(tp, 1), 1 if mixnet else gpus, devices, weights)
    return _read(flex_tasks, system, mixnet)


def _read(flex_tasks: dict[int, FlexTask], system: FlexSystem, mixnet: bool) -> Reading:
    tasks = tasks_of(flex_tasks, system)
    remarks = ("estimated runtimes of messages and collectives are not used.",)
    if mixnet:
        used = [rank for task in flex_tasks.values() for rank in (*task.sources, *task.targets)]
        tasks.ranks = min(system.ranks, 1 + max([*used, *tasks.column("rank"), *tasks.column("peer")]))
        if system.weights is None and any(task.kind == FlexType.ALLTOALL for task in flex_tasks.values()):
            remarks += ("all pairs of an all-to-all have equal bytes, since weights, MixNet's matrix, is not given.",)
    return Reading(tasks.graph(), "FlexFlow task graph", remarks)


def _device(entry: FlatTable) -> FlexDevice:
    return FlexDevice(entry.number(0, "i2"), entry.number(2, "u8"), entry.number(3, "u8"))


def _of_topoopt(entry: FlatTable, spot: Spot) -> FlexTask:
    kind, listed = entry.number(0, "i2"), entry.numbers(5, "u8")
    if not 0 <= kind <= TOPOOPT_ALLREDUCE:
        spot.refuse(f"must have a type from 0 to {TOPOOPT_ALLREDUCE}, got {kind}")
    if kind == TOPOOPT_ALLREDUCE:
        return _task(entry, spot, FlexType.ALLREDUCE)._replace(targets=listed)
    return _task(entry, spot, FlexType(kind))._replace(follows=listed)


def _of_mixnet(entry: FlatTable, spot: Spot) -> FlexTask:
    kind, info = entry.number(0, "i2"), entry.text(10)
    if not 0 <= kind <= max(FlexType):
        spot.refuse(f"must have a type from 0 to {max(FlexType)}, got {kind}")
    if kind == FlexType.ALLTOALL and not ("GROUP_BY" in info.upper() or "AGGREGATE" in info.upper()):
        spot.refuse(f"must have GROUP_BY or AGGREGATE in its info, as MixNet's all-to-alls do, got {info[:40]!r}")
    follows, sources, targets = (entry.numbers(slot, "u8") for slot in (6, 7, 8))
    task = _task(entry, spot, FlexType(kind), entry.text(9) or info)
    return task._replace(follows=follows, sources=sources, targets=targets, info=info)


def _task(entry: FlatTable, spot: Spot, kind: FlexType, name: str = "") -> FlexTask:
    runtime, size = spot.number("runtime", entry.number(3, "f4")), spot.whole("xfersize", entry.number(4, "u8"))
    return FlexTask(spot, kind, entry.number(2, "u8"), units.ms(runtime), size, [], [], [], name or kind.name)


def _weights(path: Path) -> list[list[int]]:
    spot, matrix = Spot(repr(str(path))), value_in(files.read_unpacked(path), repr(str(path)), "weights")
    rows = matrix if isinstance(matrix, list) else []
    if not rows or not all(isinstance(row, list) and len(row) == len(rows) for row in rows):
        spot.refuse("must be one nested list with equally many rows and columns")
    return [
        [spot.whole("weights", weight if isinstance(weight, int) else str(weight)) for weight in row] for row in rows
    ]
