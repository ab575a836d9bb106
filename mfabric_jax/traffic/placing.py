"""Tokens of placed experts: on which loads they are placed, how often again, and what moves between ranks then.

Letters: I iterations, R ranks, E experts.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int, Num

from mfabric_jax.checks import whole
from mfabric_jax.traffic.placement import PlacementPolicy, Room, contiguous
from mfabric_jax.traffic.tokens import Tokens


def placed(
    tokens: Tokens, room: Room, policy: PlacementPolicy, *, on: str = "past", every: int = 0, window: int = 1
) -> Tokens:
    """Tokens by physical slot instead of by expert.

    - `on`: "past": placed on the loads of up to `window` iterations before (before the first: `tokens.before`, or, if
      that is not known, `contiguous`); "now": on those of the iterations that they then serve, as if known.
    - `every`: so many iterations they are placed again; 0: never.
    """
    return placed_alike((tokens,), room, policy, on=on, every=every, window=window)[0]


def placed_alike(replicas: Sequence[Tokens], room: Room, policy: PlacementPolicy, **how: Any) -> tuple[Tokens, ...]:
    """Tokens of every replica by physical slot, which hold the same experts in all: placed on the loads of all.

    `how`: as in `placed`.
    """
    before = [tokens.before for tokens in replicas if tokens.before is not None]
    known = np.concatenate(before, axis=1) if len(before) == len(replicas) else None
    count = replicas[0].count if len(replicas) == 1 else np.concatenate([one.count for one in replicas], axis=2)
    slots = _slots(Tokens(count, replicas[0].source, known), room, policy, **how)
    return tuple(
        dataclasses.replace(one, count=in_slots(one.count, slots), slots=slots, by_expert=one) for one in replicas
    )


def _slots(
    tokens: Tokens, room: Room, policy: PlacementPolicy, on: str = "past", every: int = 0, window: int = 1
) -> Int[np.ndarray, "I layer slot"]:
    whole("replace_every", every, at_least=0)
    whole("placed_window", window)
    iterations, layers, experts = len(tokens.count), tokens.count.shape[1], tokens.count.shape[-1]
    room.check(experts)
    slots = np.empty((iterations, layers, room.slots), int)
    for first in range(0, iterations, every or iterations):
        served = slice(first, first + (every or iterations))
        known = tokens.count[served] if on == "now" else _past(tokens, first, window)
        for layer in range(layers):
            seen = known[:, layer].sum(axis=(0, 1), dtype=np.float64)
            slots[served, layer] = policy(seen, room) if len(known) else contiguous(seen, room)
    return slots


def _past(tokens: Tokens, first: int, window: int) -> Num[np.ndarray, "W layer M R E"]:
    """The last iterations before `first`."""
    known = tokens.count[max(0, first - window) : first]
    if tokens.before is None or len(known) == window:
        return known
    return np.concatenate([tokens.before[None], known])


def in_slots(
    count: Num[np.ndarray, "I layer M R E"], slots: Int[np.ndarray, "I layer slot"]
) -> Num[np.ndarray, "I layer M R slot"]:
    """Selections by slot: those of an expert in equal parts over its copies."""
    found = np.take_along_axis(count, slots[:, :, None, None, :], axis=-1)
    if slots.shape[-1] == count.shape[-1]:
        return found
    copies = (slots[..., None] == np.arange(count.shape[-1])).sum(axis=-2)  # [I layer E]
    return found / np.take_along_axis(copies, slots, axis=-1)[:, :, None, None, :]


def copied_experts(slots: Int[np.ndarray, "I layer slot"], room: Room, every: int) -> Float[np.ndarray, "I layer R R"]:
    """How many experts go from rank to rank before an iteration, on average over the `every` that it serves.

    The first placement replaces the contiguous one. An expert comes from a rank that had it before: one of the same
    server if there is one, and of several the one that sends least so far. What a rank has already does not move.
    """
    moved = np.zeros((*slots.shape[:2], room.ranks, room.ranks))
    for layer in range(slots.shape[1]):
        before = contiguous(np.empty((1, slots.max() + 1)), room)
        for first in range(0, len(slots), every):
            now = slots[first, layer]
            moved[first : first + every, layer] = _copied(before, now, room) / every
            before = now
    return moved


def _copied(before: Int[np.ndarray, "slot"], after: Int[np.ndarray, "slot"], room: Room) -> Float[np.ndarray, "R R"]:
    had, moved = before.reshape(room.ranks, -1), np.zeros((room.ranks, room.ranks))
    for rank, experts in enumerate(after.reshape(room.ranks, -1)):
        for expert in sorted(set(experts.tolist()) - set(had[rank].tolist())):
            moved[_nearest(had, expert, rank, moved, room), rank] += 1
    return moved


def _nearest(had: Int[np.ndarray, "R n"], expert: int, rank: int, moved: Float[np.ndarray, "R R"], room: Room) -> int:
    holders = np.flatnonzero((had == expert).any(axis=1))
    near = holders[holders // room.ranks_per_server == rank // room.ranks_per_server]
    some = near if len(near) else holders
    return int(some[np.argmin(moved[some].sum(axis=1))])
