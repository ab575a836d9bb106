"""The environment: rollouts of many against plain sums, auto-reset, legal circuits of any action, drifting demand."""

import dataclasses
import functools
import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from mfabric_jax.apps.learning import Drift, Recorded, RegionEnv, best_trajectory
from mfabric_jax.apps.learning.environment import Params, circuits_of
from mfabric_jax.apps.learning.spaces import Box, Dict, Discrete
from mfabric_jax.circuit_schedules import CircuitSchedule, schedule_time
from mfabric_jax.fabric import Region
from mfabric_jax.policies import Plan, greedy, uniform
from mfabric_jax.routing import all_to_all_time
from tests.mistakes import check_refused
from tests.oracles.greedy import greedy as plain_greedy

SERVERS, DEGREE, EPISODE, STEPS, BATCH = 4, 3, 5, 12, 32
ENV = RegionEnv(history=2, dtype="float64")
CHOICE = RegionEnv(policies=(greedy, uniform), ahead=True, dtype="float64")
PARAMS = Params(Region(SERVERS, 8.0, DEGREE, 1.0, 0.5), Drift(8e9), hidden_s=0.2, each_s=0.1, steps=EPISODE)
OFF = ~np.eye(SERVERS, dtype=bool)


def rollout(env, key, params, actions=None):
    """Everything along STEPS random actions: (state before, action, what `step` gave) of each."""

    def step(carry, key):
        obs, state = carry
        act, go = jax.random.split(key)
        action = env.action_space(params).sample(act)
        obs_after, after, reward, done, info = env.step(go, state, action, params)
        return (obs_after, after), (obs, state, action, reward, done, info)

    start, keys = env.reset(key, params), jax.random.split(jax.random.fold_in(key, 1), STEPS)
    return lax.scan(step, start, keys)[1]


@functools.partial(jax.jit, static_argnums=0)
def alone(env, key, params):
    return rollout(env, key, params)


KEYS = jax.random.split(jax.random.key(3), BATCH)
DELAYS = np.where(np.arange(BATCH) % 8, 3.0, 0.5)


def delayed(delay_s):
    return eqx.tree_at(lambda params: params.region.delay_s, PARAMS, jnp.asarray(delay_s))


@functools.lru_cache
def batch(env):
    found = jax.vmap(lambda key, delay: alone(env, key, delayed(delay)))(KEYS, DELAYS)
    return jax.tree.map(np.asarray, found)


def plain_reward(before, count, demand):
    """(exchange, paid, bound) by unsplit routing at 1 GB/s a NIC, in plain loops."""
    pairs = [(i, j) for i in range(SERVERS) for j in range(SERVERS) if i != j]
    own = max([demand[i, j] / count[i, j] / 1e9 for i, j in pairs if count[i, j]], default=0)
    out, into = np.zeros((2, SERVERS))
    for i, j in pairs:
        if not count[i, j]:
            out[i] += demand[i, j] / 1e9
            into[j] += demand[i, j] / 1e9
    anew = sum(max(int(count[i, j] - before[i, j]), 0) for i, j in pairs if i < j)
    paid = max(0.5 + 0.1 * anew - 0.2, 0) if (count != before).any() else 0
    bound = max(*demand.sum(0), *demand.sum(1)) / 1e9 / (DEGREE + 1)
    return max(own, *out, *into), paid, bound


