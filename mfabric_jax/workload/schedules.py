"""Schedules of a pipeline: what a stage runs, which blocks it holds, what bubble that leaves (sources: `_passes`)."""

import bisect
import functools
import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

from mfabric_jax import checks
from mfabric_jax.workload import _passes
from mfabric_jax.workload._passes import FORWARD, INPUT, PipelineShape, Unit
from mfabric_jax.workload.models import Architecture

Place = Callable[[int, int, int], int]  # of stage, chunk, stages
ROUNDING = 1e-9  # of a division


class Schedule(NamedTuple):
    """One schedule.

    - `units`: what a stage runs, in order.   - `bubble`: of the busiest stage where gradients of inputs and of weights
      take as long as a forward pass, over the computation of one micro-batch on a stage.
    - `place`: which part of the model chunk c of a stage is; parts run one after the other.
    - `copies`: how many stages hold each part.   - `chunks`: that it needs; None: any number.
    - `least`, `multiple`: of micro-batches, over the number of stages; `even`: stages and micro-batches come in pairs.
    - `splits`: gradients of weights have passes of their own.
    - `warm_up`: forward passes of a stage before one backward and one forward pass alternate; None: they do not.
    - `overlaps`: whether a stage may run a forward and a backward pass together; `overlap`: and does, by default.
    """

    units: Callable[[int, PipelineShape], Iterable[Unit]]
    bubble: Callable[[PipelineShape], float]
    place: Place = lambda stage, chunk, stages: chunk * stages + stage
    copies: int = 1
    chunks: int | None = 1
    least: int = 0
    multiple: int = 0
    even: bool = False
    splits: bool = False
    warm_up: Callable[[int, PipelineShape], int] | None = None
    overlaps: bool = False
    overlap: bool = False

    def step(self, stages: int) -> int:
        """Micro-batches come in multiples of it."""
        return 2 if self.even else max(1, self.multiple * stages)


def _usual_bubble(shape: PipelineShape) -> float:
    return (shape.stages - 1) / shape.chunks


SCHEDULES = {
    "1f1b": Schedule(
        _passes.alternating(_passes.one_f_one_b), _usual_bubble, warm_up=_passes.one_f_one_b, overlaps=True
    ),
    "interleaved": Schedule(
        _passes.alternating(_passes.interleaved),
        _usual_bubble,
        chunks=None,
        multiple=1,
        warm_up=_passes.interleaved,
        overlaps=True,
    ),
    "gpipe": Schedule(_passes.alternating(_passes.gpipe, youngest_first=True), _usual_bubble, warm_up=_passes.gpipe),
    "zb-h1": Schedule(_passes.zb_h1, lambda s: (s.stages - 1) / 3, splits=True),
    "zb-v": Schedule(
        _passes.zb_v,
        lambda s: (s.stages - 1) / 6,
        lambda stage, chunk, stages: 2 * stages - 1 - stage if chunk else stage,
        chunks=2,
        splits=True,
    ),
    "dualpipe": Schedule(
        _passes.dualpipe,
        lambda s: (s.stages - 2) / (3 if s.overlap else 6),
        lambda stage, chunk, stages: stages - 1 - stage if chunk else stage,
        copies=2,
        least=2,
        even=True,
        splits=True,
        overlaps=True,
        overlap=True,
    ),
}


class ModelPart(NamedTuple):
    """A part of the model: its first block, how many there are, and its MoE blocks, counted among MoE blocks only."""

    first: int
    blocks: int
    layers: range


class Holding(NamedTuple):
    """What a pipeline stage holds: MoE and dense blocks of each of its chunks; whether the model begins or ends
    there."""

    moe: tuple[int, ...]
    dense: tuple[int, ...]
    begins: bool
    ends: bool


@functools.lru_cache(maxsize=1024)
def model_parts(architecture: Architecture, count: int) -> tuple[ModelPart, ...]:
    """A model in so many parts; the first ones take one block more where the division leaves a rest."""
    least, more = divmod(architecture.blocks, count)
    moe, found, first = architecture.moe_blocks, [], 0
    for part in range(count):
        blocks = least + (part < more)
        layers = range(*(bisect.bisect_left(moe, block) for block in (first, first + blocks)))
        found.append(ModelPart(first, blocks, layers))
        first += blocks
    return tuple(found)


