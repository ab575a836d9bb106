"""Comparison of the simulator with packet-level runs and with the paper."""

from mfabric_jax.validation.packets import packet_groups, packet_rows, predict, read_runs

__all__ = ["packet_groups", "packet_rows", "predict", "read_runs"]
