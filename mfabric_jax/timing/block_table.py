"""Seconds and flags of all operations of all blocks, in columns that a clock reads. NumPy or JAX: `xp` is the module.

What an operation takes is a sum of `BASES`, so the seconds of a pass are a small constant matrix (`factors`) times the
seconds of its block.
"""

import functools
from typing import Any, NamedTuple

import numpy as np

from mfabric_jax.timing import block_ops as ops
from mfabric_jax.timing._order import BACKWARD, FORWARD, WEIGHT, Order
from mfabric_jax.timing.blocks import Blocks, Compute, Rules, Slots
from mfabric_jax.workload.compute import BACKWARD_OVER_FORWARD, WEIGHTS_OVER_FORWARD

RUNS = (*((run, False) for run in ops.RUNS), ("inner", True), ("behind", True))
NETWORK = ("optical", "electronic", "waiting", "delay")
SECONDS: dict[tuple, int] = {("run", *run): column for column, run in enumerate(RUNS)}
SECONDS |= {(name, which): len(RUNS) + 2 * at + which for at, name in enumerate(NETWORK) for which in (0, 1)}
FLAGS = {  # whether there is one: a block, its all-to-alls, its first and last computation, what is computed again; ...
    name: column
    for column, name in enumerate(
        ("present", "moe", "lead", "behind", "again", ("switch", 0), ("switch", 1), ("asks", 0), ("asks", 1))
    )
}
OF_BOTH = ("told", "start", "over", "active", "waits")  # times of each all-to-all

BASES = ("attention", "scores", "tp", "inner", "beside 0", "beside 1")  # forward seconds of a block
_INPUTS = BACKWARD_OVER_FORWARD - WEIGHTS_OVER_FORWARD
ROWS: dict[str, dict[str, float]] = {  # what work takes, in bases; scores have no weights
    "attention": {"attention": 1},
    "attention inputs": {"attention": _INPUTS, "scores": WEIGHTS_OVER_FORWARD},
    "attention weights": {"attention": WEIGHTS_OVER_FORWARD, "scores": -WEIGHTS_OVER_FORWARD},
    "tp": {"tp": 1},
    "inner": {"inner": 1},
    "inner inputs": {"inner": _INPUTS},
    "inner weights": {"inner": WEIGHTS_OVER_FORWARD},
}


@functools.cache
def factors(recompute: str, comm_cores: float = 0.0) -> np.ndarray:
    """[kind, column, base]: kinds are `block_ops.KINDS`, then forward and backward of a pair; columns are `RUNS`, then
    all that is computed and all that is all-reduced."""
    every = [ops.steps_of(kind, recompute, together=False) for kind in ops.KINDS]
    every += [ops.steps_of(kind, recompute, together=True) for kind in ("forward", "backward")]
    found = np.zeros((len(every), len(RUNS) + 2, len(BASES)))
    for kind, steps in enumerate(every):
        for run, op in steps:
            if isinstance(op, ops.Beside):
                found[kind, SECONDS["run", run, False], BASES.index(f"beside {op.which}")] += 1
            elif isinstance(op, ops.Work):
                slower = 1 / (1 - comm_cores) if kind >= len(ops.KINDS) and op.kind != "tp" else 1.0
                columns = [SECONDS["run", run, op.off], len(RUNS) + (op.kind == "tp")]
                for base, times in row_of(op).items():
                    found[kind, columns, BASES.index(base)] += times * slower
    return found


def row_of(work: ops.Work) -> dict[str, float]:
    """What work takes, in bases."""
    found: dict[str, float] = {}
    for name in work.of:
        for base, times in ROWS[name].items():
            found[base] = found.get(base, 0.0) + times
    return found


class Table(NamedTuple):
    """Of all blocks.

    - `seconds` [P Q L column], `flags` [P Q L column]: columns are `SECONDS` and `FLAGS`.
    - `inner` [P Q L 2]: when experts start and end, behind the end of the first all-to-all.
    - `compute`, `tp`, `exchange` [P Q L]: as in `Slots`.
    """

    seconds: Any
    flags: Any
    inner: Any
    compute: Any
    tp: Any
    exchange: Any


def bases_of(blocks: Blocks, compute: Compute, xp: Any) -> list[Any]:
    """Forward seconds [P Q L] of every base."""
    dtype, shape = blocks.optical_s.dtype, blocks.present.shape
    each = Compute(*(xp.broadcast_to(xp.asarray(part, dtype), shape[:1])[:, None, None] for part in compute))
    busy = 0.0 if blocks.busy is None else (blocks.busy - 1) * each.expert_s
    inner = xp.where(blocks.with_experts, each.moe_s + busy, each.dense_s)
    beside = [0.0, 0.0] if blocks.beside_s is None else [blocks.beside_s[..., 0], blocks.beside_s[..., 1]]
    parts = (each.attention_s, each.scores_s, each.tp_s, inner, *beside)
    return [xp.broadcast_to(xp.where(blocks.present, part, xp.zeros((), dtype)), shape) for part in parts]


def rows_of(blocks: Blocks, compute: Compute) -> dict[str, np.ndarray]:
    """Seconds [P Q L] of everything in `ROWS`; NumPy."""
    bases = dict(zip(BASES, bases_of(blocks, compute, np), strict=True))
    return {name: sum(times * bases[base] for base, times in row.items()) for name, row in ROWS.items()}  # type: ignore[misc]


