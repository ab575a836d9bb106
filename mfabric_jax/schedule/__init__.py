"""From all-to-alls to an iteration: block timeline, hidden or paid reconfiguration, pipeline."""

from mfabric_jax.schedule.exchange import Exchanges, exchanges
from mfabric_jax.schedule.iteration import NVSWITCH_GIGABYTES_PER_S, Iteration, iterate
from mfabric_jax.schedule.order import one_f_one_b
from mfabric_jax.schedule.segments import block_segments

__all__ = [
    "NVSWITCH_GIGABYTES_PER_S",
    "Exchanges",
    "Iteration",
    "block_segments",
    "exchanges",
    "iterate",
    "one_f_one_b",
]
