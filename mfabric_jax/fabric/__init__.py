"""Fabrics as data: circuits and their legality, regions, electrical fabrics, cost."""

from mfabric_jax.fabric.circuits import Circuits, round_robin
from mfabric_jax.fabric.cluster import CircuitTable, Cluster
from mfabric_jax.fabric.clusters import CLUSTERS, CPO_CIRCUITS_PER_GPU, DOMAIN_GPUS, SCALE_UP, cluster
from mfabric_jax.fabric.cost import Prices, cluster_cost, cost_table, no_price, server_cost
from mfabric_jax.fabric.electrical import ELECTRICAL, NIC_USES, Electrical
from mfabric_jax.fabric.failures import KINDS, Degraded, degraded
from mfabric_jax.fabric.flat import RING_NICS, Flat
from mfabric_jax.fabric.graph import endpoints, graph_of, graph_text, read_graph
from mfabric_jax.fabric.network import Network
from mfabric_jax.fabric.ocs import OCS, get_ocs
from mfabric_jax.fabric.region import Region
from mfabric_jax.fabric.tree import Tree

NAMES = CLUSTERS

__all__ = [
    "CLUSTERS",
    "CPO_CIRCUITS_PER_GPU",
    "DOMAIN_GPUS",
    "ELECTRICAL",
    "KINDS",
    "NAMES",
    "NIC_USES",
    "OCS",
    "RING_NICS",
    "SCALE_UP",
    "CircuitTable",
    "Circuits",
    "Cluster",
    "Degraded",
    "Electrical",
    "Flat",
    "Network",
    "Prices",
    "Region",
    "Tree",
    "cluster",
    "cluster_cost",
    "cost_table",
    "degraded",
    "endpoints",
    "get_ocs",
    "graph_of",
    "graph_text",
    "no_price",
    "read_graph",
    "round_robin",
    "server_cost",
]
