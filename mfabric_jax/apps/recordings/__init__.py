"""Recorded routing: readers for all formats, statistics, fitted generators, and what a recording means for a job."""

from mfabric_jax.apps.recordings.fitting import fit as fit
from mfabric_jax.apps.recordings.published import save_weight_matrix as save_weight_matrix
from mfabric_jax.apps.recordings.study import TraceStudy as TraceStudy
from mfabric_jax.apps.recordings.study import trace_study as trace_study
