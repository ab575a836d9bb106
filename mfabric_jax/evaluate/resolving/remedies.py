"""Changes that make a set-up fit the memory of a GPU. Each is checked as the complete set-up of a run."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from mfabric_jax import units
from mfabric_jax.checks import InputError
from mfabric_jax.evaluate.resolving.quick import LoadsOf, choose, evenly
from mfabric_jax.workload import Workload, fullest_stage
from mfabric_jax.workload.memory import usable_bytes
from mfabric_jax.workload.parallel import DEGREES
from mfabric_jax.workload.recompute import LEVELS
from mfabric_jax.workload.space import OpenJob

MORE_GPUS = (1, 2, 4, 8)  # factors to try if no single change fits
Rerun = Callable[[Mapping[str, Any]], Workload]


class Remedy(NamedTuple):
    """Changed settings that make a set-up fit, the resulting workload, and its memory per GPU."""

    changed: dict[str, Any]
    workload: Workload
    memory_bytes: float


def remedies(
    workload: Workload, rerun: Rerun, opened: Callable[[int], OpenJob], loads_of: LoadsOf = evenly
) -> list[Remedy]:
    """Return changes that make a set-up fit the memory on the same number of GPUs: the smallest one of each setting.

    Return the other set-up with the least estimate, on 1, 2, 4 or 8 times as many GPUs, if no single change fits.

    - `rerun`: gives the workload with changed settings; `opened`: the job with its set-up open, on a number of GPUs.
    """
    room = usable_bytes(opened(workload.gpus).gpu.memory_bytes)
    smallest: dict[str, Remedy] = {}
    for changed in _single_changes(workload):
        setting = next(iter(changed))
        if setting not in smallest and (remedy := _remedy(rerun, changed, room, loads_of)) is not None:
            smallest[setting] = remedy
    if smallest:
        return list(smallest.values())
    for times in MORE_GPUS:
        other = choose(opened(workload.gpus * times), loads_of)
        if other is not None and other.fits:
            changed = _differences(workload, other.workload)
            if (remedy := _remedy(rerun, changed, room, loads_of)) is not None:
                return [remedy]
    return []


def _single_changes(workload: Workload) -> Iterator[dict[str, Any]]:
    if workload.sharding == "none":
        yield {"sharding": "optimizer"}
    levels = tuple(LEVELS)
    if workload.recompute in levels:
        for level in levels[levels.index(workload.recompute) + 1 :]:
            yield {"recompute": level}
    halved = workload.micro_batch // 2
    while halved:
        yield {"micro_batch": halved}
        halved //= 2
    for name in ("pp", "tp"):
        for times in (2, 4, 8):
            if workload.dp % times == 0:
                yield {name: getattr(workload, name) * times, "dp": workload.dp // times}


def _differences(before: Workload, after: Workload) -> dict[str, Any]:
    names = (*DEGREES, "folded", "recompute", "gpus", "micro_batch")
    return {name: getattr(after, name) for name in names if getattr(after, name) != getattr(before, name)}


def _remedy(rerun: Rerun, changed: dict[str, Any], room: float, loads_of: LoadsOf) -> Remedy | None:
    try:
        job = rerun(changed)
    except InputError:
        return None
    needs = fullest_stage(job, loads_of(job))[1].total
    return Remedy(changed, job, needs) if needs <= room else None


def remedy_words(remedy: Remedy, before: Workload) -> str:
    """Return a remedy in words: its changes, their consequences and the memory per GPU.

    It names all degrees if one of them changes, because a search would otherwise change the unstated ones.
    """
    spread, now = {}, remedy.workload
    split = *DEGREES, "folded"
    if {*split} & {*remedy.changed}:
        spread = now.stated_degrees | ({"etp": now.tp} if before.folded > 1 else {})
    changed = {name: value for name, value in remedy.changed.items() if name not in split}
    changes = ", ".join(f"{name.replace('_', '-')} {value}" for name, value in (spread | changed).items())
    gigabytes = f"{float(units.to_gigabytes(remedy.memory_bytes)):,.1f}".removesuffix(".0")
    needs = f"{gigabytes} GB"
    if now.gpus != before.gpus:
        needs += f" on {now.gpus:,} GPUs instead of {before.gpus:,}"
    if now.micro_batches != before.micro_batches:
        needs += f", {now.micro_batches:,} micro-batches"
    return f"{changes} ({needs})"
