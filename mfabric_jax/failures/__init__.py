"""What broken parts cost."""

from mfabric_jax.failures.iterations import failures

__all__ = ["failures"]
