"""A coarse clock: passes of mean blocks in the order of the schedule, then gradients and the optimizer.

The seconds of a mean block come from the clock by blocks (`timing.iteration.walk`), run for a few blocks of one stage.
For balanced traffic both clocks agree.
"""

import functools
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from mfabric_jax.support.loops import at_first_call
from mfabric_jax.timing.blocks import Rules
from mfabric_jax.timing.iteration import (
    FabricRates,
    all_reduce_seconds,
    send_seconds,
    step_seconds,
    walk,
)
from mfabric_jax.timing.passes import Exchanges, order_of, places
from mfabric_jax.workload import Workload
from mfabric_jax.workload.compute import BlockSeconds, backward_of, complete_seconds
from mfabric_jax.workload.schedules import BACKWARD, FORWARD, INPUT, SCHEDULES, PipelineShape, units_of

_alternate = at_first_call("mfabric_jax.evaluate.setups.passes_loops:alternate")
_play = at_first_call("mfabric_jax.evaluate.setups.passes_loops:play_passes")
MOST_PLAYED = 1 << 17  # passes of all stages that are played one by one
PERIODS = 4  # micro-batches over stages that are played of longer iterations; more repeat


class MeanBlocks(NamedTuple):
    """Seconds by kind of pass [4] of a mean block with experts, of one without, and of the output head.

    `pair`: seconds of a forward and a backward pass beside each other, fixed and by block.
    """

    moe: np.ndarray
    dense: np.ndarray
    head: np.ndarray
    pair: np.ndarray


def mean_blocks(
    job: Workload, rates: FabricRates, exchanges: Exchanges, seconds: BlockSeconds, rules: Rules
) -> MeanBlocks:
    """Return the seconds of mean blocks from the clock by blocks.

    `job`: some blocks on one stage, with the schedule of the passes; `exchanges` [1 ..]: its all-to-alls.
    """
    batch = jax.tree.map(lambda x: np.asarray(x, float)[None], (rates, seconds))
    slots = walk(job, batch[0], exchanges, batch[1], rules=rules, every=False).slots
    order, where = order_of(job), places(job)
    end, together = slots.end[0, 0], order.in_pairs[0]
    kinds = np.where(False if order.later is None else order.later[0], INPUT, order.kind[0])
    begin = np.concatenate([[0.0], np.maximum.accumulate(end[:, -1])[:-1]])
    lengths, moe = np.diff(end, axis=1, prepend=begin[:, None]), where.experts[0] >= 0
    of_moe, of_dense, head = np.zeros((3, 4))
    for kind in set(kinds[~together].tolist()):
        row = np.flatnonzero(~together & (kinds == kind))[-1]  # the first has no pass before it
        for sums, some in ((of_moe, moe[row]), (of_dense, ~moe[row])):
            sums[kind] = lengths[row][some].mean() if some.any() else 0.0
    whole = complete_seconds(job, seconds)
    head[FORWARD], head[BACKWARD] = whole.head_s, backward_of(whole).head
    head[INPUT] = head[BACKWARD]
    if order.paired is None:
        return MeanBlocks(of_moe, of_dense, head, np.zeros(2))
    first = np.flatnonzero(order.paired[0])[-1]
    each = np.diff(end[first]).mean()
    total = end[first : first + 2].max() - end[:first].max()
    return MeanBlocks(of_moe, of_dense, head, np.array([total - each * end.shape[1], each]))


def coarse_seconds(job: Workload, rates: FabricRates, blocks: MeanBlocks, rules: Rules) -> float:
    """Return the seconds of an iteration whose blocks all take the mean."""
    moe, dense = np.array([(len(part.layers), part.blocks - len(part.layers)) for part in job.places]).T
    times = blocks.moe[:, None] * moe + blocks.dense[:, None] * dense
    times[:, -1] += blocks.head
    batch = jax.tree.map(lambda x: np.atleast_1d(np.asarray(x, float))[None], rates)
    sends = send_seconds(job, batch)[0]
    stage_of = _stages_of(job.schedule, job.pp, job.chunks)
    send = np.array([_crossing_s(a, b, sends, job.pp) for a, b in itertools.pairwise(stage_of)] + [0.0])
    alone = blocks.moe[FORWARD], blocks.moe[BACKWARD]
    ends, *last = _ends(job, times, np.asarray(blocks.pair), send, moe.astype(float), alone)
    return float((ends + _exposed_seconds(job, batch, blocks, ends, last, rules) + step_seconds(job, batch)[0]).max())


