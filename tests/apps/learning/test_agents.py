"""The environment as agents use it: relay and own routing, wrappers of gymnax's names alone, an agent that learns."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from mfabric_jax.apps.learning import Drift, Recorded, RegionEnv, best_trajectory
from mfabric_jax.apps.learning.environment import Params
from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.policies import Plan, get, greedy_next, uniform
from mfabric_jax.routing import degree_bound, fluid_lower_bound, relay_shares
from tests.oracles.relay_programme import best_relay_shares

pytestmark = pytest.mark.usefixtures("as_users_have_it")
SERVERS, EPISODE = 4, 8
REGION = Region(SERVERS, 400.0, 3, 1, delay_s=2e-4)
PARAMS = Params(REGION, Drift(pairs=2.0, memory=0.9, burst=0.0), steps=EPISODE)


def split_s(region, circuits, demand):
    """A routing of one's own."""
    return fluid_lower_bound(region, circuits, demand, routing="split")


def misleading(demand, region, *, previous=None, key=None):
    """Circuits with shares that send everything over the packet switches."""
    eps = jnp.zeros((SERVERS, SERVERS, SERVERS + 2), demand.dtype).at[..., -1].set(1)
    return Plan(uniform(demand, region).circuits, eps)


# ------------------------------------------------------------------------------------------------------------ routings
def test_relay_rewards_are_of_near_best_shares_for_the_demand_that_is_served():
    env = RegionEnv(routing="relay", ahead=True, policies=(greedy_next, misleading), dtype="float64")
    (_, state), step = env.reset(jax.random.key(0), PARAMS), jax.jit(env.step_env)
    over = []
    for number, action in enumerate((1, 0, 2, 2, 1, 0)):
        _, after, reward, _, info = step(jax.random.key(number), state, action, PARAMS)
        circuits, demand = Circuits(after.count), np.asarray(state.demand)
        _, least = best_relay_shares(REGION, circuits, demand)
        over.append(float(info["exchange_s"]) / least)
        shares = relay_shares(REGION, circuits, demand, steps=60)
        seconds = fluid_lower_bound(REGION, Plan(circuits, shares), demand, routing="relay")
        np.testing.assert_allclose(info["exchange_s"], seconds, rtol=1e-9)
        paid = 2e-4 * bool((np.asarray(after.count) != np.asarray(state.count)).any())
        np.testing.assert_allclose(reward, -(seconds + paid) / degree_bound(REGION, demand), rtol=1e-9)
        assert reward <= -1 + 1e-9
        state = after
    assert min(over) > 1 - 1e-9
    assert max(over) < 1.02
    coarse = RegionEnv(routing="relay", policies=(greedy_next,), share_steps=0, dtype="float64")
    assert float(coarse.step_env(jax.random.key(0), state, 0, PARAMS)[4]["exchange_s"]) > float(
        env.step_env(jax.random.key(0), state, 0, PARAMS)[4]["exchange_s"]
    )


def test_at_best_the_reward_is_minus_one():
    env = RegionEnv(routing="relay", policies=(get("joint", start="previous", enough=1e-4),), dtype="float64")
    even = Drift(skew=0.0, pairs=0.0, heat=0.0, burst=0.0)
    _, state = env.reset(jax.random.key(0), Params(REGION, even))
    _, _, reward, _, _ = env.step(jax.random.key(0), state, 1, Params(REGION, even))
    assert float(reward) == pytest.approx(-1, abs=1e-3)
    assert reward <= -1


@pytest.mark.parametrize("policies", [None, (greedy_next, uniform)], ids=["scores", "policies"])
def test_an_own_routing_is_timed_like_a_named_one(policies):
    def rewards(routing):
        env = RegionEnv(routing=routing, policies=policies, dtype="float64")

        def step(carry, key):
            _, state = carry
            action = env.action_space(PARAMS).sample(key)
            obs, state, reward, _, _ = env.step(key, state, action, PARAMS)
            return (obs, state), reward

        return jax.jit(lambda key: lax.scan(step, env.reset(key, PARAMS), jax.random.split(key, 12))[1])

    own = rewards(split_s)(jax.random.key(1))
    np.testing.assert_array_equal(own, rewards("split")(jax.random.key(1)))
    twice = rewards(lambda *given: 2 * split_s(*given))(jax.random.key(1))
    assert (twice < own).all()


