"""A job as a task graph, independent of any fabric: computations, messages, collectives, and their dependencies."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from mfabric_jax.checks import BY_NAME, COUNTS, InputError, one_of
from mfabric_jax.flows.dependencies import check_after, run_order


class TaskKind(IntEnum):
    """Kind of a task."""

    MARKER = 0  # takes no time: a barrier, metadata, or the end of other tasks
    COMPUTE = 1
    SEND = 2
    RECV = 3  # ends when its message has arrived
    COLLECTIVE = 4


class Op(IntEnum):
    """Kind of a collective, numbered as Chakra's CollectiveCommType."""

    ALL_REDUCE = 0
    REDUCE = 1
    ALL_GATHER = 2
    GATHER = 3
    SCATTER = 4
    BROADCAST = 5
    ALL_TO_ALL = 6
    REDUCE_SCATTER = 7
    BARRIER = 9


@dataclass(frozen=True, eq=False)
class TaskGraph:
    """T tasks of `ranks` ranks, which are GPUs or whatever computes and sends. Arrays stay on the host.

    - `kind` [T]: `TaskKind`.
    - `rank` [T]: the rank that runs the task; the source of a SEND. -1 only for a MARKER without a rank.
    - `after` [D 2]: task `after[d, 1]` waits for the end of task `after[d, 0]`.
    - `start` [T] s: earliest begin. `lag` [T] s: delay after the last end that the task waits for, or after `start`.
    - `seconds` [T]: duration of a COMPUTE.
    - `bytes` [T]: size of the message of a SEND; a RECV's bytes count only if no task sends the message (see `absent`
      of `lower_tasks`). For a COLLECTIVE: the buffer of an ALL_REDUCE, REDUCE or BROADCAST; what every rank has at the
      end of an ALL_GATHER or at the beginning of a REDUCE_SCATTER; what each rank of an ALL_TO_ALL or the root of a
      SCATTER sends, or the root of a GATHER receives, including its own part.
    - `peer` [T]: the destination of a SEND, the source of a RECV, the root of a rooted collective; else -1.
    - `match` [T]: one number for the SEND and the RECV of a message, or for all tasks of a collective; -1: none (a SEND
      that no RECV waits for).
    - `op` [T]: `Op` of a COLLECTIVE, else -1. `group` [T]: index into `groups` of a COLLECTIVE, else -1.
    - `lane` [T]: tasks of one rank on the same lane (0 or more) run one at a time; -1: no lane.
    - `groups`: the ranks of each communicator, in its order. `name` [T]: name of each task.
    - `file`: the file of the tasks, for error messages.

    Raise `InputError` for a wrong shape or value (it names the task) and for a cycle (it names the members).
    """

    ranks: int
    kind: np.ndarray
    rank: np.ndarray
    after: np.ndarray
    start: np.ndarray
    lag: np.ndarray
    seconds: np.ndarray
    bytes: np.ndarray
    peer: np.ndarray
    match: np.ndarray
    op: np.ndarray
    group: np.ndarray
    lane: np.ndarray
    groups: tuple[tuple[int, ...], ...]
    name: tuple[str, ...]
    file: str = ""

    def __post_init__(self):
        _check(self)

    @property
    def tasks(self) -> int:
        return len(self.kind)

    def of(self, kind: TaskKind, op: Op | None = None) -> np.ndarray:
        """Return the mask [T] of the tasks of one kind and, optionally, of one kind of collective."""
        of_kind = self.kind == kind
        return of_kind if op is None else of_kind & (self.op == op)

    def task_label(self, task: int) -> str:
        """Return the name of a task for error messages: its number, name and file."""
        name = f" ({self.name[task]!r})" if self.name[task] else ""
        return f"task {task}{name}{f' of {self.file!r}' if self.file else ''}"

    def equals(self, other: "TaskGraph") -> bool:
        """Return whether both graphs have equal tasks; the order of `after` and the numbers in `match` may differ."""
        arrays = [name for name in FIELDS if name not in ("after", "match")]
        same = all(np.array_equal(getattr(self, name), getattr(other, name)) for name in arrays)
        labels = [number_labels(graph.match.tolist()) for graph in (self, other)]
        pairs = [set(map(tuple, graph.after.tolist())) for graph in (self, other)]
        metadata = [(graph.ranks, graph.groups, graph.name) for graph in (self, other)]
        return same and labels[0] == labels[1] and pairs[0] == pairs[1] and metadata[0] == metadata[1]


