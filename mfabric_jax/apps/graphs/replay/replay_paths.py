"""Prepare a replay: put ranks on GPUs and flows on paths, choose circuits, and form one max-min problem."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from mfabric_jax import fabric, units
from mfabric_jax.apps.graphs.replay.on_schedules import CarriedOf, find_schedules, on_schedules
from mfabric_jax.apps.graphs.replay.reconfigurations import (
    Phases,
    circuits_of_each,
    inside_regions,
    phases_of,
    with_reconfigurations,
)
from mfabric_jax.apps.graphs.replay.replay_settings import Replay, gpus_of_ranks
from mfabric_jax.apps.graphs.tasks.collectives.registry import REDUCED_BY_SWITCHES, uses_switches
from mfabric_jax.apps.graphs.tasks.graph import TaskGraph
from mfabric_jax.apps.graphs.tasks.lowering import lower_tasks
from mfabric_jax.case import Case
from mfabric_jax.case.paths import flat
from mfabric_jax.case.policies import NO_SCHEDULE, is_function
from mfabric_jax.checks import InputError, in_file
from mfabric_jax.evaluate.resolving.limits import ITS_SWITCHES, refuse
from mfabric_jax.evaluate.resolving.resolve import gpu_of, hardware_of
from mfabric_jax.evaluate.resolving.resolved import Hardware
from mfabric_jax.evaluate.whole_cluster import PlainServers, choose_circuits, form_cluster, plain_servers
from mfabric_jax.fabric import Cluster, FabricGraph, Region, read_graph
from mfabric_jax.fabric.graph import endpoints
from mfabric_jax.fabric.relays import relays_of
from mfabric_jax.fabric.transport import NONE
from mfabric_jax.flows import Completion, FlowProblem
from mfabric_jax.flows.flows import Flows, Latency
from mfabric_jax.routing.shortest import Routes, stack_routes
from mfabric_jax.routing.transfers import Routed, Wired, binding, latency, under, wire_cluster, wire_graph

CIRCUIT = "circuit"
MOST_SERVERS = 2**14  # the bytes between all pairs of servers are one array


class CircuitSets:
    """Networks that differ only in their circuits, whose links come last; `network` has all circuits."""

    def __init__(self, each: Sequence[Wired]):
        circuits = [sum(count for kind, count in wired.network.links if kind == CIRCUIT) for wired in each]
        self.each, self.shared = each, len(each[0].network.tail) - circuits[0]
        self.first = (self.shared + np.cumsum([0, *circuits[:-1]])).tolist()  # first circuit link of each
        self.network = each[0].network
        if sum(circuits) > circuits[0]:
            of_all = {}
            for field in ("tail", "head", "capacity", "delay_s"):
                every = [getattr(wired.network, field) for wired in each]
                of_all[field] = np.concatenate([every[0][: self.shared], *(links[self.shared :] for links in every)])
            nodes = max((wired.network for wired in each), key=lambda network: network.size).nodes
            links = tuple(run for run in self.network.links if run[0] != CIRCUIT)
            self.network = FabricGraph(**of_all, nodes=nodes, links=(*links, (CIRCUIT, sum(circuits))))

    def routes(self, circuit_set: np.ndarray, src: np.ndarray, dst: np.ndarray, size: np.ndarray) -> Routes:
        """Return the links that flows between ends [F] cross; `circuit_set` [F] selects the network of each flow."""
        parts = []
        for number in np.unique(circuit_set).tolist():
            mine = np.flatnonzero(circuit_set == number)
            hops, share = self.each[number].routes(src[mine], dst[mine], size[mine])
            moved = np.where(hops >= self.shared, hops + self.first[number] - self.shared, hops)
            parts.append((mine, Routes(moved, share)))
        return stack_routes(parts, len(circuit_set))


DTYPE = "float64"  # single precision would round sums of many times


class Prepared(NamedTuple):
    """Flows of a task graph on the L links of a fabric; computations are scaled, messages begin with their latency.

    - `routed`: the flows and their links. `gpu` [R]: the GPU of each rank. `paths`: how flows use equal paths.
    - `cluster`, `nic_gbps`: None on a user's network graph; `file`: its file, else None.
    """

    graph: TaskGraph
    routed: Routed
    cluster: Cluster | None
    nic_gbps: float | None
    network: FabricGraph
    gpu: np.ndarray
    paths: str
    relays: str | None = None
    file: str | None = None

    @property
    def flows(self) -> Flows:
        return self.routed.flows

    @property
    def fabric(self) -> str:
        return "graph" if self.cluster is None else self.cluster.name

    @property
    def title(self) -> str:
        return self.file or (self.fabric if self.nic_gbps is None else f"{self.fabric} at {self.nic_gbps:g} Gbps")

    def problem(self, *, every_link: bool = False) -> FlowProblem:
        routes = self.routed.routes if every_link else binding(self.network, self.routed.routes)
        return self.routed._replace(routes=routes).problem(self.network.capacity, DTYPE)

    def completion(self, problem: FlowProblem, **terms: Any) -> Completion:
        return self.routed.completion(problem, **terms)


def prepare(graph: TaskGraph, case: Case, config: Replay) -> Prepared:
    """Put ranks on GPUs of the case's fabric or the user's network graph, and transfers on paths.

    Raise `InputError` if there are too few GPUs, or if switches are to reduce that cannot.
    """
    config = config.on(case)
    _check_reductions(config, case)
    try:
        placed = _place_on_fabric(config, graph, case) if config.graph is None else _place_on_graph(config, graph, case)
    except MemoryError:
        raise InputError(_too_many(graph, case.network.fabric)) from None
    flows, gpu, paths = placed.flows, placed.gpu, case.network.paths.name
    moves, ranks = flows.transfers, graph.ranks
    key = (placed.circuit_set[moves] * ranks + flows.src[moves]) * ranks + flows.dst[moves]
    used, which = np.unique(key, return_inverse=True)
    size = np.bincount(which, flows.bytes[moves], minlength=len(used))
    circuit_set, pair = np.divmod(used, ranks**2)
    src, dst = (gpu[end] for end in np.divmod(pair, ranks))
    with in_file(config.graph):
        routes = placed.circuit_sets.routes(circuit_set, src, dst, size)
    network, waits_s = under(placed.hardware.carried_by, placed.circuit_sets.network, routes, size)
    flows = flows.add_latency(_latency(config, ranks, pair, latency(network, routes) + waits_s))
    row = np.full(flows.flows, len(used))  # computations and markers use the last row, which has no links
    row[moves] = which
    hops, share = (np.pad(x, ((0, 1), (0, 0)), constant_values=fill) for x, fill in zip(routes, (-1, 0), strict=True))
    routed = Routed(flows, Routes(hops[row], share[row]))
    nic_gbps = None if placed.cluster is None else case.network.nic_gbps
    return Prepared(graph, routed, placed.cluster, nic_gbps, network, gpu, paths, placed.relays, config.graph)


def _check_reductions(config: Replay, case: Case) -> None:
    """Raise `InputError` for collectives by switches (SHARP) that do not reduce, and for SHARP that nothing uses."""
    named, sharp = uses_switches(config.algorithms), case.network.in_network.sharp
    if not named and not sharp:
        return
    if config.graph is not None:
        raise InputError(
            f"algorithms must not name {REDUCED_BY_SWITCHES} on a graph, whose file names no such switches."
        )
    if not sharp:
        raise InputError(
            f"algorithms may name {REDUCED_BY_SWITCHES} only if network.in-network.sharp is true: the switches of "
            f"{case.network.fabric} do not reduce."
        )
    if not named:
        raise InputError(
            f"network.in-network.sharp is not used, since algorithms names no {REDUCED_BY_SWITCHES}; add "
            f"all-reduce={REDUCED_BY_SWITCHES}, or leave it out."
        )
    if fabric.get(case.network.fabric).about.optics.wires is not None:
        raise InputError(
            f"algorithms must not name {REDUCED_BY_SWITCHES} in a replay on {case.network.fabric}, where circuits may "
            "carry its messages past the switches that reduce."
        )


def _too_many(graph: TaskGraph, fabric: str) -> str:
    of = f" of {graph.file!r}" if graph.file else ""
    return f"ranks{of} must be fewer: {graph.ranks:,} ranks on {fabric} need more memory than this machine has."


def _latency(config: Replay, ranks: int, pair: np.ndarray, delay_s: np.ndarray) -> Latency:
    known, index = np.unique(pair, return_inverse=True)
    longest = np.zeros(len(known))
    np.maximum.at(longest, index, delay_s)
    return lambda src, dst: config.alpha_s + longest[np.searchsorted(known, src * ranks + dst)]


def lower(graph: TaskGraph, config: Replay, server: np.ndarray, nic_gbps: float) -> Flows:
    """Lower the graph's collectives to flows, without latency."""
    options = {"algorithms": config.algorithms, "chunks": config.chunks, "absent": config.absent, "lanes": config.lanes}
    flows = lower_tasks(
        graph, alpha_s=lambda src, dst: np.zeros(len(src)), server=server, lane_gbps=nic_gbps, **options
    )
    return dataclasses.replace(flows, size=np.where(flows.transfers, 1, config.compute_scale) * flows.size)