@pytest.mark.parametrize("env", [ENV, CHOICE], ids=["scores", "policies"])
def test_a_batch_of_random_rollouts_agrees_with_plain_sums(env):
    _, state, action, reward, done, info = batch(env)
    assert reward.shape == (BATCH, STEPS)
    assert (reward <= -1 + 1e-9).all()
    changes = 0
    for lane in range(0, BATCH, 8):
        for t in range(STEPS - 1):
            before, demand = state.count[lane, t], state.demand[lane, t]
            if env.policies is not None:
                which = action[lane, t]
                even = np.where(OFF, 1, 0)
                known = np.zeros((SERVERS, SERVERS)) if t % EPISODE == 0 else state.demand[lane, t - 1]
                count = [before, plain_greedy(known, DEGREE, "printed"), even][which]
            else:
                scores, change = action["scores"][lane, t], action["change"][lane, t]
                count = plain_greedy(scores, DEGREE, "next") if change else before
            exchange, paid, bound = plain_reward(before, np.asarray(count), demand)
            for name, value in {"exchange_s": exchange, "paid_s": paid, "bound_s": bound}.items():
                np.testing.assert_allclose(info[name][lane, t], value, rtol=1e-9)
            np.testing.assert_allclose(reward[lane, t], -(exchange + paid) / bound, rtol=1e-9)
            if not done[lane, t]:
                np.testing.assert_array_equal(state.count[lane, t + 1], count)
            changes += bool((count != before).any())
            assert info["changed"][lane, t] == (count != before).any()
    assert 0 < changes < 4 * (STEPS - 1)


@pytest.mark.parametrize("env", [ENV, CHOICE], ids=["scores", "policies"])
def test_episodes_end_and_begin_anew_by_themselves_and_all_is_in_its_spaces_and_legal(env):
    obs, state, action, _, done, info = batch(env)
    ends = np.arange(STEPS) % EPISODE == EPISODE - 1
    np.testing.assert_array_equal(done, np.broadcast_to(ends, done.shape))
    np.testing.assert_array_equal(info["discount"], 1.0 - done)
    np.testing.assert_array_equal(state.step, np.broadcast_to(np.arange(STEPS) % EPISODE, done.shape))
    np.testing.assert_allclose(obs["step"], state.step / EPISODE, rtol=1e-12)
    begins = np.arange(STEPS) % EPISODE == 0
    assert (state.count[:, begins] == np.where(OFF, 1, 0)).all()
    # What the agent sees: none but this episode's demands, the last one to be served, or served last.
    last, older = state.seen[:, :, -1], state.seen[:, :, 0]
    if env.ahead:
        assert (last[:, begins] == 0).all()
        np.testing.assert_array_equal(last[:, 1:][:, ~begins[1:]], state.demand[:, :-1][:, ~begins[1:]])
    else:
        np.testing.assert_array_equal(last, state.demand)
        assert (older[:, begins] == 0).all()
        np.testing.assert_array_equal(older[:, 1:][:, ~begins[1:]], state.demand[:, :-1][:, ~begins[1:]])
    most = state.seen.max((2, 3, 4), keepdims=True)
    np.testing.assert_allclose(obs["demand"], state.seen / np.where(most > 0, most, 1), rtol=1e-12)
    np.testing.assert_allclose(obs["circuits"], state.count / DEGREE, rtol=1e-12)
    inside = jax.jit(jax.vmap(jax.vmap(env.observation_space(PARAMS).contains)))(obs)
    assert inside.shape == (BATCH, STEPS)
    assert inside.all()
    assert jax.vmap(jax.vmap(env.action_space(PARAMS).contains))(jax.tree.map(jnp.asarray, action)).all()
    assert (state.count.sum(2) <= DEGREE).all()
    np.testing.assert_array_equal(state.count, np.swapaxes(state.count, 2, 3))
    assert len({one.tobytes() for one in state.demand.reshape(-1, SERVERS, SERVERS)}) == BATCH * STEPS


KEEPING = RegionEnv(policies=(uniform,), dtype="float64")
TRACE = Params(PARAMS.region, Recorded(np.arange(1.0, 7.0)[:, None, None] * np.ones((SERVERS, SERVERS)) * 1e9))


def test_step_is_step_env_until_the_end():
    key, params = jax.random.key(0), dataclasses.replace(TRACE, steps=EPISODE)
    step, step_env = jax.jit(KEEPING.step), jax.jit(KEEPING.step_env)
    _, state = KEEPING.reset(key, params)
    own, other = step(key, state, 1, params), step_env(jax.random.split(key)[0], state, 1, params)
    jax.tree.map(np.testing.assert_array_equal, own, other)
    late = state._replace(step=jnp.asarray(EPISODE - 1, jnp.int32))
    _, after, _, done, _ = step(key, late, 1, params)
    _, beyond, _, over, _ = step_env(key, late, 1, params)
    assert done
    assert over
    assert (int(after.step), int(beyond.step)) == (0, EPISODE)


