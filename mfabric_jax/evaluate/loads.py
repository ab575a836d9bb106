"""All-to-alls of iterations on the circuits that a walk chose."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from mfabric_jax.evaluate.ageing import horizons_of
from mfabric_jax.evaluate.circuits import WalkSteps, walk_circuits
from mfabric_jax.evaluate.demands import NumberedAllToAlls
from mfabric_jax.evaluate.rules import AHEAD, CircuitRule, TradeOff
from mfabric_jax.support.array_module import array_module
from mfabric_jax.timing.passes import Exchanges, Places


def loads_on_circuits(
    where: Places,
    solver: Any,
    sent: NumberedAllToAlls,
    rule: CircuitRule,
    costs: TradeOff | None = None,
    shown: tuple[Any, ...] | None = (),
) -> Exchanges:
    """Return the all-to-alls between servers [C ..] with NICs of 1 byte/s, without the part inside servers.

    - `solver`: one of `evaluate.solver`; `costs` [C]: needed by "pays".
    - `shown`: index into [P Q L 2] of the circuits to return; (): all; None: none.
    """
    if where.lane is not None:
        rule.check_lane()
    slots = sent.demand[:, *where.pick(*sent.demand.shape[1:])]
    walk = _walk_spans if rule.long else _walk_blocks
    served, before = walk(where, solver, sent, slots, rule, costs)
    number = np.zeros_like(sent.even)
    even = WalkSteps(sent.even, sent.even, sent.own_key, sent.case, number == 0, number, number, number)
    calm = solver.choose(solver.begin(len(slots)), even)
    moe = (where.layer >= 0)[None, ..., None]
    count = served[:, :, :, :, :1] if rule.both and where.lane is None else served
    there = np.broadcast_to(moe, (*slots.shape, count.shape[4]))
    count = solver.where(there, count, calm.reshape(len(calm), 1, 1, 1, 1, *calm.shape[1:]))
    demand = np.where(there, slots[..., None], sent.even[:, None, None, None, None])
    if rule.partial:
        was = _before_last_change(solver, served, before)[:, :, :, :, : count.shape[4]]
        parts = solver.waiting(count, solver.where(there, was, count), demand)
    else:
        parts = solver.seconds(count, demand)
    xp = array_module(parts)
    both = np.zeros((*slots.shape, 2), bool)
    optical, electrical, *waiting = (xp.where(moe | both, part, 0) for part in parts)
    return Exchanges(
        optical,
        electrical,
        xp.zeros_like(optical[..., 0]),
        solver.differ(served, before),
        xp.asarray(np.broadcast_to(where.backward | rule.long | (rule.name in AHEAD), slots.shape)),
        None if shown is None else solver.as_arrays(served[(slice(None), *shown)]),
        xp.maximum(*solver.seconds(calm, sent.even)),
        waiting=waiting[0] if waiting else None,
        new_circuits=solver.new_circuits(before, served),
    )


def _walk_blocks(
    where: Places, solver: Any, sent: NumberedAllToAlls, slots: np.ndarray, rule: CircuitRule, costs: TradeOff | None
):
    """Circuits of every all-to-all, and the circuits before it, [C P Q L 2 ..], block by block."""
    shape, lane = slots.shape, where.lane
    many, stages = shape[:2]
    forecast = sent.forecast[:, *where.pick(*sent.forecast.shape[1:])]
    columns = slots, forecast, sent.key.reshape(shape), sent.case[:, None, None, None], where.layer >= 0, where.kind
    busy = np.ones(1) if sent.busy is None else sent.busy
    steps = WalkSteps(*(_in_order(x, shape, lane) for x in (*columns, busy, where.layer)))
    if costs is not None:
        costs = _of_stages(costs, many, stages)
        if costs.horizon is None:
            costs = costs._replace(horizon=horizons_of(solver, steps, costs))
    count, before = walk_circuits(solver, rule.name, steps, costs, cold=rule.cold, both=rule.both or lane is not None)
    return (_in_place(x, shape, lane) for x in (count, before))


def _in_order(x: Any, shape: tuple[int, ...], lane: np.ndarray | None) -> Any:
    """[C P Q L] as steps [B C*P]: one per block, or one per all-to-all where two passes alternate."""
    xp = array_module(x)
    many, stages = shape[:2]
    x = xp.broadcast_to(x, shape).reshape(many, stages, -1)
    if lane is not None:
        x = xp.take_along_axis(xp.repeat(x, 2, -1), lane[None], -1)
    return xp.moveaxis(x, -1, 0).reshape(x.shape[-1], many * stages)


def _in_place(x: Any, shape: tuple[int, ...], lane: np.ndarray | None) -> Any:
    """Steps [B 2 C*P ..] as [C P Q L 2 ..]."""
    xp, (many, stages), more = array_module(x), shape[:2], x.shape[3:]
    x = x.reshape(len(x), 2, many, stages, *more)
    x = xp.moveaxis(x, (2, 3), (0, 1))  # [C P B 2 ..]
    if lane is not None:
        x = xp.moveaxis(x[:, :, :, 0], 1, 0)[np.arange(stages)[:, None], :, np.argsort(lane, axis=1)]  # [P B C ..]
        x = xp.moveaxis(x, 2, 0)
    return x.reshape(*shape, 2, *more)


def _of_stages(costs: TradeOff, many: int, stages: int) -> TradeOff:
    """Costs [C ..] repeated for every stage [C*P ..]."""
    xp = array_module(costs)

    def of_stages(x: Any, *more: int) -> Any:
        return xp.repeat(xp.broadcast_to(xp.asarray(x), (many, *more)), stages, axis=0)

    numbers = ("delay_s", "nic_Bps", "each_s", *(() if costs.horizon is None else ("horizon",)))
    each = {name: of_stages(getattr(costs, name)) for name in numbers}
    each |= {name: of_stages(getattr(costs, name), 3) for name in ("inner_s", "behind_s", "expert_s")}
    return costs._replace(**each)


# --------------------------------------------------------------------------------------------------------------- spans
def _walk_spans(
    where: Places, solver: Any, sent: NumberedAllToAlls, slots: np.ndarray, rule: CircuitRule, costs: TradeOff | None
):
    """`_walk_blocks` for circuits that stay for a pass, an iteration or a run."""
    used: Any = sent.spans
    many, (stages, spans) = len(slots), used.shape
    number = np.zeros((spans, many * stages), np.int32)

    def steps_of(x: np.ndarray) -> np.ndarray:
        return np.moveaxis(np.broadcast_to(x, (many, stages, spans)), -1, 0).reshape(spans, many * stages)

    case = steps_of(sent.case[:, None, None])
    steps = WalkSteps(number, steps_of(sent.forecast), steps_of(sent.key), case, steps_of(used), number, number, number)
    count, before = walk_circuits(solver, "span", steps, cold=rule.cold or spans == 1)
    count, before = (_in_place(x, (many, stages, spans, 1), None)[:, :, :, 0, 0] for x in (count, before))
    if spans == 1 and not rule.cold:  # the previous, identical iteration left the same circuits
        before = count
    return _spread(where, solver, count, before)


def _spread(where: Places, solver: Any, count: Any, before: Any) -> tuple[Any, Any]:
    """Expand the circuits of spans [C P span ..] to every all-to-all, with the circuits before each."""
    xp, moe, spans = array_module(count), where.layer >= 0, count.shape[2]
    passes, blocks = moe.shape[1:]
    of_slots = np.broadcast_to(np.arange(spans)[:, None], (spans, passes * blocks // spans)).reshape(passes, blocks)
    in_span = moe.reshape(len(moe), spans, -1)
    begins = (in_span & (np.cumsum(in_span, axis=-1) == 1)).reshape(moe.shape)  # where the switch reconfigures
    count, before = count[:, :, of_slots], before[:, :, of_slots]
    before = solver.where(np.broadcast_to(begins, count.shape[:4]), before, count)
    return xp.stack([count, count], axis=4), xp.stack([before, count], axis=4)


# --------------------------------------------------------------------------------------------- partial reconfiguration
def _before_last_change(solver: Any, served: Any, before: Any) -> Any:
    """Circuits before the latest change, for every all-to-all in running order; before any change, the current ones."""
    shape, changed = served.shape, solver.differ(served, before)
    xp, flat = array_module(changed), changed.reshape(*changed.shape[:2], -1)
    slots, more = flat.shape[-1], shape[5:]
    change_slot = xp.where(flat, np.arange(slots), -1)
    last = lax.cummax(change_slot, axis=2) if xp is jnp else np.maximum.accumulate(change_slot, axis=2)
    served, before = (x.reshape(*flat.shape, *more) for x in (served, before))
    index = xp.maximum(last, 0).reshape(*flat.shape, *(1 for _ in more))
    was = array_module(before, index).take_along_axis(before, index, axis=2)
    return solver.where(last >= 0, was, served).reshape(shape)
