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
from mfabric_jax.fabric.own_graph import OwnGraph, own_graph
from mfabric_jax.routing.fixed import leaving
from mfabric_jax.routing.graph_ways import NEARLY, GraphWays, ways_of
from mfabric_jax.routing.shortest import shortest_loads, shortest_routes
from mfabric_jax.routing.transfers import binding
from mfabric_jax.workload import Workload

SIZED = "least-loaded"  # needs the bytes of every flow, which differ from one all-to-all to the next
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
    """The group with what its servers can send around their stage's ring, and to the next stage, all at once: GPUs to
    those of equal rank in the other server."""
    with _ONE:
        rates = _rates(own_graph(group.of), _Shape.of(job), paths, seed)
    every = {name: float(group.nics if rate is None else rate * job.gpus_per_server) for name, rate in rates.items()}
    return dataclasses.replace(group, **every)


@functools.lru_cache(maxsize=8)
def _rates(graph: OwnGraph, shape: _Shape, paths: str, seed: int) -> dict[str, float | None]:
    gpu, stage = np.arange(shape.gpus), shape.stage
    first = gpu // stage * stage
    ring = first + (gpu - first + shape.server) % stage
    apart, onward = gpu[ring != gpu], gpu[: shape.gpus - stage]
    return {
        "ring_nics": _most_at_once(graph, apart, ring[apart], paths, seed),
        "stage_nics": _most_at_once(graph, onward, onward + stage, paths, seed),
    }


def _most_at_once(graph: OwnGraph, src: np.ndarray, dst: np.ndarray, paths: str, seed: int) -> float | None:
    """NICs of each GPU that fill the busiest link if all pairs send at once; None without pairs."""
    return 1 / _busiest(graph, src, dst, np.ones(len(src)), paths, seed) if len(src) else None


def _busiest(graph: OwnGraph, src: np.ndarray, dst: np.ndarray, amount: np.ndarray, paths: str, seed: int) -> float:
    """The most that a link carries over its bandwidth in NICs."""
    network, ends = _in_nics(graph), (graph.nodes[src], graph.nodes[dst])
    load = shortest_loads(network, *ends, amount, routing=_known(paths), seed=seed, relay=graph.relays.forward)
    used = load > 0
    return float((load[used] / network.capacity[used]).max())


def _known(paths: str) -> str:
    if paths == SIZED:
        raise Misfit(f"network.paths must be spray, ecmp or weighted on a graph, got {paths}.")
    return paths


def _in_nics(graph: OwnGraph) -> Network:
    return dataclasses.replace(graph.network, capacity=graph.network.capacity / graph.nic_Bps)
