"""How far off the simulator is: against runs of a packet-level simulator, and against the paper.

Each figure of the paper is drawn by an experiment in a process of its own, which has its own precision and memory, and
takes no other with it when it fails. Experiments draw with `report`, so this package stands behind it.
"""

from mfabric_jax.validation.packet_runs import read_runs
from mfabric_jax.validation.packets import packet_groups, packet_rows, predict

__all__ = ["packet_groups", "packet_rows", "predict", "read_runs"]
