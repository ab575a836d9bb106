"""Several jobs that share links."""

from mfabric_jax.jobs.compared import compare_jobs
from mfabric_jax.jobs.jobs_file import read_jobs
from mfabric_jax.jobs.ways import JobsStudy

__all__ = ["JobsStudy", "compare_jobs", "read_jobs"]
