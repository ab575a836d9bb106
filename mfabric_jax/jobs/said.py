"""What a reader of the tables of several jobs has to know, in sentences: a bound, and what slowdowns do not say."""

import math

import numpy as np

from mfabric_jax.jobs.compared import JobsCompared
from mfabric_jax.jobs.fabrics import endpoints_of
from mfabric_jax.jobs.jobs_file import SharedJobs
from mfabric_jax.jobs.outcome import JobsOutcome, common_part
from mfabric_jax.jobs.scene import Scene

LITTLE = 0.5  # of the time: jobs that are together for less do not show what sharing costs
SLOWED = 1e-6  # of an iteration alone: less is rounding
STEPS = 1000  # of a slowdown of 1, in which a bound is said; it is rounded down


def said_of_jobs(shared: SharedJobs, found: JobsCompared) -> list[str]:
    """The sentences, in the order of their weight."""
    bound = [_bound(found)] if len(found.scene.names) > 1 else []
    return [*bound, *_apart(found), *_ties(found), *_per_server(shared)]


def _bound(found: JobsCompared) -> str:
    least = math.floor(found.ways[0]["slowdown_bound"] * STEPS) / STEPS
    if least <= 1:
        return "links can carry what these jobs send in their time: nothing rules out a mean slowdown of 1."
    return f"no schedule in which the jobs are there as long as in these has a mean slowdown below {least:.3f}."


def _apart(found: JobsCompared) -> list[str]:
    """Where jobs are together for little of their time."""
    part = max(common_part(outcome) for outcome in found.outcomes.values())
    if part >= LITTLE:
        return []
    rows = [row for row in found.jobs if row["way"] == found.ways[0]["way"]]
    last = max(rows, key=lambda row: row["end_s"])["job"]
    return [
        f"all jobs run together for only {part:.1%} of the time ({last} runs longest), so slowdowns say little about "
        "sharing; iterations in inverse proportion to the time alone let jobs end together."
    ]


def _ties(found: JobsCompared) -> list[str]:
    """Equal jobs that start together and slow each other down for ever, with the ways in which they do."""
    ways: dict[tuple[int, ...], list[str]] = {}
    for way, outcome in found.outcomes.items():
        for jobs in _in_step(found.scene, outcome):
            ways.setdefault(jobs, []).append(way)
    names = found.scene.names
    return [
        f"{_listed([names[job] for job in jobs])} are equal and start at the same time, so in {_listed(of)} they never "
        "separate; arrival_s, --draws or --jitter tell them apart."
        for jobs, of in ways.items()
    ]


def _in_step(scene: Scene, outcome: JobsOutcome) -> list[tuple[int, ...]]:
    """Groups of jobs that share a link and do the same at the same time, slower than alone."""
    load, groups = scene.load(), []
    for job, times in enumerate(outcome.iteration_s):
        group = next((own for own in groups if _like(scene, outcome, own[0], job)), None)
        if times.mean() <= scene.alone_s[job] * (1 + SLOWED):
            continue
        if group is None:
            groups.append([job])
        elif np.any((load[group] > 0).any(axis=0) & (load[job] > 0)):
            group.append(job)
    return [tuple(group) for group in groups if len(group) > 1]


def _like(scene: Scene, outcome: JobsOutcome, one: int, other: int) -> bool:
    first, second = scene.patterns[one], scene.patterns[other]
    pairs = [(outcome.start_s[:, one], outcome.start_s[:, other]), (first.size, second.size), (first.lag, second.lag)]
    pairs.append((outcome.iteration_s[one], outcome.iteration_s[other]))
    return all(a.shape == b.shape and np.allclose(a, b, rtol=SLOWED, atol=0) for a, b in pairs)


def _per_server(shared: SharedJobs) -> list[str]:
    """What bytes are of, where a server has many NICs."""
    if shared.fabric is None or (each := endpoints_of(shared.fabric)) == 1:
        return []
    by_graph = [job.graph is not None for job in shared.jobs]
    said = [f"gigabytes of a phase leave a server in {each} equal parts, one from each GPU"] * (not all(by_graph))
    said += ["a message of a graph goes from GPU to GPU and pays the latency of its links"] * any(by_graph)
    return [f"on {shared.fabric.name}, {'; '.join(said)}."]


def _listed(words: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))
