"""Set-ups that a model can have: the quickest that fits the memory of a GPU, and changes that make one fit."""

import dataclasses
import heapq
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from mfabric_jax import units
from mfabric_jax.checks import InputError, one_of, whole
from mfabric_jax.workload.estimate import USUAL, Speeds, iteration_seconds
from mfabric_jax.workload.gpus import Gpu
from mfabric_jax.workload.memory import UNKNOWN_BYTES, fullest_stage, memory_of, usable_bytes
from mfabric_jax.workload.models import Architecture
from mfabric_jax.workload.parallel import DEGREES, RECOMPUTE, Workload
from mfabric_jax.workload.schedules import SCHEDULES, micro_batches_for

COUNTED = (*DEGREES, "gpus", "chunks", "micro_batch", "micro_batches", "sequence")
BUBBLE = 0.15  # of an iteration, at most, for a model of one's own whose degrees are given
SEQUENCES = 4096  # of an iteration, all replicas together, about, for one whose degrees are found
GPUS = 1024  # of a cluster that nobody names
MOST_STAGES = 64  # that are tried
NEAR_SERVERS = (0, 1, -1, 2, -2, 4, -4, 8, -8)  # more, where no set-up has the GPUs that are asked for
MOST = 1 << 20  # of a degree that others are compared with
OWN_MICRO_BATCH = 1

SetUpFacts = dict[str, Any]


class Candidate(NamedTuple):
    """A set-up of a model.

    - `micro_batches`: of an iteration.   - `memory_bytes`: of a GPU of the fullest stage.
    - `seconds_per_token`: of all GPUs together, by estimate.   - `fits`: whether the memory leaves its headroom.
    - `why`: of one that is chosen, a sentence.
    """

    tp: int
    pp: int
    ep: int
    dp: int
    gpus: int
    micro_batches: int
    recompute: str
    memory_bytes: float
    seconds_per_token: float
    fits: bool
    why: str = ""


def finished(facts: SetUpFacts) -> SetUpFacts:
    """The set-up of a model of one's own with what it leaves open: `micro_batch`, and enough micro-batches for a bubble
    of at most 15 %."""
    facts = {"micro_batch": OWN_MICRO_BATCH} | facts
    if facts.get("micro_batches") is None:
        shape = facts["pp"], facts.get("chunks"), facts.get("schedule", "1f1b"), facts.get("overlap_passes")
        facts["micro_batches"] = micro_batches_for(BUBBLE, *shape)
    return facts


def quickest(
    architecture: Architecture,
    server: Gpu,
    *,
    gpus: int | None = None,
    tp: int | None = None,
    pp: int | None = None,
    ep: int | None = None,
    dp: int | None = None,
    global_batch: int | None = None,
    micro_batches: int | None = None,
    recompute: str | None = None,
    speeds: Speeds = USUAL,
    **job: Any,
) -> Candidate:
    """Of all set-ups that fit the memory of a GPU the one that takes least time a token, by estimate.

    - What is stated stays; `gpus` open: about 1,024; `ep` open: as many ranks as a server has GPUs or more, if any such
      set-up fits, as in nearly all published ones: experts that see few tokens reach no usual efficiency.
    - `server`: the GPU and the server it sits in.
    - `global_batch`: sequences of an iteration, all replicas together; or `micro_batches`; where both are open, as many
      as make about 4,096 sequences.
    - `recompute` open: the least that fits.   - `job`: other fields of a `Workload`.

    Where nothing fits, the one that needs least memory, with `fits` false. `InputError` where no set-up has what is
    stated, with what would do.
    """
    wanted = job | {"gpus": gpus, "tp": tp, "pp": pp, "ep": ep, "dp": dp, "micro_batches": micro_batches}
    wanted |= {"global_batch": global_batch, "recompute": recompute}
    room, too_large = usable_bytes(server.memory_bytes), []
    for wide in (True,) if ep is not None else (True, False):
        jobs = _workloads(architecture, server, wanted, lambda each, wide=wide: wide == _is_wide(each, ep, server))
        for seconds, one in _by_time(jobs, server, recompute, speeds):
            at_least = memory_of(one, 0).total
            if at_least <= room and (found := _candidate(one, server, seconds)).fits:
                return found._replace(why=_why(one, found, server, speeds))
            too_large.append((at_least, len(too_large), seconds, one))
    if not too_large:
        raise _refusal(architecture, server, wanted)
    least = _least(sorted(too_large), server)
    why = (
        f"No set-up fits {_room(server)}; {_in_words(least)} needs least, {gigabytes_in_words(least.memory_bytes)} GB."
    )
    return least._replace(why=why)


