"""Operations of a block in a pass, and their seconds; read by `timeline`, `block_tasks`, `trace` and `evaluate.rules`.

Tables hold iterations of one job side by side; their leading axis [C] may be left out.

A block has three sections: before its all-to-alls; the first all-to-all and the experts; the second and what follows.
Two passes that run together share a computation lane and a network lane, and alternate by section, backward first
(arXiv 2412.19437, figure 4). The seconds of an operation are a sum of `BASES`, so those of a pass are a constant matrix
(`factors`) times the seconds of its block.
"""

import functools
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Bool, Float

from mfabric_jax.support.array_module import Array, align_rank, array_module
from mfabric_jax.timing.passes import Order
from mfabric_jax.workload.compute import Backward, backward_of
from mfabric_jax.workload.recompute import recomputed_of
from mfabric_jax.workload.schedules import BACKWARD, FORWARD, WEIGHT
from mfabric_jax.workload.training_code import IssueSeconds


class BlockCompute(NamedTuple):
    """Forward seconds of the parts of a block and of one tensor-parallel all-reduce, () or [P].

    `expert_s`: part of `moe_s` that grows with received tokens; `scores_s`: part of `attention_s` in attention scores,
    which have no weights; `head_s`: of the output head; `backward`: seconds of backward passes, None: `usual_backward`;
    `issued`: of the host, None: it never limits.
    """

    attention_s: Float[Array, ""]
    moe_s: Float[Array, ""]
    dense_s: Float[Array, ""]
    tp_s: Float[Array, ""]
    expert_s: Float[Array, ""] | float = 0.0
    scores_s: Float[Array, ""] | float = 0.0
    head_s: Float[Array, ""] | float = 0.0
    backward: Backward | None = None
    issued: IssueSeconds | None = None


class Blocks(NamedTuple):
    """The blocks of all passes in running order [.. P Q L], and their all-to-alls [.. P Q L 2]."""

    present: Bool[Array, "*C P Q L"]  # False: padding of a pass with fewer blocks
    moe: Bool[Array, "*C P Q L"]  # False: a dense block, no all-to-all
    optical_s: Float[Array, "*C P Q L 2"]  # on circuits
    packet_s: Float[Array, "*C P Q L 2"]  # on packet switches, at the same time
    switch: Bool[Array, "*C P Q L 2"]  # circuits change before it
    ahead: Bool[Array, "*C P Q L"]  # circuits of the first all-to-all are known before the pass
    inside_s: Float[Array, "*C P Q L 2"] | None = None  # on NVSwitches, at the same time; None: 0
    waiting_s: Float[Array, "*C P Q L 2"] | None = None  # part of `optical_s` that waits for the switch; None: all
    busy: Float[Array, "*C P Q L"] | None = None  # `expert_load`; None: balanced
    others_s: Float[Array, "*C P Q L 2"] | None = None  # other seconds: before the block, and after its all-to-alls
    experts: Bool[Array, "*C P Q L"] | None = None  # has experts, even without all-to-all; None: as `moe`
    counts_s: Float[Array, "*C P Q L"] | None = None  # within the first; a pair also computes that much longer; None: 0

    @property
    def electronic_s(self):
        """The longer of the seconds on packet switches and on NVSwitches."""
        if self.inside_s is None:
            return self.packet_s
        return array_module(self.packet_s, self.inside_s).maximum(self.packet_s, self.inside_s)

    @property
    def with_experts(self):
        return self.moe if self.experts is None else self.experts


class Rules(NamedTuple):
    """What waits for what in a block and an iteration; static under JAX.

    - `eps_waits`: traffic on packet switches also waits for a reconfiguration.
    - `parts`: number of parts in which dispatch, experts and combine of a block overlap (1: none).
    - `recompute`: as in `Workload`; recomputed parts do not overlap.
    - `dp_overlap`: gradients of a block are all-reduced right after its last backward pass, at no cost.
    - `comm_cores`: part of a GPU's cores that communicates while two passes run together.
    - `delayed`: in such pairs, gradients of weights come after what the next all-to-all waits for.
    """

    eps_waits: bool = False
    parts: int = 1
    recompute: str = "none"
    dp_overlap: bool = False
    comm_cores: float = 0.0
    delayed: bool = True


