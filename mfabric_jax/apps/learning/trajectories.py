"""The fastest way through known demands with given circuits, by dynamic programming: what an agent can reach at best.

Source: metrical task systems, Borodin, Linial, Saks, J. ACM 39(4), 1992.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from mfabric_jax.apps.learning.step_costs import change_s
from mfabric_jax.checks import InputError, of_type
from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.fabric.region import legality
from mfabric_jax.policies import uniform
from mfabric_jax.routing import Plan
from mfabric_jax.routing.demand import demands_between_servers
from mfabric_jax.routing.exchange import SHARE_STEPS, Routing, check_routing, exchange_s
from mfabric_jax.support.arrays import counts, floats_or_nan
from mfabric_jax.support.host_arrays import NOT_NEGATIVE


class Trajectory(NamedTuple):
    """Result of T steps: circuits `count` [T S S] and whether they `changed` [T].

    `exchange_s` and `paid_s` [T] are seconds of the all-to-all and of waiting for the switch.
    """

    count: Int[Array, "T S S"]
    changed: Bool[Array, "T"]
    exchange_s: Float[Array, "T"]
    paid_s: Float[Array, "T"]

    @property
    def total_s(self) -> Float[Array, "..."]:
        return (self.exchange_s + self.paid_s).sum(-1)


def best_trajectory(
    demands: Float[Array, "T S S"],
    region: Region,
    candidates: Int[Array, "N S S"],
    *,
    routing: Routing = "split",
    hidden_s: Any = 0.0,
    each_s: Any = 0.0,
    start: Plan | None = None,
    share_steps: int = SHARE_STEPS,
) -> Trajectory:
    """Return the fastest trajectory over T known demands with circuits from `candidates` and `start`.

    Exact dynamic programming computes O(T N) all-to-all times, which all delays of a `vmap` share, and O(T N^2) sums.
    Ties go to the earlier candidate; `start` comes first.

    - `demands` [T S S]: bytes of every step.
    - `routing`: a name, which `fluid_lower_bound` times, or a function (region, circuits, demand) -> seconds. Relay
      shares follow each demand by `share_steps` gradient steps.
    - `hidden_s` () or [T]: part of the delay that computation hides; `each_s`: extra delay per new circuit.
    - `start`: circuits before the first step; None: `uniform`.

    Raise `InputError` for arrays of other shapes, for numbers below 0, and for an unknown routing.
    """
    demands = demands_between_servers(of_type("region", region, Region), demands, "demands", "T")
    if start is not None:
        of_type("start", start, Plan, hint="Plan(Circuits(count)) is the plan of an array")
    before = (start or uniform(None, region)).circuits.count
    candidates, steps = counts("candidates", candidates), len(demands)
    if candidates.ndim != 3 or candidates.shape[1:] != before.shape:
        raise InputError(f"candidates must be [N S S] with S = {region.servers}, got {list(candidates.shape)}.")
    hidden = floats_or_nan("hidden_s", hidden_s, NOT_NEGATIVE, demands.dtype)
    if hidden.shape not in ((), (steps,)):
        raise InputError(f"hidden_s must be a number or have the shape [T] = [{steps}], got {list(hidden.shape)}.")
    each = floats_or_nan("each_s", each_s, NOT_NEGATIVE, demands.dtype)
    check_routing(routing, share_steps)
    legal = jnp.array([legality(Circuits(candidate), region.optical_degree) for candidate in candidates])
    every = jnp.concatenate([before[None], candidates.astype(before.dtype)])
    best = _best(demands, region, every, jnp.broadcast_to(hidden, (steps,)), each, routing, share_steps)
    unknown = jnp.isnan(legal).any() | jnp.isnan(each) | jnp.isnan(hidden).any()
    return best._replace(exchange_s=jnp.where(unknown, jnp.nan, best.exchange_s))


@functools.partial(jax.jit, static_argnames=("routing", "share_steps"))
def _best(
    demands, region: Region, circuits: Int[Array, "N S S"], hidden_s, each_s, routing: Routing, share_steps: int
) -> Trajectory:
    delay_s = jnp.asarray(region.delay_s, demands.dtype)

    def seconds(count, demand):
        return exchange_s(region, Circuits(count), demand, routing, share_steps)

    def changes(before, after):
        return jax.vmap(lambda old, new: change_s(old, new, delay_s, each_s))(before, after)

    def changes_from(before):
        return changes(jnp.broadcast_to(before, circuits.shape), circuits)

    every_change = lax.map(changes_from, circuits)  # [from to]

    def ahead(total, now):
        demand, hidden = now
        totals = total[:, None] + jnp.maximum(every_change - hidden, 0)
        return totals.min(0) + jax.vmap(lambda count: seconds(count, demand))(circuits), totals.argmin(0)

    begun = jnp.full(len(circuits), jnp.inf, demands.dtype).at[0].set(0)
    total, came = lax.scan(ahead, begun, (demands, hidden_s))
    chosen = lax.scan(lambda current, came: (came[current], current), total.argmin(), came, reverse=True)[1]
    count = circuits[chosen]
    before = jnp.concatenate([circuits[:1], count[:-1]])
    exchange, paid = jax.vmap(seconds)(count, demands), jnp.maximum(changes(before, count) - hidden_s, 0)
    return Trajectory(count, jnp.any(count != before, axis=(1, 2)), exchange, paid)
