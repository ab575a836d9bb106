"""The order in which pipeline stages run their passes, as static index arrays."""

import functools
from typing import NamedTuple

import numpy as np

from mfabric_jax.workload import Workload
from mfabric_jax.workload.schedules import BACKWARD, FORWARD, INPUT, SCHEDULES, WEIGHT, PipelineShape, Step, units_of

NOTHING: Step = (WEIGHT, 0, -1)  # pads stages that have fewer passes


class Order(NamedTuple):
    """P stages, Q passes each: forward and backward of M micro-batches through every chunk of blocks.

    - `kind`, `micro_batch`, `chunk` [P Q]: what each stage runs, in its own order; chunk -1: nothing.
    - `stage`, `position` [P*Q]: all passes of all stages in one order in which every pass follows what it needs.
    - `needs` [P*Q]: stage * Q + position of the neighbour's pass that it waits for, -1 for none.
    - `crossing` [P*Q]: over which boundary that arrives: p is between stages p and p + 1, P - 1 from the last to the
      first, -1 none: it comes from the stage itself.
    - `later` [P Q]: backward passes that leave gradients of weights to a later pass, of kind WEIGHT; None: there are
      none.
    - `paired` [P Q]: a forward pass that runs together with the backward pass behind it; None: there are none.
    """

    kind: np.ndarray
    micro_batch: np.ndarray
    chunk: np.ndarray
    stage: np.ndarray
    position: np.ndarray
    needs: np.ndarray
    crossing: np.ndarray
    later: np.ndarray | None = None
    paired: np.ndarray | None = None

    @property
    def in_pairs(self) -> np.ndarray:
        """Which passes run together with another [P Q]."""
        if self.paired is None:
            return np.zeros(self.kind.shape, bool)
        return self.paired | np.roll(self.paired, 1, axis=1)


def order_of(workload: Workload) -> Order:
    """The order in which the stages of a workload run."""
    return order(workload.schedule, *workload.shape)


@functools.lru_cache(maxsize=64)
def order(schedule: str, stages: int, micro_batches: int, chunks: int = 1, overlap: bool = False) -> Order:
    """The order of all stages; where each of their chunks stands in the model says `Schedule.place`."""
    shape, one = PipelineShape(stages, micro_batches, chunks, overlap), SCHEDULES[schedule]
    units = [list(units_of(schedule, p, shape)) for p in range(stages)]
    most = max(sum(map(len, row)) for row in units)
    units = [row + [(NOTHING,)] * (most - sum(map(len, row))) for row in units]
    steps = [[step for unit in row for step in unit] for row in units]
    paired = [[n < len(unit) - 1 for unit in row for n in range(len(unit))] for row in units]
    merged = _merged(units, _needed(steps, chunks * one.copies, one.place))
    table = np.asarray(steps, np.int32).reshape(stages, most, 3)
    stage, position, needs, crossing = np.asarray(merged, np.int32).reshape(-1, 4).T
    later = table[..., 0] == INPUT
    kind = np.where(later, np.int32(BACKWARD), table[..., 0])
    rest = later if later.any() else None, np.asarray(paired) if np.any(paired) else None
    return Order(kind, table[..., 1], table[..., 2], stage, position, needs, crossing, *rest)


def _needed(steps: list[list[Step]], chunks: int, place) -> dict[tuple[int, int], tuple[int, int, int]]:
    """(stage, position) of every pass that waits for another -> that one's stage and position, and the crossing."""
    stages = len(steps)
    alike = {INPUT: BACKWARD}
    where, holders = {}, {}
    for p, row in enumerate(steps):
        for q, (kind, m, chunk) in enumerate(row):
            where[p, alike.get(kind, kind), m, chunk] = q
        for chunk in range(chunks):
            holders.setdefault(place(p, chunk, stages), []).append((p, chunk))
    found = {}
    for p, row in enumerate(steps):
        for q, (kind, m, chunk) in enumerate(row):
            if kind == WEIGHT:
                continue
            kind = alike.get(kind, kind)
            for other, its in holders.get(place(p, chunk, stages) + (-1 if kind == FORWARD else 1), ()):
                if (at := where.get((other, kind, m, its))) is not None:
                    found[p, q] = other, at, _crossing(p, other, chunk != its, stages)
    return found


def _crossing(stage: int, other: int, around: bool, stages: int) -> int:
    """Over which boundary a pass arrives from another stage; `around`: from another chunk."""
    if not around:
        return min(stage, other)
    return -1 if stage == other and stages > 1 else stages - 1


def _merged(units: list, needed: dict) -> list[tuple[int, int, int, int]]:
    """Stage, position, needs and crossing of all passes, each behind what it needs; those of a unit side by side."""
    passes = sum(map(len, units[0]))
    done, begun, merged = [0] * len(units), [0] * len(units), []
    while len(merged) < len(units) * passes:
        before = len(merged)
        for p, row in enumerate(units):
            if begun[p] == len(row):
                continue
            at = range(done[p], done[p] + len(row[begun[p]]))
            needs = [needed.get((p, q)) for q in at]
            if all(need is None or done[need[0]] > need[1] for need in needs):
                for q, need in zip(at, needs, strict=True):
                    other, position, crossing = need or (0, -1, 0)
                    merged.append((p, q, other * passes + position, crossing))
                done[p], begun[p] = at.stop, begun[p] + 1
        assert len(merged) > before, "the schedule waits for itself"
    return merged
