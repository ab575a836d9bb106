"""Files of jobs are data: code that only they name never runs."""

import pytest

from mfabric_jax.apps.graphs.jobs import read_jobs
from mfabric_jax.case import own_code
from tests.case.test_own_code import no_reader_runs

JOB = {"name": "a", "gigabytes": 1.0, "servers": [0, 1]}
JOBS = {
    "fabric's case": {"jobs": [JOB], "fabric": {"servers": 2, "case": {"circuits.policy": "NAME"}}},
    "job's case": {"links": {"l": 1.0}, "jobs": [{"name": "a", "links": ["l"], "case": {"circuits.policy": "NAME"}}]},
}


@pytest.mark.usefixtures("command_line")
@pytest.mark.parametrize("where", JOBS)
def test_no_reader_takes_code_that_its_file_names(where, tmp_path, monkeypatch):
    monkeypatch.setattr(own_code, "_allowed", set())
    no_reader_runs(read_jobs, JOBS[where], tmp_path)
