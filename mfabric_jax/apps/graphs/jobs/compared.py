"""Compare ways for jobs to share links, for `mfabric jobs` and for Python."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mfabric_jax.apps.graphs.jobs.iterations import Scene
from mfabric_jax.apps.graphs.jobs.jobs_file import SharedJobs
from mfabric_jax.apps.graphs.jobs.outcome import JobsOutcome, common_part, job_rows, run_jobs, slowdown_bound, way_row
from mfabric_jax.apps.graphs.jobs.placed import best_placement, scene_from
from mfabric_jax.apps.graphs.jobs.sharing import WAYS, JobsStudy
from mfabric_jax.checks import InputError
from mfabric_jax.flows import FlowProblem, max_min_rates
from mfabric_jax.routing.transfers import Routed


class JobsCompared(NamedTuple):
    scene: Scene
    outcomes: dict[str, JobsOutcome]
    jobs: list[dict[str, Any]]
    ways: list[dict[str, Any]]


def compare_jobs(shared: SharedJobs, study: JobsStudy | None = None) -> JobsCompared:
    """Run the jobs in each of the study's ways; all ways see the same random draws."""
    study = study or JobsStudy()
    scene = scene_from(shared)
    if study.placements:
        scene = best_placement(shared, scene, study.placements, study.seed, study.tick_s)
    arrival_s, factor = draw_runs(scene, study)
    if study.skip >= min(scene.iterations):
        raise InputError(f"skip must be below the iterations of every job, {min(scene.iterations)}, got {study.skip}.")
    outcomes = {way: run_jobs(scene, way, WAYS[way](scene, study), arrival_s, factor) for way in study.ways}
    rows = {way: job_rows(scene, outcome, study.skip) for way, outcome in outcomes.items()}
    ways = [way_row(scene, outcome, rows[way], study.skip) for way, outcome in outcomes.items()]
    bound = slowdown_bound(scene, list(outcomes.values()), study.skip)
    usual = next((row for row in ways if row["way"] == "fair"), None)
    for row in ways:
        row["slowdown_bound"] = bound
        for gain, column in (("mean_gain", "slowdown"), ("p99_gain", "p99_slowdown")):
            row[gain] = None if usual is None else usual[column] / row[column]
    return JobsCompared(scene, outcomes, [row for own in rows.values() for row in own], ways)


def draw_runs(scene: Scene, study: JobsStudy) -> tuple[np.ndarray, list[np.ndarray]]:
    """Draw the arrivals [B J] and, for each job, the factors [B N] on the computation of its iterations."""
    draw = np.random.default_rng(study.seed)
    arrival_s = np.array([scene.arrival_s], float)
    if study.draws:
        arrival_s = arrival_s + draw.uniform(size=(study.draws, len(scene.names))) * scene.alone_s
    runs = len(arrival_s)
    factor = [1 + study.jitter * draw.standard_normal((runs, count)) for count in scene.iterations]
    return arrival_s, [np.maximum(factors, 0) for factors in factor]


# -- each job's share of a link over time: rates are solved anew between successive events of a window

READABLE = 12  # iterations that fit side by side in a picture


def busiest_link(scene: Scene) -> int:
    """Return the busiest link that several jobs use, or the busiest of all links if jobs share none."""
    load = scene.load() / scene.alone_s[:, None]
    shared = (load > 0).sum(axis=0) > 1
    return int(np.argmax(load.sum(axis=0) + shared * (load.sum() + 1)))


def link_use(
    scene: Scene, outcome: JobsOutcome, link: int, begin_s: float, end_s: float, run: int = 0
) -> list[dict[str, Any]]:
    """Return each job's share of the link as rows `way`, `link`, `job`, `begin_s`, `end_s`, `use`.

    `use` is constant from `begin_s` to `end_s`.
    """
    begin, finish = outcome.begin[run], outcome.finish[run]
    routed, job_of = outcome.flows.routed, outcome.flows.job
    sending = (routed.flows.size > 0) & (begin < end_s) & (finish > begin_s) & (finish > begin)
    flow = np.flatnonzero(sending)
    times = np.clip(np.concatenate([begin[flow], finish[flow], [begin_s, end_s]]), begin_s, end_s)
    edge = np.unique(times)
    middle = (edge[1:] + edge[:-1]) / 2
    active = (begin[flow] < middle[:, None]) & (middle[:, None] < finish[flow])
    rate = _rates(scene, routed, flow, active)
    hops, share = routed.routes.hops[flow], routed.routes.share[flow]
    on_link = np.where(hops == link, share, 0).sum(axis=1) / scene.capacity[link]
    rows = []
    for job, name in enumerate(scene.names):
        use = rate @ (on_link * (job_of[flow] == job))
        for low, high, part in zip(edge[:-1].tolist(), edge[1:].tolist(), use.tolist(), strict=True):
            whose = {"way": outcome.way, "link": scene.links[link], "job": name}
            rows.append(whose | {"begin_s": low, "end_s": high, "use": part})
    return rows


