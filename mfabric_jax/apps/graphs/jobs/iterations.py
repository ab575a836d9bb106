"""Iterations of several jobs as one graph of flows: each job repeats its pattern, one iteration after another.

Array sizes: J jobs, F flows of all jobs, L links, N iterations, B runs. A computation is a flow with a lag and no
bytes. An iteration ends with a flow that has neither bytes nor lag. In a pattern, `task` of a flow is its connection.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from mfabric_jax.apps.graphs.jobs.cassini import Circle, Mltcp
from mfabric_jax.flows import completion_times
from mfabric_jax.flows.dependencies import run_order
from mfabric_jax.flows.flows import flows_of
from mfabric_jax.routing.shortest import Routes, stack_routes
from mfabric_jax.routing.transfers import Routed
from mfabric_jax.support.platforms import cores

COMPUTES = -1  # end and connection of a computation


def pattern_of(phases: Sequence[tuple[float, Routes, np.ndarray]]) -> Routed:
    """Return the pattern of phases (seconds of computation, paths and bytes [n] of the flows that follow it).

    Flows of different phases that cross the same links belong to one connection.
    """
    parts, after, ends = [], [], []
    size, lag, connection = [], [], []
    known: dict[tuple[bytes, int], int] = {}
    for seconds, routes, sizes in phases:
        compute = len(size)
        after += [(end, compute) for end in ends]
        flows = list(range(compute + 1, compute + 1 + len(sizes)))
        after += [(compute, flow) for flow in flows]
        parts.append((np.array(flows, np.int64), routes))
        connection += [COMPUTES, *(known.setdefault(key, len(known)) for key in _links_crossed(routes))]
        size += [0.0, *sizes]
        lag += [seconds] + [0.0] * len(flows)
        ends = flows or [compute]
    end, size = np.array(connection, np.int64), np.array(size, float)
    flows = flows_of(end, end, size, lag=np.array(lag, float), task=end, after=np.array(after, np.int64))
    return Routed(flows, stack_routes(parts, len(size)))


def _links_crossed(routes: Routes) -> list[tuple[bytes, int]]:
    counts: dict[bytes, int] = {}
    keys = []
    for row in routes.hops:
        links = row[row >= 0].tobytes()
        keys.append((links, counts.get(links, 0)))
        counts[links] = counts.get(links, 0) + 1
    return keys


def bytes_before(pattern: Routed) -> tuple[np.ndarray, np.ndarray]:
    """Return the bytes [F] that each flow's connection has sent before the flow, and its bytes [F] in an iteration."""
    flows = pattern.flows
    before, total = np.zeros(flows.flows), np.zeros(flows.task.max(initial=0) + 1)
    for flow in run_order(flows.after, flows.flows).tolist():
        before[flow] = total[flows.task[flow]]
        total[flows.task[flow]] += flows.size[flow]
    return before, total[flows.task]


def in_pieces(pattern: Routed, rule: Mltcp) -> Routed:
    """Split every flow with bytes into a chain of pieces, and weight them by the rule."""
    flows, (before, total) = pattern.flows, bytes_before(pattern)
    count = np.where(flows.size > 0, rule.pieces, 1)
    old = np.repeat(np.arange(len(count)), count)
    last = np.cumsum(count) - 1
    first = last - count + 1
    piece = np.arange(len(old)) - first[old]
    weight = rule.piece_weights(before, flows.size, total)[old, np.minimum(piece, rule.pieces - 1)]
    chain = np.flatnonzero(piece > 0)
    after = [np.stack([last[flows.after[:, 0]], first[flows.after[:, 1]]], 1), np.stack([chain - 1, chain], 1)]
    pieces = flows_of(
        flows.src[old],
        flows.dst[old],
        flows.size[old] / count[old],
        lag=np.where(piece > 0, 0, flows.lag[old]),
        weight=np.where(flows.size[old] > 0, flows.weight[old] * weight, 1),
        task=flows.task[old],
        after=np.concatenate(after),
    )
    return Routed(pieces, Routes(pattern.routes.hops[old], pattern.routes.share[old]))


