"""A graph of tasks on a fabric, ready to run: ranks on GPUs, circuits, flows on paths, one max-min problem."""

import dataclasses
from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from mfabric_jax import fabric, units
from mfabric_jax.case import Case
from mfabric_jax.checks import InputError
from mfabric_jax.cluster.whole_cluster import chosen_circuits, formed_cluster, plain_servers
from mfabric_jax.fabric import Cluster, Network, read_graph
from mfabric_jax.fabric.graph import endpoints
from mfabric_jax.flows import Completion, FlowProblem, completion_times
from mfabric_jax.replay.replay_settings import Replay, gpus_of_ranks
from mfabric_jax.replay.turns import Phases, circuits_of_each, inside_regions, phases_of, with_turns
from mfabric_jax.resolving.resolve import gpu_of, hardware_of
from mfabric_jax.resolving.settings import Hardware
from mfabric_jax.routing import cluster_routes, links_of
from mfabric_jax.routing.routes import stacked
from mfabric_jax.routing.shortest import Routes, shortest_routes
from mfabric_jax.routing.transfers import binding, flow_problem, latency, under
from mfabric_jax.tasks.flow_graph import FlowGraph
from mfabric_jax.tasks.graph import TaskGraph
from mfabric_jax.tasks.lowering import Latency, lowered

# One cluster with several sets of circuits: one network that has the links of all, and paths over each.

CIRCUIT = "circuit"


@dataclasses.dataclass(frozen=True)
class Wirings:
    """`clusters` differ in their circuits alone, whose links come last; `paths`: how flows use equal paths, drawn by
    `seed`."""

    clusters: tuple[Cluster, ...]
    paths: str
    seed: int

    @cached_property
    def _networks(self) -> list[Network]:
        return [links_of(cluster, self.paths) for cluster in self.clusters]

    @cached_property
    def _first(self) -> list[int]:
        """Where the circuits of each are in the common network."""
        counts = [len(cluster.circuits.src) for cluster in self.clusters]
        fixed = len(self._networks[0].tail) - counts[0]
        return (fixed + np.cumsum([0, *counts[:-1]])).tolist()

    @cached_property
    def network(self) -> Network:
        """The links that all share, then the circuits of one set after the other."""
        if len(self.clusters) == 1:
            return self._networks[0]
        shared, most = self._first[0], max(self._networks, key=lambda network: network.size)
        of_all = {}
        for field in ("tail", "head", "capacity", "delay_s"):
            every = [getattr(network, field) for network in self._networks]
            of_all[field] = np.concatenate([every[0][:shared], *(links[shared:] for links in every)])
        links = tuple(run for run in self._networks[0].links if run[0] != CIRCUIT)
        circuits = len(of_all["tail"]) - shared
        return Network(**of_all, nodes=most.nodes, links=(*links, (CIRCUIT, circuits)) if circuits else links)

    def direct(self, wiring: np.ndarray, src: np.ndarray, dst: np.ndarray) -> np.ndarray:
        """[F] mask: whether two servers [F] are joined by a circuit of the set `wiring` [F]."""
        found = np.zeros(len(wiring), bool)
        for one in np.unique(wiring).tolist():
            mine = wiring == one
            found[mine] = self.clusters[one].circuits.find(src[mine], dst[mine]) >= 0
        return found

    def routes(self, wiring: np.ndarray, src: np.ndarray, dst: np.ndarray, size: np.ndarray) -> Routes:
        """Links of the network that flows between GPUs [F] cross, each over its set of circuits."""
        parts, shared = [], self._first[0]
        for one in np.unique(wiring).tolist():
            mine = np.flatnonzero(wiring == one)
            rest = {"routing": self.paths, "seed": self.seed, "size": size[mine]}
            found = cluster_routes(self.clusters[one], src[mine], dst[mine], **rest)
            hops = np.where(found.hops >= shared, found.hops + self._first[one] - shared, found.hops)
            parts.append((mine, Routes(hops, found.share)))
        return stacked(parts, len(wiring))


