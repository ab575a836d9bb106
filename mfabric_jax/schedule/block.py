"""One pass of one stage, block after block: compute, all-to-alls, and the reconfiguration that is hidden or paid.

What the switch delays is traffic on circuits: what packet switches and NVSwitches carry goes on meanwhile, so a
reconfiguration costs nothing as far as they take longer than the circuits do (`Blocks.slack_s`).

Forward, a block runs attention, its tensor-parallel all-reduce and the gate; only then is the demand known, so the
switch turns while everything waits; then dispatch, experts, combine. Backward, demand is known from the forward pass:
the switch turns as soon as the region's previous all-to-all is over, and what the computation in between does not
cover is paid; then combine-gradient, experts, dispatch-gradient, attention. Source: arXiv 2501.03905.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from mfabric_jax.workload import BACKWARD_OVER_FORWARD


class Compute(NamedTuple):
    """Forward seconds of the parts of a block, and of its tensor-parallel all-reduce (one each way)."""

    attention_s: Float[Array, ""]
    moe_s: Float[Array, ""]
    dense_s: Float[Array, ""]
    tp_s: Float[Array, ""]


class Blocks(NamedTuple):
    """The blocks of one pass in the order in which they run [L]."""

    present: Bool[Array, "L"]                # False pads stages that have fewer
    moe: Bool[Array, "L"]                    # False: a dense block, no all-to-all
    exchange_s: Float[Array, "L 2"]          # its two all-to-alls
    slack_s: Float[Array, "L"]               # how much later than its circuits the first of them ends anyway
    switch: Bool[Array, "L"]                 # circuits differ from those before


class Pass(NamedTuple):
    """What a pass takes, without the wait for its first backward reconfiguration, which depends on when it starts."""

    duration_s: Float[Array, ""]
    compute_s: Float[Array, ""]
    tp_s: Float[Array, ""]
    exchange_s: Float[Array, ""]
    paid_s: Float[Array, ""]                 # reconfiguration paid inside
    head_s: Float[Array, ""]                 # backward: from its start to its first all-to-all
    slack_s: Float[Array, ""]                # slack of that all-to-all
    tail_s: Float[Array, ""]                 # from the end of its last all-to-all to its end
    opens: Bool[Array, ""]                   # its first all-to-all needs new circuits, known beforehand (backward)
    exchanges: Bool[Array, ""]               # it has all-to-alls at all


def run_pass(compute: Compute, blocks: Blocks, backward: Bool[Array, ""], delay_s: Float[Array, ""]) -> Pass:
    """Walk the blocks of one pass. Seconds throughout."""
    scale = jnp.where(backward, BACKWARD_OVER_FORWARD, 1.0).astype(delay_s.dtype)
    zero = jnp.zeros((), delay_s.dtype)
    never = jnp.asarray(False)

    def block(done: Pass, one: Blocks):
        here = one.present
        attention = jnp.where(here, scale * compute.attention_s, 0)
        inner = jnp.where(here, scale * jnp.where(one.moe, compute.moe_s, compute.dense_s), 0)
        tp = jnp.where(here, compute.tp_s, 0)
        moe = here & one.moe
        exchange = jnp.where(moe, one.exchange_s.sum(), 0)
        first = moe & ~done.exchanges
        uncovered = jnp.maximum(delay_s - done.tail_s, 0)
        in_pass = jnp.where(backward, jnp.where(first, 0, uncovered), delay_s)
        paid = jnp.where(moe & one.switch, jnp.maximum(in_pass - one.slack_s, 0), 0)
        total = attention + inner + tp + exchange + paid
        after = jnp.where(backward, attention + tp, 0)                     # computation behind the last all-to-all
        tail = jnp.where(moe, after, done.tail_s + total)
        return Pass(
            done.duration_s + total,
            done.compute_s + attention + inner,
            done.tp_s + tp,
            done.exchange_s + exchange,
            done.paid_s + paid,
            jnp.where(first, done.duration_s, done.head_s),
            jnp.where(first, one.slack_s, done.slack_s),
            tail,
            done.opens | (first & one.switch & backward),
            done.exchanges | moe,
        ), None

    start = Pass(zero, zero, zero, zero, zero, zero, zero, zero, never, never)
    return lax.scan(block, start, blocks)[0]
