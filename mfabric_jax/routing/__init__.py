"""Demand on a fabric: who uses which links, and when an all-to-all is through."""

from mfabric_jax.routing.cluster import PATHS, cluster_routes, links_of
from mfabric_jax.routing.electrical import delegated, inside_time, spray_time
from mfabric_jax.routing.fixed import fixed_time
from mfabric_jax.routing.forward import forward_time, wired
from mfabric_jax.routing.plan import Plan
from mfabric_jax.routing.region import (
    ROUTINGS,
    all_to_all_time,
    as_demand,
    degree_bound,
    fluid_lower_bound,
    part_times,
    relay_bound,
    relay_part_bounds,
)
from mfabric_jax.routing.relay_shares import best_relay_shares, relay_shares
from mfabric_jax.routing.relayed import relayed_part_times
from mfabric_jax.routing.routes import Routes
from mfabric_jax.routing.shortest import ROUTINGS as GRAPH_ROUTINGS
from mfabric_jax.routing.shortest import shortest_routes
from mfabric_jax.routing.single import SinglePaths, single_part_times, single_paths
from mfabric_jax.routing.transfers import Transfers, flow_problem, link_bytes, transfer

__all__ = [
    "GRAPH_ROUTINGS",
    "PATHS",
    "ROUTINGS",
    "Plan",
    "Routes",
    "SinglePaths",
    "Transfers",
    "all_to_all_time",
    "as_demand",
    "best_relay_shares",
    "cluster_routes",
    "degree_bound",
    "delegated",
    "fixed_time",
    "flow_problem",
    "fluid_lower_bound",
    "forward_time",
    "inside_time",
    "link_bytes",
    "links_of",
    "part_times",
    "relay_bound",
    "relay_part_bounds",
    "relay_shares",
    "relayed_part_times",
    "shortest_routes",
    "single_part_times",
    "single_paths",
    "spray_time",
    "transfer",
    "wired",
]
