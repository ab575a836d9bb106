"""Training and evaluation of policies."""

from mfabric_jax.learning.judging import Evaluation, Scoreboard, evaluate_policies, scoreboard
from mfabric_jax.learning.training import Training, train

__all__ = [
    "Evaluation",
    "Scoreboard",
    "Training",
    "evaluate_policies",
    "scoreboard",
    "train",
]