class Slots(NamedTuple):
    """Seconds of every block [.. P Q L], and its times since the iteration began, some for each all-to-all [.. 2].

    Fields that were not requested are None.
    """

    end: Float[Array, "*C P Q L"]
    start: Float[Array, "*C P Q L 2"]
    over: Float[Array, "*C P Q L 2"]
    compute_s: Float[Array, "*C P Q L"]
    tp_s: Float[Array, "*C P Q L"]
    exchange_s: Float[Array, "*C P Q L"]  # exposed all-to-alls, without waiting for the switch
    paid_s: Float[Array, "*C P Q L"]  # waiting for the switch
    again: Float[Array, "*C P Q L 2"] | Any = None  # start of recomputed all-to-alls; None: there are none
    begin: Float[Array, "*C P Q L"] | Any = None
    inner: Float[Array, "*C P Q L 2"] | Any = None  # the experts (or dense part) start and end
    reconfigure_start: Float[Array, "*C P Q L 2"] | Any = None  # start of the reconfiguration (meaningless without one)
    active: Float[Array, "*C P Q L 2"] | Any = None  # when its circuits start to carry
    waiting: Float[Array, "*C P Q L 2"] | Any = None  # seconds of the traffic that waited for them
    runs: Float[Array, "*C P Q L 4"] | Any = None  # when each of `RUNS` starts
    held: Float[Array, "*C P Q L"] | Any = None  # of pairs: when computation begins to take `Blocks.counts_s` longer


def in_float64(tree: Any) -> Any:
    def widen(x: Any) -> np.ndarray:
        x = np.asarray(x)
        return x.astype(np.float64) if x.dtype.kind == "f" else x

    return jax.tree.map(widen, tree)


KINDS = ("forward", "backward", "inputs", "weights")  # of a pass; inputs: backward without gradients of weights
RUNS = ("lead", "again", "inner", "behind")  # stretches of computation between two all-to-alls


class BlockWork(NamedTuple):
    """Computation, or the all-reduce of attention, made of `bases`; `off`: weight gradients, which can wait."""

    bases: tuple[str, ...]
    label: str
    track: str = "compute"
    kind: str = "attention"
    off: bool = False


class OtherSeconds(NamedTuple):
    """Other seconds of a block: before it (0), or after its all-to-alls (1)."""

    which: int


class Decide(NamedTuple):
    """The demand becomes known; its circuits are known one decision time later."""


class Reconfigure(NamedTuple):
    """The switch starts to reconfigure for an all-to-all, after the previous one and, if needed, the decision."""

    which: int


class Send(NamedTuple):
    """An all-to-all, on the network lane; `again`: recomputed from the forward pass."""

    which: int
    label: str
    again: bool = False


Section = tuple[Any, ...]
REDUCE = BlockWork(("tp",), "TP", "NVSwitch", "tp")
REDUCE_AGAIN = REDUCE._replace(label="TP again")
ATTENTION_AGAIN = BlockWork(("attention again",), "attention again")
EXPERTS_AGAIN = BlockWork(("inner again",), "experts again", kind="experts")


def forward_block() -> tuple[Section, Section, Section]:
    return (
        (OtherSeconds(0), BlockWork(("attention",), "attention"), REDUCE, Decide()),
        (Reconfigure(0), Send(0, "dispatch"), BlockWork(("inner",), "experts", kind="experts")),
        (Reconfigure(1), Send(1, "combine"), OtherSeconds(1)),
    )


