"""Ways to share links: do nothing, weights (MLTCP), time shifts (CASSINI, or the best found).

A way is a function of the scene that returns the changed patterns and the shift of every job.
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from mfabric_jax.apps.graphs.jobs.cassini import Mltcp, Shifts, time_shifts
from mfabric_jax.apps.graphs.jobs.iterations import JobTimes, Repeated, Scene, in_pieces, repeated, solve_jobs
from mfabric_jax.checks import InputError, check_unread, names, not_negative, positive, whole
from mfabric_jax.routing.transfers import Routed

ROUNDS = 3  # of the search for the best shifts
JUDGED = 30  # iterations of the job with the longest ones that a candidate is judged by, at most
MOST_OFF = 0.5  # of an iteration: farther off one turn is nearer to the next
SAVED = 1e-9  # of the mean slowdown: what a further shift must save
READ_BY = {  # settings of some ways alone
    **{("slope", "intercept", "pieces"): ("mltcp", "best"), ("tick_s",): ("cassini", "best")},
    **{("adjust",): ("cassini",), ("steps",): ("best",)},
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class JobsStudy:
    """What is done about jobs that share links, and how often."""

    ways: tuple[str, ...] = ("fair", "cassini", "mltcp", "best")
    """fair: plain max-min sharing; cassini: time shifts from circles; mltcp: weights that grow with the part of the
    iteration sent; best: the best time shifts found, each run exactly."""
    draws: int = 0
    """Runs in which every job starts at random within its first iteration; 0: one run, arrivals as in the file."""
    jitter: float = 0.0
    """Standard deviation of an iteration's computation, as a part of it (drawn anew for every iteration)."""
    skip: int = 0
    """First iterations of every job that the statistics leave out."""
    placements: int = 0
    """On a fabric: so many further placements of the jobs are drawn, and that with CASSINI's best score is taken."""
    seed: int = 0
    """Of what is drawn."""
    slope: float = 1.75
    """Of MLTCP's function."""
    intercept: float = 0.25
    """Of MLTCP's function."""
    pieces: int = 16
    """Of every flow, each with a weight of its own (mltcp)."""
    tick_s: float = 0.001
    """How finely CASSINI cuts time, at most."""
    adjust: float = 0.0
    """cassini: a job that begins an iteration so much of it early waits for its turn; turns of all jobs move with one
    that is so much late (the paper's agents: 5 %, 0.05); 0: never."""
    steps: int = 24
    """Shifts of every job that the search for the best ones tries."""

    def __post_init__(self):
        names("ways", self.ways, WAYS)
        for field in ("draws", "skip", "placements", "seed"):
            whole(field, getattr(self, field), at_least=0)
        not_negative("jitter", self.jitter)
        positive("tick_s", self.tick_s)
        whole("steps", self.steps, at_least=2)
        if not 0 <= self.adjust < MOST_OFF:
            raise InputError(f"adjust must be from 0 to below {MOST_OFF}, a part of an iteration, got {self.adjust}.")
        self.mltcp()
        for fields, ways in READ_BY.items():
            if not {*ways} & {*self.ways} and not ("tick_s" in fields and self.placements):
                check_unread(self, fields, f"way {' or '.join(ways)}")

    def mltcp(self) -> Mltcp:
        """Its function, checked."""
        return Mltcp(self.slope, self.intercept, self.pieces)


class Handled(NamedTuple):
    """Patterns and shifts of a way. `shift_s` [J]: start within the iteration time; None: on arrival. `score`:
    CASSINI's, else None. `adjust` 0: no job waits for its turn again.
    """

    patterns: tuple[Routed, ...]
    shift_s: np.ndarray | None = None
    score: float | None = None
    adjust: float = 0.0


def _fair(scene: Scene, study: JobsStudy) -> Handled:
    return Handled(scene.patterns)


def _mltcp(scene: Scene, study: JobsStudy) -> Handled:
    return Handled(tuple(in_pieces(pattern, study.mltcp()) for pattern in scene.patterns))


def _shifts(scene: Scene, study: JobsStudy) -> Shifts:
    return time_shifts(scene.alone_s.tolist(), scene.circles(), study.tick_s)


def _cassini(scene: Scene, study: JobsStudy) -> Handled:
    shifts = _shifts(scene, study)
    return Handled(scene.patterns, shifts.shift_s, shifts.score, study.adjust)


