"""Times of blocks, pipelines and iterations; `evaluate` computes the times of all-to-alls."""

from typing import TYPE_CHECKING

from mfabric_jax.support.lazily import at_first_use
from mfabric_jax.timing.blocks import Rules
from mfabric_jax.timing.iteration import Iteration, iterate, rates_of

if TYPE_CHECKING:
    from mfabric_jax.timing.arrivals import BlockEnds, block_ends, experts_end
    from mfabric_jax.timing.scheduled import carries_schedule as carries_schedule

__all__ = ["BlockEnds", "Iteration", "Rules"]
__all__ += ["block_ends", "experts_end", "iterate", "rates_of"]
__all__ += ["CircuitSpan", "First", "exchanges"]  # pyright: ignore[reportUnsupportedDunderAll]
__getattr__ = at_first_use(
    __name__,
    {
        "arrivals": ("BlockEnds", "block_ends", "experts_end"),
        "scheduled": ("carries_schedule",),
        "mfabric_jax.evaluate.rules": ("First", "CircuitSpan"),
        "mfabric_jax.evaluate.exchanges": ("exchanges",),
    },
)
