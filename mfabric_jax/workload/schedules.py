"""Pipeline schedules: the passes of each stage, the blocks that it holds, and the resulting bubble."""

import bisect
import functools
import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

from mfabric_jax import checks
from mfabric_jax.workload.models import Architecture

# Sources of the order of a stage's passes:
# - GPipe: NeurIPS 2019.
# - 1F1B and interleaved: Megatron-LM, arXiv 2104.04473; overlapping passes have the longer warm-up of Megatron Core's
#   overlapped all-to-alls.
# - ZB-H1 and ZB-V: arXiv 2401.10241 and 2405.15362, as in the authors' patch for Megatron and in PyTorch's
#   `ScheduleZBVZeroBubble`.
# - DualPipe: arXiv 2412.19437, as in deepseek-ai/DualPipe.

FORWARD, BACKWARD, WEIGHT, INPUT = range(4)  # BACKWARD is INPUT (gradients of inputs) plus WEIGHT (of weights)
Step = tuple[int, int, int]  # kind, micro-batch, chunk
Unit = tuple[Step, ...]  # one pass, or a forward and a backward pass that run together


class PipelineShape(NamedTuple):
    """What a stage's passes depend on. `overlap`: all-to-alls of a pass overlap the compute of another pass."""

    stages: int
    micro_batches: int
    chunks: int = 1
    overlap: bool = False


# ---------------------------------------------------------------------- schedules that alternate forwards and backwards
def one_f_one_b_warm_up(stage: int, shape: PipelineShape) -> int:
    """Return the warm-up forwards of 1F1B, after which forwards and backwards alternate."""
    behind = shape.stages - stage - 1
    return 2 * behind + 1 if shape.overlap else behind  # so that pairs never wait for pairs of neighbour stages


def interleaved_warm_up(stage: int, shape: PipelineShape) -> int:
    """Return the warm-up forwards of interleaved 1F1B: groups of `stages` micro-batches run one chunk after another."""
    return 2 * (shape.stages - stage - 1) + (shape.chunks - 1) * shape.stages + shape.overlap


def gpipe_warm_up(stage: int, shape: PipelineShape) -> int:
    """Return the warm-up forwards of GPipe: all forwards come before all backwards."""
    return shape.micro_batches * shape.chunks


def alternating(warm_up: Callable[[int, PipelineShape], int], *, youngest_first: bool = False):
    """Return a function that gives the passes of a stage: `warm_up` forwards, after which passes alternate.

    - `youngest_first`: the backwards that remain at the end start with the last micro-batch.
    """

    def units(stage: int, shape: PipelineShape) -> list[Unit]:
        stages, micro_batches, chunks, overlap = shape
        groups = [range(first, min(first + stages, micro_batches)) for first in range(0, micro_batches, stages)]
        forwards = [(FORWARD, m, c) for group in groups for c in range(chunks) for m in group]
        backwards = [(BACKWARD, m, chunks - 1 - c) for _, m, c in forwards]
        first = warm_up(stage, shape)
        steady = [*zip(forwards[first:], backwards, strict=False)]
        pairs = steady if overlap else _alone(step for pair in steady for step in pair)
        tail = backwards[len(steady) :]
        return [*_alone(forwards[:first]), *pairs, *_alone(reversed(tail) if youngest_first else tail)]

    return units


def _alone(steps: Iterable[Step]) -> list[Unit]:
    return [(step,) for step in steps]


