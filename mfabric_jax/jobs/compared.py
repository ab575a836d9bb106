"""Several jobs in every way asked for, side by side: `mfabric jobs`, and Python."""

import dataclasses
from typing import Any, NamedTuple

import numpy as np

from mfabric_jax.checks import InputError, names, not_negative, whole
from mfabric_jax.jobs.jobs_file import SharedJobs
from mfabric_jax.jobs.outcome import JobsOutcome, job_rows, run_jobs, slowdown_bound, way_row
from mfabric_jax.jobs.placed import best_placed, scene_from
from mfabric_jax.jobs.scene import Scene
from mfabric_jax.jobs.ways import WAYS, WaySettings
from mfabric_jax.schedule.mltcp import Mltcp


@dataclasses.dataclass(frozen=True, kw_only=True)
class JobsStudy:
    """What is done about jobs that share links, and how often."""

    ways: tuple[str, ...] = tuple(WAYS)
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
        whole("draws", self.draws, at_least=0)
        not_negative("jitter", self.jitter)
        whole("skip", self.skip, at_least=0)
        whole("placements", self.placements, at_least=0)
        whole("seed", self.seed, at_least=0)
        self.settings()

    def settings(self) -> WaySettings:
        """Of the ways, checked."""
        rule = Mltcp(self.slope, self.intercept, self.pieces)
        return WaySettings(rule, self.tick_s, self.steps, self.adjust).checked()


class JobsCompared(NamedTuple):
    """- `scene`.   - `outcomes`: by way.   - `jobs`: a row for each way and job.   - `ways`: a row for each way."""

    scene: Scene
    outcomes: dict[str, JobsOutcome]
    jobs: list[dict[str, Any]]
    ways: list[dict[str, Any]]


def compare_jobs(shared: SharedJobs, study: JobsStudy | None = None) -> JobsCompared:
    """The jobs in every way; what is drawn is the same for all of them."""
    study = study or JobsStudy()
    scene = scene_from(shared)
    if study.placements:
        scene = best_placed(shared, scene, study.placements, study.seed, study.tick_s)
    return compare_scene(scene, study)


def compare_scene(scene: Scene, study: JobsStudy) -> JobsCompared:
    """The same for a scene of one's own making."""
    arrival_s, factor = drawn_runs(scene, study)
    if study.skip >= min(scene.iterations):
        raise InputError(f"skip must be below the iterations of every job, {min(scene.iterations)}, got {study.skip}.")
    outcomes = {way: run_jobs(scene, way, WAYS[way](scene, study.settings()), arrival_s, factor) for way in study.ways}
    rows = {way: job_rows(scene, outcome, study.skip) for way, outcome in outcomes.items()}
    ways = [way_row(scene, outcome, rows[way], study.skip) for way, outcome in outcomes.items()]
    bound = slowdown_bound(scene, list(outcomes.values()), study.skip)
    usual = next((row for row in ways if row["way"] == "fair"), None)
    for row in ways:
        row["slowdown_bound"] = bound
        for gain, column in (("mean_gain", "slowdown"), ("p99_gain", "p99_slowdown")):
            row[gain] = None if usual is None else usual[column] / row[column]
    return JobsCompared(scene, outcomes, [row for own in rows.values() for row in own], ways)


def drawn_runs(scene: Scene, study: JobsStudy) -> tuple[np.ndarray, list[np.ndarray]]:
    """Arrivals [B J], and for each job [B N] by which its iterations compute longer."""
    draw = np.random.default_rng(study.seed)
    arrival_s = np.array([scene.arrival_s], float)
    if study.draws:
        arrival_s = arrival_s + draw.uniform(size=(study.draws, len(scene.names))) * scene.alone_s
    runs = len(arrival_s)
    factor = [1 + study.jitter * draw.standard_normal((runs, count)) for count in scene.iterations]
    return arrival_s, [np.maximum(one, 0) for one in factor]
