"""Whether a job fits the memory of its GPUs: columns of rows, and what to say where it does not."""

from collections.abc import Callable, Mapping
from typing import Any

from mfabric_jax.simulation.resolve import Resolved, resolve
from mfabric_jax.study.settings import ModelName, SetUp
from mfabric_jax.units import to_gigabytes
from mfabric_jax.workload import Workload, fullest_stage
from mfabric_jax.workload.catalog import is_open
from mfabric_jax.workload.fitting import remedies, remedy_words
from mfabric_jax.workload.memory import HEADROOM, usable_bytes
from mfabric_jax.workload.parallel import DEGREES
from mfabric_jax.workload.set_ups import set_up_words, set_ups_by_time


def memory_columns(settings: SetUp, job: Workload) -> dict[str, Any]:
    """Gigabytes that a GPU of the fullest stage needs and has, and whether it fits; None: not known."""
    needs, has = fullest_stage(job)[1].total, settings.server.memory_bytes
    return {
        "memory_gb": float(to_gigabytes(needs)),
        "gpu_memory_gb": None if has is None else float(to_gigabytes(has)),
        "fits": None if has is None else needs <= usable_bytes(has),
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
    return f"{said} {across}" if (across := _across_servers(settings, job)) else said


def _across_servers(settings: SetUp, job: Workload) -> str | None:
    """Of a job whose all-to-alls stay inside servers: the quickest whose do not, in a sentence."""
    if job.servers_per_region > 1 or settings.ep is not None:
        return None
    size = {name: getattr(job, name) for name in ("gpus", "micro_batch", "sequence")}
    found = set_ups_by_time(job.architecture, settings.server, micro_batches=settings.micro_batches, **size)
    least = settings.server.gpus_per_server
    across = (one for one in found if one.fits and one.ep >= least and one.tp * one.ep > least)
    if (best := next(across, None)) is None:
        return None
    named = f"tp {best.tp}, ep {best.ep}, pp {best.pp}, recompute {best.recompute}"
    return f"Its all-to-alls stay inside servers, whatever the fabric; the quickest whose do not: {named}."


def too_large(settings: SetUp, model: ModelName) -> str | None:
    """What does not fit and what would, in a sentence; None where all fits, or nothing is known of the GPU's memory."""
    job = settings.workload(model)
    said = memory_columns(settings, job)
    if said["fits"] is not False:
        return None
    does = [remedy_words(one, job) for one in remedies(job, settings.server, _again(settings, model))]
    kept = f"{HEADROOM:.0%} kept for buffers"
    what = f"{job.model} needs {said['memory_gb']:,.0f} GB of {said['gpu_memory_gb']:,.0f} GB a GPU ({kept})"
    return f"{what}; what fits: {'; '.join(does)}." if does else f"{what}; no other set-up fits, either."


def _again(settings: SetUp, model: ModelName) -> Callable[[Mapping[str, Any]], Workload]:
    """The workload of a model in this run with some settings changed; what is said behind a name counts first."""

    def changed(given: Mapping[str, Any]) -> Workload:
        if isinstance(model, Workload):
            return settings.workload(model, **given)
        return settings.workload(model + "".join(f":{name}={value}" for name, value in given.items()))

    return changed


FIELDS = {  # of a `Workload`, and where a case says them
    **{name: f"job.parallel.{name}" for name in (*DEGREES, "gpus")},
    **{name: f"job.batch.{name}" for name in ("micro_batch", "micro_batches")},
    **{"recompute": "job.recompute", "sharding": "job.sharding"},
}


def found_words(resolved: Resolved) -> str | None:
    """The degrees of a case that nobody gave, and why they are these, in sentences; None where they are given."""
    job, why = resolved.job, resolved.why
    found = [name for name in ("tp", "pp", "ep") if f"job.parallel.{name}" in why]
    recipe = [
        why[f"job.parallel.{name}"] for name in found if why[f"job.parallel.{name}"].startswith(("recipe", "file"))
    ]
    if not found or len(recipe) == len(found):
        return None
    degrees = {name: getattr(job, name) for name in (*DEGREES, "gpus")}
    rest = f"{job.micro_batches} micro-batches of {job.micro_batch}, recompute {job.recompute}"
    return f"{job.model}: {', '.join(found)} were left open and found: {set_up_words(degrees)}, {rest}."


def too_large_words(resolved: Resolved) -> str | None:
    """What does not fit and what would, in a sentence; None where all fits, or nothing is known of the GPU's memory."""
    job, server = resolved.job, resolved.gpu
    said = memory_columns(resolved.settings, job)  # type: ignore[arg-type]
    if said["fits"] is not False:
        return None

    def again(changed: Mapping[str, Any]) -> Workload:
        """The case as it was asked for, on these GPUs, with some settings changed."""
        stated = {FIELDS[name]: getattr(job, name) for name in ("tp", "pp", "ep", "recompute")}
        stated |= {"job.parallel.gpus": job.gpus} | {FIELDS[name]: value for name, value in changed.items()}
        return resolve(resolved.asked.with_(stated)).job

    does = [remedy_words(one, job) for one in remedies(job, server, again)]
    kept = f"{HEADROOM:.0%} kept for buffers"
    what = f"{job.model} needs {said['memory_gb']:,.0f} GB of {said['gpu_memory_gb']:,.0f} GB a GPU ({kept})"
    return f"{what}; what fits: {'; '.join(does)}." if does else f"{what}; no other set-up fits, either."
