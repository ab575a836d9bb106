"""Export an iteration as a graph of tasks."""

from mfabric_jax.export._export import exported_iteration, timed_iteration

__all__ = ["exported_iteration", "timed_iteration"]
