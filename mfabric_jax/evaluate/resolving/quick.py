"""A set-up without a search: the first by the estimates of `ranking` that fits the memory of a GPU.

The choice depends on the model, the batch and the GPU, and on no fabric: rates are those of servers whose NICs are
never shared, and experts are evenly loaded. Memory is that of the fullest rank.
"""

import dataclasses
import heapq
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from mfabric_jax import units
from mfabric_jax.checks import InputError
from mfabric_jax.evaluate.resolving.set_up_words import gigabytes_in_words, room_in_words, set_up_words
from mfabric_jax.support.lazily import LazyModule
from mfabric_jax.workload.block_kernels import kernel_seconds
from mfabric_jax.workload.gpus import Gpu
from mfabric_jax.workload.kernels import USUAL_DISPATCHER, shares_of
from mfabric_jax.workload.memory import Loads, fullest_stage, memory_of, usable_bytes
from mfabric_jax.workload.parallel import Workload
from mfabric_jax.workload.recompute import LEVELS
from mfabric_jax.workload.space import OPEN, OpenJob, SetUp, degrees_of, divisors, kinds_of

ranking = LazyModule("mfabric_jax.evaluate.resolving.ranking")  # only a choice among several needs estimates
NIC_GBPS = 400.0
LoadsOf = Callable[[Workload], Loads]  # loads of the stages' fullest ranks


class Choice(NamedTuple):
    """A chosen set-up, its bytes per GPU on the fullest stage, whether they fit, and why it was chosen."""

    set_up: SetUp
    workload: Workload
    memory_bytes: float
    fits: bool
    why: str = ""


def evenly(workload: Workload) -> Loads:
    """Return None, which means that all ranks receive equal loads."""
    return None


def choose(job: OpenJob, loads_of: LoadsOf = evenly) -> Choice | None:
    """Return the set-up with the least estimated time per token that fits the memory; None: no set-up is legal.

    Open recomputation is the least level that fits. An open `ep` spans at least a server if such a set-up fits: nearly
    all published set-ups do, and experts with few tokens do not reach the usual efficiency. If nothing fits, return the
    set-up that needs the least memory.
    """
    room, too_large = usable_bytes(job.gpu.memory_bytes), []
    wide_from = 0 if "ep" in job.stated else job.gpu.gpus_per_server
    every = legal_degrees(job)
    for wide in (True, False):
        for set_up, workload in _by_time(job, [one for one in every if wide == (one.ep >= wide_from)]):
            at_least = memory_of(workload, 0).total
            if at_least <= room and (choice := _chosen(job, set_up, workload, loads_of)).fits:
                words = f"{_in_words(choice)}: the least estimated time per token of all that fit {_room(job)}."
                return choice._replace(why=words)
            too_large.append((at_least, len(too_large), set_up, workload))
    if not too_large:
        return None
    least = _least(job, sorted(too_large), loads_of)
    needs = f"{_in_words(least)} needs the least, {gigabytes_in_words(least.memory_bytes)} GB"
    return least._replace(why=f"No set-up fits {_room(job)}; {needs}.")


def _least(job: OpenJob, rows: Sequence[tuple[float, int, SetUp, Workload]], loads_of: LoadsOf) -> Choice:
    """The set-up that needs the least memory; `rows` are sorted by a lower bound of the memory."""
    best = _chosen(job, *rows[0][2:], loads_of)
    for at_least, _, set_up, workload in rows[1:]:
        if at_least >= best.memory_bytes:
            break
        best = min(best, _chosen(job, set_up, workload, loads_of), key=lambda choice: choice.memory_bytes)
    return best


def _chosen(job: OpenJob, set_up: SetUp, workload: Workload, loads_of: LoadsOf) -> Choice:
    needs = fullest_stage(workload, loads_of(workload))[1].total
    return Choice(set_up, workload, needs, needs <= usable_bytes(job.gpu.memory_bytes))


def _in_words(choice: Choice) -> str:
    return f"{set_up_words(choice.workload)}, recompute {choice.set_up.recompute}"


def _room(job: OpenJob) -> str:
    return room_in_words(job.gpu.memory_bytes)


# --------------------------------------------------------------------------------------------------- what is legal
def legal_degrees(job: OpenJob) -> list[SetUp]:
    """Return the degrees that a job may have, each with what the job states; experts are split as attention is."""
    return [set_up for degrees in plain_degrees(job) if (set_up := _complete(job, degrees)) is not None]


def plain_degrees(job: OpenJob) -> Iterator[SetUp]:
    """Yield the degrees that divide GPUs, experts and the batch, whatever the schedule."""
    if "etp" in job.stated:
        yield from degrees_of(job)
        return
    for tp in job.some("tp", divisors(job.gpu.gpus_per_server)):
        yield from degrees_of(dataclasses.replace(job, stated={**job.stated, "tp": tp, "etp": tp}))


