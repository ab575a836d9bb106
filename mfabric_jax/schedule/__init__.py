"""From all-to-alls to an iteration: block timeline, hidden or paid reconfiguration, pipeline; when to reconfigure."""

from mfabric_jax.schedule.environment import Params, RegionEnv, State
from mfabric_jax.schedule.exchange import Exchanges, exchanges
from mfabric_jax.schedule.first import FIRST, First, TradeOff, trade_off_of
from mfabric_jax.schedule.forecast import last, moving_average
from mfabric_jax.schedule.iteration import FabricRates, Iteration, iterate, rates_of, walk
from mfabric_jax.schedule.sources import Drift, Recorded
from mfabric_jax.schedule.timeline import Rules
from mfabric_jax.schedule.trace import one_block, segments
from mfabric_jax.schedule.trajectory import Trajectory, best_trajectory
from mfabric_jax.schedule.when import WHEN, follow

__all__ = [
    "FIRST",
    "WHEN",
    "Drift",
    "Exchanges",
    "FabricRates",
    "First",
    "Iteration",
    "Params",
    "Recorded",
    "RegionEnv",
    "Rules",
    "State",
    "TradeOff",
    "Trajectory",
    "best_trajectory",
    "exchanges",
    "follow",
    "iterate",
    "last",
    "moving_average",
    "one_block",
    "rates_of",
    "segments",
    "trade_off_of",
    "walk",
]
