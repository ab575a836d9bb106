"""A closed-form estimate of set-ups, for the order in which a search looks at them, and for a choice without a clock.

A stage's passes take what their blocks take, with mean all-to-alls; the pipeline adds its bubble. Nothing that a result
shows is made of these seconds.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from mfabric_jax.checks import InputError
from mfabric_jax.traffic.dispatch import even_bytes
from mfabric_jax.workload.compute import BlockSeconds, backward_of
from mfabric_jax.workload.layout import places_of
from mfabric_jax.workload.memory import step_bytes
from mfabric_jax.workload.parallel import Workload
from mfabric_jax.workload.recompute import recomputed_of
from mfabric_jax.workload.schedules import SCHEDULES, PipelineShape, passes_in_memory
from mfabric_jax.workload.space import (
    ANY_FRAMEWORK,
    LATER_SHARDING,
    OpenJob,
    SetUp,
    dispatchers_of,
    kinds_of,
    layouts_of,
    shardings_of,
    with_first_dispatcher,
)
from mfabric_jax.workload.volume import (
    PASSES,
    block_params,
    context_bytes,
    context_rounds,
    ffn_all_reduces,
    replica_bytes,
    replica_ring,
    tp_bytes_per_gpu,
)

NOTHING = np.zeros(0)
BESIDE_BUBBLE = 0.5  # of the bubble remains where passes overlap: more of them are under way


class MeanAllToAlls(NamedTuple):
    """Mean dispatch of a token: bytes at the busiest NIC and NVLink, and the busiest rank's load over the mean."""

    between: float
    inside: float
    busy: float = 1.0


