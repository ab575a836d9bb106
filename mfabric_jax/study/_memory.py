"""Whether a job fits the memory of its GPUs: columns of rows, and what to say where it does not."""

from typing import Any

from mfabric_jax.study.settings import ModelName, SetUp
from mfabric_jax.units import to_gigabytes
from mfabric_jax.workload import Workload, fullest_stage
from mfabric_jax.workload.catalog import is_open
from mfabric_jax.workload.parallel import DEGREES
from mfabric_jax.workload.set_ups import remedies, set_up_words


def memory_columns(settings: SetUp, job: Workload) -> dict[str, Any]:
    """Gigabytes that a GPU of the fullest stage needs and has, and whether they are enough; None: not known."""
    needs, has = fullest_stage(job)[1].total, settings.server.memory_bytes
    return {
        "memory_gb": float(to_gigabytes(needs)),
        "gpu_memory_gb": None if has is None else float(to_gigabytes(has)),
        "fits": None if has is None else needs <= has,
    }


def found_set_up(settings: SetUp, model: ModelName) -> str | None:
    """The degrees of a model that nobody gave, in a sentence; None where they are given."""
    if not is_open(model, **{name: getattr(settings, name) for name in (*DEGREES, "gpus")}):
        return None
    job = settings.workload(model)
    degrees = {name: getattr(job, name) for name in (*DEGREES, "gpus")}
    rest = f"{job.micro_batches} micro-batches of {job.micro_batch}, recompute {job.recompute}"
    return f"{job.model}: degrees were left open and found: {set_up_words(degrees)}, {rest}."


def too_large(settings: SetUp, model: ModelName) -> str | None:
    """What does not fit and what would, in a sentence; None where all fits, or nothing is known of the GPU's memory."""
    job = settings.workload(model)
    said = memory_columns(settings, job)
    if said["fits"] is not False:
        return None
    changes = remedies(job, float(settings.server.memory_bytes or 0))
    does = f"{', '.join(changes[:-1])} or {changes[-1]}" if changes[1:] else "".join(changes)
    what = f"{job.model} needs {said['memory_gb']:,.0f} GB of {said['gpu_memory_gb']:,.0f} GB a GPU"
    return f"{what}; {does} fits." if does else f"{what}; no single change of its set-up fits."
