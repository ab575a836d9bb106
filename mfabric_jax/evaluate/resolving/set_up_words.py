"""Degrees and sizes of a set-up in words."""

from mfabric_jax import units
from mfabric_jax.workload import Workload
from mfabric_jax.workload.memory import UNKNOWN_BYTES, usable_bytes
from mfabric_jax.workload.parallel import DEGREES


def set_up_words(job: Workload) -> str:
    """Return the degrees of a job in words, such as "tp 2, etp 1, ep 8, dp 2, pp 8 on 128 GPUs"."""
    return ", ".join(f"{name} {value}" for name, value in degrees_of_case(job).items()) + f" on {job.gpus:,} GPUs"


def degrees_of_case(job: Workload) -> dict[str, int]:
    """Return the degrees of a job as `job.parallel` states them: `tp` of attention, and `etp` if it differs."""
    own = {name: getattr(job, name) for name in DEGREES}
    return own if job.folded == 1 else {"tp": job.attention_tp, "etp": own.pop("tp")} | own


def gigabytes_in_words(size: float) -> str:
    return f"{float(units.to_gigabytes(size)):,.1f}".removesuffix(".0")


def room_in_words(memory_bytes: float | None) -> str:
    """Return the usable and the whole memory of a GPU in words."""
    size = UNKNOWN_BYTES if memory_bytes is None else memory_bytes
    return f"{gigabytes_in_words(usable_bytes(memory_bytes))} of {gigabytes_in_words(size)} GB per GPU"
