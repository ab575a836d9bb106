"""Causal policies over time: what each does with chains of demands, for several delays at once.

A control is a function (chains, delays [D], routing) -> `Served`. `CONTROLS` names those of the package; any other
policy of one demand becomes one by `of_policy`.
"""

import dataclasses
import functools
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from mfabric_jax import policies
from mfabric_jax.apps.learning.regimes.chains import SEEN, Chains
from mfabric_jax.case.policies import name_of
from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.policies.own import wrap_errors
from mfabric_jax.policies.reads import FIRST, KEYWORDS
from mfabric_jax.policies.renewal import Renewal
from mfabric_jax.policies.static import uniform_circuits
from mfabric_jax.routing import Plan, fluid_lower_bound

HISTORY = 8  # demands that `sample-average` plans for
STARTS = 4  # of `threshold`, unless stated
AT_ONCE = 16  # demands that a policy plans for in one batch
FAMILIES = ("uniform", "greedy", "greedy-next", "threshold(starts=1)")  # proposals that compete under "renewal"
QUICK = FAMILIES[:3]  # under "renewal of greedy"


class Served(NamedTuple):
    """Seconds of every all-to-all without delays, and whether circuits were changed before it.

    `decision_s`: seconds that a decision took, in a batch.
    """

    exchange_s: Float[Array, "D B N"]
    changed: Bool[Array, "D B N"]
    decision_s: float

    def total_s(self, delays: Float[Array, "D"]) -> Float[Array, "D B"]:
        return (self.exchange_s + jnp.where(self.changed, delays[:, None, None], 0)).sum(-1)


Control = Callable[[Chains, Float[Array, "D"], str], Served]


def run_timed(program: Callable[..., Any], *arguments: Any) -> tuple[Any, float]:
    """Return what a compiled program returns, and the seconds that it took without compilation."""
    compiled = program._cache_size()  # pyright: ignore[reportFunctionMemberAccess]
    start = time.perf_counter()
    result = jax.block_until_ready(program(*arguments))
    if program._cache_size() == compiled:  # pyright: ignore[reportFunctionMemberAccess]
        return result, time.perf_counter() - start
    start = time.perf_counter()
    return jax.block_until_ready(program(*arguments)), time.perf_counter() - start


# ------------------------------------------------------------------------------------------------------- what to choose
class Proposals(NamedTuple):
    """Circuits [.. S S] for every demand, and the seconds that one took in a batch."""

    count: Int[Array, "*B S S"]  # pyright: ignore[reportIncompatibleMethodOverride]
    decision_s: float


def propose(policy: policies.Policy, demand: Float[Array, "*B S S"], region: Region, inner: int = 2) -> Proposals:
    """Return the circuits of a policy for demands whose last `inner` axes are one argument: [S S] or [K S S]."""
    outer = demand.shape[:-inner]
    flat = demand.reshape(-1, *demand.shape[-inner:])
    short = -len(flat) % AT_ONCE
    batches = jnp.concatenate([flat, jnp.broadcast_to(flat[-1:], (short, *flat.shape[1:]))])
    batches = batches.reshape(-1, AT_ONCE, *flat.shape[1:])
    counts, seconds = zip(*(run_timed(_propose, policy, batch, region) for batch in batches), strict=True)
    count = jnp.concatenate(counts)[: len(flat)].reshape(*outer, *demand.shape[-2:])
    return Proposals(count, float(np.median(seconds)) / AT_ONCE)


@functools.partial(jax.jit, static_argnums=0)
def _propose(policy: policies.Policy, demand: Array, region: Region) -> Array:
    return jax.vmap(lambda each: policy(each, region).circuits.count)(demand)


def get_policy(name: str, routing: str) -> policies.Policy:
    starts = {"starts": STARTS} if name == "threshold" else {}
    return policies.get_suitable(name, routing=routing, **starts)


@functools.lru_cache(maxsize=16)
def propose_for_forecast(name: str, chains: Chains, routing: str) -> Proposals:
    """Return what a policy proposes for each forecast, `sample-average` for the last `HISTORY` forecasts together."""
    if name == "sample-average":
        recent = [chains.forecast[:, SEEN - back : chains.forecast.shape[1] - back] for back in range(HISTORY)]
        return propose(get_policy(name, routing), jnp.stack(recent, axis=2), chains.region, inner=3)
    return propose(get_policy(name, routing), chains.forecast[:, SEEN:], chains.region)


