"""Errors of guesses: one pair at a time by hand, whatever the unit of a guess, the same in NumPy and JAX."""

import jax.numpy as jnp
import numpy as np
import pytest

from mfabric_jax.traffic.log_errors import log_errors, mean_squared_error


def drawn(seed, shape=(2, 3, 4, 4)):
    """Demands of which some pairs, and one whole demand, are without bytes."""
    rng = np.random.default_rng(seed)
    demand = rng.lognormal(0, 1, shape) * (rng.random(shape) < 0.7)
    demand[0, 1] = 0
    return demand


def by_hand(guess, demand):
    """The mean squared error of one matrix, and the errors of its pairs."""
    pairs = [pair for pair in np.ndindex(guess.shape) if guess[pair] > 0 and demand[pair] > 0]
    logs = {pair: np.log(guess[pair] / demand[pair]) for pair in pairs}
    scale = np.mean(list(logs.values())) if logs else 0
    errors = {pair: log - scale for pair, log in logs.items()}
    return np.mean([error**2 for error in errors.values()]) if errors else 0, errors


@pytest.mark.parametrize("module", [np, jnp])
def test_errors_are_those_of_pairs_by_hand(module):
    guess, demand = drawn(0), drawn(1)
    error, both = log_errors(module.asarray(guess), module.asarray(demand))
    square = mean_squared_error(module.asarray(guess), module.asarray(demand))
    assert isinstance(square, np.ndarray) is (module is np)
    for index in np.ndindex(guess.shape[:2]):
        want, errors = by_hand(guess[index], demand[index])
        assert float(square[index]) == pytest.approx(want, rel=1e-12)
        assert {tuple(pair) for pair in np.argwhere(both[index]).tolist()} == set(errors)
        for pair in np.ndindex(4, 4):
            assert float(error[index][pair]) == pytest.approx(errors.get(pair, 0), abs=1e-12)


def test_the_unit_of_each_guess_does_not_matter():
    guess, demand = jnp.asarray(drawn(0), jnp.float32), jnp.asarray(drawn(1), jnp.float32)
    other = guess * jnp.asarray([[[[2.0]], [[3.0]], [[5.0]]], [[[0.1]], [[7.0]], [[1.0]]]], jnp.float32)
    assert mean_squared_error(guess, demand).dtype == jnp.float32
    np.testing.assert_allclose(mean_squared_error(other, demand), mean_squared_error(guess, demand), rtol=1e-4)
