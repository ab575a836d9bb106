"""The end of an all-to-all under a schedule: when circuits and packet NICs carry their last byte."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from mfabric_jax.circuit_schedules.placing import Placed, ScheduleProblem, problem_of
from mfabric_jax.circuit_schedules.registry import checked_demand, facts_of
from mfabric_jax.fabric.circuit_schedule import CircuitSchedule
from mfabric_jax.fabric.region import Region
from mfabric_jax.flows.host.star import latest_ends
from mfabric_jax.routing.schedule import bound_of, lines_of


class ScheduleSpan(NamedTuple):
    """Circuits [S S] of one switch that carry bytes for `seconds` from `start_s`.

    - `reconfigure_s`: length of the reconfiguration that ends at the start.
    - `kept`: these circuits do not change, and carry while their switch reconfigures.
    """

    start_s: float
    seconds: float
    circuits: np.ndarray
    switch: int
    reconfigure_s: float
    kept: bool = False


def end_s(problem: ScheduleProblem, schedule: Placed) -> float:
    """Return the later of `part_ends_s`."""
    return max(part_ends_s(problem, schedule))


def part_ends_s(problem: ScheduleProblem, schedule: Placed) -> tuple[float, float]:
    """Return when circuits and when packet NICs carry their last byte [s].

    Circuits carry a pair's bytes whenever they are up. From time 0, the bytes that no circuit will carry share the
    packet NICs max-min fairly; their end is infinite without packet NICs.
    """
    spans = list(spans_of(problem, schedule))
    room = sum((span.seconds * span.circuits for span in spans), np.zeros(problem.need.shape))
    left = problem.without_rounding(problem.need - room, len(spans))
    return _circuits_s(problem.need, spans), _packets_s(problem, left)


def schedule_end_s(region: Region, schedule: CircuitSchedule, demand: np.ndarray) -> float:
    """Return `schedule_time` for equal servers, computed on the host in float64 without compiling an XLA program."""
    return end_s(*problem_and_schedule(region, schedule, demand))


def problem_and_schedule(
    region: Region, schedule: CircuitSchedule, demand: np.ndarray
) -> tuple[ScheduleProblem, Placed]:
    """Return the problem that a schedule solves, and the schedule, in the form that schedulers use."""
    names = ("switches", "all_stop", "directed", "first_free")
    how = {name: getattr(schedule, name) for name in names}
    delay = region.delay_s if schedule.delay_s is None else schedule.delay_s
    facts = facts_of(region, schedule.switches)
    problem = problem_of(checked_demand(demand, region), **facts, **how, delay_s=float(delay))  # type: ignore[arg-type]
    shown = (np.asarray(part) for part in (schedule.configurations, schedule.seconds, schedule.switch))
    configurations, seconds, switch = shown
    problem = problem._replace(digit=float(np.finfo(seconds.dtype).eps))
    return problem, (configurations, seconds.astype(float), switch)


def _circuits_s(need: np.ndarray, spans: list[ScheduleSpan]) -> float:
    """Return when circuits carry their last byte."""
    times = np.unique([0.0, *(time for span in spans for time in (span.start_s, span.start_s + span.seconds))])
    count = np.zeros((len(times) - 1, *need.shape), np.int64)
    for span in spans:
        first, last = np.searchsorted(times, (span.start_s, span.start_s + span.seconds))
        count[first:last] += span.circuits
    carried = np.zeros((len(times), *need.shape))
    np.cumsum(count * np.diff(times)[:, None, None], axis=0, out=carried[1:])
    row, column = np.nonzero(np.minimum(need, carried[-1]))
    target, carried, count = np.minimum(need, carried[-1])[row, column], carried[:, row, column], count[:, row, column]
    rounding = 8 * np.finfo(float).eps * times[-1] * count.max(initial=0)
    before = np.maximum((carried < target - rounding).sum(0) - 1, 0)
    pair = np.arange(len(row))
    last = times[before] + (target - carried[before, pair]) / np.maximum(count[before, pair], 1)
    return float(last.max(initial=0.0))


def _packets_s(problem: ScheduleProblem, left: np.ndarray) -> float:
    if not (problem.packet and left.any()):
        return problem.packet_s(left)
    port = np.full((2, len(left)), problem.packet)
    return float(latest_ends(left[None] / problem.busiest_s, port)[0]) * problem.busiest_s


def spans_of(problem: ScheduleProblem, schedule: Placed) -> Iterator[ScheduleSpan]:
    """Yield all spans in which circuits carry bytes, switch by switch."""
    configurations, seconds, switch = schedule
    for lane in range(problem.switches):
        clock, before = 0.0, None
        for current in np.flatnonzero(switch == lane):
            reconfigure_s = 0.0 if before is None and problem.first_free else problem.delay_s
            if before is not None and not problem.all_stop:
                left = np.minimum(configurations[before], configurations[current])
                yield ScheduleSpan(clock, reconfigure_s, left, lane, 0.0, kept=True)
            yield ScheduleSpan(
                clock + reconfigure_s, float(seconds[current]), configurations[current], lane, reconfigure_s
            )
            clock += reconfigure_s + float(seconds[current])
            before = current


def least_s(problem: ScheduleProblem) -> float:
    """Return `lower_bound`, computed on the host."""
    servers = len(problem.need)
    degree, packet = np.full(servers, problem.lanes), np.full(servers, problem.packet)
    lines = lines_of(problem.need, degree, packet, problem.directed)
    how = problem.switches, problem.all_stop, problem.first_free
    return float(bound_of(lines, np.float64(1), np.float64(problem.delay_s), *how))
