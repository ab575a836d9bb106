"""Demand on a fabric: who uses which links, and when an all-to-all is through."""

from mfabric_jax.routing.electrical import inside_time, spray_time
from mfabric_jax.routing.plan import Plan
from mfabric_jax.routing.region import (
    ROUTINGS,
    all_to_all_time,
    as_demand,
    part_times,
    relay_bound,
    routing_bound,
)

__all__ = [
    "ROUTINGS",
    "Plan",
    "all_to_all_time",
    "as_demand",
    "inside_time",
    "part_times",
    "relay_bound",
    "routing_bound",
    "spray_time",
]
