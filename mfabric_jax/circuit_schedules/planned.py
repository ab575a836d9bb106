"""Schedules for the all-to-alls of a case, planned and timed on the host."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from mfabric_jax.case.policies import is_function
from mfabric_jax.checks import InputError
from mfabric_jax.circuit_schedules.carrying import Carried, carried_bytes
from mfabric_jax.circuit_schedules.ending import part_ends_s, problem_and_schedule
from mfabric_jax.circuit_schedules.registry import Scheduler, facts_of, get
from mfabric_jax.fabric.circuit_schedule import CircuitSchedule
from mfabric_jax.fabric.region import Region
from mfabric_jax.policies.own import load_function, wrap_errors
from mfabric_jax.support.host_arrays import once_each_row
from mfabric_jax.timing.scheduled import Planned, Planner, ends_of_switches

TRIED = 1e8  # bytes of every pair in the demand that tests a user's scheduler


def planner(name: str, region: Region, **how: Any) -> Planner:
    """Return the planner that times all-to-alls under the scheduler of that name (`schedulers`)."""
    region = jax.tree.map(np.asarray, region)
    return planner_of(schedulers(name, region, **how), region)


def carrier(name: str, region: Region, **how: Any) -> Callable[[np.ndarray, bool], Carried]:
    """Return a function (demand [S S] bytes, known ahead) -> what each configuration of the named scheduler carries."""
    region = jax.tree.map(np.asarray, region)
    scheduler = schedulers(name, region, **how)

    def carried_of(demand: np.ndarray, known: bool) -> Carried:
        return carried_bytes(
            *problem_and_schedule(region, _check_schedule(scheduler(known)(demand, region), region), demand)
        )

    return carried_of


def schedulers(
    name: str, region: Region, *, switches: int = 1, all_stop: bool = True, directed: bool = True
) -> Callable[[bool], Scheduler]:
    """Return a function (known ahead) -> scheduler, for the scheduler of that name or the one in FILE.py:FUNCTION.

    If demand is known ahead, the first reconfiguration of a named scheduler is free. Demand and region are NumPy
    arrays. Raise `InputError` if the switches do not share a server's ports evenly, or if a user's scheduler fails or
    returns an illegal schedule for a uniform demand.
    """
    uniform = TRIED * (1.0 - np.eye(region.servers))
    facts_of(region, switches)
    if is_function(name):
        scheduler: Any = load_function(name, "scheduler")
        _try_out(name, scheduler, uniform, region)
        return lambda known: scheduler
    how = {"all_stop": all_stop, "directed": directed}
    both = {known: get(name, switches, **how, first_free=known) for known in (False, True)}
    return both.__getitem__


def scheduler_named(name: str) -> Scheduler:
    """Return a scheduler by name, on one switch with its first reconfiguration paid, or the one in FILE.py:FUNCTION."""
    return load_function(name, "scheduler") if is_function(name) else get(name)


def planner_of(scheduler: Callable[[bool], Scheduler], region: Region) -> Planner:
    """Return the planner for `scheduler`, a function (known ahead) -> scheduler."""

    def plan_demands(demand: np.ndarray, known: bool) -> Planned:
        plan = scheduler(known)
        rows = once_each_row(
            lambda each: _columns([_plan_times(plan(matrix, region), region, matrix) for matrix in each]), demand
        )
        return Planned(*rows)

    return plan_demands


def _try_out(name: str, scheduler: Scheduler, demand: np.ndarray, region: Region) -> None:
    with wrap_errors(f"scheduler {name}, called as scheduler(demand, region),"):
        schedule = scheduler(demand, region)
    _plan_times(schedule, region, demand, name)


def _plan_times(schedule: CircuitSchedule, region: Region, demand: np.ndarray, name: str = "of your own") -> tuple:
    schedule = _check_schedule(schedule, region, name)
    return (
        *part_ends_s(*problem_and_schedule(region, schedule, demand)),
        *ends_of_switches(schedule),
        schedule.first_free,
    )


def _check_schedule(schedule: CircuitSchedule, region: Region, name: str = "of your own") -> CircuitSchedule:
    if not isinstance(schedule, CircuitSchedule):
        raise InputError(f"scheduler {name} must return a CircuitSchedule, got {type(schedule).__name__}.")
    return jax.tree.map(np.asarray, schedule.check_region(region))


def _columns(rows: list[tuple]) -> tuple[np.ndarray, ...]:
    return tuple(np.stack(column) for column in zip(*rows, strict=True))
