"""Settings of a simulation: cases, grids of cases, files and presets."""

from mfabric_jax.case.grid import Block, Cases, cases
from mfabric_jax.case.layers import load, presets
from mfabric_jax.case.paths import Case

__all__ = ["Block", "Case", "Cases", "cases", "load", "presets"]