def test_the_best_trajectory_under_relay_uses_shares_for_each_demand():
    rng = np.random.default_rng(0)
    demands = 1e8 * rng.lognormal(0, 2, (3, SERVERS, SERVERS)) * ~np.eye(SERVERS, dtype=bool)
    candidates = jnp.stack([greedy_next(demand, REGION).circuits.count for demand in demands])

    def near_best(region, circuits, demand):
        plan = Plan(circuits, relay_shares(region, circuits, demand, steps=60))
        return fluid_lower_bound(region, plan, demand, routing="relay")

    named, own = (best_trajectory(demands, REGION, candidates, routing=routing) for routing in ("relay", near_best))
    np.testing.assert_allclose(named.exchange_s, own.exchange_s, rtol=1e-12)
    np.testing.assert_array_equal(named.count, own.count)
    split = best_trajectory(demands, REGION, candidates, routing="split")
    assert float(named.total_s) < float(split.total_s)


# ----------------------------------------------------------------------------------- wrappers of gymnax's names alone
class Logged(NamedTuple):
    env_state: object
    length: jax.Array
    total: jax.Array
    last_total: jax.Array


class LogWrapper:
    """Adds the reward of the last whole episode to `info`."""

    def __init__(self, env):
        self._env = env

    def __getattr__(self, name):
        return getattr(self._env, name)

    def reset(self, key, params=None):
        obs, state = self._env.reset(key, params)
        return obs, Logged(state, jnp.zeros((), jnp.int32), jnp.zeros(()), jnp.zeros(()))

    def step(self, key, state, action, params=None):
        obs, env_state, reward, done, info = self._env.step(key, state.env_state, action, params)
        length, total = state.length + 1, state.total + reward
        last = jnp.where(done, total, state.last_total)
        after = Logged(env_state, jnp.where(done, 0, length), jnp.where(done, 0, total), last)
        return obs, after, reward, done, info | {"returned": last, "length": length, "over": done}


class FlatWrapper(LogWrapper):
    """Observations as one vector, by `get_obs` and the shapes of `observation_space`."""

    def flatten(self, obs):
        return jnp.concatenate([obs[name].reshape(-1) for name in self._env.observation_space(None).shape])

    def size(self, params):
        return sum(int(np.prod(shape)) for shape in self._env.observation_space(params).shape.values())

    def get_obs(self, state, params=None):
        return self.flatten(self._env.get_obs(state, params))

    def reset(self, key, params=None):
        _, state = self._env.reset(key, params)
        return self.get_obs(state, params), state

    def step(self, key, state, action, params=None):
        _, state, *others = self._env.step(key, state, action, params)
        return self.get_obs(state, params), state, *others


class ResetWrapper(LogWrapper):
    """`step` as gymnax composes it of `step_env`, `is_terminal` and `reset_env`."""

    def reset(self, key, params=None):
        return self._env.reset(key, params)

    def step(self, key, state, action, params=None):
        params = self._env.default_params if params is None else params
        key, anew = jax.random.split(key)
        obs, state, reward, done, info = self._env.step_env(key, state, action, params)
        same = done == self._env.is_terminal(state, params)
        over = jnp.where(same, done, jnp.nan)
        fresh = self._env.reset_env(anew, params)
        obs, after = jax.tree.map(lambda new, old: jnp.where(done, new, old), fresh, (obs, state))
        return obs, after, reward, over, info | {"discount": self._env.discount(state, params)}


CHOICE = RegionEnv(routing="relay", policies=(greedy_next,), share_steps=20)


