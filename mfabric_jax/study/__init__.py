"""Many configurations at once."""

from mfabric_jax.study._calibrate import calibrate
from mfabric_jax.study._compare import compare, rows_of
from mfabric_jax.study._failures import Failures, failures
from mfabric_jax.study._iteration_of import iteration_of
from mfabric_jax.study._scenario import Scenario, scenarios
from mfabric_jax.study._simulate import simulate
from mfabric_jax.study._timeline import example_timeline
from mfabric_jax.study._trace_study import TraceStudy, trace_study
from mfabric_jax.study.batch import evaluate, grid
from mfabric_jax.study.config import Assumptions, Case, Compare
from mfabric_jax.study.presets import PRESETS
from mfabric_jax.study.sweeps.design_space import Sweep, read_sweep
from mfabric_jax.study.sweeps.run import sweep
from mfabric_jax.study.whole_cluster import WholeCluster, cluster_rows, solve_cluster

__all__ = [
    "PRESETS",
    "Assumptions",
    "Case",
    "Compare",
    "Failures",
    "Scenario",
    "Sweep",
    "TraceStudy",
    "WholeCluster",
    "calibrate",
    "cluster_rows",
    "compare",
    "evaluate",
    "example_timeline",
    "failures",
    "grid",
    "iteration_of",
    "read_sweep",
    "rows_of",
    "scenarios",
    "simulate",
    "solve_cluster",
    "sweep",
    "trace_study",
]
