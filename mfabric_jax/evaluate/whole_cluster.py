"""One training iteration on a whole cluster: expert, data and pipeline parallel flows share the fabric."""

import resource
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mfabric_jax import fabric, policies, traffic, units
from mfabric_jax.case import Case
from mfabric_jax.case.network import GRAPH
from mfabric_jax.case.policies import NO_SCHEDULE
from mfabric_jax.checks import InputError, Misfit
from mfabric_jax.evaluate import Resolved, resolve
from mfabric_jax.evaluate.problem import check_dtype
from mfabric_jax.evaluate.resolving.limits import check_modelled, refuse
from mfabric_jax.evaluate.resolving.resolved import Hardware
from mfabric_jax.evaluate.solving import problem_at
from mfabric_jax.fabric import Cluster, FabricGraph, Region, read_graph
from mfabric_jax.fabric.graph import endpoints
from mfabric_jax.fabric.rank_files import gpus_in
from mfabric_jax.fabric.relays import relays_of
from mfabric_jax.fabric.site import ClusterShape
from mfabric_jax.policies.wirings import ALL_TO_ALLS, OVER_STAGE, bytes_sent, circuits_over_stage
from mfabric_jax.routing import transfer
from mfabric_jax.routing.ends import FlowEnds, columns_of_ends
from mfabric_jax.routing.shortest import Routes
from mfabric_jax.routing.transfers import TransferResult, Wired, link_bytes, under, wire_cluster, wire_graph
from mfabric_jax.traffic import Flows, region_bytes, training_flows
from mfabric_jax.workload import Workload

REPLICAS = 64  # most replicas whose traffic is drawn


