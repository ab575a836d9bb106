"""Times of all-to-alls, blocks, pipelines and iterations."""

from mfabric_jax.timing.arrivals import Ends, block_ends, experts_end
from mfabric_jax.timing.blocks import Rules
from mfabric_jax.timing.environment import Drift, Recorded, RegionEnv, best_trajectory
from mfabric_jax.timing.exchange import exchanges
from mfabric_jax.timing.iteration import Iteration, iterate, rates_of
from mfabric_jax.timing.switching import First, Span

__all__ = ["Drift", "Ends", "First", "Iteration", "Recorded", "RegionEnv", "Rules", "Span"]
__all__ += ["best_trajectory", "block_ends", "exchanges", "experts_end", "iterate", "rates_of"]
