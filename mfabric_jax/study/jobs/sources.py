"""An iteration of a job that is given as a graph of tasks, or as a model."""

import functools

import numpy as np

from mfabric_jax import units
from mfabric_jax.checks import InputError
from mfabric_jax.flows.dependencies import run_order
from mfabric_jax.routing.routes import stacked
from mfabric_jax.routing.transfers import latency
from mfabric_jax.study.jobs.fabrics import WiredServers
from mfabric_jax.study.jobs.iterations import IterationPattern
from mfabric_jax.tasks.flow_graph import FlowGraph

FABRIC = "fat-tree"  # on which a model's iteration is timed: nothing but its own NICs is in its way


def pattern_of_graph(graph: FlowGraph, endpoint: np.ndarray, place: WiredServers) -> IterationPattern:
    """One iteration of a job from its flows. Messages arrive as late as the latency of their links says.

    - `endpoint` [ranks]: where each rank is; flows between ranks of one endpoint take no time.

    Flows from one rank to another are one connection. `InputError` for a flow that waits and has a start of its own.
    """
    waits = np.zeros(graph.flows, bool)
    waits[graph.after[:, 1]] = True
    if np.any(wrong := waits & (graph.start > 0)):
        raise InputError(f"start of flow {np.argmax(wrong)} must be 0, as it waits for others, which repeat.")
    src, dst = (np.where(graph.transfers, endpoint[end], -1) for end in (graph.src, graph.dst))
    away = np.flatnonzero(graph.transfers & (src != dst) & (graph.bytes > 0))
    size, late_s = np.zeros(graph.flows), np.zeros(graph.flows)
    size[away] = graph.bytes[away]
    ways = []
    if len(away):
        own = place.route(src[away], dst[away])
        ways, late_s[away] = [(away, own)], latency(place.network, own)
    routes = stacked(ways, graph.flows)
    before, total, sent = np.zeros(graph.flows), np.zeros(graph.flows), {}
    pairs = list(zip(graph.src.tolist(), graph.dst.tolist(), strict=True))
    for flow in run_order(graph.after, graph.flows).tolist():
        before[flow] = sent.get(pairs[flow], 0.0)
        sent[pairs[flow]] = before[flow] + size[flow]
    total[:] = [sent[pair] for pair in pairs]
    lag = graph.lag + graph.start + late_s + np.where(graph.transfers, 0, graph.seconds)
    return IterationPattern(routes, size, lag, graph.after, np.asarray(graph.weight, float), before, total)


def runs_of_ranks(named: str, ranks: int, servers: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """[ranks] the server of each rank, in equal runs, and its place in the run. `InputError` if they do not divide."""
    if not servers or ranks % len(servers):
        raise InputError(f"servers of {named} must divide its {ranks} ranks evenly, got {len(servers)}.")
    each = ranks // len(servers)
    return np.repeat(np.array(servers, np.int64), each), np.tile(np.arange(each), len(servers))


def graph_flows(path: str) -> tuple[FlowGraph, int]:
    """The flows of a file of tasks, its collectives made of them, and its ranks."""
    from mfabric_jax.tasks.formats.registry import read_tasks
    from mfabric_jax.tasks.lowering import lowered

    graph = read_tasks(path)
    return lowered(graph), graph.ranks


@functools.cache
def model_phase(model: str, nic_gbps: float) -> tuple[float, float]:
    """Seconds without communication, and bytes that keep a NIC busy for as long as communication is exposed: one phase
    as long as the iteration that `mfabric compare` shows on a fat-tree with own NICs of `nic_gbps` (preset today)."""
    from mfabric_jax.study._compare import compare
    from mfabric_jax.study.config import Compare
    from mfabric_jax.study.presets import PRESETS

    setting = {"models": (model,), "fabrics": (FABRIC,), "nic_gbps": (nic_gbps,), "nic_use": ("own",)}
    (row,) = compare(Compare(**(setting | PRESETS["today"])))
    return row["iteration_s"] - row["exposed_comm_s"], row["exposed_comm_s"] * units.gbps(nic_gbps)
