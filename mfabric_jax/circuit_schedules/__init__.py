"""Schedules of optical switches that reconfigure while an all-to-all runs, with their time and its lower bound."""

from mfabric_jax.circuit_schedules.batched import schedules, stack_schedules
from mfabric_jax.circuit_schedules.registry import NAMES, get
from mfabric_jax.circuit_schedules.relayed import relay_stages
from mfabric_jax.circuit_schedules.valiant import staged_time, valiant
from mfabric_jax.fabric.circuit_schedule import CircuitSchedule
from mfabric_jax.routing.schedule import lower_bound, schedule_time

__all__ = ["NAMES", "CircuitSchedule", "get", "lower_bound", "schedule_time"]
__all__ += ["relay_stages", "schedules", "stack_schedules", "staged_time", "valiant"]
