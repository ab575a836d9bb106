"""From all-to-alls to an iteration: block timeline, hidden or paid reconfiguration, pipeline."""

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

__all__ = [
    "BLOCK",
    "FIRST",
    "NVSWITCH_GIGABYTES_PER_S",
    "SCHEDULES",
    "Exchanges",
    "First",
    "Iteration",
    "Rates",
    "Rules",
    "Slots",
    "Stakes",
    "between_servers",
    "compute_of",
    "exchanges",
    "failed_stage",
    "inside_servers",
    "iterate",
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
