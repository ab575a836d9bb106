"""Several jobs on shared links: what do CASSINI's time shifts and MLTCP's weights gain over plain fair sharing?

Two, four and eight equal jobs on one link, which all of them fit, started together and at random; jobs of unequal
lengths on one link; and a cluster of 24 servers with one 50 Gbps NIC each, in racks of two behind one such link (2:1):
the size of CASSINI's testbed (servers from its abstract, NICs and ratio from memory; its jobs are not public, so all
are drawn). "placed" has CASSINI choose among drawn placements, too. Published: CASSINI up to 1.6 (mean) and 2.5 (tail),
MLTCP up to 2 and 4 (99th percentile), measured over packets; here rates are max-min fair at once, without queues,
losses or marks. Sources: arXiv 2308.00852, 2402.09589.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from mfabric_jax.apps.graphs.jobs.compared import JobsCompared, compare_jobs
from mfabric_jax.apps.graphs.jobs.jobs_file import SharedJobs, jobs_of
from mfabric_jax.apps.graphs.jobs.sharing import JobsStudy
from mfabric_jax.checks import InputError

from .pictures import beside, dots
from .rows import Row, Rows, adding, group_rows, listed, of, picked, summed, then, told
from .script import Found, Script, Verdict, against, check, spread

PERIOD_S = 0.24  # of the shortest iteration; others have a whole number of them
LINK_GBPS = 50.0
BYTES = 0.125 * LINK_GBPS  # gigabytes/s
APART = 0.001  # of an iteration: jobs that start together arrive so much after each other
PUBLISHED = {"cassini": (1.6, 2.5), "mltcp": (2.0, 4.0)}
ALLOWED = 0.15  # of a published "up to", which other jobs reach
WAYS = ("fair", "cassini", "mltcp", "best")
TOGETHER, RANDOM, UNEQUAL, CLUSTER, PLACED = "together", "random", "unequal", "24 servers", "24 servers, placed"


@dataclasses.dataclass(frozen=True)
class Config:
    """What to run."""

    jobs: tuple[int, ...] = (2, 4, 8)  # On one link.
    load: float = 0.9  # Part of the link that all of them need.
    iterations: int = 60  # Of the shortest job.
    skip: int = 15  # First iterations left out: MLTCP converges in them.
    draws: int = 8  # Random starts of equal jobs, mixes of unequal ones, clusters.
    servers: int = 24  # Of the cluster.
    most_servers: int = 6  # Of a job on the cluster.
    placements: int = 10  # Candidates of CASSINI there.
    pieces: int = 16  # Weights of a flow under MLTCP.
    jitter: float = 0.0  # Of computation, as a part of it.
    seed: int = 0  # Of what is drawn.

    def __post_init__(self):
        whole = {2: "jobs servers most_servers iterations", 1: "draws pieces", 0: "skip seed placements"}
        check(self, whole=whole, positive="load", not_negative="jitter")
        if self.load > 1 or self.skip >= self.iterations:
            raise InputError("load must be at most 1 and skip below iterations; the jobs would never fit, or count.")

    def study(self, **changed: Any) -> JobsStudy:
        """All ways."""
        usual = {"ways": WAYS, "skip": self.skip, "seed": self.seed, "pieces": self.pieces, "jitter": self.jitter}
        return JobsStudy(**(usual | changed))


def equal_jobs(config: Config, count: int) -> SharedJobs:
    """Jobs that together need `load` of one link, each sending once an iteration; they arrive nearly together."""
    jobs = [_on_link(f"job {place + 1}", PERIOD_S, config.load / count) for place in range(count)]
    jobs = [job | {"arrival_s": place * APART * PERIOD_S} for place, job in enumerate(jobs)]
    return jobs_of({"links": {"link": LINK_GBPS}, "iterations": config.iterations, "jobs": jobs})


def unequal_jobs(config: Config, count: int, seed: int) -> SharedJobs:
    """Jobs of one, two or three times the shortest iteration; their shares of the link are drawn, `load` in all."""
    draw = np.random.default_rng([config.seed, seed, count])
    times, shares = draw.choice([1, 1, 2, 3], count).tolist(), config.load * draw.dirichlet(np.full(count, 3.0))
    jobs = []
    for place, (turns, share) in enumerate(zip(times, shares.tolist(), strict=True)):
        job = _on_link(f"job {place + 1}", turns * PERIOD_S, share)
        jobs.append(job | {"iterations": max(config.skip + 2, config.iterations // turns)})
    return jobs_of({"links": {"link": LINK_GBPS}, "jobs": jobs})


def _on_link(name: str, period_s: float, share: float) -> dict[str, Any]:
    send = share * period_s
    return {"name": name, "compute_s": period_s - send, "gigabytes": send * BYTES, "links": ["link"]}


def cluster_jobs(config: Config, seed: int) -> SharedJobs:
    """Jobs on drawn servers until all have one: rings of 2 to `most_servers` in the order of racks, all iterations of
    one length, of which a fifth to nearly half are sent."""
    draw = np.random.default_rng([config.seed, seed, config.servers])
    free, jobs = draw.permutation(config.servers).tolist(), []
    while len(free) > 1:
        size, send = min(int(draw.integers(2, config.most_servers + 1)), len(free)), PERIOD_S * draw.uniform(0.2, 0.45)
        job = {"compute_s": PERIOD_S - send, "gigabytes": send * BYTES, "servers": sorted(free[:size])}
        jobs.append({"name": f"job {len(jobs) + 1}", "arrival_s": draw.uniform(0, PERIOD_S)} | job)
        free = free[size:]
    network = {"nic_gbps": LINK_GBPS, "oversubscription": 2.0}
    table = {"servers": config.servers, "rack": 2, "case": {"network": network}}
    return jobs_of({"fabric": table, "jobs": jobs, "iterations": config.iterations})


def run(config: Config) -> Found:
    """A row for each case, mix and way: slowdowns over running alone (mean, 99th percentile), and gains over fair."""
    for count in config.jobs:
        jobs = equal_jobs(config, count)
        yield from _rows(compare_jobs(jobs, config.study()), TOGETHER, count, 0)
        yield from _rows(compare_jobs(jobs, config.study(draws=config.draws)), RANDOM, count, 0)
        for mix in range(config.draws):
            yield from _rows(compare_jobs(unequal_jobs(config, count, mix), config.study()), UNEQUAL, count, mix)
    for mix in range(config.draws):
        jobs = cluster_jobs(config, mix)
        plain = compare_jobs(jobs, config.study())
        yield from _rows(plain, CLUSTER, len(jobs.jobs), mix)
        placed = compare_jobs(jobs, config.study(placements=config.placements))
        yield from _rows(placed, PLACED, len(jobs.jobs), mix, plain)


def _rows(found: JobsCompared, case: str, jobs: int, mix: int, usual: JobsCompared | None = None) -> Iterator[Row]:
    """The rows of all ways; gains, means over jobs, over fair sharing (in `usual`: where they are placed otherwise)."""
    fair = picked((usual or found).jobs, way="fair")
    for row in found.ways:
        pairs = list(zip(fair, picked(found.jobs, way=row["way"]), strict=True))
        gains = {"mean_gain": "mean_s", "p99_gain": "p99_s"}
        gains = {gain: float(np.mean([a[key] / b[key] for a, b in pairs])) for gain, key in gains.items()}
        yield {"case": case, "jobs": jobs, "mix": mix} | row | gains


GROUP = ("case", "jobs", "way")
SHOWN = {
    "slowdown": "slowdown",
    "p99_slowdown": "p99",
    "mean_gain": "mean gain",
    "p99_gain": "p99 gain",
    "fairness": "fairness",
    "slowdown_bound": "bound",
}


def _by_case(rows: Rows) -> list[Row]:
    """Clusters hold different numbers of jobs: they are one case."""
    return adding(jobs=lambda row: "" if row["case"].startswith(CLUSTER) else row["jobs"])(rows)


_means = then(_by_case, summed(GROUP, **{key: of(key) for key in SHOWN}))
table = told(
    "Slowdown over running alone (bound: the least that links allow), and gains over fair sharing: means over mixes.",
    then(_means, listed(*GROUP, *SHOWN.items())),
)

named = adding(of=lambda row: f"{row['jobs']} jobs, {row['case']}" if row["jobs"] else row["case"])
MEAN, TAIL = ("slowdown", "mean iteration over running alone"), ("p99_slowdown", "99th percentile over running alone")
build = then(_means, named, beside(dots(MEAN, "{of}", "{way}"), dots(TAIL, "{of}", "{way}")))


def verdicts(rows: Rows) -> list[Verdict]:
    """The largest gains beside the published ones, and those of every case."""
    found = []
    for way, best in PUBLISHED.items():
        own = picked(rows, way=way)
        for key, title, published in zip(("mean_gain", "p99_gain"), ("mean", "p99"), best, strict=True):
            claim = f"{way}, {title} iteration, gain over fair"
            found.append(against(f"{claim}, the most", max(row[key] for row in own), published, allowed=ALLOWED))
            for (case,), here in group_rows(own, "case").items():
                found.append(spread(f"{claim}, {case}", [row[key] for row in here]))
    for (case,), here in group_rows(picked(rows, way="best"), "case").items():
        found.append(spread(f"best shifts found, mean gain over fair, {case}", [row["mean_gain"] for row in here]))
    return found


QUICK = {"jobs": (2, 4), "iterations": 30, "skip": 10, "draws": 2, "placements": 3, "pieces": 8}
SCRIPT = Script(Config, quick=QUICK, dtype="float64")
SCRIPT.start(__name__)
