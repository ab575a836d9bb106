"""Put the flows of an iteration on links. Kinds of traffic share links or have their own."""

from dataclasses import replace

import numpy as np

from mfabric_jax.apps.graphs.export.iteration_tasks import IterationGraph
from mfabric_jax.apps.graphs.export.site_tasks import TRAFFIC
from mfabric_jax.checks import one_of
from mfabric_jax.flows.flows import Flows
from mfabric_jax.routing.shortest import Routes
from mfabric_jax.routing.transfers import Routed
from mfabric_jax.workload.volume import replica_bytes, replica_ring

CONTENTION: dict[str, tuple[str, ...]] = {  # kinds of traffic that share links
    "none": (),
    "PP": ("PP",),
    "EP+PP": ("EP", "PP"),
    "EP+DP": ("EP", "DP"),
    "PP+DP": ("PP", "DP"),
    "all": ("EP", "PP", "DP"),
}


PP, DP = (TRAFFIC.index(kind) for kind in ("PP", "DP"))


def over_ports(iteration: IterationGraph, flows: Flows, contention: str) -> tuple[np.ndarray, Routed]:
    """Return the capacities [L] of links in bytes/s, and the flows over these links with their caps and latency.

    The links are the ports of every end, up and down, and the ports of its server if the edge is oversubscribed. The
    kinds of traffic in `CONTENTION[contention]` share them. All-to-alls or gradients that do not share have their own
    copies of the ports. Sends between stages that do not share cross no link and run at the speed of a port, as in
    `iterate`. Messages on circuits never cross links.
    """
    shared = np.isin(TRAFFIC, CONTENTION[one_of("contention", contention, CONTENTION)])
    rates, per_server = iteration.problem.rates(iteration.problem.bandwidths[0]), iteration.layout.per_server
    beyond = float(np.min(rates.eps_Bps))  # of a server
    ratio = iteration.problem.group.oversubscription
    ports = [np.full(iteration.graph.ranks, beyond * (ratio or 1.0) / per_server)] * 2
    ports += [] if ratio is None else [np.full(iteration.graph.ranks // per_server, beyond)] * 2
    first = np.cumsum([0, *map(len, ports)])
    traffic, private = iteration.traffic[flows.task], iteration.private[flows.task]
    sends = (traffic == PP) & ~shared[PP]
    crosses = flows.transfers & (traffic > 0) & ~private & ~sends
    ends = flows.src, flows.dst, flows.src // per_server, flows.dst // per_server
    hops = np.stack([begin + end for begin, end in zip(first[:-1], ends, strict=False)], axis=1)
    copy = np.where(shared[traffic], 0, np.where(traffic == DP, 2, 1))
    hops = np.where(crosses[:, None], hops + copy[:, None] * first[-1], -1)
    of_send = float(np.min(rates.send_Bps)) / per_server
    cap = np.where(flows.transfers, np.where(sends, of_send, iteration.cap[flows.task]), 1.0)
    flows = replace(flows, cap=cap, lag=flows.lag + _latency_s(iteration, flows))
    shares, links = iteration.problem.resolved.shares(iteration.problem.workload), np.concatenate(ports)
    of_all_to_alls = links * shares.nic / shares.ring_nic  # on shared links, all-to-alls get the rate of rings
    return np.concatenate([links, of_all_to_alls, links]), Routed(flows, Routes(hops, (hops >= 0).astype(float)))


def _latency_s(iteration: IterationGraph, flows: Flows) -> np.ndarray:
    """Latency [F] s: propagation between servers and `alpha_s`; for a stage's gradients, once per step of a ring."""
    latency_s = float(iteration.problem.rates(iteration.problem.bandwidths[0]).step_s)
    sums = replica_bytes(iteration.problem.workload, 0, last=True)
    steps = replica_ring(iteration.problem.workload, sums.dense, sums.expert).steps
    traffic = np.where(flows.transfers, iteration.traffic[flows.task], 0)
    parts = np.bincount(flows.src[traffic == DP], minlength=iteration.graph.ranks)[flows.src]
    times = np.where(traffic == DP, steps / np.maximum(parts, 1), 1.0)
    return np.where(traffic > 0, latency_s * times, 0.0)