DTYPE = "float64"  # long sums of times


class Prepared(NamedTuple):
    """F flows of a graph on the L links of a fabric, ready to run.

    - `cluster`, `nic_gbps`: None on a user's graph.   - `gpu` [R]: of every rank.
    - `routes` [F H]: the links of transfers.   - `size` [F]: bytes, of computations seconds.
    - `paths`: how flows use equal ones.
    """

    graph: TaskGraph
    flows: FlowGraph
    cluster: Cluster | None
    nic_gbps: float | None
    network: Network
    routes: Routes
    gpu: np.ndarray
    size: np.ndarray
    paths: str

    @property
    def fabric(self) -> str:
        """The name of the fabric."""
        return "graph" if self.cluster is None else self.cluster.name

    @property
    def title(self) -> str:
        """Where it runs, in words."""
        return self.fabric if self.nic_gbps is None else f"{self.fabric} at {self.nic_gbps:g} Gbps"

    def problem(self, *, every_link: bool = False) -> FlowProblem:
        """Max-min sharing of the flows; computations have a cap of one second a second and no link.

        - `every_link`: also those that cannot hold anything back at these capacities, to give others.
        """
        routes = self.routes if every_link else binding(self.network, self.routes)
        problem = flow_problem(self.network, routes, DTYPE)
        cap = np.where(self.flows.transfers, np.inf, 1.0)
        weight_and_cap = jnp.asarray(self.flows.weight, DTYPE), jnp.asarray(cap, DTYPE)
        return eqx.tree_at(lambda p: (p.weight, p.cap), problem, weight_and_cap)

    def completion(self, problem: FlowProblem, size: Any = None, lag: Any = None, start: Any = None) -> Completion:
        """When every flow begins and ends; differentiable, and `jax.vmap` takes many at once.

        - `size`, `lag`, `start` [F]: None: those of the graph.
        """
        given = (size, self.size), (lag, self.flows.lag), (start, self.flows.start)
        size, lag, start = (jnp.asarray(own if x is None else x, problem.capacity.dtype) for x, own in given)
        return completion_times(problem, size, start, after=self.flows.after, lag=lag)


def prepare(graph: TaskGraph, case: Case, config: Replay) -> Prepared:
    """Ranks on the GPUs of the case's fabric or of the user's graph, transfers on paths. `InputError` for too few."""
    wired = _built(config, graph, case) if config.graph is None else _own_graph(config, graph, case)
    flows, gpu = wired.flows, wired.gpu
    moves, ranks = flows.transfers, graph.ranks
    ways, which = np.unique(_key(wired.wiring[moves], flows.src[moves], flows.dst[moves], ranks), return_inverse=True)
    size = np.bincount(which, flows.bytes[moves], minlength=len(ways))
    wiring, pair = np.divmod(ways, ranks**2)
    routes = wired.routes(wiring, *(gpu[end] for end in np.divmod(pair, ranks)), size)
    network, waits_s = under(wired.hardware.carried_by, wired.network, routes, size)
    flows = _with_latency(graph, config, wired, pair, latency(network, routes) + waits_s)
    row = np.full(flows.flows, len(ways))  # of computations and markers the last, which has no links
    row[moves] = which
    hops = np.vstack([routes.hops, np.full_like(routes.hops[:1], -1, shape=(1, routes.hops.shape[1]))])[row]
    share = np.vstack([routes.share, np.zeros((1, routes.share.shape[1]))])[row]
    amount = np.where(moves, flows.bytes, flows.seconds * config.compute_scale)
    nic_gbps = None if wired.cluster is None else case.network.nic_gbps
    found = Routes(hops, share)
    return Prepared(graph, flows, wired.cluster, nic_gbps, network, found, gpu, amount, case.network.paths.name)


def _key(wiring, src, dst, ranks: int) -> np.ndarray:
    return (wiring * ranks + src) * ranks + dst


