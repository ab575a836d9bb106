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
from jaxtyping import Array, Bool, Float

from mfabric_jax.checks import InputError, one_of
from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.policies import Policy, random_circuits, uniform
from mfabric_jax.routing import Plan
from mfabric_jax.workload import Workload
from mfabric_jax.workload.compute import BACKWARD_OVER_FORWARD, BlockSeconds
from mfabric_jax.workload.volume import tp_bytes_per_gpu

FIRST = {
    "block": "wait for the gate, then for the switch",
    "reuse": "keep the circuits of whatever ran before, backward, too; switch while the experts run",
    "random": "random circuits, set while attention runs; switch again while the experts run",
    "predict": "circuits for the predicted demand, set while attention runs; switch again while the experts run",
    "pays": "before either all-to-all of a block and pass, or not at all: whatever ends the two first",
}
AHEAD = ("random", "predict")


class TradeOff(NamedTuple):
    """What a reconfiguration is weighed against under "pays".

    - `delay_s`: of the switch.   - `each_s`: further delay for every circuit set up anew.   - `nic_Bps`: of a NIC.
    - `size` [2]: of the two forward all-to-alls, over dispatch.
    - `inner_s` [2]: what experts compute between them, forward and backward.
    - `behind_s`: what a block computes behind its last all-to-all, backward.
    """

    delay_s: Float[Array, ""] | float
    nic_Bps: Float[Array, ""] | float
    size: Float[Array, "2"]
    inner_s: Float[Array, "2"]
    behind_s: Float[Array, ""]
    each_s: Float[Array, ""] | float = 0.0


def trade_off_of(workload: Workload, rates: Any, seconds: BlockSeconds) -> TradeOff:
    """What a job at these `FabricRates` and seconds of a block weighs it against."""
    behind_s = BACKWARD_OVER_FORWARD * seconds.attention_s + tp_bytes_per_gpu(workload) / rates.nvlink_Bps
    size = jnp.asarray((1.0, workload.combine_bytes / workload.dispatch_bytes), jnp.result_type(behind_s))
    inner_s = jnp.stack([jnp.asarray(ratio * seconds.moe_s, size.dtype) for ratio in (1, BACKWARD_OVER_FORWARD)])
    return TradeOff(rates.delay_s, rates.nic_Bps, size, inner_s, behind_s, rates.each_s)


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
    """Every block of every pass [P Q L], in the order in which each stage runs them, and its demand."""

    demand: Float[Array, "P Q L S S"]
    guess: Float[Array, "P Q L S S"] | Float[Array, "P Q L K S S"]
    moe: Bool[Array, "P Q L"]
    backward: Bool[Array, "P Q L"]


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
            return (pair[1], slot.moe & slot.backward), (pair, jnp.stack([before, pair[0]]))

        def iteration(before, _):
            (after, _), served = lax.scan(serve, (before, jnp.asarray(False)), (steps, keys))
            return after, served

        rounds = 1 if first.cold else 2
        return jax.tree.map(lambda x: x[-1], lax.scan(iteration, start, None, length=rounds)[1])

    count, before = jax.vmap(one_stage)(steps, keys)
    return count.reshape(*shape, 2, *start.shape), before.reshape(*shape, 2, *start.shape)


def _pair(region, policy, slot: SlotsToServe, parts, first: First, key, before, behind):
    """Circuits of the two all-to-alls of one block; `behind`: the block before was a backward one."""

    def ask(demand):
        return policy(demand, region, previous=Plan(Circuits(before)), key=key).circuits.count.astype(before.dtype)

    fresh = ask(slot.demand)
    if first.rule == "block":
        return fresh, fresh
    if first.rule == "pays":
        return _what_pays(region, slot, parts, first.trade_off, before, fresh, behind)
    if first.rule == "reuse":
        return before, fresh
    random = first.rule == "random"
    found = random_circuits(slot.demand, region, key=key).circuits.count if random else ask(slot.guess)
    return jnp.where(slot.backward, fresh, found.astype(fresh.dtype)), fresh


def _what_pays(region, slot: SlotsToServe, parts, trade_off, before, fresh, behind):
    """Switch before the first all-to-all, before the second, or not: what takes least until the second is over."""
    # Hidden is what this block's own computation covers, and packets that take longer than circuits. Idle time of the
    # pipeline, propagation, overlap in parts, the time of a decision, circuits that carry while others turn and
    # all-to-alls computed again are not foreseen.
    dtype = slot.demand.dtype
    delay_s, each_s, nic_Bps = (jnp.asarray(x, dtype) for x in (trade_off.delay_s, trade_off.each_s, trade_off.nic_Bps))
    delay_s = delay_s + each_s * (jnp.maximum(fresh - before, 0).sum().astype(dtype) / 2)
    (_, old), (optical, new) = (
        (pair[0] / nic_Bps, jnp.maximum(*pair) / nic_Bps)
        for pair in (parts(region, Circuits(count), slot.demand) for count in (before, fresh))
    )
    one, two = jnp.where(slot.backward, trade_off.size[::-1], trade_off.size)
    ready = jnp.where(slot.backward & behind, trade_off.behind_s, 0)  # known before, and time to turn
    computed = jnp.where(slot.backward, trade_off.inner_s[1], trade_off.inner_s[0])

    def paid(hidden, size):
        return jnp.where(optical > 0, jnp.maximum(delay_s - hidden - size * (new - optical), 0), 0)

    now = one * new + paid(ready, one) + two * new  # summed alike: ties stay ties
    later = one * old + paid(computed, two) + two * new
    never = one * old + two * old
    first = now < jnp.minimum(later, never)
    return jnp.where(first, fresh, before), jnp.where(first | (later < never), fresh, before)
