"""Find the tasks of each collective and message, and those that are missing."""

from typing import NamedTuple

import numpy as np

from mfabric_jax.apps.graphs.tasks.collectives.registry import ROOTED
from mfabric_jax.apps.graphs.tasks.graph import TaskGraph, TaskKind
from mfabric_jax.checks import InputError


class Collectives(NamedTuple):
    """C collectives with M members in total. Members of one collective are adjacent, in group order, root first.

    - `op`, `group`, `size` [C]; `first` [C+1]: collective c has the members `first[c] : first[c + 1]`.
    - `rank`, `task` [M]: of each member; `task` is -1 if the graph lacks it.
    - `bytes` [M]: bytes of each member; a missing one has the most bytes of the others. `even` [C]: whether all members
      have equal bytes.
    """

    op: np.ndarray
    group: np.ndarray
    size: np.ndarray
    first: np.ndarray
    rank: np.ndarray
    task: np.ndarray
    bytes: np.ndarray
    even: np.ndarray


def collectives_of(graph: TaskGraph) -> Collectives:
    """Group collective tasks by `match`; a task without one is alone. Raise `InputError` if members disagree."""
    task = np.flatnonzero(graph.of(TaskKind.COLLECTIVE))
    match = graph.match[task]
    match = np.where(match < 0, graph.match.max(initial=0) + 1 + np.arange(len(task)), match)
    _, leads, which = np.unique(match, return_index=True, return_inverse=True)
    for name in ("op", "group"):
        _same(graph, name, task, task[leads][which])
    op, group = graph.op[task[leads]], graph.group[task[leads]]

    length = np.array([len(members) for members in graph.groups], np.int64)
    offset = np.concatenate([[0], np.cumsum(length)])
    listed = np.array([rank for members in graph.groups for rank in members], np.int64)
    position = _positions(graph, task, offset, listed)
    size = length[group]
    first = np.concatenate([[0], np.cumsum(size)])
    root = _roots(graph, task, leads, which, op, offset, listed)

    own = first[which] + (position - root[which]) % size[which]
    twice = np.flatnonzero(np.bincount(own, minlength=first[-1]) > 1)
    if twice.size:
        a, b = task[own == twice[0]][:2].tolist()
        raise InputError(
            f"a collective must have one task of each rank, but {graph.task_label(a)} and "
            f"{graph.task_label(b)} are both of rank "
            f"{graph.rank[a]} and have the same match."
        )
    collective = np.repeat(np.arange(len(op)), size)
    within = (np.arange(first[-1]) - first[collective] + root[collective]) % size[collective]
    members = np.full(first[-1], -1)
    members[own] = task
    most, least = np.zeros(len(op)), np.full(len(op), np.inf)
    np.maximum.at(most, which, graph.bytes[task])
    np.minimum.at(least, which, graph.bytes[task])
    sizes = np.where(members >= 0, graph.bytes[members], most[collective]) if len(task) else np.zeros(0)
    return Collectives(
        op, group, size, first, listed[offset[group][collective] + within], members, sizes, most == least
    )


def _positions(graph: TaskGraph, task, offset, listed) -> np.ndarray:
    group = np.repeat(np.arange(len(graph.groups)), np.diff(offset))
    key, wanted = group * graph.ranks + listed, graph.group[task] * graph.ranks + graph.rank[task]
    order = np.argsort(key)
    index = np.searchsorted(key[order], wanted)
    is_member = np.append(key[order], -1)[index] == wanted
    if not is_member.all():
        lost = task[np.argmin(is_member)]
        raise InputError(
            f"rank of {graph.task_label(lost)} must be one of its group {graph.group[lost]}, got {graph.rank[lost]}."
        )
    return order[index] - offset[graph.group[task]] if len(task) else np.zeros(0, np.int64)


