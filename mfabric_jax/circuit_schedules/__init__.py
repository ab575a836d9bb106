"""Schedules of optical switches that reconfigure while an all-to-all runs, with their time and its lower bound."""

from mfabric_jax.circuit_schedules.batched import schedules, stacked
from mfabric_jax.circuit_schedules.registry import NAMES, get
from mfabric_jax.circuit_schedules.relayed import relayed
from mfabric_jax.circuit_schedules.valiant import staged_time, valiant
from mfabric_jax.fabric.schedule import Schedule
from mfabric_jax.routing.schedule import lower_bound, schedule_time

__all__ = ["NAMES", "Schedule", "get", "lower_bound", "schedule_time"]
__all__ += ["relayed", "schedules", "stacked", "staged_time", "valiant"]
