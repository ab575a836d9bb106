"""Fabrics as data: circuits and their legality, regions, packet switches, whole clusters, failures, cost."""

from mfabric_jax.fabric.circuits import Circuits
from mfabric_jax.fabric.cluster import Cluster
from mfabric_jax.fabric.cost import Prices
from mfabric_jax.fabric.design import Fabric, FabricSettings
from mfabric_jax.fabric.direct_links import DirectLinks
from mfabric_jax.fabric.electrical import Electrical
from mfabric_jax.fabric.failures import KINDS, Degraded, degraded
from mfabric_jax.fabric.graph import endpoints, graph_of, graph_text, read_graph
from mfabric_jax.fabric.network import Network
from mfabric_jax.fabric.ocs import OCS, get_ocs
from mfabric_jax.fabric.region import Region
from mfabric_jax.fabric.registry import NAMES, PRICED, cluster, cluster_cost, cost_table, get, no_price
from mfabric_jax.fabric.tree import Tree

__all__ = [
    "KINDS",
    "NAMES",
    "OCS",
    "PRICED",
    "Circuits",
    "Cluster",
    "Degraded",
    "DirectLinks",
    "Electrical",
    "Fabric",
    "FabricSettings",
    "Network",
    "Prices",
    "Region",
    "Tree",
    "cluster",
    "cluster_cost",
    "cost_table",
    "degraded",
    "endpoints",
    "get",
    "get_ocs",
    "graph_of",
    "graph_text",
    "no_price",
    "read_graph",
]
