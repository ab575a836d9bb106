"""Several jobs beside published gains: made-up rows by hand, and what is drawn."""

import numpy as np
import pytest

from experiments import several_jobs as script
from mfabric_jax.checks import InputError


def row(case, way, mean_gain, p99_gain, jobs=2, mix=0):
    """One made-up row."""
    usual = {"slowdown": 1.5 / mean_gain, "p99_slowdown": 2 / p99_gain, "fairness": 1.0, "slowdown_bound": 1.0}
    return {"case": case, "jobs": jobs, "mix": mix, "way": way, "mean_gain": mean_gain, "p99_gain": p99_gain} | usual


ROWS = [
    *(
        row("together", *gains)
        for gains in (("fair", 1, 1), ("cassini", 1.6, 1.2), ("mltcp", 1.2, 1.5), ("best", 1.6, 2))
    ),
    *(
        row("24 servers", *gains, mix=mix)
        for mix in (0, 1)
        for gains in (("cassini", 1 + mix / 10, 1), ("mltcp", 1.5, 1))
    ),
]


def test_verdicts_by_hand(tmp_path):
    said = {line.claim: (line.found, line.published, line.word) for line in script.verdicts(ROWS)}
    assert said["cassini, mean iteration, gain over fair, the most"] == ("1.60", "1.60", "reproduced")
    assert said["cassini, p99 iteration, gain over fair, the most"] == ("1.20", "2.50", "differs by -52%")
    assert said["mltcp, mean iteration, gain over fair, the most"] == ("1.50", "2.00", "differs by -25%")
    assert said["cassini, mean iteration, gain over fair, 24 servers"][0] == "1.00 to 1.10"
    assert said["best shifts found, mean gain over fair, together"][0] == "1.60"
    assert "24 servers" in script.table(ROWS)
    assert script.SCRIPT.draw(ROWS, tmp_path / "a.svg").stat().st_size > 5000


def test_what_is_drawn_fits():
    config = script.Config()
    for seed in range(3):
        jobs = script.cluster_jobs(config, seed)
        servers = [server for job in jobs.jobs for server in job.servers]
        assert len(set(servers)) == len(servers) >= config.servers - 1
        shares = [
            job.phases[0].gigabytes / script.BYTES / (job.phases[0].compute_s + job.phases[0].gigabytes / script.BYTES)
            for job in script.unequal_jobs(config, 4, seed).jobs
        ]
        assert sum(shares) == pytest.approx(config.load)
    equal = script.equal_jobs(config, 8).jobs
    np.testing.assert_allclose(sum(job.phases[0].gigabytes for job in equal), 0.9 * 0.24 * script.BYTES)


def test_a_configuration_that_cannot_be():
    for wrong in ({"load": 1.1}, {"skip": 60}, {"jobs": (1,)}, {"draws": 0}):
        with pytest.raises(InputError):
            script.Config(**wrong)
