"""Mixture-of-experts inference on every fabric: decoding steps, prefill passes and deployments."""

from mfabric_jax.apps.serving.deployment import Deployment, StepInputs, deployment
from mfabric_jax.apps.serving.rows import serve
from mfabric_jax.apps.serving.search import cheapest, fastest, rows_within_limits, search
from mfabric_jax.workload.dispatch_kernels import family

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
