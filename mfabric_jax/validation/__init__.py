"""How far off the simulator is: against runs of a packet-level simulator, and against the paper."""

from mfabric_jax.validation.packets import packet_groups, packet_rows, predict, read_runs

__all__ = ["packet_groups", "packet_rows", "predict", "read_runs"]
