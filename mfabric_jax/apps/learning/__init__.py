"""Training and evaluation of policies; the environment that research code trains in."""

from mfabric_jax.apps.learning.environment import RegionEnv
from mfabric_jax.apps.learning.judging import Evaluation, Scoreboard, evaluate_policies, scoreboard
from mfabric_jax.apps.learning.sources import Drift, Recorded
from mfabric_jax.apps.learning.training import TrainingSettings, train
from mfabric_jax.apps.learning.trajectories import best_trajectory

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
