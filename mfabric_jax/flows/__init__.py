"""The engine: arrays only. Exact max-min fair rates, exact fluid completion times, and their derivatives;
beside them named approximations (`bounds`) and a smooth surrogate (`soft`)."""

from mfabric_jax.flows.bounds import k_rounds_completion, k_rounds_rates, port_bound, processor_sharing
from mfabric_jax.flows.completion import Completion, completion_times
from mfabric_jax.flows.max_min import Rates, max_min_rates
from mfabric_jax.flows.problem import FlowList, FlowProblem, Outcome
from mfabric_jax.flows.soft import soft_time
from mfabric_jax.flows.star import star_completion, star_rates

__all__ = [
    "Completion",
    "FlowList",
    "FlowProblem",
    "Outcome",
    "Rates",
    "completion_times",
    "k_rounds_completion",
    "k_rounds_rates",
    "max_min_rates",
    "port_bound",
    "processor_sharing",
    "soft_time",
    "star_completion",
    "star_rates",
]
