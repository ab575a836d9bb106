"""Jobs and the links they share, ready to be run: patterns, capacities, and every job alone."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mfabric_jax.jobs.iterations import IterationPattern, repeated
from mfabric_jax.jobs.solve import solve_jobs
from mfabric_jax.routing.routes import Routes
from mfabric_jax.schedule.cassini import Circle

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
