"""The horizon of the rule "pays": over how many blocks a reconfiguration is weighed, from how fast circuits age."""

from typing import Any

import numpy as np
from jax import lax
from jaxtyping import Float, Int

from mfabric_jax.evaluate.circuits import WalkSteps
from mfabric_jax.evaluate.rules import TradeOff, exposed_delays
from mfabric_jax.policies.horizon import horizon
from mfabric_jax.support.array_module import Array, array_module

AGES = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)  # ages of circuits that are timed, in blocks with all-to-alls
BLOCKS = 16  # blocks, evenly spread over an iteration, on whose demands they are timed


def horizons_of(solver: Any, steps: WalkSteps, costs: TradeOff) -> Float[Array, "N"]:
    """Return the horizon of every column of the walk, in blocks.

    Circuits that were chosen for a block are timed on the demands of later ones. The iteration is taken to repeat, so
    circuits of its last blocks age into the next one. Reconfigurations cost what computation does not hide of them.
    """
    early, late, column = _samples(steps.sent)
    shape, flat = steps.sent.shape, WalkSteps(*(np.reshape(x, -1) for x in steps))
    chosen = solver.choose(solver.begin(flat.sent.size), flat)
    chosen = chosen.reshape(*shape, *chosen.shape[1:])
    demand = steps.demand[late, column]
    parts = solver.seconds(chosen[early, column], demand)  # [A M N]
    xp = array_module(parts)
    seconds = xp.maximum(*parts)
    lost = (seconds - seconds[:1]).mean(1) * (costs.size.sum() / costs.nic_Bps)
    ages = np.arange(AGES[-1] + 1)
    weights = np.array([np.interp(ages, AGES, row) for row in np.eye(len(AGES))])  # [A J]
    loss = xp.moveaxis(lost, 0, -1) @ xp.asarray(weights, lost.dtype)
    loss = xp.maximum(_rising(xp, loss), 0)
    before = chosen[early[1], column]
    changed = solver.new_circuits(before, chosen[late[0], column])
    kind, behind = steps.kind[late[0], column], _behind(steps)[late[0], column]
    fresh = tuple(part[0] for part in parts)
    paid = exposed_delays(_of_blocks(costs), fresh, changed, kind, behind, steps.busy[late[0], column])
    return horizon(loss, xp.minimum(*paid).mean(0))


def _samples(sent: np.ndarray) -> tuple[Int[np.ndarray, "A M N"], Int[np.ndarray, "A M N"], Int[np.ndarray, "N"]]:
    """Return the steps for which circuits are chosen, those on whose demand they are timed, and the columns."""
    late = np.zeros((BLOCKS, sent.shape[1]), int)
    early = np.zeros((len(AGES), *late.shape), int)
    for column, own in enumerate(sent.T):
        steps = np.flatnonzero(own)
        if len(steps):
            chosen = np.linspace(0, len(steps) - 1, BLOCKS).astype(int)
            late[:, column] = steps[chosen]
            early[:, :, column] = steps[(chosen - np.array(AGES)[:, None]) % len(steps)]
    return early, np.broadcast_to(late, early.shape), np.arange(sent.shape[1])


def _of_blocks(costs: TradeOff) -> TradeOff:
    """Return the costs [N ..] of every column, repeated for the sampled blocks [M N ..]."""
    xp = array_module(costs)
    parts = {name: getattr(costs, name) for name in ("inner_s", "behind_s", "expert_s")}
    return costs._replace(
        **{name: xp.broadcast_to(part, (BLOCKS, *part.shape)) for name, part in parts.items() if np.ndim(part)}
    )


def _behind(steps: WalkSteps) -> Int[np.ndarray, "B N"]:
    """Return `Places.kind` of the block before each step; 0: it has no all-to-alls."""
    kind = np.where(steps.sent, steps.kind, 0)
    return np.concatenate([np.zeros_like(kind[:1]), kind[:-1]])


def _rising(xp: Any, values: Array) -> Array:
    return np.maximum.accumulate(values, -1) if xp is np else lax.cummax(values, axis=values.ndim - 1)
