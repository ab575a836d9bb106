"""Whether the GPUs of a graph forward bytes for others: GPUs of tori do, GPUs behind switches do not."""

from typing import NamedTuple

import numpy as np

from mfabric_jax.checks import one_of
from mfabric_jax.fabric.graph import endpoints
from mfabric_jax.fabric.network import FabricGraph
from mfabric_jax.support.loops import at_first_call

_not_reaching = at_first_call("mfabric_jax.fabric.relay_loops:not_reaching")
RELAYS = ("auto", "yes", "no")  # auto: GPUs forward only if some could not be reached otherwise


class Relays(NamedTuple):
    """`forward` [N]: nodes that forward for others; `words`: whether GPUs do, and why."""

    forward: np.ndarray
    words: str


def relays_of(network: FabricGraph, relay: str = "auto") -> Relays:
    """Return which nodes of a graph forward; `relay`: whether GPUs (endpoints) do (`RELAYS`). Others always do."""
    one_of("network.on-graph.relay", relay, RELAYS)
    end = np.zeros(network.size, bool)
    end[endpoints(network)] = True
    if relay == "yes":
        return Relays(np.ones(network.size, bool), "GPUs forward for others, as network.on-graph.relay says")
    if relay == "no":
        return Relays(~end, "GPUs do not forward for others, as network.on-graph.relay says")
    lost, target = unreachable_pair(network, end)
    if lost < 0:
        return Relays(~end, "GPUs do not forward for others: all reach each other over switches")
    names = (network.node_name(int(node)) for node in (lost, target))
    why = "{} has no other path to {}".format(*names)
    return Relays(np.ones(network.size, bool), f"GPUs forward for others: {why}")


def unreachable_pair(network: FabricGraph, end: np.ndarray) -> tuple[int, int]:
    """Return an endpoint that cannot reach another without crossing a third, and that other; (-1, -1): all can."""
    usable = np.flatnonzero(network.capacity > 0)
    tail, head = network.tail[usable], network.head[usable]
    order = np.argsort(head, kind="stable")
    first = np.concatenate([[0], np.cumsum(np.bincount(head, minlength=network.size))]).astype(np.int64)
    before = np.zeros(network.size, np.uint64)  # sum of random marks of the nodes that lead to each
    into = np.unique(np.stack([head, tail]), axis=1)
    np.add.at(before, into[0], np.random.default_rng(0).integers(1, 1 << 63, network.size, np.uint64)[into[1]])
    ends = np.flatnonzero(end)
    _, index, alike = np.unique(before[ends], return_index=True, return_counts=True)
    index, alike = (column[np.argsort(index)] for column in (index, alike))
    arguments = ends[index].astype(np.int64), alike == 1, first, usable[order].astype(np.int64)
    lost, target = _not_reaching(*arguments, network.tail.astype(np.int64), end)
    if lost >= 0 and lost == target:  # it represents others behind the same nodes
        target = ends[(before[ends] == before[target]) & (ends != target)][0]
    return int(lost), int(target)
