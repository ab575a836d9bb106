"""Experts placed so that circuits have least to carry: placement and circuits chosen for each other.

Circuits that follow demand, and servers that forward, end an all-to-all near the degree bound: what the busiest server
sends or receives, over its ports (docs/switching.md). Experts are swapped between servers as long as that falls and no
rank computes noticeably more. The method is ours.
"""

import numpy as np
from jaxtyping import Float, Int, Num

from mfabric_jax.traffic.placement import Room, hierarchical

MORE = 1.02  # what the busiest rank may compute, over what it does when placed by load alone
STEPS = 400  # swaps at most
LEAST = 1e-4  # gain of a swap, as a part of what the busiest port weighs
SHARP = 8  # power of the mean that stands for the busiest server: a swap may help while another is as busy


def with_circuits(selections: Num[np.ndarray, "R E"], room: Room) -> Int[np.ndarray, "slots"]:
    """`hierarchical`, then swaps that let the busiest server send or receive less: of all experts of two ranks, then of
    two experts while no rank's load rises above the busiest one's by more than 2 %."""
    slots = hierarchical(selections, room)
    if room.servers == 1:
        return slots
    copies = np.bincount(slots, minlength=selections.shape[1])
    sent = selections.reshape(room.servers, room.ranks_per_server, -1).sum(axis=1, dtype=np.float64) / copies
    load = sent.sum(axis=0)
    most = MORE * load[slots].reshape(room.ranks, -1).sum(axis=1).max()
    for together in (room.slots // room.ranks, 1):
        units = slots.reshape(-1, together)  # a view: what is swapped, is swapped in slots
        for _ in range(STEPS):
            swap = _best_swap(units, sent, room, most)
            if swap is None:
                break
            units[list(swap)] = units[list(swap[::-1])]
    return slots


def server_ports(
    slots: Int[np.ndarray, "slots"], selections: Float[np.ndarray, "S E"], servers: int
) -> Float[np.ndarray, "S 2"]:
    """Selections that every server sends to others and receives from them; `selections`: of a copy of each expert."""
    held = selections[:, slots].reshape(servers, servers, -1).sum(axis=-1)  # from server to server
    kept = np.diagonal(held)
    return np.stack([held.sum(axis=1) - kept, held.sum(axis=0) - kept], axis=-1)


def _best_swap(
    units: Int[np.ndarray, "U n"], sent: Float[np.ndarray, "S E"], room: Room, most: float
) -> tuple[int, int] | None:
    """The best swap of a unit of the busiest server with one of another; None where no swap helps."""
    server, rank = (np.arange(len(units)) // (len(units) // parts) for parts in (room.servers, room.ranks))
    ports = server_ports(units.ravel(), sent, room.servers)
    busy = int(np.argmax(ports.max(axis=1)))
    here, there = np.flatnonzero(server == busy), np.flatnonzero(server != busy)
    to = sent[:, units].sum(axis=-1)  # from every server to every unit
    load = to.sum(axis=0)
    at_rank = np.bincount(rank, load)
    more = load[there][None, :] - load[here][:, None]
    allowed = (at_rank[rank[here]][:, None] + more <= most) & (at_rank[rank[there]][None, :] - more <= most)
    gain = np.zeros(more.shape)
    for place, sign in ((np.full_like(there, busy), 1), (server[there], -1)):
        kept = sign * (to[place, there][None, :] - to[place[None, :], here[:, None]])
        changed = ports[place] + np.stack([-kept, sign * more - kept], axis=-1)
        gain += _weight(ports[place], ports.max()) - _weight(changed, ports.max())
    gain[~allowed] = 0
    best = np.unravel_index(np.argmax(gain), gain.shape)
    return (int(here[best[0]]), int(there[best[1]])) if gain[best] > LEAST else None


def _weight(ports: Float[np.ndarray, "... 2"], unit: float) -> Float[np.ndarray, "..."]:
    return ((np.maximum(ports, 0) / unit) ** SHARP).sum(axis=-1)