def _exposed_seconds(
    job: Workload, rates: FabricRates, blocks: MeanBlocks, ends: np.ndarray, last: Sequence[np.ndarray], rules: Rules
) -> np.ndarray:
    """Seconds of gradients after the passes of every stage; `last`: of backward passes, as in `_ends`."""
    reduce_s = np.broadcast_to(all_reduce_seconds(job, rates)[0], ends.shape)
    if not rules.dp_overlap or job.sharding not in ("none", "optimizer"):
        return reduce_s
    exposed = np.zeros(job.pp)
    for stage in range(job.pp):
        done = []
        for part in job.stage_places(stage):
            end, kind = (each[stage, part] for each in last)  # it runs alone
            each = np.full(job.place_blocks[part], blocks.dense[kind])
            each[list(job.place_positions(part))] = blocks.moe[kind]
            done += list(end - (np.cumsum(each) - each))  # the first block of the model comes last
        done.sort()
        left = np.arange(len(done), 0, -1) / len(done)
        exposed[stage] = max(0.0, (np.array(done) + left * reduce_s[stage]).max() - ends[stage])
    return exposed


@functools.lru_cache(maxsize=1024)
def _stages_of(schedule: str, pp: int, chunks: int) -> tuple[int, ...]:
    """The stage of every place of the model; of a model in two copies, that of the first."""
    part_of = SCHEDULES[schedule].part_of
    stage_of_place = {part_of(stage, chunk, pp): stage for chunk in reversed(range(chunks)) for stage in range(pp)}
    return tuple(stage_of_place[position] for position in sorted(stage_of_place))


def _crossing_s(stage: int, other: int, sends: np.ndarray, pp: int) -> float:
    if stage == other:
        return 0.0
    wraps = abs(stage - other) > 1 or pp == 1
    return float(np.broadcast_to(sends, pp)[pp - 1 if wraps else min(stage, other)])


def _ends(
    job: Workload, times: np.ndarray, pair: np.ndarray, send: np.ndarray, count: np.ndarray, alone: tuple[float, float]
) -> tuple[np.ndarray, ...]:
    """Ends of stages [P], and end and kind of the last backward pass of places on stages [P places].

    A very long iteration repeats its steady part. Its slowest stage takes over late if others are nearly as slow.
    """
    step = job.pp * (2 if job.order.even else 1)
    each = 2 * job.pp * job.chunks  # passes of a micro-batch
    periods = max(PERIODS, MOST_PLAYED // (each * step) - 1)
    few = job.micro_batches - (job.micro_batches - periods * step) // step * step
    if job.micro_batches <= (periods + 2) * step:
        return _play_all(job, job.micro_batches, times, pair, send, count, alone)
    shorter, longer = (_play_all(job, many, times, pair, send, count, alone) for many in (few, few + step))
    periods = (job.micro_batches - few) // step
    slope = longer[0].max() - shorter[0].max()
    return shorter[0] + periods * slope, shorter[1] + periods * slope, shorter[2]


def _play_all(
    job: Workload, many: int, times: np.ndarray, pair: np.ndarray, send: np.ndarray, count: np.ndarray, alone: Any
) -> tuple[np.ndarray, ...]:
    kind, micro_batch, position, paired = _passes(job.schedule, job.shape._replace(micro_batches=many))
    ends, last = np.zeros(job.pp), np.zeros((job.pp, times.shape[1]))
    of_last = np.zeros(last.shape, np.int64)
    assert _play(kind, micro_batch, position, paired, many, times, pair, send, *alone, count, ends, last, of_last)
    return ends, last, of_last


@functools.lru_cache(maxsize=256)
def _passes(schedule: str, shape: PipelineShape) -> tuple[np.ndarray, ...]:
    """Kind, micro-batch, place and pairing [P Q] of all passes."""
    order, stages = SCHEDULES[schedule], shape.stages
    if order.warm_up is not None and schedule != "gpipe":
        shaped = (stages, 2 * shape.micro_batches * shape.chunks)
        kind, micro_batch, chunk = (np.zeros(shaped, np.int32) for _ in range(3))
        paired = np.zeros(shaped, np.bool_)
        warm = np.array([order.warm_up(stage, shape) for stage in range(stages)])
        _alternate(stages, shape.micro_batches, shape.chunks, warm, shape.overlap, kind, micro_batch, chunk, paired)
    else:
        units = [units_of(schedule, stage, shape) for stage in range(stages)]
        most = max(sum(map(len, row)) for row in units)
        kind, micro_batch = (np.zeros((stages, most), np.int32) for _ in range(2))
        chunk, paired = np.full((stages, most), -1, np.int32), np.zeros((stages, most), np.bool_)
        for stage, row in enumerate(units):
            column = 0
            for unit in row:
                for number, step in enumerate(unit):
                    kind[stage, column], micro_batch[stage, column], chunk[stage, column] = step
                    paired[stage, column] = number < len(unit) - 1
                    column += 1
    table = np.array(
        [
            [order.part_of(stage, chunk, stages) for chunk in range(shape.chunks * order.copies)]
            for stage in range(stages)
        ]
    )
    position = np.where(chunk < 0, -1, np.take_along_axis(table, np.maximum(chunk, 0), axis=1)).astype(np.int32)
    return kind, micro_batch, position, paired