class PlainServers(NamedTuple):
    servers: int
    gpus_per_server: int
    servers_per_region: int
    pp: int = 1

    def regions(self, demand: np.ndarray) -> np.ndarray:
        """Return the bytes inside every region [G s s], from bytes between all servers [S S]."""
        size, group = self.servers_per_region, np.arange(self.servers // self.servers_per_region)
        return demand.reshape(len(group), size, len(group), size)[group, :, group]


def plain_servers(servers: int, gpus_per_server: int, region_servers: int) -> PlainServers:
    """Return the checked shape; `region_servers` 0: all servers form one region."""
    size = region_servers or servers
    if servers % size:
        raise InputError(f"region_servers must divide the {servers} servers, got {size}.")
    return PlainServers(servers, gpus_per_server, size)


class ClusterSolution(NamedTuple):
    """Result and timings of `solve_cluster`; on a user's graph `cluster` is None and `file` its file."""

    resolved: Resolved
    cluster: Cluster | None
    network: FabricGraph
    flows: Flows
    routes: Routes
    transfers: TransferResult
    build_s: float
    solve_s: float
    file: str | None = None

    @property
    def job(self) -> Workload:
        return self.resolved.job


def solve_cluster(case: Case | None = None, *, graph: str | None = None) -> ClusterSolution:
    """Build the flows and the fabric of a case, and solve them; times include compilation.

    - `graph`: file of a graph (`read_graph`) that replaces the case's fabric. Its gpu (or host) nodes, in order, are
      the job's GPUs.

    Raise InputError for an invalid case, and for a graph with another number of GPUs.
    """
    resolved = resolve(Case() if case is None else case)
    case, job = resolved.case, resolved.job
    if graph is None and case.network.fabric == GRAPH:
        graph = case.network.graph
    check_dtype(case.run.dtype)
    check_modelled("a whole cluster", case)
    began = time.perf_counter()
    tokens = draw_tokens(resolved)
    flows = training_flows(job, tokens)
    built = None if graph is not None else build_cluster(resolved, tokens)
    paths, seed = case.network.paths.name, case.run.seed
    wired = _over_graph(resolved, str(graph)) if built is None else wire_cluster(built, paths, seed)
    routes = wired.routes(flows.src, flows.dst, flows.size)
    network, waits_s = under(resolved.carried_by, wired.network, routes, flows.size)
    ready = time.perf_counter()
    done = transfer(network, routes, flows.size, flows.start, dtype=case.run.dtype)
    done = done._replace(finish=done.finish + np.where(flows.size > 0, waits_s, 0))
    took = ready - began, time.perf_counter() - ready
    return ClusterSolution(resolved, built, network, flows, routes, done, *took, graph)


def _over_graph(resolved: Resolved, graph: str) -> Wired:
    network, job, case = read_graph(graph), resolved.job, resolved.case
    gpus = len(endpoints(network))
    if gpus != job.gpus:
        kinds = ", ".join(f"{count} of kind {kind}" for kind, count in network.nodes)
        raise InputError(
            f"graph {graph!r} has {gpus} endpoints (gpu or host nodes; there are {kinds}), but {job.model} "
            f"runs on {job.gpus} GPUs; change job.parallel to fit."
        )
    forward = relays_of(network, case.network.on_graph.relay).forward
    node = endpoints(network)
    if case.network.on_graph.ranks is not None:
        node = node[gpus_in(case.network.on_graph.ranks, gpus, gpus)]
    options = case.network.paths.name, case.run.seed, resolved.goodput
    return wire_graph(network, *options, forward=forward, node=node)


def build_cluster(resolved: Resolved, tokens: np.ndarray) -> Cluster:
    """Return the fabric, with optical circuits chosen for the expert traffic of the iteration."""

    def choose(degree: int, policy: str | None = None) -> np.ndarray:
        if policy in OVER_STAGE:
            return _of_stages(resolved, degree, policy)
        return region_circuits(resolved, tokens, degree, policy)

    return form_cluster(resolved, resolved.job, choose)


def _of_stages(resolved: Resolved, nics: int, wiring: str) -> np.ndarray:
    """The circuits [P W W] that serve the all-to-alls of the case."""
    job, demand = resolved.job, problem_at(resolved, (resolved.case.network.nic_gbps,)).mean_demand
    groups = job.servers // job.pp // job.servers_per_region
    count = circuits_over_stage(wiring, nics, np.broadcast_to(demand, (groups, *demand.shape)), bytes_sent(job, demand))
    return np.broadcast_to(count, (job.pp, *count.shape))


def form_cluster(hardware: Hardware, shape: ClusterShape, choose: Callable[..., np.ndarray]) -> Cluster:
    """Return the fabric of a case over servers of a shape; `choose(degree, policy)` gives its circuits [G S S]."""
    network, on = hardware.case.network, fabric.get(hardware.case.network.fabric)
    site, wires = hardware.site_of(shape), on.about.optics.wires
    regions = None if wires is None else wires(site, network.nic_gbps, choose)
    inside = units.to_gigabytes(on.inside_Bps(network.gpu_tbps, network.nic_gbps, hardware.server.nvlink))
    options = {"goodput": hardware.goodput, "nvswitch_gigabytes_per_s": inside}
    return on.cluster(site, network.nic_gbps, regions, **options)


def example_cluster(case: Case) -> Cluster:
    """Return the fabric of a case with circuits for its traffic, without solving it."""
    resolved = resolve(case)
    return build_cluster(resolved, draw_tokens(resolved))


def draw_tokens(resolved: Resolved) -> np.ndarray:
    """Return the traffic of at most `REPLICAS` replicas, for the circuits of a whole cluster."""
    iterations = min(resolved.job.dp, REPLICAS)
    return traffic.measured_tokens(resolved.job, iterations=iterations, drift=0.0, seed=resolved.case.run.seed).count


def region_circuits(resolved: Resolved, tokens: np.ndarray, degree: int, policy: str | None = None) -> np.ndarray:
    job = resolved.job
    size, per_server = job.servers_per_region, job.ranks_per_server
    demand = region_bytes(job, tokens)
    shape = (*demand.shape[:2], size, per_server, size, per_server)
    between = demand.reshape(shape).sum(axis=(3, 5)).reshape(-1, size, size)
    groups = job.servers // size
    if len(between) != groups:  # several expert-parallel groups on one server
        return np.zeros((groups, size, size), np.int64)
    return choose_circuits(resolved.case, between, degree, resolved.case.run.dtype, policy)


def choose_circuits(case: Case, demand: np.ndarray, degree: int, dtype: str, policy: str | None = None) -> np.ndarray:
    """Return the circuits [G S S] for the bytes [G S S] between the servers of every region; `policy` None: the case's.

    A policy in `OVER_STAGE` gives circuits over all regions, [1 W W], and does not distinguish gradients from other
    bytes.
    """
    if policy in OVER_STAGE:
        return circuits_over_stage(policy, degree, demand, ALL_TO_ALLS)[None]
    if policy is None and case.circuits.schedule != NO_SCHEDULE:
        refuse("circuits.schedule", (NO_SCHEDULE,), "single flows, whose circuits stay", case.circuits.schedule)
    servers, name = demand.shape[-1], policy or case.circuits.policy
    assert name is not None  # of a case without open values
    if name == "static":
        raise Misfit("circuits.policy must not be static for a single all-to-all; choose greedy.")
    region = Region(servers, case.network.nic_gbps, degree, 1)
    rule = policies.get_checked(name, (servers,), degree, names=case.network.acos.topologies)
    choose = jax.jit(jax.vmap(lambda matrix: rule(matrix, region).circuits.count))
    count = np.asarray(choose(jnp.asarray(demand, dtype)))
    policies.check_legal(policies.name_of(name), count, degree)
    return count.astype(np.int64)


def cluster_rows(solved: ClusterSolution) -> list[dict[str, Any]]:
    """Return a row for every kind of traffic, and one for all traffic."""
    flows, done = solved.flows, solved.transfers
    facts = {
        "model": solved.job.model,
        "fabric": "graph" if solved.cluster is None else solved.cluster.name,
        **({} if solved.file is None else {"graph": solved.file}),
        "servers": solved.job.servers,
        "gpus": solved.job.gpus,
        "nic_gbps": None if solved.cluster is None else solved.cluster.nic_gbps,
        "links": len(solved.network.tail),
    }
    took = {"build_s": solved.build_s, "solve_s": solved.solve_s, "peak_mb": peak_megabytes()}
    masks = {"all": np.ones(len(flows.src), bool)} | {label: flows.of(label) for label in flows.labels}
    rows = []
    for kind, mask in masks.items():
        if mask.any():
            ends = {"flows": int(mask.sum()), "bytes": float(flows.size[mask].sum())}
            ends |= {"end_s": float(done.finish[mask].max())} | _flow_ends(solved, mask)
            rows.append(facts | {"traffic": kind} | ends | took)
    return rows


def _flow_ends(solved: ClusterSolution, mask: np.ndarray) -> dict[str, Any]:
    """Quantiles of the seconds that flows take, and the link that they would keep busy longest if no other flows used
    it."""
    flows, done, network = solved.flows, solved.transfers, solved.network
    some = mask & (flows.size > 0)
    carried = link_bytes(network, Routes(*(x[some] for x in solved.routes)), flows.size[some])
    alone = np.divide(carried, network.capacity, out=np.zeros_like(carried), where=carried > 0)
    return columns_of_ends(FlowEnds.of((done.finish - flows.start)[some], alone, network.link_name))


def peak_megabytes() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)


