"""Routing: which links carry a demand, and when an all-to-all completes."""

from mfabric_jax.routing.arrived import Arrivals, arrivals, equal_parts
from mfabric_jax.routing.cluster import cluster_routes, links_of
from mfabric_jax.routing.region import all_to_all_time, degree_bound, fluid_lower_bound
from mfabric_jax.routing.relay import Plan
from mfabric_jax.routing.relay_shares import relay_shares
from mfabric_jax.routing.transfers import transfer

__all__ = ["Arrivals", "Plan", "all_to_all_time", "arrivals", "cluster_routes", "degree_bound", "equal_parts"]
__all__ += ["fluid_lower_bound", "links_of", "relay_shares", "transfer"]
