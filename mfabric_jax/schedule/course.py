"""A course of circuits through a sequence of all-to-alls, and what its changes cost."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from mfabric_jax.checks import InputError, not_negative, one_of
from mfabric_jax.fabric import Region
from mfabric_jax.policies import uniform
from mfabric_jax.routing import Plan, as_demand, paced_time

WITHOUT_SHARES = ("unsplit", "best-path", "split")
Routing = str | Callable[..., Array]


class Course(NamedTuple):
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


class Turn(NamedTuple):
    """What a change costs: `delay_s`, `each_s` () and what is hidden, `hidden_s` [T]."""

    delay_s: Float[Array, ""]
    each_s: Float[Array, ""]
    hidden_s: Float[Array, "T"]

    @staticmethod
    def of(region: Region, hidden_s: Any, each_s: Any, demands: Float[Array, "T S S"]) -> "Turn":
        """For steps of these demands, in their dtype."""
        steps, dtype = len(demands), demands.dtype
        hidden = jnp.asarray(not_negative("hidden_s", hidden_s), dtype)
        if hidden.shape not in ((), (steps,)):
            raise InputError(f"hidden_s must be a number or have the shape [T] = [{steps}], got {list(hidden.shape)}.")
        each = jnp.asarray(not_negative("each_s", each_s), dtype)
        return Turn(jnp.asarray(region.delay_s, dtype), each, jnp.broadcast_to(hidden, (steps,)))

    def full_s(self, before: Int[Array, "S S"], after: Int[Array, "S S"]) -> Float[Array, ""]:
        """How long the switch takes; minus infinity where nothing changes."""
        anew = jnp.maximum(after - before, 0).sum().astype(self.each_s.dtype) / 2
        return jnp.where(jnp.any(after != before), self.delay_s + self.each_s * anew, -jnp.inf)

    def exposed_s(self, before: Int[Array, "S S"], after: Int[Array, "S S"], hidden_s) -> Float[Array, ""]:
        """What of it a step waits for."""
        return jnp.maximum(self.full_s(before, after) - hidden_s, 0)


@functools.lru_cache(maxsize=64)
def _paced(routing: str) -> Callable:
    return lambda region, circuits, demand: paced_time(region, circuits, demand, routing=routing)


def timed(routing: Routing) -> Callable:
    """The function that a routing stands for, always the same one."""
    return routing if callable(routing) else _paced(one_of("routing", routing, WITHOUT_SHARES))


def started(region: Region, start: Plan | None) -> Int[Array, "S S"]:
    return (uniform(None, region) if start is None else start).circuits.count


def checked(field: str, demands, region: Region) -> Float[Array, "T S S"]:
    """As floats, without what stays in a server."""
    demands, servers = as_demand(demands), region.servers
    if demands.ndim != 3 or demands.shape[1:] != (servers, servers) or not len(demands):
        wanted = f"[T S S] with S = {servers} servers and at least one step"
        raise InputError(f"{field} must be {wanted}, got {list(demands.shape)}.")
    return jnp.where(jnp.eye(servers, dtype=bool)[None], 0, demands)
