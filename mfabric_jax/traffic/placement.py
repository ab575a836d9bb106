"""Where experts live: which expert every physical slot of an expert-parallel group holds.

A group has `slots` slots, of which rank r holds the r-th part; an expert in c slots gets its selections split evenly
over them. A policy `(selections [R E], Room) -> expert [slots]` places the experts of one block;
`placement_policies` names them.
Packing and replication follow DeepSeek's expert-parallel load balancer (github.com/deepseek-ai/EPLB): the heaviest item
first, to the lightest pack that has room; a further copy of whichever expert has most selections a copy.
Letters: R ranks, E experts.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Int, Num

from mfabric_jax.checks import InputError


class Room(NamedTuple):
    """The slots of a group: `slots` over `ranks` ranks, `ranks_per_server` of them a server; `groups` of neighbouring
    experts that hierarchical placement keeps on one server."""

    ranks: int
    ranks_per_server: int
    slots: int
    groups: int

    @property
    def servers(self) -> int:
        """Servers of the group."""
        return self.ranks // self.ranks_per_server

    def check(self, experts: int) -> None:
        """`InputError` where slots do not fill ranks, or groups do not divide experts."""
        if self.slots % self.ranks or self.slots < experts:
            raise InputError(
                f"slots must be a multiple of the {self.ranks} ranks, one for each of {experts} experts at least, "
                f"got {self.slots}."
            )
        if experts % self.groups:
            raise InputError(f"placement_groups must divide the {experts} experts, got {self.groups}.")


PlacementPolicy = Callable[[Num[np.ndarray, "R E"], Room], Int[np.ndarray, "slots"]]


def contiguous(selections: Num[np.ndarray, "R E"], room: Room) -> Int[np.ndarray, "slots"]:
    """Experts in order; where there are more slots, neighbours hold the same one."""
    return np.arange(room.slots) * selections.shape[1] // room.slots


def longest_processing_time(selections: Num[np.ndarray, "R E"], room: Room) -> Int[np.ndarray, "slots"]:
    """The heaviest expert (or copy) first, to the least loaded rank with a free slot; copies anywhere.

    This is EPLB's global balancing. Without copies and with slots enough, the busiest rank is at most 4/3 - 1/(3 R) of
    the least possible (Graham 1969).
    """
    return _balanced(selections.sum(axis=0, dtype=np.float64), room.slots, room.ranks)


def hierarchical(selections: Num[np.ndarray, "R E"], room: Room) -> Int[np.ndarray, "slots"]:
    """EPLB's hierarchical balancing: groups of experts packed to servers, the heaviest experts of each server copied
    inside it, its copies packed to its ranks. Where groups are no multiple of servers: `longest_processing_time`."""
    load = selections.sum(axis=0, dtype=np.float64)
    servers = room.servers
    if room.groups % servers:
        return _balanced(load, room.slots, room.ranks)
    size = len(load) // room.groups
    packs = packed(load.reshape(room.groups, size).sum(axis=1), servers)
    here = (packs[..., None] * size + np.arange(size)).reshape(servers, -1)  # experts of every server
    own = [some[_balanced(load[some], room.slots // servers, room.ranks_per_server)] for some in here]
    return np.concatenate(own)


def packed(weight: Num[np.ndarray, "N"], packs: int) -> Int[np.ndarray, "packs n"]:
    """Items in packs of equally many, the heaviest first to the lightest pack with room: the items of every pack in the
    order in which they came. Packs of one item hold them in order."""
    each = len(weight) // packs
    if each == 1:
        return np.arange(packs)[:, None]
    items: list[list[int]] = [[] for _ in range(packs)]
    total = np.zeros(packs)
    for item in np.argsort(-np.asarray(weight), kind="stable"):
        lightest = min((pack for pack in range(packs) if len(items[pack]) < each), key=total.__getitem__)
        items[lightest].append(int(item))
        total[lightest] += weight[item]
    return np.array(items)


def replicated(load: Num[np.ndarray, "E"], slots: int) -> Int[np.ndarray, "slots"]:
    """The expert of every copy: each once, and then again whichever has most load a copy."""
    copies = np.ones(len(load))
    more = []
    for _ in range(slots - len(load)):
        more.append(int(np.argmax(load / copies)))
        copies[more[-1]] += 1
    return np.concatenate([np.arange(len(load)), np.array(more, int)])


def _balanced(load: Num[np.ndarray, "E"], slots: int, ranks: int) -> Int[np.ndarray, "slots"]:
    """Experts copied and packed to ranks."""
    of = replicated(load, slots)
    each = (load / np.bincount(of, minlength=len(load)))[of]
    return of[packed(each, ranks)].ravel()