def test_a_recorded_trace_is_served_in_its_order_and_a_step_without_bytes_has_no_reward():
    _, state, _, reward, _, _ = alone(KEEPING, jax.random.key(1), TRACE)
    served = np.asarray(state.demand)[:, 0, 1] / 1e9
    np.testing.assert_array_equal(served, (served[0] - 1 + np.arange(STEPS)) % 6 + 1)
    assert (np.asarray(state.demand)[:, ~OFF] == 0).all()
    assert np.isfinite(reward).all()
    nothing = eqx.tree_at(lambda params: params.source.demands, TRACE, jnp.zeros((6, SERVERS, SERVERS)))
    obs, _, _, reward, _, _ = alone(KEEPING, jax.random.key(1), nothing)
    np.testing.assert_array_equal(reward, 0)
    assert not np.isnan(np.asarray(obs["demand"])).any()


legal = jax.jit(lambda scores, degrees: circuits_of(scores, Region(SERVERS, 8.0, degrees)))
scores = st.lists(st.floats(width=32), min_size=SERVERS**2, max_size=SERVERS**2)


@settings(max_examples=150, derandomize=True)
@given(scores, st.lists(st.integers(0, 8), min_size=SERVERS, max_size=SERVERS))
def test_any_scores_give_legal_circuits(scores, degrees):
    count = np.asarray(legal(np.asarray(scores, np.float32).reshape(SERVERS, SERVERS), np.asarray(degrees)))
    assert np.issubdtype(count.dtype, np.integer)
    np.testing.assert_array_equal(count, count.T)
    np.testing.assert_array_equal(np.diagonal(count), 0)
    assert (count >= 0).all()
    assert (count.sum(1) <= degrees).all()


def test_scores_out_of_bounds_are_read_as_the_nearest_and_any_topology_can_be_dealt():
    wild = np.array([[9, np.nan, 0.2, 5], [0.3, 0, -4, 0.1], [0.1, 1, 0, -np.inf], [np.inf, 0, 0, 0]], np.float32)
    tame = np.array([[0, 0, 0.2, 1], [0.3, 0, 0, 0.1], [0.1, 1, 0, 0], [1, 0, 0, 0]])
    np.testing.assert_array_equal(legal(wild, np.full(SERVERS, DEGREE)), plain_greedy(tame, DEGREE, "next"))
    # Scores in proportion to the circuits deal exactly these where all NICs are used.
    for pairs in ({(0, 1): 3, (2, 3): 3}, {(0, 1): 2, (2, 3): 2, (0, 3): 1, (1, 2): 1}):
        want = np.zeros((SERVERS, SERVERS))
        for (i, j), circuits in pairs.items():
            want[i, j] = want[j, i] = circuits
        np.testing.assert_array_equal(legal(want.astype(np.float32) / 3, np.full(SERVERS, DEGREE)), want)


def drawn(drift, steps=4000):
    def step(state, key):
        return drift.next(key, state)

    state, _ = drift.first(jax.random.key(0), SERVERS, jnp.float64)
    return lax.scan(step, state, jax.random.split(jax.random.key(1), steps))[1]


