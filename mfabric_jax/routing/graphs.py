"""Bytes of a job on the graph of a file: all-to-alls of its groups, rings of gradients, sends between stages.

Ranks are on the graph's GPUs in order: stage by stage, expert-parallel group by group. All groups of a stage run the
same all-to-all at once; the time is the mean over those that share links.
"""

import dataclasses

import numpy as np

from mfabric_jax.checks import Misfit
from mfabric_jax.fabric import Network
from mfabric_jax.fabric.graph_links import GraphLinks
from mfabric_jax.fabric.own_graph import OwnGraph, own_graph
from mfabric_jax.routing.fixed import SinglePaths, first_and_its_neighbours, leaving
from mfabric_jax.routing.shortest import Routes, shortest_routes
from mfabric_jax.routing.transfers import binding
from mfabric_jax.workload import Workload

SIZED = "least-loaded"  # needs the bytes of every flow, which differ from one all-to-all to the next


def ways_on_graph(group: GraphLinks, job: Workload, paths: str, seed: int = 0) -> SinglePaths:
    """Links and shares of every flow between GPUs of different servers, for all groups of a stage.

    `paths`: spray (equal shares at every node), weighted, or ecmp (one path, drawn by `seed`).
    """
    graph, groups = own_graph(group.file), job.gpus // job.pp // (job.ep * job.tp)
    src, dst = leaving(job.gpus_per_server, groups, job.ep, job.tp)
    network = _in_nics(graph)
    routes = binding(network, _routes(graph, src, dst, paths, seed))
    return first_and_its_neighbours((src, dst), routes, network.capacity, job.tp, job.ep)


def rated(group: GraphLinks, job: Workload, paths: str, seed: int = 0) -> GraphLinks:
    """The group with what its servers can send around their stage's ring, and to the next stage, all at once: GPUs to
    those of equal rank in the other server."""
    graph, stage = own_graph(group.file), job.gpus // job.pp
    gpu = np.arange(job.gpus)
    first = gpu // stage * stage
    ring = first + (gpu - first + job.gpus_per_server) % stage
    apart, onward = gpu[ring != gpu], gpu[: job.gpus - stage]
    rates = {
        "ring_nics": _most_at_once(graph, apart, ring[apart], paths, seed),
        "stage_nics": _most_at_once(graph, onward, onward + stage, paths, seed),
    }
    every = {name: float(group.nics if rate is None else rate * job.gpus_per_server) for name, rate in rates.items()}
    return dataclasses.replace(group, **every)


def _most_at_once(graph: OwnGraph, src: np.ndarray, dst: np.ndarray, paths: str, seed: int) -> float | None:
    """NICs of each GPU that fill the busiest link if all pairs send at once; None without pairs."""
    if not len(src):
        return None
    network, routes = _in_nics(graph), _routes(graph, src, dst, paths, seed)
    there = routes.hops >= 0
    load = np.bincount(routes.hops[there], routes.share[there], minlength=len(network.tail))
    return float((network.capacity[load > 0] / load[load > 0]).min())


def _routes(graph: OwnGraph, src: np.ndarray, dst: np.ndarray, paths: str, seed: int) -> Routes:
    if paths == SIZED:
        raise Misfit(f"network.paths must be spray, ecmp or weighted on a graph, got {paths}.")
    return shortest_routes(graph.network, graph.nodes[src], graph.nodes[dst], routing=paths, seed=seed)


def _in_nics(graph: OwnGraph) -> Network:
    return dataclasses.replace(graph.network, capacity=graph.network.capacity / graph.nic_Bps)
