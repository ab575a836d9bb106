"""Turn a file of jobs into a scene: the links of its fabric, and the flows of every phase over them."""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mfabric_jax import fabric, units
from mfabric_jax.apps.graphs.jobs.cassini import time_shifts
from mfabric_jax.apps.graphs.jobs.iterations import Scene, pattern_of, scene_of
from mfabric_jax.apps.graphs.jobs.jobs_file import FabricTable, JobPhase, SharedJobs, TrainingJob
from mfabric_jax.apps.graphs.tasks.formats.registry import read_tasks
from mfabric_jax.apps.graphs.tasks.lowering import GUESSED_GBPS, lower_tasks
from mfabric_jax.case import Case
from mfabric_jax.case.paths import files_of_case
from mfabric_jax.checks import InputError, Misfit
from mfabric_jax.evaluate import simulate
from mfabric_jax.evaluate.resolving.limits import check_modelled
from mfabric_jax.evaluate.resolving.resolve import gpu_of, hardware_of
from mfabric_jax.evaluate.whole_cluster import choose_circuits, form_cluster, plain_servers
from mfabric_jax.fabric import FabricGraph, read_graph
from mfabric_jax.fabric.cluster import Cluster
from mfabric_jax.fabric.graph import endpoints
from mfabric_jax.fabric.network import network_of
from mfabric_jax.fabric.relays import relays_of
from mfabric_jax.flows.flows import Flows, flows_of
from mfabric_jax.routing.shortest import Routes, stack_routes
from mfabric_jax.routing.transfers import Routed, Wired, latency, wire_cluster, wire_graph
from mfabric_jax.support.rings import onward
from mfabric_jax.support.text_files import cached_by_files

# -- the links that jobs share: a case's fabric with circuits chosen for the jobs, racks, or a graph

DTYPE = "float32"  # precision of the demand for which circuits are chosen


class WiredFabric(NamedTuple):
    """The links of a fabric. Endpoints are numbered server by server; they are GPUs, or the servers themselves."""

    wired: Wired
    per_server: int = 1

    def route(self, src: np.ndarray, dst: np.ndarray) -> Routes:
        """Return the paths of equal flows between endpoints [F]."""
        return self.wired.routes(src, dst, np.ones(len(src)))


def servers_of(table: FabricTable) -> int:
    return table.servers if table.graph is None else len(endpoints(read_graph(table.graph)))


def endpoints_of(table: FabricTable) -> int:
    """Return the endpoints of each server: its GPUs on a case's fabric, 1 on racks and graphs."""
    return 1 if table.own else fabric.get(table.case.network.fabric).gpus_of(gpu_of(table.case))


def wire_fabric(table: FabricTable, demand: np.ndarray) -> WiredFabric:
    """Build the fabric, with circuits for `demand` [S S], the bytes of all jobs between servers."""
    paths = table.case.network.paths.name
    check_modelled("replay and jobs", table.case)
    if table.own:
        network = _racks(table) if table.graph is None else read_graph(table.graph)
        return WiredFabric(
            wire_graph(network, paths, forward=relays_of(network, table.case.network.on_graph.relay).forward)
        )
    cluster = _cluster(table, demand)
    return WiredFabric(wire_cluster(cluster, paths), cluster.gpus_per_server)


def _cluster(table: FabricTable, demand: np.ndarray) -> Cluster:
    hardware = hardware_of(table.case, table.servers)
    shape = plain_servers(table.servers, endpoints_of(table), table.region_servers)
    if table.case.network.payload.name == "transport":
        raise Misfit("network.payload must be goodput for several jobs, got transport.")

    def choose(degree: int, policy: str | None = None) -> np.ndarray:
        return choose_circuits(hardware.case, shape.regions(demand), degree, DTYPE, policy)

    return form_cluster(hardware, shape, choose)


