"""From tasks to flows: collectives become messages, lanes become waits.

A rank sends nothing of a collective before its own task may begin; its task ends when all that the rank sends and
receives has ended. A SEND transfers its bytes whether or not the other side waits for them (eager); a RECV ends when
what it waits for has ended and its message has arrived.
"""

import numpy as np
from numpy.typing import ArrayLike

from mfabric_jax import units
from mfabric_jax.checks import InputError, not_negative, one_of, positive, whole
from mfabric_jax.flows.dependencies import cycle_of, run_order
from mfabric_jax.tasks._collected import CollectedFlows, Latency
from mfabric_jax.tasks._lanes import lane_waits, one_for_each_collective
from mfabric_jax.tasks._members import Collectives, check_all_there, collectives_of, messages_of
from mfabric_jax.tasks._same_patterns import SamePattern, same_patterns
from mfabric_jax.tasks._trees import trees_of
from mfabric_jax.tasks.collectives.choice import choices_of
from mfabric_jax.tasks.collectives.registry import ALGORITHMS
from mfabric_jax.tasks.collectives.template import Template, in_chunks
from mfabric_jax.tasks.flow_graph import FlowGraph
from mfabric_jax.tasks.graph import TaskGraph

ABSENT = ("refuse", "assume")
LANES = ("ordered", "free")
GUESSED_GBPS = 400.0  # of messages, where an order on lanes is chosen


def lowered(
    graph: TaskGraph,
    *,
    algorithms: str = "",
    chunks: int = 1,
    alpha_s: float | Latency = 0.0,
    server: ArrayLike = 8,
    absent: str = "refuse",
    lanes: str = "ordered",
    lane_gbps: float = GUESSED_GBPS,
) -> FlowGraph:
    """The flows of a graph. Flow t ends with task t, for every one of the T tasks; further flows come behind them.

    - `algorithms`: "all-reduce=ring*4,all-reduce:<65536=double-tree", see `collectives.choice`; those that are not
      named run as in `collectives.registry`. Around a ring and along a tree go the members in the order of the group.
    - `chunks`: of each collective, one behind the other, where `algorithms` says none.
    - `alpha_s`: latency of a message [s], or a function of the ranks `src`, `dst` [F] that gives it [F]. With several
      chunks it does not keep the sender from the next one.
    - `server`: of each rank [ranks], or how many ranks in a row share one. For hierarchical collectives.
    - `absent`: "refuse" a collective or message of which the graph lacks a task; or "assume" that missing members begin
      when all others have begun (their flows count for the first of those), and that the missing message is sent when
      it is waited for, with the bytes of its RECV. That is for a graph of some of the ranks, which see a collective
      among all.
    - `lanes`: "ordered" runs one task at a time on a lane, in an order chosen beforehand: as they begin on lanes alone,
      with messages and collectives at `lane_gbps` and no link shared, the lowest number first; "free" lets lanes be.

    `InputError` names the task that does not fit, and the tasks that wait for each other.
    """
    one_of("absent", absent, ABSENT)
    one_of("lanes", lanes, LANES)
    positive("lane_gbps", lane_gbps)
    choices, latency = choices_of(algorithms, chunks), _latency(alpha_s)
    found, message = collectives_of(graph), messages_of(graph, absent == "assume")
    if absent == "refuse":
        check_all_there(graph, found)
    apart = callable(alpha_s) or alpha_s > 0
    patterns = same_patterns(graph, found, choices, _servers(graph, server))
    kinds = [(kind, _template(graph, kind, found, apart)) for kind in patterns]
    node, waits = _waits(graph, found, message, kinds)

    stuck = bool(cycle_of(waits, graph.tasks))
    ordered = lanes == "ordered" and bool((graph.lane >= 0).any())
    lane = lane_waits(graph, node, waits, units.gbps(lane_gbps)) if ordered and not stuck else waits[:0]
    collected = CollectedFlows(graph, found, message, lane, latency)
    for kind, template in kinds:
        collected.copy(template, found.first[kind.collectives], len(kind.servers))
    flows = collected.flows()
    if stuck:
        run_order(flows.after, flows.flows, lambda flow: graph.named(flows.task[flow]))
    if stuck and ordered:  # what is a cycle of whole collectives may run, but has no order on lanes
        run_order(waits, graph.tasks, graph.named)
    return flows


def _waits(graph: TaskGraph, found: Collectives, message, kinds) -> tuple[np.ndarray, np.ndarray]:
    """What waits for what among whole collectives and single members of trees (`one_for_each_collective`)."""
    tree, forwards = trees_of(found, kinds)
    collective = np.repeat(np.where(tree, -1, np.arange(len(found.op))), found.size)
    which = np.full(graph.tasks, -1)
    which[found.task[found.task >= 0]] = collective[found.task >= 0]
    return one_for_each_collective(graph, which, np.stack(message, axis=1), forwards)


def _latency(alpha_s: float | Latency) -> Latency:
    if callable(alpha_s):
        return alpha_s
    seconds = not_negative("alpha_s", alpha_s)
    return lambda src, dst: np.full(len(src), seconds)


def _servers(graph: TaskGraph, server: ArrayLike) -> np.ndarray:
    """[ranks]."""
    given = np.asarray(server)
    if given.ndim == 0:
        return np.arange(graph.ranks) // whole("server", given.item())
    if given.shape != (graph.ranks,) or not np.issubdtype(given.dtype, np.integer):
        raise InputError(f"server must be integers [{graph.ranks}] or a number, got {given.dtype} {list(given.shape)}.")
    return given


def _template(graph: TaskGraph, kind: SamePattern, found: Collectives, apart: bool) -> Template:
    try:
        pattern = ALGORITHMS[kind.choice.algorithm][kind.op](kind.servers)
    except InputError as error:
        first = found.first[kind.collectives[0]]
        task = found.task[first : first + len(kind.servers)].max()
        raise InputError(f"{graph.named(task)}: {error}") from None
    return in_chunks(pattern, kind.choice.chunks, apart)
