"""Horizons of the rule "pays", from how circuits age along a walk."""

import numpy as np
import pytest

from mfabric_jax.evaluate.ageing import AGES, horizons_of
from mfabric_jax.evaluate.circuits import WalkSteps, walk_circuits
from mfabric_jax.evaluate.rules import TradeOff, what_pays
from mfabric_jax.evaluate.solver import OnHost, RegionFunctions, Tables
from mfabric_jax.policies.horizon import horizon
from mfabric_jax.policies.reads import Reads

BLOCKS = 256
WAVE = np.minimum(np.arange(float(BLOCKS)), BLOCKS - np.arange(float(BLOCKS)))  # it ends where it began


def solver_of(drift):
    """Demand drifts up and down; circuits for it take 1 second, and one more for each unit that demand moves."""

    def seconds(count, demand):
        late = 1 + np.abs(count - demand)[:, 0, 0]
        return late, 0 * late

    functions = RegionFunctions(lambda question: question.demand, lambda keys: keys, seconds, lambda *given: ())
    demands = drift * WAVE[:, None, None]
    return OnHost(Tables(demands), np.full((1, 1), -1.0), functions, Reads(before=False, key=False))


def steps_of(columns=1, sent=None):
    number = np.broadcast_to(np.arange(BLOCKS)[:, None], (BLOCKS, columns))
    sent = np.ones(number.shape, bool) if sent is None else sent
    return WalkSteps(number, number, 0 * number, 0 * number, sent, 0 * number, np.ones(number.shape), 0 * number)


def costs_of(delay, columns=1, hidden=0.0, **more):
    zero = np.zeros((columns, 3))
    return TradeOff(
        np.full(columns, delay), np.ones(columns), np.ones(2), zero + hidden, zero, np.zeros(columns), **more
    )


@pytest.mark.parametrize("delay", [0.0, 3.0, 30.0])
def test_linear_ageing_gives_the_horizon_by_hand(delay):
    """Both all-to-alls lose 0.1 s a block of age, less where demand turns round."""
    drift = 0.1
    early = np.array([(np.linspace(0, BLOCKS - 1, 16).astype(int) - age) % BLOCKS for age in AGES])
    lost = 2 * drift * np.abs(WAVE[early] - WAVE[early[0]]).mean(1)
    loss = np.maximum.accumulate(np.interp(np.arange(AGES[-1] + 1), AGES, lost))
    (found,) = horizons_of(solver_of(drift), steps_of(), costs_of(delay))
    assert found == pytest.approx(horizon(loss, delay))
    assert found >= 1
    assert (found > 1) == (delay > 0)


def test_circuits_that_do_not_age_count_for_all_ages():
    assert horizons_of(solver_of(0.0), steps_of(), costs_of(5.0)) == pytest.approx([AGES[-1] + 1])


def test_hidden_delays_and_columns_that_send_nothing_have_a_horizon_of_one():
    sent = np.ones((BLOCKS, 2), bool)
    sent[:, 1] = False
    hidden = horizons_of(solver_of(0.1), steps_of(2, sent), costs_of(3.0, 2, hidden=10.0))
    np.testing.assert_allclose(hidden, 1)
    assert horizons_of(solver_of(0.1), steps_of(2, sent), costs_of(3.0, 2)).shape == (2,)


def test_a_longer_horizon_reconfigures_where_one_block_does_not_pay():
    """Circuits in place lose 0.5 s in each all-to-all; the delay is 3 s: it pays from four blocks on."""
    zero = np.zeros(1, int)
    kept, fresh = ((np.array([seconds]), np.zeros(1)) for seconds in (1.5, 1.0))
    for blocks, paid in ((1.0, False), (2.9, False), (3.1, True), (8.0, True)):
        costs = costs_of(3.0, horizon=np.array([blocks]))
        assert what_pays(costs, kept, fresh, 0.0 * zero, zero, zero, np.ones(1)).any() == paid


def test_a_walk_with_a_horizon_takes_less_time_than_one_that_weighs_a_block():
    """Demand drifts slowly, so what a block saves never pays for the delay, and circuits grow old."""
    drift, delay = 0.05, 3.0

    def total(blocks):
        solver, steps = solver_of(drift), steps_of()
        costs = costs_of(delay)
        of_all = horizons_of(solver, steps, costs) if blocks is None else np.full(1, blocks)
        count, before = walk_circuits(solver, "pays", steps, costs._replace(horizon=of_all), cold=True)
        late = solver.seconds(count[:, :, 0], steps.demand)[0].sum()
        return late + delay * solver.differ(count, before).sum()

    assert total(None) < 0.8 * total(1.0)
    assert total(None) <= 1.1 * min(total(blocks) for blocks in (1.0, 2.0, 4.0, 8.0, 16.0))
