"""From all-to-alls to an iteration: block timeline, hidden or paid reconfiguration, pipeline; when to reconfigure."""

from mfabric_jax.timing.blocks import Rules
from mfabric_jax.timing.environment import Drift, Recorded, RegionEnv
from mfabric_jax.timing.exchange import exchanges
from mfabric_jax.timing.first import First
from mfabric_jax.timing.iteration import Iteration, iterate, rates_of
from mfabric_jax.timing.spans import Span
from mfabric_jax.timing.trajectory import best_trajectory
from mfabric_jax.timing.when import follow, last, moving_average

__all__ = ["Drift", "First", "Iteration", "Recorded", "RegionEnv", "Rules", "Span"]
__all__ += ["best_trajectory", "exchanges", "follow", "iterate", "last", "moving_average", "rates_of"]
