"""What would make a set-up fit the memory of a GPU: other set-ups, each as a whole, as a run with it is."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from mfabric_jax.checks import InputError
from mfabric_jax.workload.gpus import Gpu
from mfabric_jax.workload.memory import fullest_stage, usable_bytes
from mfabric_jax.workload.parallel import DEGREES, RECOMPUTE, Workload
from mfabric_jax.workload.set_ups import OWN_MICRO_BATCH, gigabytes_in_words, quickest

MORE_GPUS = (1, 2, 4, 8)  # times as many, where no single change of a set-up fits
Rerun = Callable[[Mapping[str, Any]], Workload]


class Remedy(NamedTuple):
    """A change of a set-up after which it fits.

    - `changed`: settings of the set-up.   - `workload`: what then runs.   - `memory_bytes`: of a GPU of it.
    """

    changed: dict[str, Any]
    workload: Workload
    memory_bytes: float


def remedies(workload: Workload, server: Gpu, rerun: Rerun) -> list[Remedy]:
    """Changes of a set-up after which a GPU holds it, each on as many GPUs: of every setting the smallest that does.
    Where none does, the quickest other set-up on as many GPUs, or on 2, 4 or 8 times as many.

    - `rerun`: the workload of this run with settings changed; whatever follows from them is as it says.
    """
    found: dict[str, Remedy] = {}
    for changed in _single_changes(workload):
        setting = next(iter(changed))
        if setting not in found and (remedy := _remedy(rerun, changed, server)) is not None:
            found[setting] = remedy
    if found:
        return list(found.values())
    for times in MORE_GPUS:
        if (remedy := _other_set_up(workload, server, rerun, workload.gpus * times)) is not None:
            return [remedy]
    return []


def _single_changes(workload: Workload) -> Iterator[dict[str, Any]]:
    """The setting that is changed first, then the degree that makes room for it."""
    if workload.sharding == "none":
        yield {"sharding": "optimizer"}
    for kind in RECOMPUTE[RECOMPUTE.index(workload.recompute) + 1 :]:
        yield {"recompute": kind}
    halved = workload.micro_batch // 2
    while halved:
        yield {"micro_batch": halved}
        halved //= 2
    for name in ("pp", "tp"):
        for times in (2, 4, 8):
            if workload.dp % times == 0:
                yield {name: getattr(workload, name) * times, "dp": workload.dp // times}


def _remedy(rerun: Rerun, changed: dict[str, Any], server: Gpu) -> Remedy | None:
    """What a run with these changes needs, where that fits."""
    try:
        job = rerun(changed)
    except InputError:
        return None
    needs = fullest_stage(job)[1].total
    return Remedy(changed, job, needs) if needs <= usable_bytes(server.memory_bytes) else None


def _other_set_up(workload: Workload, server: Gpu, rerun: Rerun, gpus: int) -> Remedy | None:
    kept = ("sequence", "schedule", "chunks", "overlap_passes", "cp", "sharding", "dispatch_bytes", "combine_bytes")
    same = {name: getattr(workload, name) for name in (*kept, "grad_bytes", "redundant_experts")}
    try:
        found = quickest(workload.architecture, server, gpus=gpus, **same)
    except InputError:
        return None
    changed = {name: getattr(found, name) for name in (*DEGREES, "recompute")}
    changed |= {"gpus": gpus, "micro_batch": OWN_MICRO_BATCH}
    return _remedy(rerun, {name: value for name, value in changed.items() if value != getattr(workload, name)}, server)


def remedy_words(remedy: Remedy, before: Workload) -> str:
    """What is changed, what follows from it, and what a GPU then needs. Of degrees all are said: those that are not
    stated would be found anew."""
    spread = {name: getattr(remedy.workload, name) for name in DEGREES if {*DEGREES} & {*remedy.changed}}
    said = ", ".join(f"{name.replace('_', '-')} {value}" for name, value in (spread | remedy.changed).items())
    now, needs = remedy.workload, f"{gigabytes_in_words(remedy.memory_bytes)} GB"
    if now.gpus != before.gpus:
        needs += f" on {now.gpus:,} GPUs instead of {before.gpus:,}"
    if now.micro_batches != before.micro_batches:
        needs += f", {now.micro_batches:,} micro-batches"
    return f"{said} ({needs})"