def _is_wide(degrees: Mapping[str, int], ep: int | None, server: Gpu) -> bool:
    return ep is not None or degrees["ep"] >= server.gpus_per_server


def _least(rows: Sequence[tuple[float, int, float, Workload]], server: Gpu) -> Candidate:
    """The one that needs least memory, of rows that begin with what a GPU needs at least, ascending."""
    _, _, seconds, one = rows[0]
    best = _candidate(one, server, seconds)
    for at_least, _, seconds, one in rows[1:]:
        if at_least >= best.memory_bytes:
            break
        best = min(best, _candidate(one, server, seconds), key=lambda each: each.memory_bytes)
    return best


def set_ups_by_time(
    architecture: Architecture, server: Gpu, *, speeds: Speeds = USUAL, **wanted: Any
) -> list[Candidate]:
    """All set-ups that have what is `wanted` (as `quickest` takes it), the quickest first, by estimate."""
    jobs = _workloads(architecture, server, wanted)
    return [_candidate(job, server, s) for s, job in _by_time(jobs, server, wanted.get("recompute"), speeds)]


def _by_time(
    jobs: Sequence[Workload], server: Gpu, recompute: str | None, speeds: Speeds
) -> Iterator[tuple[float, Workload]]:
    """Seconds a token and set-ups, the quickest first, each with every recomputation unless one is given.

    Recomputing more never makes a set-up quicker, so it is looked at after less.
    """
    queue = [(_per_token(job, server, speeds), at, job) for at, job in enumerate(jobs)]
    heapq.heapify(queue)
    while queue:
        seconds, at, job = heapq.heappop(queue)
        yield seconds, job
        if recompute is None and job.recompute != RECOMPUTE[-1]:
            more = RECOMPUTE[RECOMPUTE.index(job.recompute) + 1]
            if (again := _changed(job, recompute=more)) is not None:
                heapq.heappush(queue, (_per_token(again, server, speeds), at, again))


def _per_token(job: Workload, server: Gpu, speeds: Speeds) -> float:
    return iteration_seconds(job, server, speeds).total / job.iteration_tokens


def _candidate(job: Workload, server: Gpu, seconds: float) -> Candidate:
    needs = fullest_stage(job)[1].total
    size = job.tp, job.pp, job.ep, job.dp, job.gpus, job.micro_batches, job.recompute
    return Candidate(*size, needs, seconds, needs <= usable_bytes(server.memory_bytes))


def _workloads(
    architecture: Architecture,
    server: Gpu,
    wanted: Mapping[str, Any],
    some: Callable[[Mapping[str, int]], bool] = lambda degrees: True,
) -> list[Workload]:
    """Those that can be, by degrees; only `some` of them."""
    given = {name: value for name, value in wanted.items() if value is not None}
    given["gpus_per_server"] = server.gpus_per_server
    for name in COUNTED:
        if name in given:
            whole(name, given[name])
    batch = given.pop("global_batch", None)
    if batch is not None and "micro_batches" in given:
        raise InputError(f"global_batch {batch} is not used beside micro_batches {given['micro_batches']}.")
    found = []
    for degrees in filter(some, _degrees(architecture, given)):
        facts = {"micro_batches": _micro_batches(given | degrees, batch)} | given | degrees
        if facts["micro_batches"] and (job := _tried(architecture, facts)) is not None:
            found.append(job)
    return found


def _micro_batches(facts: Mapping[str, Any], batch: int | None) -> int:
    """Those of a global batch, 0 where they do not come out even; without one, of about so many sequences as usual."""
    together = _sequences(facts)
    if batch is not None:
        return 0 if batch % together else batch // together
    order = SCHEDULES[one_of("schedule", facts.get("schedule", "1f1b"), SCHEDULES)]
    step = order.step(facts["pp"])
    return max(order.least * facts["pp"], step, round(SEQUENCES / together / step) * step)


