"""Solve flows on a network: finish times, bytes of every link, and the bottleneck of every flow."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from mfabric_jax.checks import InputError, Misfit, of_type
from mfabric_jax.fabric import Cluster, FabricGraph, Transport
from mfabric_jax.fabric.graph import ENDPOINTS, endpoints
from mfabric_jax.fabric.relays import relays_of
from mfabric_jax.fabric.transport import NONE
from mfabric_jax.flows import Completion, FlowProblem, SolveOutcome, completion_times, max_min_rates
from mfabric_jax.flows.flows import Flows
from mfabric_jax.flows.max_min import SMALL
from mfabric_jax.routing.cluster import cluster_routes, links_of
from mfabric_jax.routing.shortest import Routes, compact, shortest_routes
from mfabric_jax.support.arrays import floats
from mfabric_jax.support.host_arrays import FINITE, NOT_NEGATIVE, host_floats, host_indices

ROUNDING = 1e-9  # relative tolerance of the test for slack links

_rates, _completion = eqx.filter_jit(max_min_rates), eqx.filter_jit(completion_times)


class Wired(NamedTuple):
    """A network, and `routes(src, dst, size)`, which returns the links that flows between its endpoints [F] cross."""

    network: FabricGraph
    routes: Callable[[np.ndarray, np.ndarray, np.ndarray], Routes]


def wire_cluster(cluster: Cluster, paths: str, seed: int = 0) -> Wired:
    """Return routing between the GPUs of a cluster; `paths`: how flows use equal paths; `seed`: of random paths.

    Raise `Misfit` if links serve one kind of communication at a time.
    """
    if cluster.phases:
        raise Misfit(
            f"{cluster.name} has circuits for one kind of communication at a time, so it runs iterations only."
        )

    def routes(src: np.ndarray, dst: np.ndarray, size: np.ndarray) -> Routes:
        return cluster_routes(cluster, src, dst, routing=paths, seed=seed, size=size)

    return Wired(links_of(cluster, paths), routes)


def wire_graph(
    network: FabricGraph,
    paths: str,
    seed: int = 0,
    goodput: float = 1.0,
    *,
    forward: np.ndarray | None = None,
    node: np.ndarray | None = None,
) -> Wired:
    """Return routing between the gpu or host nodes of a user's network.

    - `goodput`: payload fraction of capacity. `forward` [N]: nodes that forward for others (None: by `relays_of`).
    - `node` [E]: node of every endpoint (None: in order).
    """
    node = endpoints(network) if node is None else node
    forward = relays_of(network).forward if forward is None else forward

    def routes(src: np.ndarray, dst: np.ndarray, size: np.ndarray) -> Routes:
        return shortest_routes(network, node[src], node[dst], routing=paths, seed=seed, size=size, relay=forward)

    return Wired(dataclasses.replace(network, capacity=network.capacity * goodput), routes)


class TransferResult(NamedTuple):
    """Ends, rates and loads of solved flows.

    - `finish` [F] s, with propagation. `rate` [F] bytes/s, `bottleneck` [F] (link, -1: none): while all flows run.
    - `link_bytes` [L]: total bytes. `utilisation` [L]: from the first start to the last end.
    """

    finish: np.ndarray
    rate: np.ndarray
    bottleneck: np.ndarray
    link_bytes: np.ndarray
    utilisation: np.ndarray


class Routed(NamedTuple):
    """Flows and the links that each crosses: everything that the engine reads besides capacities."""

    flows: Flows
    routes: Routes

    def problem(self, capacity: np.ndarray, dtype: Any = None) -> FlowProblem:
        return flow_problem(capacity, self.routes, dtype, weight=self.flows.weight, cap=self.flows.cap)

    def completion(self, problem: FlowProblem, size: Any = None, start: Any = None, lag: Any = None) -> Completion:
        """Return when every flow begins and ends; `size`, `start`, `lag` [F] default to the flows' own."""
        flows = self.flows
        pairs = (size, flows.size), (start, flows.start), (lag, flows.lag)
        size, start, lag = (own if x is None else x for x, own in pairs)
        return completion_times(problem, size, start, after=flows.after, lag=lag)


def flow_problem(capacity: np.ndarray, routes: Routes, dtype: Any = None, **terms: Any) -> FlowProblem:
    """Return the max-min problem of flows on their routes; `terms`: `weight`, `cap` [F]."""
    share = np.where(routes.hops >= 0, routes.share, 1)
    return FlowProblem(floats("capacity", capacity, dtype=dtype), routes.hops, share, **terms)


def latency(network: FabricGraph, routes: Routes) -> np.ndarray:
    """Return the propagation time along each flow's path [F] s; if its bytes take several paths, their mean."""
    delay_s = np.where(routes.hops >= 0, network.delay_s[routes.hops] * routes.share, 0)
    return delay_s.sum(axis=1)