def number_labels(labels: list) -> list[int]:
    """Number labels by first appearance, 0, 1, ...; None and -1 become -1."""
    seen: dict = {}
    return [-1 if label in (None, -1) else seen.setdefault(label, len(seen)) for label in labels]


_INTEGERS = ("rank", "after", "peer", "match", "group", "lane")
_NUMBERS = ("start", "lag", "seconds", "bytes")
FIELDS = {"kind": np.int8, "op": np.int8} | dict.fromkeys(_INTEGERS, np.int64) | dict.fromkeys(_NUMBERS, float)
LARGEST = {name: BY_NAME["bytes" if name == "bytes" else "seconds"].most for name in _NUMBERS}
USUAL = {"start": 0.0, "lag": 0.0, "seconds": 0.0, "bytes": 0.0, "peer": -1, "match": -1, "op": -1, "group": -1}


class Tasks:
    """Collects tasks one by one."""

    def __init__(self, ranks: int, groups: tuple[tuple[int, ...], ...] = ()):
        self.ranks, self.groups = ranks, groups
        self.after: list[tuple[int, int]] = []
        self._columns: dict[str, list] = {name: [] for name in ("name", *FIELDS) if name != "after"}

    def add(self, kind: TaskKind, rank: int, name: str = "", after=(), lane: int = -1, **values) -> int:
        """Add a task and return its number; `values` are fields of `TaskGraph`, which have defaults."""
        number = len(self._columns["kind"])
        row = USUAL | {"kind": kind, "rank": rank, "name": name, "lane": lane} | values
        if unknown := set(row) - set(self._columns):
            raise InputError(f"a task has the fields {', '.join(self._columns)}, got {', '.join(sorted(unknown))}.")
        for column, value in row.items():
            self._columns[column].append(value)
        self.wait(number, after)
        return number

    def column(self, name: str) -> list:
        return self._columns[name]

    def wait(self, task: int, *others) -> None:
        """Make the task wait for each of the others, which are numbers or lists of numbers."""
        for other in others:
            self.after += [(earlier, task) for earlier in (other if hasattr(other, "__iter__") else (other,))]

    def graph(self) -> TaskGraph:
        """Return the graph of all tasks; duplicate pairs in `after` count once."""
        pairs = np.array(sorted(set(self.after)), np.int64).reshape(-1, 2)
        arrays = {name: np.array(self._columns[name], kind) for name, kind in FIELDS.items() if name != "after"}
        return TaskGraph(
            self.ranks, after=pairs, groups=self.groups, name=tuple(self._columns["name"]), file="", **arrays
        )


def _check(graph: TaskGraph) -> None:
    if not 1 <= graph.ranks <= COUNTS["gpus"]:
        raise InputError(f"ranks must be from 1 to {COUNTS['gpus']:,}, got {graph.ranks}.")
    for name, dtype in FIELDS.items():
        array = getattr(graph, name)
        if name != "after" and array.shape != (graph.tasks,):
            raise InputError(f"{name} must have the shape [{graph.tasks}], got {list(array.shape)}.")
        if array.dtype != dtype:
            raise InputError(f"{name} must be {np.dtype(dtype)}, got {array.dtype}.")
    if len(graph.name) != graph.tasks:
        raise InputError(f"name must have one entry for each of the {graph.tasks} tasks, got {len(graph.name)}.")
    for name, most in LARGEST.items():
        wrong = ~((getattr(graph, name) >= 0) & (getattr(graph, name) <= most))
        _refuse(graph, wrong, name, f"a number from 0 to {most:g}")
    comm = np.isin(graph.kind, (TaskKind.SEND, TaskKind.RECV))
    nobody = (graph.rank == -1) & (graph.kind == TaskKind.MARKER)
    _refuse(graph, ~np.isin(graph.kind, list(TaskKind)), "kind", f"0..{max(TaskKind)}")
    _refuse(graph, ~nobody & ((graph.rank < 0) | (graph.rank >= graph.ranks)), "rank", f"in 0..{graph.ranks - 1}")
    _refuse(graph, comm & ((graph.peer < 0) | (graph.peer >= graph.ranks)), "peer", f"in 0..{graph.ranks - 1}")
    collective = graph.kind == TaskKind.COLLECTIVE
    _refuse(graph, collective & ~np.isin(graph.op, list(Op)), "op", "a collective")
    _refuse(graph, collective & ((graph.group < 0) | (graph.group >= len(graph.groups))), "group", "one of groups")
    for number, group in enumerate(graph.groups):
        if not group or len(set(group)) < len(group) or min(group) < 0 or max(group) >= graph.ranks:
            raise InputError(f"group {number} must hold ranks in 0..{graph.ranks - 1}, each once, got {list(group)}.")
    check_after(graph.after, graph.tasks)
    run_order(graph.after, graph.tasks, graph.task_label)


