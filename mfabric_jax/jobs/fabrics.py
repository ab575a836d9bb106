"""The links of a jobs file's fabric: racks, a switch tree, a graph, or a built-in fabric with circuits for the jobs."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from mfabric_jax import fabric, units
from mfabric_jax.checks import InputError, one_of
from mfabric_jax.cluster.whole_cluster import TreeForm, chosen_circuits, formed_cluster
from mfabric_jax.fabric import Network, read_graph
from mfabric_jax.fabric.cluster import Cluster
from mfabric_jax.fabric.graph import endpoints
from mfabric_jax.fabric.network import network_of
from mfabric_jax.fabric.tree import Tree
from mfabric_jax.jobs.jobs_file import FabricTable
from mfabric_jax.routing import cluster_routes, links_of
from mfabric_jax.routing.cluster import PATHS
from mfabric_jax.routing.routes import Routes
from mfabric_jax.routing.shortest import ROUTINGS, shortest_routes

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
    """How many endpoints each server has: GPUs of a built-in fabric, elsewhere the server itself."""
    return 1 if table.name is None else fabric.get(table.name).gpus_of(TreeForm().server)


def place_of(table: FabricTable, demand: np.ndarray) -> WiredServers:
    """The fabric; `demand` [S S]: bytes between servers, of all jobs, for circuits where it has any."""
    if table.graph is not None or table.rack:
        network = _racks(table) if table.graph is None else read_graph(table.graph)
        one_of("routing", table.routing, ROUTINGS)
        host = endpoints(network)
        return WiredServers(network, functools.partial(_graph_route, network, host, table.routing), len(host))
    one_of("routing", table.routing, PATHS)
    cluster = _tree(table) if table.name is None else _named(table, table.name, demand)
    route = functools.partial(_cluster_route, cluster, table.routing)
    return WiredServers(links_of(cluster, table.routing), route, cluster.servers, cluster.gpus_per_server)


def _tree(table: FabricTable) -> Cluster:
    tree = Tree(table.servers, table.radix, table.tiers or 2, table.oversubscription or 1.0, table.at)
    return Cluster("servers", table.servers, table.nic_gbps, gpus_per_server=1, tree=tree)


def _named(table: FabricTable, name: str, demand: np.ndarray) -> Cluster:
    on, size = fabric.get(name), table.region_servers or table.servers
    if table.servers % size:
        raise InputError(f"region_servers must divide the {table.servers} servers, got {size}.")
    settings = TreeForm(
        policy=table.policy,
        radix=table.radix,
        tiers=table.tiers or 3,
        oversubscription=table.oversubscription,
        at=table.at,
    )
    settings.check_ports()
    group = np.arange(table.servers // size)
    regions = demand.reshape(len(group), size, len(group), size)[group, :, group]

    def choose(degree: int, policy: str | None = None) -> np.ndarray:
        return chosen_circuits(settings, regions, degree, table.nic_gbps, DTYPE, policy)

    shape = JobServers(table.servers, endpoints_of(table), size)
    return formed_cluster(settings, on, shape, table.nic_gbps, choose)


def _racks(table: FabricTable) -> Network:
    """Servers, a switch for each rack, and one above: every link is two, up and down."""
    host = np.arange(table.servers)
    racks = -(-table.servers // table.rack)
    rack, core = table.servers + host // table.rack, table.servers + racks
    nic = np.full(table.servers, units.gbps(float(table.nic_gbps)))
    above = np.full(racks, units.gbps(table.nic_gbps * table.rack / (table.oversubscription or 1.0)))
    switch, top = table.servers + np.arange(racks), np.full(racks, core)
    parts = [("NIC out", host, rack, nic), ("rack up", switch, top, above)]
    parts += [("rack down", top, switch, above), ("NIC in", rack, host, nic)]
    return network_of(parts, (("host", table.servers), ("rack", racks), ("core", 1)), 0.0)


def _graph_route(network: Network, host: np.ndarray, routing: str, src: np.ndarray, dst: np.ndarray) -> Routes:
    return shortest_routes(network, host[src], host[dst], routing=routing, size=np.ones(len(src)))


def _cluster_route(cluster: Cluster, routing: str, src: np.ndarray, dst: np.ndarray) -> Routes:
    return cluster_routes(cluster, src, dst, routing=routing, size=np.ones(len(src)))