def _sequences(facts: Mapping[str, Any]) -> int:
    """Sequences of one micro-batch, all replicas together."""
    together = facts["dp"] * facts["ep"] * facts.get("micro_batch", OWN_MICRO_BATCH)
    return max(1, together // facts.get("cp", 1))


def _degrees(architecture: Architecture, given: Mapping[str, Any]) -> list[dict[str, int]]:
    """Degrees on the GPUs that are given, or else on 1,024, or as many as are nearest to that."""
    found = list(_candidates(architecture, {"gpus": GPUS} | dict(given)))
    if found or "gpus" in given:
        return found
    each = [(abs(math.log2(degrees["gpus"] / GPUS)), degrees) for degrees in _candidates(architecture, given)]
    closest = min((off for off, _ in each), default=0.0)
    return [degrees for off, degrees in each if off == closest]


def _refusal(architecture: Architecture, server: Gpu, wanted: Mapping[str, Any]) -> InputError:
    """Why no set-up has what is wanted."""
    given = {name: value for name, value in wanted.items() if value is not None}
    said = ", ".join(f"{name} {given[name]}" for name in (*DEGREES, "gpus") if name in given) or "such degrees"
    given["gpus_per_server"] = server.gpus_per_server
    degrees = _degrees(architecture, given)
    batch, steps = given.pop("global_batch", None), {_sequences(given | each) for each in degrees}
    if degrees and batch is not None and all(batch % step for step in steps):
        near = sorted({max(1, batch // step + more) * step for step in (min(steps),) for more in (0, 1)})
        instead = f"{' or '.join(map(str, near))} would do"
        return InputError(f"no set-up with {said} divides global_batch {batch}; {instead}.")
    if len(degrees) == 1:
        facts = {"micro_batches": _micro_batches(given | degrees[0], batch)} | given | degrees[0]
        try:
            Workload.of("own", architecture, **finished(facts))
        except InputError as mistake:
            return mistake
    gpus, size = given.get("gpus", 0), server.gpus_per_server
    near = [gpus // size * size + step * size for step in NEAR_SERVERS if gpus]
    near = [count for count in near if count > 0 and _workloads(architecture, server, dict(wanted) | {"gpus": count})]
    instead = f"{' or '.join(map(str, sorted(near[:2])))} GPUs would do" if near else "leave one of them out"
    return InputError(f"no set-up has {said}; {instead}.")


def gigabytes_in_words(size: float) -> str:
    return f"{float(units.to_gigabytes(size)):,.1f}".removesuffix(".0")


def _room(server: Gpu) -> str:
    """What of a GPU's memory a set-up may fill, in words."""
    size = UNKNOWN_BYTES if server.memory_bytes is None else server.memory_bytes
    return f"{gigabytes_in_words(usable_bytes(server.memory_bytes))} of {gigabytes_in_words(size)} GB a GPU"


def _in_words(one: Candidate) -> str:
    return f"{set_up_words(one._asdict())}, recompute {one.recompute}"


def _why(job: Workload, found: Candidate, server: Gpu, speeds: Speeds) -> str:
    seconds = iteration_seconds(job, server, speeds)
    shares = {name.replace("_", " "): round(100 * part / seconds.total) for name, part in seconds._asdict().items()}
    parts = ", ".join(f"{name} {share} %" for name, share in shares.items() if share)
    return f"{_in_words(found)}: of what fits {_room(server)} the least time a token by estimate ({parts})."


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


def is_degree(value: Any) -> bool:
    """Whether a value can be a degree, or a number of GPUs."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and 0 < int(value) < MOST


def _changed(job: Workload, **changed: Any) -> Workload | None:
    try:
        return dataclasses.replace(job, **changed)
    except InputError:
        return None


def _tried(architecture: Architecture, facts: SetUpFacts) -> Workload | None:
    try:
        return Workload.of("own", architecture, **finished(facts))
    except InputError:
        return None


def set_up_words(degrees: Mapping[str, int]) -> str:
    """Degrees, and the GPUs that they take, in words."""
    return ", ".join(f"{name} {degrees[name]}" for name in DEGREES) + f" on {degrees['gpus']:,} GPUs"


# What would make a set-up fit the memory of a GPU: other set-ups, each as a whole, as a run with it is.

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
