"""Export an iteration as a task graph."""

from mfabric_jax.apps.graphs.export.exported import export_iteration, time_iteration

__all__ = ["export_iteration", "time_iteration"]
