"""Scenarios of a forecast: what is believed against plain Bayes, by hand and by draws; errors found again."""

import jax
import jax.numpy as jnp
import numpy as np

from mfabric_jax.traffic.log_errors import error_of
from mfabric_jax.traffic.scenarios import expected_demand, likely_demands, log_moments

SERVERS = 12
OFF = ~np.eye(SERVERS, dtype=bool)


def truth(seed, own):
    """Row times column, times what pairs have of their own."""
    rng = np.random.default_rng(seed)
    ends = rng.normal(0, 1, (2, SERVERS))
    return np.exp(ends[0][:, None] + ends[1][None] + own * rng.normal(size=(SERVERS, SERVERS))) * OFF


def seen(seed, true, sigma):
    return true * np.exp(sigma * np.random.default_rng(seed + 100).normal(size=true.shape))


def test_a_pair_is_believed_as_far_as_it_exceeds_the_error():
    # Without errors the forecast is the truth; where pairs have nothing of their own, rows and columns are all.
    true = truth(0, 0.5)
    middle, spread = log_moments(true, 0.0)
    np.testing.assert_allclose(np.exp(middle)[OFF], true[OFF], rtol=1e-12)
    assert spread == 0
    middle, spread = log_moments(truth(0, 0.0), 0.7)
    np.testing.assert_allclose(np.exp(middle)[OFF], truth(0, 0.0)[OFF], rtol=1e-9)
    assert spread == 0


def test_shrinking_is_nearer_to_the_truth_and_knows_how_near():
    for own, sigma in ((0.0, 1.0), (0.5, 1.0), (1.0, 0.6)):
        late, plain, spreads = [], [], []
        for seed in range(40):
            true = truth(seed, own)
            forecast = seen(seed, true, sigma)
            middle, spread = log_moments(forecast, sigma)
            late.append(np.asarray(middle)[OFF] - np.log(true[OFF]))
            plain.append(np.log(forecast[OFF]) - np.log(true[OFF]))
            spreads.append(float(spread))
        error, raw = np.sqrt(np.mean(np.square(late))), np.sqrt(np.mean(np.square(plain)))
        assert error < 0.9 * raw
        bayes = own * sigma / np.hypot(own, sigma)  # of a pair alone, its row and column known
        assert bayes - 0.02 < error < bayes + 0.45 * sigma
        assert abs(np.mean(spreads) - bayes) < 0.15


def test_scenarios_come_in_pairs_of_opposite_noise():
    forecast = jnp.asarray(truth(1, 0.5)).at[2, 3].set(0)
    drawn = np.asarray(likely_demands(jax.random.key(0), forecast, 0.4, 4))
    assert drawn.shape == (4, SERVERS, SERVERS)
    some = np.asarray(forecast) > 0
    assert (drawn[:, ~some] == 0).all()
    log, said = np.log(drawn[:, some]), np.log(np.asarray(forecast)[some])
    towards = np.asarray(log_moments(forecast, 0.4)[0])[some] - said
    for pair in (log[:2], log[2:]):  # opposite noise: the middle lies between the forecast and its rows and columns
        part = (pair.mean(axis=0) - said) / towards
        assert part.min() > 0
        np.testing.assert_allclose(part, part[0], rtol=1e-6)
    odd = likely_demands(jax.random.key(0), forecast, 0.4, 3)
    np.testing.assert_array_equal(odd, drawn[:3])
    assert not np.array_equal(odd, likely_demands(jax.random.key(1), forecast, 0.4, 3))
    exact = likely_demands(jax.random.key(0), forecast, 0.0, 4)
    np.testing.assert_allclose(exact, np.broadcast_to(forecast, exact.shape), rtol=1e-9)


def test_the_truth_lies_within_the_scenarios_as_often_as_it_should():
    # Of draws of the truth from the very model: 80 % of pairs lie between the 10th and 90th percentile of scenarios,
    # though row and column means and the variance of pairs have to be guessed from one forecast.
    inside = []
    for seed in range(30):
        true = truth(seed, 0.5)
        drawn = np.asarray(likely_demands(jax.random.key(seed), seen(seed, true, 1.0), 1.0, 400))
        low, high = np.quantile(drawn, (0.1, 0.9), axis=0)
        inside.append(((low < true) & (true < high))[OFF].mean())
    assert 0.74 < np.mean(inside) < 0.86


def test_errors_are_found_again():
    true = np.stack([truth(seed, 0.5) for seed in range(20)])
    past = np.stack([seen(seed, one, 0.6) * (seed + 1) for seed, one in enumerate(true)])  # other units each
    np.testing.assert_allclose(error_of(past, true), 0.6, rtol=0.03)
    assert error_of(true, true) == 0


def test_what_is_expected_is_the_mean_of_what_is_believed():
    forecast = jnp.asarray(truth(1, 0.5)).at[2, 3].set(0)
    for sigma in (0.0, 0.6):
        mean, spread = expected_demand(forecast, sigma)
        middle, deviation = (np.asarray(part) for part in log_moments(forecast, sigma))
        noise = np.random.default_rng(0).normal(size=(20_000, *forecast.shape))
        some = np.where(forecast > 0, np.exp(middle + deviation * noise).mean(0), 0)
        np.testing.assert_allclose(mean, some, rtol=0.03)
        np.testing.assert_allclose(spread, log_moments(forecast, sigma)[1])
    np.testing.assert_allclose(expected_demand(forecast, 0.0)[0], forecast, rtol=1e-12)
    silent, none = expected_demand(jnp.zeros((3, 3)), 0.5)
    assert (np.asarray(silent) == 0).all()
    assert np.isfinite(none)
