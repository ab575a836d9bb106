"""Bytes of a job on the graph of a file: all-to-alls of its groups, rings of gradients, sends between stages.

Ranks are on the graph's GPUs in order: stage by stage, expert-parallel group by group. All groups of a stage run the
same all-to-all at once. A time is that of the slowest groups: those that share links with the link which has most to
carry in an even all-to-all of any stage; the mean over these groups.
"""

import dataclasses
import functools
import threading
from typing import NamedTuple

import numpy as np

from mfabric_jax.checks import Misfit
from mfabric_jax.fabric import Network
from mfabric_jax.fabric.graph_links import GraphLinks
from mfabric_jax.fabric.own_graph import OwnGraph, kinds_of, own_graph
from mfabric_jax.routing.fixed import leaving
from mfabric_jax.routing.gradients import gradient_nics
from mfabric_jax.routing.graph_ways import NEARLY, GraphWays, ways_of
from mfabric_jax.routing.shortest import shortest_loads, shortest_routes
from mfabric_jax.routing.transfers import binding
from mfabric_jax.workload import Workload

SIZED = "least-loaded"  # needs the bytes of every flow, which differ from one all-to-all to the next
PAIRS_AT_ONCE = 1 << 22  # of GPUs that reduce gradients
_ONE = threading.Lock()  # scenarios are solved side by side, over the same routes


def ways_on_graph(group: GraphLinks, job: Workload, paths: str, seed: int = 0) -> GraphWays:
    """Links and shares of every flow between GPUs of different servers, for the slowest groups of the slowest stage.

    `paths`: spray (equal shares at every node), weighted, or ecmp (one path, drawn by `seed`).
    """
    with _ONE:
        return _ways(own_graph(group.of), _Shape.of(job), paths, seed)


class _Shape(NamedTuple):
    """Of a job: GPUs of all, of a `stage`, of a server; ranks of a group, GPUs of a rank."""

    gpus: int
    stage: int
    server: int
    ranks: int
    slices: int

    @staticmethod
    def of(job: Workload) -> "_Shape":
        return _Shape(job.gpus, job.gpus // job.pp, job.gpus_per_server, job.ep, job.tp)


@functools.lru_cache(maxsize=8)
def _ways(graph: OwnGraph, shape: _Shape, paths: str, seed: int) -> GraphWays:
    src, dst = leaving(shape.server, shape.stage // (shape.ranks * shape.slices), shape.ranks, shape.slices)
    first = _slowest_stage(graph, src, dst, shape, paths, seed)
    network, ends = _in_nics(graph), (graph.nodes[first + src], graph.nodes[first + dst])
    routes = binding(
        network, shortest_routes(network, *ends, routing=_known(paths), seed=seed, relay=graph.relays.forward)
    )
    return ways_of((src, dst), routes, network.capacity, shape.slices, shape.ranks)


def _slowest_stage(graph: OwnGraph, src: np.ndarray, dst: np.ndarray, shape: _Shape, paths: str, seed: int) -> int:
    """First GPU of the stage whose busiest link carries most in an even all-to-all, the first of equals."""
    if not len(src):
        return 0
    starts, even = range(0, shape.gpus, shape.stage), np.ones(len(src))
    busiest = [_busiest(graph, first + src, first + dst, even, paths, seed) for first in starts]
    return starts[int(np.argmax(np.array(busiest) >= max(busiest) * (1 - NEARLY)))]


def rated(group: GraphLinks, job: Workload, paths: str, seed: int = 0) -> GraphLinks:
    """The group with what its servers can send of gradients (`gradient_nics`), and to the next stage, all at once: GPUs
    to those of equal rank in the other server."""
    with _ONE:
        rates = _rates(own_graph(group.of), _Shape.of(job), paths, seed)
    every = {name: float(group.nics if rate is None else rate * job.gpus_per_server) for name, rate in rates.items()}
    return dataclasses.replace(group, **every)


@functools.lru_cache(maxsize=8)
def _rates(graph: OwnGraph, shape: _Shape, paths: str, seed: int) -> dict[str, float | None]:
    stage, servers = shape.stage // shape.server, shape.gpus // shape.server

    def most(src: np.ndarray, dst: np.ndarray, part: float) -> float:
        """NICs of each GPU if servers send to servers, at once and GPU to GPU."""
        step = max(1, PAIRS_AT_ONCE // shape.server)
        parts = [slice(first, first + step) for first in range(0, len(src), step)]
        ends = ([_gpus_of(shape.server, server[some]) for server in (src, dst)] for some in parts)
        load = sum(_load(graph, src, dst, np.full(len(src), part), paths, seed) for src, dst in ends)
        return 1 / _over(graph, np.asarray(load))

    onward = np.arange(servers - stage)
    return {
        "ring_nics": None if stage < 2 else gradient_nics(most, _ports(graph), servers, stage),
        "stage_nics": most(onward, onward + stage, 1.0) if len(onward) else None,
    }


def _gpus_of(per_server: int, server: np.ndarray) -> np.ndarray:
    return np.add.outer(server * per_server, np.arange(per_server)).ravel()


def _ports(graph: OwnGraph) -> float:
    """NICs of a GPU: links that leave the server which has fewest, over its GPUs."""
    network = _in_nics(graph)
    server = np.full(network.size, -1)
    server[graph.nodes] = np.arange(len(graph.nodes)) // graph.per_server
    up = np.isin(network.tail, graph.nodes) & (kinds_of(network)[network.head] == "nvswitch")
    server[network.head[up]] = server[network.tail[up]]
    tail, head = server[network.tail], server[network.head]
    out = (tail >= 0) & (tail != head)
    return float(np.bincount(tail[out], network.capacity[out]).min()) / graph.per_server


def _busiest(graph: OwnGraph, src: np.ndarray, dst: np.ndarray, amount: np.ndarray, paths: str, seed: int) -> float:
    """The most that a link carries over its bandwidth in NICs."""
    return _over(graph, _load(graph, src, dst, amount, paths, seed))


def _over(graph: OwnGraph, load: np.ndarray) -> float:
    used = load > 0
    return float((load[used] / _in_nics(graph).capacity[used]).max())


def _load(graph: OwnGraph, src: np.ndarray, dst: np.ndarray, amount: np.ndarray, paths: str, seed: int) -> np.ndarray:
    """What every link carries [L]."""
    ends = graph.nodes[src], graph.nodes[dst]
    network, relay = _in_nics(graph), graph.relays.forward
    return shortest_loads(network, *ends, amount, routing=_known(paths), seed=seed, relay=relay)


def _known(paths: str) -> str:
    if paths == SIZED:
        raise Misfit(f"network.paths must be spray, ecmp or weighted on a graph, got {paths}.")
    return paths


def _in_nics(graph: OwnGraph) -> Network:
    return dataclasses.replace(graph.network, capacity=graph.network.capacity / graph.nic_Bps)
