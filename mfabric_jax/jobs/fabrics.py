"""The links of a jobs file's fabric: that of its case, with circuits for the jobs, racks, or a graph."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from mfabric_jax import fabric, units
from mfabric_jax.checks import InputError, Misfit
from mfabric_jax.cluster.whole_cluster import chosen_circuits, formed_cluster
from mfabric_jax.fabric import Network, read_graph
from mfabric_jax.fabric.cluster import Cluster
from mfabric_jax.fabric.graph import endpoints
from mfabric_jax.fabric.network import network_of
from mfabric_jax.jobs.jobs_file import FabricTable
from mfabric_jax.resolving._resolve import gpu_of, hardware_of
from mfabric_jax.routing import cluster_routes, links_of
from mfabric_jax.routing.routes import Routes
from mfabric_jax.routing.shortest import shortest_routes

DTYPE = "float32"  # of the demand that circuits are chosen for


class WiredServers(NamedTuple):
    """- `network`: its links.   - `route(src, dst)` [F]: of flows between endpoints, numbered server by server.
    - `servers`, `per_server`: how many, and how many endpoints each has: GPUs, or the server itself."""

    network: Network
    route: Callable[[np.ndarray, np.ndarray], Routes]
    servers: int
    per_server: int = 1


class JobServers(NamedTuple):
    """The shape of a cluster for `formed_cluster`."""

    servers: int
    gpus_per_server: int
    servers_per_region: int
    pp: int = 1


def servers_of(table: FabricTable) -> int:
    """How many servers there are."""
    return table.servers if table.graph is None else len(endpoints(read_graph(table.graph)))


def endpoints_of(table: FabricTable) -> int:
    """How many endpoints each server has: GPUs of a case's fabric, elsewhere the server itself."""
    return 1 if table.own else fabric.get(table.case.network.fabric).gpus_of(gpu_of(table.case))


def nic_part(table: FabricTable) -> float:
    """What of its NICs' bandwidth is payload."""
    return 1.0 if table.own else hardware_of(table.case, table.servers).goodput


def place_of(table: FabricTable, demand: np.ndarray) -> WiredServers:
    """The fabric; `demand` [S S]: bytes between servers, of all jobs, for circuits where it has any."""
    paths = table.case.network.paths.name
    if table.own:
        network = _racks(table) if table.graph is None else read_graph(table.graph)
        host = endpoints(network)
        return WiredServers(network, functools.partial(_graph_route, network, host, paths), len(host))
    cluster = _cluster(table, demand)
    route = functools.partial(_cluster_route, cluster, paths)
    return WiredServers(links_of(cluster, paths), route, cluster.servers, cluster.gpus_per_server)


def _cluster(table: FabricTable, demand: np.ndarray) -> Cluster:
    size, hardware = table.region_servers or table.servers, hardware_of(table.case, table.servers)
    if table.servers % size:
        raise InputError(f"region_servers must divide the {table.servers} servers, got {size}.")
    if table.case.network.payload.name == "transport":
        raise Misfit("network.payload must be goodput beside several jobs, got transport.")
    group = np.arange(table.servers // size)
    regions = demand.reshape(len(group), size, len(group), size)[group, :, group]

    def choose(degree: int, policy: str | None = None) -> np.ndarray:
        return chosen_circuits(hardware.case, regions, degree, DTYPE, policy)

    return formed_cluster(hardware, JobServers(table.servers, endpoints_of(table), size), choose)


def _racks(table: FabricTable) -> Network:
    """Servers, a switch for each rack, and one above: every link is two, up and down."""
    of_case, host = table.case.network, np.arange(table.servers)
    racks = -(-table.servers // table.rack)
    rack, core = table.servers + host // table.rack, table.servers + racks
    nic = np.full(table.servers, units.gbps(of_case.nic_gbps))
    above = np.full(racks, units.gbps(of_case.nic_gbps * table.rack / (of_case.oversubscription or 1.0)))
    switch, top = table.servers + np.arange(racks), np.full(racks, core)
    parts = [("NIC out", host, rack, nic), ("rack up", switch, top, above)]
    parts += [("rack down", top, switch, above), ("NIC in", rack, host, nic)]
    return network_of(parts, (("host", table.servers), ("rack", racks), ("core", 1)), 0.0)


def _graph_route(network: Network, host: np.ndarray, routing: str, src: np.ndarray, dst: np.ndarray) -> Routes:
    return shortest_routes(network, host[src], host[dst], routing=routing, size=np.ones(len(src)))


def _cluster_route(cluster: Cluster, routing: str, src: np.ndarray, dst: np.ndarray) -> Routes:
    return cluster_routes(cluster, src, dst, routing=routing, size=np.ones(len(src)))
