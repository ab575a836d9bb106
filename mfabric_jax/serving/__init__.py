"""Mixture-of-experts inference on every fabric: steps of decoding, passes of prefill, deployments."""

from mfabric_jax.serving.deployment import Deployment, Numbers, deployment
from mfabric_jax.serving.families import family
from mfabric_jax.serving.rows import serve
from mfabric_jax.serving.search import cheapest, fastest, in_time, search

__all__ = ["Deployment", "Numbers", "cheapest", "deployment", "family", "fastest", "in_time", "search", "serve"]
