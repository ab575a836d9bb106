"""The parts of every pair's bytes that the configurations of a schedule carry, and that packet NICs carry."""

from typing import NamedTuple

import numpy as np

from mfabric_jax.circuit_schedules.ending import ScheduleSpan, spans_of
from mfabric_jax.circuit_schedules.placing import Placed, ScheduleProblem


class Carried(NamedTuple):
    """What circuits carry, by the rules of `schedule_time`.

    - `spans` [I]: switch by switch, each in the order of time. `part` [I S S]: fraction of a pair's bytes in a span.
    - `left` [S S]: fraction that packet NICs carry. `first_free`: as in `CircuitSchedule`.
    """

    spans: list[ScheduleSpan]
    part: np.ndarray
    left: np.ndarray
    first_free: bool


def carried_bytes(problem: ScheduleProblem, schedule: Placed) -> Carried:
    """Return what each span carries: a pair's circuits carry its bytes whenever they are up, until none are left.

    Circuits of several switches carry them in proportion to their number.
    """
    spans = list(spans_of(problem, schedule))
    need, shape = problem.need, problem.need.shape
    times = np.unique([0.0, *(time for span in spans for time in (span.start_s, span.start_s + span.seconds))])
    there = np.zeros((len(spans), len(times) - 1), bool)
    for row, span in zip(there, spans, strict=True):
        row[slice(*np.searchsorted(times, (span.start_s, span.start_s + span.seconds)))] = True
    circuits = np.array([span.circuits for span in spans], float).reshape(-1, *shape)
    count = np.tensordot(there.T.astype(float), circuits, 1)
    room = np.cumsum(count * np.diff(times)[:, None, None], axis=0)
    rounding = (len(schedule[1]) + 8) * np.finfo(float).eps
    until = np.where(room >= need * (1 - rounding), need, room)
    each = np.diff(until, axis=0, prepend=np.zeros((1, *shape)))
    of_one = np.divide(each, count * need, out=np.zeros_like(each), where=count * need > 0)
    part = circuits * np.tensordot(there.astype(float), of_one, 1)
    gone = until[-1] if len(until) else np.zeros(shape)
    left = np.divide(need - gone, need, out=np.zeros(shape), where=need > 0)
    return Carried(spans, part, left, problem.first_free)