def test_wrappers_that_know_only_the_names_of_gymnax_work_unchanged():
    assert (CHOICE.name, CHOICE.num_actions, CHOICE.action_space(PARAMS).n) == ("RegionEnv", 2, 2)
    assert CHOICE.observation_space(PARAMS).shape == {"demand": (1, 4, 4), "circuits": (4, 4), "step": ()}
    assert set(CHOICE.observation_space(PARAMS).dtype.values()) == {"float32"}
    flat, batch, steps = FlatWrapper(CHOICE), 3, 2 * EPISODE
    logged = LogWrapper(flat)
    assert logged.num_actions == 2

    def rollout(env, key):
        def step(carry, key):
            _, state = carry
            action = jax.random.randint(key, (), 0, env.num_actions)
            obs, state, *others = env.step(key, state, action, PARAMS)
            return (obs, state), (obs, *others)

        return lax.scan(step, env.reset(key, PARAMS), jax.random.split(key, steps))[1]

    keys = jax.random.split(jax.random.key(0), batch)
    obs, reward, done, info = jax.jit(jax.vmap(functools.partial(rollout, logged)))(keys)
    assert obs.shape == (batch, steps, flat.size(PARAMS)) == (batch, steps, 16 + 16 + 1)
    ends = np.arange(steps) % EPISODE == EPISODE - 1
    np.testing.assert_array_equal(done, np.broadcast_to(ends, done.shape))
    np.testing.assert_allclose(info["returned"][:, EPISODE - 1], reward[:, :EPISODE].sum(1), rtol=1e-5)
    np.testing.assert_allclose(info["returned"][:, -1], reward[:, EPISODE:].sum(1), rtol=1e-5)
    np.testing.assert_array_equal(info["length"], np.broadcast_to(np.arange(steps) % EPISODE + 1, done.shape))

    plain, composed = (
        jax.jit(jax.vmap(functools.partial(rollout, env)))(keys) for env in (CHOICE, ResetWrapper(CHOICE))
    )
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-6), plain, composed)


# ----------------------------------------------------------------------------------------------- an agent that learns
LANES, HORIZON, UPDATES, ACTIONS = 32, 12, 20, 3  # keep, uniform, greedy-next
LEARNER = RegionEnv(routing="relay", policies=(uniform, greedy_next), share_steps=20)


def pairings():
    """Six servers exchange bytes in pairs, others every four steps."""
    rng, out = np.random.default_rng(0), []
    for _ in range(12):
        demand, order = np.full((6, 6), 1e7), rng.permutation(6)
        demand[order, order[::-1]] = 1e9
        out += [demand * rng.uniform(0.9, 1.1, demand.shape) for _ in range(4)]
    return Recorded(np.stack(out))


PAIRED = Params(Region(6, 400.0, 3, 1, delay_s=1e-3), pairings(), steps=HORIZON)


def features(obs):
    """One, and what part of the demand has circuits."""
    demand = obs["demand"][-1]
    served = jnp.where(obs["circuits"] > 0, demand, 0).sum() / demand.sum()
    return jnp.stack([jnp.ones(()), 2 * served - 1])


def episodes(weights, key):
    """Features, actions and rewards [LANES HORIZON] of an agent whose actions have linear logits."""

    def lane(key):
        def step(carry, key):
            obs, state = carry
            draw, go = jax.random.split(key)
            action = jax.random.categorical(draw, weights @ features(obs))
            after, state, reward, _, _ = LEARNER.step(go, state, action, PAIRED)
            return (after, state), (features(obs), action, reward)

        first, walk = jax.random.split(key)
        return lax.scan(step, LEARNER.reset(first, PAIRED), jax.random.split(walk, HORIZON))[1]

    return jax.vmap(lane)(jax.random.split(key, LANES))


mean_reward = jax.jit(lambda weights: episodes(weights, jax.random.key(99))[2].mean())


@jax.jit
def learn(key):
    """Weights after UPDATES of REINFORCE with a baseline for each step of an episode."""

    def update(weights, key):
        seen, action, reward = episodes(weights, key)
        returns = lax.associative_scan(jnp.add, reward, axis=1, reverse=True)
        gain = returns - returns.mean(0, keepdims=True)
        gain = gain / (gain.std() + 1e-6)

        def loss(weights):
            chances = jax.nn.log_softmax(jnp.einsum("lhf,af->lha", seen, weights))
            return -(gain * jnp.take_along_axis(chances, action[..., None], 2)[..., 0]).mean()

        return weights - 4.0 * jax.grad(loss)(weights), None

    return lax.scan(update, jnp.zeros((ACTIONS, 2)), jax.random.split(key, UPDATES))[0]


def test_an_agent_learns_to_reconfigure_under_relay_routing():
    always = np.stack([50.0 * np.eye(ACTIONS), np.zeros((ACTIONS, ACTIONS))], axis=2)
    kept, _, followed = (mean_reward(weights) for weights in always)
    begun, agent = mean_reward(jnp.zeros((ACTIONS, 2))), mean_reward(learn(jax.random.key(0)))
    assert agent > begun + 0.4
    assert agent > kept + 0.5
    assert float(agent) == pytest.approx(float(followed), abs=0.02)
