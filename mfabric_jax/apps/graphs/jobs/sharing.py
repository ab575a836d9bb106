"""Ways to share links: fair sharing, weights (MLTCP), or time shifts (CASSINI's, or the best that a search finds).

A way is a function of the scene that returns the changed patterns and the shift of every job.
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from mfabric_jax.apps.graphs.jobs.cassini import Mltcp, Shifts, time_shifts
from mfabric_jax.apps.graphs.jobs.iterations import JobTimes, Repeated, Scene, in_pieces, repeat_patterns, solve_jobs
from mfabric_jax.checks import InputError, check_unread, names, not_negative, positive, whole
from mfabric_jax.routing.transfers import Routed

ROUNDS = 3  # rounds of the search for the best shifts
JUDGED = 30  # a candidate is judged by at most this many iterations of the job with the longest iterations
MOST_OFF = 0.5  # fraction of an iteration; a job that misses its turn by more is closer to the next turn
SAVED = 1e-9  # a further shift must reduce the mean slowdown by this much
READ_BY = {  # settings that only some ways read
    **{("slope", "intercept", "pieces"): ("mltcp", "best"), ("tick_s",): ("cassini", "best")},
    **{("adjust",): ("cassini",), ("steps",): ("best",)},
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class JobsStudy:
    """How jobs share links, and how many runs are compared."""

    ways: tuple[str, ...] = ("fair", "cassini", "mltcp", "best")
    """fair: plain max-min sharing; cassini: time shifts from circles; mltcp: weights that grow with the part of the
    iteration's bytes already sent; best: the best time shifts of a search that runs each candidate exactly."""
    draws: int = 0
    """Number of runs; in each, every job arrives late by a random fraction of its iteration; 0: one run with the
    arrivals of the file."""
    jitter: float = 0.0
    """Relative standard deviation of the computation time, which is drawn anew for every iteration."""
    skip: int = 0
    """Number of iterations at the start of every job that the statistics leave out."""
    placements: int = 0
    """Number of random placements of the jobs on a fabric; among these and the file's placement, the one with the best
    CASSINI score is used."""
    seed: int = 0
    """Seed of all random draws."""
    slope: float = 1.75
    """Slope of MLTCP's weight function."""
    intercept: float = 0.25
    """Intercept of MLTCP's weight function."""
    pieces: int = 16
    """Number of pieces of every flow; each piece has its own weight (mltcp)."""
    tick_s: float = 0.001
    """Shortest time step of CASSINI's circles."""
    adjust: float = 0.0
    """Tolerance of cassini, as a fraction of an iteration: a job that is early by more than this waits for its turn; if
    a job is late by more, the turns of all jobs move with it (the paper's agents: 0.05); 0: jobs never wait."""
    steps: int = 24
    """Number of shifts of every job that the search for the best shifts tries."""

    def __post_init__(self):
        names("ways", self.ways, WAYS)
        for field in ("draws", "skip", "placements", "seed"):
            whole(field, getattr(self, field), at_least=0)
        not_negative("jitter", self.jitter)
        positive("tick_s", self.tick_s)
        whole("steps", self.steps, at_least=2)
        if not 0 <= self.adjust < MOST_OFF:
            raise InputError(f"adjust must be from 0 to below {MOST_OFF} of an iteration, got {self.adjust}.")
        self.mltcp()
        for fields, ways in READ_BY.items():
            if not {*ways} & {*self.ways} and not ("tick_s" in fields and self.placements):
                check_unread(self, fields, f"way {' or '.join(ways)}")

    def mltcp(self) -> Mltcp:
        """Return MLTCP's weight function. Raise `InputError` for a wrong slope, intercept or number of pieces."""
        return Mltcp(self.slope, self.intercept, self.pieces)


class SharedPatterns(NamedTuple):
    """Patterns and shifts of a way.

    - `shift_s` [J]: when each job starts within its iteration time; None: jobs start on arrival.
    - `score`: CASSINI's score; None for other ways.
    - `adjust`: see `JobsStudy`.
    """

    patterns: tuple[Routed, ...]
    shift_s: np.ndarray | None = None
    score: float | None = None
    adjust: float = 0.0


def _fair(scene: Scene, study: JobsStudy) -> SharedPatterns:
    return SharedPatterns(scene.patterns)


def _mltcp(scene: Scene, study: JobsStudy) -> SharedPatterns:
    return SharedPatterns(tuple(in_pieces(pattern, study.mltcp()) for pattern in scene.patterns))


def _shifts(scene: Scene, study: JobsStudy) -> Shifts:
    return time_shifts(scene.alone_s.tolist(), scene.circles(), study.tick_s)


def _cassini(scene: Scene, study: JobsStudy) -> SharedPatterns:
    shifts = _shifts(scene, study)
    return SharedPatterns(scene.patterns, shifts.shift_s, shifts.score, study.adjust)


