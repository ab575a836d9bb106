"""What broken parts cost."""

from mfabric_jax.failures._failures import failures

__all__ = ["failures"]