class Repeated(NamedTuple):
    """All iterations of all jobs; `task` of a flow is its job.

    - `iteration` [F]: the iteration of each flow.
    - `first` [F]: mask of the flows that begin an iteration; a delay of the iteration is added to their lag.
    - `end` [N]: the last flow of each iteration, job by job. `iterations` [J]: iterations of each job.
    """

    routed: Routed
    iteration: np.ndarray
    first: np.ndarray
    end: np.ndarray
    iterations: np.ndarray

    @property
    def job(self) -> np.ndarray:
        return self.routed.flows.task

    def of_jobs(self, value: np.ndarray) -> list[np.ndarray]:
        """Split values [.. N], in the order of `end`, into one array for each job."""
        return np.split(value, np.cumsum(self.iterations)[:-1], axis=-1)


def repeat_patterns(patterns: Sequence[Routed], iterations: Sequence[int], arrival_s: Sequence[float]) -> Repeated:
    """Repeat each job's pattern from its arrival on, one iteration after another."""
    columns: dict[str, list[np.ndarray]] = {}
    after, rows, ends, base = [], [], [], 0
    for job, (pattern, times, arrival) in enumerate(zip(patterns, iterations, arrival_s, strict=True)):
        flows, routes = _with_end(pattern)
        count, roots = flows.flows, np.setdiff1d(np.arange(flows.flows), flows.after[:, 1])
        offset = base + np.arange(times)[:, None] * count  # [N 1]
        after.append((flows.after[None] + offset[:, :, None]).reshape(-1, 2))
        after.append(np.stack(np.broadcast_arrays(offset[:-1] + count - 1, offset[1:] + roots), -1).reshape(-1, 2))
        first, start = np.zeros(count, bool), np.zeros((times, count))
        first[roots], start[:1, roots] = True, arrival
        own = {name: np.tile(getattr(flows, name), times) for name in ("src", "dst", "size", "lag", "weight")}
        own |= {"start": start.ravel(), "task": np.full(times * count, job), "first": np.tile(first, times)}
        for name, column in (own | {"iteration": np.repeat(np.arange(times), count)}).items():
            columns.setdefault(name, []).append(column)
        rows.append((np.arange(base, base + times * count), Routes(*(np.tile(x, (times, 1)) for x in routes))))
        ends.append(offset[:, 0] + count - 1)
        base += times * count
    joined = {name: np.concatenate(parts) for name, parts in columns.items()}
    first, iteration = joined.pop("first"), joined.pop("iteration")
    routed = Routed(flows_of(**joined, after=np.concatenate(after)), stack_routes(rows, base))
    return Repeated(routed, iteration, first, np.concatenate(ends), np.asarray(iterations, np.int64))


def _with_end(pattern: Routed) -> Routed:
    flows = pattern.flows
    last = np.setdiff1d(np.arange(flows.flows), flows.after[:, 0])
    after = np.concatenate([flows.after, np.stack([last, np.full_like(last, flows.flows)], axis=1)])
    more = {"src": COMPUTES, "dst": COMPUTES, "size": 0.0, "lag": 0.0, "weight": 1.0}
    columns = {name: np.append(getattr(flows, name), value) for name, value in more.items()}
    hops, share = (
        np.concatenate([x, np.full((1, x.shape[1]), fill)]) for x, fill in zip(pattern.routes, (-1, 0), strict=True)
    )
    return Routed(flows_of(**columns, after=after), Routes(hops, share))


class JobTimes(NamedTuple):
    """Times of flows: `begin` and `finish` [F] s, or [B F] s for several runs."""

    begin: np.ndarray
    finish: np.ndarray


def solve_jobs(jobs: Repeated, capacity: np.ndarray, **variants: np.ndarray) -> JobTimes:
    """Return when every flow begins and ends, from the exact engine. `capacity` [L] is in bytes/s.

    `variants`: `start` or `lag` that replace those of the flows: [F], or [B F] for B runs.
    """
    flows, problem = jobs.routed.flows, jobs.routed.problem(capacity, float)
    runs = max([1, *(len(variant) for variant in variants.values() if variant.ndim == 2)])
    terms = [np.asarray(variants.get(name, getattr(flows, name)), float) for name in ("start", "lag")]
    start, lag = (np.broadcast_to(term, (runs, flows.flows)) for term in terms)

    def run(index: int) -> tuple[np.ndarray, np.ndarray]:
        done = completion_times(problem, flows.size, start[index], flows.after, lag[index], engine="host")
        return np.asarray(done.begin, float), np.asarray(done.finish, float)

    with ThreadPoolExecutor(cores()) as pool:
        begin, finish = (np.stack(part) for part in zip(*pool.map(run, range(runs)), strict=True))
    several = any(variant.ndim == 2 for variant in variants.values())
    return JobTimes(begin, finish) if several else JobTimes(begin[0], finish[0])


