"""Policies that decide again and again whether to reconfigure, in regimes of demand, NICs and forecasts."""

from mfabric_jax.apps.learning.regimes.bench import Regimes, compare_regimes
from mfabric_jax.apps.learning.regimes.cells import Regime
from mfabric_jax.apps.learning.regimes.chains import draw_chains

__all__ = ["Regime", "Regimes", "compare_regimes", "draw_chains"]
