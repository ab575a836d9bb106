"""`Renewal` against the best causal policy of tiny chains, and by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mfabric_jax import Circuits
from mfabric_jax.policies.renewal import Renewal
from mfabric_jax.routing import Plan, fluid_lower_bound, relay_shares
from tests.policies import markov

SETS = jnp.asarray(markov.SETS)
EVEN = SETS[0]
RING, DOUBLED = SETS[4], SETS[9]  # 0-2-1-3-0, and two circuits each for 0-1 and 2-3
FEW = 8  # steps towards relay shares


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


def relay_s(count, demand):
    """Seconds of demand of one byte, with shares for this demand."""
    part = demand / demand.sum()
    shares = relay_shares(markov.REGION, Circuits(count), part, steps=FEW)
    return float(fluid_lower_bound(markov.REGION, Plan(Circuits(count), shares), part, routing="relay"))


def test_under_relay_it_learns_from_shares_of_every_demand():
    controller = Renewal(markov.REGION, routing="relay", share_steps=FEW, ages=2)
    demands = demand_of((0, 1), (1, 0)), demand_of((0, 1), (1, 2)), demand_of((0, 1), (2, 3))
    proposals = DOUBLED, RING, EVEN
    state, lost, fresh = controller.start(EVEN), np.zeros(2), 0.0
    for step, demand in enumerate(demands):
        state, _ = controller.decide(state, demand, proposals[step][None], 0.0, may=False)
        state = controller.observe(state, demand)
        seconds = [relay_s(proposals[step - age], demand) for age in range(min(step, 1) + 1)]
        lost[: len(seconds)] += np.subtract(seconds, seconds[0])
        fresh += seconds[0]
    np.testing.assert_allclose(state.sums.lost[0], lost, rtol=1e-3)
    np.testing.assert_allclose(state.sums.fresh, [fresh], rtol=1e-4)
    assert lost[1] > 0.1 * fresh


def test_under_relay_it_changes_circuits_that_relaying_cannot_replace():
    """After one all-to-all nothing is known of ageing: a change must save its delay at the next one."""
    demand = demand_of((0, 1), (1, 0))

    def changes(count, routing, delay_s):
        controller = Renewal(markov.REGION, routing=routing, share_steps=FEW, ages=2)
        state, _ = controller.decide(controller.start(count), demand, DOUBLED[None], 0.0, may=False)
        return bool(controller.decide(controller.observe(state, demand), demand, DOUBLED[None], delay_s)[1])

    for count in (EVEN, RING):
        saved_s = (relay_s(count, demand) - relay_s(DOUBLED, demand)) * float(demand.sum())
        assert [changes(count, "relay", part * saved_s) for part in (0.9, 1.1)] == [True, False]
        assert changes(count, "split", 1.1 * saved_s) is (count is RING)
