"""The rule that weighs a reconfiguration over time, against hand calculations and enumeration."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mfabric_jax.policies.horizon import cycle_cost, cycle_length, horizon, least_saving, should_reconfigure

LINEAR = np.arange(12.0)  # one second more is lost with every all-to-all


def test_linear_ageing_by_hand():
    """Delay 8: a cycle of four costs (8 + 0 + 1 + 2 + 3) / 4 = 3.5 seconds, one of three 3.67, one of five 3.6."""
    assert cycle_cost(LINEAR, 8.0) == 3.5
    assert cycle_length(LINEAR, 8.0) == 4
    assert horizon(LINEAR, 8.0) == pytest.approx(8 / 3.5)
    assert horizon(LINEAR, 0.0) == 1
    assert not should_reconfigure(3.5, LINEAR, 8.0)
    assert should_reconfigure(3.6, LINEAR, 8.0)
    assert not should_reconfigure(3.6, LINEAR, 8.0, slope=0.9)
    assert cycle_length(np.zeros(5), 1.0) == np.inf


@pytest.mark.parametrize("remaining", [1, 3, 8, 40])
def test_demand_that_stays_is_worth_a_reconfiguration_if_all_that_is_left_pays_for_it(remaining):
    """Circuits never age, those in place lose 2 seconds an all-to-all: a reconfiguration saves 2 * remaining."""
    never, saved = np.zeros(8), 2.0 * remaining
    for delay, worth in ((saved * 0.99, True), (saved * 1.01, False)):
        assert should_reconfigure(2.0, never, delay, usual_s=2.0, remaining=float(remaining)) == worth


def test_the_last_all_to_all_counts_alone():
    assert should_reconfigure(8.1, LINEAR, 8.0, usual_s=8.1, remaining=1.0)
    assert not should_reconfigure(7.9, LINEAR, 8.0, usual_s=7.9, remaining=1.0)
    assert least_saving(LINEAR, 8.0, remaining=1.0) >= 8


def test_demand_that_jumps_between_few_states_does_not_cause_a_reconfiguration_at_each_jump():
    """Circuits that are old lose 1 second, and so do others: what is saved lasts one all-to-all, the delay costs 5."""
    jumps = np.array([0.0, 1, 1, 1, 1, 1, 1, 1])
    assert cycle_cost(jumps, 5.0) == 1  # never renewed
    assert not should_reconfigure(1.2, jumps, 5.0)
    assert should_reconfigure(5.1, jumps, 5.0)


@pytest.mark.parametrize("seed", range(20))
def test_no_schedule_of_reconfigurations_is_cheaper_than_the_cycle(seed):
    random = np.random.default_rng(seed)
    loss = np.concatenate([[0], np.cumsum(random.exponential(size=11))])
    delay, steps = random.exponential() * 10, 12

    def cost(renewed):
        ages, age = [], 0
        for here in renewed:
            age = 0 if here else age + 1
            ages.append(age)
        return (delay * sum(renewed) + loss[ages].sum()) / steps

    schedules = [(True, *rest) for rest in itertools.product((False, True), repeat=steps - 1)]
    least = min(map(cost, schedules))
    cycle = cycle_cost(loss, delay)
    assert cycle <= least * (1 + 1e-12)
    length = cycle_length(loss, delay)
    if steps % length == 0:
        assert cycle == pytest.approx(least)


def test_limits_rise_with_the_delay_and_fall_with_what_remains():
    random = np.random.default_rng(0)
    loss = np.concatenate([np.zeros((50, 1)), np.cumsum(random.exponential(size=(50, 9)), axis=1)], axis=1)
    delays = np.sort(random.exponential(size=(50, 2)) * 10, axis=1)
    assert (least_saving(loss, delays[:, 0]) <= least_saving(loss, delays[:, 1]) * (1 + 1e-12)).all()
    usual = loss[:, -1] * 1.5
    short, long = (least_saving(loss, delays[:, 0], usual_s=usual, remaining=left) for left in (2.0, 9.0))
    assert (long <= short * (1 + 1e-12)).all()
    assert (horizon(loss, delays[:, 0]) <= 11).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_numpy_and_jax_agree_and_batches_are_those_looped(dtype):
    random = np.random.default_rng(1)
    loss = np.concatenate([np.zeros((7, 1)), np.cumsum(random.exponential(size=(7, 5)), axis=1)], axis=1).astype(dtype)
    loss[:3, 4:] = np.inf  # ages that were never seen
    delay, usual = random.exponential(size=(2, 7)).astype(dtype)
    usual[::2] = np.nan
    remaining = np.array([np.inf, 2, 9, np.inf, 1, 50, 4], dtype)
    facts = {"usual_s": usual, "remaining": remaining}
    with jax.enable_x64(dtype == np.float64):
        on_device = jax.jit(lambda *given: least_saving(*given[:2], usual_s=given[2], remaining=given[3]))
        got = np.asarray(on_device(loss, delay, usual, remaining))
    want = least_saving(loss, delay, **facts)
    np.testing.assert_allclose(got, want, rtol=1e-5 if dtype == np.float32 else 1e-12)
    each = [least_saving(loss[n], delay[n], usual_s=usual[n], remaining=remaining[n]) for n in range(len(loss))]
    np.testing.assert_allclose(want, each, rtol=1e-6)


def test_the_soft_rule_has_derivatives_and_hardens():
    def weight(saving, softness):
        return should_reconfigure(saving, jnp.asarray(LINEAR), jnp.asarray(8.0), softness=softness)

    slope = jax.grad(weight)(3.6, 0.1)
    assert slope > 0
    assert np.isfinite(slope)
    assert weight(3.5, 0.1) == pytest.approx(0.5)
    assert float(weight(3.6, 1e-4)) > 0.999
    assert float(weight(3.4, 1e-4)) < 0.001
    by_loss = jax.grad(lambda loss: should_reconfigure(3.6, loss, 8.0, softness=0.1))(jnp.asarray(LINEAR))
    assert np.isfinite(by_loss).all()
    assert (np.asarray(by_loss)[1:4] < 0).all()  # what ages faster is worth renewing less
