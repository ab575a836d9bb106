"""Many configurations at once."""

from mfabric_jax.study._calibrate import calibrate, calibration_rows, check_calibration, write_calibration
from mfabric_jax.study._compare import compare, effective, rows_of
from mfabric_jax.study._examples import examples
from mfabric_jax.study._failures import Failures, effective_failures, failures
from mfabric_jax.study._iteration_of import iteration_of
from mfabric_jax.study._provenance import provenance
from mfabric_jax.study.batch import evaluate, grid
from mfabric_jax.study.calibration import CALIBRATED, Calibrated
from mfabric_jax.study.config import Assumptions, Case, Compare
from mfabric_jax.study.presets import PRESETS
from mfabric_jax.study.simulate import Scenario, Simulated, scenarios, simulate
from mfabric_jax.study.sweeps.design_space import Sweep, read_sweep
from mfabric_jax.study.sweeps.run import sweep
from mfabric_jax.study.timeline import example_timeline, walked_through
from mfabric_jax.study.whole_cluster import (
    Solved,
    WholeCluster,
    cluster_rows,
    effective_cluster,
    example_cluster,
    flow_rows,
    link_rows,
    solve_cluster,
)

__all__ = [
    "CALIBRATED",
    "PRESETS",
    "Assumptions",
    "Calibrated",
    "Case",
    "Compare",
    "Failures",
    "Scenario",
    "Simulated",
    "Solved",
    "Sweep",
    "WholeCluster",
    "calibrate",
    "calibration_rows",
    "check_calibration",
    "cluster_rows",
    "compare",
    "effective",
    "effective_cluster",
    "effective_failures",
    "evaluate",
    "example_cluster",
    "example_timeline",
    "examples",
    "failures",
    "flow_rows",
    "grid",
    "iteration_of",
    "link_rows",
    "provenance",
    "read_sweep",
    "rows_of",
    "scenarios",
    "simulate",
    "solve_cluster",
    "sweep",
    "walked_through",
    "write_calibration",
]