def transfer(network: FabricGraph, routes: Routes, size: Any, start: Any = 0.0, *, dtype: Any = None) -> TransferResult:
    """Move `size` [F] bytes along the routes from `start` [F] s on, by exact max-min fluid completion.

    Links that can never limit a flow are left out (`binding`), which changes no result. Raise `InputError` if a flow
    cannot end because a link has no capacity.
    """
    of_type("network", network, FabricGraph)
    hops = host_indices("hops of routes", of_type("routes", routes, Routes).hops, -1, len(network.capacity) - 1)
    flows = hops.shape[:1]
    size, start = host_floats("size", size, NOT_NEGATIVE), host_floats("start", start, FINITE)
    for field, value in (("size", size), ("start", start)):
        if value.shape not in ((), flows):
            raise InputError(f"{field} must be a number or have the shape {list(flows)}, got {list(value.shape)}.")
    size, start = np.broadcast_to(size, flows), np.broadcast_to(start, flows)
    kept = binding(network, routes)
    problem = flow_problem(network.capacity, kept, dtype)
    first = jax.block_until_ready(_rates(flow_problem(network.capacity, kept, dtype, weight=size > 0)))
    at_once = len(size) > SMALL  # one large instance runs on the CPU even if there is an accelerator
    solve = functools.partial(completion_times, engine="host") if at_once else _completion
    end = solve(problem, jnp.asarray(size, dtype), jnp.asarray(start, dtype))
    if end.outcome != SolveOutcome.solved:
        raise InputError(f"the flows cannot all end: {SolveOutcome[end.outcome]}")
    finish = np.asarray(end.finish, float) + np.where(size > 0, latency(network, routes), 0)
    carried = link_bytes(network, routes, size)
    lasts = finish.max() - start.min() if len(finish) else 0.0
    could = network.capacity * lasts
    used = np.divide(carried, could, out=np.zeros_like(carried), where=could > 0)
    return TransferResult(finish, np.asarray(first.rate, float), np.asarray(first.bottleneck), carried, used)


def link_bytes(network: FabricGraph, routes: Routes, size: np.ndarray) -> np.ndarray:
    """Return the bytes that cross every link [L]."""
    here = routes.hops >= 0
    carried = (routes.share * np.asarray(size)[:, None])[here]
    return np.bincount(routes.hops[here], carried, minlength=len(network.capacity)).astype(float)


def binding(network: FabricGraph, routes: Routes) -> Routes:
    """Return the routes without hops on slack links, which can never limit a flow: same rates, shorter tables.

    A link is slack if the narrowest links of its flows together cannot fill it; in a non-blocking tree only the NICs
    remain.
    """
    hops, share = routes
    here = hops >= 0
    narrow = np.minimum(network.capacity[hops] / np.where(here, share, 1), np.finfo(float).max)
    narrow = np.where(here, narrow, np.inf)  # a hop precedes padding, whatever its capacity
    last = hops.shape[1] - 1 - narrow[:, ::-1].argmin(axis=1)
    row = np.arange(len(hops))
    slack, ports = np.zeros(len(network.capacity), bool), []
    for column in (narrow.argmin(axis=1), last):
        slack |= _inflow(network, routes, hops[row, column], share[row, column]) <= network.capacity * (1 + ROUNDING)
        ports.append(hops[row, column])
    ports = np.concatenate(ports)
    slack[ports[ports >= 0]] = False
    dropped = here & slack[hops]
    return compact(np.where(dropped, -1, hops), np.where(dropped, 0, share))


def _inflow(network: FabricGraph, routes: Routes, port: np.ndarray, port_share: np.ndarray) -> np.ndarray:
    links = len(network.capacity)
    flow, column = np.nonzero(routes.hops >= 0)
    goes_on = routes.share[flow, column] / port_share[flow]
    each, index = np.unique(routes.hops[flow, column].astype(np.int64) * links + port[flow], return_inverse=True)
    most = np.zeros(len(each))
    np.maximum.at(most, index, goes_on)
    return np.bincount(each // links, most * network.capacity[each % links], minlength=links)


# -------------------------------------------------------------------------------------------- effects of a transport
INSIDE = ("nvswitch", "nvlink", "pci", "cpu")  # links inside servers, where the transport does not apply


def under(
    transport: Transport, network: FabricGraph, routes: Routes, size: np.ndarray
) -> tuple[FabricGraph, np.ndarray]:
    """Return the network with its payload capacities under a transport, and every flow's extra delay [F] s.

    A link that carries B bytes, and A in the opposite direction, is as slow as if it moved B / pacing + acks x A;
    pacing applies to links into GPUs and optical NICs.
    """
    if transport == NONE:
        return network, np.zeros(len(routes.hops))
    outside = ~_of_kind(network.links, lambda kind: kind.startswith(INSIDE))
    ends = _of_kind(network.nodes, lambda kind: kind in (*ENDPOINTS, "optics"))
    carried = np.where(outside, link_bytes(network, routes, size), 0)
    moved = carried / np.where(ends[network.head], transport.pacing, 1) + transport.acks * _opposite_bytes(
        network, carried
    )
    left = np.divide(carried, moved, out=np.ones_like(carried), where=carried > 0)
    capacity = np.where(outside, network.capacity * left * transport.goodput, network.capacity)
    return dataclasses.replace(network, capacity=capacity), _waits_s(transport, network, routes, outside)


def _of_kind(runs: tuple[tuple[str, int], ...], wanted: Callable[[str], bool]) -> np.ndarray:
    return np.repeat([bool(wanted(kind)) for kind, _ in runs], [count for _, count in runs])


def _opposite_bytes(network: FabricGraph, carried: np.ndarray) -> np.ndarray:
    pair, back = (a * network.size + b for a, b in ((network.tail, network.head), (network.head, network.tail)))
    known, index = np.unique(np.concatenate([pair, back]), return_inverse=True)
    own, other = index[: len(pair)], index[len(pair) :]
    between, capacity = (np.bincount(own, x, minlength=len(known)) for x in (carried, network.capacity))
    part = np.divide(network.capacity, capacity[own], out=np.zeros_like(carried), where=capacity[own] > 0)
    return between[other] * part


def _waits_s(transport: Transport, network: FabricGraph, routes: Routes, outside: np.ndarray) -> np.ndarray:
    there = (routes.hops >= 0) & outside[routes.hops]
    links = np.where(there, routes.share, 0).sum(axis=1)
    narrowest = np.where(there, network.capacity[routes.hops], np.inf).min(axis=1, initial=np.inf)
    return np.where(links > 0, transport.path_s(np.maximum(links, 1), 0.0, narrowest), 0)
