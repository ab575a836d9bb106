"""A set-up without a search: the first by the estimates of `ranking` that fits the memory of a GPU.

The choice depends on the model, the batch and the GPU, and on no fabric: rates are those of servers whose NICs are
never shared, and experts are evenly loaded. Memory is that of the fullest rank.
"""

import dataclasses
import heapq
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from mfabric_jax import units
from mfabric_jax.checks import InputError
from mfabric_jax.support.lazily import LazyModule
from mfabric_jax.workload.block_kernels import kernel_seconds
from mfabric_jax.workload.gpus import Gpu
from mfabric_jax.workload.kernels import USUAL_DISPATCHER, shares_of
from mfabric_jax.workload.memory import UNKNOWN_BYTES, Loads, fullest_stage, memory_of, usable_bytes
from mfabric_jax.workload.parallel import Workload
from mfabric_jax.workload.recompute import LEVELS
from mfabric_jax.workload.space import MOST_CONTEXT, OPEN, OpenJob, SetUp, degrees_of, divisors, kinds_of

ranking = LazyModule("mfabric_jax.evaluate.resolving.ranking")  # only a choice among several needs estimates
NIC_GBPS = 400.0
QUICKEST = "the least estimated time per token of all that fit the memory"
LoadsOf = Callable[[Workload], Loads]  # loads of the stages' fullest ranks


class Choice(NamedTuple):
    """A chosen set-up, its bytes per GPU on the fullest stage, whether they fit, and why it was chosen."""

    set_up: SetUp
    workload: Workload
    memory_bytes: float
    fits: bool
    why: str = ""


def other_choices(values: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield changes, by path, that a search may make to a case and a quick set-up never does; fewer replicas, too.

    Memory refuses nothing, so recomputation is left out.
    """
    least = {"run.replicas": 1} | ({"job.recompute": "none"} if values["job.recompute"] in (None, OPEN) else {})
    yield least
    if values["job.parallel.cp"] is None:
        yield from (least | {"job.parallel.cp": 1 << power} for power in range(1, MOST_CONTEXT.bit_length()))


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
        for set_up, workload in _by_time(
            job, [candidate for candidate in every if wide == (candidate.ep >= wide_from)]
        ):
            at_least = memory_of(workload, 0).total
            if at_least <= room and (choice := _choose(job, set_up, workload, loads_of)).fits:
                return choice
            too_large.append((at_least, len(too_large), set_up, workload))
    if not too_large:
        return None
    least = _least(job, sorted(too_large), loads_of)
    has = UNKNOWN_BYTES if job.gpu.memory_bytes is None else job.gpu.memory_bytes
    room, has, needs = (float(units.to_gigabytes(size)) for size in (room, has, least.memory_bytes))
    words = f"no set-up fits {room:,.4g} of {has:,.4g} GB per GPU; this one needs the least, {needs:,.4g} GB"
    return least._replace(why=words)


def _least(job: OpenJob, rows: Sequence[tuple[float, int, SetUp, Workload]], loads_of: LoadsOf) -> Choice:
    """The set-up that needs the least memory; `rows` are sorted by a lower bound of the memory."""
    best = _choose(job, *rows[0][2:], loads_of)
    for at_least, _, set_up, workload in rows[1:]:
        if at_least >= best.memory_bytes:
            break
        best = min(best, _choose(job, set_up, workload, loads_of), key=lambda choice: choice.memory_bytes)
    return best


def _choose(job: OpenJob, set_up: SetUp, workload: Workload, loads_of: LoadsOf) -> Choice:
    needs = fullest_stage(workload, loads_of(workload))[1].total
    return Choice(set_up, workload, needs, needs <= usable_bytes(job.gpu.memory_bytes), QUICKEST)


# --------------------------------------------------------------------------------------------------- what is legal
def legal_degrees(job: OpenJob) -> list[SetUp]:
    """Return the degrees that a job may have, each with what the job states; experts are split as attention is."""
    stated = {name: job.stated[name] for name in ("layout", "dispatcher", "dispatch")}
    kinds = (next(kinds_of(job, degrees), None) for degrees in plain_degrees(job))
    return [kind._replace(**stated) for kind in kinds if kind is not None]


def plain_degrees(job: OpenJob) -> Iterator[SetUp]:
    """Yield the degrees that divide GPUs, experts and the batch, whatever the schedule."""
    if "etp" in job.stated:
        yield from degrees_of(job)
        return
    for tp in job.some("tp", divisors(job.gpu.gpus_per_server)):
        yield from degrees_of(dataclasses.replace(job, stated={**job.stated, "tp": tp, "etp": tp}))


def whatever_the_batch(job: OpenJob) -> OpenJob:
    """Return the job with a batch that all degrees divide."""
    return dataclasses.replace(job, batch=None, count=lambda pp, *_: 2 * pp)


def near(job: OpenJob) -> OpenJob:
    """Return the job on the number of GPUs closest to its own that has degrees; the same job if none has."""
    per_server, splits = job.gpu.gpus_per_server, job.some("tp", divisors(job.gpu.gpus_per_server))
    groups = [
        job.stated.get("etp", tp) * ep * pp
        for tp in splits
        for ep in job.some("ep", divisors(job.architecture.experts))
        for pp in job.some("pp", range(1, job.architecture.blocks + 1))
    ]
    whole = {group: per_server // math.gcd(group, per_server) for group in groups}  # replicas that fill servers
    most = {group: max(1, job.gpus // (group * fill)) * fill for group, fill in whole.items()}
    sizes = {group * job.stated.get("dp", dp) for group, dp in most.items()} | {job.gpus}
    for gpus in sorted(sizes, key=lambda size: (abs(math.log2(size / job.gpus)), size)):
        other = dataclasses.replace(job, gpus=gpus)
        if any(plain_degrees(whatever_the_batch(other))):
            return other
    return job


# ------------------------------------------------------------------------------------------------------- estimates
def _by_time(job: OpenJob, every: Sequence[SetUp]) -> Iterator[tuple[SetUp, Workload]]:
    """Yield set-ups, the least estimated time per token first. A level that recomputes more is never faster."""
    estimate = _estimate_of(job) if len(every) > 1 else lambda set_up: 0.0
    levels = (job.stated["recompute"],) if "recompute" in job.stated else tuple(LEVELS)
    queue = [(estimate(candidate._replace(recompute=levels[0])), number, 0) for number, candidate in enumerate(every)]
    heapq.heapify(queue)
    while queue:
        _, number, level = heapq.heappop(queue)
        set_up = every[number]._replace(recompute=levels[level])
        try:
            workload = job.workload(set_up)
        except InputError:
            continue
        yield set_up, workload
        if level + 1 < len(levels):
            more = set_up._replace(recompute=levels[level + 1])
            heapq.heappush(queue, (estimate(more), number, level + 1))


def _estimate_of(job: OpenJob) -> Callable[[SetUp], float]:
    """Return a function that gives the estimated seconds per sequence of a set-up; infinite: it cannot be."""
    ranked = ranking.Estimates(
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
        passes = set_up.micro_batches * set_up.micro_batch
        sequences = passes * set_up.dp * set_up.ep * set_up.etp / (set_up.cp * set_up.tp)
        return min(row.seconds, default=math.inf) / sequences

    return seconds


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
    memory_Bps: float = math.inf
    fixed_s: float = 0.0
    ring_cores: float = 0.0


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
        ring_cores=shares.ring_cores,
        counts_s=shares.counts_s,
    )
