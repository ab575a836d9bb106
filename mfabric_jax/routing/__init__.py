"""Routing: which links carry a demand, and when an all-to-all completes."""

from mfabric_jax.routing.cluster import cluster_routes, links_of
from mfabric_jax.routing.region import all_to_all_time, degree_bound, fluid_lower_bound
from mfabric_jax.routing.relay import Plan
from mfabric_jax.routing.relay_shares import relay_shares
from mfabric_jax.routing.transfers import transfer

__all__ = ["Plan", "all_to_all_time", "cluster_routes", "degree_bound", "fluid_lower_bound"]
__all__ += ["links_of", "relay_shares", "transfer"]
