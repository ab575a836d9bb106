"""Causal policies over time: what each does with chains of demands, for several delays at once.

A control is a function (chains, delays [D], routing) -> `Served`. `CONTROLS` names those of the package; any other
policy of one demand becomes one by `of_policy`.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from mfabric_jax import policies
from mfabric_jax.apps.learning.regimes.chains import SEEN, Chains
from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.policies.renewal import Renewal
from mfabric_jax.policies.static import uniform_circuits
from mfabric_jax.routing import Plan, fluid_lower_bound

HISTORY = 8  # demands that `sample-average` plans for
AT_ONCE = 16  # demands that a policy plans for in one batch
FAMILIES = ("uniform", "greedy", "greedy-next")  # proposals that compete under "renewal"


class Served(NamedTuple):
    """Seconds of every all-to-all without delays, and whether circuits were changed before it."""

    exchange_s: Float[Array, "D B N"]
    changed: Bool[Array, "D B N"]

    def total_s(self, delays: Float[Array, "D"]) -> Float[Array, "D B"]:
        return (self.exchange_s + self.changed * delays[:, None, None]).sum(-1)


Control = Callable[[Chains, Float[Array, "D"], str], Served]


# ------------------------------------------------------------------------------------------------------- what to choose
def propose(policy: policies.Policy, demand: Float[Array, "*B S S"], region: Region) -> Int[Array, "*B S S"]:
    """Return the circuits of a policy for every demand; a policy of many demands takes [.. K S S]."""
    many = policies.takes_many(policy)
    inner = demand.shape[-3:] if many and demand.ndim > 4 else demand.shape[-2:]
    flat = demand.reshape(-1, *inner)
    return _propose(policy, flat, region).reshape(*demand.shape[: demand.ndim - len(inner)], *demand.shape[-2:])


@functools.partial(jax.jit, static_argnames="policy")
def _propose(policy: policies.Policy, demand: Array, region: Region) -> Array:
    return lax.map(lambda each: policy(each, region).circuits.count, demand, batch_size=min(AT_ONCE, len(demand)))


def named(name: str, routing: str) -> policies.Policy:
    starts = {"starts": 4} if name == "threshold" else {}
    return policies.get_suitable(name, routing=routing, **starts)


# ------------------------------------------------------------------------------------------------------ when to change
def follow(
    chains: Chains,
    proposals: Int[Array, "B N S S"],
    expected: Float[Array, "B N S S"],
    delays: Float[Array, "D"],
    horizons: Float[Array, "D"] | None,
    routing: str,
) -> Served:
    """Change to the proposal where `horizon` times what it saves on the expected demand exceeds the delay.

    `horizons` [D]: one for each delay; None: change always.
    """
    horizons = jnp.full_like(delays, jnp.inf) if horizons is None else horizons
    return Served(*_follow(chains.region, proposals, expected, chains.demand[:, SEEN:], delays, horizons, routing))


@functools.partial(jax.jit, static_argnames="routing")
def _follow(region: Region, proposals, expected, demand, delays, horizons, routing: str):
    def seconds(count: Array, demand: Array):
        return fluid_lower_bound(region, Circuits(count), demand, routing=routing)

    def step(delay: Array, horizon: Array, count: Array, now: Any):
        fresh, expected, demand = now
        saved = seconds(count, expected) - seconds(fresh, expected)
        change = jnp.where(jnp.isinf(horizon), True, horizon * saved > delay) & jnp.any(fresh != count)
        count = jnp.where(change, fresh, count)
        return count, (seconds(count, demand), change)

    def chain(proposals: Array, expected: Array, demand: Array, delay: Array, horizon: Array):
        start = uniform_circuits(region.degrees).astype(proposals.dtype)
        return lax.scan(functools.partial(step, delay, horizon), start, (proposals, expected, demand))[1]

    chains = jax.vmap(chain, in_axes=(0, 0, 0, None, None))
    return jax.vmap(chains, in_axes=(None, None, None, 0, 0))(proposals, expected, demand, delays, horizons)


def uniform(chains: Chains, delays: Float[Array, "D"], routing: str) -> Served:
    """Keep even circuits."""
    even = uniform_circuits(chains.region.degrees)
    forecast = chains.forecast[:, SEEN:]
    return follow(chains, jnp.broadcast_to(even, forecast.shape), forecast, delays, None, routing)


def always(name: str, chains: Chains, delays: Float[Array, "D"], routing: str) -> Served:
    """Change to the policy's circuits for the forecast before every all-to-all."""
    forecast = chains.forecast[:, SEEN:]
    return follow(chains, _shipped(name, chains, routing), forecast, delays, None, routing)


def pays(name: str, chains: Chains, delays: Float[Array, "D"], routing: str) -> Served:
    """Change to the policy's circuits where the forecast of one all-to-all says that this saves time."""
    forecast = chains.forecast[:, SEEN:]
    return follow(chains, _shipped(name, chains, routing), forecast, delays, jnp.ones_like(delays), routing)


def _shipped(name: str, chains: Chains, routing: str) -> Int[Array, "B N S S"]:
    if name == "sample-average":
        recent = [chains.forecast[:, SEEN - back : chains.forecast.shape[1] - back] for back in range(HISTORY)]
        return propose(named(name, routing), jnp.stack(recent, axis=2), chains.region)
    return propose(named(name, routing), chains.forecast[:, SEEN:], chains.region)


