"""The engine: exact max-min fair rates and fluid completion times on plain arrays, with their derivatives."""

from typing import TYPE_CHECKING

from mfabric_jax.support.lazily import at_first_use

if TYPE_CHECKING:
    from mfabric_jax.flows.completion import Completion, completion_times
    from mfabric_jax.flows.max_min import MaxMinRates, max_min_rates
    from mfabric_jax.flows.problem import FlowProblem, SolveOutcome
    from mfabric_jax.flows.star import star_completion, star_rates

__all__ = ["Completion", "FlowProblem", "MaxMinRates", "SolveOutcome", "completion_times", "max_min_rates"]
__all__ += ["star_completion", "star_rates"]
__getattr__ = at_first_use(
    __name__,
    {
        "completion": ("Completion", "completion_times"),
        "max_min": ("MaxMinRates", "max_min_rates"),
        "problem": ("FlowProblem", "SolveOutcome"),
        "star": ("star_completion", "star_rates"),
    },
)
