"""The space of set-ups that a case leaves open: degrees, batches of a pass, schedules, layouts, overlap, dispatch.

Formats, capacity, batch, sequence, multi-token prediction and node limits are never changed.
"""

import dataclasses
import functools
import heapq
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from mfabric_jax.checks import InputError, Misfit
from mfabric_jax.workload.gpus import Gpu
from mfabric_jax.workload.kernels import DISPATCH_OF
from mfabric_jax.workload.layout import ENDS, EVEN, places_of
from mfabric_jax.workload.models import Architecture
from mfabric_jax.workload.parallel import Workload
from mfabric_jax.workload.schedules import SCHEDULES, PipelineShape, check_shape, micro_batches_for

MOST_STAGES, MOST_CHUNKS, MOST_CONTEXT = 64, 16, 64
MICRO_BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)  # sequences of an EP rank in a micro-batch
MOST_PIPELINED = 8  # of them, on more than two stages, which need many micro-batches and hold them
MOST_PASSES = 1 << 12  # micro-batches of an EP rank
ANY_FRAMEWORK = "any"
SHOWN = 10  # set-ups that a search returns, at most
OPEN = "fit"  # recomputation: the least with which a set-up fits
IN_FRAMEWORKS = ("1f1b", "interleaved")  # schedules to search; those of GPipe take as long and need more memory
SIMULATED = (*IN_FRAMEWORKS, "zb-h1", "zb-v", "dualpipe")
LATER_SHARDING = ("gradients", "parameters")
MOST_SHARDED_STAGES = 2  # ZeRO-2 and -3 exchange weights or gradients for every micro-batch, so pipelines stay short
SHARDED_IN_FRAMEWORKS = 1  # stages on which frameworks run ZeRO-2 and -3


class SetUp(NamedTuple):
    """A set-up of a job; `tp` is the degree of attention, `etp` that of experts."""

    tp: int
    etp: int
    ep: int
    cp: int
    pp: int
    dp: int
    micro_batch: int
    micro_batches: int
    schedule: str = "1f1b"
    chunks: int = 1
    layout: str = EVEN
    overlap: str = "none"
    dispatcher: str = "nccl"
    dispatch: str = "per-expert"
    sharding: str = "optimizer"
    recompute: str = "none"

    @property
    def shape(self) -> tuple[int, int, int, int, int]:
        """What the seconds of a block depend on, besides dispatcher and recomputation."""
        return self.tp, self.etp, self.ep, self.cp, self.micro_batch

    @property
    def plain(self) -> "SetUp":
        """The same degrees under 1F1B, in the even layout, without overlap."""
        return self._replace(schedule="1f1b", chunks=1, layout=EVEN, overlap="none")

    @property
    def words(self) -> str:
        experts = f", etp {self.etp}" if self.etp != self.tp else ""
        context = f", cp {self.cp}" if self.cp > 1 else ""
        chunks = f" of {self.chunks} chunks" if self.schedule == "interleaved" else ""
        beside = ", passes overlap" if self.overlap == "passes" else ""
        layout = f", layout {self.layout}" if self.pp > 1 and self.layout != EVEN else ""
        sharding = "" if self.sharding == "optimizer" else f", sharding {self.sharding}"
        return (
            f"tp {self.tp}{experts}, ep {self.ep}{context}, pp {self.pp}, dp {self.dp}, "
            f"{self.micro_batches} x {self.micro_batch} sequences, {self.schedule}{chunks}{beside}{layout}, "
            f"{self.dispatcher}{sharding}, recompute {self.recompute}"
        )