def _roots(graph: TaskGraph, task, leads, which, op, offset, listed) -> np.ndarray:
    root = np.zeros(len(op), np.int64)
    rooted = np.isin(op, [int(kind) for kind in ROOTED])
    of_rooted = task[rooted[which]]
    _same(graph, "peer", of_rooted, task[leads][which][rooted[which]])
    for collective in np.flatnonzero(rooted):
        lead = task[leads[collective]]
        group = graph.group[lead]
        positions = np.flatnonzero(listed[offset[group] : offset[group + 1]] == graph.peer[lead])
        if not positions.size:
            raise InputError(
                f"peer of {graph.task_label(lead)} must be its root, a rank of group {group}, got {graph.peer[lead]}."
            )
        root[collective] = positions[0]
    return root


def _same(graph: TaskGraph, name: str, task: np.ndarray, lead: np.ndarray) -> None:
    values = getattr(graph, name)
    other = np.flatnonzero(values[task] != values[lead])
    if other.size:
        a, b = int(lead[other[0]]), int(task[other[0]])
        raise InputError(
            f"{name} must be the same for all tasks of one collective, but {graph.task_label(a)} has {values[a]} and "
            f"{graph.task_label(b)} has {values[b]}."
        )


def check_all_there(graph: TaskGraph, collectives: Collectives) -> None:
    """Raise an `InputError` that names the first collective with a missing member, if there is one."""
    missing = np.flatnonzero(collectives.task < 0)
    if not missing.size:
        return
    collective = np.searchsorted(collectives.first, missing[0], side="right") - 1
    members = slice(collectives.first[collective], collectives.first[collective + 1])
    there = collectives.task[members][collectives.task[members] >= 0]
    raise InputError(
        f"{graph.task_label(int(there[0]))} is a collective of {collectives.size[collective]} ranks, but the "
        f"graph has tasks of "
        f"only {len(there)} of them, none of rank {collectives.rank[missing[0]]}; read the files of all "
        f"ranks, or let the "
        "missing ones join with absent='assume'."
    )


def _check_sizes(graph: TaskGraph, receive: np.ndarray) -> None:
    unknown = receive[graph.bytes[receive] == 0]
    if unknown.size:
        raise InputError(
            f"bytes of {graph.task_label(unknown[0])} must be above 0: no task sends its message from rank "
            f"{graph.peer[unknown[0]]}, so absent='assume' sends these bytes."
        )


def messages_of(graph: TaskGraph, assume: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers of the SEND [P] and the RECV [P] of each message that has both.

    Raise `InputError` if the two do not fit, and for a RECV without a SEND unless `assume`.
    """
    send, receive = (np.flatnonzero(graph.of(kind)) for kind in (TaskKind.SEND, TaskKind.RECV))
    send = send[graph.match[send] >= 0]
    for tasks in (send, receive):
        order = tasks[np.argsort(graph.match[tasks], kind="stable")]
        twice = np.flatnonzero((np.diff(graph.match[order]) == 0) & (graph.match[order[1:]] >= 0))
        if twice.size:
            a, b = order[twice[0] : twice[0] + 2].tolist()
            raise InputError(
                f"a message has one SEND and one RECV, but {graph.task_label(a)} and {graph.task_label(b)} share it."
            )
    order = send[np.argsort(graph.match[send])]
    index = np.searchsorted(graph.match[order], graph.match[receive])
    known = np.append(graph.match[order], -1)[index] == graph.match[receive]
    known &= graph.match[receive] >= 0
    if assume:
        _check_sizes(graph, receive[~known])
    if not (known.all() or assume):
        lost = receive[np.argmin(known)]
        raise InputError(
            f"{graph.task_label(lost)} waits for a message of rank {graph.peer[lost]} that no task sends; "
            f"read the files of "
            "all ranks, or assume with absent='assume' that it is sent in time."
        )
    pair = order[index[known]], receive[known]
    wrong = np.flatnonzero((graph.peer[pair[0]] != graph.rank[pair[1]]) | (graph.rank[pair[0]] != graph.peer[pair[1]]))
    if wrong.size:
        a, b = (int(tasks[wrong[0]]) for tasks in pair)
        raise InputError(
            f"{graph.task_label(a)} sends from rank {graph.rank[a]} to {graph.peer[a]}, but "
            f"{graph.task_label(b)}, which has the "
            f"same match, is of rank {graph.rank[b]} and waits for {graph.peer[b]}."
        )
    return pair
