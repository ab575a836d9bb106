"""Mixture-of-experts inference on every fabric: decoding steps, prefill passes and deployments."""

from mfabric_jax.apps.serving.deployment import Deployment, StepInputs, deployment
from mfabric_jax.apps.serving.families import family
from mfabric_jax.apps.serving.rows import serve
from mfabric_jax.apps.serving.search import cheapest, fastest, rows_within_limits, search

__all__ = [
    "Deployment",
    "StepInputs",
    "cheapest",
    "deployment",
    "family",
    "fastest",
    "rows_within_limits",
    "search",
    "serve",
]