def _complete(job: OpenJob, degrees: SetUp) -> SetUp | None:
    kind = next(kinds_of(job, degrees), None)
    return kind and kind._replace(**{name: job.stated[name] for name in ("layout", "dispatcher", "dispatch")})


def whatever_the_batch(job: OpenJob) -> OpenJob:
    """Return the job with a batch that all degrees divide."""
    return dataclasses.replace(job, batch=None, count=lambda pp, *_: 2 * pp)


def near(job: OpenJob) -> OpenJob:
    """Return the job on the number of GPUs closest to its own that has degrees; the same job if none has."""
    dp, model = job.stated.get("dp", 1), job.architecture
    if "dp" not in job.stated or any(plain_degrees(whatever_the_batch(job))):
        return job
    splits = [(tp, job.stated.get("etp", tp)) for tp in job.some("tp", divisors(job.gpu.gpus_per_server))]
    stages = job.some("pp", range(1, model.blocks + 1))
    groups = itertools.product(splits, job.some("ep", divisors(model.experts)), stages)
    sizes = {dp * etp * ep * pp for (_, etp), ep, pp in groups}
    for gpus in sorted(sizes, key=lambda size: (abs(math.log2(size / job.gpus)), size)):
        other = dataclasses.replace(job, gpus=gpus)
        if any(plain_degrees(whatever_the_batch(other))):
            return other
    return job


# ------------------------------------------------------------------------------------------------------- estimates
def _by_time(job: OpenJob, every: Sequence[SetUp]) -> Iterator[tuple[SetUp, Workload]]:
    """Yield set-ups, the least estimated time per token first. A level that recomputes more is never faster."""
    estimate, levels = _estimate_of(job) if len(every) > 1 else lambda set_up: 0.0, _levels(job)
    at = lambda number, level: every[number]._replace(recompute=levels[level])  # noqa: E731
    queue = [(estimate(at(number, 0)), number, 0) for number in range(len(every))]
    heapq.heapify(queue)
    while queue:
        seconds, number, level = heapq.heappop(queue)
        set_up = at(number, level)
        if seconds < math.inf and (workload := workload_or_none(job, set_up)) is not None:
            yield set_up, workload
        if level + 1 < len(levels):
            heapq.heappush(queue, (estimate(at(number, level + 1)), number, level + 1))


def _levels(job: OpenJob) -> tuple[str, ...]:
    stated = job.stated.get("recompute", OPEN)
    return tuple(LEVELS) if stated == OPEN else (stated,)


def workload_or_none(job: OpenJob, set_up: SetUp) -> Workload | None:
    """Return the workload of a set-up; None if it cannot be."""
    try:
        return job.workload(set_up)
    except InputError:
        return None


def _estimate_of(job: OpenJob) -> Callable[[SetUp], float]:
    """Return a function that gives the estimated seconds per sequence of a set-up; infinite: it cannot be."""
    ranked = ranking.Ranking(
        job,
        lambda workload: kernel_seconds(workload, job.gpu),
        lambda workload, dispatcher: nominal_rates(workload, job.gpu, dispatcher),
        lambda dispatcher: shares_of(1, dispatcher).cores,
        overlaps_gradients=False,
    )

    def seconds(set_up: SetUp) -> float:
        try:
            (row,) = ranked.rows(set_up.plain)
        except InputError:
            return math.inf
        return min(row.seconds, default=math.inf) / _sequences(set_up)

    return seconds


def _sequences(set_up: SetUp) -> float:
    """Sequences of an iteration."""
    shared = set_up.cp * set_up.tp // set_up.etp
    return set_up.micro_batches * set_up.micro_batch * set_up.ep * set_up.dp / shared


class NominalRates(NamedTuple):
    """Rates of servers whose NICs are never shared: the fields of a `FabricRates` that estimates read."""

    nic_Bps: float
    eps_Bps: float
    send_Bps: float
    nvlink_Bps: float
    inside_Bps: float
    tp_over: float
    beside: float
    counts_s: float


def nominal_rates(job: Workload, gpu: Gpu, dispatcher: str) -> NominalRates:
    """Return the rates of a job on servers of a GPU; for dispatcher "ideal", those of the usual one."""
    nics = job.gpus_per_server if gpu.nics is None else gpu.nics
    server_Bps = nics * float(units.gbps(NIC_GBPS))
    shares = shares_of(job.servers_per_region, USUAL_DISPATCHER[job.dispatch] if dispatcher == "ideal" else dispatcher)
    return NominalRates(
        nic_Bps=server_Bps * shares.nic / job.gpus_per_server,
        eps_Bps=server_Bps * shares.ring_nic,
        send_Bps=server_Bps * shares.send,
        nvlink_Bps=gpu.nvlink * shares.ring_nvlink,
        inside_Bps=gpu.nvlink * shares.nvlink,
        tp_over=shares.tp_nvlink / shares.ring_nvlink,
        beside=shares.beside,
        counts_s=shares.counts_s,
    )