ALONE = 2  # iterations that each job runs alone; the second one is timed


class Scene(NamedTuple):
    """J jobs on L links, ready to run.

    - `names`, `patterns`, `iterations`, `arrival_s` [J]. `links` [L]: names; `capacity` [L]: bytes/s.
    - `alone_s` [J]: time of one iteration of each job when it runs alone.
    - `busy` [J]: by link, the intervals (begin, end, bytes/s) in which the job sends when it runs alone, from the start
      of an iteration.
    """

    names: tuple[str, ...]
    patterns: tuple[Routed, ...]
    iterations: tuple[int, ...]
    arrival_s: tuple[float, ...]
    links: tuple[str, ...]
    capacity: np.ndarray
    alone_s: np.ndarray
    busy: tuple[dict[int, tuple[tuple[float, float, float], ...]], ...]

    def circles(self) -> dict[str, tuple[float, dict[int, Circle]]]:
        """Return for each link, by name, its capacity and the circle of each job on it."""
        circles: dict[str, tuple[float, dict[int, Circle]]] = {}
        for job, busy in enumerate(self.busy):
            for link, arcs in busy.items():
                own = circles.setdefault(self.links[link], (float(self.capacity[link]), {}))[1]
                own[job] = Circle(float(self.alone_s[job]), *zip(*arcs, strict=True))
        return circles

    def load(self) -> np.ndarray:
        """Return the seconds [J L] for which an iteration of each job needs the whole link."""
        load = np.zeros((len(self.names), len(self.links)))
        for job, busy in enumerate(self.busy):
            for link, arcs in busy.items():
                load[job, link] = sum((end - begin) * rate for begin, end, rate in arcs) / self.capacity[link]
        return load


def scene_of(
    names: Sequence[str],
    patterns: Sequence[Routed],
    iterations: Sequence[int],
    arrival_s: Sequence[float],
    links: Sequence[str],
    capacity: np.ndarray,
) -> Scene:
    jobs, count = len(names), len(links)
    apart = []  # each job on its own copy of the links
    for job, pattern in enumerate(patterns):
        hops, share = pattern.routes
        moved = np.where(hops >= 0, hops + job * count, -1)
        apart.append(pattern._replace(routes=Routes(moved, share)))
    alone = repeat_patterns(apart, [ALONE] * jobs, [0.0] * jobs)
    done = solve_jobs(alone, np.tile(capacity, jobs))
    ends = done.finish[alone.end].reshape(jobs, ALONE)
    busy = []
    for job in range(jobs):
        own = np.flatnonzero((alone.job == job) & (alone.iteration == 0) & (alone.routed.flows.size > 0))
        busy.append(_arcs(alone.routed, own, done, job * count))
    facts = tuple(names), tuple(patterns), tuple(iterations), tuple(arrival_s), tuple(links)
    return Scene(*facts, np.asarray(capacity, float), np.diff(ends, axis=1)[:, 0], tuple(busy))


def _arcs(routed: Routed, flows: np.ndarray, done: JobTimes, first_link: int) -> dict:
    arcs: dict[int, dict[tuple[float, float], float]] = {}
    for flow in flows[done.finish[flows] > done.begin[flows]]:
        span = float(done.begin[flow]), float(done.finish[flow])
        for link, share in zip(routed.routes.hops[flow], routed.routes.share[flow], strict=True):
            if link >= 0:
                own = arcs.setdefault(int(link) - first_link, {})
                own[span] = own.get(span, 0.0) + share * routed.flows.size[flow] / (span[1] - span[0])
    return {link: tuple((*span, rate) for span, rate in sorted(own.items())) for link, own in sorted(arcs.items())}
