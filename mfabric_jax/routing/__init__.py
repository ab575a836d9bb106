"""Routing: the links that carry a demand, and the completion time of an all-to-all."""

from typing import TYPE_CHECKING

from mfabric_jax.routing.region import all_to_all_time, degree_bound, fluid_lower_bound
from mfabric_jax.routing.relay import Plan
from mfabric_jax.support.lazily import at_first_use

if TYPE_CHECKING:
    from mfabric_jax.routing.arrived import Arrivals, arrivals, equal_parts
    from mfabric_jax.routing.cluster import cluster_routes, links_of
    from mfabric_jax.routing.gradients import gradient_nics as gradient_nics
    from mfabric_jax.routing.graphs import add_rates as add_rates
    from mfabric_jax.routing.graphs import paths_on_links as paths_on_links
    from mfabric_jax.routing.graphs import shared_links as shared_links
    from mfabric_jax.routing.mesh import mesh_routes as mesh_routes
    from mfabric_jax.routing.mesh import most_at_once as most_at_once
    from mfabric_jax.routing.relay_steps import relay_shares
    from mfabric_jax.routing.shortest import shortest_routes as shortest_routes
    from mfabric_jax.routing.transfers import transfer

__all__ = ["Arrivals", "Plan", "all_to_all_time", "arrivals", "cluster_routes", "degree_bound", "equal_parts"]
__all__ += ["fluid_lower_bound", "links_of", "relay_shares", "transfer"]
__getattr__ = at_first_use(
    __name__,
    {
        "arrived": ("Arrivals", "arrivals", "equal_parts"),
        "cluster": ("cluster_routes", "links_of"),
        "gradients": ("gradient_nics",),
        "graphs": ("add_rates", "shared_links", "paths_on_links"),
        "mesh": ("mesh_routes", "most_at_once"),
        "relay_steps": ("relay_shares",),
        "shortest": ("shortest_routes",),
        "transfers": ("transfer",),
    },
)
