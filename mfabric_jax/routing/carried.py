"""What a transport leaves of the links of a network, and how long its packets are on their way."""

import dataclasses

import numpy as np

from mfabric_jax.fabric import Network, Transport
from mfabric_jax.fabric.graph import ENDPOINTS
from mfabric_jax.fabric.transport import NONE
from mfabric_jax.routing.routes import Routes
from mfabric_jax.routing.transfers import link_bytes

INSIDE = "nvswitch"  # links of this kind are inside servers, where no such transport is


def under(transport: Transport, network: Network, routes: Routes, size: np.ndarray) -> tuple[Network, np.ndarray]:
    """The network as payload finds it, and what every flow waits for packets on their way and for its start [F] s.

    A link that carries B bytes in all, while A bytes cross it the other way, is as slow as if it moved
    B / pacing + acks x A; pacing is that of links into GPUs and optical NICs. A link that is always busy so ends when
    it would; others share rates that acknowledgements lower alike from the start to the end.
    """
    if transport == NONE:
        return network, np.zeros(len(routes.hops))
    outside = ~_of_kind(network.links, lambda kind: kind.startswith(INSIDE))
    ends = _of_kind(network.nodes, lambda kind: kind in (*ENDPOINTS, "optics"))
    carried = np.where(outside, link_bytes(network, routes, size), 0)
    moved = carried / np.where(ends[network.head], transport.pacing, 1) + transport.acks * _the_other_way(
        network, carried
    )
    left = np.divide(carried, moved, out=np.ones_like(carried), where=carried > 0)
    capacity = np.where(outside, network.capacity * left * transport.goodput, network.capacity)
    return dataclasses.replace(network, capacity=capacity), _waits_s(transport, network, routes, outside)


def _of_kind(runs: tuple[tuple[str, int], ...], wanted) -> np.ndarray:
    return np.repeat([bool(wanted(kind)) for kind, _ in runs], [count for _, count in runs])


def _the_other_way(network: Network, carried: np.ndarray) -> np.ndarray:
    """Bytes that cross from the head of every link to its tail [L], shared among parallel links as wide as they are."""
    pair, back = (a * network.size + b for a, b in ((network.tail, network.head), (network.head, network.tail)))
    known, place = np.unique(np.concatenate([pair, back]), return_inverse=True)
    own, other = place[: len(pair)], place[len(pair) :]
    between, capacity = (np.bincount(own, x, minlength=len(known)) for x in (carried, network.capacity))
    part = np.divide(network.capacity, capacity[own], out=np.zeros_like(carried), where=capacity[own] > 0)
    return between[other] * part


def _waits_s(transport: Transport, network: Network, routes: Routes, outside: np.ndarray) -> np.ndarray:
    """Of every flow that leaves its server, over as many links as its bytes cross on average, at its narrowest link."""
    there = (routes.hops >= 0) & outside[routes.hops]
    links = np.where(there, routes.share, 0).sum(axis=1)
    narrowest = np.where(there, network.capacity[routes.hops], np.inf).min(axis=1, initial=np.inf)
    return np.where(links > 0, transport.path_s(np.maximum(links, 1), 0.0, narrowest), 0)