def both_ends(compared: JobsCompared, link: int | None = None, iterations: int = 5) -> list[dict[str, Any]]:
    """Return the `link_use` rows of the first run of every way in two windows, which the column `when` names.

    One window begins about when the last job starts, the other ends when the first job ends. `link` is the busiest by
    default. A window shows at least `iterations` iterations of the job with the shortest ones.
    """
    scene, rows = compared.scene, []
    link = busiest_link(scene) if link is None else link
    for outcome in compared.outcomes.values():
        for when, (low, high) in _windows(scene, outcome, iterations).items():
            rows += [row | {"when": when} for row in link_use(scene, outcome, link, low, high)]
    return rows


def _windows(scene: Scene, outcome: JobsOutcome, iterations: int) -> dict[str, tuple[float, float]]:
    """Two windows of equal length: from just before the last job starts, and up to the end of the first job that ends.
    If jobs never all run at once, the first window begins with the first job."""
    shortest, longest = float(scene.alone_s.min()), float(scene.alone_s.max())
    wide = max(iterations * shortest, min(longest, READABLE * shortest))
    starts, ends = outcome.start_s[0], outcome.finish[0][outcome.flows.end]
    begin, end = float(starts.min()), min(float(own[-1]) for own in outcome.flows.of_jobs(ends))
    if starts.max() < end:
        begin = max(begin, float(starts.max()) - shortest)
    late = max(begin, end - wide)
    return {"the first iterations": (begin, begin + wide), "the last ones": (late, late + wide)}


def _rates(scene: Scene, routed: Routed, flow: np.ndarray, active: np.ndarray) -> np.ndarray:
    hops, share = routed.routes.hops[flow], routed.routes.share[flow]
    intervals, flows = (1 << (count - 1).bit_length() for count in (max(1, size) for size in active.shape))
    weight = np.zeros((intervals, flows))
    weight[: len(active), : len(flow)] = routed.flows.weight[flow] * active
    every, part = np.full((flows, hops.shape[1]), -1, np.int32), np.ones((flows, hops.shape[1]))
    every[: len(flow)], part[: len(flow)] = hops, np.where(hops < 0, 1, share)
    return np.asarray(_of_intervals(jnp.asarray(scene.capacity), every, part, weight))[: len(active), : len(flow)]


@jax.jit
def _of_intervals(capacity, hops, share, weight):
    return jax.vmap(lambda own: max_min_rates(FlowProblem(capacity, hops, share, own)).rate)(weight)


# -- remarks below the tables

LITTLE = 0.5  # fraction of the time: jobs that overlap for less do not show what sharing costs
STEPS = 1000  # a bound on slowdowns is shown in thousandths, rounded down


def job_remarks(compared: JobsCompared) -> list[str]:
    """Return remarks: a bound on every schedule, and a warning if jobs hardly overlap in time."""
    if len(compared.scene.names) == 1:
        return []
    least = math.floor(compared.ways[0]["slowdown_bound"] * STEPS) / STEPS
    sentences = ["the links have enough bandwidth for all jobs: nothing rules out a mean slowdown of 1."]
    if least > 1:
        bound = f"can have a mean slowdown below {least:.3f}."
        sentences = [f"no schedule in which each job runs as long as here {bound}"]
    part = max(common_part(outcome) for outcome in compared.outcomes.values())
    if part < LITTLE:
        rows = [row for row in compared.jobs if row["way"] == compared.ways[0]["way"]]
        last = max(rows, key=lambda row: row["end_s"])["job"]
        sentences.append(
            f"all jobs run together for only {part:.1%} of the time ({last} runs longest), so slowdowns say little "
            "about sharing; to make jobs end together, choose iterations in inverse proportion to alone_s."
        )
    return sentences
