"""`Renewal` against the best causal policy of tiny chains, and by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mfabric_jax.policies.renewal import Renewal
from tests.policies import markov

EVEN = jnp.asarray(markov.SETS[0])


@pytest.mark.parametrize(("stay", "delay"), [(0.8, 3e-3), (0.95, 1e-2), (0.95, 3e-2)])
def test_within_three_per_cent_of_the_best_causal_policy(stay, delay):
    ratios = []
    for seed in range(8):
        demand, state = markov.draw(seed, stay, 16)
        seconds = np.asarray(markov.seconds_of(demand), float)
        best = markov.best_causal_s(seconds, state, stay, delay)
        took = np.asarray(markov.renewal_s(demand, state, jnp.asarray(seconds, jnp.float32), jnp.float32(delay)), float)
        ratios.append(took.sum() / best.sum())
    assert np.mean(ratios) <= 1.03
    assert np.mean(ratios) >= 1 - 0.01  # the best policy is best on average


def demand_of(*heavy):
    demand = np.full((4, 4), 1e6)
    np.fill_diagonal(demand, 0)
    for i, j in heavy:
        demand[i, j] = 1e8
    return jnp.asarray(demand, jnp.float32)


def test_forecast_and_last_demand_are_weighted_by_their_errors():
    controller = Renewal(markov.REGION)
    state = controller.start(EVEN)
    true, wrong = demand_of((0, 1), (1, 0)), demand_of((2, 3), (3, 2))
    for _ in range(4):  # the forecast is always wrong, the demand before always right
        expected = controller.expect(state, wrong)
        state, _ = controller.decide(state, expected, EVEN[None], 0.0, forecast=wrong, may=False)
        state = controller.observe(state, true)
    np.testing.assert_allclose(controller.expect(state, wrong), true * wrong.sum() / true.sum(), rtol=1e-4)
    assert state.sums.forecast_error > 0
    assert state.sums.last_error == pytest.approx(0, abs=1e-6)


def test_nothing_changes_before_it_may_and_without_a_saving():
    controller = Renewal(markov.REGION)
    state = controller.start(EVEN)
    demand = demand_of((0, 1), (1, 0))
    fresh = jnp.asarray(markov.SETS[np.argmin(np.asarray(markov.seconds_of(demand[None]))[:, 0])])
    for may in (False, False, True):
        state, changed = controller.decide(state, demand, fresh[None], 1e-9, may=may)
        assert bool(changed) == may
        state = controller.observe(state, demand)
    state, changed = controller.decide(state, demand, fresh[None], 1e-9)
    assert not changed
    np.testing.assert_array_equal(state.count, fresh)


def test_averages_are_shared_along_the_named_axis_and_batches_are_those_looped():
    demands = jnp.stack([demand_of((0, 1)), demand_of((2, 3), (1, 2))])
    fresh = jnp.asarray(markov.SETS[1:3])

    def run(shared):
        controller = Renewal(markov.REGION, shared=shared)

        def chain(demand, own):
            state = controller.start(EVEN)
            for _ in range(3):
                state, _ = controller.decide(state, demand, own[None], 1e-3)
                state = controller.observe(state, demand)
            return controller.ageing(state)

        return chain

    apart = jax.vmap(run(None), axis_name="layers")(demands, fresh)
    together = jax.vmap(run("layers"), axis_name="layers")(demands, fresh)
    for number in range(2):
        own = run(None)(demands[number], fresh[number])
        for batched, looped in zip(apart, own, strict=True):
            np.testing.assert_allclose(batched[number], looped, rtol=1e-5)
    np.testing.assert_allclose(together.fresh[0], together.fresh[1])
    np.testing.assert_allclose(together.fresh[0], apart.fresh.mean(0), rtol=1e-5)
