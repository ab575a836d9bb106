"""Export an iteration as a graph of tasks."""

from mfabric_jax.apps.graphs.export.exported import exported_iteration, timed_iteration

__all__ = ["exported_iteration", "timed_iteration"]
