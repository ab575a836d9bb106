"""Task graphs of FlexFlow as TopoOpt and MixNet write them, `.fbuf`: a flatbuffer without an identifier.

A computation runs on its GPU, one at a time, for its `runtime` [ms]; a NOMINAL_COMM sends between two nodes, whose
numbers are in its device; an ALLREDUCE is among the nodes that TopoOpt lists in place of what follows it, and MixNet in
`to_node_ids`. The estimated runtimes of communication are not used. MixNet's ALLTOALL sends `xfersize` between ranks of
the same place in the tensor-parallel groups; its simulator weights them by a matrix that is no part of the file. Slots
and types of TopoOpt are those of its published graphs; those of MixNet follow the order of its writer
(Graph::get_taskgraph_flatbuf) and of its simulator's FFTaskType, for no published file could be had to try them on.
Sources: github.com/hipersys-team/TopoOpt, the packet simulator released with arXiv 2501.03905.
"""

from pathlib import Path

from mfabric_jax import units
from mfabric_jax.checks import COUNTS, InputError
from mfabric_jax.tasks.formats import files
from mfabric_jax.tasks.formats.files import LeftOut, Reading, Spot
from mfabric_jax.tasks.formats.flat_tables import BROKEN, FlatTable, root
from mfabric_jax.tasks.formats.flexflow_graph import FlexDevice, FlexSystem, FlexTask, FlexType, tasks_of
from mfabric_jax.text_files import value_in

GPUS, NODES, SWITCHES, TASKS, DEVICES = 0, 1, 2, 8, 9  # slots of the graph
DEGREES = 4  # last slots of MixNet's graph: dp, tp, pp, ep
TOPOOPT_SLOTS = 6  # of a task; more: MixNet's
TOPOOPT_ALLREDUCE = 6


def read(path: Path, given: LeftOut) -> Reading:
    """The tasks of all GPUs; `given.weights` of MixNet's all-to-alls."""
    data, said = files.unpacked(path), {}
    try:
        table = root(data)
        listed = table.tables(TASKS)
        mixnet = any(one.slots > TOPOOPT_SLOTS for one in listed)
        devices = {one.number(1, "u8"): _device(one) for one in table.tables(DEVICES)}
        for order, one in enumerate(listed):
            spot, key = Spot(f"task {order} (counted from 0) of {str(path)!r}"), one.number(1, "u8")
            if key in said:
                spot.refuse("has the id of another task")
            said[key] = _of_mixnet(one, spot) if mixnet else _of_topoopt(one, spot)
        gpus, nodes, switches = (table.number(slot, "u4") for slot in (GPUS, NODES, SWITCHES))
        tp = table.number(table.slots - DEGREES + 1, "u4") if mixnet else 1
    except InputError:
        raise
    except BROKEN as error:
        raise InputError(f"{str(path)!r} is cut off or no FlexFlow task graph.") from error
    whole = Spot(repr(str(path)))
    if not said:
        whole.refuse("must be a FlexFlow task graph with tasks, it has none")
    gpus, nodes = whole.whole("ngpupernode", gpus, 1, 2**12), whole.whole("nnode", nodes, 1, COUNTS["servers"])
    files.few_enough(path, sum(1 + len(task.targets) * max(len(task.sources), 1) for task in said.values()))
    weights = None if given.weights is None else _weights(Path(given.weights))
    system = FlexSystem(gpus, nodes + switches, nodes * gpus, max(tp, 1), 1 if mixnet else gpus, devices, weights)
    return _read(said, system, mixnet)


def _read(said: dict[int, FlexTask], system: FlexSystem, mixnet: bool) -> Reading:
    tasks = tasks_of(said, system)
    remarks = ("estimated runtimes of messages and collectives are not used.",)
    if mixnet:
        used = [rank for task in said.values() for rank in (*task.sources, *task.targets)]
        tasks.ranks = min(system.ranks, 1 + max([*used, *tasks.column("rank"), *tasks.column("peer")]))
        if system.weights is None and any(task.kind == FlexType.ALLTOALL for task in said.values()):
            remarks += (
                "of an all-to-all every pair has the same, without the weights of MixNet's simulator (weights).",
            )
    return Reading(tasks.graph(), "FlexFlow task graph", remarks)


def _device(one: FlatTable) -> FlexDevice:
    return FlexDevice(one.number(0, "i2"), one.number(2, "u8"), one.number(3, "u8"))


def _of_topoopt(one: FlatTable, spot: Spot) -> FlexTask:
    kind, listed = one.number(0, "i2"), one.numbers(5, "u8")
    if not 0 <= kind <= TOPOOPT_ALLREDUCE:
        spot.refuse(f"must have a type from 0 to {TOPOOPT_ALLREDUCE}, got {kind}")
    if kind == TOPOOPT_ALLREDUCE:
        return _task(one, spot, FlexType.ALLREDUCE)._replace(targets=listed)
    return _task(one, spot, FlexType(kind))._replace(follows=listed)


def _of_mixnet(one: FlatTable, spot: Spot) -> FlexTask:
    kind, info = one.number(0, "i2"), one.text(10)
    if not 0 <= kind <= max(FlexType):
        spot.refuse(f"must have a type from 0 to {max(FlexType)}, got {kind}")
    if kind == FlexType.ALLTOALL and not ("GROUP_BY" in info.upper() or "AGGREGATE" in info.upper()):
        spot.refuse(f"must say GROUP_BY or AGGREGATE, as MixNet's all-to-alls do, got {info[:40]!r}")
    follows, sources, targets = (one.numbers(slot, "u8") for slot in (6, 7, 8))
    task = _task(one, spot, FlexType(kind), one.text(9) or info)
    return task._replace(follows=follows, sources=sources, targets=targets, info=info)


def _task(one: FlatTable, spot: Spot, kind: FlexType, name: str = "") -> FlexTask:
    runtime, size = spot.number("runtime", one.number(3, "f4")), spot.whole("xfersize", one.number(4, "u8"))
    return FlexTask(spot, kind, one.number(2, "u8"), units.ms(runtime), size, [], [], [], name or kind.name)


def _weights(path: Path) -> list[list[int]]:
    """MixNet's matrix, a nested list [source][destination]."""
    spot, matrix = Spot(repr(str(path))), value_in(files.unpacked(path), repr(str(path)), "weights")
    rows = matrix if isinstance(matrix, list) else []
    if not rows or not all(isinstance(row, list) and len(row) == len(rows) for row in rows):
        spot.refuse("must be one nested list of as many rows as columns")
    return [
        [spot.whole("weights", weight if isinstance(weight, int) else str(weight)) for weight in row] for row in rows
    ]
