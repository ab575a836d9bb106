"""What a case stands for: values that it leaves open, limits, and what the engine reads."""

from mfabric_jax.resolving._resolve import Resolved, resolve

__all__ = ["Resolved", "resolve"]
