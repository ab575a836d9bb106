"""Jobs of a file -> a scene: the links of their fabric, and the flows of every phase over them."""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mfabric_jax import units
from mfabric_jax.checks import InputError
from mfabric_jax.jobs.fabrics import WiredServers, endpoints_of, nic_part, place_of, servers_of
from mfabric_jax.jobs.iterations import IterationPattern, pattern_of
from mfabric_jax.jobs.jobs_file import FabricTable, JobPhase, SharedJobs, TrainingJob
from mfabric_jax.jobs.scene import Scene, scene_of
from mfabric_jax.jobs.sources import (
    graph_flows,
    latency_between,
    model_phase,
    pattern_of_graph,
    runs_of_ranks,
    task_graph,
)
from mfabric_jax.routing.routes import Routes
from mfabric_jax.schedule.cassini import best_placement, time_shifts
from mfabric_jax.tasks.flow_graph import FlowGraph
from mfabric_jax.tasks.graph import TaskGraph


def scene_from(shared: SharedJobs) -> Scene:
    """The jobs of a file on their links or their fabric, each also run by itself."""
    if shared.fabric is None:
        links, capacity = list(shared.links), np.array([units.gbps(float(gbps)) for gbps in shared.links.values()])
        patterns = [_over_links(job, links) for job in shared.jobs]
    else:
        servers = servers_of(shared.fabric)
        moves = [_moves(job, shared.fabric) for job in shared.jobs]
        place = place_of(shared.fabric, np.sum([one.demand(servers) for one in moves], axis=0))
        network = place.network
        links, capacity = [network.link_name(link) for link in range(len(network.tail))], network.capacity
        patterns = [one.pattern(place) for one in moves]
    names, iterations, arrival_s = zip(*((job.name, job.iterations, job.arrival_s) for job in shared.jobs), strict=True)
    return scene_of(names, patterns, iterations, arrival_s, links, capacity)


def best_placed(shared: SharedJobs, scene: Scene, drawn: int, seed: int, tick_s: float) -> Scene:
    """The scene, or that of the drawn placement with the best CASSINI score: as many servers for every job, all other,
    in rising order: those of a rack next to each other.

    `InputError` without a fabric, or where servers are too few for jobs that share none.
    """
    if shared.fabric is None:
        raise InputError("placements need a fabric; jobs that share links have none to be placed on.")
    servers, wanted = servers_of(shared.fabric), [len(job.servers) for job in shared.jobs]
    if sum(wanted) > servers:
        raise InputError(f"placements need a server for each of the jobs' {sum(wanted)}, the fabric has {servers}.")
    draw, scenes = np.random.default_rng(seed), [scene]
    for _ in range(drawn):
        order = np.split(draw.permutation(servers)[: sum(wanted)], np.cumsum(wanted)[:-1])
        placed = zip(shared.jobs, order, strict=True)
        jobs = tuple(dataclasses.replace(job, servers=tuple(sorted(own.tolist()))) for job, own in placed)
        scenes.append(scene_from(dataclasses.replace(shared, jobs=jobs)))
    return scenes[best_placement([time_shifts(one.alone_s.tolist(), one.circles(), tick_s) for one in scenes])]


def _phases(job: TrainingJob, nics: float = 1) -> Sequence[JobPhase]:
    """Of a case the only one, in seconds and in bytes that keep all NICs of a server busy."""
    if job.case is None:
        return job.phases
    seconds, size = model_phase(job.case)
    return [dataclasses.replace(job.phases[0], compute_s=seconds, gigabytes=units.to_gigabytes(size * nics))]


def _over_links(job: TrainingJob, links: list[str]) -> IterationPattern:
    """One flow for each list of links of a phase."""
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
    """What phases move between servers: (seconds, servers `src` and `dst`, bytes of each flow), one after the other."""

    phases: list[tuple[float, np.ndarray, np.ndarray, float]]

    def demand(self, servers: int) -> np.ndarray:
        """[S S] bytes of an iteration."""
        found = np.zeros((servers, servers))
        for _, src, dst, size in self.phases:
            np.add.at(found, (src, dst), size)
        return found

    def pattern(self, place: WiredServers) -> IterationPattern:
        """Each endpoint of a server sends its part to the same one of the other server."""
        each = np.arange(place.per_server)
        flows = []
        for seconds, src, dst, size in self.phases:
            ends = ((server[:, None] * place.per_server + each).ravel() for server in (src, dst))
            routes = place.route(*ends)
            flows.append((seconds, routes, np.full(len(routes.hops), size / place.per_server)))
        return pattern_of(flows)


class _GraphMoves(NamedTuple):
    """What a graph of tasks moves; `server` [ranks]: where each rank runs, and which of the ranks there it is.

    - `flows`: without latency.   - `lane_gbps`: about what a rank can send; None: not known.
    """

    graph: TaskGraph
    flows: FlowGraph
    server: np.ndarray
    turn: np.ndarray
    lane_gbps: float | None

    def demand(self, servers: int) -> np.ndarray:
        """[S S] bytes of an iteration."""
        found, moves = np.zeros((servers, servers)), self.flows.transfers
        ends = (self.server[end[moves]] for end in (self.flows.src, self.flows.dst))
        np.add.at(found, tuple(ends), self.flows.bytes[moves])
        np.fill_diagonal(found, 0)
        return found

    def pattern(self, place: WiredServers) -> IterationPattern:
        """Ranks of a server on its endpoints, several on one where there are more."""
        endpoint, flows = self.server * place.per_server + self.turn % place.per_server, self.flows
        if place.network.delay_s.any():
            late = latency_between(flows, endpoint, place)
            flows = graph_flows(self.graph, self.server, self.lane_gbps, late)
        return pattern_of_graph(flows, endpoint, place)


def _moves(job: TrainingJob, table: FabricTable) -> _PhaseMoves | _GraphMoves:
    servers = servers_of(table)
    if job.servers and max(job.servers) >= servers:
        raise InputError(f"servers of {job.name} must be below {servers}, got {max(job.servers)}.")
    if job.graph is not None:
        graph, gbps = task_graph(job.graph), None if table.graph is not None else table.case.network.nic_gbps
        server, turn = runs_of_ranks(job.name, graph.ranks, job.servers)
        return _GraphMoves(graph, graph_flows(graph, server, gbps), server, turn, gbps)
    phases = []
    for phase in _phases(job, endpoints_of(table) * nic_part(table)):
        own = np.array(job.servers if phase.gigabytes else (), np.int64)
        src, dst = TRAFFIC[phase.traffic](own)
        phases.append((phase.compute_s, src, dst, units.gigabytes(phase.gigabytes) * len(own) / max(1, len(src))))
    return _PhaseMoves(phases)


def _ring(servers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return servers, np.roll(servers, -1)


def _to_all(servers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    src, dst = (side.ravel() for side in np.meshgrid(servers, servers, indexing="ij"))
    return src[src != dst], dst[src != dst]


TRAFFIC = {"ring": _ring, "all-to-all": _to_all}
