"""Cases simulated: resolved, solved, timed, told as rows."""

from mfabric_jax.resolving._resolve import Resolved, resolve
from mfabric_jax.simulation._calibrate import calibrate
from mfabric_jax.simulation._iteration_of import iteration_of
from mfabric_jax.simulation._timeline import example_timeline
from mfabric_jax.simulation.batch import evaluate, grid
from mfabric_jax.simulation.results import Results, simulate
from mfabric_jax.simulation.rows import rows_of
from mfabric_jax.simulation.scenario import Scenario

__all__ = [
    "Resolved",
    "Results",
    "Scenario",
    "calibrate",
    "evaluate",
    "example_timeline",
    "grid",
    "iteration_of",
    "resolve",
    "rows_of",
    "simulate",
]
