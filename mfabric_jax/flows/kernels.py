"""Which kernel computes stars on which platform: a name and a number, such as "xla:256" or "fused:1".

- "xla:N": `star_kernel`, N instances in step, as plain XLA; 0: the whole batch.
- "fused:W": `star_fused`, a program of W warps for each instance; where there is no GPU it is interpreted, slowly.
- "auto": what `mfabric tune` kept for the default device, else what is usual for the platform that a program is
  compiled for. It is chosen when a program is **traced**: programs that were traced before a file was kept, or under
  another default device, stay as they are.
"""

from typing import NamedTuple

from mfabric_jax import platforms, tuned_file
from mfabric_jax.checks import InputError
from mfabric_jax.flows.star_fused import usual_warps

AUTO = "auto"
LANES = 64  # instances in step on a CPU: their state should stay in its caches;
STATE = 1 << 15  # of small stars more, until the flows are this many
MOST_FUSED = 64  # endpoints: what a program's registers hold
SHOWN = (8, 16, 32, 64, 128)  # endpoints for which results and `mfabric doctor` say what is chosen
SAME = {"cuda": "gpu", "rocm": "gpu"}  # platform of a lowering -> that of its devices


class Kernel(NamedTuple):
    """- `name`: "xla" or "fused".   - `number`: of instances in step, or of warps."""

    name: str
    number: int

    def __str__(self) -> str:
        return f"{self.name}:{self.number}"


def kernel_of(text: str, n: int) -> Kernel | None:
    """The kernel of that name for `n` endpoints, None for "auto"; `InputError` for another."""
    if text == AUTO:
        return None
    name, _, number = text.partition(":")
    if name == "xla" and number.isdigit():
        return Kernel(name, int(number))
    if name == "fused" and number in ("1", "2", "4", "8", "16", "32"):
        if n > MOST_FUSED:
            raise InputError(f"kernel {text} is for at most {MOST_FUSED} endpoints, got {n}.")
        return Kernel(name, int(number))
    raise InputError(f"kernel must be auto, xla:N, or fused:W with W = 1, 2, 4, 8, 16 or 32, got {text!r}.")


def usual(platform: str, n: int) -> Kernel:
    """What is used on "cpu" and on others where nothing else is said."""
    if platform == "cpu":
        return Kernel("xla", max(LANES, min(4 * LANES, STATE // n**2)))
    return Kernel("fused", usual_warps(n)) if n <= MOST_FUSED else Kernel("xla", 0)


def chosen_kernel(platform: str, n: int) -> Kernel:
    """What "auto" is: the tuned kernel where there is one, else the usual one."""
    return tuned(platform, n) or usual(platform, n)


def tuned(platform: str, n: int) -> Kernel | None:
    """What tune kept for `n` endpoints on the default device, None where nothing was or `platform` is not its.

    Endpoints that were not measured have the kernel of the next power of two, to which fused programs are padded.
    """
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
