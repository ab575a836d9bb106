"""What may be done about jobs that share links: nothing, weights (MLTCP), time shifts (CASSINI, or the best found).

A way is a function of the scene: it says how patterns change and by how much every job is shifted.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from mfabric_jax.checks import InputError, positive, whole
from mfabric_jax.jobs.cassini import Mltcp, Shifts, time_shifts
from mfabric_jax.jobs.iterations import JobTimes, Repeated, Scene, in_pieces, repeated, solve_jobs
from mfabric_jax.routing.transfers import Routed

ROUNDS = 3  # of the search for the best shifts
JUDGED = 30  # iterations of the job with the longest ones that a candidate is judged by, at most
MOST_OFF = 0.5  # of an iteration: farther off one turn is nearer to the next
SAVED = 1e-9  # of the mean slowdown: what a further shift must save


class WaySettings(NamedTuple):
    """- `mltcp`: its function.   - `tick_s`: how finely CASSINI cuts time.   - `steps`: shifts of a job that the search
    for the best ones tries in an iteration.   - `adjust`: how far of an iteration a shifted job may be off its turn."""

    mltcp: Mltcp = Mltcp()
    tick_s: float = 0.001
    steps: int = 24
    adjust: float = 0.0

    def checked(self) -> "WaySettings":
        """Self; `InputError` for a wrong number."""
        positive("tick_s", self.tick_s)
        whole("steps", self.steps, at_least=2)
        if not 0 <= self.adjust < MOST_OFF:
            raise InputError(f"adjust must be from 0 to below {MOST_OFF}, a part of an iteration, got {self.adjust}.")
        return self


class Handled(NamedTuple):
    """- `patterns` [J].   - `shift_s` [J]: where in its iteration time each job has to start; None: when it arrives.
    - `score`: CASSINI's, where it was asked; None elsewhere.   - `adjust`: 0: no job waits for its turn again."""

    patterns: tuple[Routed, ...]
    shift_s: np.ndarray | None = None
    score: float | None = None
    adjust: float = 0.0


def _fair(scene: Scene, settings: WaySettings) -> Handled:
    return Handled(scene.patterns)


def _mltcp(scene: Scene, settings: WaySettings) -> Handled:
    return Handled(tuple(in_pieces(pattern, settings.mltcp) for pattern in scene.patterns))


def _shifts(scene: Scene, settings: WaySettings) -> Shifts:
    links = ((name, capacity, tuple(of.items())) for name, (capacity, of) in scene.circles().items())
    return _shifts_once(tuple(scene.alone_s.tolist()), tuple(links), settings.tick_s)


@functools.lru_cache(maxsize=1)
def _shifts_once(alone_s: tuple[float, ...], links: tuple, tick_s: float) -> Shifts:
    """Two ways ask for the same."""
    return time_shifts(alone_s, {name: (capacity, dict(of)) for name, capacity, of in links}, tick_s)


def _cassini(scene: Scene, settings: WaySettings) -> Handled:
    found = _shifts(scene, settings)
    return Handled(scene.patterns, found.shift_s, found.score, settings.adjust)


def _best(scene: Scene, settings: WaySettings) -> Handled:
    """The best shifts found under fair sharing: from the best of three on (none, CASSINI's, where MLTCP ends), one job
    after the other tries all steps."""
    jobs = len(scene.names)
    count = np.minimum(scene.iterations, np.ceil(JUDGED * scene.alone_s.max() / scene.alone_s)).astype(int)
    flows = repeated(scene.patterns, count.tolist(), scene.arrival_s)
    tried = np.arange(settings.steps) / settings.steps

    def judge(shifts: np.ndarray) -> np.ndarray:
        at_s = shifted(scene, shifts, np.array([scene.arrival_s]))
        done = solve_jobs(flows, scene.capacity, start=job_starts(flows, at_s))
        times = iteration_times(flows, done.finish, at_s)
        return np.mean([own.mean(axis=1) / alone for own, alone in zip(times, scene.alone_s, strict=True)], axis=0)

    first = np.array([np.zeros(jobs), _shifts(scene, settings).shift_s, _where_mltcp_ends(scene, settings)])
    judged = judge(first)
    shift, least = first[np.argmin(judged)], judged.min()
    for _ in range(ROUNDS):
        before = least
        for job in range(jobs):
            candidates = np.tile(shift, (settings.steps, 1))
            candidates[:, job] = tried * scene.alone_s[job]
            judged = judge(candidates)
            if judged.min() < least - SAVED:
                shift, least = candidates[np.argmin(judged)], judged.min()
        if least >= before - SAVED:
            break
    return Handled(scene.patterns, shift)


def _where_mltcp_ends(scene: Scene, settings: WaySettings) -> np.ndarray:
    """[J] where in its iteration time each job begins the last iteration that all begin under MLTCP."""
    flows = repeated(_mltcp(scene, settings).patterns, scene.iterations, scene.arrival_s)
    ends = flows.of_jobs(solve_jobs(flows, scene.capacity).finish[flows.end])
    until = min(float(own[-1]) for own in ends)
    last = (own[max(0, np.searchsorted(own, until, side="right") - 1)] for own in ends)  # of a late job its first
    return np.mod(list(last), scene.alone_s)


WAYS: dict[str, Callable[[Scene, WaySettings], Handled]] = {
    "fair": _fair,
    "cassini": _cassini,
    "mltcp": _mltcp,
    "best": _best,
}


def shifted(scene: Scene, shift_s: np.ndarray, arrival_s: np.ndarray) -> np.ndarray:
    """[B J] when jobs start: the first turn from their arrival on, turns one iteration apart from `shift_s` on."""
    return arrival_s + np.mod(shift_s - arrival_s, scene.alone_s)


def job_starts(flows: Repeated, at_s: np.ndarray) -> np.ndarray:
    """[B F] starts of flows whose jobs start at `at_s` [B J]."""
    begins = flows.first & (flows.iteration == 0)
    return np.where(begins, at_s[:, flows.job], 0.0)


def iteration_times(flows: Repeated, finish: np.ndarray, at_s: np.ndarray) -> list[np.ndarray]:
    """Seconds of every iteration of each job [B N], which starts at `at_s` [B J]; `finish` [B F]."""
    ends = flows.of_jobs(finish[:, flows.end])
    return [np.diff(end, axis=1, prepend=at_s[:, [job]]) for job, end in enumerate(ends)]


# Jobs that were shifted and drift apart: turns are kept by waiting, as CASSINI's agents adjust shifts.
# The turns of all jobs move with a job that is late; one that is early waits for its turn. A run is repeated with every
# further wait, which changes what comes later alone.


class Turns(NamedTuple):
    """- `shift_s`, `period_s` [J]: a turn of job j is every `period_s` from `shift_s` on.   - `adjust`: the part of an
    iteration that a job may be off its turn."""

    shift_s: np.ndarray
    period_s: np.ndarray
    adjust: float


def held_to_turns(flows: Repeated, capacity: np.ndarray, start: np.ndarray, lag: np.ndarray, turns: Turns) -> JobTimes:
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
