"""Many configurations at once."""

from mfabric_jax.study.compare import compare, effective, examples
from mfabric_jax.study.config import Compare

__all__ = ["Compare", "compare", "effective", "examples"]