class _Placed(NamedTuple):
    """A task graph on a fabric; its `flows` have no latency yet.

    - `circuit_set` [F]: index into `circuit_sets` of each flow. `cluster`: None on a user's network graph.
    - `relays`: whether the GPUs of a user's network graph forward.
    """

    hardware: Hardware
    cluster: Cluster | None
    gpu: np.ndarray
    flows: Flows
    circuit_set: np.ndarray
    circuit_sets: CircuitSets
    relays: str | None = None


def _place_on_graph(config: Replay, graph: TaskGraph, case: Case) -> _Placed:
    seed, paths = case.run.seed, case.network.paths.name
    hardware = hardware_of(case.with_({"network.fabric": "fat-tree"}), 1)  # the graph replaces this fabric
    network = read_graph(str(config.graph))
    relays = relays_of(network, case.network.on_graph.relay)
    wired = wire_graph(network, paths, seed, hardware.goodput, forward=relays.forward)
    gpus = len(endpoints(wired.network))
    gpu = gpus_of_ranks(config.ranks_on, graph.ranks, 1, gpus, first=config.first_gpu, seed=seed)
    flows = lower(graph, config, gpu // hardware.server.gpus_per_server, case.network.nic_gbps)
    return _Placed(hardware, None, gpu, flows, np.zeros(flows.flows, int), CircuitSets([wired]), relays.words)


def _place_on_fabric(config: Replay, graph: TaskGraph, case: Case) -> _Placed:
    on, nic_gbps, seed = fabric.get(case.network.fabric), case.network.nic_gbps, case.run.seed
    per_server = on.gpus_of(gpu_of(case))
    servers = config.servers or -(-(graph.ranks + config.first_gpu) // per_server)
    if servers > MOST_SERVERS:
        raise InputError(
            f"servers must be at most {MOST_SERVERS:,} in a replay, got {servers:,} for {graph.ranks:,} ranks."
        )
    gpu = gpus_of_ranks(config.ranks_on, graph.ranks, servers, per_server, first=config.first_gpu, seed=seed)
    hardware, shape = hardware_of(case, servers), plain_servers(servers, per_server, config.region_servers)
    flows = lower(graph, config, gpu // per_server, nic_gbps)
    between = _Between(flows, gpu // per_server, servers)

    def choose(demand: np.ndarray, degree: int, policy: str | None = None) -> np.ndarray:
        return choose_circuits(hardware.case, demand, degree, DTYPE, policy)

    def form(circuits: Callable[..., np.ndarray]) -> Cluster:
        return form_cluster(hardware, shape, circuits)

    if on.reconfigures and hardware.case.circuits.schedule != NO_SCHEDULE:
        flows, circuit_set, clusters = _on_schedules(config, hardware, shape, between, graph, form)
    elif on.reconfigures and config.circuits_for == "all-to-all":
        phases = _phases(graph, between, nic_gbps, shape.servers_per_region)
        own = _each_own(between.servers, phases, choose, form, shape.servers_per_region)
        clusters = own.clusters
        flows, circuit_set = _add_reconfigurations(config, between, phases, own, hardware.delay_s)
    else:
        clusters = [form(lambda *degree: choose(shape.regions(between.bytes(flows.transfers)), *degree))]
        circuit_set = np.zeros(flows.flows, int)
    circuit_sets = CircuitSets([wire_cluster(cluster, case.network.paths.name, seed) for cluster in clusters])
    return _Placed(hardware, clusters[0], gpu, flows, circuit_set, circuit_sets)


class _Between(NamedTuple):
    """Flows between servers; `server` [R]: the server of each rank."""

    flows: Flows
    server: np.ndarray
    servers: int

    @property
    def ends(self) -> tuple[np.ndarray, np.ndarray]:
        return self.server[self.flows.src], self.server[self.flows.dst]

    def bytes(self, which: np.ndarray) -> np.ndarray:
        some = which & self.flows.transfers
        src, dst = (end[some] for end in self.ends)
        total = np.bincount(src * self.servers + dst, self.flows.bytes[some], minlength=self.servers**2)
        total = total.reshape(self.servers, self.servers)
        np.fill_diagonal(total, 0)
        return total


class _EachOwn(NamedTuple):
    """Circuits of P all-to-alls [P S S]; `circuit_set` [P]: index into `clusters`, the first of which has none."""

    circuits: np.ndarray
    circuit_set: np.ndarray
    clusters: list[Cluster]


def _phases(graph: TaskGraph, between: _Between, nic_gbps: float, size: int) -> Phases:
    flows = between.flows
    alone_s = flows.seconds + flows.bytes / units.gbps(nic_gbps)
    phases = inside_regions(phases_of(graph, flows, between.bytes, alone_s), size)
    if not phases.demand.any():
        raise InputError(
            "circuits_for 'all-to-all' needs all-to-alls between servers of a region, but the graph has none; choose "
            "'run'."
        )
    return phases


def _on_schedules(config: Replay, hardware: Hardware, shape: PlainServers, between: _Between, graph: TaskGraph, form):
    """Flows, the circuit set of each flow, and the clusters of all circuit sets; the first cluster has none."""
    case, schedule = hardware.case, hardware.case.circuits.schedule
    if config.circuits_for != "all-to-all":
        raise InputError(
            f"circuits_for must be 'all-to-all' with circuits.schedule {schedule}, got {config.circuits_for!r}: each "
            "schedule is for one all-to-all."
        )
    if hardware.carried_by != NONE:
        refuse("network.payload", ("goodput",), "circuits.schedule in a replay", case.network.payload.name)
    for path, usual in ITS_SWITCHES if is_function(schedule) else ():
        if flat(case)[path] != usual:
            refuse(path, (usual,), "a scheduler of your own, which sets it", flat(case)[path])
    phases = _phases(graph, between, case.network.nic_gbps, shape.servers_per_region)
    degrees: list[int] = []

    def none_yet(degree: int, policy: str | None = None) -> np.ndarray:
        degrees.append(degree)
        return np.zeros((1, between.servers, between.servers), np.int64)

    bare = form(none_yet)
    nics = bare.nics / (bare.tree.oversubscription if bare.tree else 1)

    def carrier_of(servers: int) -> CarriedOf:
        nic_gbps = units.to_gbps(bare.nic_Bps)
        return hardware.carrier(Region(servers, nic_gbps, degrees[0], nics, hardware.delay_s))

    ahead = config.first == "ahead"
    parts = find_schedules(phases, shape.servers_per_region, carrier_of, known=ahead)
    flows, circuit_set, circuits = on_schedules(
        between.flows, phases, parts, between.ends, hardware.delay_s, ahead=ahead
    )
    return flows, circuit_set, [bare, *(bare.with_circuits(matrix[None], directed=True) for matrix in circuits)]


def _each_own(servers: int, phases: Phases, choose, form, size: int) -> _EachOwn:
    chosen: list[np.ndarray] = []

    def none_yet(degree: int, policy: str | None = None) -> np.ndarray:
        chosen.append(circuits_of_each(phases.demand, size, lambda demand: choose(demand, degree, policy)))
        return np.zeros((1, servers, servers), np.int64)

    bare = form(none_yet)
    (circuits,) = chosen
    known: dict[bytes, int] = {}
    circuit_set = np.array([known.setdefault(matrix.tobytes(), len(known) + 1) for matrix in circuits], np.int64)
    _, first = np.unique(circuit_set, return_index=True)
    return _EachOwn(circuits, circuit_set, [bare, *(bare.with_circuits(circuits[index][None]) for index in first)])


def _add_reconfigurations(
    config: Replay, between: _Between, phases: Phases, own: _EachOwn, delay_s: float
) -> tuple[Flows, np.ndarray]:
    circuit_set = np.where(phases.exchange >= 0, np.append(own.circuit_set, 0)[phases.exchange], 0)
    optical, (src, dst) = np.zeros(len(circuit_set), bool), between.ends
    for number in np.unique(circuit_set).tolist():
        mine = between.flows.transfers & (circuit_set == number)
        optical[mine] = own.clusters[number].circuits.find(src[mine], dst[mine]) >= 0
    flows = with_reconfigurations(between.flows, phases, own.circuits, optical, delay_s, ahead=config.first == "ahead")
    return flows, np.pad(circuit_set, (0, flows.flows - len(circuit_set)))
