"""Choose an order for the tasks of each lane, which run one at a time, and add it to the graph as waits.

Tasks are ordered by the time at which they begin in a trial run: links have no limits, and messages and collectives
have one guessed rate. A ready task begins once its lanes are free, the lowest number first. A collective takes the
lanes of all its members at once; along a tree, each member begins after those from which it receives. The trial run is
feasible, so the added waits close no cycle.
"""

import heapq

import numpy as np

from mfabric_jax.apps.graphs.tasks.graph import TaskGraph, TaskKind
from mfabric_jax.flows.dependencies import successors


def one_for_each_collective(graph: TaskGraph, which: np.ndarray, *more: np.ndarray):
    """Merge the tasks of each collective into its first task; return (node of each task [T], waits of nodes [D 2]).

    - `which` [T]: the collective of a task; -1: none, or its members begin one by one.
    - `more` [N 2]: further pairs of tasks; the second waits for the first.
    """
    node = np.arange(graph.tasks)
    own = np.flatnonzero(which >= 0)
    if own.size:
        _, lead, back = np.unique(which[own], return_index=True, return_inverse=True)
        node[own] = own[lead][back]
    return node, np.concatenate([node[graph.after], *more])


def lane_waits(graph: TaskGraph, node: np.ndarray, after: np.ndarray, bytes_per_s: float) -> np.ndarray:
    """Return the pairs [D 2] of successive tasks on a lane: the second waits for the first.

    `node`, `after`: as `one_for_each_collective` returns them, without a cycle. `bytes_per_s`: the guessed rate.
    """
    tasks = np.flatnonzero(graph.lane >= 0)
    if not tasks.size:
        return np.zeros((0, 2), np.int64)
    _, lane = np.unique(np.stack([graph.rank[tasks], graph.lane[tasks]]), axis=1, return_inverse=True)
    lanes: list[list[int]] = [[] for _ in range(graph.tasks)]
    for index, of in zip(node[tasks].tolist(), lane.tolist(), strict=True):
        lanes[index].append(of)
    start, lag, duration = _times(graph, node, bytes_per_s)
    position = np.argsort(_begin_order(lanes, start, lag, duration, after))
    order = np.lexsort((position[node[tasks]], lane))
    tasks, lane = tasks[order], lane[order]
    same = lane[:-1] == lane[1:]
    return np.stack([tasks[:-1][same], tasks[1:][same]], axis=1)


def lane_bound_tasks(graph: TaskGraph, lane: np.ndarray) -> np.ndarray:
    """Return the tasks with a lag whose lane may become free after their other waits end. `lane`: from `lane_waits`."""
    lane = lane[graph.lag[lane[:, 1]] > 0]
    neighbour = np.full(graph.tasks, -1)
    neighbour[lane[:, 1]] = lane[:, 0]
    known = graph.after[:, 0] * graph.tasks + graph.after[:, 1]
    before, then = graph.after[neighbour[graph.after[:, 1]] >= 0].T
    own = neighbour[then]
    sooner = then[(own == before) | np.isin(own * graph.tasks + before, known)]
    return np.setdiff1d(lane[:, 1], sooner)


def _times(graph: TaskGraph, node: np.ndarray, bytes_per_s: float):
    moves = np.isin(graph.kind, (TaskKind.SEND, TaskKind.COLLECTIVE))
    busy = np.where(moves, graph.bytes / bytes_per_s, np.where(graph.kind == TaskKind.COMPUTE, graph.seconds, 0))
    for values in (graph.start, graph.lag, busy):
        most = np.zeros(graph.tasks)
        np.maximum.at(most, node, values)
        yield most.tolist()


def _begin_order(lanes: list[list[int]], start: list, lag: list, duration: list, after: np.ndarray) -> list[int]:
    first, then, waits = (part.tolist() for part in successors(after, len(lanes)))
    taken: set[int] = set()
    queues: dict[int, list[int]] = {}  # the nodes that wait for each lane
    order: list[int] = []
    free_from = list(start)
    events = [(start[node] + lag[node], False, node) for node, others in enumerate(waits) if not others]
    heapq.heapify(events)  # (time, whether the node ends, node)
    while events:
        now, tries, freed = events[0][0], [], []
        while events and events[0][0] == now:
            _, ends, node = heapq.heappop(events)
            if not ends:
                tries.append(node)
                continue
            freed += lanes[node]
            taken.difference_update(lanes[node])
            for other in then[first[node] : first[node + 1]]:
                waits[other] -= 1
                free_from[other] = max(free_from[other], now)
                if not waits[other]:
                    heapq.heappush(events, (free_from[other] + lag[other], False, other))
        while tries or freed:
            freed = [lane for lane in freed if lane not in taken and queues.get(lane)]
            for node in sorted({*tries, *(heapq.heappop(queues[lane]) for lane in freed)}):
                if blocked := [lane for lane in lanes[node] if lane in taken]:
                    heapq.heappush(queues.setdefault(blocked[0], []), node)
                    continue
                taken.update(lanes[node])
                order.append(node)
                heapq.heappush(events, (now + duration[node], True, node))
            tries = []
    return order