# ------------------------------------------------------------------------------------------------------------- renewal
def renewal(
    chains: Chains, delays: Float[Array, "D"], routing: str, families: tuple[str, ...] = FAMILIES
) -> Served:
    """Weigh a change over the time that demand lasts (`policies.renewal`), averages shared by all chains."""
    expected = expectations(chains, routing)
    proposals = jnp.stack([propose(named(name, routing), expected, chains.region) for name in families], axis=2)
    return renew(chains, expected, proposals, delays, routing)


def expectations(chains: Chains, routing: str) -> Float[Array, "B T S S"]:
    """Return the demand expected before each all-to-all: forecast and last demand, weighted by their errors so far."""
    return _expectations(chains.region, chains.forecast, chains.demand, routing)


@functools.partial(jax.jit, static_argnames="routing")
def _expectations(region: Region, forecast: Array, demand: Array, routing: str) -> Array:
    controller = Renewal(region, routing=routing, ages=2, shared="chains")

    def chain(forecast: Array, demand: Array):
        even = uniform_circuits(region.degrees)

        def step(state: Any, now: Any):
            forecast, demand = now
            expected = controller.expect(state, forecast)
            state, _ = controller.decide(state, expected, even[None], 0.0, forecast=forecast, may=False)
            return controller.observe(state, demand), expected

        return lax.scan(step, controller.start(even), (forecast, demand))[1]

    return jax.vmap(chain, axis_name="chains")(forecast, demand)


def renew(
    chains: Chains,
    expected: Float[Array, "B T S S"],
    proposals: Int[Array, "B T F S S"],
    delays: Float[Array, "D"],
    routing: str,
) -> Served:
    """Follow `Renewal` with these families of proposals."""
    exchange_s, changed = _renew(chains.region, expected, chains.forecast, proposals, chains.demand, delays, routing)
    return Served(exchange_s[..., SEEN:], changed[..., SEEN:])


@functools.partial(jax.jit, static_argnames="routing")
def _renew(region: Region, expected, forecast, proposals, demand, delays, routing: str):
    controller, steps = Renewal(region, routing=routing, shared="chains"), demand.shape[1]

    def chain(delay: Array, expected: Array, forecast: Array, proposals: Array, demand: Array):
        def step(state: Any, now: Any):
            number, expected, forecast, fresh, demand = now
            state, changed = controller.decide(
                state, expected, fresh, delay, forecast=forecast, remaining=steps - number, may=number >= SEEN
            )
            exchange_s = fluid_lower_bound(region, Circuits(state.count), demand, routing=routing)
            return controller.observe(state, demand), (exchange_s, changed)

        start = controller.start(uniform_circuits(region.degrees).astype(proposals.dtype), proposals.shape[1])
        return lax.scan(step, start, (jnp.arange(steps), expected, forecast, proposals, demand))[1]

    chains = jax.vmap(chain, in_axes=(None, 0, 0, 0, 0), axis_name="chains")
    return jax.vmap(chains, in_axes=(0, None, None, None, None))(delays, expected, forecast, proposals, demand)


# --------------------------------------------------------------------------------------------------- any other policy
def of_policy(policy: policies.Policy, chains: Chains, delays: Float[Array, "D"], routing: str) -> Served:
    """Call the policy before every all-to-all, with the forecast and the circuits in place.

    A policy that has the setting `history` gets the last `SEEN` demands [SEEN S S], newest last. `region.delay_s` is
    the delay; a plan with the previous circuits keeps them.
    """
    return Served(*_of_policy(policy, chains.region, chains.forecast, chains.demand, delays, routing))


@functools.partial(jax.jit, static_argnames=("policy", "routing"))
def _of_policy(policy: policies.Policy, region: Region, forecast, demand, delays, routing: str):
    with_history = "history" in policies.settings_of(policy)

    def chain(delay: Array, forecast: Array, demand: Array):
        local = dataclasses.replace(region, delay_s=delay)

        def step(carry: Any, now: Any):
            count, history, number = carry
            forecast, demand = now
            known = {"history": history} if with_history else {}
            key = jax.random.fold_in(jax.random.key(0), number)
            plan = policy(forecast, local, previous=Plan(Circuits(count)), key=key, **known)
            after = plan.circuits.count.astype(count.dtype)
            exchange_s = fluid_lower_bound(region, Circuits(after), demand, routing=routing)
            history = jnp.concatenate([history[1:], demand[None]])
            return (after, history, number + 1), (exchange_s, jnp.any(after != count))

        start = uniform_circuits(region.degrees), demand[:SEEN], jnp.zeros((), jnp.int32)
        return lax.scan(step, start, (forecast[SEEN:], demand[SEEN:]))[1]

    chains = jax.vmap(chain, in_axes=(None, 0, 0))
    return jax.vmap(chains, in_axes=(0, None, None))(delays, forecast, demand)


SHIPPED = ("greedy", "greedy-next", "threshold", "sample-average")
CONTROLS: dict[str, Control] = {
    "uniform": uniform,
    **{f"{name}, always": functools.partial(always, name) for name in SHIPPED},
    **{f"{name}, pays": functools.partial(pays, name) for name in SHIPPED},
    "renewal": renewal,
}