def table_of(order: Order, blocks: Blocks, compute: Compute, delay_s: Any, rules: Rules, xp: Any) -> Table:
    """Everything that a clock needs of an iteration; `delay_s` () or [P Q L 2]."""
    together = None if order.paired is None else order.in_pairs
    kind = xp.asarray(order.kind)
    backward, forward = (kind == BACKWARD)[..., None], (kind == FORWARD)[..., None]
    dtype = blocks.optical_s.dtype
    seconds = _seconds(order, blocks, compute, rules, together, xp)
    runs, computed, reduced = seconds[..., : len(RUNS)], seconds[..., -2], seconds[..., -1]
    twice = backward & (rules.recompute == "block")
    length = xp.where(blocks.moe[..., None], xp.maximum(blocks.optical_s, blocks.electronic_s), xp.zeros((), dtype))
    at = SECONDS["run", "inner", False]
    work = runs[..., at]
    inner = xp.stack([xp.zeros_like(work), work + runs[..., SECONDS["run", "inner", True]]], -1)
    exchange = xp.where(twice, 2, 1).astype(dtype) * length.sum(-1)
    if together is not None:
        exchange = xp.where(xp.asarray(together)[..., None], xp.zeros((), dtype), exchange)
    elif not (isinstance(rules.parts, int) and rules.parts == 1):
        inner, gap = overlapped(length, work, rules.parts, xp)
        exchange = exchange + (gap - work)
        runs = xp.concatenate([runs[..., :at], gap[..., None], runs[..., at + 1 :]], -1)
    waiting_s = blocks.optical_s if blocks.waiting_s is None else blocks.waiting_s
    delay_s = xp.broadcast_to(xp.asarray(delay_s, dtype), length.shape)
    lead = blocks.present & (forward | (runs[..., SECONDS["run", "lead", False]] > 0))
    behind = blocks.present & (~forward | (runs[..., SECONDS["run", "behind", False]] > 0))
    asks = ~blocks.ahead, xp.broadcast_to(~backward, blocks.ahead.shape)
    if together is not None:
        asks = asks[0] & ~(xp.asarray(together)[..., None] & backward), asks[1]
    here = xp.stack([blocks.present, blocks.moe, lead, behind, blocks.moe & twice], -1)
    flags = xp.concatenate([here, blocks.switch & blocks.moe[..., None], xp.stack(asks, -1)], -1)
    sent = blocks.optical_s, blocks.electronic_s, waiting_s, delay_s
    return Table(xp.concatenate([runs, *sent], -1), flags, inner, computed, reduced, exchange)


def _seconds(order: Order, blocks: Blocks, compute: Compute, rules: Rules, together: Any, xp: Any) -> Any:
    """[P Q L column]: of `RUNS`, of all that is computed, and of all-reduces."""
    kind = xp.asarray(order.kind)
    which = xp.where(kind == BACKWARD, 1, 0)
    if order.later is not None:
        which = xp.where(kind == WEIGHT, 3, xp.where(xp.asarray(order.later), 2, which))
    if together is not None:
        which = xp.where(xp.asarray(together), len(ops.KINDS) + which, which)
    each = xp.asarray(factors(rules.recompute, rules.comm_cores), blocks.optical_s.dtype)[which][:, :, None]
    return sum(each[..., n] * base[..., None] for n, base in enumerate(bases_of(blocks, compute, xp)))


def overlapped(length: Any, inner: Any, parts: Any, xp: Any) -> tuple[Any, Any]:
    """Seconds behind the end of the first all-to-all: (start and end of the experts [.. 2], start of the second).

    - `length` [.. 2]: of the all-to-alls.   - `inner`: of the experts.   - `parts`: in how many they overlap.
    The second all-to-all is drawn at a stretch; parts that come late delay its start instead.
    """
    first, second = length[..., 0], length[..., 1]
    begin, end = first / parts, xp.maximum(first + inner / parts, first / parts + inner)
    combined = (inner + first * (1 - parts)) / parts  # the first part may be combined from here on
    in_time = end - first + second / parts - second  # so that the last part ends in time
    gap = xp.maximum(0, xp.maximum(combined, in_time))
    alone = parts == 1  # exact to the last digit
    zero = xp.zeros_like(inner)
    experts = xp.stack([xp.where(alone, zero, begin - first), xp.where(alone, inner, end - first)], -1)
    return experts, xp.where(alone, inner, gap)


def slots_of(times: dict[Any, Any], table: Table, rules: Rules, xp: Any) -> Slots:
    """From the times of a clock [P Q L], by name; without what pairs wait for."""

    def both(name: str, *again: str) -> Any:
        return xp.stack([times[(name, which, *again)] for which in (0, 1)], -1)

    at = SECONDS["optical", 0]
    length = xp.maximum(table.seconds[..., at : at + 2], table.seconds[..., at + 2 : at + 4])
    paid: Any = 0.0
    for flag, *again in (("moe",), ("again", "again"))[: 1 + (rules.recompute == "block")]:
        late = (both("over", *again) - (both("start", *again) + length)).sum(-1)
        paid = paid + xp.where(table.flags[..., FLAGS[flag]], late, xp.zeros_like(late))
    return Slots(
        begin=times["begin"],
        end=times["end"],
        start=both("start"),
        over=both("over"),
        inner=times["run", "inner"][..., None] + table.inner,
        turn=both("told"),
        active=both("active"),
        waiting=both("waits"),
        compute_s=table.compute,
        tp_s=table.tp,
        exchange_s=table.exchange,
        paid_s=paid,
        runs=xp.stack([times["run", run] for run in ops.RUNS], -1),
        again=both("start", "again") if rules.recompute == "block" else None,
    )
