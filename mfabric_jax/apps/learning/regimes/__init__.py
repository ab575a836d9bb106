"""Policies that decide again and again whether to reconfigure, in regimes of demand, NICs and forecasts."""

from mfabric_jax.apps.learning.regimes.bench import Regimes, compare_regimes

__all__ = ["Regimes", "compare_regimes"]
