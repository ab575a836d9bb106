"""Design spaces: a file of axes in, rows in shards out."""

from mfabric_jax.study.sweeps.config import Sweep, read_sweep
from mfabric_jax.study.sweeps.run import ENGINES, Progress, sweep

__all__ = ["ENGINES", "Progress", "Sweep", "read_sweep", "sweep"]
