"""Iterations of several jobs as one graph of flows: a pattern for each job, repeated, its iterations in a chain.

Letters: J jobs, F flows of all of them, H hop slots, L links, D dependencies. A computation is a flow without bytes
behind a lag; the end of every iteration is one without lag.
"""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mfabric_jax.checks import InputError
from mfabric_jax.routing.routes import Routes, stacked
from mfabric_jax.schedule.mltcp import Mltcp


class IterationPattern(NamedTuple):
    """One iteration of a job, as flows that wait for each other.

    - `routes` of all.   - `size` [F] bytes, 0 of a computation.   - `lag` [F] s: a computation's seconds.
    - `after` [D 2]: flow `after[d, 1]` waits for `after[d, 0]`.   - `weight` [F] in max-min sharing.
    - `before`, `total` [F] bytes: what the flow's connection has sent when it starts, and sends in the iteration.
    """

    routes: Routes
    size: np.ndarray
    lag: np.ndarray
    after: np.ndarray
    weight: np.ndarray
    before: np.ndarray
    total: np.ndarray


def pattern_of(phases: Sequence[tuple[float, Routes, np.ndarray]]) -> IterationPattern:
    """Phases one after the other: seconds of computation, then flows (routes, size [n] bytes) all at once.

    Flows of different phases over the same links are one connection.
    """
    parts, size, lag, after, ends, sent = [], [], [], [], [], {}
    keys, before = [], []
    for seconds, routes, sizes in phases:
        compute = len(size)
        after += [(end, compute) for end in ends]
        flows = list(range(compute + 1, compute + 1 + len(sizes)))
        after += [(compute, flow) for flow in flows]
        parts.append((np.array(flows, np.int64), routes))
        own = [None, *_connections(routes)]
        before += [sent.get(key, 0.0) for key in own]
        size += [0.0, *sizes]
        sent |= {key: sent.get(key, 0.0) + sent_now for key, sent_now in zip(own, [0.0, *sizes], strict=True)}
        keys += own
        lag += [seconds] + [0.0] * len(flows)
        ends = flows or [compute]
    total, pairs = np.array([sent[key] for key in keys]), np.array(after, np.int64).reshape(-1, 2)
    routes, sizes = stacked(parts, len(size)), np.array(size, float)
    return IterationPattern(routes, sizes, np.array(lag, float), pairs, np.ones(len(size)), np.array(before), total)


def _connections(routes: Routes) -> list[tuple[bytes, int]]:
    """A name for each flow of a phase: its links, and how many before it cross the same ones."""
    counts: dict[bytes, int] = {}
    found = []
    for row in routes.hops:
        key = row[row >= 0].tobytes()
        found.append((key, counts.get(key, 0)))
        counts[key] = counts.get(key, 0) + 1
    return found


def in_pieces(pattern: IterationPattern, rule: Mltcp) -> IterationPattern:
    """Every flow with bytes as a chain of pieces, with the weights of the rule."""
    sending = pattern.size > 0
    count = np.where(sending, rule.pieces, 1)
    old = np.repeat(np.arange(len(count)), count)
    last = np.cumsum(count) - 1
    first = last - count + 1
    place = np.arange(len(old)) - first[old]
    weight = rule.piece_weights(pattern.before, pattern.size, pattern.total)[old, np.minimum(place, rule.pieces - 1)]
    chain = np.flatnonzero(place > 0)
    after = [np.stack([last[pattern.after[:, 0]], first[pattern.after[:, 1]]], 1), np.stack([chain - 1, chain], 1)]
    size = pattern.size[old] / count[old]
    return IterationPattern(
        Routes(pattern.routes.hops[old], pattern.routes.share[old]),
        size,
        np.where(place > 0, 0, pattern.lag[old]),
        np.concatenate(after),
        np.where(sending[old], pattern.weight[old] * weight, 1),
        pattern.before[old] + place * size,
        pattern.total[old],
    )


