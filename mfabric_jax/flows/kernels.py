"""The choice of the kernel that computes stars: a name and a number, such as "xla:256" or "fused:1".

- "xla:N": `star_kernel` as plain XLA, N instances at a time; 0: the whole batch.
- "fused:W": `star_fused`, one program of W warps per instance; without a GPU it is interpreted, slowly.
- "auto": the row of `TABLE` for the platform for which the program is lowered and for the number of endpoints.
"""

import math
import re
from typing import NamedTuple

from mfabric_jax.checks import InputError
from mfabric_jax.support import platforms
from mfabric_jax.support.lazily import LazyModule

AUTO = "auto"
MOST_FUSED = 64  # most endpoints that fit into a program's registers
FIRST_FUSED = 8.0  # compute capability of NVIDIA GPUs for which Triton compiles
SHOWN = (8, 16, 32, 64, 128)  # numbers of endpoints for which results and `mfabric doctor` show the choice
SAME = {"cuda": "gpu", "rocm": "gpu"}  # platform of a lowering -> platform of its devices


fused = LazyModule("mfabric_jax.flows.star_fused")  # and Pallas with it


class StarKernel(NamedTuple):
    """`name`: "xla" or "fused"; `number`: instances at a time, or warps."""

    name: str
    number: int

    def __str__(self) -> str:
        return f"{self.name}:{self.number}"


def kernel_of(text: str, n: int) -> StarKernel | None:
    """Return the kernel of that name for `n` endpoints, None for "auto". Raise `InputError` for an unknown name."""
    if text == AUTO:
        return None
    name, _, number = text.partition(":")
    if name == "xla" and number.isascii() and number.isdecimal():
        return StarKernel(name, int(number))
    if name == "fused" and number in ("1", "2", "4", "8", "16", "32"):
        if n > MOST_FUSED:
            raise InputError(f"kernel {text} is for at most {MOST_FUSED} endpoints, got {n}.")
        return StarKernel(name, int(number))
    raise InputError(f"kernel must be auto, xla:N, or fused:W with W = 1, 2, 4, 8, 16 or 32, got {text!r}.")


# Platform, most endpoints, kernel. Figures: regions a second, benchmarks/RESULTS.md (stars on a CPU; GPU).
# No GPU was measured: its rows are ESTIMATES from programs compiled for an H100.
TABLE = (
    ("cpu", 11, StarKernel("xla", 256)),  # measured at 8: 138,620; 64 at a time 120,771
    ("cpu", 16, StarKernel("xla", 128)),  # measured at 16: 3,511; 64 at a time 2,202
    ("cpu", math.inf, StarKernel("xla", 64)),  # measured at 32: 146, 256 at a time 128; at 64: 7.6, 32 at a time 7.4
    ("gpu", 32, StarKernel("fused", 1)),  # ESTIMATE at 16: 2,107,027, plain XLA 1,511; nothing spills
    ("gpu", MOST_FUSED, StarKernel("fused", 4)),  # ESTIMATE at 64: 5,184, plain XLA 12; 2 and 8 warps spill
    ("gpu", math.inf, StarKernel("xla", 0)),  # not measured: flows do not fit the registers of a fused program
)


def usual(platform: str, n: int) -> StarKernel:
    """Return the kernel for "auto": the first row that fits, or "xla:0" on GPUs for which Triton does not compile."""
    kind = SAME.get(platform, platform)
    if kind != "gpu":
        kind = "cpu"
    elif not _fuses():
        return StarKernel("xla", 0)
    return next(kernel for name, most, kernel in TABLE if name == kind and n <= most)


def _fuses() -> bool:
    capability = str(getattr(platforms.device(), "compute_capability", None))
    return not re.fullmatch(r"\d+\.\d+", capability) or float(capability) >= FIRST_FUSED
