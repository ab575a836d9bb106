"""What is said and drawn beside the tables of several jobs: a bound that nothing beats, what they do not show."""

import numpy as np
import pytest

from mfabric_jax.jobs.compared import JobsStudy, both_ends, compare_jobs, said_of_jobs
from mfabric_jax.jobs.jobs_file import jobs_of
from mfabric_jax.jobs.outcome import slowdown_bound


def on_a_link(*jobs):
    """Jobs (iterations, seconds of computation, of communication alone, arrival) on one link of 1 GB/s."""
    names = ("iterations", "compute_s", "gigabytes", "arrival_s")
    return jobs_of({"links": {"link": 8.0}, "jobs": [dict(zip(names, job, strict=True)) | LINK for job in jobs]})


LINK = {"links": ["link"]}
USUAL = JobsStudy(ways=("fair", "mltcp"), pieces=4)


def test_a_job_that_is_hardly_there_takes_little_of_a_link():
    # Both together need 1.6 of the link: were they together for ever, 1.5 or more. The second is there for 4 of 50 s.
    given = on_a_link((10, 1, 4, 0), (4, 0.2, 0.8, 0))
    found = compare_jobs(given, USUAL)
    assert slowdown_bound(found.scene) > 1.25
    assert all(row["slowdown"] >= row["slowdown_bound"] for row in found.ways)
    said = said_of_jobs(given, found)
    assert "nothing rules out a mean slowdown of 1." in said[0]
    assert "together for only" in said[1]
    assert "(job 0 runs longest)" in said[1]


@pytest.mark.parametrize("seed", range(12))
def test_no_way_beats_the_bound(seed):
    draw = np.random.default_rng(seed)
    jobs = [(int(draw.integers(3, 12)), draw.uniform(0, 2), draw.uniform(0.1, 2), draw.uniform(0, 3)) for _ in range(3)]
    given = on_a_link(*jobs)
    changed = [{}, {"skip": 2}, {"draws": 2}, {"draws": 2, "jitter": 0.2, "skip": 1}][seed % 4]
    found = compare_jobs(given, JobsStudy(pieces=2, steps=4, **changed))
    assert len(found.ways) == 4
    for row in found.ways:
        assert row["slowdown"] >= row["slowdown_bound"] - 1e-9


def test_equal_jobs_that_start_together_are_named():
    def said(*arrivals, **study):
        given = on_a_link(*[(4, 1, 1, arrival) for arrival in arrivals])
        found = compare_jobs(given, JobsStudy(ways=("fair", "cassini", "mltcp"), pieces=4, **study))
        return " ".join(said_of_jobs(given, found))

    tied = "job 0 and job 1 are equal and start at the same time, so in fair and mltcp they never separate"
    assert tied in said(0, 0)
    assert "never separate" not in said(0, 0.01) + said(0, 0, jitter=0.01) + said(0, 0, draws=1)


def test_the_picture_looks_at_short_iterations_while_all_jobs_run():
    # The first job iterates in 5 s for 50 s, the second in 1 s for 4 or a little more, from 2 s on.
    found = compare_jobs(on_a_link((10, 1, 4, 0), (4, 0.9, 0.1, 2)), JobsStudy(ways=("fair",)))
    seen = {}
    for row in both_ends(found, iterations=2):
        low, high = seen.get(row["when"], (np.inf, 0))
        seen[row["when"]] = min(low, row["begin_s"]), max(high, row["end_s"])
    end = float(2 + found.outcomes["fair"].iteration_s[1].sum())
    assert seen["the first iterations"] == pytest.approx((1, 6))  # one of the longest
    assert seen["the last ones"] == pytest.approx((end - 5, end))


def test_a_server_of_many_nics_says_what_bytes_are_of():
    jobs = [{"gigabytes": 1.0, "servers": [0, 1]}, {"gigabytes": 1.0, "servers": [2, 3]}]
    given = jobs_of({"fabric": {"name": "fat-tree", "servers": 4}, "jobs": jobs, "iterations": 2})
    said = said_of_jobs(given, compare_jobs(given, JobsStudy(ways=("fair",))))
    assert said[-1] == "on fat-tree, gigabytes of a phase leave a server in 8 equal parts, one from each GPU."