class SharedFlows(NamedTuple):
    """All iterations of all jobs.

    - `routes`, `size`, `lag`, `weight` [F], `after` [D 2] as in `IterationPattern`; `start` [F] s: arrivals.
    - `job`, `iteration` [F]: whose.   - `first` [F] mask: what an iteration begins with, where a delay goes.
    - `end` [N]: the flows with which iterations end, all of the first job, then of the next; `iterations` [J].
    """

    routes: Routes
    size: np.ndarray
    lag: np.ndarray
    weight: np.ndarray
    start: np.ndarray
    after: np.ndarray
    job: np.ndarray
    iteration: np.ndarray
    first: np.ndarray
    end: np.ndarray
    iterations: np.ndarray

    def of_jobs(self, value: np.ndarray) -> list[np.ndarray]:
        """What `end` [N] orders, as one array for each job."""
        return np.split(value, np.cumsum(self.iterations)[:-1])


def repeated(
    patterns: Sequence[IterationPattern], iterations: Sequence[int], arrival_s: Sequence[float]
) -> SharedFlows:
    """Every job's pattern so many times, one iteration after the other, from its arrival on."""
    if not len(patterns) == len(iterations) == len(arrival_s):
        raise InputError("patterns, iterations and arrival_s must be of one length, that of the jobs.")
    parts, base = [], 0
    for job, (pattern, times, arrival) in enumerate(zip(patterns, iterations, arrival_s, strict=True)):
        one = _with_end(pattern)
        parts.append(_chain(one, job, times, arrival, base))
        base += times * len(one.size)
    joined = [np.concatenate(column) for column in zip(*(part[1:] for part in parts), strict=True)]
    counts = np.cumsum([0, *(len(part[1]) for part in parts)])
    rows = [(np.arange(*ends), part[0]) for ends, part in zip(itertools.pairwise(counts), parts, strict=True)]
    return SharedFlows._make((stacked(rows, base), *joined, np.asarray(iterations, np.int64)))


def _with_end(pattern: IterationPattern) -> IterationPattern:
    """The pattern, and a flow without bytes behind everything that nothing waits for."""
    last = np.setdiff1d(np.arange(len(pattern.size)), pattern.after[:, 0])
    end = len(pattern.size)
    more = np.stack([last, np.full_like(last, end)], axis=1)
    hops, share = (
        np.concatenate([x, np.full((1, x.shape[1]), fill)]) for x, fill in zip(pattern.routes, (-1, 0), strict=True)
    )
    vectors = (np.append(x, fill) for x, fill in zip(pattern[4:], (1, 0, 0), strict=True))
    size, lag = np.append(pattern.size, 0.0), np.append(pattern.lag, 0.0)
    return IterationPattern(Routes(hops, share), size, lag, np.concatenate([pattern.after, more]), *vectors)


def _chain(one: IterationPattern, job: int, times: int, arrival_s: float, base: int) -> tuple:
    """The columns of `SharedFlows` of one job whose flows are numbered from `base`."""
    count = len(one.size)
    roots = np.setdiff1d(np.arange(count), one.after[:, 1])
    turn = base + np.arange(times)[:, None] * count  # [N 1]
    within = (one.after[None] + turn[:, :, None]).reshape(-1, 2)
    links = np.stack(np.broadcast_arrays(turn[:-1] + count - 1, turn[1:] + roots), -1).reshape(-1, 2)
    first = np.zeros(count, bool)
    first[roots] = True
    start = np.zeros((times, count))
    start[:1, roots] = arrival_s
    routes = Routes(*(np.tile(x, (times, 1)) for x in one.routes))
    columns = (np.tile(x, times) for x in (one.size, one.lag, one.weight))
    whose = np.full(times * count, job), np.repeat(np.arange(times), count), np.tile(first, times)
    return routes, *columns, start.ravel(), np.concatenate([within, links]), *whose, turn[:, 0] + count - 1
