"""Set-ups that a model can have: the nearest to one that it cannot, and one for a model that comes without."""

import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from mfabric_jax import units
from mfabric_jax.checks import InputError, whole
from mfabric_jax.workload.memory import fullest_stage
from mfabric_jax.workload.models import Architecture
from mfabric_jax.workload.parallel import DEGREES, RECOMPUTE, Workload
from mfabric_jax.workload.schedules import micro_batches_for

COUNTED = (*DEGREES, "gpus", "gpus_per_server", "chunks", "micro_batch", "micro_batches", "sequence")
BUBBLE = 0.15  # of an iteration, at most, for a model of one's own
GPUS = 1024  # of a cluster that nobody names
REGION_GPUS = 64  # of an expert-parallel group that nobody names, about
FITS_BYTES = float(units.gigabytes(80))  # of a GPU that nobody names
MOST_STAGES = 64  # that are tried
NEAR_SERVERS = (0, 1, -1, 2, -2, 4, -4, 8, -8)  # more, where no set-up has the GPUs that are asked for
NEAREST = 20  # set-ups near to one that is wrong, of which one that fits is named
MOST = 1 << 20  # of a degree that others are compared with
OWN_MICRO_BATCH = 1

SetUpFacts = dict[str, Any]


def finished(facts: SetUpFacts) -> SetUpFacts:
    """The set-up of a model of one's own with what it leaves open: `micro_batch`, and enough micro-batches for a bubble
    of at most 15 %."""
    facts = {"micro_batch": OWN_MICRO_BATCH} | facts
    if facts.get("micro_batches") is None:
        shape = facts["pp"], facts.get("chunks"), facts.get("schedule", "1f1b"), facts.get("overlap_passes")
        facts["micro_batches"] = micro_batches_for(BUBBLE, *shape)
    return facts