# ------------------------------------------------------------------------------------------------------ when to change
def follow(
    chains: Chains,
    proposals: Proposals,
    expected: Float[Array, "B N S S"],
    delays: Float[Array, "D"],
    horizons: Float[Array, "D"] | None,
    routing: str,
) -> Served:
    """Change to the proposal where `horizon` times what it saves on the expected demand exceeds the delay.

    `horizons` [D]: one for each delay; None: change always.
    """
    horizons = jnp.full_like(delays, jnp.inf) if horizons is None else horizons
    demand = chains.demand[:, SEEN:]
    exchange_s, changed = _follow(routing, chains.region, proposals.count, expected, demand, delays, horizons)
    return Served(exchange_s, changed, proposals.decision_s)


@functools.partial(jax.jit, static_argnums=0)
def _follow(routing: str, region: Region, proposals, expected, demand, delays, horizons):
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
    kept = Proposals(jnp.broadcast_to(even, forecast.shape), 0.0)
    return follow(chains, kept, forecast, delays, None, routing)


def always(name: str, chains: Chains, delays: Float[Array, "D"], routing: str) -> Served:
    """Change to the policy's circuits for the forecast before every all-to-all."""
    forecast = chains.forecast[:, SEEN:]
    return follow(chains, propose_for_forecast(name, chains, routing), forecast, delays, None, routing)


def pays(name: str, chains: Chains, delays: Float[Array, "D"], routing: str) -> Served:
    """Change to the policy's circuits where the forecast of one all-to-all says that this saves time."""
    forecast = chains.forecast[:, SEEN:]
    return follow(chains, propose_for_forecast(name, chains, routing), forecast, delays, jnp.ones_like(delays), routing)


# ------------------------------------------------------------------------------------------------------------- renewal
def renewal(chains: Chains, delays: Float[Array, "D"], routing: str, families: tuple[str, ...] = FAMILIES) -> Served:
    """Weigh a change over the time that demand lasts (`policies.renewal`), averages shared by all chains."""
    proposals = [propose_for_expected(name, chains, routing) for name in families]
    return renew(chains, expectations(chains, routing), proposals, delays, routing)


@functools.lru_cache(maxsize=16)
def propose_for_expected(name: str, chains: Chains, routing: str) -> Proposals:
    """Return what a policy proposes for each demand expected [B T S S]."""
    return propose(get_policy(name, routing), expectations(chains, routing), chains.region)


@functools.lru_cache(maxsize=4)
def expectations(chains: Chains, routing: str) -> Float[Array, "B T S S"]:
    """Return the demand expected before each all-to-all: forecast and last demand, weighted by their errors so far."""
    if not chains.noisy:
        return chains.forecast
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
    families: Sequence[Proposals],
    delays: Float[Array, "D"],
    routing: str,
) -> Served:
    """Follow `Renewal` with these families of proposals [B T S S]."""
    fresh = jnp.stack([family.count for family in families], axis=2)
    arguments = chains.region, expected, chains.forecast, fresh, chains.demand, delays
    (exchange_s, changed), seconds = run_timed(_renew, routing, *arguments)
    decision_s = seconds / changed.size + sum(family.decision_s for family in families)
    return Served(exchange_s[..., SEEN:], changed[..., SEEN:], decision_s)


@functools.partial(jax.jit, static_argnums=0)
def _renew(routing: str, region: Region, expected, forecast, proposals, demand, delays):
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
def of_policy(
    policy: policies.Policy, chains: Chains, delays: Float[Array, "D"], routing: str, *, name: str | None = None
) -> Served:
    """Call the policy before every all-to-all, with the forecast and the circuits in place.

    A policy that has the setting `history` gets the last `SEEN` demands [SEEN S S], newest last. With the setting
    `state` it returns (plan, state) and gets its last state, None at first; `block` is 0 and `backward` False.
    `region.delay_s` is the delay; a plan with the previous circuits keeps them. Raise `InputError`, which gives its
    `name`, for circuits that are not legal.
    """
    exchange_s, changed, _, decision_s = _serve(policy, chains, delays, routing, name, SEEN)
    return Served(exchange_s, changed, decision_s)


def renewal_of_policy(
    policy: policies.Policy, chains: Chains, delays: Float[Array, "D"], routing: str, *, name: str | None = None
) -> Served:
    """Follow "renewal" with even circuits and those that the policy has in place when it is followed always."""
    *_, counts, decision_s = _serve(policy, chains, delays, routing, name, 0)
    expected, even = expectations(chains, routing), propose_for_expected("uniform", chains, routing)
    served = []
    for number, count in enumerate(counts):
        families = [even, Proposals(count.astype(even.count.dtype), decision_s)]
        served.append(renew(chains, expected, families, delays[number : number + 1], routing))
    exchange_s, changed = (jnp.concatenate([getattr(each, name) for each in served]) for name in Served._fields[:2])
    return Served(exchange_s, changed, max(each.decision_s for each in served))