def test_drifting_demand_has_the_moments_it_is_given():
    calm = dict.fromkeys(("skew", "pairs", "heat", "burst", "moves"), 0.0)
    compiled = jax.jit(drawn, static_argnames="steps")

    def walk(drift):
        return np.asarray(compiled(drift))

    even = walk(Drift(6.0, **calm))
    np.testing.assert_allclose(even, np.broadcast_to(2.0 * OFF, even.shape), rtol=1e-12)
    skewed = walk(Drift(6.0, **calm | {"skew": 0.8, "memory": 0.9}))
    np.testing.assert_allclose(skewed.sum(2), 6.0, rtol=1e-12)
    # Rows of server 0: log(share of 1 / share of 2) has variance 2 skew^2 and correlation `memory` from step to step.
    log = np.log(skewed[:, 0, 1] / skewed[:, 0, 2])
    assert np.var(log) == pytest.approx(2 * 0.8**2, rel=0.2)  # 4000 steps, 19 to be forgotten: 210 draws
    assert np.corrcoef(log[1:], log[:-1])[0, 1] == pytest.approx(0.9, abs=0.03)
    burst = walk(Drift(6.0, **calm | {"burst": 0.25, "burst_times": 3.0})).sum((1, 2)) / (6 * SERVERS)
    assert set(np.round(burst, 9)) == {1.0, 3.0}
    assert np.mean(burst > 2) == pytest.approx(0.25, abs=0.03)
    hot = walk(Drift(6.0, **calm | {"heat": np.log(4.0), "moves": 0.1}))
    place = hot.sum(1).argmax(1)
    np.testing.assert_allclose(hot.max((1, 2)), 4.0, rtol=1e-12)  # of 6: 4 + 1 + 1
    assert np.mean(place[1:] != place[:-1]) == pytest.approx(0.1 * 3 / 4, abs=0.02)


def test_defaults_are_single_precision():
    env, key = RegionEnv(policies=(uniform,)), jax.random.key(0)
    obs, state = env.reset(key)
    obs, state, reward, *_ = env.step(key, state, env.action_space().sample(key))
    assert reward.dtype == np.float32
    assert env.observation_space().contains(obs)
    assert state.count.shape == (8, 8)


def test_spaces_know_what_they_contain():
    key = jax.random.key(0)
    box, number = Box(-1.0, 2.0, (2, 3), "float64"), Discrete(3)
    both = Dict({"a": box, "b": number})
    for space in (box, number, both):
        draws = jax.vmap(space.sample)(jax.random.split(key, 50))
        assert jax.vmap(space.contains)(draws).all()
    assert set(np.asarray(draws["b"]).tolist()) == {0, 1, 2}
    outside = [jnp.full((2, 3), 2.5), jnp.full((2, 3), -1.5), jnp.zeros((3, 2)), jnp.zeros((2, 3), int)]
    assert not any(box.contains(x) for x in outside)
    assert not any(number.contains(x) for x in (3, -1, 1.0, np.zeros(1, int)))
    assert not both.contains({"a": jnp.zeros((2, 3))})
    assert not both.contains({"a": jnp.zeros((2, 3)), "b": 3})


def acted(env, action):
    return env.step(jax.random.key(0), env.reset(jax.random.key(0), PARAMS)[1], action, PARAMS)


def test_forms_are_told_of_traced_actions_and_their_numbers_kept_in_bounds():
    step = jax.jit(lambda action: acted(CHOICE, action)[1].count)
    check_refused(r"action must be one whole number from 0 to 2, got int64 \[2\]\.", step, np.array([1, 2]))
    even = np.where(OFF, 1, 0)
    np.testing.assert_array_equal(step(7), even)
    np.testing.assert_array_equal(step(-7), acted(CHOICE, 0)[1].count)


# ---------------------------------------------------------------------------------------------------------- the optimum
SLOW = Region(SERVERS, 8.0, DEGREE, 1.0)
EVEN = np.where(OFF, 1, 0)


def circuits_for(i, j):
    """All circuits for one pair."""
    count = np.zeros((SERVERS, SERVERS), int)
    count[i, j] = count[j, i] = DEGREE
    return count


WAYS = [EVEN, circuits_for(0, 1), circuits_for(0, 2), circuits_for(2, 3)]


def seconds(region, circuits, demand):
    """Pair after pair, each at 1 + its circuits: all circuits matter, so that no two topologies tie."""
    return (demand / (1 + circuits.count.astype(demand.dtype))).sum()


def plain_seconds(count, demand):
    return sum(float(demand[i][j]) / (1 + int(count[i][j])) for i in range(SERVERS) for j in range(SERVERS) if i != j)


