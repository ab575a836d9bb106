"""Set-up search: the fastest set-up of a model that fits a GPU's memory, and changes that make a set-up fit."""

import dataclasses
import heapq
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from mfabric_jax import units
from mfabric_jax.checks import InputError, one_of, whole
from mfabric_jax.workload.estimate import USUAL, Speeds, iteration_seconds
from mfabric_jax.workload.gpus import Gpu
from mfabric_jax.workload.memory import UNKNOWN_BYTES, Loads, fullest_stage, memory_of, usable_bytes
from mfabric_jax.workload.models import Architecture
from mfabric_jax.workload.parallel import DEGREES, Workload
from mfabric_jax.workload.recompute import LEVELS
from mfabric_jax.workload.schedules import SCHEDULES

COUNTED = (*DEGREES, "gpus", "chunks", "micro_batch", "micro_batches", "sequence")
SEQUENCES = 4096  # approximate sequences per iteration, if no batch is stated
GPUS = 1024  # GPUs, if not stated
MOST_STAGES = 64  # most pipeline stages in the search
NEAR_SERVERS = (0, 1, -1, 2, -2, 4, -4, 8, -8)  # servers to add in suggestions if no set-up has the stated GPUs
OWN_MICRO_BATCH = 1


class Candidate(NamedTuple):
    """A set-up of a model, with bytes per GPU on the fullest stage and the cluster's estimated seconds per token."""

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
    folded: int = 1
    why: str = ""


LoadsOf = Callable[[Workload], Loads]  # loads of the stages' fullest ranks


def evenly(workload: Workload) -> Loads:
    """Return None, which means that all ranks receive equal loads."""
    return None


def quickest(
    architecture: Architecture,
    server: Gpu,
    *,
    recompute: str | None = None,
    speeds: Speeds = USUAL,
    loads_of: LoadsOf = evenly,
    **stated: Any,
) -> Candidate:
    """Return the set-up with the least estimated time per token that fits the memory of a GPU of `server`.

    - `stated`: `global_batch` (sequences per iteration) and `Workload` fields; None is open.

    Open `gpus` become about 1,024, an open batch about 4,096 sequences, and an open `recompute` the least level that
    fits. An open `ep` spans at least a server if such a set-up fits: nearly all published set-ups do, and experts with
    few tokens do not reach the usual efficiency. If nothing fits, return the set-up with the least memory and `fits`
    false. Raise `InputError`, with values that work, if no set-up has the stated values.
    """
    stated = {name: value for name, value in stated.items() if value is not None}
    stated["gpus_per_server"] = server.gpus_per_server
    if recompute is not None:
        stated["recompute"] = recompute
    room, too_large = usable_bytes(server.memory_bytes), []
    wide_from = 0 if "ep" in stated else stated["gpus_per_server"]
    for wide in (True, False):
        jobs = _workloads(architecture, stated, lambda ep, wide=wide: wide == (ep >= wide_from))
        for seconds, job in _by_time(jobs, server, recompute, speeds):
            at_least = memory_of(job, 0).total
            if at_least <= room and (candidate := _candidate(job, server, seconds, loads_of)).fits:
                return candidate._replace(why=_why(job, candidate, server, speeds))
            too_large.append((at_least, len(too_large), seconds, job))
    if not too_large:
        raise _refusal(architecture, stated)
    least = _least(sorted(too_large), server, loads_of)
    why = (
        f"No set-up fits {_room(server)}; {_in_words(least)} needs the least, "
        f"{gigabytes_in_words(least.memory_bytes)} GB."
    )
    return least._replace(why=why)


def _least(rows: Sequence[tuple[float, int, float, Workload]], server: Gpu, loads_of: LoadsOf) -> Candidate:
    """The set-up that needs the least memory; `rows` are sorted by a lower bound of the memory."""
    _, _, seconds, job = rows[0]
    best = _candidate(job, server, seconds, loads_of)
    for at_least, _, seconds, job in rows[1:]:
        if at_least >= best.memory_bytes:
            break
        best = min(best, _candidate(job, server, seconds, loads_of), key=lambda each: each.memory_bytes)
    return best


