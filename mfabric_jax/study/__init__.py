"""Many configurations at once."""

from mfabric_jax.study.compare import compare, effective, examples
from mfabric_jax.study.config import Compare
from mfabric_jax.study.failures import Failures, effective_failures, failures
from mfabric_jax.study.packet_runs import PacketRun, read_runs
from mfabric_jax.study.provenance import provenance
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
    "Compare",
    "Failures",
    "PacketRun",
    "Prediction",
    "Solved",
    "WholeCluster",
    "cluster_rows",
    "compare",
    "effective",
    "effective_cluster",
    "effective_failures",
    "example_cluster",
    "examples",
    "failures",
    "flow_rows",
    "link_rows",
    "packet_groups",
    "packet_rows",
    "predict",
    "provenance",
    "read_runs",
    "solve_cluster",
]
