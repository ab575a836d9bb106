"""An iteration of a job that is given as a graph of tasks, or as a case."""

import functools

import numpy as np

from mfabric_jax import units
from mfabric_jax.case import Case
from mfabric_jax.checks import InputError
from mfabric_jax.flows.dependencies import run_order
from mfabric_jax.jobs.fabrics import WiredServers
from mfabric_jax.jobs.iterations import IterationPattern
from mfabric_jax.routing.routes import stacked
from mfabric_jax.routing.transfers import latency
from mfabric_jax.simulation import simulate
from mfabric_jax.tasks.flow_graph import FlowGraph
from mfabric_jax.tasks.graph import TaskGraph
from mfabric_jax.tasks.lowering import GUESSED_GBPS, Latency, lowered

NO_TIME = 10**9  # gigabytes/s: what an NVSwitch as fast as that carries is there at once


def pattern_of_graph(graph: FlowGraph, endpoint: np.ndarray, place: WiredServers) -> IterationPattern:
    """One iteration of a job from its flows.

    - `endpoint` [ranks]: where each rank is; flows between ranks of one endpoint take no time.

    Flows from one rank to another are one connection. `InputError` for a flow that waits and has a start of its own.
    """
    waits = np.zeros(graph.flows, bool)
    waits[graph.after[:, 1]] = True
    if np.any(wrong := waits & (graph.start > 0)):
        raise InputError(f"start of flow {np.argmax(wrong)} must be 0, as it waits for others, which repeat.")
    src, dst = (np.where(graph.transfers, endpoint[end], -1) for end in (graph.src, graph.dst))
    away = np.flatnonzero(graph.transfers & (src != dst) & (graph.bytes > 0))
    routes = stacked([(away, place.route(src[away], dst[away]))] if len(away) else [], graph.flows)
    size = np.zeros(graph.flows)
    size[away] = graph.bytes[away]
    before, total, sent = np.zeros(graph.flows), np.zeros(graph.flows), {}
    pairs = list(zip(graph.src.tolist(), graph.dst.tolist(), strict=True))
    for flow in run_order(graph.after, graph.flows).tolist():
        before[flow] = sent.get(pairs[flow], 0.0)
        sent[pairs[flow]] = before[flow] + size[flow]
    total[:] = [sent[pair] for pair in pairs]
    lag = graph.lag + graph.start + np.where(graph.transfers, 0, graph.seconds)
    return IterationPattern(routes, size, lag, graph.after, np.asarray(graph.weight, float), before, total)


def runs_of_ranks(named: str, ranks: int, servers: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """[ranks] the server of each rank, in equal runs, and its place in the run. `InputError` if they do not divide."""
    if not servers or ranks % len(servers):
        raise InputError(f"servers of {named} must divide its {ranks} ranks evenly, got {len(servers)}.")
    each = ranks // len(servers)
    return np.repeat(np.array(servers, np.int64), each), np.tile(np.arange(each), len(servers))


def task_graph(path: str) -> TaskGraph:
    """What is in a file of tasks."""
    from mfabric_jax.tasks.formats.registry import read_tasks

    return read_tasks(path)


def graph_flows(
    graph: TaskGraph, server: np.ndarray, lane_gbps: float | None, latency_s: Latency | None = None
) -> FlowGraph:
    """The flows of tasks as a replay has them; `server` [ranks], `lane_gbps`: about what a rank can send."""
    return lowered(graph, server=server, lane_gbps=lane_gbps or GUESSED_GBPS, alpha_s=latency_s or 0.0)


def latency_between(graph: FlowGraph, endpoint: np.ndarray, place: WiredServers) -> Latency:
    """Latency of the links between every two ranks that send each other something, as a function of ranks."""
    ranks, moves = len(endpoint), graph.transfers
    known = np.unique(graph.src[moves] * ranks + graph.dst[moves])
    src, dst = (endpoint[end] for end in np.divmod(known, ranks))
    away, delay_s = np.flatnonzero(src != dst), np.zeros(len(known))
    if len(away):
        delay_s[away] = latency(place.network, place.route(src[away], dst[away]))

    def between(src: np.ndarray, dst: np.ndarray) -> np.ndarray:
        return delay_s[np.searchsorted(known, src * ranks + dst)]

    return between


@functools.cache
def model_phase(case: Case) -> tuple[float, float]:
    """Seconds that wait for no NIC, and bytes that keep a NIC busy for the rest: one phase as long as the iteration of
    the case, as `simulate` has it.

    Communication that would still be exposed if the NVSwitch of a server took no time is that of NICs.
    """
    (row,) = simulate(case).rows()
    (over_nics,) = simulate(case.with_({"gpu.nvlink_gigabytes_per_s": NO_TIME})).rows()
    exposed_s = over_nics["exposed_comm_s"]
    return row["iteration_s"] - exposed_s, exposed_s * units.gbps(case.network.nic_gbps)