def _by_time(
    jobs: Sequence[Workload], server: Gpu, recompute: str | None, speeds: Speeds
) -> Iterator[tuple[float, Workload]]:
    """Yield seconds per token and set-up, fastest first. A level that recomputes more is never faster."""

    def per_token(job: Workload) -> float:
        return iteration_seconds(job, server, speeds).total / job.iteration_tokens

    queue = [(per_token(job), number, job) for number, job in enumerate(jobs)]
    heapq.heapify(queue)
    while queue:
        seconds, number, job = heapq.heappop(queue)
        yield seconds, job
        if recompute is None and (harder := _harder(job)):
            more = harder[0]
            if (
                again := _workload_or_none(lambda job=job, more=more: dataclasses.replace(job, recompute=more))
            ) is not None:
                heapq.heappush(queue, (per_token(again), number, again))


def _harder(job: Workload) -> tuple[str, ...]:
    """Levels that recompute more than a job does; none if the job states parts instead of a level."""
    levels = tuple(LEVELS)
    return levels[levels.index(job.recompute) + 1 :] if job.recompute in levels else ()


def _candidate(job: Workload, server: Gpu, seconds: float, loads_of: LoadsOf) -> Candidate:
    needs = fullest_stage(job, loads_of(job))[1].total
    size = job.tp, job.pp, job.ep, job.dp, job.gpus, job.micro_batches, job.recompute
    return Candidate(*size, needs, seconds, needs <= usable_bytes(server.memory_bytes), job.folded)


def _workloads(
    architecture: Architecture, stated: Mapping[str, Any], some: Callable[[int], bool] = lambda ep: True
) -> list[Workload]:
    for name in COUNTED:
        if name in stated:
            whole(name, stated[name])
    batch = stated.get("global_batch")
    if batch is not None and "micro_batches" in stated:
        raise InputError(f"global_batch {batch} and micro_batches {stated['micro_batches']} cannot both be stated.")
    every = [_facts(stated, degrees) for degrees in _degrees(architecture, stated) if some(degrees["ep"])]
    jobs = (
        _workload_or_none(lambda facts=facts: Workload.of("own", architecture, **facts)) for facts in every if facts
    )
    return [job for job in jobs if job is not None]


def _facts(stated: Mapping[str, Any], degrees: Mapping[str, int]) -> dict[str, Any] | None:
    facts = {"micro_batch": OWN_MICRO_BATCH} | dict(stated) | dict(degrees)
    batch, together = facts.pop("global_batch", None), _sequences(facts)
    if "micro_batches" not in facts and batch is not None:
        if batch % together:
            return None
        facts["micro_batches"] = batch // together
    if "micro_batches" not in facts:
        order = SCHEDULES[one_of("schedule", str(facts.get("schedule", "1f1b")), SCHEDULES)]
        step = order.step(facts["pp"])
        facts["micro_batches"] = max(order.least * facts["pp"], step, round(SEQUENCES / together / step) * step)
    return facts


