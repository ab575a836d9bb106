"""All-to-alls that relay: stages that run one after the other, each a schedule and the bytes that it carries."""

from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from mfabric_jax.checks import not_negative, of_type
from mfabric_jax.circuit_schedules.ending import schedule_end_s
from mfabric_jax.fabric.circuit_schedule import CircuitSchedule
from mfabric_jax.fabric.region import Region
from mfabric_jax.routing.schedule import schedule_time


class Stage(NamedTuple):
    """A schedule of switches, and the bytes [S S] that its circuits carry over one hop.

    A schedule that is `first_free` after another stage shows the circuits with which that stage ended.
    """

    schedule: CircuitSchedule
    demand: Float[ArrayLike, "S S"]


def staged_time(region: Region, stages: list[Stage], step_s: Any = 0.0) -> Float[Array, ""]:
    """Return the completion time of stages that run one after the other [s]: the sum of their `schedule_time`.

    A stage pays for its first configuration unless its schedule is `first_free`. `step_s`: latency of a stage, from
    its last byte on a circuit until the next stage can send it on.
    """
    for number, stage in enumerate(stages):
        of_type(f"stages[{number}]", stage, Stage)
    times = [schedule_time(region, stage.schedule, stage.demand) for stage in stages]
    return jax.numpy.stack(times).sum() + len(stages) * step_s if times else jax.numpy.zeros(())


def stages_end_s(region: Region, stages: list[Stage], step_s: float = 0.0) -> float:
    """Return `staged_time` for equal servers, computed on the host in float64."""
    ends = [schedule_end_s(region, stage.schedule, np.asarray(stage.demand)) for stage in stages]
    return sum(ends) + len(stages) * not_negative("step_s", step_s)
