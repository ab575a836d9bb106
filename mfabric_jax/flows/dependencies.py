"""Dependencies between flows as arrays: a run order, and the members of a cycle."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from mfabric_jax.checks import InputError
from mfabric_jax.support.host_arrays import real_numbers
from mfabric_jax.support.loops import at_first_call

SHOWN = 8  # most members of a cycle named in a message
MANY = 10_000  # number of flows above which compiling the walk pays off
_compiled_walk = at_first_call("mfabric_jax.flows.dependencies:_walk")


class Successors(NamedTuple):
    """The flows that wait for f are `flow[first[f] : first[f + 1]]` [D]; `waits` [F]: number of flows that f awaits."""

    first: np.ndarray
    flow: np.ndarray
    waits: np.ndarray


def check_after(after: Any, flows: int) -> np.ndarray:
    """Return `after` as int64 [D 2]. Raise `InputError` for a wrong shape or an unknown flow."""
    pairs = np.zeros((0, 2), np.int64) if after is None else np.asarray(real_numbers("after", after))
    if pairs.size == 0:
        return np.zeros((0, 2), np.int64)
    if pairs.ndim != 2 or pairs.shape[1] != 2 or not np.issubdtype(pairs.dtype, np.integer):
        raise InputError(f"after must be integers [D 2], got {pairs.dtype} {list(pairs.shape)}.")
    if pairs.min() < 0 or pairs.max() >= flows:
        raise InputError(f"after must name flows 0..{flows - 1}, got {pairs.min()}..{pairs.max()}.")
    return pairs.astype(np.int64, copy=False)


def successors(after: np.ndarray, flows: int) -> Successors:
    order = np.argsort(after[:, 0], kind="stable")
    first = np.zeros(flows + 1, np.int64)
    np.cumsum(np.bincount(after[:, 0], minlength=flows), out=first[1:])
    return Successors(first, after[order, 1], np.bincount(after[:, 1], minlength=flows))


def run_order(after: np.ndarray, flows: int, named: Callable[[int], str] = str) -> np.ndarray:
    """Return all flows [F], each after everything it waits for. Raise `InputError` with the members of a cycle.

    `named` gives a flow's name in the message; equal names are shown once.
    """
    order, _ = _walk_flows(after, flows)
    if len(order) < flows:
        members = list(dict.fromkeys(named(member) for member in cycle_of(after, flows)))
        shown = " -> ".join(members[:SHOWN]) + (" -> ..." if len(members) > SHOWN else "")
        many = f"{len(members)} wait for each other" if len(members) > 1 else "one waits for itself"
        raise InputError(f"after must have no cycle, but {many}: {shown} -> {members[0]}.")
    return order


def _walk_flows(after: np.ndarray, flows: int) -> tuple[np.ndarray, np.ndarray]:
    first, then, waits = successors(after, flows)
    order = np.zeros(flows, np.int64)
    walk = _compiled_walk if flows > MANY else _walk
    return order[: walk(first, then, waits, order)], waits


def _walk(first: np.ndarray, then: np.ndarray, waits: np.ndarray, order: np.ndarray):
    known = 0
    for flow in range(len(waits)):
        if waits[flow] == 0:
            order[known] = flow
            known += 1
    head = 0
    while head < known:
        flow = order[head]
        head += 1
        for slot in range(first[flow], first[flow + 1]):
            waits[then[slot]] -= 1
            if waits[then[slot]] == 0:
                order[known] = then[slot]
                known += 1
    return known


def cycle_of(after: np.ndarray, flows: int) -> list[int]:
    """Return the members of one cycle, each before the one that waits for it; empty if there is no cycle."""
    _, waits = _walk_flows(after, flows)
    stuck = waits > 0
    if not stuck.any():
        return []
    before = np.full(flows, -1)  # every stuck flow waits for another stuck one
    among = after[stuck[after[:, 0]] & stuck[after[:, 1]]]
    before[among[:, 1]] = among[:, 0]
    seen, member = {}, int(np.argmax(stuck))
    walk: list[int] = []
    while member not in seen:
        seen[member] = len(walk)
        walk.append(member)
        member = int(before[member])
    return walk[seen[member] :][::-1]
