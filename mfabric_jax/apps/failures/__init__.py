"""Failures: iteration times, lost hours and costs when a part of the cluster breaks."""

from mfabric_jax.apps.failures.iterations import failures

__all__ = ["failures"]