# ------------------------------------------------------------------ separate passes for gradients of weights
class _Walk:
    """Builder of a sequence of passes; it numbers the micro-batches of each kind and chunk."""

    def __init__(self, first: tuple[int, int] = (0, 0)):
        self.units: list[Unit] = []
        self.next = {(kind, chunk): first[chunk] for kind in (FORWARD, BACKWARD) for chunk in (0, 1)}
        self.waiting: list[tuple[int, int]] = []

    def step(self, kind: int, chunk: int) -> Step:
        """The next pass of a kind and chunk; an INPUT pass queues its WEIGHT pass."""
        of = FORWARD if kind == FORWARD else BACKWARD, chunk
        micro_batch = self.next[of]
        self.next[of] += 1
        if kind == INPUT:
            self.waiting.append((micro_batch, chunk))
        return kind, micro_batch, chunk

    def run(self, *passes: tuple[int, int]) -> None:
        self.units.append(tuple(self.step(*next_pass) for next_pass in passes))

    def weigh(self, chunk: int | None = None) -> None:
        index = next(n for n, (_, c) in enumerate(self.waiting) if chunk in (None, c))
        self.units.append(((WEIGHT, *self.waiting.pop(index)),))


def zb_h1(stage: int, shape: PipelineShape) -> list[Unit]:
    """Return the passes of ZB-H1: 1F1B that delays gradients of weights by at most one micro-batch per earlier
    stage."""
    walk, warm_up = _Walk(), min(shape.stages - stage - 1, shape.micro_batches)
    for _ in range(warm_up):
        walk.run((FORWARD, 0))
    for steady in range(shape.micro_batches - warm_up):
        walk.run((FORWARD, 0))
        walk.run((INPUT, 0))
        if steady >= stage:
            walk.weigh()
    for _ in range(warm_up):
        walk.run((INPUT, 0))
        walk.weigh()
    while walk.waiting:
        walk.weigh()
    return walk.units


def zb_v(stage: int, shape: PipelineShape) -> list[Unit]:
    """Return the passes of ZB-V, which goes down the stages and back up.

    A stage holds the two model parts at equal distance from the model's start and end.
    """
    stages, walk = shape.stages, _Walk()
    micro_batches = max(2 * stages - 1, shape.micro_batches)  # passes beyond the real number are removed at the end

    def both(chunk: int) -> None:
        walk.run((INPUT, chunk))
        walk.weigh(chunk)

    for _ in range(2 * (stages - stage) - 1):
        walk.run((FORWARD, 0))
    for _ in range(stage):
        walk.run((FORWARD, 1))
        walk.run((FORWARD, 0))
    for _ in range(stages - stage):
        walk.run((FORWARD, 1))
        both(1)
    while walk.next[FORWARD, 1] < micro_batches:
        if walk.next[FORWARD, 0] < micro_batches:
            walk.run((FORWARD, 0))
        both(0)
        walk.run((FORWARD, 1))
        both(1)
    for _ in range(stage):
        walk.run((INPUT, 0))
        walk.run((INPUT, 1))
    for _ in range(stages - stage):
        both(0)
    for chunk in (1, 0):
        while any(c == chunk for _, c in walk.waiting):
            walk.weigh(chunk)
    return [unit for unit in walk.units if unit[0][1] < shape.micro_batches]


def dualpipe(stage: int, shape: PipelineShape) -> list[Unit]:
    """Return the passes of DualPipe: half of the micro-batches enter from each end of the pipeline.

    A stage holds the model parts of two stages.
    """
    stages, half = shape.stages, shape.stages // 2
    rank, later = min(stage, stages - 1 - stage), shape.micro_batches // 2
    near, far = (0, 1) if stage < half else (1, 0)  # chunks, by the end from which their micro-batches come
    walk, outer = _Walk((0, later)), half - rank - 1

    def pair(forward: int, backward: int, together: bool = True) -> None:
        passes = (FORWARD, forward), (BACKWARD, backward)
        for some in [passes] if shape.overlap and together else [passes[:1], passes[1:]]:
            walk.run(*some)

    for _ in range(2 * outer):
        walk.run((FORWARD, near))
    for _ in range(rank + 1):
        walk.run((FORWARD, near))
        walk.run((FORWARD, far))
    for _ in range(outer):
        walk.run((INPUT, far))
        walk.weigh()
        walk.run((FORWARD, far))
    for step in range(later - stages + rank + 1):
        pair(near, far, together=step > 0 or outer > 0)
        pair(far, near)
    for _ in range(outer):
        walk.run((BACKWARD, far))
        pair(far, near)
    for step in range(2 * (rank + 1)):  # the second half of these delays its gradients of weights
        walk.run((INPUT if step >= rank + 1 else BACKWARD, near if step % 2 else far))
    for _ in range(outer):
        walk.weigh()
        walk.run((INPUT, near))
    while walk.waiting:
        walk.weigh()
    return walk.units


