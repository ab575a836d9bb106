"""What broken parts cost."""

from mfabric_jax.apps.failures.iterations import failures

__all__ = ["failures"]
