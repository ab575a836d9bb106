"""Circuits that change between the all-to-alls of a graph: the order of all-to-alls, and the waits for the switch.

Each all-to-all has circuits between its own servers, chosen for its own bytes; nothing else uses them. The all-to-alls
of a server run one after another in a feasible order. If the circuits of one of its servers change, the switch
reconfigures once the earlier all-to-alls have ended. A run begins with the circuits that it ends with.
`evaluate.circuits` applies this rule to all-to-alls in sequence; a test compares both.
"""

import heapq
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from mfabric_jax.apps.graphs.tasks.graph import Op, TaskGraph, TaskKind
from mfabric_jax.checks import InputError
from mfabric_jax.flows.dependencies import successors
from mfabric_jax.flows.flows import COLUMNS, Flows, flows_of

RECONFIGURATION, SHOWN = (
    -1,
    -2,
)  # `task` of markers: of reconfigurations, and of the time in which a configuration lasts


class Phases(NamedTuple):
    """P all-to-alls between servers, in the order in which they run.

    `exchange` [F]: the all-to-all of each flow; -1: none. `demand` [P S S]: bytes between servers.
    """

    exchange: np.ndarray
    demand: np.ndarray


def phases_of(
    graph: TaskGraph, flows: Flows, demand: Callable[[np.ndarray], np.ndarray], seconds: np.ndarray
) -> Phases:
    """Return the all-to-alls of a graph.

    `demand` returns the bytes between servers [S S] of a mask of flows. `seconds` [F]: estimated times of flows.
    """
    of = exchanges_of(graph)[flows.task]
    between = {int(which): demand(of == which) for which in np.unique(of[of >= 0])}
    kept = [which for which in between if between[which].any()]
    number = {which: position for position, which in enumerate(kept)}
    of = np.array([number.get(which, -1) for which in of.tolist()], np.int64)
    order = exchange_order(of, flows, seconds)
    position = np.argsort(order)
    servers = demand(np.zeros(flows.flows, bool)).shape
    matrices = np.array([between[kept[which]] for which in order]).reshape(-1, *servers)
    return Phases(np.where(of >= 0, position[of] if len(position) else -1, -1), matrices)


def exchanges_of(graph: TaskGraph) -> np.ndarray:
    """Return the all-to-all of each task [T]; -1: none.

    An all-to-all is an ALL_TO_ALL collective, or all messages within a group for which one BARRIER of the group waits.
    """
    tasks = np.arange(graph.tasks)
    number = np.where(graph.match >= 0, graph.match, graph.match.max(initial=0) + 1 + tasks)
    exchange = np.where(graph.of(TaskKind.COLLECTIVE, Op.ALL_TO_ALL), number, -1)
    before, then = graph.after.T
    joined = graph.of(TaskKind.SEND)[before] & graph.of(TaskKind.COLLECTIVE, Op.BARRIER)[then]
    before, then = before[joined], then[joined]
    members = [frozenset(group) for group in graph.groups]
    both = zip(graph.peer[before].tolist(), graph.group[then].tolist(), strict=True)
    inside = np.array([peer in members[group] for peer, group in both], bool)
    exchange[before[inside]] = number.max(initial=0) + 1 + number[then[inside]]
    return exchange


def exchange_order(of: np.ndarray, flows: Flows, seconds: np.ndarray) -> np.ndarray:
    """Return an order in which each all-to-all can wait for all earlier ones.

    All-to-alls are ordered by their starts, estimated as if flows shared no links. Raise `InputError` if two wait for
    parts of each other.
    """
    count, every = int(of.max(initial=-1)) + 1, len(of)
    node = np.where(of >= 0, of, count + np.arange(every))
    pairs = np.unique(node[flows.after].reshape(-1, 2), axis=0)
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    takes, begin, lag = np.zeros((3, count + every))
    for most, of_flows in ((takes, seconds), (begin, flows.start), (lag, flows.lag)):
        np.maximum.at(most, node, of_flows)
    first, then, waits = (part.tolist() for part in successors(pairs, count + every))
    there = set(node.tolist())
    ready = [(begin[index] + lag[index], index) for index in there if not waits[index]]
    heapq.heapify(ready)
    order, done = [], 0
    while ready:
        now, index = heapq.heappop(ready)
        done += 1
        if index < count:
            order.append(index)
        for follower in then[first[index] : first[index + 1]]:
            begin[follower] = max(begin[follower], now + takes[index])
            waits[follower] -= 1
            if not waits[follower]:
                heapq.heappush(ready, (begin[follower] + lag[follower], follower))
    if done < len(there):
        raise InputError(
            "circuits_for 'all-to-all' needs all-to-alls that can run in sequence, but some wait for parts of each "
            "other."
        )
    return np.array(order, np.int64)


