"""Training of policies, and how good they are."""

from mfabric_jax.learning._train import train
from mfabric_jax.learning.judging import Evaluation, Scoreboard, evaluate_policies, scoreboard
from mfabric_jax.learning.settings import Training

__all__ = [
    "Evaluation",
    "Scoreboard",
    "Training",
    "evaluate_policies",
    "scoreboard",
    "train",
]
