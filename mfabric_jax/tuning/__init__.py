"""Fitting the package to a device: which kernel is fastest there, and what may make it slow."""

from mfabric_jax.tuning._doctor import doctor
from mfabric_jax.tuning._measure import tune

__all__ = ["doctor", "tune"]
