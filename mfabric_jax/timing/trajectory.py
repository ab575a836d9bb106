"""A trajectory of circuits through a sequence of all-to-alls, what its changes cost, and the best one there is.

Source of the optimum: metrical task systems as a dynamic programme: Borodin, Linial, Saks, J. ACM 39(4), 1992.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from mfabric_jax.checks import InputError, not_negative, one_of
from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.policies import uniform
from mfabric_jax.routing import Plan, fluid_lower_bound
from mfabric_jax.routing.region import as_demand

WITHOUT_SHARES = ("unsplit", "best-path", "split")
Routing = str | Callable[..., Array]


class Trajectory(NamedTuple):
    """What happened at every step of T.

    - `count` [T S S]: the circuits that carry it.   - `changed` [T]: they differ from those before.
    - `exchange_s` [T]: its all-to-all.   - `paid_s` [T]: what it waited for the switch.
    """

    count: Int[Array, "T S S"]
    changed: Bool[Array, "T"]
    exchange_s: Float[Array, "T"]
    paid_s: Float[Array, "T"]

    @property
    def total_s(self) -> Float[Array, ""]:
        """Seconds of all steps together."""
        return (self.exchange_s + self.paid_s).sum(-1)


class ReconfigurationCost(NamedTuple):
    """What a change costs: `delay_s`, `each_s` () and what is hidden, `hidden_s` [T]."""

    delay_s: Float[Array, ""]
    each_s: Float[Array, ""]
    hidden_s: Float[Array, "T"]

    @staticmethod
    def of(region: Region, hidden_s: Any, each_s: Any, demands: Float[Array, "T S S"]) -> "ReconfigurationCost":
        """For steps of these demands, in their dtype."""
        steps, dtype = len(demands), demands.dtype
        hidden = jnp.asarray(not_negative("hidden_s", hidden_s), dtype)
        if hidden.shape not in ((), (steps,)):
            raise InputError(f"hidden_s must be a number or have the shape [T] = [{steps}], got {list(hidden.shape)}.")
        each = jnp.asarray(not_negative("each_s", each_s), dtype)
        return ReconfigurationCost(jnp.asarray(region.delay_s, dtype), each, jnp.broadcast_to(hidden, (steps,)))

    def full_s(self, before: Int[Array, "S S"], after: Int[Array, "S S"]) -> Float[Array, ""]:
        """How long the switch takes; minus infinity where nothing changes."""
        anew = jnp.maximum(after - before, 0).sum().astype(self.each_s.dtype) / 2
        return jnp.where(jnp.any(after != before), self.delay_s + self.each_s * anew, -jnp.inf)

    def exposed_s(self, before: Int[Array, "S S"], after: Int[Array, "S S"], hidden_s) -> Float[Array, ""]:
        """What of it a step waits for."""
        return jnp.maximum(self.full_s(before, after) - hidden_s, 0)


@functools.lru_cache(maxsize=64)
def _paced(routing: str) -> Callable:
    return lambda region, circuits, demand: fluid_lower_bound(region, circuits, demand, routing=routing)


def timed(routing: Routing) -> Callable:
    """The function that a routing stands for, always the same one."""
    return routing if callable(routing) else _paced(one_of("routing", routing, WITHOUT_SHARES))


def started(region: Region, start: Plan | None) -> Int[Array, "S S"]:
    return (uniform(None, region) if start is None else start).circuits.count


def checked_demands(field: str, demands, region: Region) -> Float[Array, "T S S"]:
    """As floats, without what stays in a server."""
    demands, servers = as_demand(demands), region.servers
    if demands.ndim != 3 or demands.shape[1:] != (servers, servers) or not len(demands):
        wanted = f"[T S S] with S = {servers} servers and at least one step"
        raise InputError(f"{field} must be {wanted}, got {list(demands.shape)}.")
    return jnp.where(jnp.eye(servers, dtype=bool)[None], 0, demands)


def best_trajectory(
    demands: Float[Array, "T S S"],
    region: Region,
    candidates: Int[Array, "N S S"],
    *,
    routing: Routing = "split",
    hidden_s: Any = 0.0,
    each_s: Any = 0.0,
    start: Plan | None = None,
) -> Trajectory:
    """The least total time with circuits out of `candidates` and those of the start: no rule is faster with these.

    Exact, by dynamic programming with all demands known: O(T N) times of an all-to-all (the same for all delays of a
    `vmap`) and O(T N^2) sums. Arguments as in `follow`. Ties go to the earlier candidate, the start first.
    """
    demands, before = checked_demands("demands", demands, region), started(region, start)
    candidates = jnp.asarray(candidates)
    if candidates.ndim != 3 or candidates.shape[1:] != before.shape:
        raise InputError(f"candidates must be [N S S] with S = {region.servers}, got {list(candidates.shape)}.")
    every = jnp.concatenate([before[None], candidates.astype(before.dtype)])
    return _best(demands, region, every, ReconfigurationCost.of(region, hidden_s, each_s, demands), timed(routing))


@functools.partial(jax.jit, static_argnames="seconds")
def _best(demands, region: Region, circuits: Int[Array, "N S S"], cost: ReconfigurationCost, seconds) -> Trajectory:
    full = lax.map(lambda one: jax.vmap(lambda after: cost.full_s(one, after))(circuits), circuits)  # [from to]

    def ahead(total, now):
        demand, hidden = now
        ways = total[:, None] + jnp.maximum(full - hidden, 0)
        own = jax.vmap(lambda count: seconds(region, Circuits(count), demand))(circuits)
        return ways.min(0) + own, ways.argmin(0)

    begun = jnp.full(len(circuits), jnp.inf, demands.dtype).at[0].set(0)
    total, came = lax.scan(ahead, begun, (demands, cost.hidden_s))
    chosen = lax.scan(lambda at, came: (came[at], at), total.argmin(), came, reverse=True)[1]
    count = circuits[chosen]
    before = jnp.concatenate([circuits[:1], count[:-1]])
    exchange = jax.vmap(lambda one, demand: seconds(region, Circuits(one), demand))(count, demands)
    paid = jax.vmap(cost.exposed_s)(before, count, cost.hidden_s)
    return Trajectory(count, jnp.any(count != before, axis=(1, 2)), exchange, paid)
