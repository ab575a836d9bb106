"""Which collectives have one pattern."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from mfabric_jax.checks import InputError
from mfabric_jax.tasks._members import Collectives
from mfabric_jax.tasks.collectives.choice import Choice, which_choice
from mfabric_jax.tasks.collectives.registry import BY_SERVER, OWN_BYTES
from mfabric_jax.tasks.graph import Op, TaskGraph


class SamePattern(NamedTuple):
    """`collectives` [I] that run one algorithm on members that share `servers` [n] alike."""

    op: Op
    choice: Choice
    servers: tuple[int, ...]
    collectives: np.ndarray


def same_patterns(
    graph: TaskGraph, found: Collectives, choices: dict[Op, tuple[Choice, ...]], server: np.ndarray
) -> Iterator[SamePattern]:
    """All of them. `server` [ranks]. `InputError` where members have different bytes and the algorithm forwards."""
    most = np.maximum.reduceat(found.bytes, found.first[:-1]) if len(found.op) else np.zeros(0)
    for op in Op:
        of_op = np.flatnonzero(found.op == op)
        option = which_choice(choices[op], most[of_op])
        for number in np.unique(option):
            choice, those = choices[op][number], of_op[option == number]
            _check_bytes(graph, found, those, op, choice)
            for shape, of_shape in _by_shape(graph, found, those, choice, server):
                yield SamePattern(op, choice, shape, of_shape)


def _check_bytes(graph: TaskGraph, found: Collectives, those: np.ndarray, op: Op, choice: Choice) -> None:
    uneven = those[~found.even[those]]
    if uneven.size and (choice.algorithm, op) not in OWN_BYTES:
        members = slice(found.first[uneven[0]], found.first[uneven[0] + 1])
        task = found.task[members][found.task[members] >= 0]
        a, b = task[np.argmin(graph.bytes[task])], task[np.argmax(graph.bytes[task])]
        raise InputError(
            f"bytes must be the same for all members of a collective ({choice.algorithm}), but {graph.named(a)} has "
            f"{graph.bytes[a]:g} and {graph.named(b)} has {graph.bytes[b]:g}."
        )


def _by_shape(graph: TaskGraph, found: Collectives, those: np.ndarray, choice: Choice, server: np.ndarray):
    """(servers of the members, collectives of `those`): by size, and by who shares a server where that matters."""
    if choice.algorithm not in BY_SERVER:
        for size in np.unique(found.size[those]):
            yield (0,) * int(size), those[found.size[those] == size]
        return
    groups, which = np.unique(found.group[those], return_inverse=True)
    shapes = [_numbered(server[list(graph.groups[group])].tolist()) for group in groups]
    known = {shape: number for number, shape in enumerate(dict.fromkeys(shapes))}
    number = np.array([known[shape] for shape in shapes], np.int64)[which]
    for shape, one in known.items():
        yield shape, those[number == one]


def _numbered(servers: list[int]) -> tuple[int, ...]:
    """Servers by 0, 1, ... in the order in which they appear."""
    first = {server: number for number, server in enumerate(dict.fromkeys(servers))}
    return tuple(first[server] for server in servers)