def even_all_to_alls(job: Workload) -> MeanAllToAlls:
    """Return the all-to-alls of evenly loaded experts, over NICs that are never shared."""
    if job.ep == 1:
        return MeanAllToAlls(0.0, 0.0)
    sent, here = even_bytes(job, np.dtype(float)), job.ranks_per_server
    own = np.kron(np.eye(job.ep // here), np.ones((here, here)))
    leaving = (sent * (1 - own)).sum(-1).reshape(-1, here).sum(-1).max() / job.gpus_per_server
    inside = (sent * own * (1 - np.eye(job.ep))).sum(-1).max() / job.tp
    return MeanAllToAlls(leaving / job.tokens, inside / job.tokens)


class BlockTimes(NamedTuple):
    """Seconds of a mean block forward, backward, and of both passes beside each other (`paired`); of the output head in
    both (`head`); and what a block computes at least (`least`)."""

    forward: float
    backward: float
    paired: float
    head: float
    least: float = 0.0

    @property
    def alone(self) -> float:
        return self.forward + self.backward


def block_times(job: Workload, seconds: BlockSeconds, rates: Any, sent: MeanAllToAlls, cores: float) -> BlockTimes:
    """Return the estimated seconds of a mean block.

    `rates`: a `FabricRates`; `cores`: part of a GPU's cores that communicates beside passes.
    """
    model, back, again = job.architecture, backward_of(seconds), recomputed_of(job.recompute)
    layers, more = job.moe_layers / model.blocks, sent.busy - 1
    dense = 1 - layers

    shares = np.array([1.0, layers, layers * more, dense])  # of attention, experts, what the busiest adds, dense FFNs
    forward = float(shares @ (seconds.attention_s, seconds.moe_s, seconds.expert_s, seconds.dense_s))
    parts = np.array([back.attention, back.moe, back.expert, back.dense], float)
    inputs, weights, twice = map(float, shares @ parts)
    tp_s = float(tp_bytes_per_gpu(job) / (rates.nvlink_Bps * rates.tp_over))
    reduces = 1 + layers * ffn_all_reduces(job, moe=True) + dense * ffn_all_reduces(job, moe=False)
    ring_s = _ring_s(job, seconds, rates) if job.cp > 1 else 0.0
    inside_Bps = rates.nvlink_Bps if rates.inside_Bps is None else rates.inside_Bps
    once_s = job.tokens * max(sent.between / float(np.mean(rates.nic_Bps)), sent.inside / float(inside_Bps))
    both_s = layers * once_s * (1 + job.combine_bytes / job.dispatch_bytes)
    sends = layers * (job.ep > 1)
    counts_s = sends * float(rates.counts_s)
    computed = reduces * tp_s + ring_s
    waits = gather_seconds(job, seconds, rates)
    ahead = forward + computed + both_s + counts_s + waits[0]
    behind = inputs + weights + twice + (reduces + again.whole) * tp_s + (context_rounds(job) - 1) * ring_s
    behind += both_s * (1 + again.exchanges) + waits[1]
    lane = (forward + inputs + weights + twice) / (1 - cores) + PASSES * computed + counts_s
    paired = max(lane, PASSES * both_s * float(rates.beside))
    extra = layers * (sent.busy - least_load(job)) * (seconds.expert_s + back.expert.inputs + back.expert.weights)
    least = float(forward + inputs + weights - extra + PASSES * reduces * tp_s)
    return BlockTimes(ahead, behind, paired, float(seconds.head_s + back.head), least)


def least_load(job: Workload) -> float:
    """Return a load, over an even one, that the busiest rank has at least: the mean of what experts take.

    They take everything, but at least what fits one expert if a capacity drops tokens and all chose that one.
    """
    return 1.0 if job.capacity_factor is None else min(1.0, job.capacity_factor / job.expert_slots)


def _ring_s(job: Workload, seconds: BlockSeconds, rates: Any) -> float:
    inside = job.ranks_per_server % job.sequence_ranks == 0
    Bps = job.tp * float(np.mean(rates.nvlink_Bps if inside else rates.send_Bps / job.gpus_per_server))
    return max(0.0, context_bytes(job) / Bps - (job.cp - 1) / job.cp * float(seconds.scores_s))


def gather_seconds(job: Workload, seconds: BlockSeconds, rates: Any) -> tuple[float, float]:
    """Return the seconds by which a mean block waits forward and backward for parameters that replicas shard, and for
    its gradients, as in `timing.iteration`."""
    if job.sharding not in LATER_SHARDING:
        return 0.0, 0.0
    again, back = recomputed_of(job.recompute), backward_of(seconds)
    fetched = job.gathered_bytes if job.sharding == "parameters" else 0.0
    of_attention, layers = (back.attention, again.attention), job.moe_layers / job.architecture.blocks
    waits = []
    for bytes_each, behind in ((fetched, False), (fetched + job.grad_bytes, True)):
        mean = 0.0
        for moe, part, inner in (
            (True, layers, (seconds.moe_s, back.moe)),
            (False, 1 - layers, (seconds.dense_s, back.dense)),
        ):
            params = block_params(job, moe)
            sent_s = _all_reduce_s(job, rates, bytes_each * params.dense, bytes_each * params.expert) / 2
            hidden_s = seconds.attention_s + inner[0]
            if behind:
                each = of_attention, (inner[1], again.inner)
                hidden_s = sum(of.inputs + of.weights + repeated * of.again for of, repeated in each)
            mean += part * max(float(rates.ring_cores) * sent_s, float(sent_s - hidden_s))
        waits.append(mean)
    return waits[0], waits[1]


def gradient_seconds(job: Workload, rates: Any) -> float:
    """Return the seconds of what replicas exchange after all passes, on the slower of the first and the last stage."""
    sizes = [replica_bytes(job, stage, last=True) for stage in {0, job.pp - 1}]
    return max(_all_reduce_s(job, rates, size.dense, size.expert) for size in sizes)


def least_gradient_seconds(job: Workload, rates: Any) -> float:
    """Return the seconds after all passes in which replicas exchange one block of the kind that takes the least."""
    each = {"none": job.grad_bytes, "gradients": job.gathered_bytes / 2, "parameters": 0.0}
    bytes_each = each.get(job.sharding, (job.grad_bytes + job.gathered_bytes) / 2)
    kinds = [moe for moe, count in ((True, job.moe_layers), (False, job.architecture.blocks - job.moe_layers)) if count]
    sizes = [block_params(job, moe) for moe in kinds]
    return min(_all_reduce_s(job, rates, bytes_each * size.dense, bytes_each * size.expert, np.max) for size in sizes)


def _all_reduce_s(job: Workload, rates: Any, dense: float, expert: float, of: Any = np.mean) -> float:
    ring = replica_ring(job, dense, expert)
    return ring.between / float(of(rates.eps_Bps)) + ring.inside / float(of(rates.nvlink_Bps))


class PipelineKinds(NamedTuple):
    """Blocks of the fullest stage and of the one with the output head, for every kind of a pipeline [K]."""

    kinds: tuple[SetUp, ...]
    most: np.ndarray
    last: np.ndarray
    bubble: np.ndarray
    copies: np.ndarray
    overlaps: np.ndarray
    chunks: np.ndarray  # of a stage whose gradients become ready one after the other
    plain: np.ndarray  # whether passes neither overlap nor leave gradients of weights to others
    alone: np.ndarray  # part of the passes of the first stage that no other pass overlaps
    first: np.ndarray  # blocks of the first stage, in one copy of the model
    held: np.ndarray  # blocks of passes whose activations the first stage holds at once; 0: not counted


def stages_of(job: OpenJob, degrees: SetUp, head_blocks: float, predicted: int) -> PipelineKinds:
    """Return the kinds of a pipeline with these degrees, in every layout; they do not depend on the other degrees."""
    kinds, numbers = [], []
    runs = job.frameworks != ANY_FRAMEWORK
    for kind in kinds_of(job, degrees):
        order = SCHEDULES[kind.schedule]
        blocks = job.architecture.blocks
        own = blocks, predicted, kind.pp, kind.chunks, kind.schedule, head_blocks
        layouts = () if "layout" in job.stated else layouts_of(*own, runs=runs)
        shape = PipelineShape(kind.pp, kind.micro_batches, kind.chunks, kind.overlap == "passes")
        parts = kind.chunks if order.chunks is None else 1
        every = range(kind.chunks * order.copies)
        places = [[order.part_of(stage, chunk, kind.pp) for chunk in every] for stage in range(kind.pp)]
        warm, plain = 1.0, not shape.overlap and not order.splits
        if order.warm_up is not None and shape.overlap:
            warm = min(1.0, order.warm_up(0, shape) / (kind.micro_batches * kind.chunks))
        elif shape.overlap:
            warm = min(1.0, kind.pp / 2 / kind.micro_batches)
        passes = passes_in_memory(kind.schedule, 0, shape, kind.chunks) if order.warm_up is not None else ()
        for layout in job.some("layout", layouts):
            try:
                sizes = places_of(layout, blocks, predicted, kind.pp * kind.chunks)
            except InputError:
                continue
            held = [sum(sizes[index] for index in own) for own in places]
            last = next(blocks for blocks, own in zip(held, places, strict=True) if len(sizes) - 1 in own)
            kinds.append(kind._replace(layout=layout))
            bubble = order.bubble(shape) * (BESIDE_BUBBLE if shape.overlap else 1)
            first = [sizes[number] for number in places[0][: kind.chunks]]
            in_memory = sum(many * size for many, size in zip(passes, first, strict=False))
            own_numbers = (
                max(held),
                last,
                bubble,
                order.copies,
                shape.overlap,
                parts,
                plain,
                warm,
                sum(first),
                in_memory,
            )
            numbers.append(own_numbers)
    columns = np.array(numbers, float).reshape(-1, len(PipelineKinds._fields) - 1).T
    return PipelineKinds(tuple(kinds), *columns)


def pipeline_seconds(stages: PipelineKinds, times: BlockTimes, pp: int, blocks: int, micro_batches: int) -> np.ndarray:
    """Return the estimated seconds of all passes and the bubble, for every kind [K]."""
    block = np.where(stages.overlaps > 0, stages.alone * times.alone + (1 - stages.alone) * times.paired, times.alone)
    busiest = np.maximum(stages.most * block, stages.last * block + times.head) / stages.copies
    return micro_batches * busiest + stages.bubble * times.alone * blocks / pp


class Row(NamedTuple):
    """All kinds of pipelines of some degrees, a dispatcher and a sharding, the least estimate [s] first.

    - `gradients`: seconds of gradients of one copy of the model; `hidden`: of them, beside one backward pass.
    - `passes`: part of `seconds` in passes and the bubble.
    - `fits`: which kinds may fit [K]; True: all.
    """

    degrees: SetUp
    stages: PipelineKinds
    gradients: float
    hidden: float
    seconds: np.ndarray = NOTHING
    passes: np.ndarray = NOTHING
    order: np.ndarray = NOTHING
    fits: np.ndarray | bool = True

    def estimate(self, times: BlockTimes, blocks: int) -> "Row":
        """Return the row with estimates for these seconds of a block."""
        own, stages = self.degrees, self.stages
        passes = pipeline_seconds(stages, times, own.pp, blocks, own.micro_batches)
        reduced, part_s = self.gradients * stages.copies, self.hidden / stages.chunks
        behind = 1 + own.pp * (stages.chunks - 1)  # passes since the first chunk's gradients are ready
        first = reduced - part_s * behind
        last = np.maximum(reduced / stages.chunks - part_s, reduced * own.pp / blocks)
        seconds = passes + np.maximum(first, last)
        if own.sharding in LATER_SHARDING:
            seconds = np.where(stages.plain > 0, seconds, np.inf)
        seconds = np.where(self.fits, seconds, np.inf)
        order = np.argsort(seconds, kind="stable")
        order = order[np.isfinite(seconds[order])]
        return self._replace(seconds=seconds[order], passes=passes[order], order=order)

    def set_up(self, number: int) -> SetUp:
        """Return the set-up with the estimate of this number."""
        kind = self.stages.kinds[self.order[number]]
        names = "schedule", "chunks", "layout", "overlap", "micro_batches"
        return self.degrees._replace(**{name: getattr(kind, name) for name in names})


@dataclasses.dataclass
class Estimates:
    """Estimates of every set-up of an open job, for evenly loaded experts.

    - `seconds_of`: seconds of a block; `rates_of`: rates of a job under a dispatcher; `cores_of`: of a dispatcher.
    """

    job: OpenJob
    seconds_of: Callable[[Workload], BlockSeconds]
    rates_of: Callable[[Workload, str], Any]
    cores_of: Callable[[str], float]
    overlaps_gradients: bool = True
    _stages: dict[Any, PipelineKinds] = dataclasses.field(default_factory=dict, init=False)
    _times: dict[Any, BlockTimes] = dataclasses.field(default_factory=dict, init=False)
    _sent: dict[Any, MeanAllToAlls] = dataclasses.field(default_factory=dict, init=False)
    _head_blocks: float | None = dataclasses.field(default=None, init=False)

    def rows(self, degrees: SetUp) -> Iterator[Row]:
        """Yield a row for every dispatcher and sharding of these degrees."""
        exposed = None
        for dispatcher, dispatch in dispatchers_of(self.job, degrees.ep):
            candidate = degrees._replace(dispatcher=dispatcher, dispatch=dispatch)
            times = self.times(candidate)
            exposed = exposed or self._gradients(candidate, times)
            stages, blocks = self._stages_of(candidate, times), self.job.architecture.blocks
            for sharding, seconds in exposed.items():
                own = candidate._replace(sharding=sharding)
                yield Row(own, stages, *seconds).estimate(self.times(own), blocks)

    def least_seconds(self, degrees: SetUp) -> float:
        """Return the least of all estimates of these degrees, were every block as quick as what it must compute."""
        first = self._first(degrees)
        times = self.times(first)
        stages = self._stages_of(first, times)
        least = BlockTimes(times.least, 0.0, times.least, times.head)
        own = pipeline_seconds(stages, least, degrees.pp, self.job.architecture.blocks, degrees.micro_batches)
        return float(own.min(initial=math.inf))

    def many(self, degrees: SetUp) -> int:
        """Return the number of set-ups with these degrees."""
        first = self._first(degrees)
        kinds = len(self._stages_of(first, self.times(first)).kinds)
        return kinds * len(dispatchers_of(self.job, degrees.ep)) * len(shardings_of(self.job, degrees))

    def _first(self, degrees: SetUp) -> SetUp:
        """Return the degrees with the first dispatcher that they may have, whose bounds hold for all."""
        return with_first_dispatcher(self.job, degrees)._replace(sharding="optimizer")

    def bound_seconds(self, degrees: SetUp, least: float = math.inf) -> float:
        """Return seconds that no pipeline with these degrees is below; `least` if their passes alone take that long.

        They hold for every schedule, layout, overlap, dispatcher, sharding, recomputation and traffic.

        An iteration ends with its last stage, so it takes at least the mean over stages of what each must do alone:

        - Computation and tensor-parallel all-reduces of its passes, one after the other on its GPUs. Together, stages
          run every micro-batch through every block and head once forward and once backward, in however many copies of
          the model, and at least as slowly where cores communicate beside. The busiest rank of a block has at least
          `least_load`; recomputation and waiting only add to it.
        - Gradients after its last pass: those of all its blocks, or, where they overlap with passes, an equal part for
          the block that is ready last. Both are at least those of one block of the lighter kind, all blocks alike.
        - Its optimizer step: together, stages update every parameter, and replicas share at most all of its state.
        """
        first = self._first(degrees)
        times = self.times(first)
        passes_s = degrees.micro_batches * (self.job.architecture.blocks * times.least + times.head) / degrees.pp
        if passes_s >= least:
            return least
        alone, own = shape_job(self.job, first), self.job.workload(first)
        rates = self.rates_of(alone, first.dispatcher)
        counts = alone.optimizer_step != "left-out"
        step_s = counts * step_bytes(alone, 0) / float(np.max(rates.memory_Bps)) + float(np.min(rates.fixed_s))
        each = (dataclasses.replace(own, sharding=sharding) for sharding in shardings_of(self.job, degrees))
        return min(least, passes_s + step_s + min(least_gradient_seconds(job, rates) for job in each))

    def times(self, set_up: SetUp, sent: MeanAllToAlls | None = None) -> BlockTimes:
        """Return the seconds of a mean block; `sent`: its all-to-alls, None: those of evenly loaded experts."""
        key = *set_up.shape, set_up.dispatcher, set_up.dispatch, set_up.recompute, gathers_of(set_up), sent
        if key not in self._times:
            alone = shape_job(self.job, set_up)
            rates = self.rates_of(alone, set_up.dispatcher)
            sent = self._even(alone) if sent is None else sent
            cores = self.cores_of(set_up.dispatcher)
            self._times[key] = block_times(alone, self.seconds_of(alone), rates, sent, cores)
        return self._times[key]

    def _even(self, job: Workload) -> MeanAllToAlls:
        key = job.ep, job.tp, job.gpus_per_server, job.dispatch
        if key not in self._sent:
            self._sent[key] = even_all_to_alls(job)
        return self._sent[key]

    def _stages_of(self, degrees: SetUp, times: BlockTimes) -> PipelineKinds:
        if self._head_blocks is None:
            self._head_blocks = round(times.head / times.alone, 1) if times.alone else 0.0
        key = degrees.pp, degrees.micro_batches, degrees.ep > 1  # a single EP rank has nothing to overlap
        if key not in self._stages:
            self._stages[key] = stages_of(self.job, degrees, self._head_blocks, self.job.fields["predicted"])
        return self._stages[key]

    def _gradients(self, set_up: SetUp, times: BlockTimes) -> dict[str, tuple[float, float]]:
        """`Row.gradients` and `hidden` by what replicas shard."""
        job = self.job.workload(set_up)
        rates, blocks = self.rates_of(job, set_up.dispatcher), job.architecture.blocks / set_up.pp
        exposed: dict[str, tuple[float, float]] = {}
        for sharding in shardings_of(self.job, set_up):
            seconds = gradient_seconds(dataclasses.replace(job, sharding=sharding), rates)
            beside = self.overlaps_gradients and sharding not in LATER_SHARDING
            exposed[sharding] = seconds, times.backward * blocks * beside
        return exposed


def gathers_of(set_up: SetUp) -> tuple[str, int] | None:
    """Return the sharding and the replicas that exchange parameters or gradients of every block; None: none do."""
    return (set_up.sharding, set_up.dp) if set_up.sharding in LATER_SHARDING else None


def shape_job(job: OpenJob, set_up: SetUp) -> Workload:
    """Return the workload with the blocks of a set-up on a single stage, for one micro-batch."""
    dp = set_up.dp if gathers_of(set_up) else job.gpus // (set_up.etp * set_up.ep)
    return job.workload(
        SetUp(
            *(*set_up.shape[:4], 1, dp, set_up.micro_batch, 1),
            **{name: getattr(set_up, name) for name in ("dispatch", "dispatcher", "sharding", "recompute")},
        )
    )
