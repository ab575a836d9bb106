"""Fabrics as data: circuits and their legality, regions, electrical fabrics, cost."""

from mfabric_jax.fabric.circuits import Circuits, round_robin
from mfabric_jax.fabric.cost import Prices, server_cost
from mfabric_jax.fabric.electrical import ELECTRICAL, NIC_USES, Electrical
from mfabric_jax.fabric.region import Region

NAMES = (*ELECTRICAL, "mfabric")

__all__ = [
    "ELECTRICAL",
    "NAMES",
    "NIC_USES",
    "Circuits",
    "Electrical",
    "Prices",
    "Region",
    "round_robin",
    "server_cost",
]
