"""Passes into a pipeline: when every stage starts and ends each of its passes."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from mfabric_jax.schedule.block import Pass
from mfabric_jax.schedule.order import Order


class Pipeline(NamedTuple):
    """Seconds [P Q]: `start` and `end` of every pass in its stage's order, and the reconfiguration it `waited` for
    on top of what its own computation leaves uncovered."""

    start: Float[Array, "P Q"]
    end: Float[Array, "P Q"]
    waited: Float[Array, "P Q"]


def run_pipeline(
    order: Order, passes: Pass, send_s: Float[Array, ""] | Float[Array, "P"], delay_s: Float[Array, ""]
) -> Pipeline:
    """Every pass starts when its stage is free and its neighbour's result has arrived.

    - `passes`: arrays [P Q].
    - `send_s`: point-to-point transfer between neighbouring stages, one number or [P]: between stage p and p + 1.

    A backward pass whose first all-to-all needs new circuits lets the switch turn as soon as the region's previous
    all-to-all is over, idle time included; what is left of the delay when it gets there delays it, less its slack.
    """
    stages, count = order.kind.shape
    dtype = passes.duration_s.dtype
    send_s = jnp.broadcast_to(send_s, stages)

    def step(state, index):
        end, free, quiet = state
        p, q, need = index
        boundary = jnp.minimum(p, need // count)
        ready = jnp.where(need >= 0, end.reshape(-1)[jnp.maximum(need, 0)] + send_s[boundary], 0)
        start = jnp.maximum(free[p], ready)
        wanted = start + passes.head_s[p, q]
        late = quiet[p] + delay_s - wanted - passes.slack_s[p, q]
        wait = jnp.where(passes.opens[p, q], jnp.maximum(late, 0), 0)
        over = start + passes.duration_s[p, q] + wait
        silent = jnp.where(passes.exchanges[p, q], over - passes.tail_s[p, q], quiet[p])
        return (end.at[p, q].set(over), free.at[p].set(over), quiet.at[p].set(silent)), (start, wait)

    first = (jnp.zeros((stages, count), dtype), jnp.zeros(stages, dtype), jnp.full(stages, -jnp.inf, dtype))
    sequence = tuple(jnp.asarray(x) for x in (order.stage, order.position, order.needs))
    (end, _, _), (start, wait) = lax.scan(step, first, sequence)
    place = (order.stage, order.position)
    blank = jnp.zeros((stages, count), dtype)
    return Pipeline(blank.at[place].set(start), end, blank.at[place].set(wait))
