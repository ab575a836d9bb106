"""From all-to-alls to an iteration: block timeline, hidden or paid reconfiguration, pipeline; when to reconfigure."""

from mfabric_jax.schedule.environment import Params, RegionEnv, State, allocated
from mfabric_jax.schedule.exchange import (
    NVSWITCH_GIGABYTES_PER_S,
    Exchanges,
    between_servers,
    exchanges,
    failed_stage,
    inside_servers,
    places,
    routed,
)
from mfabric_jax.schedule.first import BLOCK, FIRST, First, TradeOff, trade_off_of
from mfabric_jax.schedule.forecast import last, moving_average
from mfabric_jax.schedule.iteration import (
    Iteration,
    Rates,
    compute_of,
    iterate,
    reduced_behind,
    running_blocks,
    timeline,
)
from mfabric_jax.schedule.order import SCHEDULES, order, order_of
from mfabric_jax.schedule.sources import Drift, Recorded
from mfabric_jax.schedule.spaces import Box, Dict, Discrete
from mfabric_jax.schedule.timeline import Rules, Slots
from mfabric_jax.schedule.trace import one_block, segments
from mfabric_jax.schedule.trajectory import Trajectory, best_trajectory
from mfabric_jax.schedule.when import WHEN, follow

__all__ = [
    "BLOCK",
    "FIRST",
    "NVSWITCH_GIGABYTES_PER_S",
    "SCHEDULES",
    "WHEN",
    "Box",
    "Dict",
    "Discrete",
    "Drift",
    "Exchanges",
    "First",
    "Iteration",
    "Params",
    "Rates",
    "Recorded",
    "RegionEnv",
    "Rules",
    "Slots",
    "State",
    "TradeOff",
    "Trajectory",
    "allocated",
    "best_trajectory",
    "between_servers",
    "compute_of",
    "exchanges",
    "failed_stage",
    "follow",
    "inside_servers",
    "iterate",
    "last",
    "moving_average",
    "one_block",
    "order",
    "order_of",
    "places",
    "reduced_behind",
    "routed",
    "running_blocks",
    "segments",
    "timeline",
    "trade_off_of",
]