@dataclasses.dataclass(frozen=True)
class OpenJob:
    """A job whose set-up is open.

    - `batch`: sequences of an iteration; None: `count` gives micro-batches by (pp, schedule, chunks, overlap).
    - `fields`: of a `Workload`, which no set-up changes; `stated`: fields of a `SetUp`, which are fixed.
    - `per_server`: GPUs of a server that a job uses, by (EP group, stage, TP group); raises `Misfit`.
    - `most_passes`: limit of the micro-batches of an EP rank, where they follow from `batch`.
    """

    architecture: Architecture
    gpu: Gpu
    gpus: int
    batch: int | None
    fields: Mapping[str, Any]
    stated: Mapping[str, Any]
    per_server: Callable[[int, int, int], int]
    count: Callable[[int, str, int, bool], int] | None = None
    frameworks: str = ANY_FRAMEWORK
    most_passes: int = MOST_PASSES

    def some(self, name: str, values: Sequence[Any]) -> Sequence[Any]:
        """Return the values of a field that are allowed: the stated one, or all."""
        return (self.stated[name],) if name in self.stated else values

    def reduces(self, set_up: SetUp) -> str:
        """Return `Workload.tp_reduces` of a set-up: what dispatchers of frameworks do where TP splits experts."""
        return self.fields.get("tp_reduces") or usual_reduces(set_up, self.frameworks)

    def workload(self, set_up: SetUp, **changes: Any) -> Workload:
        """Return the workload of a set-up. Raise `InputError` if it cannot be."""
        tp, etp, ep, dp = set_up.tp, set_up.etp, set_up.ep, set_up.dp
        limit = self.fields["node_limit"] if set_up.dispatch == "per-server" else None
        own = {
            "architecture": self.architecture,
            **{"dp": dp, "tp": etp, "pp": set_up.pp, "ep": ep, "gpus": dp * etp * ep * set_up.pp, "folded": tp // etp},
            **{"cp": set_up.cp, "micro_batch": set_up.micro_batch, "micro_batches": set_up.micro_batches},
            "gpus_per_server": self.per_server(etp * ep, etp * ep * dp, tp),
            **{"schedule": set_up.schedule, "chunks": set_up.chunks, "layout_of_blocks": set_up.layout},
            **{"overlap_passes": set_up.overlap == "passes", "sharding": set_up.sharding},
            **{"recompute": set_up.recompute, "dispatch": set_up.dispatch, "node_limit": limit},
            "tp_reduces": self.reduces(set_up),
        }
        return Workload(**{**self.fields, **own, **changes})


def usual_reduces(set_up: SetUp, frameworks: str) -> str:
    """Return `Workload.tp_reduces` of a set-up under the frameworks of a search, if the case leaves it open."""
    return "copies" if set_up.etp > 1 and frameworks != ANY_FRAMEWORK else "all"


def degrees_of(job: OpenJob) -> Iterator[SetUp]:
    """Yield all legal degrees with their micro-batches, under 1F1B without overlap."""
    per_server = job.gpu.gpus_per_server
    deepest = max(min(job.architecture.blocks, MOST_STAGES), job.stated.get("pp", 1))
    for tp in job.some("tp", divisors(per_server)):
        for etp in job.some("etp", divisors(tp)):
            for ep in job.some("ep", divisors(job.architecture.experts)):
                for pp in job.some("pp", range(1, deepest + 1)):
                    yield from _of_group(job, tp, etp, ep, pp)


def _of_group(job: OpenJob, tp: int, etp: int, ep: int, pp: int) -> Iterator[SetUp]:
    folded, group = tp // etp, etp * ep
    if tp % etp or ep % folded or job.gpus % (group * pp) or job.architecture.experts % ep:
        return
    dp = job.gpus // (group * pp)
    if dp != job.stated.get("dp", dp):
        return
    try:
        per_server = job.per_server(group, group * dp, tp)
    except Misfit:
        return
    if (group % per_server and per_server % group) or per_server % tp or (group * dp) % per_server:
        return
    for cp in job.some("cp", [cp for cp in divisors(ep // folded) if cp <= MOST_CONTEXT]):
        shared = cp * folded
        halves = 2 * cp if cp > 1 and "cp" not in job.stated else cp  # each takes one early and one late part
        if ep % shared or job.fields["sequence"] % (halves * folded):
            continue
        # Twice the sequences on twice the context ranks are the same tokens, sent once more.
        usual = MICRO_BATCHES if cp == 1 or "cp" in job.stated else MICRO_BATCHES[:1]
        for micro_batch in job.some("micro_batch", [size for size in usual if pp <= 2 or size <= MOST_PIPELINED]):
            count = _count(job, micro_batch * ep * dp, shared, pp)
            if count is not None:
                yield SetUp(tp, etp, ep, cp, pp, dp, micro_batch, count)


def _count(job: OpenJob, together: int, shared: int, pp: int) -> int | None:
    if job.batch is None:
        assert job.count is not None
        overlap = job.stated.get("overlap") == "passes"
        return job.count(pp, job.stated.get("schedule", "1f1b"), job.stated.get("chunks", 1), overlap)
    count, remainder = divmod(job.batch * shared, together)
    return count if not remainder and 1 <= count <= job.most_passes else None


def kinds_of(job: OpenJob, degrees: SetUp) -> Iterator[SetUp]:
    """Yield every schedule, number of chunks and overlap of these degrees, in the even layout."""
    pp, most = degrees.pp, min(MOST_CHUNKS, job.architecture.blocks // degrees.pp)
    names = SIMULATED if job.frameworks == ANY_FRAMEWORK else IN_FRAMEWORKS
    for name in job.some("schedule", names if pp > 1 else names[:1]):
        order = SCHEDULES[name]
        chunks = (order.chunks,) if order.chunks else job.some("chunks", range(2, most + 1))
        overlaps = ("none", "passes") if order.overlaps and degrees.ep > 1 else ("none",)
        for count in chunks:
            if pp * count > job.architecture.blocks:
                continue
            for overlap in job.some("overlap", overlaps):
                candidate = degrees._replace(schedule=name, chunks=count, overlap=overlap)
                if job.count is not None:
                    candidate = candidate._replace(micro_batches=job.count(pp, name, count, overlap == "passes"))
                try:
                    check_shape(name, PipelineShape(pp, candidate.micro_batches, count, overlap == "passes"))
                except InputError:
                    continue
                yield candidate


def shardings_of(job: OpenJob, kind: SetUp) -> Sequence[str]:
    """Return what replicas may shard under a schedule."""
    most = MOST_SHARDED_STAGES if job.frameworks == ANY_FRAMEWORK else SHARDED_IN_FRAMEWORKS
    later = kind.overlap == "none" and not SCHEDULES[kind.schedule].splits and kind.pp <= most
    return job.some("sharding", ("optimizer", *LATER_SHARDING) if later else ("optimizer",))


def dispatchers_of(job: OpenJob, ep: int) -> Sequence[tuple[str, str]]:
    """Return pairs of dispatcher and dispatch; a single EP rank sends nothing, so one pair stands for all."""
    if "dispatcher" in job.stated:
        pairs = ((job.stated["dispatcher"], way) for way in ("per-expert", "per-server"))
    else:
        pairs = DISPATCH_OF.items()
    some = [(name, way) for name, way in pairs if way == job.stated.get("dispatch", way)]
    usual = [pair for pair in some if DISPATCH_OF.get(pair[0], pair[1]) == pair[1]]
    return (usual or some)[: 1 if ep == 1 else None]


def with_first_dispatcher(job: OpenJob, degrees: SetUp) -> SetUp:
    """Return the degrees with the first pair of `dispatchers_of`."""
    dispatcher, dispatch = dispatchers_of(job, degrees.ep)[0]
    return degrees._replace(dispatcher=dispatcher, dispatch=dispatch)


# ------------------------------------------------------------------------------------------------------------- layouts
@functools.lru_cache(maxsize=4096)
def layouts_of(
    blocks: int, predicted: int, pp: int, chunks: int, schedule: str, head_blocks: float, *, runs: bool
) -> tuple[str, ...]:
    """Return layouts to search: even, ends, and those with the least time of the slowest stage and place.

    - `head_blocks`: seconds of the output head over those of a block; `runs`: write what frameworks do not divide by
      themselves, block by block.
    """
    if pp == 1:
        return (EVEN,)
    places = pp * chunks
    layouts: dict[tuple[int, ...], str] = {}
    for name, count in ((EVEN, blocks), (ENDS, blocks + 2)):
        try:
            sizes = places_of(name, blocks, predicted, places)
        except InputError:
            continue
        written = runs and (count % places or predicted)  # frameworks divide alone what divides evenly
        if not written or sizes[-1] >= predicted:
            layouts.setdefault(sizes, _in_letters(sizes, predicted) if written else name)
    balanced = _balance(blocks, predicted, pp, chunks, schedule, head_blocks)
    level = (_level(blocks, predicted, pp, chunks, head_blocks, late) for late in (False, True)) if chunks > 1 else ()
    for sizes in (balanced, *level):
        if sizes is not None:
            layouts.setdefault(sizes, _in_letters(sizes, predicted))
    return tuple(layouts.values())


def _level(blocks: int, predicted: int, pp: int, chunks: int, head_blocks: float, late: bool) -> tuple[int, ...] | None:
    """Blocks of each place so that the slowest places of all chunks, the output head included, take the least together:
    stages run places of the same chunk at the same time. `late`: blocks that do not divide are in the last places."""

    def sizes_for(last: int) -> tuple[int, ...]:
        each, more = divmod(blocks - last, others)
        return (*(each + (index >= others - more if late else index < more) for index in range(others)), last)

    def slowest(sizes: tuple[int, ...]) -> tuple[float, int]:
        times = (*sizes[:-1], sizes[-1] + head_blocks)
        return sum(max(times[chunk * pp :][:pp]) for chunk in range(chunks)), -sizes[-1]

    others = pp * chunks - 1
    some = range(max(1, predicted), blocks - others + 1)
    return min(map(sizes_for, some), key=slowest, default=None)


def _balance(
    blocks: int, predicted: int, pp: int, chunks: int, schedule: str, head_blocks: float
) -> tuple[int, ...] | None:
    """Blocks of each place so that the slowest stage, the output head included, is as quick as can be."""
    part_of, copies = SCHEDULES[schedule].part_of, SCHEDULES[schedule].copies
    stage_of = {part_of(stage, chunk, pp): stage for chunk in range(chunks) for stage in range(pp)}
    stages = [stage_of[position] for position in range(pp * chunks)]
    if copies > 1:  # place p and its mirror are on the same two stages
        stages = [min(stage, pp - 1 - stage) for stage in stages]
    sizes = [1] * len(stages)
    sizes[-1] = max(1, predicted)
    if sum(sizes) > blocks:
        return None
    spent, own = [0.0] * pp, [[] for _ in range(pp)]
    for position, (stage, size) in enumerate(zip(stages, sizes, strict=True)):
        spent[stage] += size
        own[stage].append(position)
    spent[stages[-1]] += head_blocks
    queue = [(seconds, stage) for stage, seconds in enumerate(spent) if own[stage]]
    heapq.heapify(queue)
    for _ in range(blocks - sum(sizes)):
        seconds, stage = heapq.heappop(queue)
        sizes[min(own[stage], key=lambda position: (sizes[position], position))] += 1
        heapq.heappush(queue, (seconds + 1, stage))
    return tuple(sizes)


def _in_letters(sizes: Sequence[int], predicted: int) -> str:
    """Return a layout in Megatron Core's notation."""
    each = ["t" * size for size in sizes]
    each[-1] = each[-1][: len(each[-1]) - predicted] + "m" * predicted + "L"
    each[0] = "E" + each[0]
    written, index = [], 0
    while index < len(each):
        times = next((n for n in range(len(each) - index, 0, -1) if each[index : index + n] == [each[index]] * n), 1)
        last = index + times == len(each)
        if times > 2:
            written.append(f"({each[index]}|)*{times - last}" + (each[index] if last else ""))
        else:
            written.append("|".join([each[index]] * times) + ("" if last else "|"))
        index += times
    return "".join(written)


def divisors(number: int) -> list[int]:
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]


def count_for_bubble(bubble: float) -> Callable[[int, str, int, bool], int]:
    """Return the number of micro-batches by (pp, schedule, chunks, overlap) for a bubble of at most this fraction."""
    return lambda pp, schedule, chunks, overlap: micro_batches_for(bubble, pp, chunks, schedule, overlap)


def usual_batch(gpus: int, about: int = 4096) -> int:
    """Return a batch near `about` sequences that many set-ups of these GPUs divide."""
    step = gpus * 2 ** max(0, math.floor(math.log2(max(1.0, about / gpus / 8))))
    return max(1, round(about / step)) * step
