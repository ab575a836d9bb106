"""In which order a stage of a pipeline runs its passes, under every schedule.

Sources: GPipe, NeurIPS 2019; 1F1B and interleaved, Megatron-LM, arXiv 2104.04473; with passes that overlap, the longer
warm-up of Megatron Core's overlapped all-to-alls; ZB-H1 and ZB-V, arXiv 2401.10241 and 2405.15362, in the orders of the
authors' patch for Megatron and of PyTorch's `ScheduleZBVZeroBubble`; DualPipe, arXiv 2412.19437, in the order of
deepseek-ai/DualPipe.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

FORWARD, BACKWARD, WEIGHT, INPUT = range(4)  # BACKWARD: both of INPUT (gradients of inputs) and WEIGHT (of weights)
Step = tuple[int, int, int]  # kind, micro-batch, chunk
Unit = tuple[Step, ...]  # one pass, or a forward and a backward one that run together


class PipelineShape(NamedTuple):
    """What the passes of a stage depend on; `overlap`: all-to-alls of a pass run beside the computation of another."""

    stages: int
    micro_batches: int
    chunks: int = 1
    overlap: bool = False


# ---------------------------------------------------------------------- forwards and backwards in alternation
def one_f_one_b(stage: int, shape: PipelineShape) -> int:
    """Warm-up forwards, then one forward, one backward, then the backwards that remain."""
    behind = shape.stages - stage - 1
    return 2 * behind + 1 if shape.overlap else behind  # pairs never wait for their neighbours' pairs


def interleaved(stage: int, shape: PipelineShape) -> int:
    """As many micro-batches as there are stages go through one chunk after the other; warm-up is that much longer."""
    return 2 * (shape.stages - stage - 1) + (shape.chunks - 1) * shape.stages + shape.overlap


def gpipe(stage: int, shape: PipelineShape) -> int:
    """All forwards, then all backwards."""
    return shape.micro_batches * shape.chunks


def alternating(warm_up: Callable[[int, PipelineShape], int], *, youngest_first: bool = False):
    """What a stage runs after so many warm-up forwards."""

    def units(stage: int, shape: PipelineShape) -> list[Unit]:
        stages, micro_batches, chunks, overlap = shape
        groups = [range(first, min(first + stages, micro_batches)) for first in range(0, micro_batches, stages)]
        forwards = [(FORWARD, m, c) for group in groups for c in range(chunks) for m in group]
        backwards = [(BACKWARD, m, chunks - 1 - c) for _, m, c in forwards]
        first = warm_up(stage, shape)
        steady = [*zip(forwards[first:], backwards, strict=False)]
        pairs = steady if overlap else _alone(step for pair in steady for step in pair)
        rest = backwards[len(steady) :]
        return [*_alone(forwards[:first]), *pairs, *_alone(reversed(rest) if youngest_first else rest)]

    return units


def _alone(steps: Iterable[Step]) -> list[Unit]:
    return [(step,) for step in steps]


# ------------------------------------------------------------------ gradients of weights in passes of theirs
class _Walk:
    """Passes one after the other, those of a kind and chunk by micro-batch; gradients of weights in that order, too."""

    def __init__(self, first: tuple[int, int] = (0, 0)):
        self.units: list[Unit] = []
        self.next = {(kind, chunk): first[chunk] for kind in (FORWARD, BACKWARD) for chunk in (0, 1)}
        self.waiting: list[tuple[int, int]] = []

    def step(self, kind: int, chunk: int) -> Step:
        """The next pass of a kind and chunk; that of an INPUT leaves its WEIGHT waiting."""
        of = FORWARD if kind == FORWARD else BACKWARD, chunk
        micro_batch = self.next[of]
        self.next[of] += 1
        if kind == INPUT:
            self.waiting.append((micro_batch, chunk))
        return kind, micro_batch, chunk

    def run(self, *passes: tuple[int, int]) -> None:
        """Passes (kind, chunk) that run together, or one alone."""
        self.units.append(tuple(self.step(*one) for one in passes))

    def weigh(self, chunk: int | None = None) -> None:
        """The gradients of weights that wait longest (of a chunk)."""
        at = next(n for n, (_, c) in enumerate(self.waiting) if chunk in (None, c))
        self.units.append(((WEIGHT, *self.waiting.pop(at)),))


def zb_h1(stage: int, shape: PipelineShape) -> list[Unit]:
    """1F1B whose gradients of weights come later by as many micro-batches as there are stages before, at most."""
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
    """Down the stages and back up: the first chunk of a stage is as far from the start as the other from the end."""
    stages, walk = shape.stages, _Walk()
    micro_batches = max(2 * stages - 1, shape.micro_batches)  # those there are not are left out

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
    """Half of the micro-batches from either end: a stage holds the parts of the model of two stages."""
    stages, half = shape.stages, shape.stages // 2
    rank, later = min(stage, stages - 1 - stage), shape.micro_batches // 2
    near, far = (0, 1) if stage < half else (1, 0)  # chunks, by the end that their micro-batches come from
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
    for step in range(2 * (rank + 1)):  # the later half leaves its gradients of weights
        walk.run((INPUT if step >= rank + 1 else BACKWARD, near if step % 2 else far))
    for _ in range(outer):
        walk.weigh()
        walk.run((INPUT, near))
    while walk.waiting:
        walk.weigh()
    return walk.units