Place = Callable[[int, int, int], int]  # (stage, chunk, stages) -> model part
ROUNDING = 1e-9  # error of a division


class PipelineSchedule(NamedTuple):
    """One pipeline schedule: `units` (passes of a stage), `part_of` (the model part of a stage's chunk) and limits.

    - `bubble`: wait of the busiest stage over its compute for one micro-batch, if INPUT, WEIGHT and forward passes take
      equally long.
    - `copies`: stages that hold each part; `chunks`: required number, or None; `splits`: WEIGHT passes are separate.
    - `least`: fewest micro-batches over stages; `multiple`: micro-batches must be a multiple of this number times the
      stages (0: any number of them); `even`: stages and micro-batches must be even.
    - `warm_up`: forward passes of a stage before passes alternate; None: they do not alternate.
    - `overlaps`, `overlap`: whether a stage can run a forward and a backward pass together, and does so by default.
    """

    units: Callable[[int, PipelineShape], Iterable[Unit]]
    bubble: Callable[[PipelineShape], float] = lambda shape: (shape.stages - 1) / shape.chunks
    part_of: Place = lambda stage, chunk, stages: chunk * stages + stage
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
        """Return the number that must divide the number of micro-batches."""
        return 2 if self.even else max(1, self.multiple * stages)


SCHEDULES = {
    "1f1b": PipelineSchedule(alternating(one_f_one_b_warm_up), warm_up=one_f_one_b_warm_up, overlaps=True),
    "interleaved": PipelineSchedule(
        alternating(interleaved_warm_up), chunks=None, multiple=1, warm_up=interleaved_warm_up, overlaps=True
    ),
    "gpipe": PipelineSchedule(alternating(gpipe_warm_up, youngest_first=True), warm_up=gpipe_warm_up),
    "zb-h1": PipelineSchedule(zb_h1, lambda s: (s.stages - 1) / 3, splits=True),
    "zb-v": PipelineSchedule(
        zb_v,
        lambda s: (s.stages - 1) / 6,
        lambda stage, chunk, stages: 2 * stages - 1 - stage if chunk else stage,
        chunks=2,
        splits=True,
    ),
    "dualpipe": PipelineSchedule(
        dualpipe,
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
    """A part of the model: first block, number of blocks, and `layers`, its MoE blocks as numbers among MoE blocks."""

    first: int
    blocks: int
    layers: range


class Holding(NamedTuple):
    """Numbers of MoE and dense blocks in each chunk of a stage, and whether the stage holds the model's start or
    end."""

    moe: tuple[int, ...]
    dense: tuple[int, ...]
    begins: bool
    ends: bool


@functools.lru_cache(maxsize=1024)
def model_parts(architecture: Architecture, sizes: tuple[int, ...]) -> tuple[ModelPart, ...]:
    """Split a model into parts with these numbers of blocks."""
    moe, parts, first = architecture.moe_blocks, [], 0
    for blocks in sizes:
        layers = range(*(bisect.bisect_left(moe, block) for block in (first, first + blocks)))
        parts.append(ModelPart(first, blocks, layers))
        first += blocks
    return tuple(parts)


@functools.lru_cache(maxsize=1024)
def holdings(architecture: Architecture, schedule: str, pp: int, sizes: tuple[int, ...]) -> tuple[Holding, ...]:
    order, places, stages = SCHEDULES[schedule], model_parts(architecture, sizes), []
    chunks = len(sizes) // pp
    for stage in range(pp):
        held = [order.part_of(stage, chunk, pp) for chunk in range(chunks * order.copies)]
        moe = tuple(len(places[part].layers) for part in held)
        dense = tuple(places[part].blocks - count for part, count in zip(held, moe, strict=True))
        stages.append(Holding(moe, dense, 0 in held, len(places) - 1 in held))
    return tuple(stages)


def check_shape(schedule: str, shape: PipelineShape) -> None:
    """Raise `InputError` for a shape that the schedule cannot have."""
    order, (stages, micro_batches, chunks, overlap) = SCHEDULES[schedule], shape
    if order.chunks not in (None, chunks):
        raise checks.InputError(f"chunks must be {order.chunks} under schedule {schedule!r}, got {chunks}.")
    if chunks > 1 and stages == 1:
        raise checks.InputError(f"chunks must be 1 with a single stage (pp 1), got {chunks}.")
    if order.even and stages % 2:
        raise checks.InputError(f"pp must be even under schedule {schedule!r}, got {stages}.")
    least = order.least * stages
    if micro_batches % order.step(stages) or micro_batches < least:
        several = "even" if order.even else f"a multiple of the {stages} stages (pp)"
        enough = f" and at least {order.least} x pp = {least}" if least else ""
        raise checks.InputError(
            f"micro_batches must be {several}{enough} under schedule {schedule!r}, got {micro_batches}."
        )
    if overlap and not order.overlaps:
        able = ", ".join(name for name, each in SCHEDULES.items() if each.overlaps)
        raise checks.InputError(f"overlap_passes needs schedule {able}, got schedule {schedule!r}.")


def micro_batches_for(
    bubble: float, pp: int, chunks: int | None = None, schedule: str = "1f1b", overlap: bool | None = None
) -> int:
    """Return the fewest micro-batches m that a schedule allows with a pipeline bubble b / (m + b) of at most `bubble`.

    b is the busiest stage's wait over its compute for one micro-batch, if all blocks take equally long and gradients of
    weights as long as gradients of inputs: (pp - 1) / chunks under 1f1b, interleaved and gpipe (arXiv 2104.04473), less
    under the others. `chunks` and `overlap` default to the schedule's. Raise `InputError` unless 0 < `bubble` < 1.
    """
    order = SCHEDULES[checks.one_of("schedule", schedule, SCHEDULES)]
    chunks = order.chunks or 1 if chunks is None else chunks
    for field, value in (("pp", pp), ("chunks", chunks)):
        checks.whole(field, value)
    if not 0 < checks.positive("bubble", bubble) < 1:
        raise checks.InputError(f"bubble must be a fraction between 0 and 1, got {bubble!r}.")
    waits = order.bubble(PipelineShape(pp, 0, chunks, order.overlap if overlap is None else overlap))
    least = max(1, order.least * pp, math.ceil(waits * (1 / bubble - 1) - ROUNDING))
    step = order.step(pp)
    return -(-least // step) * step


@functools.lru_cache(maxsize=4096)
def units_of(schedule: str, stage: int, shape: PipelineShape) -> tuple[Unit, ...]:
    return tuple(SCHEDULES[schedule].units(stage, shape))


@functools.lru_cache(maxsize=4096)
def passes_in_memory(schedule: str, stage: int, shape: PipelineShape, chunks: int) -> tuple[int, ...]:
    """Return the most passes, by chunk, whose activations a stage holds at once.

    WEIGHT passes release activations. Two passes that run together, block by block, need the memory of one and a block
    (`memory.Memory.buffers`).
    """
    if (warm_up := SCHEDULES[schedule].warm_up) is not None:
        most = min(max(1, warm_up(stage, shape) + (not shape.overlap)), shape.micro_batches * chunks)
        of = [index % (shape.stages * chunks) // shape.stages for index in range(most)]
        return tuple(of.count(chunk) for chunk in range(chunks))
    now, best = [0] * chunks, (0,) * chunks
    for unit in units_of(schedule, stage, shape):
        for kind, _, chunk in unit:
            now[chunk] += {FORWARD: 1, INPUT: 0}.get(kind, -1)
            best = max(best, tuple(now), key=sum)
    return best
