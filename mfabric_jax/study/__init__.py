"""Many configurations at once."""

from mfabric_jax.study.compare import compare, effective, examples
from mfabric_jax.study.config import Compare
from mfabric_jax.study.packet_runs import PacketRun, read_runs
from mfabric_jax.study.provenance import provenance
from mfabric_jax.study.validate import Prediction, packet_groups, packet_rows, predict

__all__ = [
    "Compare",
    "PacketRun",
    "Prediction",
    "compare",
    "effective",
    "examples",
    "packet_groups",
    "packet_rows",
    "predict",
    "provenance",
    "read_runs",
]
