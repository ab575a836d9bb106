"""Which circuits a region has for every all-to-all, above all for the first of a forward pass, whose demand is only
known when the gate has run.

Backward (but for "reuse") and for the second all-to-all forward, demand is known and circuits are chosen for it.
Source: arXiv 2501.03905, which blocks in simulations and names reuse, random circuits and prediction; "pays" is ours.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from mfabric_jax.checks import InputError, one_of
from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.policies import Policy, random_circuits, uniform
from mfabric_jax.routing import Plan
from mfabric_jax.timing.pays import TradeOff, circuits_anew, what_pays

FIRST = {
    "block": "wait for the gate, then for the switch",
    "reuse": "keep the circuits of whatever ran before, backward, too; switch while the experts run",
    "random": "random circuits, set while attention runs; switch again while the experts run",
    "predict": "circuits for the predicted demand, set while attention runs; switch again while the experts run",
    "pays": "before either all-to-all of a block and pass, or not at all: whatever ends the two first",
}
AHEAD = ("random", "predict")


class First(eqx.Module):
    """What the first all-to-all of a forward pass finds: `rule` (static) of `FIRST`.

    - `predicted` [layer M R E]: selections, for "predict".   - `trade_off`: for "pays".
    - `scenarios` (static): so many demands that may be true are drawn of every predicted one, for a policy that takes
      many; 0: none.   - `sigma`: of the prediction's errors (`traffic.likely_demands`), for these.
    - `cold` (static): circuits are uniform when the iteration begins, not as an iteration before left them.
    """

    rule: str = eqx.field(static=True, default="block")
    predicted: Any = None
    trade_off: TradeOff | None = None
    cold: bool = eqx.field(static=True, default=False)
    scenarios: int = eqx.field(static=True, default=0)
    sigma: Any = None

    def __check_init__(self):
        one_of("first", self.rule, FIRST)
        if self.rule == "predict" and self.predicted is None:
            raise InputError("first 'predict' needs the predicted tokens [layer M R E], got none.")
        if self.scenarios and self.sigma is None:
            raise InputError("scenarios of a prediction need sigma, the size of its errors, got none.")
        if self.rule == "pays" and self.trade_off is None:
            raise InputError("first 'pays' needs the trade_off (delay, bandwidth, computation), got none.")


BLOCK = First()


class SlotsToServe(NamedTuple):
    """Every block of every pass [P Q L], in the order in which each stage runs them, its demand, its `Places.kind` and
    its `expert_load`."""

    demand: Float[Array, "P Q L S S"]
    guess: Float[Array, "P Q L S S"] | Float[Array, "P Q L K S S"]
    moe: Bool[Array, "P Q L"]
    kind: Int[Array, "P Q L"]
    busy: Float[Array, "P Q L"]


def choose(region: Region, policy: Policy, slots: SlotsToServe, parts: Callable, first: First, key, *, both=False):
    """Circuits of every all-to-all, and those before it, [P Q L 2 S S]; `both`: one set for the two of a block.

    Before its first block the region has the circuits that an iteration like this one leaves, which itself began with
    the uniform topology; under `first.cold` that topology.
    """
    shape = slots.moe.shape
    if first.rule == "random" and key is None:
        raise InputError("first 'random' needs a key, got none.")
    steps = jax.tree.map(lambda x: x.reshape(shape[0], -1, *x.shape[3:]), slots)
    keys = None if key is None else jax.random.split(key, steps.moe.shape)
    start = uniform(None, region).circuits.count

    def one_stage(steps: SlotsToServe, keys):
        def serve(state, step):
            before, behind = state
            slot, key = step
            pair = _pair(region, policy, slot, parts, first, key, before, behind)
            pair = (pair[0], pair[0]) if both else pair
            pair = jnp.where(slot.moe, jnp.stack(pair).astype(before.dtype), before)
            return (pair[1], jnp.where(slot.moe, slot.kind, 0)), (pair, jnp.stack([before, pair[0]]))

        def iteration(before, _):
            (after, _), served = lax.scan(serve, (before, jnp.zeros((), slots.kind.dtype)), (steps, keys))
            return after, served

        rounds = 1 if first.cold else 2
        return jax.tree.map(lambda x: x[-1], lax.scan(iteration, start, None, length=rounds)[1])

    count, before = jax.vmap(one_stage)(steps, keys)
    return count.reshape(*shape, 2, *start.shape), before.reshape(*shape, 2, *start.shape)


def _pair(region, policy, slot: SlotsToServe, parts, first: First, key, before, behind):
    """Circuits of the two all-to-alls of one block; `behind`: the kind of the block before, 0 without these."""

    def ask(demand):
        return policy(demand, region, previous=Plan(Circuits(before)), key=key).circuits.count.astype(before.dtype)

    fresh = ask(slot.demand)
    if first.rule == "block":
        return fresh, fresh
    if first.rule == "pays" and first.trade_off is not None:
        kept, anew = (parts(region, Circuits(count), slot.demand) for count in (before, fresh))
        new = circuits_anew(before, fresh)
        turned = what_pays(first.trade_off, kept, anew, new, slot.kind, behind, slot.busy)
        return tuple(jnp.where(turn, fresh, before) for turn in turned)
    if first.rule == "reuse":
        return before, fresh
    random = first.rule == "random"
    found = random_circuits(slot.demand, region, key=key).circuits.count if random else ask(slot.guess)
    return jnp.where(slot.kind > 0, fresh, found.astype(fresh.dtype)), fresh