def _with_latency(
    graph: TaskGraph, config: Replay, wired: "_Wired", pair: np.ndarray, delay_s: np.ndarray
) -> FlowGraph:
    """The flows with latencies of messages: `alpha_s` and the delay of their path; of several paths the longest."""
    known, place = np.unique(pair, return_inverse=True)
    longest = np.zeros(len(known))
    np.maximum.at(longest, place, delay_s)

    def latency_s(src: np.ndarray, dst: np.ndarray) -> np.ndarray:
        return config.alpha_s + longest[np.searchsorted(known, _key(0, src, dst, graph.ranks))]

    own = lower(graph, config, wired.server, wired.nic_gbps, latency_s)
    both = {x: np.concatenate([getattr(own, x), getattr(wired.flows, x)[own.flows :]]) for x in ("lag", "latency")}
    return dataclasses.replace(wired.flows, **both)


def lower(graph: TaskGraph, config: Replay, server, nic_gbps: float, latency_s: Latency) -> FlowGraph:
    """The graph with its collectives as flows; the same flows whatever the latency."""
    rest = {"algorithms": config.algorithms, "chunks": config.chunks, "absent": config.absent, "lanes": config.lanes}
    return lowered(graph, alpha_s=latency_s, server=server, lane_gbps=nic_gbps, **rest)


def _at_once(src: np.ndarray, dst: np.ndarray) -> np.ndarray:
    return np.zeros(len(src))


class _Wired(NamedTuple):
    """- `hardware`.   - `cluster`: None on a user's graph.   - `gpu`, `server` [R]: of every rank.
    - `nic_gbps`: about what a rank can send.   - `flows`: with turns of the switch, without latency.
    - `wiring` [F]: which circuits a flow finds.   - `routes`: (wiring, GPUs src, dst, bytes) [P] -> `Routes`.
    """

    hardware: Hardware
    cluster: Cluster | None
    network: Network
    gpu: np.ndarray
    server: np.ndarray
    nic_gbps: float
    flows: FlowGraph
    wiring: np.ndarray
    routes: Callable[..., Routes]


def _own_graph(config: Replay, graph: TaskGraph, case: Case) -> _Wired:
    network, seed = read_graph(str(config.graph)), case.run.seed
    hardware = hardware_of(case.with_({"network.fabric": "fat-tree"}), 1)  # the graph says all of its fabric
    node = endpoints(network)
    gpu = gpus_of_ranks(config.ranks_on, graph.ranks, 1, len(node), first=config.first_gpu, seed=seed)
    network = dataclasses.replace(network, capacity=network.capacity * hardware.goodput)

    def routes(wiring, src, dst, size) -> Routes:
        return shortest_routes(network, node[src], node[dst], routing=case.network.paths.name, seed=seed, size=size)

    server, usual = gpu // hardware.server.gpus_per_server, case.network.nic_gbps
    flows = lower(graph, config, server, usual, _at_once)
    return _Wired(hardware, None, network, gpu, server, usual, flows, np.zeros(flows.flows, int), routes)


