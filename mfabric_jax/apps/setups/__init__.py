"""The best set-ups of a model, what limits them, what each choice is worth, and the fewest GPUs in time."""

from mfabric_jax.apps.setups.best import BestSetUps, best_set_ups, state_set_up
from mfabric_jax.apps.setups.choices import SetUpChoice, choices_of, seconds_without
from mfabric_jax.apps.setups.fewest import GpuCount, fewest_gpus

__all__ = [
    "BestSetUps",
    "GpuCount",
    "SetUpChoice",
    "best_set_ups",
    "choices_of",
    "fewest_gpus",
    "seconds_without",
    "state_set_up",
]
