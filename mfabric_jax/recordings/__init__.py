"""What recorded routing means for a job."""

from mfabric_jax.recordings._trace_study import TraceStudy, trace_study

__all__ = ["TraceStudy", "trace_study"]