def backward_block(recompute: str) -> tuple[Section, Section, Section]:
    again = recomputed_of(recompute)
    before, between, behind = (), (), ()
    if again.whole:
        before = ATTENTION_AGAIN, REDUCE_AGAIN
    elif again.attention:
        behind = (ATTENTION_AGAIN,)
    if again.exchanges:
        between = Send(1, "dispatch again", again=True), EXPERTS_AGAIN, Send(0, "combine again", again=True)
    inputs = ("inner again", "inner inputs") if again.inner and not again.exchanges else ("inner inputs",)
    return (
        (OtherSeconds(0), *before, Decide()),
        (
            *(Reconfigure(0), *between, Send(0, "combine grad")),
            BlockWork(inputs, "experts", kind="experts"),
            BlockWork(("inner weights",), "experts weights", kind="experts", off=True),
        ),
        (
            *(Reconfigure(1), Send(1, "dispatch grad"), OtherSeconds(1), *behind),
            BlockWork(("attention inputs",), "attention"),
            BlockWork(("attention weights",), "attention weights", off=True),
            REDUCE,
        ),
    )


@functools.cache
def alone(kind: str, recompute: str) -> tuple[tuple[str, Any], ...]:
    """Return (run, operation) of a block in a pass that runs alone."""
    if kind == "forward":
        return _with_runs(sum(forward_block(), ()))
    backward = _with_runs(sum(backward_block(recompute), ()))
    if kind == "weights":
        return tuple((run, op._replace(off=False) if _off(op) else op) for run, op in backward if _of_weights(op))
    if kind == "inputs":
        return tuple((run, op) for run, op in backward if not _off(op))
    return _with_runs(sum(map(_with_weights, backward_block(recompute)), ()))


@functools.cache
def pair(recompute: str, delayed: bool = True) -> tuple[tuple[int, str, Any], ...]:
    """Return (whose, run, operation) of two blocks that run together; whose: 0 forward, 1 backward.

    Gradients of weights come last in their section if `delayed`, else with the gradients of inputs.
    """
    forward, backward = forward_block(), backward_block(recompute)
    if not delayed:
        backward = tuple(_with_weights(section) for section in backward)
    left = iter(_with_runs(sum(forward, ())))
    right = iter(_with_runs(sum(backward, ())))
    steps = []
    for ones, twos in zip(forward, backward, strict=True):
        own = [(1, *next(right)) for _ in twos]
        steps += sorted(own, key=lambda step: _off(step[2]))
        steps += [(0, *next(left)) for _ in ones]
    return tuple(steps)


def steps_of(kind: str, rules: Rules, *, together: bool) -> tuple[tuple[str, Any], ...]:
    if not together:
        return alone(kind, rules.recompute)
    return tuple((run, op) for whose, run, op in pair(rules.recompute, rules.delayed) if whose == (kind != "forward"))


def kind_of(order: Order, position: tuple[int, int]) -> str:
    """Return the kind of the pass at [P Q], one of `KINDS`."""
    if order.later is not None and order.later[position]:
        return "inputs"
    return {FORWARD: "forward", BACKWARD: "backward"}.get(int(order.kind[position]), "weights")


def _of_weights(op: Any) -> bool:
    """Whether a pass of weight gradients alone has this operation: its products, and its wait for the host."""
    return _off(op) or (isinstance(op, OtherSeconds) and op.which == 1)


def _off(op: Any) -> bool:
    return isinstance(op, BlockWork) and op.off


def _with_runs(ops: Section) -> tuple[tuple[str, Any], ...]:
    placed, run = [], "lead"
    for op in ops:
        placed.append((run, op))
        if isinstance(op, Send):
            run = "again" if op.again else ("inner", "behind")[op.which]
    return tuple(placed)


def _with_weights(section: Section) -> Section:
    joined: list[Any] = []
    for op in section:
        if _off(op):
            joined[-1] = joined[-1]._replace(bases=joined[-1].bases + op.bases)
        else:
            joined.append(op)
    return tuple(joined)


# ------------------------------------------------------------------------------------------------------- for a clock
class ComputeRun(NamedTuple):
    """All computation between two all-to-alls, as one operation."""

    name: str
    off: bool = False


@functools.cache
def clock_alone(recompute: str) -> tuple[tuple[int, Any], ...]:
    """Return (0, operation) of a backward block; it serves every pass, since operations that a pass lacks take 0 s."""
    return _merge_runs([(0, *step) for step in alone("backward", recompute)])


