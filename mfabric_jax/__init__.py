"""Flow-level simulation and control of reconfigurable optical fabrics for Mixture-of-Experts training.

Public names in pipeline order; everything else lives in the packages of the same order.
"""

from mfabric_jax import units
from mfabric_jax.checks import InputError
from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.flows import FlowProblem, completion_times, max_min_rates, star_completion
from mfabric_jax.policies import Plan, greedy
from mfabric_jax.routing import all_to_all_time

__version__ = "0.1.0"

__all__ = [
    "Circuits",
    "FlowProblem",
    "InputError",
    "Plan",
    "Region",
    "all_to_all_time",
    "completion_times",
    "greedy",
    "max_min_rates",
    "star_completion",
    "units",
]