def _sequences(facts: Mapping[str, Any]) -> int:
    together = facts["dp"] * facts["ep"] * facts.get("micro_batch", OWN_MICRO_BATCH)
    return max(1, together // (facts.get("cp", 1) * facts.get("folded", 1)))


def _workload_or_none(make: Callable[[], Workload]) -> Workload | None:
    try:
        return make()
    except InputError:
        return None


def _degrees(architecture: Architecture, stated: Mapping[str, Any]) -> list[dict[str, int]]:
    every = list(_candidates(architecture, {"gpus": GPUS} | dict(stated)))
    if every or "gpus" in stated:
        return every
    each = [(abs(math.log2(degrees["gpus"] / GPUS)), degrees) for degrees in _candidates(architecture, stated)]
    closest = min((off for off, _ in each), default=0.0)
    return [degrees for off, degrees in each if off == closest]


def _candidates(architecture: Architecture, stated: Mapping[str, Any]) -> Iterator[dict[str, int]]:
    per_server, gpus = stated["gpus_per_server"], stated.get("gpus")

    def some(name: str, allowed: Sequence[int]) -> list[int]:
        return [value for value in allowed if stated.get(name, value) == value]

    deepest = min(architecture.blocks // stated.get("chunks", 1), MOST_STAGES)
    stages = some("pp", range(1, max(deepest, stated.get("pp", 1)) + 1))
    for tp in some("tp", _divisors(per_server)):
        for ep in some("ep", _divisors(architecture.experts)):
            group = tp * ep
            if group % per_server and per_server % group:
                continue
            whole = per_server // math.gcd(group, per_server)  # replicas that fill servers
            for pp in stages:
                dp = stated.get("dp", max(whole, (gpus or GPUS) // (group * pp) // whole * whole))
                if dp % whole == 0 and gpus in (None, dp * group * pp):
                    yield {"tp": tp, "ep": ep, "pp": pp, "dp": dp, "gpus": dp * group * pp}


def _divisors(number: int) -> list[int]:
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]


def _refusal(architecture: Architecture, stated: Mapping[str, Any]) -> InputError:
    """The error for stated values that no set-up has; it names the rule that refuses them, and changes of one value
    that pass."""
    words = ", ".join(f"{name} {stated[name]}" for name in (*DEGREES, "gpus") if name in stated) or "such degrees"
    degrees = _degrees(architecture, stated)
    batch, steps = stated.get("global_batch"), {_sequences({**stated, **each}) for each in degrees}
    if degrees and batch is not None and all(batch % step for step in steps):
        near = sorted({max(1, batch // step + more) * step for step in (min(steps),) for more in (0, 1)})
        instead = f"{' or '.join(map(str, near))} would do"
        return InputError(f"no set-up with {words} divides global_batch {batch}; {instead}.")
    mistakes = [str(mistake) for each in degrees if (mistake := _mistake(architecture, stated, each))]
    if len(degrees) == 1 and mistakes:
        return InputError(mistakes[0])
    why = max(mistakes, key=mistakes.count).rstrip(".") if mistakes else _refusing_rule(architecture, stated)
    passing = _passing(architecture, stated)
    return InputError(f"no set-up has {words}: {why}{f'; {passing} would do' if passing else ''}.")


def _mistake(architecture: Architecture, stated: Mapping[str, Any], degrees: Mapping[str, int]) -> InputError | None:
    """The error of a set-up with these degrees; None if it is valid or only its batch is not."""
    facts = _facts(stated, degrees)
    try:
        if facts is not None:
            Workload.of("own", architecture, **facts)
    except InputError as mistake:
        return mistake
    return None


def _refusing_rule(architecture: Architecture, stated: Mapping[str, Any]) -> str:
    """The first rule of `_candidates` that excludes all degrees."""
    per_server, gpus = stated["gpus_per_server"], stated.get("gpus")
    tp, ep, pp, dp = (stated.get(name) for name in ("tp", "ep", "pp", "dp"))
    if tp is not None and per_server % tp:
        return f"tp must divide the {per_server} GPUs of a server"
    if ep is not None and architecture.experts % ep:
        return f"ep must divide the {architecture.experts} experts"
    tps, eps = [tp] if tp else _divisors(per_server), [ep] if ep else _divisors(architecture.experts)
    groups = [tp_degree * other for tp_degree in tps for other in eps]
    groups = [group for group in groups if group % per_server == 0 or per_server % group == 0]
    if not groups:
        return f"tp x ep must be a multiple or a divisor of the {per_server} GPUs of a server"
    if gpus is not None and gpus % per_server:
        return f"gpus must fill whole servers of {per_server}"
    if gpus is not None and not any(gpus % (group * (pp or 1) * (dp or 1)) == 0 for group in groups):
        return "gpus must be a multiple of tp x ep x pp x dp"
    if dp is not None and not any(dp * group % per_server == 0 for group in groups):
        return f"a pipeline stage fills whole servers, so tp x ep x dp must be a multiple of {per_server} GPUs"
    if gpus is not None and pp is not None and gpus % (pp * per_server):
        return (
            f"a pipeline stage fills whole servers of {per_server} GPUs, so gpus must be a multiple of "
            f"pp x {per_server} = {pp * per_server}"
        )
    both = None if pp is None or dp is None else pp * dp
    if gpus is not None and both is not None and not any(gpus == both * group for group in groups):
        return "gpus must be tp x ep x dp x pp"
    deepest = min(architecture.blocks // stated.get("chunks", 1), MOST_STAGES)
    return (
        f"gpus must be tp x ep x dp x pp, of stages that fill whole servers of {per_server} GPUs and at most "
        f"{deepest} stages"
    )


def _passing(architecture: Architecture, stated: Mapping[str, Any]) -> str:
    """Near values that pass if only one stated value changes, such as "pp 1 or gpus 32"; empty if there are none."""
    per_server, gpus = stated["gpus_per_server"], stated.get("gpus", 0)
    deepest = min(architecture.blocks // stated.get("chunks", 1), MOST_STAGES)
    size, times = per_server * stated.get("pp", 1), (1, 2, 4, 8)
    choices = {
        "tp": _divisors(per_server),
        "ep": _divisors(architecture.experts),
        "pp": range(1, deepest + 1),
        "dp": [*range(1, 2 * stated.get("dp", 1) + per_server + 1)],
        "gpus": sorted(
            {gpus // per_server * per_server + step * per_server for step in NEAR_SERVERS}
            | {gpus // size * size + step * size for step in NEAR_SERVERS}
            | {gpus * factor for factor in times}
        ),
    }
    changes = []
    for name, values in choices.items():
        if name in stated:
            near = sorted(
                (value for value in values if value > 0),
                key=lambda value, name=name: abs(math.log(value / stated[name])),
            )
            passes = (value for value in near if _workloads(architecture, {**stated, name: value}))
            some = itertools.islice(passes, 2 if name == "gpus" else 1)
            changes += [f"{name} {' or '.join(map(str, sorted(some)))}".strip()]
    return " or ".join(each for each in changes if " " in each)


def gigabytes_in_words(size: float) -> str:
    return f"{float(units.to_gigabytes(size)):,.1f}".removesuffix(".0")


def _room(server: Gpu) -> str:
    size = UNKNOWN_BYTES if server.memory_bytes is None else server.memory_bytes
    return f"{gigabytes_in_words(usable_bytes(server.memory_bytes))} of {gigabytes_in_words(size)} GB per GPU"


def _in_words(candidate: Candidate) -> str:
    return f"{set_up_words(candidate._asdict())}, recompute {candidate.recompute}"


def _why(job: Workload, candidate: Candidate, server: Gpu, speeds: Speeds) -> str:
    seconds = iteration_seconds(job, server, speeds)
    shares = {name.replace("_", " "): round(100 * part / seconds.total) for name, part in seconds._asdict().items()}
    parts = ", ".join(f"{name} {share} %" for name, share in shares.items() if share)
    return f"{_in_words(candidate)}: the least estimated time per token of all that fit {_room(server)} ({parts})."


def set_up_words(degrees: Mapping[str, int]) -> str:
    """Return degrees in words, such as "tp 2, etp 1, ep 8, dp 2, pp 8 on 128 GPUs". `degrees`: `Workload` fields."""
    shown = _degrees_of_case(degrees, degrees.get("folded", 1))
    return ", ".join(f"{name} {value}" for name, value in shown.items()) + f" on {degrees['gpus']:,} GPUs"


def _degrees_of_case(degrees: Mapping[str, int], folded: int) -> dict[str, int]:
    """Degrees of a `Workload` in terms of `job.parallel`: `tp` of attention, and `etp` if it differs."""
    own = {name: degrees[name] for name in DEGREES}
    return own if folded == 1 else {"tp": folded * own.pop("tp"), "etp": degrees["tp"]} | own


# Changes that would make a set-up fit the memory of a GPU. Each is checked as the complete set-up of a run.

MORE_GPUS = (1, 2, 4, 8)  # factors to try if no single change fits
Rerun = Callable[[Mapping[str, Any]], Workload]


class Remedy(NamedTuple):
    """Changed settings that make a set-up fit, the resulting workload, and its memory per GPU."""

    changed: dict[str, Any]
    workload: Workload
    memory_bytes: float


def remedies(workload: Workload, server: Gpu, rerun: Rerun, loads_of: LoadsOf = evenly) -> list[Remedy]:
    """Return changes that make a set-up fit the memory on the same number of GPUs: the smallest one of each setting.

    Return the fastest other set-up, on 1, 2, 4 or 8 times as many GPUs, if no single change fits.

    - `rerun`: gives the workload with changed settings.
    """
    smallest: dict[str, Remedy] = {}
    for changed in _single_changes(workload):
        setting = next(iter(changed))
        if setting not in smallest and (remedy := _remedy(rerun, changed, server, loads_of)) is not None:
            smallest[setting] = remedy
    if smallest:
        return list(smallest.values())
    for times in MORE_GPUS:
        if (remedy := _other_set_up(workload, server, rerun, workload.gpus * times, loads_of)) is not None:
            return [remedy]
    return []


def _single_changes(workload: Workload) -> Iterator[dict[str, Any]]:
    if workload.sharding == "none":
        yield {"sharding": "optimizer"}
    for kind in _harder(workload):
        yield {"recompute": kind}
    halved = workload.micro_batch // 2
    while halved:
        yield {"micro_batch": halved}
        halved //= 2
    for name in ("pp", "tp"):
        for times in (2, 4, 8):
            if workload.dp % times == 0:
                yield {name: getattr(workload, name) * times, "dp": workload.dp // times}


def _remedy(rerun: Rerun, changed: dict[str, Any], server: Gpu, loads_of: LoadsOf) -> Remedy | None:
    job = _workload_or_none(lambda: rerun(changed))
    if job is None:
        return None
    needs = fullest_stage(job, loads_of(job))[1].total
    return Remedy(changed, job, needs) if needs <= usable_bytes(server.memory_bytes) else None


def _other_set_up(workload: Workload, server: Gpu, rerun: Rerun, gpus: int, loads_of: LoadsOf) -> Remedy | None:
    kept = ("sequence", "schedule", "chunks", "overlap_passes", "cp", "folded", "tp_reduces", "sharding")
    kept = (*kept, "dispatch_bytes", "combine_bytes", "grad_bytes", "redundant_experts")
    same = {name: getattr(workload, name) for name in kept}
    try:
        other = quickest(workload.architecture, server, gpus=gpus, loads_of=loads_of, **same)
    except InputError:
        return None
    changed = {name: getattr(other, name) for name in (*DEGREES, "recompute")}
    changed |= {"gpus": gpus, "micro_batch": OWN_MICRO_BATCH}
    changed = {name: value for name, value in changed.items() if value != getattr(workload, name)}
    return _remedy(rerun, changed, server, loads_of)


def remedy_words(remedy: Remedy, before: Workload) -> str:
    """Return a remedy in words: its changes, their consequences and the memory per GPU.

    It names all degrees if one of them changes, because a search would otherwise change the unstated ones.
    """
    spread, changed = {}, remedy.changed
    if {*DEGREES} & {*changed}:
        spread = _degrees_of_case({name: getattr(remedy.workload, name) for name in DEGREES}, remedy.workload.folded)
        changed = {name: value for name, value in changed.items() if name not in DEGREES}
    changes = ", ".join(f"{name.replace('_', '-')} {value}" for name, value in (spread | changed).items())
    now, needs = remedy.workload, f"{gigabytes_in_words(remedy.memory_bytes)} GB"
    if now.gpus != before.gpus:
        needs += f" on {now.gpus:,} GPUs instead of {before.gpus:,}"
    if now.micro_batches != before.micro_batches:
        needs += f", {now.micro_batches:,} micro-batches"
    return f"{changes} ({needs})"
