"""Times of blocks, pipelines and iterations; `evaluate` has those of all-to-alls."""

import importlib
from typing import Any

from mfabric_jax.timing.arrivals import Ends, block_ends, experts_end
from mfabric_jax.timing.blocks import Rules
from mfabric_jax.timing.environment import Drift, Recorded, RegionEnv, best_trajectory
from mfabric_jax.timing.iteration import Iteration, iterate, rates_of

__all__ = ["Drift", "Ends", "First", "Iteration", "Recorded", "RegionEnv", "Rules", "Span"]
__all__ += ["best_trajectory", "block_ends", "exchanges", "experts_end", "iterate", "rates_of"]
_ABOVE = {"First": "rules", "Span": "rules", "exchanges": "exchanges"}


def __getattr__(name: str) -> Any:
    if name not in _ABOVE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"mfabric_jax.evaluate.{_ABOVE[name]}"), name)
