"""The learned control: causal, and `renewal` where it proposes nothing; its training improves a network."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mfabric_jax.apps.learning.ahead_training import (
    METHODS,
    AheadTraining,
    draw_lessons,
    first_network,
    loss_of,
    scores_of,
    soft_slots,
    train,
)
from mfabric_jax.apps.learning.regimes import learned as learned_control
from mfabric_jax.apps.learning.regimes.cells import PAIRS
from mfabric_jax.apps.learning.regimes.chains import SEEN, draw_chains
from mfabric_jax.apps.learning.regimes.controls import renewal
from mfabric_jax.apps.learning.regimes.learned import learned
from mfabric_jax.policies.ahead import Scores

DELAYS = jnp.asarray([0.0, 1e-3], jnp.float32)
EIGHT = PAIRS._replace(servers=8)
FEW = {"horizons": (1,), "tries": 2, "scenarios": 4}


@pytest.fixture
def ranks():
    """`Renewal` mixes ranks and types of whole numbers."""
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        yield


@pytest.mark.usefixtures("ranks")
def test_decisions_do_not_depend_on_the_future():
    chains = draw_chains(EIGHT, (1000,), 2, 6)
    served, later = learned(chains, DELAYS, "split", **FEW), SEEN + 4
    factor = jax.random.uniform(jax.random.key(0), chains.demand[:, later:].shape, jnp.float32)
    other = chains.demand.at[:, later:].multiply(factor)
    forecast = jnp.concatenate([other[:, :1], other[:, :-1]], axis=1)
    after = learned(dataclasses.replace(chains, demand=other, forecast=forecast), DELAYS, "split", **FEW)
    known = later - SEEN
    np.testing.assert_array_equal(served.changed[..., : known + 1], after.changed[..., : known + 1])
    np.testing.assert_allclose(served.exchange_s[..., :known], after.exchange_s[..., :known], rtol=1e-6)
    assert (np.asarray(served.exchange_s[..., known:]) != np.asarray(after.exchange_s[..., known:])).all()


@pytest.mark.usefixtures("ranks")
def test_without_horizons_it_is_renewal():
    chains = draw_chains(EIGHT, (1000,), 2, 6)
    served, usual = learned(chains, DELAYS, "split", horizons=()), renewal(chains, DELAYS, "split")
    np.testing.assert_array_equal(served.exchange_s, usual.exchange_s)


def test_errors_of_forecasts_are_those_before():
    chains = draw_chains(EIGHT._replace(sigma=0.3), (1000,), 4, 6)
    sigma = np.asarray(learned_control.errors_so_far(chains.forecast, chains.demand))
    assert sigma[0] == 0
    np.testing.assert_allclose(sigma[4:], 0.3, rtol=0.1)


def test_training_improves_the_loss():
    settings = AheadTraining(steps=40, lessons=32, trials=8, sizes=(6,))
    others = draw_lessons(jax.random.key(9), 128, 6, 4)

    def mean_loss(network):
        return float(jax.vmap(lambda lesson: loss_of(lesson, scores_of(network, lesson)))(others).mean())

    assert mean_loss(train(settings)) < mean_loss(first_network(settings)) - 0.005


def test_every_method_has_finite_gradients():
    settings = AheadTraining(lessons=4, trials=4, sizes=(6,))
    lessons, network = draw_lessons(jax.random.key(1), 4, 6, 2), first_network(settings)
    for name, method in METHODS.items():
        loss, slope = method(network, lessons, jax.random.key(2), settings)
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(slope)]
        assert np.isfinite(float(loss)), name
        assert all(np.isfinite(leaf).all() for leaf in leaves), name
        assert max(np.abs(leaf).max() for leaf in leaves) > 0, name


def test_soft_slots_keep_to_the_degrees():
    level = jax.random.normal(jax.random.key(0), (6, 6), jnp.float32)
    degrees = jnp.asarray([3, 3, 2, 3, 1, 3], jnp.int32)
    count = soft_slots(Scores(level + level.T, jnp.full((6, 6), 3.0, jnp.float32)), degrees)
    np.testing.assert_allclose(count.sum(1), degrees, rtol=0.05)
    np.testing.assert_allclose(count, count.T, rtol=1e-5)
