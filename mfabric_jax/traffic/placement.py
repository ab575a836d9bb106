"""Expert placement: which expert every physical slot holds, placement policies, and tokens by slot.

A placement policy is `(selections [R E], SlotLayout) -> expert [slots]`. An expert in c slots gets 1/c of its
selections in each. Packing and replication follow github.com/deepseek-ai/EPLB: items go in order of weight, each to the
lightest pack with room. Letters: I iterations, R ranks, E experts.
"""

import dataclasses
import heapq
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int, Num

from mfabric_jax.checks import InputError, one_of, whole
from mfabric_jax.traffic.tokens import Tokens


class SlotLayout(NamedTuple):
    """The slots of a group, over its ranks and servers; `groups` of neighbouring experts stay on one server."""

    ranks: int
    ranks_per_server: int
    slots: int
    groups: int

    @property
    def servers(self) -> int:
        return self.ranks // self.ranks_per_server

    def check(self, experts: int) -> None:
        """Raise `InputError` unless ranks divide slots, every expert gets a slot, and groups divide experts."""
        if self.slots % self.ranks or self.slots < experts:
            raise InputError(
                f"slots must be a multiple of the {self.ranks} ranks, at least one for each of {experts} experts, "
                f"got {self.slots}."
            )
        if experts % self.groups:
            raise InputError(f"groups of the placement rule must divide the {experts} experts, got {self.groups}.")


PlacementPolicy = Callable[[Num[np.ndarray, "R E"], SlotLayout], Int[np.ndarray, "slots"]]


def contiguous(selections: Num[np.ndarray, "R E"], layout: SlotLayout) -> Int[np.ndarray, "slots"]:
    """Place experts in order; with more slots than experts, copies of an expert are neighbours."""
    return np.arange(layout.slots) * selections.shape[1] // layout.slots


def longest_processing_time(selections: Num[np.ndarray, "R E"], layout: SlotLayout) -> Int[np.ndarray, "slots"]:
    """Place experts by EPLB's global balancing: in order of load, each to the least loaded rank with a free slot.

    Without copies and with enough slots, the largest load is at most 4/3 - 1/(3 R) of the optimum (Graham 1969).
    """
    return _balance(selections.sum(axis=0, dtype=np.float64), layout.slots, layout.ranks)


