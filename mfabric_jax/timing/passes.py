"""The passes of an iteration: their order in every stage, their blocks, and the all-to-alls of these blocks."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from mfabric_jax.support.array_module import Array, array_module
from mfabric_jax.workload import Workload
from mfabric_jax.workload.schedules import BACKWARD, FORWARD, INPUT, SCHEDULES, WEIGHT, PipelineShape, Step, units_of

NOTHING: Step = (WEIGHT, 0, -1)  # padding for stages with fewer passes


class Order(NamedTuple):
    """Order of passes in P stages, Q each: forward and backward of M micro-batches through every chunk of blocks.

    - `kind`, `micro_batch`, `chunk` [P Q]: the passes of each stage in its own order; chunk -1: none.
    - `stage`, `position` [P*Q]: all passes in one order, each after those that it needs.
    - `needs` [P*Q]: stage * Q + position of the neighbour's pass that it waits for; -1: none.
    - `crossing` [P*Q]: boundary that this input crosses: p, between stages p and p + 1; P - 1, last to first; -1, none.
    - `depth` [P*Q]: how many passes or pairs it waits for, one after the other.
    - `later` [P Q]: backward passes whose weight gradients run later; `paired` [P Q]: forward passes in a pair.
    """

    kind: np.ndarray
    micro_batch: np.ndarray
    chunk: np.ndarray
    stage: np.ndarray
    position: np.ndarray
    needs: np.ndarray
    crossing: np.ndarray
    depth: np.ndarray
    later: np.ndarray | None = None
    paired: np.ndarray | None = None

    @property
    def in_pairs(self) -> np.ndarray:
        if self.paired is None:
            return np.zeros(self.kind.shape, bool)
        return self.paired | np.roll(self.paired, 1, axis=1)


def order_of(workload: Workload) -> Order:
    return order(workload.schedule, *workload.shape)


@functools.lru_cache(maxsize=64)
def order(schedule: str, stages: int, micro_batches: int, chunks: int = 1, overlap: bool = False) -> Order:
    """Return the order of all stages; `PipelineSchedule.place` gives the position of their chunks in the model."""
    shape = PipelineShape(stages, micro_batches, chunks, overlap)
    pipeline_schedule = SCHEDULES[schedule]
    units = [list(units_of(schedule, p, shape)) for p in range(stages)]
    most = max(sum(map(len, row)) for row in units)
    units = [row + [(NOTHING,)] * (most - sum(map(len, row))) for row in units]
    steps = [[step for unit in row for step in unit] for row in units]
    paired = [[n < len(unit) - 1 for unit in row for n in range(len(unit))] for row in units]
    merged = _merge_units(units, _needs(steps, pipeline_schedule.part_of))
    table = np.asarray(steps, np.int32).reshape(stages, most, 3)
    stage, position, needs, crossing, depth = np.asarray(merged, np.int32).reshape(-1, 5).T
    later = table[..., 0] == INPUT
    kind = np.where(later, np.int32(BACKWARD), table[..., 0])
    optional_fields = later if later.any() else None, np.asarray(paired) if np.any(paired) else None
    return Order(kind, table[..., 1], table[..., 2], stage, position, needs, crossing, depth, *optional_fields)


def _needs(steps: list[list[Step]], place_of: Callable) -> dict[tuple[int, int], tuple[int, int, int]]:
    """Map the (stage, position) of a waiting pass to the same of the pass that it needs, and the crossing."""
    stages, ran, needs = len(steps), {}, {}
    for p, row in enumerate(steps):
        for q, (kind, m, chunk) in enumerate(row):
            if kind != WEIGHT:
                ran[kind == FORWARD, m, place_of(p, chunk, stages)] = p, q, chunk
    for (forward, m, part), (p, q, chunk) in ran.items():
        if needed := ran.get((forward, m, part - 1 if forward else part + 1)):
            other, position, its = needed
            needs[p, q] = other, position, _crossing(p, other, chunk != its, stages)
    return needs


def _crossing(stage: int, other: int, around: bool, stages: int) -> int:
    if not around:
        return min(stage, other)
    return -1 if stage == other and stages > 1 else stages - 1


def _merge_units(units: list, needed: dict) -> list[tuple[int, int, int, int, int]]:
    """Return stage, position, needs, crossing, depth of all passes, by dependency; passes of a unit stay together."""
    passes = sum(map(len, units[0]))
    begun, merged, depths = [0] * len(units), [], [[0] for _ in units]  # depths: 0, then one for every merged pass
    while len(merged) < len(units) * passes:
        before = len(merged)
        for p, row in enumerate(units):
            if begun[p] == len(row):
                continue
            first = len(depths[p]) - 1
            needs = [needed.get((p, q), (0, -1, 0)) for q in range(first, first + len(row[begun[p]]))]
            if all(len(depths[other]) > position + 1 for other, position, _ in needs):
                depth = 1 + max(depths[p][-1], *(depths[other][position + 1] for other, position, _ in needs))
                for q, (other, position, crossing) in enumerate(needs, first):
                    merged.append((p, q, other * passes + position, crossing, depth))
                    depths[p].append(depth)
                begun[p] += 1
        assert len(merged) > before, "the schedule waits for itself"
    return merged


class Exchanges(NamedTuple):
    """Dispatch-sized all-to-alls [P Q L 2], two in every block, blocks in running order.

    - `optical`, `electrical` [bytes]: seconds on circuits and on packet switches, times the NIC bandwidth. All links of
      a fabric are multiples of its NICs, so the time at any bandwidth is the larger of them / bandwidth.
    - `inside` [P Q L] [bytes]: seconds on the NVSwitch at the same time, times its bandwidth.
    - `switch`: circuits change before it; `new_circuits`: number of new circuits; `count` [P Q L 2 S S]: circuits.
    - `ahead` [P Q L]: the circuits of the first all-to-all are known before the pass.
    - `balanced`: the load if every expert received equally many tokens.
    - `waiting`: part of `optical` that waits for the switch (None: all).
    - `busy` [P Q L]: `expert_load` (None: balanced); `early` [P Q L 3 R]: fields of `Early` (None: ranks wait).
    - `moved` [P 2]: seconds to move experts after the iteration, times bandwidth of NICs and of NVSwitches.
    - `reconfigurations_during`: reconfigurations during an all-to-all (None: none); its seconds and
      `new_circuits` include theirs.
    """

    optical: Float[Array, "*C P Q L 2"]
    electrical: Float[Array, "*C P Q L 2"]
    inside: Float[Array, "*C P Q L"]
    switch: Bool[Array, "*C P Q L 2"]
    ahead: Bool[Array, "*C P Q L"]
    count: Array | None
    balanced: Float[Array, ""]
    waiting: Float[Array, "*C P Q L 2"] | None = None
    new_circuits: Float[Array, "*C P Q L 2"] | None = None
    busy: Float[Array, "*C P Q L"] | None = None
    early: Float[Array, "*C P Q L 3 R"] | None = None
    moved: Float[Array, "*C P 2"] | None = None
    reconfigurations_during: Float[Array, "*C P Q L 2"] | None = None

    @property
    def load(self) -> Float[Array, "*C P Q L 2"]:
        return array_module(self.optical, self.electrical).maximum(self.optical, self.electrical)

    @property
    def reconfigurations(self) -> Array:
        """Reconfigurations before and during every all-to-all [P Q L 2]."""
        return self.switch if self.reconfigurations_during is None else self.switch + self.reconfigurations_during


class Places(NamedTuple):
    """The block in every running slot [P Q L]; static under JAX.

    - `block`: its number in the model, -1: none.
    - `layer`: number of the MoE block, -1 without all-to-all; `experts`: the same, also for weight gradients.
    - `later`: a backward pass that leaves weight gradients to another pass.
    - `lane` [P 2QL]: running order of a stage's all-to-alls; None: by number.
    """

    block: np.ndarray
    layer: np.ndarray
    micro_batch: np.ndarray
    backward: np.ndarray
    experts: np.ndarray
    later: np.ndarray
    lane: np.ndarray | None = None

    @property
    def present(self) -> np.ndarray:
        return self.block >= 0

    @property
    def kind(self) -> np.ndarray:
        """0: forward, 1: backward, 2: backward for gradients of inputs alone."""
        return self.backward.astype(int) + self.later

    def pick(self, layers: int, micro_batches: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the indices of every slot into [layers, micro-batches] arrays, which are read cyclically."""
        return np.maximum(self.layer, 0) % layers, self.micro_batch % micro_batches


