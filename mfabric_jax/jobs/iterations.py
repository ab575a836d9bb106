"""Iterations of several jobs as one graph of flows: a pattern for each job, repeated, its iterations in a chain.

Letters: J jobs, F flows of all of them, H hop slots, L links, D dependencies. A computation is a flow without bytes
behind a lag; the end of every iteration is one without lag.
"""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mfabric_jax.checks import InputError
from mfabric_jax.flows import FlowProblem, completion_times
from mfabric_jax.jobs.cassini import Circle, Mltcp
from mfabric_jax.platforms import platform
from mfabric_jax.routing.routes import stacked
from mfabric_jax.routing.shortest import Routes


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


# The graph of several jobs, run exactly by the engine, one variant or many.

DATA = ("start", "lag", "size", "weight")
FEW = 20_000  # flows, of which a run takes less than compiling a program for all of them


class JobTimes(NamedTuple):
    """- `begin`, `finish` [F] s of every flow; with variants [B F]."""

    begin: np.ndarray
    finish: np.ndarray


def solve_jobs(flows: SharedFlows, capacity: np.ndarray, **variants: np.ndarray) -> JobTimes:
    """When every flow begins and ends.

    - `capacity` [L] bytes/s.   - `variants`: `start`, `lag`, `size`, `weight` in the place of those of `flows`, [F], or
      some of them [B F]: so many runs of one graph at once.
    """
    given = {name: np.asarray(variants.get(name, getattr(flows, name)), float) for name in DATA}
    share = np.where(flows.routes.hops < 0, 1, flows.routes.share)

    hops, links, share = jnp.asarray(flows.routes.hops), jnp.asarray(capacity, float), jnp.asarray(share, float)

    def run(start, lag, size, weight):
        problem = FlowProblem(links, hops, share, weight)
        done = completion_times(problem, size, start, after=flows.after, lag=lag)
        return done.begin, done.finish

    known = len(flows.size) <= FEW and platform() == "cpu"
    return JobTimes(*(np.asarray(x, np.float64) for x in (_one_by_one if known else _at_once)(run, given)))


def _one_by_one(run, given: dict[str, np.ndarray]) -> Sequence[np.ndarray]:
    """Each run by itself: on known arrays nothing is traced or compiled."""
    runs = {len(one) for one in given.values() if one.ndim == 2}
    if not runs:
        return run(*given.values())
    found = [run(*(one[number] if one.ndim == 2 else one for one in given.values())) for number in range(max(runs))]
    return [np.stack(part) for part in zip(*found, strict=True)]


def _at_once(run, given: dict[str, np.ndarray]) -> Sequence[np.ndarray]:
    """All runs in one program."""
    batched = tuple(0 if one.ndim == 2 else None for one in given.values())
    return (jax.vmap(run, in_axes=batched) if 0 in batched else run)(*(jnp.asarray(one) for one in given.values()))


# Jobs and the links they share, ready to be run: patterns, capacities, and every job alone.

ALONE = 2  # iterations that a job runs by itself: the first is as the second, but a link may be shared with itself


class Scene(NamedTuple):
    """J jobs on L links.

    - `names` [J], `patterns` [J], `iterations` [J], `arrival_s` [J].   - `links` [L] names, `capacity` [L] bytes/s.
    - `alone_s` [J]: an iteration of each job by itself.   - `busy`: for each job, by link, its arcs there when alone:
      (begin, end, bytes/s) from the start of an iteration.
    """

    names: tuple[str, ...]
    patterns: tuple[IterationPattern, ...]
    iterations: tuple[int, ...]
    arrival_s: tuple[float, ...]
    links: tuple[str, ...]
    capacity: np.ndarray
    alone_s: np.ndarray
    busy: tuple[dict[int, tuple[tuple[float, float, float], ...]], ...]

    def circles(self) -> dict[str, tuple[float, dict[int, Circle]]]:
        """By name, the capacity of every link that jobs use and the circle of each of them there."""
        found: dict[str, tuple[float, dict[int, Circle]]] = {}
        for job, busy in enumerate(self.busy):
            for link, arcs in busy.items():
                own = found.setdefault(self.links[link], (float(self.capacity[link]), {}))[1]
                own[job] = Circle(float(self.alone_s[job]), *zip(*arcs, strict=True))
        return found

    def load(self) -> np.ndarray:
        """[J L] seconds of the whole link that an iteration of each job needs."""
        found = np.zeros((len(self.names), len(self.links)))
        for job, busy in enumerate(self.busy):
            for link, arcs in busy.items():
                found[job, link] = sum((end - begin) * rate for begin, end, rate in arcs) / self.capacity[link]
        return found


def scene_of(
    names: Sequence[str],
    patterns: Sequence[IterationPattern],
    iterations: Sequence[int],
    arrival_s: Sequence[float],
    links: Sequence[str],
    capacity: np.ndarray,
) -> Scene:
    """The scene, with every job run by itself."""
    jobs, count = len(names), len(links)
    apart = [_moved(pattern, job * count) for job, pattern in enumerate(patterns)]
    flows = repeated(apart, [ALONE] * jobs, [0.0] * jobs)
    done = solve_jobs(flows, np.tile(capacity, jobs))
    ends = done.finish[flows.end].reshape(jobs, ALONE)
    busy = []
    for job in range(jobs):
        own = np.flatnonzero((flows.job == job) & (flows.iteration == 0) & (flows.size > 0))
        busy.append(_arcs(flows.routes, own, flows.size, done.begin, done.finish, job * count))
    facts = tuple(names), tuple(patterns), tuple(iterations), tuple(arrival_s), tuple(links)
    return Scene(*facts, np.asarray(capacity, float), np.diff(ends, axis=1)[:, 0], tuple(busy))


def _moved(pattern: IterationPattern, by: int) -> IterationPattern:
    hops, share = pattern.routes
    return pattern._replace(routes=Routes(np.where(hops >= 0, hops + by, -1), share))


def _arcs(routes: Routes, flows, size, begin, finish, first_link: int) -> dict:
    """(begin, end, bytes/s) of every flow that takes time, by link; equal intervals as one."""
    found: dict[int, dict[tuple[float, float], float]] = {}
    for flow in flows[finish[flows] > begin[flows]]:
        span = float(begin[flow]), float(finish[flow])
        for link, share in zip(routes.hops[flow], routes.share[flow], strict=True):
            if link >= 0:
                own = found.setdefault(int(link) - first_link, {})
                own[span] = own.get(span, 0.0) + share * size[flow] / (span[1] - span[0])
    return {link: tuple((*span, rate) for span, rate in sorted(own.items())) for link, own in sorted(found.items())}
