"""A graph of tasks from those of a FlexFlow file (`flexflow`)."""

import math
from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple

from mfabric_jax.tasks.formats.files import Spot
from mfabric_jax.tasks.graph import Op, TaskKind, Tasks


class FlexType(IntEnum):
    """Of a task, as in MixNet; TopoOpt has those up to 5, and 6 is its ALLREDUCE."""

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
WEIGHT_ROW = 32768  # what a row of MixNet's matrix adds up to


class FlexDevice(NamedTuple):
    """`property`: of a GPU its number, of a connection both nodes in one."""

    kind: int
    node: int
    property: int


class FlexTask(NamedTuple):
    """A task of a file; `follows`: ids of what waits for it; `sources`, `targets`: nodes of a message, a collective."""

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
    """`ends`: nodes and switches, by which a device numbers its connection.  `tp`: ranks that each send alike.
    `step`: ranks of what a collective lists: TopoOpt nodes, MixNet GPUs.  `weights`: of all-to-alls, None: even."""

    gpus: int
    ends: int
    ranks: int
    tp: int
    step: int
    devices: dict[int, FlexDevice]
    weights: list[list[int]] | None = None


class _Built(NamedTuple):
    """Of each task of the file, by its id: what waits, and what others wait for."""

    tasks: Tasks
    groups: dict[tuple[int, ...], int]
    begin: dict[int, list[int]]
    end: dict[int, list[int]]


def tasks_of(said: dict[int, FlexTask], system: FlexSystem) -> Tasks:
    """Those of a file by id; collectives begin behind a MARKER of nobody, and have a task for every member."""
    built = _Built(Tasks(system.ranks), {}, {}, {})
    for key, task in said.items():
        _BUILD[task.kind](key, task, system, built)
    for key, task in said.items():
        for other in task.follows:
            if other not in said:
                task.spot.refuse(f"is followed by task {other}, which is not there")
            for begin in built.begin[other]:
                built.tasks.wait(begin, built.end[key])
    built.tasks.groups = tuple(built.groups)
    return built.tasks


def _compute(key: int, task: FlexTask, system: FlexSystem, built: _Built) -> None:
    """On its device, one task at a time; what moves inside of a node takes its runtime."""
    device = system.devices.get(task.device)
    if device is None:
        task.spot.refuse(f"runs on device {task.device}, which is not there")
    if device.kind in NETWORK:
        _send(key, task, system, built)
        return
    rank = device.property if device.kind == GPU else device.node * system.gpus
    rank = task.spot.rank("its device", rank, system.ranks)
    lane = 0 if device.kind == GPU else 1 + device.kind
    number = built.tasks.add(TaskKind.COMPUTE, rank, task.name, lane=lane, seconds=task.seconds)
    built.begin[key] = built.end[key] = [number]


def _send(key: int, task: FlexTask, system: FlexSystem, built: _Built) -> None:
    """Between the two nodes of its device."""
    device = system.devices.get(task.device)
    if device is None or device.kind not in NETWORK:
        task.spot.refuse(f"must have a connection of two nodes for its device, got {task.device}")
    nodes = system.ranks // system.gpus
    source, target = (task.spot.rank("its nodes", end, nodes) for end in divmod(device.property, system.ends))
    _messages(key, task, [(source * system.gpus, target * system.gpus, task.size)], built)


def _point_to_point(key: int, task: FlexTask, system: FlexSystem, built: _Built) -> None:
    """From each source to the target in its place."""
    if len(task.sources) != len(task.targets):
        task.spot.refuse(f"must have a target for every source, got {len(task.targets)} for {len(task.sources)}")
    sources, targets = _ranks(task, task.sources, system), _ranks(task, task.targets, system)
    _messages(key, task, [(*ends, task.size) for ends in zip(sources, targets, strict=True)], built)


def _messages(key: int, task: FlexTask, pairs: list[tuple[int, int, int]], built: _Built) -> None:
    """(source, target, bytes); to itself nothing moves."""
    built.begin[key] = built.end[key] = [
        built.tasks.add(TaskKind.SEND, source, task.name, peer=target, bytes=size)
        if source != target
        else built.tasks.add(TaskKind.MARKER, source, task.name)
        for source, target, size in pairs
    ] or [built.tasks.add(TaskKind.MARKER, -1, task.name)]


def _barrier(key: int, task: FlexTask, system: FlexSystem, built: _Built) -> None:
    built.begin[key] = built.end[key] = [built.tasks.add(TaskKind.MARKER, -1, task.name)]


def _reduce(key: int, task: FlexTask, system: FlexSystem, built: _Built) -> None:
    """Any collective among all of its targets."""
    _collective(key, task, [_ranks(task, task.targets, system)], task.size, built)


def _all_to_all(key: int, task: FlexTask, system: FlexSystem, built: _Built) -> None:
    """Among ranks of one place in their tensor-parallel groups: even, or by MixNet's matrix of weights.

    With weights W of `ep` ranks s sends d ceil(xfersize ep W[s][d] / 32768), and where tokens go back (an AGGREGATE
    forward, a GROUP_BY backward) W[d][s]. Deviation: MixNet's simulator takes indices modulo 8 for any `ep`.
    """
    ranks, tp, weights = _ranks(task, task.targets, system), system.tp, system.weights
    if task.sources != task.targets or len(ranks) % tp:
        task.spot.refuse("must have the same nodes as sources and targets, a multiple of the tensor-parallel degree")
    parts = [ranks[place::tp] for place in range(tp)]
    if weights is None:
        _collective(key, task, parts, task.size * len(parts[0]), built)
        return
    ep, backward = len(weights), "backward" in task.info.lower()
    if len(parts[0]) != ep:
        task.spot.refuse(f"is an all-to-all of {len(parts[0])} ranks, for which weights must be as many, got {ep}")
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
    """Behind a marker, which waits for all that the task waits for."""
    marker = built.tasks.add(TaskKind.MARKER, -1, task.name)
    built.begin[key], built.end[key] = [marker], []
    for part in map(tuple, parts):
        if not part or len(set(part)) < len(part):
            task.spot.refuse(f"must have nodes, none twice, got {list(part)[:8]}")
        group, match = built.groups.setdefault(part, len(built.groups)), len(built.tasks.column("kind"))
        values = {"op": OPS[task.kind], "bytes": size, "group": group, "match": match}
        built.end[key] += [built.tasks.add(TaskKind.COLLECTIVE, rank, task.name, marker, **values) for rank in part]


_BUILD: dict[FlexType, Callable[[int, FlexTask, FlexSystem, _Built], None]] = dict.fromkeys(FlexType, _reduce)
_BUILD |= dict.fromkeys((FlexType.FORWARD, FlexType.BACKWARD, FlexType.COMM, FlexType.UPDATE), _compute)
_BUILD |= {FlexType.NOMINAL_COMM: _send, FlexType.P2P: _point_to_point, FlexType.BARRIER: _barrier}
_BUILD |= {FlexType.ALLTOALL: _all_to_all}
