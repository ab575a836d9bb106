"""Results for several jobs: iteration times, slowdowns relative to a job alone, fairness, a bound on slowdowns."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from mfabric_jax.apps.graphs.jobs.iterations import Repeated, Scene, repeat_patterns, solve_jobs
from mfabric_jax.apps.graphs.jobs.sharing import (
    SharedPatterns,
    hold_to_turns,
    iteration_times,
    job_starts,
    shifted_starts,
)

HALVINGS = 200  # bisection steps for a Lagrange multiplier


class JobsOutcome(NamedTuple):
    way: str
    shared: SharedPatterns
    flows: Repeated
    start_s: np.ndarray
    iteration_s: list[np.ndarray]
    begin: np.ndarray
    finish: np.ndarray


def run_jobs(
    scene: Scene, way: str, shared: SharedPatterns, arrival_s: np.ndarray, factor: Sequence[np.ndarray]
) -> JobsOutcome:
    """Run all jobs together. `arrival_s` [B J]; `factor` [B N] of each job scales the computation of its iterations."""
    flows = repeat_patterns(shared.patterns, scene.iterations, scene.arrival_s)
    start_s = arrival_s if shared.shift_s is None else shifted_starts(scene, shared.shift_s, arrival_s)
    lag = np.tile(flows.routed.flows.lag, (len(start_s), 1))
    for job, own in enumerate(factor):
        mine = flows.job == job
        lag[:, mine] *= own[:, flows.iteration[mine]]
    start = job_starts(flows, start_s)
    if shared.shift_s is not None and shared.adjust:
        done = hold_to_turns(flows, scene, shared, start, lag)
    else:
        done = solve_jobs(flows, scene.capacity, start=start, lag=lag)
    times = iteration_times(flows, done.finish, start_s)
    return JobsOutcome(way, shared, flows, start_s, times, done.begin, done.finish)


def jain(values: Sequence[float] | np.ndarray) -> float:
    """Return Jain's index of fairness: 1 if all n values are equal, 1 / n if one job has everything."""
    values = np.asarray(values, float)
    return float(values.sum() ** 2 / (len(values) * np.square(values).sum()))


def job_rows(scene: Scene, outcome: JobsOutcome, skip: int = 0) -> list[dict[str, Any]]:
    """Return a row for each job over the iterations of all runs, except the first `skip` of each run."""
    rows = []
    for job, times in enumerate(outcome.iteration_s):
        end, counted = outcome.start_s[:, job] + times.sum(axis=1), times[:, skip:]
        alone = float(scene.alone_s[job])
        shift = outcome.shared.shift_s
        rows.append(
            {
                "way": outcome.way,
                "job": scene.names[job],
                "iterations": times.shape[1],
                "alone_s": alone,
                "mean_s": float(counted.mean()),
                "p99_s": float(np.quantile(counted, 0.99)),
                "last_s": float(times[:, -1].mean()),
                "slowdown": float(counted.mean() / alone),
                "shift_s": None if shift is None else float(shift[job]),
                "end_s": float(end.mean()),
            }
        )
    return rows


def way_row(scene: Scene, outcome: JobsOutcome, rows: Sequence[Mapping[str, Any]], skip: int = 0) -> dict[str, Any]:
    """Return one row for all jobs: slowdowns of iterations relative to the job alone, fairness, use of links."""
    every = np.concatenate(
        [(times[:, skip:] / alone).ravel() for times, alone in zip(outcome.iteration_s, scene.alone_s, strict=True)]
    )
    ends = outcome.finish.max(axis=1) - outcome.start_s.min(axis=1)
    busy = np.asarray(scene.iterations) @ scene.load()
    return {
        "way": outcome.way,
        "mean_s": float(np.mean([row["mean_s"] for row in rows])),
        "p99_s": float(np.mean([row["p99_s"] for row in rows])),
        "slowdown": float(np.mean([row["slowdown"] for row in rows])),
        "p99_slowdown": float(np.quantile(every, 0.99)),
        "fairness": jain([1 / row["slowdown"] for row in rows]),
        "busiest_link_use": float(np.mean(busy.max(initial=0) / ends)),
        "cassini_score": outcome.shared.score,
        "end_s": float(ends.mean()),
    }


def counted_spans(outcome: JobsOutcome, skip: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return when each job's first counted iteration begins and its last one ends, both [B J] s."""
    before = np.stack([own[:, :skip].sum(axis=1) for own in outcome.iteration_s], axis=1)
    length = np.stack([own.sum(axis=1) for own in outcome.iteration_s], axis=1)
    return outcome.start_s + before, outcome.start_s + length


def presence(outcome: JobsOutcome, skip: int = 0) -> np.ndarray:
    """Return each job's presence [J]: its running time over the time with at least one job; the minimum over runs."""
    begin, end = counted_spans(outcome, skip)
    return ((end - begin) / (end.max(axis=1) - begin.min(axis=1))[:, None]).min(axis=0)


def common_part(outcome: JobsOutcome) -> float:
    """Return the time with all jobs over the time with at least one job; the mean over runs."""
    begin, end = counted_spans(outcome)
    common = end.min(axis=1) - begin.max(axis=1)
    return float((np.maximum(common, 0) / (end.max(axis=1) - begin.min(axis=1))).mean())


def slowdown_bound(scene: Scene, outcomes: Sequence[JobsOutcome] = (), skip: int = 0) -> float:
    """Return a lower bound on the mean slowdown, which holds because no link carries more than its capacity.

    It holds for every schedule in which each job is present for the same fraction of the time as in `outcomes` (without
    outcomes: always). For each link alone it minimizes the mean of T_j / alone_j under two conditions. The sum of
    presence_j * load_j / T_j is at most 1, where presence_j is the presence of job j. And no T_j is below alone_j or
    its mean in `outcomes`, whichever is smaller (drawn computations may be short).
    """
    load, alone, least = scene.load(), scene.alone_s, scene.alone_s
    for outcome in outcomes:
        least = np.minimum(least, [times[:, skip:].mean() for times in outcome.iteration_s])
    if outcomes:
        load = load * np.min([presence(outcome, skip) for outcome in outcomes], axis=0)[:, None]
    return max((_link_bound(own, least, alone) for own in load.T), default=float((least / alone).mean()))


def _link_bound(load: np.ndarray, least: np.ndarray, alone: np.ndarray) -> float:
    low, high = 0.0, float(np.sqrt(load / alone).sum() ** 2)
    if (load / least).sum() <= 1:
        return float((least / alone).mean())
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        times = np.maximum(least, np.sqrt(middle * load * alone))
        low, high = (middle, high) if (load / times).sum() > 1 else (low, middle)
    return float((np.maximum(least, np.sqrt(high * load * alone)) / alone).mean())
