"""What a block does in a pass, said once as a list of operations.

The clock (`timeline`), tasks (`as_tasks`), pictures (`trace`) and the forecast of `pays` read these lists. A block has
three sections: what comes before its all-to-alls; the first all-to-all and the experts; the second all-to-all and what
follows it. A backward block has the all-to-alls of the forward block in reverse. Two passes that run together take
turns, section by section and backward first (arXiv 2412.19437, figure 4), on two lanes: computation and the network.
"""

import functools
from typing import Any, NamedTuple

from mfabric_jax.timing._order import BACKWARD, FORWARD, Order

KINDS = ("forward", "backward", "inputs", "weights")  # of a pass; inputs: backward without gradients of weights
RUNS = ("lead", "again", "inner", "behind")  # stretches of computation between two all-to-alls


class Work(NamedTuple):
    """Computation, or the all-reduce of attention, on the compute lane.

    - `of`: what it takes, names of `block_table.ROWS`.   - `track`, `kind`: of its segment in pictures.
    - `off`: gradients of weights. What follows in the block does not wait for them, but they take the lane.
    """

    of: tuple[str, ...]
    label: str
    track: str = "compute"
    kind: str = "attention"
    off: bool = False


class Beside(NamedTuple):
    """What else a block takes: before all of it (0), or behind its all-to-alls (1)."""

    which: int


class Decide(NamedTuple):
    """The demand is known here; circuits for it are known after the time of a decision."""


class Turn(NamedTuple):
    """The switch is told to turn for an all-to-all: once the one before it is over and, where the all-to-all asks for
    circuits of its own demand, once these are known."""

    which: int


class Send(NamedTuple):
    """An all-to-all, on the network lane.   - `again`: one of the forward pass, recomputed."""

    which: int
    label: str
    again: bool = False


Section = tuple[Any, ...]
REDUCE = Work(("tp",), "TP", "NVSwitch", "tp")
REDUCE_AGAIN = REDUCE._replace(label="TP again")


def forward_block() -> tuple[Section, Section, Section]:
    """Sections of a forward block."""
    return (
        (Beside(0), Work(("attention",), "attention"), REDUCE, Decide()),
        (Turn(0), Send(0, "dispatch"), Work(("inner",), "experts", kind="experts")),
        (Turn(1), Send(1, "combine"), Beside(1)),
    )


def backward_block(recompute: str) -> tuple[Section, Section, Section]:
    """Sections of a backward block; `recompute`: as in `Workload`."""
    before, between, behind = (), (), ()
    if recompute == "block":
        before = Work(("attention",), "attention again"), REDUCE_AGAIN
        experts = Work(("inner",), "experts again", kind="experts")
        between = Send(1, "dispatch again", again=True), experts, Send(0, "combine again", again=True)
    if recompute == "attention":
        behind = (Work(("attention",), "attention again"),)
    return (
        (Beside(0), *before, Decide()),
        (
            *(Turn(0), *between, Send(0, "combine grad")),
            Work(("inner inputs",), "experts", kind="experts"),
            Work(("inner weights",), "experts weights", kind="experts", off=True),
        ),
        (
            *(Turn(1), Send(1, "dispatch grad"), Beside(1), *behind),
            Work(("attention inputs",), "attention"),
            Work(("attention weights",), "attention weights", off=True),
            REDUCE,
        ),
    )


@functools.cache
def alone(kind: str, recompute: str) -> tuple[tuple[str, Any], ...]:
    """(run, operation) of a block in a pass that runs alone."""
    if kind == "forward":
        return _placed(sum(forward_block(), ()))
    backward = _placed(sum(backward_block(recompute), ()))
    if kind == "weights":
        return tuple((run, op._replace(off=False)) for run, op in backward if _off(op))
    if kind == "inputs":
        return tuple((run, op) for run, op in backward if not _off(op))
    return _with_weights(backward)


@functools.cache
def pair(recompute: str) -> tuple[tuple[int, str, Any], ...]:
    """(whose, run, operation) of two blocks that run together; whose: 0 the forward one, 1 the backward one.

    Gradients of weights move to the end of their section, as nobody waits for them.
    """
    forward, backward = forward_block(), backward_block(recompute)
    left, right = iter(_placed(sum(forward, ()))), iter(_placed(sum(backward, ())))
    steps = []
    for ones, twos in zip(forward, backward, strict=True):
        own = [(1, *next(right)) for _ in twos]
        steps += sorted(own, key=lambda step: _off(step[2]))
        steps += [(0, *next(left)) for _ in ones]
    return tuple(steps)


def steps_of(kind: str, recompute: str, *, together: bool) -> tuple[tuple[str, Any], ...]:
    """(run, operation) of a block of one pass, alone or together with another."""
    if not together:
        return alone(kind, recompute)
    return tuple((run, op) for whose, run, op in pair(recompute) if whose == (kind != "forward"))


def kind_of(order: Order, at: tuple[int, int]) -> str:
    """Which of `KINDS` the pass at [P Q] is."""
    if order.later is not None and order.later[at]:
        return "inputs"
    return {FORWARD: "forward", BACKWARD: "backward"}.get(int(order.kind[at]), "weights")


def _off(op: Any) -> bool:
    return isinstance(op, Work) and op.off


def _placed(ops: Section) -> tuple[tuple[str, Any], ...]:
    """Operations, each with the run of computation that it is in."""
    placed, run = [], "lead"
    for op in ops:
        placed.append((run, op))
        if isinstance(op, Send):
            run = "again" if op.again else ("inner", "behind")[op.which]
    return tuple(placed)


def _with_weights(steps: tuple[tuple[str, Any], ...]) -> tuple[tuple[str, Any], ...]:
    """Gradients of inputs and the gradients of weights behind them as one piece of work."""
    joined: list[tuple[str, Any]] = []
    for run, op in steps:
        if _off(op):
            before = joined[-1][1]
            joined[-1] = run, before._replace(of=before.of + op.of)
        else:
            joined.append((run, op))
    return tuple(joined)


# ------------------------------------------------------------------------------------------------------- for a clock
class Run(NamedTuple):
    """All that is computed between two all-to-alls, as one operation of a clock."""

    name: str
    off: bool = False


@functools.cache
def clock_alone(recompute: str) -> tuple[tuple[int, Any], ...]:
    """(0, operation) of a block of any pass alone: a backward block's. Other passes take nothing for what they lack."""
    steps = [_merged([(0, *step) for step in alone(kind, recompute)]) for kind in ("backward", "forward")]
    backward, forward = ([(type(op), getattr(op, "which", None)) for _, op in some if _timed(op)] for some in steps)
    assert backward == forward, "one list serves both directions"
    return steps[0]


@functools.cache
def clock_pair(recompute: str) -> tuple[tuple[int, Any], ...]:
    """(whose, operation) of two blocks together; of what is computed again only attention is, there."""
    return _merged(pair("attention" if recompute == "attention" else "none"))


def _merged(steps: Any) -> tuple[tuple[int, Any], ...]:
    merged: list[tuple[int, Any]] = []
    for whose, run, op in steps:
        step = whose, Run(run, _off(op)) if isinstance(op, Work | Beside) else op
        if step not in merged:  # a stretch of computation is in a block once
            merged.append(step)
    return tuple(merged)


def _timed(op: Any) -> bool:
    return not isinstance(op, Run) and not getattr(op, "again", False)
