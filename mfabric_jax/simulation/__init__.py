"""Cases simulated: resolved, solved, timed, told as rows."""

from mfabric_jax.simulation.resolve import Resolved, resolve

__all__ = ["Resolved", "resolve"]
