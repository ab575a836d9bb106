"""Reconfiguration of an optical region as a reinforcement-learning environment with gymnax's interface.

    obs, state = env.reset(key, params)
    obs, state, reward, done, info = env.step(key, state, action, params)

In each step the agent keeps or changes the circuits; then the region serves one all-to-all. All methods are pure and
work under `jit`, `vmap` and `lax.scan`. Source of the interface: Lange, gymnax, 2022
(github.com/RobertTLange/gymnax; not a dependency).
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool, Float, Int

from mfabric_jax import units
from mfabric_jax.apps.learning.sources import Drift, Recorded
from mfabric_jax.apps.learning.spaces import Box, Dict, Discrete
from mfabric_jax.apps.learning.step_costs import change_s
from mfabric_jax.checks import InputError, not_negative, one_of, positive, whole
from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.policies import Policy, round_scores, uniform
from mfabric_jax.routing import Plan, degree_bound, fluid_lower_bound
from mfabric_jax.routing.exchange import SHARE_STEPS, Routing, check_routing, exchange_s
from mfabric_jax.support.arrays import floats
from mfabric_jax.support.host_arrays import NO_NAN, real_numbers


class Params(eqx.Module):
    """Parameters of an episode; all are traced except the number of servers and the type of `source`.

    Computation hides `hidden_s` of `region.delay_s`. Each new circuit adds `each_s` to the delay. An episode has
    `steps` steps.
    """

    region: Region
    source: Drift | Recorded
    hidden_s: Any = 0.0
    each_s: Any = 0.0
    steps: Any = 128

    def __check_init__(self):
        not_negative("hidden_s", self.hidden_s)
        not_negative("each_s", self.each_s)
        positive("steps", self.steps)


class State(NamedTuple):
    """Steps done, circuits [S S], observed demands [H S S], the next demand to serve [S S], state of the source."""

    step: Int[Array, ""]
    count: Int[Array, "S S"]
    seen: Float[Array, "H S S"]
    demand: Float[Array, "S S"]
    source: Any


@dataclasses.dataclass(frozen=True)
class RegionEnv:
    """An optical region that an agent reconfigures from step to step.

    - `routing`: "unsplit", "best-path", "split" or "relay", timed by `fluid_lower_bound`; or your own, a function
      (region, circuits, demand) -> seconds.
    - `share_steps`: gradient steps towards relay shares, which always follow the demand that is served. Shares of a
      policy's plan, chosen for the demand that it saw, are not used.
    - `history`: number H of demands in an observation, newest last.
    - `ahead`: the agent acts before it sees the next demand, so it must predict.
    - `policies`: None: the action scores pairs; else the action is an integer: 0 keeps the circuits, n applies policy
      n. The time of a schedule includes its reconfigurations. The environment also charges the exposed part of a first
      one that the schedule treats as free.
    - `dtype`: type of real numbers.

    Score action: {"scores" [S S] in 0..1, "change" 0 or 1}. Each circuit in turn goes to the pair with the largest
    (sum of both directions' scores) / (its circuits + 1). Pairs with score 0 get none. All scores give legal circuits.

    Observation: {"demand" [H S S] relative to its largest entry, "circuits" [S S] relative to the largest degree,
    "step" as a fraction of the episode}, all in 0..1.

    Reward: minus the step's time (all-to-all and exposed reconfiguration) over the degree bound of its demand, so -1
    is the best possible under a named routing. It is 0 without bytes, minus infinity if a demand has no path, NaN if a
    traced score is NaN. `info` has `exchange_s`, `paid_s`, `bound_s`, `changed`, `discount`.

    Example: `env = RegionEnv(); obs, state = env.reset(jax.random.key(0), env.default_params)`.
    """

    routing: Routing = "unsplit"
    history: int = 1
    ahead: bool = False
    policies: tuple[Policy, ...] | None = None
    dtype: str = "float32"
    share_steps: int = SHARE_STEPS

    def __post_init__(self):
        check_routing(self.routing, self.share_steps)
        one_of("dtype", self.dtype, ("float32", "float64"))
        whole("history", self.history)
        if self.policies is not None and not self.policies:
            raise InputError("policies must be None or name at least one, got none.")

    @property
    def name(self) -> str:
        return type(self).__name__

    @property
    def num_actions(self) -> int:
        """Number of actions with `policies`. Raise `InputError` without: scores are real numbers."""
        if self.policies is None:
            raise InputError("num_actions needs policies, whose numbers are the actions; without, an action is scores.")
        return 1 + len(self.policies)

    @property
    def default_params(self) -> Params:
        return Params(Region(8, 400.0, delay_s=units.ms(1)), Drift())

    @functools.partial(jax.jit, static_argnums=0)
    def reset(self, key, params: Params | None = None) -> tuple[dict[str, Array], State]:
        """Return (observation, state) of a new episode, which starts with uniform circuits."""
        return self.reset_env(key, params or self.default_params)

    def reset_env(self, key, params: Params) -> tuple[dict[str, Array], State]:
        """Reset without compiling."""
        servers = params.region.servers
        source, demand = params.source.first(key, servers, self.dtype)
        demand = jnp.where(jnp.eye(servers, dtype=bool), 0, demand)
        seen = jnp.zeros((self.history, servers, servers), self.dtype)
        seen = seen if self.ahead else seen.at[-1].set(demand)
        count = uniform(None, params.region).circuits.count
        state = State(jnp.zeros((), jnp.int32), count, seen, demand, source)
        return self.get_obs(state, params), state

    def step(self, key, state: State, action, params: Params | None = None):
        """Return (observation, state, reward, done, info) after one step.

        After the last step, observation and state belong to a new episode. Raise `InputError` if the action is outside
        `action_space`; traced numbers are clipped instead.
        """
        params = params or self.default_params
        return self._step(key, state, self._check_action(action, params), params)

    def step_env(self, key, state: State, action, params: Params | None = None):
        """Take a `step` without the reset at the end of an episode."""
        params = params or self.default_params
        return self._step_env(key, state, self._check_action(action, params), params)

    def action_space(self, params: Params | None = None) -> Dict | Discrete:
        if self.policies is not None:
            return Discrete(self.num_actions)
        servers = (params or self.default_params).region.servers
        return Dict({"scores": Box(0.0, 1.0, (servers, servers), self.dtype), "change": Discrete(2)})

    def observation_space(self, params: Params | None = None) -> Dict:
        servers = (params or self.default_params).region.servers
        shapes = {"demand": (self.history, servers, servers), "circuits": (servers, servers), "step": ()}
        return Dict({name: Box(0.0, 1.0, shape, self.dtype) for name, shape in shapes.items()})

    def get_obs(self, state: State, params: Params | None = None) -> dict[str, Array]:
        """Return the observation of a state."""
        params = params or self.default_params
        most, degree = state.seen.max(), params.region.degrees.max().astype(self.dtype)
        return {
            "demand": state.seen / jnp.where(most > 0, most, 1),
            "circuits": state.count.astype(self.dtype) / jnp.where(degree > 0, degree, 1),
            "step": jnp.clip(state.step.astype(self.dtype) / jnp.asarray(params.steps, self.dtype), 0, 1),
        }

    def is_terminal(self, state: State, params: Params | None = None) -> Bool[Array, ""]:
        """Return whether the episode has ended."""
        return state.step >= jnp.asarray((params or self.default_params).steps, jnp.int32)

    def discount(self, state: State, params: Params | None = None) -> Float[Array, ""]:
        """Return 0 if the episode has ended, else 1."""
        return jnp.where(self.is_terminal(state, params), 0, 1).astype(self.dtype)

    @functools.partial(jax.jit, static_argnums=0)
    def _step(self, key, state: State, action, params: Params):
        key, anew = jax.random.split(key)
        obs, state, reward, done, info = self._step_env(key, state, action, params)
        fresh = self.reset_env(anew, params)
        obs, state = jax.tree.map(lambda new, old: jnp.where(done, new, old), fresh, (obs, state))
        return obs, state, reward, done, info

    @functools.partial(jax.jit, static_argnums=0)
    def _step_env(self, key, state: State, action, params: Params):
        region, choose, draw = params.region, *jax.random.split(key)
        count, exchange, paid = self._serve_demand(choose, state, action, params)
        bound = degree_bound(region, state.demand)
        reward = jnp.where(bound > 0, -(exchange + paid) / jnp.where(bound > 0, bound, 1), 0)
        source, demand = params.source.next(draw, state.source)
        demand = jnp.where(jnp.eye(region.servers, dtype=bool), 0, demand.astype(self.dtype))
        seen = jnp.concatenate([state.seen[1:], (state.demand if self.ahead else demand)[None]])
        after = State(state.step + 1, count, seen, demand, source)
        info = {"exchange_s": exchange, "paid_s": paid, "bound_s": bound, "changed": jnp.any(count != state.count)}
        info["discount"] = self.discount(after, params)
        return self.get_obs(after, params), after, reward, self.is_terminal(after, params), info

    def _check_action(self, action, params: Params):
        if self.policies is not None:
            return _check_number("action", action, len(self.policies))
        if not isinstance(action, Mapping) or set(action) != {"scores", "change"}:
            got = f"the keys {sorted(map(str, action))}" if isinstance(action, Mapping) else type(action).__name__
            raise InputError(f"action must be a dict of scores and change, unless policies are set, got {got}.")
        scores, shape = _array(action["scores"]), 2 * (params.region.servers,)
        if scores is None or scores.shape != shape:
            raise InputError(f"scores of an action must be numbers {list(shape)}, got {_form(action['scores'])}.")
        scores = floats("scores of an action", scores, NO_NAN)
        return {"scores": scores, "change": _check_number("change of an action", action["change"], 1)}

    def _serve_demand(self, key, state: State, action, params: Params):
        """Return the circuits after the step, the seconds of its all-to-all, and those of waiting for the switch."""
        region = params.region
        if self.policies is None:
            scores = action["scores"]
            fresh = circuits_of(scores, region)
            plan = Plan(Circuits(jnp.where(action["change"] > 0, fresh, state.count)))
            count, exchange, paid = self._time_plan(plan, state, params)
            return count, jnp.where(jnp.isnan(scores).any(), jnp.nan, exchange), paid
        before = Plan(Circuits(state.count))
        plans = [policy(state.seen[-1], region, previous=before, key=key) for policy in self.policies]
        if all(plan.schedule is None for plan in plans):  # only the chosen plan needs timing
            every = jnp.stack([state.count, *(plan.circuits.count.astype(state.count.dtype) for plan in plans)])
            return self._time_plan(Plan(Circuits(every[action])), state, params)
        each = [self._time_plan(plan, state, params) for plan in (before, *plans)]
        return jax.tree.map(lambda *x: jnp.stack(x)[action], *each)

    def _time_plan(self, plan: Plan, state: State, params: Params):
        costs = params.region.delay_s, params.each_s, params.hidden_s
        delay_s, each_s, hidden_s = (jnp.asarray(part, self.dtype) for part in costs)
        count, schedule = plan.circuits.count.astype(state.count.dtype), plan.schedule
        if schedule is None:
            exchange = exchange_s(params.region, Circuits(count), state.demand, self.routing, self.share_steps)
            waited_s = change_s(state.count, count, delay_s, each_s)
        else:
            exchange = fluid_lower_bound(params.region, plan, state.demand)
            waited_s = delay_s if schedule.first_free else jnp.zeros_like(delay_s)
        return count, exchange.astype(self.dtype), jnp.maximum(waited_s - hidden_s, 0)


def _array(value: Any) -> Array | np.ndarray | None:
    try:
        return real_numbers("value", value)
    except InputError:
        return None


def _form(value: Any) -> str:
    array = _array(value)
    if array is None:
        return repr(value) if isinstance(value, int) else type(value).__name__
    return f"{array.dtype} {list(array.shape)}" if array.shape or isinstance(array, Tracer) else str(value)


def _check_number(field: str, value: Any, most: int) -> Int[Array, ""]:
    number = _array(value)
    real, known = number is None or jnp.issubdtype(number.dtype, jnp.inexact), not isinstance(number, Tracer)
    if number is None or number.shape or real or (known and not 0 <= int(number) <= most):
        raise InputError(f"{field} must be one whole number from 0 to {most}, got {_form(value)}.")
    return jnp.clip(number.astype(jnp.int32), 0, most)


def circuits_of(scores: Float[Array, "S S"], region: Region) -> Int[Array, "S S"]:
    """Return the circuits of a score action: `policies.round_scores` of scores clipped to 0..1; traced NaN counts as
    0."""
    return round_scores(jnp.nan_to_num(jnp.clip(floats("scores", scores, NO_NAN), 0, 1)), region)
