"""Lower tasks to flows: collectives become messages, lanes become waits.

A rank takes part in a collective only once its own task may begin; the task ends when everything that the rank sends
and receives has ended. A SEND is eager: it transfers its bytes whether or not the receiver waits for them. A RECV ends
when the tasks that it waits for have ended and its message has arrived.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from mfabric_jax import units
from mfabric_jax.apps.graphs.tasks.collectives.pattern import Template, in_chunks
from mfabric_jax.apps.graphs.tasks.collectives.registry import (
    ALGORITHMS,
    BY_SERVER,
    OWN_BYTES,
    REDUCED_BY_SWITCHES,
    ROOTED,
    AlgorithmChoice,
    choices_of,
    which_choice,
)
from mfabric_jax.apps.graphs.tasks.graph import Op, TaskGraph, TaskKind
from mfabric_jax.apps.graphs.tasks.lanes import lane_bound_tasks, lane_waits, one_for_each_collective
from mfabric_jax.apps.graphs.tasks.members import Collectives, check_all_there, collectives_of, messages_of
from mfabric_jax.checks import InputError, not_negative, one_of, positive, whole
from mfabric_jax.flows.dependencies import cycle_of, run_order
from mfabric_jax.flows.flows import Flows, Latency, flows_of

# -- which collectives share one pattern


class SamePattern(NamedTuple):
    """The `collectives` [I] that share one pattern: same algorithm, and members spread over `servers` [n] in the same
    way."""

    op: Op
    choice: AlgorithmChoice
    servers: tuple[int, ...]
    collectives: np.ndarray


def same_patterns(
    graph: TaskGraph, collectives: Collectives, choices: dict[Op, tuple[AlgorithmChoice, ...]], server: np.ndarray
) -> Iterator[SamePattern]:
    """Yield sets of collectives that share one pattern.

    Raise `InputError` if the members of a collective have different bytes and its algorithm forwards bytes.
    """
    most = np.maximum.reduceat(collectives.bytes, collectives.first[:-1]) if len(collectives.op) else np.zeros(0)
    for op in Op:
        of_op = np.flatnonzero(collectives.op == op)
        option = which_choice(choices[op], most[of_op])
        for number in np.unique(option):
            choice, those = choices[op][number], of_op[option == number]
            _check_bytes(graph, collectives, those, op, choice)
            for shape, of_shape in _by_shape(graph, collectives, those, choice, server):
                yield SamePattern(op, choice, shape, of_shape)


def _check_bytes(
    graph: TaskGraph, collectives: Collectives, those: np.ndarray, op: Op, choice: AlgorithmChoice
) -> None:
    uneven = those[~collectives.even[those]]
    if uneven.size and (choice.algorithm, op) not in OWN_BYTES:
        members = slice(collectives.first[uneven[0]], collectives.first[uneven[0] + 1])
        task = collectives.task[members][collectives.task[members] >= 0]
        a, b = task[np.argmin(graph.bytes[task])], task[np.argmax(graph.bytes[task])]
        raise InputError(
            f"bytes must be the same for all members of a collective ({choice.algorithm}), but "
            f"{graph.task_label(a)} has "
            f"{graph.bytes[a]:g} and {graph.task_label(b)} has {graph.bytes[b]:g}."
        )


def _by_shape(
    graph: TaskGraph, collectives: Collectives, those: np.ndarray, choice: AlgorithmChoice, server: np.ndarray
):
    if choice.algorithm not in BY_SERVER:
        for size in np.unique(collectives.size[those]):
            yield (0,) * int(size), those[collectives.size[those] == size]
        return
    groups, which = np.unique(collectives.group[those], return_inverse=True)
    numbers = _in_order if choice.algorithm == REDUCED_BY_SWITCHES else _number_servers
    shapes = [numbers(server[list(graph.groups[group])].tolist()) for group in groups]
    known = {shape: number for number, shape in enumerate(dict.fromkeys(shapes))}
    number = np.array([known[shape] for shape in shapes], np.int64)[which]
    for shape, index in known.items():
        yield shape, those[number == index]


def _number_servers(servers: list[int]) -> tuple[int, ...]:
    first = {server: number for number, server in enumerate(dict.fromkeys(servers))}
    return tuple(first[server] for server in servers)


def _in_order(servers: list[int]) -> tuple[int, ...]:
    """Number the servers in their own order, so that neighbours share switches."""
    return tuple(np.unique(servers, return_inverse=True)[1].tolist())


# -- collectives whose members begin one after another: those with a root, along a tree


def trees_of(collectives: Collectives, kinds: Iterable[tuple[SamePattern, Template]]) -> tuple[np.ndarray, np.ndarray]:
    """Return the mask [C] of tree collectives that have all members, and the waits between their members' tasks [D 2].

    The second task of a pair receives from the first, or sends after it. Its own end waits for the first anyway, so
    letting it begin after the first closes no cycle that the messages do not close.
    """
    tree = np.zeros(len(collectives.op), bool)
    pairs = [np.zeros((0, 2), np.int64)]
    for kind, template in kinds:
        if kind.op not in ROOTED:
            continue
        sent = template.dst >= 0
        edges = np.stack([template.src[sent], template.dst[sent]], axis=1)
        edges = np.unique(np.concatenate([edges, template.whose[template.after]]), axis=0)
        edges = edges[edges[:, 0] != edges[:, 1]]
        if cycle_of(edges, len(kind.servers)):
            continue
        task = collectives.task[collectives.first[kind.collectives][:, None] + np.arange(len(kind.servers))]
        there = (task >= 0).all(axis=1)
        tree[kind.collectives[there]] = True
        pairs.append(task[there][:, edges].reshape(-1, 2))
    return tree, np.concatenate(pairs)


# -- collect the flows of a graph: first one for each task, then those of collectives


class CollectedFlows:
    """The flows collected so far; `lane` [D 2]: waits between tasks on lanes.

    Flow t ends with task t. Each task of a collective has a second flow, which lets the rank begin. So has a task with
    a lag that waits for a lane: this flow ends with the lag, which passes whether or not the lane is free.
    """

    def __init__(self, graph: TaskGraph, collectives: Collectives, message, lane: np.ndarray):
        self.graph, self.found = graph, collectives
        own = np.flatnonzero(graph.of(TaskKind.COLLECTIVE))
        held = lane_bound_tasks(graph, lane)
        self.enter = np.arange(graph.tasks)
        self.enter[own] = graph.tasks + np.arange(len(own))
        ready = self.enter.copy()
        ready[held] = graph.tasks + len(own) + np.arange(len(held))
        self.count = graph.tasks + len(own) + len(held)
        self.parts: list[dict[str, np.ndarray]] = [self._of_tasks(message[1]), self._markers(own), self._markers(held)]
        self._delay(own, held)
        self.after = [np.stack([self.enter[own], own], axis=1), np.stack([message[0], ready[message[1]]], axis=1)]
        self.after += [np.stack([graph.after[:, 0], ready[graph.after[:, 1]]], axis=1)]
        self.after += [np.stack([lane[:, 0], self.enter[lane[:, 1]]], axis=1)]
        self.after += [np.stack([ready[held], self.enter[held]], axis=1)]
        self.enters, self.leaves = self._of_members()

    def _of_tasks(self, received: np.ndarray) -> dict[str, np.ndarray]:
        graph = self.graph
        compute, send = graph.of(TaskKind.COMPUTE), graph.of(TaskKind.SEND)
        assumed = graph.of(TaskKind.RECV)
        assumed[received] = False
        moved = (send | assumed) & (graph.peer != graph.rank)
        src = np.where(compute | moved, np.where(assumed, graph.peer, graph.rank), -1)
        dst = np.where(moved, np.where(assumed, graph.rank, graph.peer), -1)
        return {
            "src": src,
            "dst": dst,
            "size": np.where(moved, graph.bytes, np.where(compute, graph.seconds, 0)),
            "start": graph.start.copy(),
            "lag": graph.lag.copy(),
            "message": np.where(moved, np.arange(graph.tasks), -1),
            "task": np.arange(graph.tasks),
        }

    def _markers(self, task: np.ndarray) -> dict[str, np.ndarray]:
        none, nothing = np.full(len(task), -1), np.zeros(len(task))
        zeros = {name: nothing.copy() for name in ("size", "start", "lag")}
        return {"src": none, "dst": none, "task": task, "message": none} | zeros

    def _delay(self, own: np.ndarray, held: np.ndarray) -> None:
        tasks, begins, ready = self.parts
        for name in ("start", "lag"):
            delays = getattr(self.graph, name)
            begins[name][:], ready[name][:] = delays[own], delays[held]
            begins[name][np.isin(own, held)] = 0
            tasks[name][own] = tasks[name][held] = 0

    def _of_members(self) -> tuple[np.ndarray, np.ndarray]:
        """For each member [M], the flow that lets it begin and the flow that waits for its messages."""
        collectives = self.found
        there = collectives.task >= 0
        collective = np.repeat(np.arange(len(collectives.op)), collectives.size)
        lead = np.full(len(collectives.op), -1)
        lead[collective[there][::-1]] = collectives.task[there][::-1]
        enters = np.where(there, self.enter[collectives.task] if there.size else -1, -1)
        missing = np.unique(collective[~there])
        joins = np.full(len(collectives.op), -1)
        joins[missing] = self.count + np.arange(len(missing))
        self.parts.append(self._markers(lead[missing]))
        self.count += len(missing)
        waiting = there & (joins[collective] >= 0)
        self.after.append(np.stack([enters[waiting], joins[collective[waiting]]], axis=1))
        return np.where(there, enters, joins[collective]), np.where(there, collectives.task, lead[collective])

    def copy(self, template: Template, first: np.ndarray, members: int) -> None:
        """Add a copy of the template for I collectives of `members` members, whose first members are at `first` [I]."""
        flows = len(template.src)
        member = first[:, None] + np.arange(members)
        base = self.count + flows * np.arange(len(first))[:, None]
        rank = self.found.rank[member]

        def ranks(index: np.ndarray) -> np.ndarray:
            return np.where(index >= 0, rank[:, index], -1).ravel()

        src, dst = ranks(template.src), ranks(template.dst)
        task = self.leaves[member][:, template.whose].ravel()
        part = self._markers(task) | {"src": src, "dst": dst}
        part["size"] = (self.found.bytes[member][:, template.whose] * template.part).ravel()
        part["message"] = np.where(template.message >= 0, base + template.message, -1).ravel()
        self.parts.append(part)
        self.count += flows * len(first)

        enters, leaves = self.enters[member], self.leaves[member]
        pairs = [
            (base + template.after[:, 0], base + template.after[:, 1]),
            (enters[:, template.enters[:, 0]], base + template.enters[:, 1]),
            (base + template.leaves[:, 0], leaves[:, template.leaves[:, 1]]),
        ]
        self.after += [np.stack([before.ravel(), then.ravel()], axis=1) for before, then in pairs]

    def flows(self) -> Flows:
        names = self.parts[0]
        columns = {name: np.concatenate([part[name] for part in self.parts]) for name in names}
        return flows_of(**columns, after=np.concatenate(self.after))


ABSENT = ("refuse", "assume")
LANES = ("ordered", "free")
GUESSED_GBPS = 400.0  # rate of messages when an order on lanes is chosen


def lower_tasks(
    graph: TaskGraph,
    *,
    algorithms: str = "",
    chunks: int = 1,
    alpha_s: float | Latency = 0.0,
    server: ArrayLike = 8,
    absent: str = "refuse",
    lanes: str = "ordered",
    lane_gbps: float = GUESSED_GBPS,
) -> Flows:
    """Return the flows of a graph. Flow t ends with task t, for each of the T tasks; further flows follow these.

    - `algorithms`: text such as "all-reduce=ring*4,all-reduce:<65536=double-tree", see `choices_of`; other collectives
      run as in `USUAL_ALGORITHM`. Rings and trees follow the order of the group.
    - `chunks`: number of chunks of each collective for which `algorithms` gives none; they follow one another.
    - `alpha_s`: latency of a message [s], or a function of the ranks `src`, `dst` [F] that returns it [F]. With several
      chunks, a sender does not wait for it before the next chunk.
    - `server`: the server of each rank [ranks], or the number of consecutive ranks on a server; for algorithms that
      depend on servers.
    - `absent`: "refuse" a collective or message that lacks a task, or "assume" it. Missing members then begin when all
      others have begun, and their flows belong to the first member that is present; a missing message is sent when its
      RECV waits for it, with the bytes of the RECV. "assume" is for a graph of some of the ranks.
    - `lanes`: "ordered" runs one task at a time on a lane, in an order chosen in advance by a trial run, in which links
      have no limits and messages and collectives run at `lane_gbps` (see `lanes.py`); "free" ignores lanes.

    Raise an `InputError` that names the task that does not fit, or the tasks that wait for each other.
    """
    one_of("absent", absent, ABSENT)
    one_of("lanes", lanes, LANES)
    positive("lane_gbps", lane_gbps)
    choices, latency = choices_of(algorithms, chunks), _latency(alpha_s)
    collectives, message = collectives_of(graph), messages_of(graph, absent == "assume")
    if absent == "refuse":
        check_all_there(graph, collectives)
    apart = callable(alpha_s) or alpha_s > 0
    patterns = same_patterns(graph, collectives, choices, _servers(graph, server))
    kinds = [(kind, _template(graph, kind, collectives, apart)) for kind in patterns]
    node, waits = _waits(graph, collectives, message, kinds)

    stuck = bool(cycle_of(waits, graph.tasks))
    ordered = lanes == "ordered" and bool((graph.lane >= 0).any())
    lane = lane_waits(graph, node, waits, units.gbps(lane_gbps)) if ordered and not stuck else waits[:0]
    collected = CollectedFlows(graph, collectives, message, lane)
    for kind, template in kinds:
        collected.copy(template, collectives.first[kind.collectives], len(kind.servers))
    flows = collected.flows().add_latency(latency)
    if stuck:
        run_order(flows.after, flows.flows, lambda flow: graph.task_label(flows.task[flow]))
    if stuck and ordered:  # a cycle of whole collectives may run member by member, but has no order on lanes
        run_order(waits, graph.tasks, graph.task_label)
    return flows


def _waits(graph: TaskGraph, collectives: Collectives, message, kinds) -> tuple[np.ndarray, np.ndarray]:
    tree, forwards = trees_of(collectives, kinds)
    collective = np.repeat(np.where(tree, -1, np.arange(len(collectives.op))), collectives.size)
    which = np.full(graph.tasks, -1)
    which[collectives.task[collectives.task >= 0]] = collective[collectives.task >= 0]
    return one_for_each_collective(graph, which, np.stack(message, axis=1), forwards)


def _latency(alpha_s: float | Latency) -> Latency:
    if callable(alpha_s):
        return alpha_s
    seconds = not_negative("alpha_s", alpha_s)
    return lambda src, dst: np.full(len(src), seconds)


def _servers(graph: TaskGraph, server: ArrayLike) -> np.ndarray:
    servers = np.asarray(server)
    if servers.ndim == 0:
        return np.arange(graph.ranks) // whole("server", servers.item())
    if servers.shape != (graph.ranks,) or not np.issubdtype(servers.dtype, np.integer):
        raise InputError(
            f"server must be integers [{graph.ranks}] or a number, got {servers.dtype} {list(servers.shape)}."
        )
    return servers


def _template(graph: TaskGraph, kind: SamePattern, collectives: Collectives, apart: bool) -> Template:
    try:
        pattern = ALGORITHMS[kind.choice.algorithm][kind.op](kind.servers)
    except InputError as error:
        first = collectives.first[kind.collectives[0]]
        task = collectives.task[first : first + len(kind.servers)].max()
        raise InputError(f"{graph.task_label(task)}: {error}") from None
    return in_chunks(pattern, kind.choice.chunks, apart)