def places(workload: Workload) -> Places:
    """Return the blocks in running order: forward, or reversed for backward; short passes are padded at their end."""
    order, blocks = order_of(workload), workload.place_blocks
    most = max(blocks)
    block, layer = np.full((2, len(blocks) + 1, most), -1)  # [place L]; the last row is for padding
    for part, count in enumerate(blocks):
        block[part, :count] = sum(blocks[:part]) + np.arange(count)
        layer[part, list(workload.place_positions(part))] = workload.place_layers(part)
    kind = np.broadcast_to(order.kind[..., None], (*order.kind.shape, most))
    held = np.asarray([(*workload.stage_places(stage), len(blocks)) for stage in range(workload.pp)])
    part = np.take_along_axis(held, order.chunk % held.shape[1], axis=1)[..., None]  # chunk -1: nothing
    slot, count = np.arange(most), np.asarray([*blocks, most])[part]
    run = np.where((kind == FORWARD) | (slot >= count), slot, count - 1 - slot)  # [P Q L]
    micro_batch = np.broadcast_to(order.micro_batch[..., None], run.shape)
    experts = layer[part, run]
    sent = np.where(kind == WEIGHT, -1, experts)
    lane = None if order.paired is None else lane_of(order.paired, most)
    later = np.zeros(run.shape, bool) if order.later is None else np.broadcast_to(order.later[..., None], run.shape)
    return Places(block[part, run], sent, micro_batch, kind == BACKWARD, experts, later, lane)


