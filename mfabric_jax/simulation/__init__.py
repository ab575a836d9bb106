"""Simulation of cases: resolve, solve all-to-alls, time iterations, make rows."""

from typing import TYPE_CHECKING

from mfabric_jax.evaluate.problem import Problem
from mfabric_jax.lazily import at_first_use
from mfabric_jax.resolving.resolve import Resolved, resolve
from mfabric_jax.simulation.calibrate import calibrate
from mfabric_jax.simulation.points import rows_of
from mfabric_jax.simulation.results import Results, simulate

if TYPE_CHECKING:
    from mfabric_jax.evaluate.iteration_of import iteration_of
    from mfabric_jax.evaluate.sharded import evaluate, grid
    from mfabric_jax.simulation.timeline import example_timeline

__all__ = [
    "Problem",
    "Resolved",
    "Results",
    "calibrate",
    "evaluate",
    "example_timeline",
    "grid",
    "iteration_of",
    "resolve",
    "rows_of",
    "simulate",
]
__getattr__ = at_first_use(
    __name__,
    {
        "mfabric_jax.evaluate.iteration_of": ("iteration_of",),
        "mfabric_jax.evaluate.sharded": ("evaluate", "grid"),
        "timeline": ("example_timeline",),
    },
)