@functools.lru_cache(maxsize=1024)
def holdings(architecture: Architecture, schedule: str, pp: int, chunks: int) -> tuple[Holding, ...]:
    """What each stage of a pipeline holds."""
    order, places, found = SCHEDULES[schedule], model_parts(architecture, pp * chunks), []
    for stage in range(pp):
        held = [order.place(stage, chunk, pp) for chunk in range(chunks * order.copies)]
        moe = tuple(len(places[place].layers) for place in held)
        dense = tuple(places[place].blocks - count for place, count in zip(held, moe, strict=True))
        found.append(Holding(moe, dense, 0 in held, len(places) - 1 in held))
    return tuple(found)


def check_shape(schedule: str, shape: PipelineShape) -> None:
    """`InputError` for a shape that a schedule cannot have."""
    one, (stages, micro_batches, chunks, overlap) = SCHEDULES[schedule], shape
    if one.chunks not in (None, chunks):
        raise checks.InputError(f"chunks must be {one.chunks} under schedule {schedule!r}, got {chunks}.")
    if chunks > 1 and stages == 1:
        raise checks.InputError(f"chunks must be 1 with a single stage (pp 1), got {chunks}.")
    if one.even and stages % 2:
        raise checks.InputError(f"pp must be even under schedule {schedule!r}, got {stages}.")
    least = one.least * stages
    if micro_batches % one.step(stages) or micro_batches < least:
        several = "even" if one.even else f"a multiple of the {stages} stages (pp)"
        enough = f" and at least {one.least} x pp = {least}" if least else ""
        raise checks.InputError(
            f"micro_batches must be {several}{enough} under schedule {schedule!r}, got {micro_batches}."
        )
    if overlap and not one.overlaps:
        able = ", ".join(name for name, each in SCHEDULES.items() if each.overlaps)
        raise checks.InputError(f"overlap_passes is of schedules {able}, got schedule {schedule!r}.")


def micro_batches_for(
    bubble: float, pp: int, chunks: int | None = None, schedule: str = "1f1b", overlap: bool | None = None
) -> int:
    """The fewest micro-batches m with a pipeline bubble b / (m + b) of at most `bubble` that a schedule can have.

    b: what its busiest stage waits where all blocks take equally long and gradients of weights as long as those of
    inputs, over its computation for one micro-batch: (pp - 1) / chunks under 1f1b, interleaved and gpipe
    (arXiv 2104.04473), less under others (`schedules.SCHEDULES`). `chunks`, `overlap`: None: the schedule's own.
    `InputError` for a bubble that is not between 0 and 1.
    """
    one = SCHEDULES[checks.one_of("schedule", schedule, SCHEDULES)]
    chunks = one.chunks or 1 if chunks is None else chunks
    for field, value in (("pp", pp), ("chunks", chunks)):
        checks.whole(field, value)
    if not 0 < checks.positive("bubble", bubble) < 1:
        raise checks.InputError(f"bubble must be a fraction between 0 and 1, got {bubble!r}.")
    waits = one.bubble(PipelineShape(pp, 0, chunks, one.overlap if overlap is None else overlap))
    least = max(1, one.least * pp, math.ceil(waits * (1 / bubble - 1) - ROUNDING))
    step = one.step(pp)
    return -(-least // step) * step


@functools.lru_cache(maxsize=4096)
def units_of(schedule: str, stage: int, shape: PipelineShape) -> tuple[Unit, ...]:
    """What a stage runs, in order."""
    return tuple(SCHEDULES[schedule].units(stage, shape))


@functools.lru_cache(maxsize=4096)
def held(schedule: str, stage: int, shape: PipelineShape, chunks: int) -> tuple[int, ...]:
    """Passes of every chunk that a stage has run forward and still needs, where these are most; one is needed until
    its gradients of weights are there."""
    if (warm_up := SCHEDULES[schedule].warm_up) is not None:
        most = min(warm_up(stage, shape) + 1, shape.micro_batches * chunks)
        of = [at % (shape.stages * chunks) // shape.stages for at in range(most)]
        return tuple(of.count(chunk) for chunk in range(chunks))
    now, best = [0] * chunks, (0,) * chunks
    for unit in units_of(schedule, stage, shape):
        for kind, _, chunk in unit:
            now[chunk] += {FORWARD: 1, INPUT: 0}.get(kind, -1)
            best = max(best, tuple(now), key=sum)
    return best
