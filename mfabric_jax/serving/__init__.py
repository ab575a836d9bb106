"""Mixture-of-experts inference on every fabric: steps of decoding, passes of prefill, deployments."""

from mfabric_jax.serving.deployment import Deployment, Numbers, deployment
from mfabric_jax.serving.families import family
from mfabric_jax.serving.rows import serve

__all__ = ["Deployment", "Numbers", "deployment", "family", "serve"]
