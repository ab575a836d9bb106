"""Times of all-to-alls, blocks, pipelines and iterations."""

from mfabric_jax.timing.blocks import Rules
from mfabric_jax.timing.environment import Drift, Recorded, RegionEnv, best_trajectory
from mfabric_jax.timing.exchange import exchanges
from mfabric_jax.timing.iteration import Iteration, iterate, rates_of
from mfabric_jax.timing.switching import First, Span

__all__ = ["Drift", "First", "Iteration", "Recorded", "RegionEnv", "Rules", "Span"]
__all__ += ["best_trajectory", "exchanges", "iterate", "rates_of"]
