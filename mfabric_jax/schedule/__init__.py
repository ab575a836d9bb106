"""From all-to-alls to an iteration: block timeline, hidden or paid reconfiguration, pipeline; when to reconfigure."""

from mfabric_jax.schedule.best_course import best_course
from mfabric_jax.schedule.course import Course
from mfabric_jax.schedule.environment import Params, RegionEnv, State, dealt
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
from mfabric_jax.schedule.first import BLOCK, FIRST, First, Stakes, stakes_of
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
from mfabric_jax.schedule.when import WHEN, follow

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
    "stakes_of",
    "timeline",
]