@functools.cache
def clock_pair(recompute: str, delayed: bool = True) -> tuple[tuple[int, Any], ...]:
    """Return (whose, operation) of two blocks that run together, where no all-to-all is recomputed."""
    return _merge_runs(pair("none" if recomputed_of(recompute).exchanges else recompute, delayed))


def _merge_runs(steps: Any) -> tuple[tuple[int, Any], ...]:
    merged: list[tuple[int, Any]] = []
    for whose, run, op in steps:
        step = whose, ComputeRun(run, _off(op)) if isinstance(op, BlockWork | OtherSeconds) else op
        if step not in merged:  # each stretch of computation occurs once in a block
            merged.append(step)
    return tuple(merged)


COMPUTED = (*((run, False) for run in RUNS), ("inner", True), ("behind", True))
NETWORK = ("optical", "electronic", "waiting", "delay")
SECONDS: dict[tuple, int] = {("run", *run): column for column, run in enumerate(COMPUTED)}
SECONDS |= {
    (name, which): len(COMPUTED) + 2 * number + which for number, name in enumerate(NETWORK) for which in (0, 1)
}
SECONDS |= {("held", 0): len(SECONDS)}  # only in tables with pairs
# Flags: whether a block, its all-to-alls, its first and last computation and its recomputation exist; for each
# all-to-all, whether circuits change before it and whether this waits for a decision.
FLAGGED = ("present", "moe", "lead", "behind", "again", ("switch", 0), ("switch", 1), ("asks", 0), ("asks", 1))
FLAGS = {name: column for column, name in enumerate(FLAGGED)}
OF_BOTH = ("start", "over", "reconfigure_start", "active", "waiting")  # times of each all-to-all

BACK = ("inputs", "weights", "again")  # of attention, and of experts or the dense part (inner), in backward passes
BASES = (  # seconds of a block; all work takes sums of these
    *("attention", *(f"attention {name}" for name in BACK), "tp"),
    *("inner", *(f"inner {name}" for name in BACK), "others 0", "others 1"),
)


@functools.cache
def factors(recompute: str, comm_cores: float = 0.0, delayed: bool = True) -> np.ndarray:
    """Return the matrix [kind, column, base]: seconds of a column per second of a base.

    Kinds: `KINDS` and both passes of a pair; columns: `COMPUTED`, all computation, all all-reduces; bases: `BASES`.
    """
    rules = Rules(recompute=recompute, delayed=delayed)
    every = [steps_of(kind, rules, together=False) for kind in KINDS]
    every += [steps_of(kind, rules, together=True) for kind in ("forward", "backward")]
    matrix = np.zeros((len(every), len(COMPUTED) + 2, len(BASES)))
    for kind, steps in enumerate(every):
        for run, op in steps:
            if isinstance(op, OtherSeconds):
                matrix[kind, SECONDS["run", run, False], BASES.index(f"others {op.which}")] += 1
            elif isinstance(op, BlockWork):
                slower = 1 / (1 - comm_cores) if kind >= len(KINDS) and op.kind != "tp" else 1.0
                columns = [SECONDS["run", run, op.off], len(COMPUTED) + (op.kind == "tp")]
                for base in op.bases:
                    matrix[kind, columns, BASES.index(base)] += slower
    return matrix


class ClockTable(NamedTuple):
    """Input of a clock: `seconds` and `flags` [.. P Q L column], by `SECONDS` and `FLAGS`; the rest as in `Slots`.

    `inner` [.. P Q L 2]: start and end of experts after the end of the first all-to-all.
    """

    seconds: Any
    flags: Any
    inner: Any
    compute: Any
    tp: Any
    exchange: Any


