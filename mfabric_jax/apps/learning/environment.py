"""Reconfiguration of an optical region as a reinforcement-learning environment with gymnax's interface.

    obs, state = env.reset(key, params)
    obs, state, reward, done, info = env.step(key, state, action, params)

In each step the agent keeps or changes the circuits; then the region serves one all-to-all. All methods are pure and
work under `jit`, `vmap` and `lax.scan`. Source of the interface: Lange, gymnax, 2022
(github.com/RobertTLange/gymnax; not a dependency). Source of the optimum: metrical task systems, Borodin, Linial, Saks,
J. ACM 39(4), 1992.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from jaxtyping import Array, Bool, Float, Int

from mfabric_jax import units
from mfabric_jax.checks import InputError, not_negative, of_type, one_of, positive, whole
from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.fabric.region import legality, new_circuits
from mfabric_jax.policies import Policy, round_scores, uniform
from mfabric_jax.routing import Plan, degree_bound, fluid_lower_bound
from mfabric_jax.routing.demand import demands_between_servers
from mfabric_jax.support.arrays import counts, floats, floats_or_nan
from mfabric_jax.support.host_arrays import NO_NAN, NOT_NEGATIVE, real_numbers


# -------------------------------------------------------------------------------------------------------------- spaces
@dataclasses.dataclass(frozen=True)
class Box:
    """Real arrays of one shape with entries from `low` to `high`."""

    low: float
    high: float
    shape: tuple[int, ...]
    dtype: Any

    def sample(self, key) -> Array:
        return jax.random.uniform(key, self.shape, self.dtype, self.low, self.high)

    def contains(self, x) -> Bool[Array, ""]:
        x = jnp.asarray(x)
        fits = x.shape == self.shape and jnp.issubdtype(x.dtype, jnp.floating)
        return jnp.all((x >= self.low) & (x <= self.high)) if fits else jnp.asarray(False)


@dataclasses.dataclass(frozen=True)
class Discrete:
    """Integers 0 to `n` - 1."""

    n: int
    shape = ()
    dtype = jnp.int32

    def sample(self, key) -> Array:
        return jax.random.randint(key, (), 0, self.n, self.dtype)

    def contains(self, x) -> Bool[Array, ""]:
        x = jnp.asarray(x)
        fits = x.shape == () and jnp.issubdtype(x.dtype, jnp.integer)
        return (x >= 0) & (x < self.n) if fits else jnp.asarray(False)


@dataclasses.dataclass(frozen=True)
class Dict:
    """Dictionary of named spaces."""

    spaces: dict[str, Box | Discrete]

    def sample(self, key) -> dict[str, Array]:
        keys = jax.random.split(key, len(self.spaces))
        return {name: space.sample(key) for (name, space), key in zip(self.spaces.items(), keys, strict=True)}

    def contains(self, x) -> Bool[Array, ""]:
        if set(x) != set(self.spaces):
            return jnp.asarray(False)
        return jnp.all(jnp.stack([space.contains(x[name]) for name, space in self.spaces.items()]))


# --------------------------------------------------------------------------------------------------- sources of demand
BYTES_PER_SERVER = 268e6  # bytes: 4096 tokens, each to 8 experts, 8 kB per copy


class Drift(eqx.Module):
    """Drifting demand: every server sends the same number of bytes, split by the popularity of the receivers.

    - `bytes_per_server`: bytes sent by each server in a step without a burst.
    - `skew`, `pairs`: standard deviation of the log popularity of receivers and of pairs; `memory`: correlation between
      steps.
    - `heat`: log factor of one hot receiver; `moves`: probability per step that another server becomes hot.
    - `burst`: probability of a step with `burst_times` the bytes.
    """

    bytes_per_server: Any = BYTES_PER_SERVER
    skew: Any = 1.0
    pairs: Any = 0.5
    memory: Any = 0.98
    heat: Any = 1.5
    moves: Any = 0.02
    burst: Any = 0.05
    burst_times: Any = 3.0

    def __check_init__(self):
        positive("bytes_per_server", self.bytes_per_server)
        for field in ("skew", "pairs", "heat", "burst_times"):
            not_negative(field, getattr(self, field))
        for field in ("memory", "moves", "burst"):
            value = not_negative(field, getattr(self, field))
            if not isinstance(value, Tracer) and np.any(np.asarray(value) > 1):
                raise InputError(f"{field} must be at most 1, got {value}.")

    def first(self, key, servers: int, dtype):
        walk, hot, key = jax.random.split(key, 3)
        hot_server = jax.random.randint(hot, (), 0, servers, jnp.int32)
        return self.next(key, (jax.random.normal(walk, (servers + 1, servers), dtype), hot_server))

    def next(self, key, state):
        walks, hot_server = state  # walks: one of receivers, then those of pairs
        servers, dtype = walks.shape[1], walks.dtype
        walk, chance = jax.random.split(key)
        values = {field.name: jnp.asarray(getattr(self, field.name), dtype) for field in dataclasses.fields(self)}
        fresh = jax.random.normal(walk, walks.shape, dtype)
        walks = values["memory"] * walks + jnp.sqrt(1 - values["memory"] ** 2) * fresh
        moved, to, burst = jax.random.uniform(chance, (3,), dtype)
        hot_server = jnp.where(moved < values["moves"], (to * servers).astype(jnp.int32), hot_server)
        hot = (jnp.arange(servers, dtype=jnp.int32) == hot_server).astype(dtype)
        logits = (values["skew"] * walks[0] + values["heat"] * hot)[None, :] + values["pairs"] * walks[1:]
        size = values["bytes_per_server"] * jnp.where(burst < values["burst"], values["burst_times"], 1)
        share = jax.nn.softmax(jnp.where(jnp.eye(servers, dtype=bool), -jnp.inf, logits), axis=1)
        return (walks, hot_server), size * share


class Recorded(eqx.Module):
    """A recorded trace, `demands` [T S S] bytes, that repeats forever; each episode starts at a random step."""

    demands: Float[Array, "T S S"]

    def __init__(self, demands):
        self.demands = floats_or_nan("demands", demands, NOT_NEGATIVE)
        if self.demands.ndim != 3 or self.demands.shape[1] != self.demands.shape[2] or not len(self.demands):
            raise InputError(f"demands must be [T S S] with at least one step, got {list(self.demands.shape)}.")

    def first(self, key, servers: int, dtype):
        if self.demands.shape[1] != servers:
            raise InputError(f"demands must be of the region's {servers} servers, got {list(self.demands.shape)}.")
        step = jax.random.randint(key, (), 0, len(self.demands), jnp.int32)
        return step, self.demands[step].astype(dtype)

    def next(self, key, state):
        step = (state + 1) % len(self.demands)
        return step, self.demands[step]


# ---------------------------------------------------------------------------------------------------- the environment
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

    - `routing`: "unsplit", "best-path" or "split", timed by `fluid_lower_bound`.
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
    is the best possible. It is 0 without bytes, minus infinity if a demand has no path, NaN if a traced score is NaN.
    `info` has `exchange_s`, `paid_s`, `bound_s`, `changed`, `discount`.

    Example: `env = RegionEnv(); obs, state = env.reset(jax.random.key(0), env.default_params)`.
    """

    routing: str = "unsplit"
    history: int = 1
    ahead: bool = False
    policies: tuple[Policy, ...] | None = None
    dtype: str = "float32"

    def __post_init__(self):
        one_of("routing", self.routing, WITHOUT_SHARES)
        one_of("dtype", self.dtype, ("float32", "float64"))
        whole("history", self.history)
        if self.policies is not None and not self.policies:
            raise InputError("policies must be None or name at least one, got none.")

    @property
    def default_params(self) -> Params:
        return Params(Region(8, 400.0, delay_s=units.ms(1)), Drift())

    @functools.partial(jax.jit, static_argnums=0)
    def reset(self, key, params: Params | None = None) -> tuple[dict[str, Array], State]:
        """Return (observation, state) of a new episode, which starts with uniform circuits."""
        params = params or self.default_params
        servers = params.region.servers
        source, demand = params.source.first(key, servers, self.dtype)
        demand = jnp.where(jnp.eye(servers, dtype=bool), 0, demand)
        seen = jnp.zeros((self.history, servers, servers), self.dtype)
        seen = seen if self.ahead else seen.at[-1].set(demand)
        count = uniform(None, params.region).circuits.count
        state = State(jnp.zeros((), jnp.int32), count, seen, demand, source)
        return self.observation(state, params), state

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
            return Discrete(1 + len(self.policies))
        servers = (params or self.default_params).region.servers
        return Dict({"scores": Box(0.0, 1.0, (servers, servers), self.dtype), "change": Discrete(2)})

    def observation_space(self, params: Params | None = None) -> Dict:
        servers = (params or self.default_params).region.servers
        shapes = {"demand": (self.history, servers, servers), "circuits": (servers, servers), "step": ()}
        return Dict({name: Box(0.0, 1.0, shape, self.dtype) for name, shape in shapes.items()})

    def observation(self, state: State, params: Params) -> dict[str, Array]:
        most, degree = state.seen.max(), params.region.degrees.max().astype(self.dtype)
        return {
            "demand": state.seen / jnp.where(most > 0, most, 1),
            "circuits": state.count.astype(self.dtype) / jnp.where(degree > 0, degree, 1),
            "step": jnp.clip(state.step.astype(self.dtype) / jnp.asarray(params.steps, self.dtype), 0, 1),
        }

    @functools.partial(jax.jit, static_argnums=0)
    def _step(self, key, state: State, action, params: Params):
        key, anew = jax.random.split(key)
        obs, state, reward, done, info = self._step_env(key, state, action, params)
        fresh = self.reset(anew, params)
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
        done = after.step >= jnp.asarray(params.steps, jnp.int32)
        info = {"exchange_s": exchange, "paid_s": paid, "bound_s": bound, "changed": jnp.any(count != state.count)}
        info["discount"] = jnp.where(done, 0, 1).astype(self.dtype)
        return self.observation(after, params), after, reward, done, info

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
        exchange = fluid_lower_bound(params.region, plan, state.demand, routing=self.routing)
        if schedule is None:
            waited_s = change_s(state.count, count, delay_s, each_s)
        else:
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