def exposed(before, after, delay, each, hidden):
    anew = sum(max(int(x), 0) for x in np.triu(after - before).ravel())
    return max(delay + each * anew - hidden, 0) if (before != after).any() else 0.0


@jax.jit
def optimum(demands, hidden, delay):
    region, candidates = eqx.tree_at(lambda region: region.delay_s, SLOW, delay), jnp.asarray(np.stack(WAYS[1:]))
    return best_trajectory(demands, region, candidates, routing=seconds, hidden_s=hidden, each_s=0.1e9)


def test_no_sequence_of_candidates_is_faster_than_the_best():
    changes, middle = set(), 0
    for seed in range(24):
        rng = np.random.default_rng(seed)
        demands = 1e8 * OFF * rng.random((5, SERVERS, SERVERS))
        demands += 4e9 * (np.stack(WAYS) > 1)[rng.integers(4, size=5)] * rng.random((5, 1, 1))
        hidden, delay = rng.choice([0.0, 0.2e9], 5), [0.0, 0.2e9, 3e9][seed % 3]
        got = optimum(demands, hidden, delay)
        times = [[plain_seconds(way, demand) for way in WAYS] for demand in demands]
        waits = [[[exposed(a, b, delay, 0.1e9, h) for b in WAYS] for a in WAYS] for h in hidden]
        totals = {
            path: sum(waits[t][a][b] + times[t][b] for t, (a, b) in enumerate(itertools.pairwise((0, *path))))
            for path in itertools.product(range(4), repeat=5)
        }
        least = min(totals.values())
        middle += len(set(min(totals, key=totals.get))) > 2
        np.testing.assert_allclose(got.total_s, least, rtol=1e-12)
        before = np.concatenate([EVEN[None], got.count[:-1]])
        paid = [exposed(*step, delay, 0.1e9, h) for *step, h in zip(before, np.asarray(got.count), hidden, strict=True)]
        np.testing.assert_allclose(got.paid_s, paid, rtol=1e-12)
        took = [plain_seconds(*step) for step in zip(np.asarray(got.count), demands, strict=True)]
        np.testing.assert_allclose(got.exchange_s, took, rtol=1e-12)
        np.testing.assert_array_equal(got.changed, (np.asarray(got.count) != before).any((1, 2)))
        changes.add(int(got.changed.sum()))
    assert len(changes) > 2
    assert middle > 5


@pytest.mark.parametrize("first_free", [False, True])
def test_a_plan_with_a_schedule_is_timed_by_it_and_leaves_no_circuits(first_free):
    where = Region(4, 400.0, 2, 2, delay_s=1e-3)
    there = np.roll(np.eye(4, dtype=int), 1, axis=1)
    schedule = CircuitSchedule(np.stack([2 * there, 2 * there.T]), np.full(2, 2e-3), first_free=first_free)

    def turning(demand, region, *, previous=None, key=None):
        return Plan.of_schedule(schedule)

    env, params = RegionEnv(policies=(greedy, turning), dtype="float64"), Params(where, Drift(burst=0.0), hidden_s=4e-4)
    _, state = env.reset(jax.random.key(0), params)
    _, after, reward, _, info = env.step(jax.random.key(1), state, 2, params)
    seconds = float(schedule_time(where, schedule, state.demand))
    assert float(info["exchange_s"]) == pytest.approx(seconds, rel=1e-12)
    assert float(info["paid_s"]) == pytest.approx(6e-4 if first_free else 0.0, rel=1e-12)
    assert float(all_to_all_time(where, turning(None, None), state.demand)) == pytest.approx(seconds, rel=1e-12)
    assert float(reward) == pytest.approx(-float(info["exchange_s"] + info["paid_s"]) / float(info["bound_s"]))
    assert not np.asarray(after.count).any()
    _, kept, _, _, info = env.step(jax.random.key(1), state, 0, params)
    np.testing.assert_array_equal(kept.count, state.count)
    assert float(info["paid_s"]) == 0