def bases_of(blocks: Blocks, compute: BlockCompute, xp: Any) -> list[Any]:
    """Return the seconds [.. P Q L] of every base, broadcast only as far as needed; `compute`: () or [.. P]."""
    dtype = blocks.optical_s.dtype
    each = jax.tree.map(lambda part: align_rank(xp.asarray(part, dtype)[..., None, None], blocks.present), compute)
    back = backward_of(each)
    more = 0.0 if blocks.busy is None else blocks.busy - 1

    def inner(moe: Any, expert: Any, dense: Any) -> Any:
        return xp.where(blocks.with_experts, moe + more * expert, dense)

    every = zip(back.moe, back.expert, back.dense, strict=True)
    others = [0.0, 0.0] if blocks.others_s is None else [blocks.others_s[..., 0], blocks.others_s[..., 1]]
    parts = (each.attention_s, *back.attention, each.tp_s, inner(each.moe_s, each.expert_s, each.dense_s))
    parts = (*parts, *(inner(*of) for of in every), *others)
    return [xp.where(blocks.present, part, xp.zeros((), dtype)) for part in parts]


def rows_of(blocks: Blocks, compute: BlockCompute) -> dict[str, np.ndarray]:
    """Return the seconds [.. P Q L] of everything in `BASES`, in NumPy."""
    shape = blocks.optical_s.shape[:-1]
    return {name: np.broadcast_to(base, shape) for name, base in zip(BASES, bases_of(blocks, compute, np), strict=True)}


def table_of(order: Order, blocks: Blocks, compute: BlockCompute, delay_s: Any, rules: Rules) -> ClockTable:
    """Return the table of iterations [C]; `delay_s`: () or one per all-to-all."""
    xp = array_module(order, blocks, compute, delay_s, rules)
    together = None if order.paired is None else order.in_pairs[None, ..., None]
    backward = (order.kind == BACKWARD)[None, ..., None]
    dtype, shape = blocks.optical_s.dtype, blocks.optical_s.shape[:-1]
    seconds = xp.broadcast_to(_seconds(order, blocks, compute, rules, together), (*shape, len(COMPUTED) + 2))
    runs = seconds[..., : len(COMPUTED)]
    computed = seconds[..., -2]
    reduced = seconds[..., -1]
    twice = backward & recomputed_of(rules.recompute).exchanges
    length = xp.where(blocks.moe[..., None], xp.maximum(blocks.optical_s, blocks.electronic_s), xp.zeros((), dtype))
    column = SECONDS["run", "inner", False]
    work = runs[..., column]
    inner = xp.stack([xp.zeros_like(work), work + runs[..., SECONDS["run", "inner", True]]], -1)
    exchange = xp.where(twice, 2, 1).astype(dtype) * length.sum(-1)
    if together is not None:
        exchange = xp.where(together, xp.zeros((), dtype), exchange)
    elif not (isinstance(rules.parts, int) and rules.parts == 1):
        inner, gap = overlap_parts(length, work, rules.parts)
        exchange = exchange + (gap - work)
        runs = xp.concatenate([runs[..., :column], gap[..., None], runs[..., column + 1 :]], -1)
    sent = _network_columns(blocks, together, xp.asarray(delay_s, dtype))
    flags = _flags(order, blocks, runs, twice, together)
    return ClockTable(xp.concatenate([runs, *sent], -1), flags, inner, computed, reduced, exchange)


def _seconds(order: Order, blocks: Blocks, compute: BlockCompute, rules: Rules, together: Any) -> Any:
    xp = array_module(order, blocks, compute)
    kind = order.kind[None, ..., None]
    which = xp.where(kind == BACKWARD, 1, 0)
    if order.later is not None:
        which = xp.where(kind == WEIGHT, 3, xp.where(order.later[None, ..., None], 2, which))
    if together is not None:
        which = xp.where(together, len(KINDS) + which, which)
    made_of = factors(rules.recompute, rules.comm_cores, rules.delayed)
    each = xp.asarray(made_of, blocks.optical_s.dtype)[which]
    bases = bases_of(blocks, compute, xp)
    return sum(each[..., n] * base[..., None] for n, base in enumerate(bases) if made_of[..., n].any())


