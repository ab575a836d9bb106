"""Schedules of optical switches that reconfigure while an all-to-all runs, with their time and its lower bound."""

from mfabric_jax.circuit_schedules.batched import schedules, stack_schedules
from mfabric_jax.circuit_schedules.bruck import bruck
from mfabric_jax.circuit_schedules.registry import NAMES, get
from mfabric_jax.circuit_schedules.relayed import relay_stages
from mfabric_jax.circuit_schedules.stages import Stage, staged_time
from mfabric_jax.circuit_schedules.ternary import ternary
from mfabric_jax.circuit_schedules.valiant import valiant
from mfabric_jax.fabric.circuit_schedule import CircuitSchedule
from mfabric_jax.routing.schedule import lower_bound, schedule_time

__all__ = ["NAMES", "CircuitSchedule", "Stage", "bruck", "get", "lower_bound", "relay_stages", "schedule_time"]
__all__ += ["schedules", "stack_schedules", "staged_time", "ternary", "valiant"]
