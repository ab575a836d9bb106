"""Settings of a simulation: cases, grids of cases, files and presets."""

from mfabric_jax.case.grid import CaseBlock, Cases, cases
from mfabric_jax.case.layers import load, presets
from mfabric_jax.case.paths import Case

__all__ = ["Case", "CaseBlock", "Cases", "cases", "load", "presets"]
