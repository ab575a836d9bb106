"""Many configurations at once."""

from mfabric_jax.study.batch import Estimate, Evaluated, evaluate, grid
from mfabric_jax.study.calibrate import calibrate, calibration_rows, check_calibration, write_calibration
from mfabric_jax.study.calibration import CALIBRATED, Calibrated
from mfabric_jax.study.compare import compare, effective
from mfabric_jax.study.config import Compare
from mfabric_jax.study.examples import examples
from mfabric_jax.study.failures import Failures, effective_failures, failures
from mfabric_jax.study.iteration_case import iteration_of
from mfabric_jax.study.packet_runs import PacketRun, read_runs
from mfabric_jax.study.presets import PRESETS
from mfabric_jax.study.provenance import provenance
from mfabric_jax.study.sweeps import ENGINES, Progress, Sweep, read_sweep, sweep
from mfabric_jax.study.timeline import example_timeline
from mfabric_jax.study.validate import Prediction, packet_groups, packet_rows, predict
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
    "ENGINES",
    "PRESETS",
    "Calibrated",
    "Compare",
    "Estimate",
    "Evaluated",
    "Failures",
    "PacketRun",
    "Prediction",
    "Progress",
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
    "packet_groups",
    "packet_rows",
    "predict",
    "provenance",
    "read_runs",
    "read_sweep",
    "solve_cluster",
    "sweep",
    "write_calibration",
]
