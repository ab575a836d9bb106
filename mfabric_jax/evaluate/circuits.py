"""Choose the circuits of every all-to-all: walk through the blocks of a stage in running order.

A step is one block of N iterations and stages, side by side. `RULES` decide which circuits its two all-to-alls get,
from the circuits in place and the circuits that the policy chooses for the block's demand. A solver represents circuits
either as arrays or as indices into a table.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from mfabric_jax.evaluate.rules import TradeOff, what_pays
from mfabric_jax.support.array_module import Array


class WalkSteps(NamedTuple):
    """Inputs of the walk [B N]: block B of iteration and stage N.

    - `demand`, `forecast`, `key`: indices of the demand sent, of the demand expected, and of the random key.
    - `case`: index of the bandwidth and delay that the policy reads.
    - `sent`: whether the block has all-to-alls; `kind`: `Places.kind`; `busy`: `expert_load`; `block`: `Places.layer`.
    """

    demand: Array
    forecast: Array
    key: Array
    case: Array
    sent: Array
    kind: Array
    busy: Array
    block: Array

    def row_at(self, step: int) -> "WalkSteps":
        return WalkSteps(*(x[step] for x in self))


def walk_circuits(
    solver: Any, rule: str, steps: WalkSteps, costs: TradeOff | None = None, *, cold: bool, both: bool = False
) -> tuple[Any, Any]:
    """Return the circuits of both all-to-alls of every block, and the circuits before each, [B 2 N ..].

    - `rule`: one of `RULES`; `costs` [N]: needed by "pays"; `both`: a block's two all-to-alls share circuits.
    - `cold`: start with uniform circuits; else with those that an identical previous iteration left.
    """
    solver.prepare(steps, rule)
    if solver.alone and rule != "pays":
        return _serve_at_once(solver, rule, steps, cold, both)
    scanned = lax.scan if solver.scans else _scan_steps
    xp = jnp if solver.scans else np

    def serve(state: tuple[Any, ...], row: WalkSteps):
        before, behind, memory = state
        now = solver if memory is None else solver.with_memory(memory)
        first, second = RULES[rule](now, before, behind, row, costs)
        memory = None if memory is None else now.memory_after(row)
        first, second = (solver.where(row.sent, each, before) for each in (first, first if both else second))
        return (second, xp.where(row.sent, row.kind, 0), memory), (xp.stack([first, second]), xp.stack([before, first]))

    def iteration(start: tuple[Any, Any]):
        (after, _, memory), served = scanned(serve, (start[0], steps.kind[0] * 0, start[1]), steps)
        return (after, memory), served

    many = steps.sent.shape[1]
    start = solver.begin(many), solver.begin_memory(many) if solver.remembers else None
    return iteration(start)[1] if cold else _second_iteration(iteration, start, solver.scans)


def _serve_at_once(solver: Any, rule: str, steps: WalkSteps, cold: bool, both: bool) -> tuple[Any, Any]:
    """`walk_circuits` where circuits do not depend on those in place, except that they may stay."""
    start = np.broadcast_to(solver.begin(steps.sent.shape[1]), steps.sent.shape)
    last = np.maximum.accumulate(np.where(steps.sent, np.arange(len(start))[:, None], -1))  # step that sent
    earlier = np.concatenate([np.full_like(last[:1], -1), last[:-1]])
    earlier = earlier if cold else np.where(earlier < 0, last[-1:], earlier)

    def serve(before: Array) -> tuple[Array, Array]:
        first, second = RULES[rule](solver, before, start * 0, steps, None)
        return first, first if both else second

    _, second = serve(start)  # only the first circuits of "reuse" depend on those in place
    before = np.where(earlier < 0, start, np.take_along_axis(second, np.maximum(earlier, 0), 0))
    first, second = serve(before)
    first, second = (np.where(steps.sent, each, before) for each in (first, second))
    return np.stack([first, second], axis=1), np.stack([before, first], axis=1)


def _second_iteration(iteration: Callable[..., Any], start: Any, scans: bool) -> Any:
    """Circuits of the second of two identical iterations; traced once."""
    if not scans:
        return iteration(iteration(start)[0])[1]
    served = lax.scan(lambda before, _: iteration(before), start, np.arange(2))[1]
    return jax.tree.map(lambda x: x[-1], served)


def _scan_steps(step: Callable[..., Any], state: Any, steps: WalkSteps) -> tuple[Any, Any]:
    served, before = [], []
    for index in range(len(steps.sent)):
        state, (now, then) = step(state, steps.row_at(index))
        served.append(now)
        before.append(then)
    return state, (np.stack(served), np.stack(before))


# --------------------------------------------------------------------------------------------------------------- rules
def _block(solver: Any, before: Array, behind: Array, row: WalkSteps, costs: TradeOff | None):
    fresh = solver.choose(before, row)
    return fresh, fresh


def _reuse(solver: Any, before: Array, behind: Array, row: WalkSteps, costs: TradeOff | None):
    return before, solver.choose(before, row)


def _random(solver: Any, before: Array, behind: Array, row: WalkSteps, costs: TradeOff | None):
    fresh = solver.choose(before, row)
    return solver.where(row.kind > 0, fresh, solver.draw(row)), fresh


def _predict(solver: Any, before: Array, behind: Array, row: WalkSteps, costs: TradeOff | None):
    fresh = solver.choose(before, row)
    return solver.where(row.kind > 0, fresh, solver.choose(before, row, ahead=True)), fresh


def _pays(solver: Any, before: Array, behind: Array, row: WalkSteps, costs: TradeOff | None):
    assert costs is not None
    fresh = solver.choose(before, row)
    kept_s, fresh_s = (solver.seconds(count, row.demand) for count in (before, fresh))
    pays = what_pays(costs, kept_s, fresh_s, solver.new_circuits(before, fresh), row.kind, behind, row.busy)
    first, second = (solver.where(paid, fresh, before) for paid in pays)
    return first, second


def _ahead(solver: Any, before: Array, behind: Array, row: WalkSteps, costs: TradeOff | None):
    chosen = solver.choose(before, row, ahead=True)
    return chosen, chosen


RULES = {"block": _block, "reuse": _reuse, "random": _random, "predict": _predict, "pays": _pays, "span": _ahead}
