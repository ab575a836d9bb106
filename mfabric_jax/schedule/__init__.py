"""From all-to-alls to an iteration: block timeline, hidden or paid reconfiguration, pipeline; when to reconfigure."""

from mfabric_jax.schedule.blocks import Rules
from mfabric_jax.schedule.environment import Drift, Recorded, RegionEnv
from mfabric_jax.schedule.exchange import exchanges
from mfabric_jax.schedule.first import First
from mfabric_jax.schedule.iteration import Iteration, iterate, rates_of
from mfabric_jax.schedule.spans import Span
from mfabric_jax.schedule.trajectory import best_trajectory
from mfabric_jax.schedule.when import follow, last, moving_average

__all__ = ["Drift", "First", "Iteration", "Recorded", "RegionEnv", "Rules", "Span"]
__all__ += ["best_trajectory", "exchanges", "follow", "iterate", "last", "moving_average", "rates_of"]
