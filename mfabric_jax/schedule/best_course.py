"""The offline optimum of when to reconfigure, over given circuits.

Source: metrical task systems as a dynamic programme: Borodin, Linial, Saks, J. ACM 39(4), 1992.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from mfabric_jax.checks import InputError
from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.routing import Plan
from mfabric_jax.schedule.course import Course, Routing, Turn, checked, started, timed


def best_course(
    demands: Float[Array, "T S S"],
    region: Region,
    candidates: Int[Array, "N S S"],
    *,
    routing: Routing = "split",
    hidden_s: Any = 0.0,
    each_s: Any = 0.0,
    start: Plan | None = None,
) -> Course:
    """The least total time with circuits out of `candidates` and those of the start: no rule is faster with these.

    Exact, by dynamic programming with all demands known: O(T N) times of an all-to-all (the same for all delays of a
    `vmap`) and O(T N^2) sums. Arguments as in `follow`. Ties go to the earlier candidate, the start first.
    """
    demands, before = checked("demands", demands, region), started(region, start)
    candidates = jnp.asarray(candidates)
    if candidates.ndim != 3 or candidates.shape[1:] != before.shape:
        raise InputError(f"candidates must be [N S S] with S = {region.servers}, got {list(candidates.shape)}.")
    every = jnp.concatenate([before[None], candidates.astype(before.dtype)])
    return _best(demands, region, every, Turn.of(region, hidden_s, each_s, demands), timed(routing))


@functools.partial(jax.jit, static_argnames="seconds")
def _best(demands, region: Region, circuits: Int[Array, "N S S"], turn: Turn, seconds) -> Course:
    full = lax.map(lambda one: jax.vmap(lambda after: turn.full_s(one, after))(circuits), circuits)  # [from to]

    def ahead(total, now):
        demand, hidden = now
        ways = total[:, None] + jnp.maximum(full - hidden, 0)
        own = jax.vmap(lambda count: seconds(region, Circuits(count), demand))(circuits)
        return ways.min(0) + own, ways.argmin(0)

    begun = jnp.full(len(circuits), jnp.inf, demands.dtype).at[0].set(0)
    total, came = lax.scan(ahead, begun, (demands, turn.hidden_s))
    chosen = lax.scan(lambda at, came: (came[at], at), total.argmin(), came, reverse=True)[1]
    count = circuits[chosen]
    before = jnp.concatenate([circuits[:1], count[:-1]])
    exchange = jax.vmap(lambda one, demand: seconds(region, Circuits(one), demand))(count, demands)
    paid = jax.vmap(turn.exposed_s)(before, count, turn.hidden_s)
    return Course(count, jnp.any(count != before, axis=(1, 2)), exchange, paid)