def _refuse(graph: TaskGraph, wrong: np.ndarray, field: str, allowed: str) -> None:
    if wrong.any():
        task = int(np.argmax(wrong))
        raise InputError(f"{field} of {graph.task_label(task)} must be {allowed}, got {getattr(graph, field)[task]}.")


# -- tasks in columns, for adding many at a time: `Tasks`, which adds them one by one, would take too long


class TaskColumns:
    """Collects tasks in arrays, many at a time. `more`: further columns (name: default), which `column` reads."""

    def __init__(self, ranks: int, groups: tuple[tuple[int, ...], ...] = (), **more: float):
        self.ranks, self.groups, self.tasks, self.matches = ranks, list(groups), 0, 0
        self._usual = USUAL | {"lane": -1} | more
        self._columns: dict[str, list[np.ndarray]] = {name: [] for name in ("kind", "rank", *self._usual)}
        self._after: list[np.ndarray] = []
        self._names: list[tuple[str, int]] = []

    def add(self, kind: TaskKind, rank, name: str = "", after: Iterable = (), **values) -> np.ndarray:
        """Add N tasks on `rank` [N] and return their numbers [N]. `values`: [N] or scalars; `after`: as in `wait`."""
        rank = np.atleast_1d(np.asarray(rank, np.int64))
        for field in values:
            one_of("field of a task", field, self._usual)
        for field, value in (self._usual | {"kind": kind, "rank": rank} | values).items():
            self._columns[field].append(np.broadcast_to(np.asarray(value), rank.shape))
        numbers = np.arange(self.tasks, self.tasks + len(rank))
        self.tasks += len(rank)
        self._names.append((name, len(rank)))
        self.wait(numbers, *after)
        return numbers

    def add_groups(self, members: np.ndarray) -> np.ndarray:
        """Add groups of ranks [G n] and return their numbers [G]."""
        self.groups += [tuple(row) for row in members.tolist()]
        return np.arange(len(self.groups) - len(members), len(self.groups))

    def add_matches(self, count: int) -> np.ndarray:
        """Return `count` new values of `match`, for messages or collectives."""
        self.matches += count
        return np.arange(self.matches - count, self.matches)

    def wait(self, tasks: np.ndarray, *others) -> None:
        """Make each of `tasks` [N] wait for its entry in each of `others`: [N], [K N], or one number for all."""
        for other in others:
            first = np.asarray(other, np.int64)
            first = np.broadcast_to(first, np.broadcast_shapes(first.shape, tasks.shape))
            self._after.append(np.stack([first.ravel(), np.broadcast_to(tasks, first.shape).ravel()], axis=1))

    def column(self, name: str) -> np.ndarray:
        return np.concatenate([np.zeros(0), *self._columns[name]])

    def graph(self) -> TaskGraph:
        pairs = np.concatenate([np.zeros((0, 2), np.int64), *self._after])
        every = max(self.tasks, 1)
        after = np.stack(np.divmod(np.unique(pairs[:, 0] * every + pairs[:, 1]), every), axis=1)
        arrays = {field: self.column(field).astype(kind) for field, kind in FIELDS.items() if field != "after"}
        names = tuple(name for name, count in self._names for _ in range(count))
        return TaskGraph(self.ranks, after=after, groups=tuple(self.groups), name=names, file="", **arrays)
