"""Fabrics as data: circuits, regions, packet switches, whole clusters, failures, cost."""

from typing import TYPE_CHECKING

from mfabric_jax.case.network import NAMES
from mfabric_jax.fabric.cluster import Cluster
from mfabric_jax.fabric.cost import Prices
from mfabric_jax.fabric.design import Fabric
from mfabric_jax.fabric.failures import degrade
from mfabric_jax.fabric.network import FabricGraph
from mfabric_jax.fabric.registry import cluster, cluster_cost, cost_table, get
from mfabric_jax.fabric.transport import Transport, get_transport
from mfabric_jax.support.lazily import at_first_use

if TYPE_CHECKING:
    from mfabric_jax.fabric.graphs.files import read_graph
    from mfabric_jax.fabric.region import Circuits, Region

__all__ = [
    "NAMES",
    "Circuits",
    "Cluster",
    "Fabric",
    "FabricGraph",
    "Prices",
    "Region",
    "Transport",
    "cluster",
    "cluster_cost",
    "cost_table",
    "degrade",
    "get",
    "get_transport",
    "read_graph",
]

__getattr__ = at_first_use(__name__, {"region": ("Circuits", "Region"), "graphs.files": ("read_graph",)})
