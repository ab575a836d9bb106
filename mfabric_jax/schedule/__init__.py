"""From all-to-alls to an iteration: block timeline, hidden or paid reconfiguration, pipeline; when to reconfigure."""

from mfabric_jax.schedule.environment import Box, Dict, Discrete, Drift, Params, Recorded, RegionEnv, State, dealt
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
from mfabric_jax.schedule.first import BLOCK, FIRST, First, Stakes
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
from mfabric_jax.schedule.timeline import Rules, Slots
from mfabric_jax.schedule.trace import one_block, segments
from mfabric_jax.schedule.when import WHEN, Course, best_course, follow, last, moving_average

__all__ = [
    "BLOCK",
    "FIRST",
    "NVSWITCH_GIGABYTES_PER_S",
    "SCHEDULES",
    "WHEN",
    "Box",
    "Course",
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
    "Stakes",
    "State",
    "best_course",
    "between_servers",
    "compute_of",
    "dealt",
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
]
