"""Which kernel computes stars on which platform: a name and a number, such as "xla:256" or "fused:1".

- "xla:N": `star_kernel` as plain XLA, N instances at a time; 0: the whole batch.
- "fused:W": `star_fused`, one program of W warps per instance; slow interpretation without a GPU.
- "auto": what `mfabric tune` stored for the default device, else the platform's usual kernel. It is chosen when a
  program is **traced**; programs traced before tuning keep their kernel.
"""

import re
import warnings
from typing import Any, NamedTuple

from mfabric_jax import tuned_file
from mfabric_jax.checks import InputError
from mfabric_jax.support import platforms
from mfabric_jax.support.lazily import loaded

AUTO = "auto"
LANES = 64  # instances at a time on a CPU, so that their state stays in its caches;
STATE = 1 << 15  # more for small stars, up to this many flows
MOST_FUSED = 64  # most endpoints that fit a program's registers
FIRST_FUSED = 8.0  # compute capability of NVIDIA GPUs for which Triton compiles
SHOWN = (8, 16, 32, 64, 128)  # endpoints for which results and `mfabric doctor` say what is chosen
SAME = {"cuda": "gpu", "rocm": "gpu"}  # platform of a lowering -> platform of its devices


class Kernel(NamedTuple):
    """`name`: "xla" or "fused"; `number`: instances at a time, or warps."""

    name: str
    number: int

    def __str__(self) -> str:
        return f"{self.name}:{self.number}"


def fused() -> Any:
    """The module of fused kernels, and Pallas with it, imported where such a kernel is chosen."""
    return loaded("mfabric_jax.flows.star_fused")


def kernel_of(text: str, n: int) -> Kernel | None:
    """The kernel of that name for `n` endpoints, None for "auto"; raises `InputError` for an unknown name."""
    if text == AUTO:
        return None
    name, _, number = text.partition(":")
    if name == "xla" and number.isascii() and number.isdecimal():
        return Kernel(name, int(number))
    if name == "fused" and number in ("1", "2", "4", "8", "16", "32"):
        if n > MOST_FUSED:
            raise InputError(f"kernel {text} is for at most {MOST_FUSED} endpoints, got {n}.")
        return Kernel(name, int(number))
    raise InputError(f"kernel must be auto, xla:N, or fused:W with W = 1, 2, 4, 8, 16 or 32, got {text!r}.")


def usual(platform: str, n: int) -> Kernel:
    """The default kernel: fused programs on GPUs that support them, chunks otherwise."""
    if SAME.get(platform, platform) != "gpu":
        return Kernel("xla", max(LANES, min(4 * LANES, STATE // n**2)))
    capability = getattr(platforms.device(), "compute_capability", None)
    fuses = not re.fullmatch(r"\d+\.\d+", str(capability)) or float(str(capability)) >= FIRST_FUSED
    return Kernel("fused", fused().usual_warps(n)) if fuses and n <= MOST_FUSED else Kernel("xla", 0)


def chosen_kernel(platform: str, n: int) -> Kernel:
    """The kernel for "auto": the tuned one if there is one, else the usual one."""
    return tuned(platform, n) or usual(platform, n)


def tuned(platform: str, n: int) -> Kernel | None:
    """`kept_kernel`, but None with a warning for a broken file."""
    try:
        return kept_kernel(platform, n)
    except InputError as mistake:
        warnings.warn(str(mistake), stacklevel=2)
        return None


def tuned_sizes(device: Any) -> list[int]:
    try:
        return list(tuned_file.kernels_of(device))
    except InputError:
        return []


def kept_kernel(platform: str, n: int) -> Kernel | None:
    """The tuned kernel for `n` endpoints; None if there is none or `platform` is not the default device's. Sizes not
    measured use the next power of two, to which fused programs are padded. Raises `InputError` for a broken file."""
    if not tuned_file.entries():
        return None
    device = platforms.device()
    if device is None or device.platform != SAME.get(platform, platform):
        return None
    kept = tuned_file.kernels_of(device)
    text = kept.get(n) or kept.get(1 << (n - 1).bit_length())
    try:
        return None if text is None else kernel_of(text, n)
    except InputError as mistake:
        raise tuned_file.broken(str(mistake)) from None
