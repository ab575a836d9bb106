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
from mfabric_jax.study.policy_evaluation import Evaluation, evaluate_policies
from mfabric_jax.study.presets import PRESETS
from mfabric_jax.study.scoreboard import RECORDED, Scoreboard, effective_scoreboard, scoreboard
from mfabric_jax.study.simulate import Scenario, Simulated, scenarios, simulate
from mfabric_jax.study.sweeps.design_space import Sweep, read_sweep
from mfabric_jax.study.sweeps.run import sweep
from mfabric_jax.study.timeline import example_timeline, walked_through
from mfabric_jax.study.training import TRAINED_POLICY, train
from mfabric_jax.study.training_config import Training
from mfabric_jax.study.training_traffic import FAMILIES
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
    "FAMILIES",
    "PRESETS",
    "RECORDED",
    "TRAINED_POLICY",
    "Assumptions",
    "Calibrated",
    "Case",
    "Compare",
    "Evaluation",
    "Failures",
    "Scenario",
    "Scoreboard",
    "Simulated",
    "Solved",
    "Sweep",
    "Training",
    "WholeCluster",
    "calibrate",
    "calibration_rows",
    "check_calibration",
    "cluster_rows",
    "compare",
    "effective",
    "effective_cluster",
    "effective_failures",
    "effective_scoreboard",
    "evaluate",
    "evaluate_policies",
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
    "scoreboard",
    "simulate",
    "solve_cluster",
    "sweep",
    "train",
    "walked_through",
    "write_calibration",
]
