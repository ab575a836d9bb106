"""Whether a job fits the memory of its GPUs: columns of rows, and what to say where it does not."""

from typing import Any

from mfabric_jax.checks import InputError
from mfabric_jax.study.settings import ModelName, SetUp
from mfabric_jax.units import to_gigabytes
from mfabric_jax.workload import Workload, fullest_stage, get
from mfabric_jax.workload.catalog import is_open
from mfabric_jax.workload.parallel import DEGREES
from mfabric_jax.workload.set_ups import FITS_BYTES, remedies, set_up_words


def memory_columns(settings: SetUp, job: Workload) -> dict[str, Any]:
    """Gigabytes that a GPU of the fullest stage needs and has, and whether they are enough; None: not known."""
    needs, has = fullest_stage(job)[1].total, settings.server.memory_bytes
    return {
        "memory_gb": float(to_gigabytes(needs)),
        "gpu_memory_gb": None if has is None else float(to_gigabytes(has)),
        "fits": None if has is None else needs <= has,
    }


def found_set_up(settings: SetUp, model: ModelName) -> str | None:
    """The degrees of a model that nobody gave, in sentences; None where they are given."""
    given = {name: getattr(settings, name) for name in (*DEGREES, "gpus")}
    if not is_open(model, **given):
        return None
    job = settings.workload(model)
    degrees = {name: getattr(job, name) for name in (*DEGREES, "gpus")}
    of_it = ", ".join(f"{name} {value}" for name, value in given.items() if value is not None)
    beside = f" beside {of_it}" if of_it else ""
    rest = f"{job.micro_batches} micro-batches of {job.micro_batch}, recompute {job.recompute}"
    said = f"{job.model}: degrees were left open{beside} and found: {set_up_words(degrees)}, {rest}."
    return f"{said} {inside}" if (inside := _in_a_server(settings, job)) else said


def _in_a_server(settings: SetUp, job: Workload) -> str | None:
    """Whether a group could have a server to itself, so that no expert's traffic would leave it, in a sentence."""
    server, memory = settings.server.gpus_per_server, settings.server.memory_bytes
    if job.servers_per_region == 1 or job.architecture.experts % server:
        return None
    try:
        other = get(job, tp=1, ep=server, gpus=job.gpus, gpus_per_server=server)
    except InputError:
        return None
    if fullest_stage(other)[1].total > (memory or FITS_BYTES):
        return None
    return f"Experts over one server (tp 1, ep {server}) fit, too, and then no all-to-all leaves it: compare that."


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