def _best(scene: Scene, study: JobsStudy) -> Handled:
    """The best shifts under fair sharing: from none, CASSINI's or MLTCP's last, each job in turn tries all steps."""
    jobs = len(scene.names)
    count = np.minimum(scene.iterations, np.ceil(JUDGED * scene.alone_s.max() / scene.alone_s)).astype(int)
    flows = repeated(scene.patterns, count.tolist(), scene.arrival_s)
    tried = np.arange(study.steps) / study.steps

    def judge(shifts: np.ndarray) -> np.ndarray:
        at_s = shifted(scene, shifts, np.array([scene.arrival_s]))
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
    return Handled(scene.patterns, shift)


def _where_mltcp_ends(scene: Scene, study: JobsStudy) -> np.ndarray:
    flows = repeated(_mltcp(scene, study).patterns, scene.iterations, scene.arrival_s)
    ends = flows.of_jobs(solve_jobs(flows, scene.capacity).finish[flows.end])
    until = min(float(own[-1]) for own in ends)
    last = (own[max(0, np.searchsorted(own, until, side="right") - 1)] for own in ends)  # of a late job its first
    return np.mod(list(last), scene.alone_s)


WAYS: dict[str, Callable[[Scene, JobsStudy], Handled]] = {
    "fair": _fair,
    "cassini": _cassini,
    "mltcp": _mltcp,
    "best": _best,
}


def shifted(scene: Scene, shift_s: np.ndarray, arrival_s: np.ndarray) -> np.ndarray:
    """[B J] starts of jobs: the first turn after arrival; turns begin at `shift_s`, one iteration apart."""
    return arrival_s + np.mod(shift_s - arrival_s, scene.alone_s)


def job_starts(flows: Repeated, at_s: np.ndarray) -> np.ndarray:
    """[B F] starts of flows whose jobs start at `at_s` [B J]."""
    begins = flows.first & (flows.iteration == 0)
    return np.where(begins, at_s[:, flows.job], 0.0)


def iteration_times(flows: Repeated, finish: np.ndarray, at_s: np.ndarray) -> list[np.ndarray]:
    """Seconds of every iteration of each job [B N]; jobs start at `at_s` [B J], flows end at `finish` [B F]."""
    ends = flows.of_jobs(finish[:, flows.end])
    return [np.diff(end, axis=1, prepend=at_s[:, [job]]) for job, end in enumerate(ends)]


# Shifted jobs drift apart; turns are kept by waiting, as CASSINI's agents adjust shifts. If one job is late, the turns
# of all jobs move with it; a job that is early waits. A run is repeated with every further wait, which only changes
# what comes later.


def held_to_turns(flows: Repeated, scene: Scene, handled: Handled, start: np.ndarray, lag: np.ndarray) -> JobTimes:
    """Times of all flows when iterations wait for their turns; `start`, `lag` [B F]. A job's turns are its shift plus
    multiples of its iteration alone.
    """
    lag, runs = lag.copy(), [_Seen() for _ in lag]
    job, turn = flows.job[flows.end], flows.iteration[flows.end]
    more = turn + 1 < flows.iterations[job]
    while True:
        done, waited = solve_jobs(flows, scene.capacity, start=start, lag=lag), False
        for run, seen in enumerate(runs):
            ends = np.where(more, done.finish[run, flows.end], np.inf)
            if (early := seen.first_early(ends, job, scene.alone_s, handled)) is not None:
                end, wait = early
                lag[run, flows.first & (flows.job == job[end]) & (flows.iteration == turn[end] + 1)] += wait
                waited = True
        if not waited:
            return done


class _Seen:
    def __init__(self):
        self.ends: set[int] = set()
        self.late_s = 0.0

    def first_early(self, ends, job, period_s: np.ndarray, handled: Handled) -> tuple[int, float] | None:
        """The next iteration end whose job is too early for its turn, and its wait [s]."""
        assert handled.shift_s is not None
        for end in np.argsort(ends, kind="stable")[: np.isfinite(ends).sum()].tolist():
            if end in self.ends:
                continue
            self.ends.add(end)
            period = period_s[job[end]]
            off = (ends[end] - handled.shift_s[job[end]] - self.late_s + period / 2) % period - period / 2
            if off > handled.adjust * period:
                self.late_s += off
            elif off < -handled.adjust * period:
                return end, float(-off)
        return None