def _racks(table: FabricTable) -> FabricGraph:
    of_case, host = table.case.network, np.arange(table.servers)
    racks = -(-table.servers // table.rack)
    rack, core = table.servers + host // table.rack, table.servers + racks
    nic = np.full(table.servers, units.gbps(of_case.nic_gbps))
    above = np.full(racks, units.gbps(of_case.nic_gbps * table.rack / (of_case.oversubscription or 1.0)))
    switch, top = table.servers + np.arange(racks), np.full(racks, core)
    parts = [("NIC out", host, rack, nic), ("rack up", switch, top, above)]
    parts += [("rack down", top, switch, above), ("NIC in", rack, host, nic)]
    return network_of(parts, (("host", table.servers), ("rack", racks), ("core", 1)), 0.0)


# -- an iteration of a job given as a task graph, or as a case

NO_TIME = 10**9  # gigabytes/s of an NVSwitch that takes practically no time


def pattern_of_graph(graph: Flows, endpoint: np.ndarray, wired_fabric: WiredFabric) -> Routed:
    """Return one iteration of a job from its flows; `endpoint` [ranks] is the endpoint of each rank.

    Flows within an endpoint take no time. All flows from one rank to another are one connection. Raise `InputError` for
    a flow that waits for others and also has a start.
    """
    waits = np.zeros(graph.flows, bool)
    waits[graph.after[:, 1]] = True
    if np.any(wrong := waits & (graph.start > 0)):
        raise InputError(f"start of flow {np.argmax(wrong)} must be 0, since it waits for flows that repeat.")
    src, dst = (np.where(graph.transfers, endpoint[end], -1) for end in (graph.src, graph.dst))
    away = np.flatnonzero(graph.transfers & (src != dst) & (graph.bytes > 0))
    routes = stack_routes([(away, wired_fabric.route(src[away], dst[away]))] if len(away) else [], graph.flows)
    size = np.zeros(graph.flows)
    size[away] = graph.size[away]
    _, connection = np.unique(np.stack([graph.src, graph.dst], axis=1), axis=0, return_inverse=True)
    lag = graph.lag + graph.start + np.where(graph.transfers, 0, graph.size)
    return Routed(
        flows_of(src, dst, size, lag=lag, weight=graph.weight, task=connection.reshape(-1), after=graph.after), routes
    )


def runs_of_ranks(named: str, ranks: int, servers: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Return each rank's server and its position there [ranks]; servers hold equally many consecutive ranks.

    Raise `InputError` if the ranks do not divide evenly.
    """
    if not servers or ranks % len(servers):
        raise InputError(f"servers of {named} must divide its {ranks} ranks evenly, got {len(servers)}.")
    each = ranks // len(servers)
    return np.repeat(np.array(servers, np.int64), each), np.tile(np.arange(each), len(servers))


def with_latency(flows: Flows, endpoint: np.ndarray, wired_fabric: WiredFabric) -> Flows:
    """Add the latency of the links that each message crosses; `endpoint` [ranks] is the endpoint of each rank."""
    if not wired_fabric.wired.network.delay_s.any():
        return flows

    def latency_s(src: np.ndarray, dst: np.ndarray) -> np.ndarray:
        pairs, which = np.unique(src * len(endpoint) + dst, return_inverse=True)
        src, dst = (endpoint[end] for end in np.divmod(pairs, len(endpoint)))
        away, delay_s = np.flatnonzero(src != dst), np.zeros(len(pairs))
        if len(away):
            delay_s[away] = latency(wired_fabric.wired.network, wired_fabric.route(src[away], dst[away]))
        return delay_s[which]

    return flows.add_latency(latency_s)


@cached_by_files(files_of_case, maxsize=1024)
def model_phase(case: Case) -> tuple[float, float]:
    """Divide the case's iteration in `simulate` into seconds without NICs and bytes that keep a NIC busy for the rest.

    Communication counts as NIC traffic if it stays exposed with an NVSwitch that takes no time.
    """
    check_modelled("replay and jobs", case)
    (row,) = simulate(case).rows()
    (over_nics,) = simulate(case.with_({"gpu.nvlink_gigabytes_per_s": NO_TIME})).rows()
    exposed_s = over_nics["exposed_comm_s"]
    return row["iteration_s"] - exposed_s, exposed_s * units.gbps(case.network.nic_gbps)


def scene_from(shared: SharedJobs) -> Scene:
    """Return the scene of a file of jobs; each job is also run alone to time it."""
    if shared.fabric is None:
        links, capacity = list(shared.links), np.array([units.gbps(float(gbps)) for gbps in shared.links.values()])
        patterns = [_over_links(job, links) for job in shared.jobs]
    else:
        moves, demand = [_moves(job, shared.fabric) for job in shared.jobs], np.zeros((servers_of(shared.fabric),) * 2)
        for move in moves:
            move.add_to(demand)
        wired_fabric = wire_fabric(shared.fabric, demand)
        network = wired_fabric.wired.network
        links, capacity = [network.link_name(link) for link in range(len(network.tail))], network.capacity
        patterns = [move.pattern(wired_fabric) for move in moves]
    names, iterations, arrival_s = zip(*((job.name, job.iterations, job.arrival_s) for job in shared.jobs), strict=True)
    return scene_of(names, patterns, iterations, arrival_s, links, capacity)


def best_placement(shared: SharedJobs, scene: Scene, drawn: int, seed: int, tick_s: float) -> Scene:
    """Return the scene with the best CASSINI score among `scene` and `drawn` random placements.

    A placement keeps each job's number of servers, shares no server between jobs and lists servers in rising order.
    Raise `InputError` without a fabric or with too few servers.
    """
    if shared.fabric is None:
        raise InputError("placements need a fabric; these jobs share links.")
    servers, wanted = servers_of(shared.fabric), [len(job.servers) for job in shared.jobs]
    if sum(wanted) > servers:
        raise InputError(f"placements need {sum(wanted)} servers, one for each server of a job; got {servers}.")
    draw, scenes = np.random.default_rng(seed), [scene]
    for _ in range(drawn):
        order = np.split(draw.permutation(servers)[: sum(wanted)], np.cumsum(wanted)[:-1])
        placed = zip(shared.jobs, order, strict=True)
        jobs = tuple(dataclasses.replace(job, servers=tuple(sorted(own.tolist()))) for job, own in placed)
        scenes.append(scene_from(dataclasses.replace(shared, jobs=jobs)))
    scores = [time_shifts(candidate.alone_s.tolist(), candidate.circles(), tick_s).score for candidate in scenes]
    return scenes[int(np.argmax(scores))]


def _phases(job: TrainingJob, nics: float = 1) -> Sequence[JobPhase]:
    if job.case is None:
        return job.phases
    seconds, size = model_phase(job.case)
    return [dataclasses.replace(job.phases[0], compute_s=seconds, gigabytes=units.to_gigabytes(size * nics))]


def _over_links(job: TrainingJob, links: list[str]) -> Routed:
    phases = []
    for phase in _phases(job):
        flows = phase.links if phase.gigabytes else ()
        hops = np.full((len(flows), max(map(len, flows), default=1)), -1, np.int32)
        for row, flow in zip(hops, flows, strict=True):
            row[: len(flow)] = [links.index(link) for link in flow]
        routes = Routes(hops, (hops >= 0).astype(float))
        phases.append((phase.compute_s, routes, np.full(len(flows), units.gigabytes(phase.gigabytes))))
    return pattern_of(phases)


class _PhaseMoves(NamedTuple):
    """Traffic of phases in order: (seconds, servers `src` and `dst`, bytes of each flow)."""

    phases: list[tuple[float, np.ndarray, np.ndarray, float]]

    def add_to(self, demand: np.ndarray) -> None:
        for _, src, dst, size in self.phases:
            np.add.at(demand, (src, dst), size)

    def pattern(self, wired_fabric: WiredFabric) -> Routed:
        """Return the pattern in which each endpoint sends an equal part to its counterpart on the other server."""
        each = np.arange(wired_fabric.per_server)
        flows = []
        for seconds, src, dst, size in self.phases:
            ends = ((server[:, None] * wired_fabric.per_server + each).ravel() for server in (src, dst))
            routes = wired_fabric.route(*ends)
            flows.append((seconds, routes, np.full(len(routes.hops), size / wired_fabric.per_server)))
        return pattern_of(flows)


class _GraphMoves(NamedTuple):
    """Traffic of a task graph without latency; `server`, `position` [ranks]: each rank's server and place there."""

    flows: Flows
    server: np.ndarray
    position: np.ndarray

    def add_to(self, demand: np.ndarray) -> None:
        moves = self.flows.transfers
        src, dst = (self.server[end[moves]] for end in (self.flows.src, self.flows.dst))
        np.add.at(demand, (src, dst), np.where(src == dst, 0, self.flows.size[moves]))

    def pattern(self, wired_fabric: WiredFabric) -> Routed:
        """Return the pattern with a server's ranks spread over its endpoints; ranks may share an endpoint."""
        endpoint = self.server * wired_fabric.per_server + self.position % wired_fabric.per_server
        return pattern_of_graph(with_latency(self.flows, endpoint, wired_fabric), endpoint, wired_fabric)


def _moves(job: TrainingJob, table: FabricTable) -> _PhaseMoves | _GraphMoves:
    servers = servers_of(table)
    if job.servers and max(job.servers) >= servers:
        raise InputError(f"servers of {job.name} must be below {servers}, got {max(job.servers)}.")
    if job.graph is not None:
        graph, gbps = read_tasks(job.graph), GUESSED_GBPS if table.graph is not None else table.case.network.nic_gbps
        server, position = runs_of_ranks(job.name, graph.ranks, job.servers)
        return _GraphMoves(lower_tasks(graph, server=server, lane_gbps=gbps), server, position)
    phases, payload = [], 1.0 if table.own else hardware_of(table.case, table.servers).goodput
    for phase in _phases(job, endpoints_of(table) * payload):
        own = np.array(job.servers if phase.gigabytes else (), np.int64)
        src, dst = TRAFFIC[phase.traffic](own)
        phases.append((phase.compute_s, src, dst, units.gigabytes(phase.gigabytes) * len(own) / max(1, len(src))))
    return _PhaseMoves(phases)


def _to_all(servers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    src, dst = (side.ravel() for side in np.meshgrid(servers, servers, indexing="ij"))
    return src[src != dst], dst[src != dst]


TRAFFIC = {"ring": lambda servers: (servers, onward(servers)), "all-to-all": _to_all}
