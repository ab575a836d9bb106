"""Which job has how much of a link when: rates are solved again between every two events of a window."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mfabric_jax.flows import FlowProblem, max_min_rates
from mfabric_jax.jobs.compared import JobsCompared
from mfabric_jax.jobs.outcome import JobsOutcome
from mfabric_jax.jobs.scene import Scene

READABLE = 12  # iterations side by side


def busiest_link(scene: Scene) -> int:
    """The link that is asked for most, of those that several jobs use (of all, where none is shared)."""
    load = scene.load() / scene.alone_s[:, None]
    shared = (load > 0).sum(axis=0) > 1
    return int(np.argmax(load.sum(axis=0) + shared * (load.sum() + 1)))


def link_use(
    scene: Scene, outcome: JobsOutcome, link: int, begin_s: float, end_s: float, run: int = 0
) -> list[dict[str, Any]]:
    """A row for every job and interval between two events: the part of the link that the job has, constant there.

    Columns `way`, `link`, `job`, `begin_s`, `end_s`, `use`; intervals of one job follow each other from `begin_s` to
    `end_s`.
    """
    begin, finish = outcome.begin[run], outcome.finish[run]
    sending = (outcome.flows.size > 0) & (begin < end_s) & (finish > begin_s) & (finish > begin)
    flow = np.flatnonzero(sending)
    times = np.clip(np.concatenate([begin[flow], finish[flow], [begin_s, end_s]]), begin_s, end_s)
    edge = np.unique(times)
    middle = (edge[1:] + edge[:-1]) / 2
    active = (begin[flow] < middle[:, None]) & (middle[:, None] < finish[flow])
    rate = _rates(scene, outcome, flow, active)
    hops, share = outcome.flows.routes.hops[flow], outcome.flows.routes.share[flow]
    on_link = np.where(hops == link, share, 0).sum(axis=1) / scene.capacity[link]
    rows = []
    for job, name in enumerate(scene.names):
        use = rate @ (on_link * (outcome.flows.job[flow] == job))
        for low, high, part in zip(edge[:-1].tolist(), edge[1:].tolist(), use.tolist(), strict=True):
            whose = {"way": outcome.way, "link": scene.links[link], "job": name}
            rows.append(whose | {"begin_s": low, "end_s": high, "use": part})
    return rows


def both_ends(compared: JobsCompared, link: int | None = None, iterations: int = 5) -> list[dict[str, Any]]:
    """`link_use` of the first run in every way, as all jobs have begun and before the first of them ends, with the
    column `when`.

    - `link`: the busiest one by default.   - `iterations`: how many of the shortest ones are seen.
    """
    scene, rows = compared.scene, []
    link = busiest_link(scene) if link is None else link
    for outcome in compared.outcomes.values():
        for when, (low, high) in _windows(scene, outcome, iterations).items():
            rows += [row | {"when": when} for row in link_use(scene, outcome, link, low, high)]
    return rows


def _windows(scene: Scene, outcome: JobsOutcome, iterations: int) -> dict[str, tuple[float, float]]:
    """When to look, of equal length: so many of the shortest iterations, or as many more as show a longest one, if they
    are few. Where the first job ends before the last one begins, from the first start on."""
    shortest, longest = float(scene.alone_s.min()), float(scene.alone_s.max())
    wide = max(iterations * shortest, min(longest, READABLE * shortest))
    starts, ends = outcome.start_s[0], outcome.finish[0][outcome.flows.end]
    begin, end = float(starts.min()), min(float(own[-1]) for own in outcome.flows.of_jobs(ends))
    if starts.max() < end:
        begin = max(begin, float(starts.max()) - shortest)
    late = max(begin, end - wide)
    return {"the first iterations": (begin, begin + wide), "the last ones": (late, late + wide)}


def _rates(scene: Scene, outcome: JobsOutcome, flow: np.ndarray, active: np.ndarray) -> np.ndarray:
    """[E F] bytes/s of the flows in every interval. Both are padded to powers of two: programs are compiled for few."""
    hops, share = outcome.flows.routes.hops[flow], outcome.flows.routes.share[flow]
    intervals, flows = (1 << (count - 1).bit_length() for count in (max(1, one) for one in active.shape))
    weight = np.zeros((intervals, flows))
    weight[: len(active), : len(flow)] = outcome.flows.weight[flow] * active
    every, part = np.full((flows, hops.shape[1]), -1, np.int32), np.ones((flows, hops.shape[1]))
    every[: len(flow)], part[: len(flow)] = hops, np.where(hops < 0, 1, share)
    return np.asarray(_of_intervals(jnp.asarray(scene.capacity), every, part, weight))[: len(active), : len(flow)]


@jax.jit
def _of_intervals(capacity, hops, share, weight):
    return jax.vmap(lambda own: max_min_rates(FlowProblem(capacity, hops, share, own)).rate)(weight)