def hierarchical(selections: Num[np.ndarray, "R E"], layout: SlotLayout) -> Int[np.ndarray, "slots"]:
    """Place experts by EPLB's hierarchical balancing, or `longest_processing_time` if servers do not divide groups.

    It packs groups of experts to servers, copies each server's heaviest experts inside it, and packs copies to ranks.
    """
    load = selections.sum(axis=0, dtype=np.float64)
    servers = layout.servers
    if layout.groups % servers:
        return _balance(load, layout.slots, layout.ranks)
    size = len(load) // layout.groups
    packs = pack_items(load.reshape(layout.groups, size).sum(axis=1), servers)
    here = (packs[..., None] * size + np.arange(size)).reshape(servers, -1)  # experts of every server
    slots = [some[_balance(load[some], layout.slots // servers, layout.ranks_per_server)] for some in here]
    return np.concatenate(slots)


def pack_items(weight: Num[np.ndarray, "N"], packs: int) -> Int[np.ndarray, "packs n"]:
    """Return items in packs of equal size, heaviest first to the lightest pack with room; packs keep that order."""
    each = len(weight) // packs
    if each == 1:
        return np.arange(packs)[:, None]
    items: list[list[int]] = [[] for _ in range(packs)]
    open_packs = [(0.0, pack) for pack in range(packs)]  # a heap: the lightest, then the first
    for item in np.argsort(-np.asarray(weight), kind="stable"):
        total, lightest = open_packs[0]
        items[lightest].append(int(item))
        if len(items[lightest]) < each:
            heapq.heapreplace(open_packs, (total + float(weight[item]), lightest))
        else:
            heapq.heappop(open_packs)
    return np.array(items)


def replicate_experts(load: Num[np.ndarray, "E"], slots: int) -> Int[np.ndarray, "slots"]:
    """Return the expert of every copy: first each expert once, then repeatedly the one with most load per copy."""
    copies = np.ones(len(load))
    more = []
    for _ in range(slots - len(load)):
        more.append(int(np.argmax(load / copies)))
        copies[more[-1]] += 1
    return np.concatenate([np.arange(len(load)), np.array(more, int)])


def _balance(load: Num[np.ndarray, "E"], slots: int, ranks: int) -> Int[np.ndarray, "slots"]:
    of = replicate_experts(load, slots)
    each = (load / np.bincount(of, minlength=len(load)))[of]
    return of[pack_items(each, ranks)].ravel()


# Placement that gives circuits the least to carry.
# With circuits that follow demand and servers that forward, an all-to-all ends near the degree bound: what the busiest
# server sends or receives, over its ports (docs/policies.md). So experts are swapped between servers while that bound
# falls and no rank computes noticeably more. The method is ours.

MORE = 1.02  # limit of the busiest rank's load, relative to placement by load alone
STEPS = 400  # most swaps
LEAST = 1e-4  # least gain of a swap, relative to the busiest port's load
SHARP = 8  # of a power mean instead of the maximum, so that a swap helps even if another server is as busy


def with_circuits(selections: Num[np.ndarray, "R E"], layout: SlotLayout) -> Int[np.ndarray, "slots"]:
    """Place experts as `hierarchical`, then swap them to lower what the busiest server sends or receives.

    First all experts of two ranks are swapped, then single experts, while the busiest rank's load rises by at most 2 %.
    """
    slots = hierarchical(selections, layout)
    if layout.servers == 1:
        return slots
    copies = np.bincount(slots, minlength=selections.shape[1])
    sent = selections.reshape(layout.servers, layout.ranks_per_server, -1).sum(axis=1, dtype=np.float64) / copies
    load = sent.sum(axis=0)
    most = MORE * load[slots].reshape(layout.ranks, -1).sum(axis=1).max()
    for together in (layout.slots // layout.ranks, 1):
        units = slots.reshape(-1, together)  # a view, so swaps change `slots`
        for _ in range(STEPS):
            swap = _best_swap(units, sent, layout, most)
            if swap is None:
                break
            units[list(swap)] = units[list(swap[::-1])]
    return slots


def server_ports(
    slots: Int[np.ndarray, "slots"], selections: Float[np.ndarray, "S E"], servers: int
) -> Float[np.ndarray, "S 2"]:
    """Return the selections that every server sends to others and receives; `selections` are per copy of an expert."""
    held = selections[:, slots].reshape(servers, servers, -1).sum(axis=-1)  # from server to server
    kept = np.diagonal(held)
    return np.stack([held.sum(axis=1) - kept, held.sum(axis=0) - kept], axis=-1)


def _best_swap(
    units: Int[np.ndarray, "U n"], sent: Float[np.ndarray, "S E"], layout: SlotLayout, most: float
) -> tuple[int, int] | None:
    server, rank = (np.arange(len(units)) // (len(units) // parts) for parts in (layout.servers, layout.ranks))
    ports = server_ports(units.ravel(), sent, layout.servers)
    busy = int(np.argmax(ports.max(axis=1)))
    here, there = np.flatnonzero(server == busy), np.flatnonzero(server != busy)
    to = sent[:, units].sum(axis=-1)  # from every server to every unit
    load = to.sum(axis=0)
    at_rank = np.bincount(rank, load)
    more = load[there][None, :] - load[here][:, None]
    allowed = (at_rank[rank[here]][:, None] + more <= most) & (at_rank[rank[there]][None, :] - more <= most)
    gain = np.zeros(more.shape)
    for hosts, sign in ((np.full_like(there, busy), 1), (server[there], -1)):
        kept = sign * (to[hosts, there][None, :] - to[hosts[None, :], here[:, None]])
        changed = ports[hosts] + np.stack([-kept, sign * more - kept], axis=-1)
        gain += _weight(ports[hosts], ports.max()) - _weight(changed, ports.max())
    gain[~allowed] = 0
    best = np.unravel_index(np.argmax(gain), gain.shape)
    return (int(here[best[0]]), int(there[best[1]])) if gain[best] > LEAST else None


def _weight(ports: Float[np.ndarray, "... 2"], unit: float) -> Float[np.ndarray, "..."]:
    return ((np.maximum(ports, 0) / unit) ** SHARP).sum(axis=-1)


# The placement policies by name.

REGISTRY: dict[str, PlacementPolicy] = {
    "contiguous": contiguous,
    "longest-processing-time": longest_processing_time,
    "hierarchical": hierarchical,
    "with-circuits": with_circuits,
}


def placement_policy(name: str) -> PlacementPolicy:
    """Return the placement policy with this name. Raise `InputError` for an unknown name."""
    return REGISTRY[one_of("placement", name, REGISTRY)]


# Tokens of placed experts: which loads decide the placement, how often it is renewed, and which experts then move.
# Letters: I iterations, R ranks, E experts.


def tokens_by_slot(
    tokens: Tokens, layout: SlotLayout, policy: PlacementPolicy, *, on: str = "past", every: int = 0, window: int = 1
) -> Tokens:
    """Return tokens by physical slot instead of by expert.

    - `on`: "past" places by the loads of up to `window` earlier iterations. The first iteration uses `tokens.before` if
      known, else `contiguous`. "now" places by the loads of the iterations that the placement serves.
    - `every`: iterations between placements; 0: place once.
    """
    return replicas_by_slot((tokens,), layout, policy, on=on, every=every, window=window)[0]


def replicas_by_slot(
    replicas: Sequence[Tokens], layout: SlotLayout, policy: PlacementPolicy, **how: Any
) -> tuple[Tokens, ...]:
    """Return `tokens_by_slot` for replicas that share one placement, made for the sum of their loads.

    `how`: the options of `tokens_by_slot`.
    """
    before = [tokens.before for tokens in replicas if tokens.before is not None]
    known = np.concatenate(before, axis=1) if len(before) == len(replicas) else None
    count = replicas[0].count if len(replicas) == 1 else np.concatenate([tokens.count for tokens in replicas], axis=2)
    slots = _slots(Tokens(count, replicas[0].source, known), layout, policy, **how)
    return tuple(
        dataclasses.replace(tokens, count=in_slots(tokens.count, slots), slots=slots, by_expert=tokens)
        for tokens in replicas
    )


def replicas_at_slots(replicas: Sequence[Tokens], slots: Int[np.ndarray, "L slot"]) -> tuple[Tokens, ...]:
    """Return tokens by physical slot for a given placement; one layer of slots applies to all layers.

    Traffic with fewer layers than the model repeats its layers; it takes the slots of the first blocks.
    """

    def with_slots(tokens: Tokens) -> Tokens:
        iterations, layers = tokens.count.shape[:2]
        every = np.broadcast_to(slots[:layers], (iterations, layers, slots.shape[1]))
        return dataclasses.replace(tokens, count=in_slots(tokens.count, every), slots=every, by_expert=tokens)

    return tuple(with_slots(tokens) for tokens in replicas)


def _slots(
    tokens: Tokens, layout: SlotLayout, policy: PlacementPolicy, on: str = "past", every: int = 0, window: int = 1
) -> Int[np.ndarray, "I layer slot"]:
    whole("every", every, at_least=0)
    whole("window", window)
    iterations, layers, experts = len(tokens.count), tokens.count.shape[1], tokens.count.shape[-1]
    layout.check(experts)
    slots = np.empty((iterations, layers, layout.slots), int)
    for first in range(0, iterations, every or iterations):
        served = slice(first, first + (every or iterations))
        known = tokens.count[served] if on == "now" else _past(tokens, first, window)
        for layer in range(layers):
            seen = known[:, layer].sum(axis=(0, 1), dtype=np.float64)
            slots[served, layer] = policy(seen, layout) if len(known) else contiguous(seen, layout)
    return slots


def _past(tokens: Tokens, first: int, window: int) -> Num[np.ndarray, "W layer M R E"]:
    known = tokens.count[max(0, first - window) : first]
    if tokens.before is None or len(known) == window:
        return known
    return np.concatenate([tokens.before[None], known])


def in_slots(
    count: Num[np.ndarray, "I layer M R E"], slots: Int[np.ndarray, "I layer slot"]
) -> Num[np.ndarray, "I layer M R slot"]:
    """Return selections by slot; an expert's selections are split evenly over its copies."""
    held = np.take_along_axis(count, slots[:, :, None, None, :], axis=-1)
    if slots.shape[-1] == count.shape[-1]:
        return held
    copies = (slots[..., None] == np.arange(count.shape[-1])).sum(axis=-2)  # [I layer E]
    return held / np.take_along_axis(copies, slots, axis=-1)[:, :, None, None, :]


def expert_moves(
    slots: Int[np.ndarray, "I layer slot"], layout: SlotLayout, every: int
) -> Float[np.ndarray, "I layer R R"]:
    """Return how many experts move from rank to rank per iteration; a placement lasts `every` iterations.

    The source is a rank of the same server if possible, and among those the rank that has sent least. Experts that a
    rank already holds do not move.
    """
    moved = np.zeros((*slots.shape[:2], layout.ranks, layout.ranks))
    for layer in range(slots.shape[1]):
        before = contiguous(np.empty((1, slots.max() + 1)), layout)
        for first in range(0, len(slots), every):
            now = slots[first, layer]
            moved[first : first + every, layer] = _count_moves(before, now, layout) / every
            before = now
    return moved


def _count_moves(
    before: Int[np.ndarray, "slot"], after: Int[np.ndarray, "slot"], layout: SlotLayout
) -> Float[np.ndarray, "R R"]:
    had, moved = before.reshape(layout.ranks, -1), np.zeros((layout.ranks, layout.ranks))
    for rank, experts in enumerate(after.reshape(layout.ranks, -1)):
        for expert in sorted(set(experts.tolist()) - set(had[rank].tolist())):
            moved[_nearest(had, expert, rank, moved, layout), rank] += 1
    return moved


def _nearest(
    had: Int[np.ndarray, "R n"], expert: int, rank: int, moved: Float[np.ndarray, "R R"], layout: SlotLayout
) -> int:
    holders = np.flatnonzero((had == expert).any(axis=1))
    near = holders[holders // layout.ranks_per_server == rank // layout.ranks_per_server]
    some = near if len(near) else holders
    return int(some[np.argmin(moved[some].sum(axis=1))])