def inside_regions(phases: Phases, size: int) -> Phases:
    """Keep only the bytes that circuits can carry: those between servers of one region of `size` servers."""
    region = np.arange(phases.demand.shape[-1]) // size
    return phases._replace(demand=phases.demand * (region[:, None] == region))


def circuits_of_each(demand: np.ndarray, size: int, choose: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Return the circuits [P S S] of all-to-alls inside regions of `size` servers.

    `choose` maps demands [N s s] to circuits [N s s].
    """
    circuits = np.zeros(demand.shape, np.int64)
    busy: dict[int, list[tuple[int, np.ndarray]]] = {}
    for phase, matrix in enumerate(demand):
        servers = np.flatnonzero(at_work(matrix))
        for region in np.unique(servers // size):
            mine = servers[servers // size == region]
            busy.setdefault(len(mine), []).append((phase, mine))
    for those in busy.values():
        count = choose(np.array([demand[phase][np.ix_(mine, mine)] for phase, mine in those]))
        for (phase, mine), matrix in zip(those, count, strict=True):
            circuits[phase][np.ix_(mine, mine)] = matrix
    return circuits


def with_reconfigurations(
    flows: Flows, phases: Phases, circuits: np.ndarray, optical: np.ndarray, delay_s: float, *, ahead: bool
) -> Flows:
    """Return the graph in which flows on circuits wait for the switch.

    - `circuits` [P S S]: of every all-to-all. `optical` [F]: mask of the flows that use them.
    - `ahead`: the switch reconfigures as soon as the earlier all-to-alls have ended, so the next demand must be known;
      else everything that the all-to-all waits for must have ended, too.
    """
    members = [np.flatnonzero(phases.exchange == phase) for phase in range(len(circuits))]
    from_outside = phases.exchange[flows.after[:, 0]] != phases.exchange[flows.after[:, 1]]
    own = _in_place_at_the_end(phases, circuits)
    users: list[list[int]] = [[] for _ in own]
    set_by = [-1] * len(own)
    lags: list[float] = []
    pairs: list[tuple[int, int]] = []

    def marker(waits_for, lag: float) -> int:
        number = flows.flows + len(lags)
        lags.append(lag)
        pairs.extend((int(earlier), number) for earlier in waits_for)
        return number

    ended: dict[int, int] = {}
    for phase, count in enumerate(circuits):
        servers = np.flatnonzero(at_work(phases.demand[phase])).tolist()
        if any((own[s] != count[s]).any() for s in servers):
            before = sorted({user for s in servers for user in users[s]})
            waits = [ended.get(user) or ended.setdefault(user, marker(members[user], 0.0)) for user in before]
            if not ahead:
                waits += flows.after[from_outside & (phases.exchange[flows.after[:, 1]] == phase), 0].tolist()
            reconfiguration = marker(waits, delay_s)
            for s in servers:
                own[s], users[s], set_by[s] = count[s], [], reconfiguration
        for s in servers:
            users[s].append(phase)
        reconfigurations = {set_by[s] for s in servers} - {-1}
        pairs.extend(
            (reconfiguration, int(flow))
            for reconfiguration in sorted(reconfigurations)
            for flow in members[phase][optical[members[phase]]]
        )
    return _more(flows, np.array(lags), np.array(pairs, np.int64).reshape(-1, 2))


def at_work(demand: np.ndarray) -> np.ndarray:
    """Return the mask [S] of servers that send or receive."""
    return np.any(demand + demand.T, axis=0).astype(bool)


def _in_place_at_the_end(phases: Phases, circuits: np.ndarray) -> list[np.ndarray]:
    own = [np.zeros(circuits.shape[1], circuits.dtype) for _ in range(circuits.shape[1])]
    for demand, count in zip(phases.demand, circuits, strict=True):
        for server in np.flatnonzero(at_work(demand)):
            own[server] = count[server]
    return own


def _more(flows: Flows, lag: np.ndarray, pairs: np.ndarray) -> Flows:
    nobody = np.full(len(lag), -1)
    added = flows_of(nobody, nobody, np.zeros(len(lag)), lag=lag, task=RECONFIGURATION)
    arrays = {name: np.concatenate([getattr(flows, name), getattr(added, name)]) for name in COLUMNS}
    return flows_of(**arrays, after=np.concatenate([flows.after, pairs]))
