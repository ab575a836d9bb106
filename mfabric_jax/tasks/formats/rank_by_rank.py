"""A graph in which tasks wait only for tasks of their own rank, as formats with a file for every rank need it."""

from collections import Counter, defaultdict
from typing import NamedTuple

import numpy as np

from mfabric_jax.flows.dependencies import run_order
from mfabric_jax.tasks.formats.files import so_many
from mfabric_jax.tasks.graph import FIELDS, TaskGraph, TaskKind, Tasks

SAID = {
    "home": ("marker of nobody is given a rank", "markers of nobody are given ranks"),
    "message": ("message is received where a rank waited for it", "messages are received where ranks waited for them"),
    "empty": (
        "message of no bytes says that another rank is done",
        "messages of no bytes say that another rank is done",
    ),
}


class WithinRanks(NamedTuple):
    """The graph, with the tasks of the given one first; remarks."""

    graph: TaskGraph
    remarks: tuple[str, ...]


def within_ranks(graph: TaskGraph) -> WithinRanks:
    """What waits for another rank waits for a message from it: that of a SEND to this rank that has no RECV, else one
    of no bytes. A MARKER of nobody goes to the rank of the first task that it waits for, else to rank 0.
    """
    rank = _homes(graph)
    inside = rank[graph.after[:, 0]] == rank[graph.after[:, 1]]
    noted = Counter(home=int((graph.rank != rank).sum()))
    if inside.all() and not noted["home"]:
        return WithinRanks(graph, ())
    tasks = Tasks(graph.ranks, graph.groups)
    for name in FIELDS:
        if name != "after":
            tasks.column(name).extend(getattr(graph, name).tolist())
    tasks.column("name").extend(graph.name)
    tasks.column("rank")[:] = rank.tolist()
    tasks.after = [(first, then) for first, then in graph.after[inside].tolist()]
    waiting: dict[tuple[int, int], list[int]] = defaultdict(list)
    for first, then in graph.after[~inside].tolist():
        waiting[first, int(rank[then])].append(then)
    for match, ((first, there), others) in enumerate(waiting.items(), start=1 + int(graph.match.max())):
        here, name = int(rank[first]), graph.name[first]
        if graph.kind[first] == TaskKind.SEND and graph.peer[first] == there and graph.match[first] < 0:
            noted["message"] += 1
            tasks.column("match")[first] = match
        else:
            noted["empty"] += 1
            tasks.add(TaskKind.SEND, here, f"{name} ended", first, peer=there, match=match)
        arrived = tasks.add(TaskKind.RECV, there, f"{name} arrived", peer=here, match=match)
        for then in others:
            tasks.wait(then, arrived)
    return WithinRanks(
        tasks.graph(), tuple(f"{so_many(noted[key], *words)}." for key, words in SAID.items() if noted[key])
    )


def _homes(graph: TaskGraph) -> np.ndarray:
    """[T] the rank of every task, also of those that are nobody's."""
    rank = graph.rank.copy()
    before: dict[int, int] = {}
    for first, then in sorted(graph.after.tolist(), reverse=True):
        before[then] = first
    for task in run_order(graph.after, graph.tasks).tolist():
        if rank[task] < 0:
            rank[task] = rank[before[task]] if task in before else 0
    return rank