def lane_of(paired: np.ndarray, most: int) -> np.ndarray:
    """Return the running order of all-to-alls [2QL]; a pair: combine gradient, dispatch, dispatch gradient, combine."""
    q, slot = np.divmod(np.arange(paired.shape[1] * most * 2), most * 2)
    units = np.cumsum(~np.roll(paired, 1, axis=1), axis=1)
    return np.stack([np.lexsort((-q, slot, unit[q])) for unit in units])  # backward first


def behind_sends(workload: Workload) -> np.ndarray:
    """Return which all-to-alls [P Q L 2] come first after a send between stages; a pair counts as one pass."""
    order, where = order_of(workload), places(workload)
    apart = (order.needs >= 0) & (order.crossing >= 0) & (workload.pp > 1)
    needed, needs = (np.zeros(order.kind.shape, bool) for _ in range(2))
    needs[order.stage[apart], order.position[apart]] = True
    needed.reshape(-1)[order.needs[apart]] = True
    *shape, blocks = where.layer.shape
    cuts = needs | np.concatenate([np.zeros_like(needed[:, :1]), needed[:, :-1]], axis=1)
    second = np.zeros_like(needs) if order.paired is None else np.roll(order.paired, 1, axis=1)
    begins = np.where(second, False, cuts | np.roll(cuts & second, -1, axis=1))
    span = np.repeat(np.cumsum(begins, axis=1), 2 * blocks, axis=1)  # passes without sends in between
    moe = np.repeat((where.layer >= 0).reshape(len(span), -1), 2, axis=1)
    mask = np.zeros_like(moe)
    for stage, spans in enumerate(span):
        lane = np.arange(len(spans)) if where.lane is None else where.lane[stage]
        lane = lane[moe[stage][lane] & (spans[lane] > 0)]
        mask[stage, lane[np.unique(spans[lane], return_index=True)[1]]] = True
    return mask.reshape(*shape, blocks, 2)


def gradient_slots(workload: Workload, stage: int) -> list[tuple[int, int]]:
    """Return the slots [Q L] at which the gradients of a stage's blocks become ready, in time order."""
    order, last = order_of(workload), []
    for chunk, part in enumerate(workload.stage_places(stage)):
        back = (order.kind[stage] != FORWARD) & (order.chunk[stage] == chunk)
        last.append((int(np.flatnonzero(back)[-1]), workload.place_blocks[part]))
    return [(q, slot) for q, count in sorted(last) for slot in range(count)]
