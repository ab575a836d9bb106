"""Learn from demand how circuits age, and decide with it when to reconfigure (`horizon`).

Before every all-to-all, then after it:

    expected = controller.expect(state, forecast)
    proposals = jnp.stack([policy(expected, region).circuits.count for policy in families])
    state, reconfigure = controller.decide(state, expected, proposals, delay_s)
    ... the circuits `state.count` serve `demand` ...
    state = controller.observe(state, demand)

Several families of proposals may compete: the one whose fresh circuits and cycle cost least together is used. All
methods are pure and work under `jit`, `vmap` and `lax.scan`. Give `shared`, the axis name of a `vmap`, to average over
parallel chains, such as layers or replicas: one chain alone is a small sample.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from mfabric_jax.checks import whole
from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.policies.horizon import cycle_cost, should_reconfigure
from mfabric_jax.routing.exchange import SHARE_STEPS, Routing, check_routing, exchange_s
from mfabric_jax.traffic.log_errors import mean_squared_error

AGES = 24  # ages of circuits that are followed
RECENT = 16  # demands on which circuits in place are compared with fresh ones
OFTEN = 1 / 3  # part of the observations of age 0 that an age needs
LEAST_SLOPE, MOST_SLOPE = 0.05, 1.5  # limits of what a second of loss expected says of the loss that comes


class Sums(NamedTuple):
    """Sums over all-to-alls; seconds are those of demands of one byte in all.

    - `lost` [F J], `times` [J]: seconds lost by age, and how often each age was seen. `fresh` [F]: of fresh circuits.
    - `product`, `square` [F]: of losses expected and losses that came, and of losses expected.
    - `forecast_error`, `last_error`: squared log errors of the forecast and of the demand before. `bytes`: of demands.
    """

    lost: Float[Array, "F J"]
    times: Float[Array, "J"]
    fresh: Float[Array, "F"]
    product: Float[Array, "F"]
    square: Float[Array, "F"]
    forecast_error: Float[Array, ""]
    last_error: Float[Array, ""]
    bytes: Float[Array, ""]


class RenewalState(NamedTuple):
    """Circuits in place and what was learned.

    - `count` [S S]: circuits in place; `age`: all-to-alls since they were chosen.
    - `proposals` [F J S S]: newest first; `expected` [F J]: seconds that each was expected to lose.
    - `forecast` [S S]: of the next demand. `recent` [R S S]: past demands of one byte, newest first; `recent_s` [R F]:
      seconds of the circuits that were fresh then.
    """

    count: Int[Array, "S S"]  # pyright: ignore[reportIncompatibleMethodOverride]
    age: Int[Array, ""]
    proposals: Int[Array, "F J S S"]
    expected: Float[Array, "F J"]
    forecast: Float[Array, "S S"]
    recent: Float[Array, "R S S"]
    recent_s: Float[Array, "R F"]
    sums: Sums
    steps: Int[Array, ""]


class Ageing(NamedTuple):
    """Experience with each family: seconds of fresh circuits and lost by age, a byte of demand; and `slope`."""

    fresh: Float[Array, "F"]
    loss: Float[Array, "F J"]
    slope: Float[Array, "F"]
    mean_bytes: Float[Array, ""]


class Renewal(eqx.Module):
    """Decides when to reconfigure one region, from its demands so far.

    - `routing`: "unsplit", "best-path", "split" or "relay", timed by `fluid_lower_bound`, or a function
      (region, circuits, demand) -> seconds.
    - `share_steps`: gradient steps towards relay shares, taken anew for each demand and each set of circuits.
    - `ages`: number of ages of circuits that are followed. `shared`: axis name of parallel chains.

    Raise `InputError` for an unknown routing.
    """

    region: Region
    routing: Routing = eqx.field(static=True, default="split")
    ages: int = eqx.field(static=True, default=AGES)
    shared: str | None = eqx.field(static=True, default=None)
    share_steps: int = eqx.field(static=True, default=SHARE_STEPS)

    def __check_init__(self):
        check_routing(self.routing, self.share_steps)
        whole("ages", self.ages, at_least=2)

    def start(self, count: Int[Array, "S S"], families: int = 1) -> RenewalState:
        """Return the state before the first all-to-all, with the circuits [S S] in place."""
        servers, none = len(count), jnp.zeros((), jnp.int32)
        by_age, by_family, zero = (jnp.zeros(shape, jnp.float32) for shape in ((families, self.ages), families, ()))
        sums = Sums(by_age, by_age[0], by_family, by_family, by_family, zero, zero, zero)
        return RenewalState(
            count=count,
            age=none + RECENT,
            proposals=jnp.zeros((families, self.ages, servers, servers), count.dtype),
            expected=by_age,
            forecast=jnp.zeros((servers, servers), jnp.float32),
            recent=jnp.zeros((RECENT, servers, servers), jnp.float32),
            recent_s=jnp.zeros((RECENT, families), jnp.float32),
            sums=sums,
            steps=none,
        )

    def expect(self, state: RenewalState, forecast: Float[Array, "S S"]) -> Float[Array, "S S"]:
        """Return the demand expected: forecast and last demand, weighted inversely to their squared log errors."""
        errors = state.sums.forecast_error, state.sums.last_error
        both = errors[0] + errors[1]
        weight = jnp.where(state.steps > 1, jnp.where(both > 0, errors[1] / jnp.where(both > 0, both, 1), 0.5), 1)
        new, last = _unit(forecast), state.recent[0]
        mean = weight * new + (1 - weight) * last
        seen = (new > 0) & (last > 0)
        logs = weight * jnp.log(jnp.where(seen, new, 1)) + (1 - weight) * jnp.log(jnp.where(seen, last, 1))
        parts = _unit(jnp.where(seen, jnp.exp(logs), mean))
        return forecast.sum() * parts.astype(forecast.dtype)

    def decide(
        self,
        state: RenewalState,
        expected: Float[Array, "S S"],
        proposals: Int[Array, "F S S"],
        delay_s: Array | float,
        *,
        forecast: Float[Array, "S S"] | None = None,
        remaining: Array | float = jnp.inf,
        may: Array | bool = True,
    ) -> tuple[RenewalState, Bool[Array, ""]]:
        """Return the state before the next all-to-all, and whether its circuits are new ones.

        - `proposals` [F S S]: circuits for the `expected` demand [bytes], one of each family.
        - `forecast`: the one given to `expect`; None: `expected`.
        - `remaining`: all-to-alls that follow, this one included. `may`: False keeps the circuits and only learns.
        """
        unit, servers = _unit(expected), len(expected)
        young = jnp.concatenate([proposals[:, None].astype(state.proposals.dtype), state.proposals[:, :-1]], axis=1)
        seconds = self._seconds(young, unit)
        state = state._replace(
            proposals=young,
            expected=seconds - seconds[:, :1],
            forecast=_unit(expected if forecast is None else forecast),
        )
        ageing = self.ageing(state)
        delay = jnp.asarray(delay_s, jnp.float32) / jnp.where(ageing.mean_bytes > 0, ageing.mean_bytes, jnp.inf)
        family = jnp.argmin(ageing.fresh + cycle_cost(ageing.loss, jnp.broadcast_to(delay, ageing.fresh.shape)))
        usual = jnp.where(state.age < RECENT, jnp.nan, self._usual(state, state.recent_s[:, family]))
        reconfigure = should_reconfigure(
            self._seconds(state.count, unit) - seconds[family, 0],
            ageing.loss[family],
            delay,
            slope=ageing.slope[family],
            usual_s=usual,
            remaining=jnp.asarray(remaining, unit.dtype),
        )
        fresh = proposals[family].reshape(servers, servers).astype(state.count.dtype)
        reconfigure = reconfigure & jnp.any(fresh != state.count) & jnp.asarray(may)
        count, age = jnp.where(reconfigure, fresh, state.count), jnp.where(reconfigure, 0, state.age)
        return state._replace(count=count, age=age), reconfigure

    def observe(self, state: RenewalState, demand: Float[Array, "S S"]) -> RenewalState:
        """Return the state after an all-to-all of this demand [bytes]."""
        unit, known = _unit(demand), jnp.arange(self.ages, dtype=jnp.int32) <= state.steps
        seconds = self._seconds(state.proposals, unit)
        lost, expected = (
            jnp.where(known[None], loss, 0).astype(jnp.float32) for loss in (seconds - seconds[:, :1], state.expected)
        )
        news = Sums(
            lost=lost,
            times=known.astype(jnp.float32),
            fresh=seconds[:, 0].astype(jnp.float32),
            product=(expected * lost).sum(1),
            square=(expected * expected).sum(1),
            forecast_error=mean_squared_error(state.forecast, unit),
            last_error=jnp.where(state.steps > 0, mean_squared_error(state.recent[0], unit), 0),
            bytes=demand.sum().astype(jnp.float32),
        )
        if self.shared is not None:
            news = jax.tree.map(lambda value: lax.pmean(value, self.shared), news)
        return state._replace(
            sums=jax.tree.map(jnp.add, state.sums, news),
            recent=_push(state.recent, unit),
            recent_s=_push(state.recent_s, seconds[:, 0]),
            steps=state.steps + 1,
            age=state.age + 1,
        )

    def ageing(self, state: RenewalState) -> Ageing:
        """Return what the observations so far say of every family. A loss never falls with age."""
        sums, steps = state.sums, jnp.maximum(state.steps, 1).astype(jnp.float32)
        often = (sums.times >= OFTEN * sums.times[0]) & (sums.times > 0)
        mean = sums.lost / jnp.where(sums.times > 0, sums.times, 1)[None]
        rising = lax.cummax(jnp.maximum(jnp.where(often[None], mean, 0), 0), axis=1)
        loss = jnp.where((often | (jnp.arange(self.ages, dtype=jnp.int32) == 0))[None], rising, jnp.inf)
        slope = jnp.where(sums.square > 0, sums.product / jnp.where(sums.square > 0, sums.square, 1), 1)
        return Ageing(sums.fresh / steps, loss, jnp.clip(slope, LEAST_SLOPE, MOST_SLOPE), sums.bytes / steps)

    def _usual(self, state: RenewalState, fresh_s: Float[Array, "R"]) -> Float[Array, ""]:
        """Return how much longer recent demands would have taken on the circuits in place than on fresh ones.

        Parallel chains share the mean over those whose circuits are old: one chain's own would decide by luck.
        """
        known = jnp.arange(len(state.recent), dtype=jnp.int32) < state.steps
        kept_s = jax.vmap(lambda demand: self._seconds(state.count, demand))(state.recent)
        own = jnp.where(known, kept_s - fresh_s, 0).sum() / jnp.maximum(known.sum(), 1).astype(kept_s.dtype)
        if self.shared is None:
            return own
        old = (state.age >= RECENT).astype(own.dtype)
        many = lax.psum(old, self.shared)
        return lax.psum(own * old, self.shared) / jnp.maximum(many, 1)

    def _seconds(self, count: Int[Array, "*B S S"], demand: Float[Array, "S S"]) -> Float[Array, "*B"]:
        def seconds_of(matrix: Array):
            return exchange_s(self.region, Circuits(matrix), demand, self.routing, self.share_steps)

        flat = count.reshape(-1, *count.shape[-2:])
        return jax.vmap(seconds_of)(flat).reshape(count.shape[:-2]).astype(jnp.float32)


def _unit(demand: Float[Array, "S S"]) -> Float[Array, "S S"]:
    """Return the demand in parts of its bytes, in the precision of the state."""
    total = demand.sum()
    return (demand / jnp.where(total > 0, total, 1)).astype(jnp.float32)


def _push(recent: Float[Array, "R ..."], newest: Array) -> Float[Array, "R ..."]:
    return jnp.concatenate([newest[None].astype(recent.dtype), recent[:-1]])