WITHOUT_SHARES = ("unsplit", "best-path", "split")
Routing = str | Callable[..., Array]


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


def change_s(before: Int[Array, "S S"], after: Int[Array, "S S"], delay_s: Array, each_s) -> Float[Array, ""]:
    """Return the seconds of a change: `delay_s`, plus `each_s` per new circuit; minus infinity if nothing changes."""
    anew = new_circuits(before, after).astype(delay_s.dtype)
    return jnp.where(jnp.any(after != before), delay_s + each_s * anew, -jnp.inf)


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
    """Return the fastest trajectory over T known demands with circuits from `candidates` and `start`.

    Exact dynamic programming computes O(T N) all-to-all times, which all delays of a `vmap` share, and O(T N^2) sums.
    Ties go to the earlier candidate; `start` comes first.

    - `demands` [T S S]: bytes of every step.
    - `routing`: a name, which `fluid_lower_bound` times, or a function (region, circuits, demand) -> seconds.
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
    if not callable(routing):
        one_of("routing", routing, WITHOUT_SHARES)
    legal = jnp.array([legality(Circuits(candidate), region.optical_degree) for candidate in candidates])
    every = jnp.concatenate([before[None], candidates.astype(before.dtype)])
    best = _best(demands, region, every, jnp.broadcast_to(hidden, (steps,)), each, routing)
    unknown = jnp.isnan(legal).any() | jnp.isnan(each) | jnp.isnan(hidden).any()
    return best._replace(exchange_s=jnp.where(unknown, jnp.nan, best.exchange_s))


@functools.partial(jax.jit, static_argnames="routing")
def _best(demands, region: Region, circuits: Int[Array, "N S S"], hidden_s, each_s, routing: Routing) -> Trajectory:
    delay_s = jnp.asarray(region.delay_s, demands.dtype)

    def seconds(count, demand):
        if callable(routing):
            return routing(region, Circuits(count), demand)
        return fluid_lower_bound(region, Circuits(count), demand, routing=routing)

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
