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
from mfabric_jax.schedule.iteration import Iteration, Rates, iterate
from mfabric_jax.schedule.order import one_f_one_b
from mfabric_jax.schedule.segments import block_segments

__all__ = [
    "NVSWITCH_GIGABYTES_PER_S",
    "Exchanges",
    "Iteration",
    "Rates",
    "between_servers",
    "block_segments",
    "exchanges",
    "failed_stage",
    "inside_servers",
    "iterate",
    "one_f_one_b",
    "places",
    "routed",
]