def _best(scene: Scene, study: JobsStudy) -> SharedPatterns:
    """Find the best shifts under fair sharing by coordinate search.

    The search starts from no shifts, CASSINI's shifts or the offsets that MLTCP reaches, whichever is best.
    """
    jobs = len(scene.names)
    count = np.minimum(scene.iterations, np.ceil(JUDGED * scene.alone_s.max() / scene.alone_s)).astype(int)
    flows = repeat_patterns(scene.patterns, count.tolist(), scene.arrival_s)
    tried = np.arange(study.steps) / study.steps

    def judge(shifts: np.ndarray) -> np.ndarray:
        at_s = shifted_starts(scene, shifts, np.array([scene.arrival_s]))
        done = solve_jobs(flows, scene.capacity, start=job_starts(flows, at_s))
        times = iteration_times(flows, done.finish, at_s)
        return np.mean([own.mean(axis=1) / alone for own, alone in zip(times, scene.alone_s, strict=True)], axis=0)

    first = np.array([np.zeros(jobs), _shifts(scene, study).shift_s, _where_mltcp_ends(scene, study)])
    judged = judge(first)
    shift, least = first[np.argmin(judged)], judged.min()
    for _ in range(ROUNDS):
        before = least
        for job in range(jobs):
            candidates = np.tile(shift, (study.steps, 1))
            candidates[:, job] = tried * scene.alone_s[job]
            judged = judge(candidates)
            if judged.min() < least - SAVED:
                shift, least = candidates[np.argmin(judged)], judged.min()
        if least >= before - SAVED:
            break
    return SharedPatterns(scene.patterns, shift)


def _where_mltcp_ends(scene: Scene, study: JobsStudy) -> np.ndarray:
    flows = repeat_patterns(_mltcp(scene, study).patterns, scene.iterations, scene.arrival_s)
    ends = flows.of_jobs(solve_jobs(flows, scene.capacity).finish[flows.end])
    until = min(float(own[-1]) for own in ends)
    # For each job: the last end of an iteration before the first job is done, or its first end if there is none.
    last = (own[max(0, np.searchsorted(own, until, side="right") - 1)] for own in ends)
    return np.mod(list(last), scene.alone_s)


WAYS: dict[str, Callable[[Scene, JobsStudy], SharedPatterns]] = {
    "fair": _fair,
    "cassini": _cassini,
    "mltcp": _mltcp,
    "best": _best,
}


def shifted_starts(scene: Scene, shift_s: np.ndarray, arrival_s: np.ndarray) -> np.ndarray:
    """Return the starts of jobs [B J]: the first turn after arrival. Turns begin at `shift_s`, one iteration apart."""
    return arrival_s + np.mod(shift_s - arrival_s, scene.alone_s)


def job_starts(flows: Repeated, at_s: np.ndarray) -> np.ndarray:
    """Return the starts of flows [B F] if jobs start at `at_s` [B J]."""
    begins = flows.first & (flows.iteration == 0)
    return np.where(begins, at_s[:, flows.job], 0.0)


def iteration_times(flows: Repeated, finish: np.ndarray, at_s: np.ndarray) -> list[np.ndarray]:
    """Return the seconds of the iterations [B N] of each job if jobs start at `at_s` [B J].

    Flows end at `finish` [B F].
    """
    ends = flows.of_jobs(finish[:, flows.end])
    return [np.diff(end, axis=1, prepend=at_s[:, [job]]) for job, end in enumerate(ends)]


# Shifted jobs drift apart, so early jobs wait for their turns, as CASSINI's agents adjust shifts. If one job is late,
# the turns of all jobs move with it. A wait changes only later times; the run is repeated after each wait.


def hold_to_turns(
    flows: Repeated, scene: Scene, shared: SharedPatterns, start: np.ndarray, lag: np.ndarray
) -> JobTimes:
    """Return the times of all flows if iterations wait for their turns; `start`, `lag` are [B F].

    A job's turns are its shift plus multiples of its iteration time alone.
    """
    lag, runs = lag.copy(), [_Seen() for _ in lag]
    job, iteration = flows.job[flows.end], flows.iteration[flows.end]
    more = iteration + 1 < flows.iterations[job]
    while True:
        done, waited = solve_jobs(flows, scene.capacity, start=start, lag=lag), False
        for run, seen in enumerate(runs):
            ends = np.where(more, done.finish[run, flows.end], np.inf)
            if (early := seen.first_early(ends, job, scene.alone_s, shared)) is not None:
                end, wait = early
                lag[run, flows.first & (flows.job == job[end]) & (flows.iteration == iteration[end] + 1)] += wait
                waited = True
        if not waited:
            return done


class _Seen:
    def __init__(self):
        self.ends: set[int] = set()
        self.late_s = 0.0

    def first_early(self, ends, job, period_s: np.ndarray, shared: SharedPatterns) -> tuple[int, float] | None:
        """Return the next iteration end whose job is too early for its turn, and the job's wait [s]."""
        assert shared.shift_s is not None
        for end in np.argsort(ends, kind="stable")[: np.isfinite(ends).sum()].tolist():
            if end in self.ends:
                continue
            self.ends.add(end)
            period = period_s[job[end]]
            off = (ends[end] - shared.shift_s[job[end]] - self.late_s + period / 2) % period - period / 2
            if off > shared.adjust * period:
                self.late_s += off
            elif off < -shared.adjust * period:
                return end, float(-off)
        return None