def completed(facts: SetUpFacts, fits_bytes: float = FITS_BYTES) -> SetUpFacts:
    """The set-up of a model of one's own with the degrees that it leaves open.

    Regions of several servers, about 64 GPUs, unless `ep` is given; then the least TP and PP with which everything fits
    `fits_bytes` of a GPU; DP fills the cluster, of 1,024 GPUs unless `gpus` says. Where nothing fits, blocks are
    computed again; where that does not help, the set-up that needs least is taken. `InputError` where no set-up has the
    degrees that are given.
    """
    fixed = {name: value for name, value in facts.items() if name != "architecture"}
    for name in COUNTED:
        if fixed.get(name) is not None:
            whole(name, fixed[name])

    def some(**changed: int) -> SetUpFacts | None:
        return _completed(facts["architecture"], tuple(sorted((fixed | changed).items())), fits_bytes)

    found = some()
    if found is None:
        said = ", ".join(f"{name} {fixed[name]}" for name in (*DEGREES, "gpus") if name in fixed)
        gpus, server = fixed.get("gpus", 0), fixed.get("gpus_per_server", 8)
        near = [gpus // server * server + step * server for step in NEAR_SERVERS if gpus]
        near = [count for count in near if count > 0 and some(gpus=count)][:2]
        instead = f"{' or '.join(map(str, sorted(near)))} GPUs would do" if near else "leave one of them out"
        raise InputError(f"no set-up has {said}; {instead}.")
    return facts | found


@functools.lru_cache(maxsize=256)
def _completed(architecture: Architecture, fixed: tuple[tuple[str, Any], ...], fits_bytes: float) -> SetUpFacts | None:
    given: SetUpFacts = dict(fixed)
    least, best = math.inf, None
    for recompute in [given["recompute"]] if "recompute" in given else [RECOMPUTE[0], RECOMPUTE[-1]]:
        several = 0 if "ep" in given else given.get("gpus_per_server", 8)
        for degrees in sorted(_candidates(architecture, given), key=_preferred(several)):
            facts = given | degrees | {"recompute": recompute}
            try:
                job = Workload("own", architecture, **finished(facts))
            except InputError:
                continue
            if (needs := fullest_stage(job)[1].total) < least:
                least, best = needs, degrees | {"recompute": recompute}
            if needs <= fits_bytes:
                return best
    return best


def _preferred(server_gpus: int) -> Any:
    """Of groups that are larger than so many GPUs the least TP, and so on."""

    def key(degrees: Mapping[str, int]) -> tuple:
        group = degrees["tp"] * degrees["ep"]
        off_region = abs(math.log2(group / REGION_GPUS))
        return group <= server_gpus, degrees["tp"], off_region, degrees["pp"], abs(math.log2(degrees["gpus"] / GPUS))

    return key


def _divisors(number: int) -> list[int]:
    return [one for one in range(1, number + 1) if number % one == 0]


def _candidates(architecture: Architecture, given: Mapping[str, Any]) -> Iterator[dict[str, int]]:
    """Degrees, and the GPUs they take, with groups and stages of whole servers and the degrees that are given."""
    per_server, gpus = given.get("gpus_per_server", 8), given.get("gpus")

    def some(name: str, allowed: list[int]) -> list[int]:
        return [one for one in allowed if given.get(name, one) == one]

    deepest = min(architecture.blocks // (given.get("chunks") or 1), MOST_STAGES)
    stages = some("pp", list(range(1, max(deepest, given.get("pp", 1)) + 1)))
    for tp in some("tp", _divisors(per_server)):
        for ep in some("ep", _divisors(architecture.experts)):
            group = tp * ep
            if group % per_server and per_server % group:
                continue
            whole = per_server // math.gcd(group, per_server)  # replicas that fill servers
            for pp in stages:
                dp = given.get("dp", max(whole, (gpus or GPUS) // (group * pp) // whole * whole))
                if dp % whole == 0 and gpus in (None, dp * group * pp):
                    yield {"tp": tp, "ep": ep, "pp": pp, "dp": dp, "gpus": dp * group * pp}


def nearest(
    architecture: Architecture, facts: Mapping[str, Any], asked: Mapping[str, Any], fits_bytes: float = FITS_BYTES
) -> dict[str, int] | None:
    """Degrees that a model can have, near to those of `facts`, that fit a GPU if any near ones do; None where
    there are none, or those of `facts` are such. `gpus` stays where it is `asked`, if it can."""
    wanted = {name: facts[name] if is_degree(facts.get(name)) else 1 for name in DEGREES}
    fixed = {name: facts[name] for name in ("gpus_per_server", "chunks") if is_degree(facts.get(name))}
    gpus, sane = facts.get("gpus"), all(is_degree(facts.get(name)) for name in DEGREES)
    said = "gpus" in asked or (sane and gpus != math.prod(wanted.values()))
    keep = {"gpus": gpus} if said and is_degree(gpus) else {}
    each = list(_candidates(architecture, fixed | keep)) if keep else []
    if not each:
        each = list(_candidates(architecture, fixed)) + list(_candidates(architecture, fixed | {"dp": wanted["dp"]}))

    def distance(degrees: Mapping[str, int]) -> float:
        steps = [abs(math.log2(degrees[name] / wanted[name])) for name in DEGREES]
        return sum(steps) + sum(step > 0 for step in steps)

    each = sorted(each, key=distance)[:NEAREST]
    if not each or distance(each[0]) == 0:
        return None
    rest = {name: value for name, value in facts.items() if name not in (*DEGREES, "gpus", "architecture")}
    found = [job for degrees in each if (job := _tried(architecture, rest | degrees))]
    fitting = [job for job in found if fullest_stage(job)[1].total <= fits_bytes]
    best = next(iter(fitting or found), None)
    return best and {name: getattr(best, name) for name in (*DEGREES, "gpus")}


def is_degree(value: Any) -> bool:
    """Whether a value can be a degree, or a number of GPUs."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and 0 < int(value) < MOST


def _tried(architecture: Architecture, facts: SetUpFacts) -> Workload | None:
    try:
        return Workload("own", architecture, **finished(facts | {"micro_batches": None}))
    except InputError:
        return None


def set_up_words(degrees: Mapping[str, int]) -> str:
    """Degrees, and the GPUs that they take, in words."""
    return ", ".join(f"{name} {degrees[name]}" for name in DEGREES) + f" on {degrees['gpus']:,} GPUs"


def remedies(workload: Workload, most_bytes: float) -> list[str]:
    """Single changes of a set-up, in words, after which every GPU holds at most so many bytes."""
    changes: list[dict[str, Any]] = [{"sharding": "optimizer"}] if workload.sharding == "none" else []
    changes += [{"recompute": kind} for kind in RECOMPUTE[RECOMPUTE.index(workload.recompute) + 1 :]]
    halved = workload.micro_batch // 2
    while halved:
        changes.append({"micro_batch": halved})
        halved //= 2
    for name in ("pp", "tp"):
        for times in (2, 4, 8):
            if workload.dp % times == 0:
                changes.append({name: getattr(workload, name) * times, "dp": workload.dp // times})
    found: dict[str, str] = {}
    for change in changes:
        field, value = next(iter(change.items()))
        if field in found or getattr(workload, field) == value:
            continue
        try:
            changed = dataclasses.replace(workload, **change)
        except InputError:
            continue
        if fullest_stage(changed)[1].total <= most_bytes:
            found[field] = f"{field.replace('_', '-')} {value}"
    return list(found.values())
