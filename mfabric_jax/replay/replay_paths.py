"""A graph of tasks on a fabric, ready to run: ranks on GPUs, circuits, flows on paths, one max-min problem."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from mfabric_jax import fabric, units
from mfabric_jax.checks import InputError
from mfabric_jax.cluster.whole_cluster import chosen_circuits, formed_cluster
from mfabric_jax.fabric import Cluster, Network, read_graph
from mfabric_jax.fabric.graph import endpoints
from mfabric_jax.flows import Completion, FlowProblem, completion_times
from mfabric_jax.replay.ranks import gpus_of_ranks
from mfabric_jax.replay.replay_settings import Replay
from mfabric_jax.replay.turns import Phases, circuits_of_each, inside_regions, phases_of, with_turns
from mfabric_jax.replay.wirings import Wirings
from mfabric_jax.routing.carried import under
from mfabric_jax.routing.routes import Routes
from mfabric_jax.routing.shortest import shortest_routes
from mfabric_jax.routing.transfers import binding, flow_problem, latency
from mfabric_jax.tasks.flow_graph import FlowGraph
from mfabric_jax.tasks.graph import TaskGraph
from mfabric_jax.tasks.lowering import Latency, lowered


class Servers(NamedTuple):
    """The shape of a cluster on which no training job is known."""

    servers: int
    gpus_per_server: int
    servers_per_region: int
    pp: int = 1


class Prepared(NamedTuple):
    """F flows of a graph on the L links of a fabric, ready to run.

    - `cluster`, `nic_gbps`: None on a user's graph.   - `gpu` [R]: of every rank.
    - `routes` [F H]: the links of transfers.   - `size` [F]: bytes, of computations seconds.
    - `dtype`: of the problem.
    """

    graph: TaskGraph
    flows: FlowGraph
    cluster: Cluster | None
    nic_gbps: float | None
    network: Network
    routes: Routes
    gpu: np.ndarray
    size: np.ndarray
    dtype: str

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
        problem = flow_problem(self.network, routes, self.dtype)
        cap = np.where(self.flows.transfers, np.inf, 1.0)
        weight_and_cap = jnp.asarray(self.flows.weight, self.dtype), jnp.asarray(cap, self.dtype)
        return eqx.tree_at(lambda p: (p.weight, p.cap), problem, weight_and_cap)

    def completion(self, problem: FlowProblem, size: Any = None, lag: Any = None, start: Any = None) -> Completion:
        """When every flow begins and ends; differentiable, and `jax.vmap` takes many at once.

        - `size`, `lag`, `start` [F]: None: those of the graph.
        """
        given = (size, self.size), (lag, self.flows.lag), (start, self.flows.start)
        size, lag, start = (jnp.asarray(own if x is None else x, problem.capacity.dtype) for x, own in given)
        return completion_times(problem, size, start, after=self.flows.after, lag=lag)


def prepare(graph: TaskGraph, config: Replay, on: str | None, nic_gbps: float | None) -> Prepared:
    """Ranks on the GPUs of a fabric (None: of the user's graph), transfers on paths. `InputError` for too few GPUs."""
    wired = _own_graph(config, graph) if on is None else _built(config, graph, on, nic_gbps)
    flows, gpu = wired.flows, wired.gpu
    moves, ranks = flows.transfers, graph.ranks
    ways, which = np.unique(_key(wired.wiring[moves], flows.src[moves], flows.dst[moves], ranks), return_inverse=True)
    size = np.bincount(which, flows.bytes[moves], minlength=len(ways))
    wiring, pair = np.divmod(ways, ranks**2)
    routes = wired.routes(wiring, *(gpu[end] for end in np.divmod(pair, ranks)), size)
    network, waits_s = under(config.carried_by, wired.network, routes, size)
    flows = _with_latency(graph, config, wired, pair, latency(network, routes) + waits_s)
    row = np.full(flows.flows, len(ways))  # of computations and markers the last, which has no links
    row[moves] = which
    hops = np.vstack([routes.hops, np.full_like(routes.hops[:1], -1, shape=(1, routes.hops.shape[1]))])[row]
    share = np.vstack([routes.share, np.zeros((1, routes.share.shape[1]))])[row]
    amount = np.where(moves, flows.bytes, flows.seconds * config.compute_scale)
    return Prepared(graph, flows, wired.cluster, nic_gbps, network, Routes(hops, share), gpu, amount, config.dtype)


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
    """- `cluster`: None on a user's graph.   - `gpu`, `server` [R]: of every rank.
    - `nic_gbps`: about what a rank can send.   - `flows`: with turns of the switch, without latency.
    - `wiring` [F]: which circuits a flow finds.   - `routes`: (wiring, GPUs src, dst, bytes) [P] -> `Routes`.
    """

    cluster: Cluster | None
    network: Network
    gpu: np.ndarray
    server: np.ndarray
    nic_gbps: float
    flows: FlowGraph
    wiring: np.ndarray
    routes: Callable[..., Routes]


def _own_graph(config: Replay, graph: TaskGraph) -> _Wired:
    network = read_graph(str(config.graph))
    node = endpoints(network)
    gpu = gpus_of_ranks(config.ranks_on, graph.ranks, 1, len(node), first=config.first_gpu, seed=config.seed)
    network = dataclasses.replace(network, capacity=network.capacity * config.goodput)

    def routes(wiring, src, dst, size) -> Routes:
        rest = {"routing": config.routing, "seed": config.seed, "size": size}
        return shortest_routes(network, node[src], node[dst], **rest)

    server, usual = gpu // (config.gpus_per_server or config.server.gpus_per_server), config.nic_gbps[0]
    flows = lower(graph, config, server, usual, _at_once)
    return _Wired(None, network, gpu, server, usual, flows, np.zeros(flows.flows, int), routes)


def _built(config: Replay, graph: TaskGraph, name: str, nic_gbps: Any) -> _Wired:
    """A built-in fabric, with circuits for the graph where it has any."""
    on = fabric.get(name)
    per_server = config.gpus_per_server or on.gpus_of(config.server)
    servers = config.servers or -(-(graph.ranks + config.first_gpu) // per_server)
    placed = {"first": config.first_gpu, "seed": config.seed}
    gpu = gpus_of_ranks(config.ranks_on, graph.ranks, servers, per_server, **placed)
    size = config.region_servers or servers
    if servers % size:
        raise InputError(f"region_servers must divide the {servers} servers, got {size}.")
    flows = lower(graph, config, gpu // per_server, nic_gbps, _at_once)
    between = _Between(flows, gpu // per_server, servers)

    def choose(demand: np.ndarray, degree: int, policy: str | None = None) -> np.ndarray:
        return chosen_circuits(config, demand, degree, nic_gbps, config.dtype, policy)

    def form(circuits: Callable[..., np.ndarray]) -> Cluster:
        shape = Servers(servers, per_server, size)
        return formed_cluster(config, on, shape, nic_gbps, circuits, link_delay_s=config.link_delay_s)

    if on.reconfigures and config.circuits_for == "all-to-all":
        alone_s = flows.seconds * config.compute_scale + flows.bytes / units.gbps(nic_gbps)
        phases = inside_regions(phases_of(graph, flows, between.bytes, alone_s), size)
        _check_turns(phases)
        bare, wired, flows, wiring = _turning(config, between, phases, choose, form, size)
        return _Wired(bare, wired.network, gpu, between.server, nic_gbps, flows, wiring, wired.routes)
    cluster = form(lambda *degree: choose(between.regions(size), *degree))
    wired = Wirings(config, (cluster,))
    wiring = np.zeros(flows.flows, int)
    return _Wired(cluster, wired.network, gpu, between.server, nic_gbps, flows, wiring, wired.routes)


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

    def regions(self, size: int) -> np.ndarray:
        """All bytes inside every region of so many servers [G S S]."""
        at = np.arange(self.servers // size)
        every = self.bytes(np.ones(self.flows.flows, bool))
        return every.reshape(len(at), size, len(at), size)[at, :, at]


def _check_turns(phases: Phases) -> None:
    if not phases.demand.any():
        raise InputError(
            "circuits_for 'all-to-all' needs all-to-alls between servers of a region, of which the graph has none; "
            "choose 'run'."
        )


def _turning(
    config: Replay, between: _Between, phases: Phases, choose, form, size: int
) -> tuple[Cluster, Wirings, FlowGraph, np.ndarray]:
    """All-to-alls with circuits of their own, which turn: the cluster without circuits, all sets of them, the flows
    with turns, and the set that each flow finds [F]."""
    chosen: list[np.ndarray] = []

    def none_yet(degree: int, policy: str | None = None) -> np.ndarray:
        chosen.append(circuits_of_each(phases.demand, size, lambda demand: choose(demand, degree, policy)))
        return np.zeros((1, between.servers, between.servers), np.int64)

    bare = form(none_yet)
    (circuits,) = chosen
    known: dict[bytes, int] = {}
    number = np.array([known.setdefault(one.tobytes(), len(known) + 1) for one in circuits], np.int64)
    _, first = np.unique(number, return_index=True)
    wired = Wirings(config, (bare, *(bare.with_circuits(circuits[place][None]) for place in first)))
    wiring = np.where(phases.of >= 0, np.append(number, 0)[phases.of], 0)
    optical = between.flows.transfers & wired.direct(wiring, *between.ends)
    ahead = config.first == "ahead"
    flows = with_turns(between.flows, phases, circuits, optical, config.delay_s, ahead=ahead)
    return bare, wired, flows, np.pad(wiring, (0, flows.flows - len(wiring)))
