"""CASSINI's time shifts, which interleave the communication of jobs on shared links, and MLTCP's weights.

Source: arXiv 2308.00852, NSDI 2024. A job's demand on a link lies on a circle whose perimeter is the iteration time.
The jobs of a link share a unified circle, whose perimeter is the least common multiple of theirs. Rotating a job's
circle shifts the job in time. The score is 1 - (mean excess of demand over capacity) / capacity. A breadth-first walk
over the bipartite affinity graph of jobs and links gives every job one shift. The candidate placement with the best
mean score wins. Only the abstract was available: the formulas are from memory and agree with public notes on the paper.

Deviations: circles are divided into equal ticks of time, not into sectors of 5 degrees. Rotations come from coordinate
search, which is exhaustive for two jobs on a link. If the affinity graph has a loop, the paper drops the placement;
here the links with the lowest score before shifting decide, and the other links of the loop are ignored.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from mfabric_jax.checks import InputError, not_negative, positive, whole

MOST_TICKS = 1 << 14  # of a unified circle
AT_ONCE = 1 << 20  # most rotations x ticks that are compared at once
ORDERS = 24  # orders in which the search rotates more than two jobs
GAIN = 1e-9  # a further rotation must reduce the excess by this much


@dataclass(frozen=True)
class Circle:
    """Demand of one job on one link when the job runs alone, with iterations of `period_s`.

    The job sends at `rate` [A] bytes/s from `begin_s` to `end_s` [A], counted from the start of the iteration; an arc
    may extend beyond the iteration's end.
    """

    period_s: float
    begin_s: tuple[float, ...]
    end_s: tuple[float, ...]
    rate: tuple[float, ...]

    def __post_init__(self):
        positive("period_s", self.period_s)
        if not len(self.begin_s) == len(self.end_s) == len(self.rate):
            raise InputError("begin_s, end_s and rate of a circle must have the same length.")

    def mean_rates(self, ticks: int) -> np.ndarray:
        """Return the mean rate [ticks] in each of `ticks` equal parts of the perimeter."""
        tick = self.period_s / ticks
        edge = np.arange(ticks + 1) * tick
        sent = np.zeros(ticks)
        for begin, end, rate in zip(self.begin_s, self.end_s, self.rate, strict=True):
            for number in range(math.floor(begin / self.period_s), math.floor(end / self.period_s) + 1):
                inside = np.clip(edge, begin - number * self.period_s, end - number * self.period_s)
                sent += rate * np.diff(inside)
        return sent / tick


class Rotations(NamedTuple):
    """How well jobs interleave on a link.

    - `score`: 1 if demand never exceeds capacity; it may be negative. `before`: the score without shifts.
    - `shift_s`: each job's shift, less than its iteration time; 0 for the first job.
    """

    score: float
    before: float
    shift_s: tuple[float, ...]


def common_ticks(periods_s: Sequence[float], tick_s: float) -> list[int]:
    """Return the ticks of each iteration, 1 or more. Their least common multiple, the unified circle, has at most
    16,384 ticks.
    """
    positive("tick_s", tick_s)
    while math.lcm(*(ticks := [max(1, round(period / tick_s)) for period in periods_s])) > MOST_TICKS:
        tick_s *= 2
    return ticks


class _Link(NamedTuple):
    demand: list[np.ndarray]
    periods: list[int]

    def excess(self, rotations: Sequence[int]) -> float:
        """Return the mean excess of demand, as a fraction of capacity, if each job is rotated by `rotations` ticks."""
        return _above(sum(np.roll(own, rotation) for own, rotation in zip(self.demand, rotations, strict=True)))


def _above(demand) -> float:
    return float(np.maximum(demand - 1, 0).mean())


def _link(circles: Sequence[Circle], capacity: float, tick_s: float) -> _Link:
    positive("capacity", capacity)
    periods = common_ticks([circle.period_s for circle in circles], tick_s)
    around = math.lcm(*periods)
    cut = zip(circles, periods, strict=True)
    return _Link(
        [np.tile(job_circle.mean_rates(ticks) / capacity, around // ticks) for job_circle, ticks in cut], periods
    )


def rotations(circles: Sequence[Circle], capacity: float, tick_s: float = 0.001) -> Rotations:
    """Return the best rotations of the jobs of one link, and their score. Ties go to the smallest rotations.

    `capacity` is in bytes/s. `tick_s` is the resolution, to which iteration times are rounded.
    """
    link = _link(circles, capacity, tick_s)
    before, rotations = link.excess([0] * len(circles)), _best_rotations(link)
    excess = link.excess(rotations)
    if excess >= before - GAIN:
        excess, rotations = before, [0] * len(circles)
    cut = zip(circles, link.periods, rotations, strict=True)
    return Rotations(
        1 - excess, 1 - before, tuple(rotation * (circle.period_s / ticks) for circle, ticks, rotation in cut)
    )


def score_of(circles: Sequence[Circle], capacity: float, shift_s: Sequence[float], tick_s: float = 0.001) -> float:
    """Return the score of a link with shifts rounded to ticks: 1 if demand never exceeds capacity."""
    link = _link(circles, capacity, tick_s)
    cut = zip(circles, link.periods, shift_s, strict=True)
    return 1 - link.excess([round(shift / circle.period_s * ticks) for circle, ticks, shift in cut])


def _best_rotations(link: _Link) -> list[int]:
    """Return the ticks by which to rotate each job, found by coordinate search until nothing improves."""
    jobs = range(len(link.demand))
    best, least = [0] * len(jobs), np.inf
    for order in itertools.islice(itertools.permutations(jobs), 1 if len(jobs) < 3 else ORDERS):
        rotations, excess = _rotations_in_order(link, order)
        if excess < least - GAIN:
            best, least = rotations, excess
        if least < GAIN:
            break
    return [(rotation - best[0]) % period for rotation, period in zip(best, link.periods, strict=True)]


def _rotations_in_order(link: _Link, order: Sequence[int]) -> tuple[list[int], float]:
    rotations, placed = [0] * len(order), link.demand[order[0]]
    for job in order[1:]:
        rotations[job] = _least_excess_rotation(placed, link.demand[job], link.periods[job])
        placed = placed + np.roll(link.demand[job], rotations[job])
    excess, last = _above(placed), np.inf
    while excess < last - GAIN:
        last = excess
        for job in order[1:]:
            others = placed - np.roll(link.demand[job], rotations[job])
            rotations[job] = _least_excess_rotation(others, link.demand[job], link.periods[job])
            placed = others + np.roll(link.demand[job], rotations[job])
        excess = _above(placed)
    return rotations, excess


def _least_excess_rotation(others: np.ndarray, own: np.ndarray, period: int) -> int:
    """Return the rotation of a job that gives the least excess with the other jobs; ties go to the smallest."""
    excess, every, some = np.empty(period), np.arange(period), max(1, AT_ONCE // period)
    # Both demands repeat, so one iteration of the job is compared with every stretch of that length of the other jobs.
    room, own = others.reshape(-1, period) - 1, own[:period]
    for first in range(0, period, some):
        rotated = own[(every - every[first : first + some, None]) % period]
        above = sum(np.maximum(rotated + row, 0).sum(axis=1) for row in room)
        excess[first : first + some] = above / len(others)
    return int(np.flatnonzero(excess <= excess.min() + GAIN)[0])


class Shifts(NamedTuple):
    """Time shifts of jobs.

    - `shift_s` [J]: from 0 to less than the job's iteration time.
    - `score`: mean score of the shared links with these shifts; 1 if jobs share no link.
    - `links`: `Rotations` of each shared link by itself. `passed_over`: links ignored because they close a loop.
    """

    shift_s: np.ndarray
    score: float
    links: dict[str, Rotations]
    passed_over: tuple[str, ...]


def time_shifts(
    jobs: Sequence[float], links: Mapping[str, tuple[float, Mapping[int, Circle]]], tick_s: float = 0.001
) -> Shifts:
    """Return one time shift for every job, by a breadth-first walk over the affinity graph of jobs and shared links.

    - `jobs` [J]: iteration times [s].
    - `links`: for each name, the link's capacity [bytes/s] and its circles by the job's number in `jobs`.

    Of several links that the same jobs cross, only the one with the lowest score before shifting counts. A walk from
    job j over link l to job k gives t_k = (t_j - w_jl + w_lk) mod period_k, where w is the shift of a job on the link.
    """
    shared = {name: (capacity, dict(sorted(of.items()))) for name, (capacity, of) in links.items() if len(of) > 1}
    known: dict[tuple, Rotations] = {}
    fits = {}
    for name, (capacity, of) in shared.items():
        like = capacity, *of.items()
        known[like] = fits[name] = known.get(like) or rotations(list(of.values()), capacity, tick_s)
    group, kept, passed = list(range(len(jobs))), {}, []
    alike: set[frozenset[int]] = set()
    for name in sorted(fits, key=lambda label: fits[label].before):
        members = list(shared[name][1])
        if frozenset(members) in alike:
            continue
        alike.add(frozenset(members))
        if len({group[job] for job in members}) < len(members):
            passed.append(name)
            continue
        joined = {group[job] for job in members}
        group = [group[members[0]] if label in joined else label for label in group]
        kept[name] = dict(zip(members, fits[name].shift_s, strict=True))
    shift = _walk(jobs, kept)
    scores = [
        score_of(list(of.values()), capacity, shift[list(of)].tolist(), tick_s) for capacity, of in shared.values()
    ]
    return Shifts(shift, float(np.mean(scores)) if scores else 1.0, fits, tuple(passed))


def _walk(jobs: Sequence[float], links: Mapping[str, Mapping[int, float]]) -> np.ndarray:
    shift = np.full(len(jobs), np.nan)
    for first in range(len(jobs)):
        if not np.isnan(shift[first]):
            continue
        shift[first], queue = 0.0, [first]
        for job in queue:  # grows as it goes
            for weights in (weights for weights in links.values() if job in weights):
                for other in (other for other in weights if np.isnan(shift[other])):
                    shift[other] = (shift[job] - weights[job] + weights[other]) % jobs[other]
                    queue.append(other)
    return shift


# -- MLTCP
@dataclass(frozen=True)
class Mltcp:
    """MLTCP's weight function, F(part) = slope * part + intercept, for `pieces` equal pieces of every flow."""

    slope: float = 1.75
    intercept: float = 0.25
    pieces: int = 16

    def __post_init__(self):
        not_negative("slope", self.slope)
        positive("intercept", self.intercept)
        whole("pieces", self.pieces)

    def weight(self, part: ArrayLike) -> np.ndarray:
        """Return the weight of a flow that has sent this part of its iteration's bytes, in the shape of `part`."""
        return self.slope * np.asarray(part, float) + self.intercept

    def piece_weights(self, before: ArrayLike, size: ArrayLike, total: ArrayLike) -> np.ndarray:
        """Return the weights [F K] of the K pieces of each flow.

        - `before` [F]: bytes that the connection has sent in the iteration when the flow starts.
        - `size` [F]: bytes of the flow. `total` [F]: bytes of the connection in the iteration.
        """
        before, size, total = (np.asarray(x, float)[:, None] for x in (before, size, total))
        sent = before + size * ((np.arange(self.pieces) + 0.5) / self.pieces)
        return self.weight(sent / np.where(total > 0, total, 1))