def _network_columns(blocks: Blocks, together: Any, delay_s: Any) -> list[Any]:
    """Return the columns of the network lane."""
    xp, shape = array_module(blocks, delay_s), blocks.optical_s.shape
    waiting_s = blocks.optical_s if blocks.waiting_s is None else blocks.waiting_s
    sent = [xp.broadcast_to(each, shape) for each in (blocks.optical_s, blocks.electronic_s, waiting_s, delay_s)]
    if together is None:
        return sent
    held_s = xp.zeros((), delay_s.dtype) if blocks.counts_s is None else blocks.counts_s
    held_s = xp.where(together, held_s, xp.zeros((), delay_s.dtype))
    return [*sent, xp.broadcast_to(held_s, shape[:-1])[..., None]]


def _flags(order: Order, blocks: Blocks, runs: Any, twice: Any, together: Any) -> Any:
    xp = array_module(order, blocks, runs)
    shape = blocks.optical_s.shape[:-1]
    backward, forward = ((order.kind == kind)[None, ..., None] for kind in (BACKWARD, FORWARD))
    lead = blocks.present & (forward | (runs[..., SECONDS["run", "lead", False]] > 0))
    behind = blocks.present & (~forward | (runs[..., SECONDS["run", "behind", False]] > 0))
    first = ~blocks.ahead if together is None else ~blocks.ahead & ~(together & backward)
    switch = blocks.switch & blocks.moe[..., None]
    each = [blocks.present, blocks.moe, lead, behind, blocks.moe & twice]
    each += [switch[..., 0], switch[..., 1], first, ~backward]
    return xp.stack([xp.broadcast_to(flag, shape) for flag in each], -1)


def overlap_parts(length: Any, inner: Any, parts: Any) -> tuple[Any, Any]:
    """Return seconds after the end of the first all-to-all: (start and end of experts [.. 2], start of the second).

    `length` [.. 2]: seconds of the all-to-alls; `inner`: seconds of the experts. Late parts delay the start of the
    second all-to-all.
    """
    xp = array_module(length, inner, parts)
    first = length[..., 0]
    second = length[..., 1]
    begin = first / parts
    end = xp.maximum(first + inner / parts, first / parts + inner)
    combined = (inner + first * (1 - parts)) / parts  # the first part may be combined from here on
    in_time = end - first + second / parts - second  # so that the last part ends in time
    gap = xp.maximum(0, xp.maximum(combined, in_time))
    alone = parts == 1  # exact to the last digit
    zero = xp.zeros_like(inner)
    experts = xp.stack([xp.where(alone, zero, begin - first), xp.where(alone, inner, end - first)], -1)
    return experts, xp.where(alone, inner, gap)


def slots_of(times: dict[Any, Any], table: ClockTable, rules: Rules) -> Slots:
    """Return `Slots` from the times of a clock [.. P Q L], without the waiting of pairs."""
    xp = array_module(times["end"])
    again = recomputed_of(rules.recompute).exchanges

    def both(name: str, *again: str) -> Any:
        return xp.stack([times[(name, which, *again)] for which in (0, 1)], -1)

    column = SECONDS["optical", 0]
    length = xp.maximum(table.seconds[..., column : column + 2], table.seconds[..., column + 2 : column + 4])
    paid: Any = 0.0
    for flag, *of_again in (("moe",), ("again", "again"))[: 1 + again]:
        late = (both("over", *of_again) - (both("start", *of_again) + length)).sum(-1)
        paid = paid + xp.where(table.flags[..., FLAGS[flag]], late, xp.zeros_like(late))
    every = "begin" in times
    fields: dict[str, Any] = {name: both(name) for name in (OF_BOTH if every else ("start", "over"))}
    if every:
        fields |= {"begin": times["begin"], "inner": times["run", "inner"][..., None] + table.inner}
        fields |= {"runs": xp.stack([times["run", run] for run in RUNS], -1), "held": times["held"]}
    return Slots(
        end=times["end"],
        compute_s=table.compute,
        tp_s=table.tp,
        exchange_s=table.exchange,
        paid_s=paid,
        again=both("start", "again") if again else None,
        **fields,
    )