def _serve(
    policy: policies.Policy, chains: Chains, delays: Float[Array, "D"], routing: str, name: str | None, first: int
) -> tuple[Array, Array, Array, float]:
    """Return seconds [D B N], changes and circuits from the demand of number `first`, and the seconds of a decision."""
    name = name_of(policy) if name is None else name
    past = jnp.concatenate([jnp.zeros_like(chains.demand[:, :SEEN]), chains.demand[:, :first]], axis=1)[:, -SEEN:]
    arguments = chains.region, past, chains.forecast[:, first:], chains.demand[:, first:], delays
    with wrap_errors(f"policy {name}, called for many demands at once (jax.vmap),"):
        (exchange_s, changed, counts), seconds = run_timed(_of_policy, policy, routing, *arguments)
    for count in counts:
        policies.check_legal(name, np.asarray(count), np.asarray(chains.region.optical_degree))
    return exchange_s, changed, counts, seconds / changed.size


@functools.partial(jax.jit, static_argnums=(0, 1))
def _of_policy(policy: policies.Policy, routing: str, region: Region, past, forecast, demand, delays):
    keywords = policies.settings_of(policy)
    stateful = "state" in keywords

    def chain(delay: Array, past: Array, forecast: Array, demand: Array):
        local = dataclasses.replace(region, delay_s=delay)

        def step(carry: Any, now: Any):
            count, history, state, number = carry
            forecast, demand = now
            known = dict(zip(KEYWORDS, (history, state, *FIRST), strict=True))
            known = {name: value for name, value in known.items() if name in keywords}
            key = jax.random.fold_in(jax.random.key(0), number)
            returned: Any = policy(forecast, local, previous=Plan(Circuits(count)), key=key, **known)
            plan, state = returned if stateful else (returned, None)
            after = plan.circuits.count.astype(count.dtype)
            exchange_s = fluid_lower_bound(region, Circuits(after), demand, routing=routing)
            history = jnp.concatenate([history[1:], demand[None]])
            return (after, history, state, number + 1), (exchange_s, jnp.any(after != count), after)

        start = uniform_circuits(region.degrees), past, None, jnp.zeros((), jnp.int32)
        if not stateful:
            return lax.scan(step, start, (forecast, demand))[1]
        carry, first = step(start, (forecast[0], demand[0]))
        later = lax.scan(step, carry, (forecast[1:], demand[1:]))[1]
        return jax.tree.map(lambda at_first, after: jnp.concatenate([at_first[None], after]), first, later)

    many = len(delays), len(demand)
    every = jnp.repeat(delays, many[1]), *(jnp.tile(each, (many[0], 1, 1, 1)) for each in (past, forecast, demand))
    served = jax.vmap(chain)(*every)  # in nested maps, XLA of JAX 0.10.2 aborts on some users' networks
    return jax.tree.map(lambda each: each.reshape(*many, *each.shape[1:]), served)


# ------------------------------------------------------------------------------------------------- a tuned horizon
def tune_horizon(chains: Chains, delays: Float[Array, "D"], routing: str) -> Served:
    """Follow the policy and the horizon that take least time on the chains of all other seeds."""
    known = expectations(chains, routing)[:, SEEN:]
    every = [uniform(chains, delays, routing)]
    for name in TUNED:
        every_step = propose_for_expected(name, chains, routing)
        proposals = every_step._replace(count=every_step.count[:, SEEN:])
        for horizon in HORIZONS:
            every.append(follow(chains, proposals, known, delays, jnp.full_like(delays, horizon), routing))
    totals = np.stack([np.asarray(served.total_s(delays)) for served in every])  # [tried D B]
    others = chains.seed[:, None] != chains.seed[None, :]
    best = (totals @ (others if others.any() else ~others)).argmin(0)  # [D B]
    exchange_s, changed = (jnp.stack([getattr(served, name) for served in every]) for name in Served._fields[:2])
    chosen = best[None, ..., None]
    exchange_s, changed = (jnp.take_along_axis(values, chosen, 0)[0] for values in (exchange_s, changed))
    return Served(exchange_s, changed, max(served.decision_s for served in every))


TUNED, HORIZONS = ("greedy", "greedy-next"), (1, 2, 3, 4, 6, 8, 12, 20, np.inf)
SHIPPED = ("greedy", "greedy-next", "threshold", "sample-average")
CONTROLS: dict[str, Control] = {
    "uniform": uniform,
    **{f"{name} always": functools.partial(always, name) for name in SHIPPED},
    **{f"{name} pays": functools.partial(pays, name) for name in SHIPPED},
    "tuned horizon": tune_horizon,
    "renewal of greedy": functools.partial(renewal, families=QUICK),
    "renewal": renewal,
}
SLOW = tuple(name for name in CONTROLS if name.startswith("sample-average"))  # run on one chain of each seed
