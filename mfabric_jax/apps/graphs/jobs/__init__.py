"""Simulate several jobs that share links."""

from mfabric_jax.apps.graphs.jobs.compared import compare_jobs
from mfabric_jax.apps.graphs.jobs.jobs_file import read_jobs
from mfabric_jax.apps.graphs.jobs.sharing import JobsStudy

__all__ = ["JobsStudy", "compare_jobs", "read_jobs"]
