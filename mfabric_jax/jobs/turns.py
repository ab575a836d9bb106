"""Jobs that were shifted and drift apart: turns are kept by waiting, as CASSINI's agents adjust shifts.

The turns of all jobs move with a job that is late; one that is early waits for its turn. A run is repeated with every
further wait, which changes what comes later alone.
"""

from typing import NamedTuple

import numpy as np

from mfabric_jax.jobs.iterations import SharedFlows
from mfabric_jax.jobs.solve import JobTimes, solve_jobs


class Turns(NamedTuple):
    """- `shift_s`, `period_s` [J]: a turn of job j is every `period_s` from `shift_s` on.   - `adjust`: the part of an
    iteration that a job may be off its turn."""

    shift_s: np.ndarray
    period_s: np.ndarray
    adjust: float


def held_to_turns(
    flows: SharedFlows, capacity: np.ndarray, start: np.ndarray, lag: np.ndarray, turns: Turns
) -> JobTimes:
    """The times of all flows, with waits before iterations that would begin too early; `start`, `lag` [B F]."""
    lag, runs = lag.copy(), [_Seen() for _ in lag]
    job, turn = flows.job[flows.end], flows.iteration[flows.end]
    more = turn + 1 < flows.iterations[job]
    while True:
        done, waited = solve_jobs(flows, capacity, start=start, lag=lag), False
        for run, seen in enumerate(runs):
            ends = np.where(more, done.finish[run, flows.end], np.inf)
            if (found := seen.first_early(ends, job, turns)) is not None:
                end, wait = found
                lag[run, flows.first & (flows.job == job[end]) & (flows.iteration == turn[end] + 1)] += wait
                waited = True
        if not waited:
            return done


class _Seen:
    """What has been looked at of one run: ends of iterations, in their order, and how late turns are by now."""

    def __init__(self):
        self.ends: set[int] = set()
        self.late_s = 0.0

    def first_early(self, ends: np.ndarray, job: np.ndarray, turns: Turns) -> tuple[int, float] | None:
        """The next end whose job is too early for its turn, and how long it has to wait."""
        for end in np.argsort(ends, kind="stable")[: np.isfinite(ends).sum()].tolist():
            if end in self.ends:
                continue
            self.ends.add(end)
            period = turns.period_s[job[end]]
            off = (ends[end] - turns.shift_s[job[end]] - self.late_s + period / 2) % period - period / 2
            if off > turns.adjust * period:
                self.late_s += off
            elif off < -turns.adjust * period:
                return end, float(-off)
        return None
