"""Comparison of the simulator with packet-level runs, with steps of real trainings and with the paper."""

from mfabric_jax.validation.packets import packet_groups, packet_rows, predict, read_runs
from mfabric_jax.validation.trainings import training_rows, trainings

__all__ = ["packet_groups", "packet_rows", "predict", "read_runs", "training_rows", "trainings"]
