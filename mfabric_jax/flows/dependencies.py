"""What waits for what, as arrays: an order in which everything can run, and cycles by their members."""

from typing import NamedTuple

import numpy as np

from mfabric_jax.checks import InputError

SHOWN = 8  # members of a cycle that a sentence names


class Successors(NamedTuple):
    """Row `first[f] : first[f + 1]` of `flow` [D] holds what waits for f; `waits` [F] counts what f waits for."""

    first: np.ndarray
    flow: np.ndarray
    waits: np.ndarray


def checked_after(after, flows: int) -> np.ndarray:
    """`after` as int64 [D 2]; `InputError` for another shape, or a flow that is not there."""
    pairs = np.zeros((0, 2), np.int64) if after is None else np.asarray(after)
    if pairs.size == 0:
        return np.zeros((0, 2), np.int64)
    if pairs.ndim != 2 or pairs.shape[1] != 2 or not np.issubdtype(pairs.dtype, np.integer):
        raise InputError(f"after must be integers [D 2], got {pairs.dtype} {list(pairs.shape)}.")
    if pairs.min() < 0 or pairs.max() >= flows:
        raise InputError(f"after must name flows 0..{flows - 1}, got {pairs.min()}..{pairs.max()}.")
    return pairs.astype(np.int64)


def successors(after: np.ndarray, flows: int) -> Successors:
    """The pairs [D 2] by what is waited for."""
    order = np.argsort(after[:, 0], kind="stable")
    first = np.zeros(flows + 1, np.int64)
    np.cumsum(np.bincount(after[:, 0], minlength=flows), out=first[1:])
    return Successors(first, after[order, 1], np.bincount(after[:, 1], minlength=flows))


def run_order(after: np.ndarray, flows: int) -> np.ndarray:
    """All flows [F], each behind everything that it waits for; `InputError` names the members of a cycle."""
    first, then, waits = (part.tolist() for part in successors(after, flows))
    order = [flow for flow in range(flows) if not waits[flow]]
    for flow in order:  # grows as it goes
        for follower in then[first[flow] : first[flow + 1]]:
            waits[follower] -= 1
            if not waits[follower]:
                order.append(follower)
    if len(order) < flows:
        members = cycle_of(after, flows)
        named = " -> ".join(str(member) for member in members[:SHOWN]) + (" -> ..." if len(members) > SHOWN else "")
        raise InputError(f"after must have no cycle, but {len(members)} wait for each other: {named} -> {members[0]}.")
    return np.array(order, np.int64)


def cycle_of(after: np.ndarray, flows: int) -> list[int]:
    """The members of one cycle, each waited for by the next one; empty where there is none."""
    first, then, waits = (part.tolist() for part in successors(after, flows))
    free = [flow for flow in range(flows) if not waits[flow]]
    for flow in free:
        for follower in then[first[flow] : first[flow + 1]]:
            waits[follower] -= 1
            if not waits[follower]:
                free.append(follower)
    stuck = np.array(waits) > 0
    if not stuck.any():
        return []
    before = np.full(flows, -1)  # every stuck flow waits for another stuck one
    among = after[stuck[after[:, 0]] & stuck[after[:, 1]]]
    before[among[:, 1]] = among[:, 0]
    seen, at = {}, int(np.argmax(stuck))
    walk: list[int] = []
    while at not in seen:
        seen[at] = len(walk)
        walk.append(at)
        at = int(before[at])
    return walk[seen[at] :][::-1]
