"""One iteration of one model on one fabric as segments, and what every stage spends it on."""

from typing import Any

import jax
import numpy as np

from mfabric_jax.case import Case
from mfabric_jax.checks import InputError
from mfabric_jax.resolving._resolve import resolve
from mfabric_jax.schedule.iteration import Walked, walk
from mfabric_jax.schedule.trace import segments
from mfabric_jax.simulation.measured import scenario_at
from mfabric_jax.simulation.scenario import Scenario, check_dtype
from mfabric_jax.simulation.solving import solve

Segments = list[dict[str, Any]]


def example_timeline(case: Case) -> tuple[Segments, list[dict[str, Any]]]:
    """(segments as `schedule.trace` has them, a row for every stage) of a case; of several iterations `run.sample`, or
    the last. `InputError` for several replicas."""
    return timeline(shown_scenario(case, "a timeline is"))


def shown_scenario(case: Case, what: str) -> Scenario:
    """The scenario of one case. `InputError` where `what` of one replica has several."""
    check_dtype(case.run.dtype)
    if case.run.replicas != 1:
        raise InputError(f"{what} of one replica; run.replicas must be 1, got {case.run.replicas}.")
    return scenario_at(resolve(case), (case.network.nic_gbps,))


def timeline(one: Scenario) -> tuple[Segments, list[dict[str, Any]]]:
    """The iteration that a scenario shows, at its first bandwidth: segments, and a row for every stage.

    A row has the seconds of its own work, `reconfig_s` that it waits for the switch, and what is left: `bubble_s`.
    """
    walked, rules = walked_through(one), one.settings.rules._replace(recompute=one.workload.recompute)
    ends = {"reduce_s": walked.reduce_s, "beside": walked.beside, "step_s": walked.step_s}
    ends["moved_s"] = float(walked.moved_s)
    drawn = segments(one.workload, walked.slots, walked.blocks, walked.compute, rules, **ends)
    return drawn, _rows(walked)


def walked_through(one: Scenario) -> Walked:
    """Every block of the iteration that a scenario shows, at its first bandwidth."""
    settings = one.settings
    shown = jax.tree.map(lambda x: x[0, one.shown] if one.weighs else x[one.shown], solve(one))
    rates, seconds = jax.tree.map(lambda x: np.asarray(x, settings.dtype), (one.rates(one.bandwidths[0]), one.seconds))
    return walk(one.workload, rates, shown, seconds, rules=settings.rules)


def _rows(walked: Walked) -> list[dict[str, Any]]:
    """What every stage spends the iteration on [s]; a row adds up to `iteration_s`."""
    walked = jax.tree.map(lambda x: np.asarray(x, np.float64), walked)
    stages = np.arange(len(walked.reduce_s))
    total, parts = float(walked.ends.max() + walked.moved_s), walked.spent
    parts |= {"placement_s": np.broadcast_to(walked.moved_s, stages.shape)}
    rows = [{"stage": int(stage)} | {name: float(x[stage]) for name, x in parts.items()} for stage in stages]
    return [row | {"bubble_s": total - sum(row[name] for name in parts), "iteration_s": total} for row in rows]
