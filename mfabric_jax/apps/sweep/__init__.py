"""Sweeps of design spaces: grids of cases, computed in parts on one machine or several."""

from mfabric_jax.apps.sweep.design_space import Sweep, read_sweep
from mfabric_jax.apps.sweep.run import sweep

__all__ = ["Sweep", "read_sweep", "sweep"]
