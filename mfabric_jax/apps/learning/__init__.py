"""Training and evaluation of policies; the environment that research code trains in."""

from mfabric_jax.apps.learning.environment import Drift, Recorded, RegionEnv, best_trajectory
from mfabric_jax.apps.learning.judging import Evaluation, Scoreboard, evaluate_policies, scoreboard
from mfabric_jax.apps.learning.training import TrainingSettings, train

__all__ = [
    "Drift",
    "Evaluation",
    "Recorded",
    "RegionEnv",
    "Scoreboard",
    "TrainingSettings",
    "best_trajectory",
    "evaluate_policies",
    "scoreboard",
    "train",
]
