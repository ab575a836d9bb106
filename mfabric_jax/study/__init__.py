"""Many configurations at once."""

from mfabric_jax.study._calibrate import calibrate
from mfabric_jax.study._cases import Results, simulate
from mfabric_jax.study._compare import compare, rows_of
from mfabric_jax.study._export import exported_iteration, timed_iteration
from mfabric_jax.study._failures import failures
from mfabric_jax.study._iteration_of import iteration_of
from mfabric_jax.study._replay import replay
from mfabric_jax.study._replay_settings import Replay
from mfabric_jax.study._replayed import replay_row
from mfabric_jax.study._scenario import Scenario, scenarios
from mfabric_jax.study._timeline import example_timeline
from mfabric_jax.study._trace_study import TraceStudy, trace_study
from mfabric_jax.study.batch import evaluate, grid
from mfabric_jax.study.config import Assumptions, Case, Compare
from mfabric_jax.study.jobs.compared import JobsStudy, compare_jobs
from mfabric_jax.study.jobs.jobs_file import read_jobs
from mfabric_jax.study.presets import PRESETS
from mfabric_jax.study.sweeps.design_space import Sweep, read_sweep
from mfabric_jax.study.sweeps.run import sweep
from mfabric_jax.study.whole_cluster import WholeCluster, cluster_rows, solve_cluster

__all__ = [
    "PRESETS",
    "Assumptions",
    "Case",
    "Compare",
    "JobsStudy",
    "Replay",
    "Results",
    "Scenario",
    "Sweep",
    "TraceStudy",
    "WholeCluster",
    "calibrate",
    "cluster_rows",
    "compare",
    "compare_jobs",
    "evaluate",
    "example_timeline",
    "exported_iteration",
    "failures",
    "grid",
    "iteration_of",
    "read_jobs",
    "read_sweep",
    "replay",
    "replay_row",
    "rows_of",
    "scenarios",
    "simulate",
    "solve_cluster",
    "sweep",
    "timed_iteration",
    "trace_study",
]