def _built(config: Replay, graph: TaskGraph, case: Case) -> _Wired:
    """The fabric of a case, with circuits for the graph where it has any."""
    on, nic_gbps, seed = fabric.get(case.network.fabric), case.network.nic_gbps, case.run.seed
    per_server = on.gpus_of(gpu_of(case))
    servers = config.servers or -(-(graph.ranks + config.first_gpu) // per_server)
    gpu = gpus_of_ranks(config.ranks_on, graph.ranks, servers, per_server, first=config.first_gpu, seed=seed)
    hardware, shape = hardware_of(case, servers), plain_servers(servers, per_server, config.region_servers)
    flows = lower(graph, config, gpu // per_server, nic_gbps, _at_once)
    between = _Between(flows, gpu // per_server, servers)

    def choose(demand: np.ndarray, degree: int, policy: str | None = None) -> np.ndarray:
        return chosen_circuits(hardware.case, demand, degree, DTYPE, policy)

    def form(circuits: Callable[..., np.ndarray]) -> Cluster:
        return formed_cluster(hardware, shape, circuits)

    def wirings(*clusters: Cluster) -> Wirings:
        return Wirings(clusters, case.network.paths.name, seed)

    if on.reconfigures and config.circuits_for == "all-to-all":
        alone_s = flows.seconds * config.compute_scale + flows.bytes / units.gbps(nic_gbps)
        phases = inside_regions(phases_of(graph, flows, between.bytes, alone_s), shape.servers_per_region)
        _check_turns(phases)
        own = _each_own(between, phases, choose, form, shape.servers_per_region)
        cluster, wired = own.clusters[0], wirings(*own.clusters)
        flows, wiring = _turning(config, between, phases, own, wired, hardware.delay_s)
    else:
        cluster = form(lambda *degree: choose(shape.regions(between.bytes(flows.transfers)), *degree))
        wired, wiring = wirings(cluster), np.zeros(flows.flows, int)
    return _Wired(hardware, cluster, wired.network, gpu, between.server, nic_gbps, flows, wiring, wired.routes)


class _Between(NamedTuple):
    """Flows between servers; `server` [R]: of every rank."""

    flows: FlowGraph
    server: np.ndarray
    servers: int

    @property
    def ends(self) -> tuple[np.ndarray, np.ndarray]:
        """Servers [F] that a transfer leads from and to."""
        return self.server[self.flows.src], self.server[self.flows.dst]

    def bytes(self, which: np.ndarray) -> np.ndarray:
        """Bytes between servers [S S] of the transfers under a mask [F], none inside."""
        some = which & self.flows.transfers
        src, dst = (end[some] for end in self.ends)
        total = np.bincount(src * self.servers + dst, self.flows.bytes[some], minlength=self.servers**2)
        total = total.reshape(self.servers, self.servers)
        np.fill_diagonal(total, 0)
        return total


def _check_turns(phases: Phases) -> None:
    if not phases.demand.any():
        raise InputError(
            "circuits_for 'all-to-all' needs all-to-alls between servers of a region, of which the graph has none; "
            "choose 'run'."
        )


class _EachOwn(NamedTuple):
    """Circuits of P all-to-alls: `circuits` [P S S], `wiring` [P]: which set each has, from 1 on; `clusters`: the one
    without circuits, then one for each set."""

    circuits: np.ndarray
    wiring: np.ndarray
    clusters: tuple[Cluster, ...]


def _each_own(between: _Between, phases: Phases, choose, form, size: int) -> _EachOwn:
    """Circuits for every all-to-all."""
    chosen: list[np.ndarray] = []

    def none_yet(degree: int, policy: str | None = None) -> np.ndarray:
        chosen.append(circuits_of_each(phases.demand, size, lambda demand: choose(demand, degree, policy)))
        return np.zeros((1, between.servers, between.servers), np.int64)

    bare = form(none_yet)
    (circuits,) = chosen
    known: dict[bytes, int] = {}
    wiring = np.array([known.setdefault(one.tobytes(), len(known) + 1) for one in circuits], np.int64)
    _, first = np.unique(wiring, return_index=True)
    return _EachOwn(circuits, wiring, (bare, *(bare.with_circuits(circuits[place][None]) for place in first)))


def _turning(
    config: Replay, between: _Between, phases: Phases, own: _EachOwn, wired: Wirings, delay_s: float
) -> tuple[FlowGraph, np.ndarray]:
    """The flows with turns of the switch, and the set of circuits that each finds [F]."""
    wiring = np.where(phases.of >= 0, np.append(own.wiring, 0)[phases.of], 0)
    optical = between.flows.transfers & wired.direct(wiring, *between.ends)
    flows = with_turns(between.flows, phases, own.circuits, optical, delay_s, ahead=config.first == "ahead")
    return flows, np.pad(wiring, (0, flows.flows - len(wiring)))