def link_rows(solved: ClusterSolution) -> list[dict[str, Any]]:
    """Return a row for every link: ends, kind, capacity, bytes carried and utilisation until the last flow ends."""
    done = solved.transfers
    return use_of_links(solved.network, range(len(done.link_bytes)), done.link_bytes, done.utilisation)


def use_of_links(network: FabricGraph, links: Iterable[int], size: np.ndarray, use: np.ndarray) -> list[dict[str, Any]]:
    """Return a row for each of `links`; `size`, `use` [L]: bytes and utilisation of each link of the network."""
    kinds = [kind for kind, count in network.links for _ in range(count)]
    return [
        {
            "link": link,
            "kind": kinds[link],
            "from": network.node_name(int(network.tail[link])),
            "to": network.node_name(int(network.head[link])),
            "capacity_bytes_per_s": float(network.capacity[link]),
            "bytes": float(size[link]),
            "utilisation": float(use[link]),
        }
        for link in links
    ]


def flow_rows(solved: ClusterSolution) -> list[dict[str, Any]]:
    """Return a row for every flow: ends, bytes, start and end, first rate, and the link that limits it then."""
    network, flows, done = solved.network, solved.flows, solved.transfers
    return [
        {
            "flow": flow,
            "traffic": flows.labels[flows.task[flow]],
            "src": int(flows.src[flow]),
            "dst": int(flows.dst[flow]),
            "bytes": float(flows.size[flow]),
            "start_s": float(flows.start[flow]),
            "finish_s": float(done.finish[flow]),
            "rate_bytes_per_s": float(done.rate[flow]),
            "bottleneck": network.link_name(int(done.bottleneck[flow])) if done.bottleneck[flow] >= 0 else None,
        }
        for flow in range(len(flows.src))
    ]
