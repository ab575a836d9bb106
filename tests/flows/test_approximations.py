"""What stands in for exact times: on which side a bound errs, and the smooth surrogate's limit, slope and kinks."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from mfabric_jax.flows import soft_time, star_completion
from mfabric_jax.flows.approximations import port_bound
from tests.batches import assert_batch_is_its_loop
from tests.flows.derivatives import Derivatives
from tests.mistakes import refused
from tests.oracles.tree import tree


def stars(n, count=12):
    """Dense, sparse and hot demand on unequal ports."""
    rng = np.random.default_rng(n)
    size = rng.uniform(0, 1, (count, n, n)) ** 2
    size[1::3] *= rng.random(size[1::3].shape) < 0.4
    size[2::3, :, 0] *= 10
    return size, rng.uniform(1, 2, (count, n)), rng.uniform(1, 2, (count, n))


def test_a_star_takes_at_least_the_bound():
    for n in (1, 3, 8):
        for size, up, down in zip(*stars(n), strict=True):
            bound, exact = port_bound(size, up, down), tree(size, up, down)
            np.testing.assert_allclose(bound, max((size.sum(1) / up).max(), (size.sum(0) / down).max()), rtol=1e-15)
            assert bound * (1 - 1e-12) <= exact.max() <= 1.2 * bound


def test_dead_ports_and_empty_stars():
    size, dead = np.ones((2, 2)), np.array([0.0, 1])
    assert port_bound(size, dead, np.ones(2)) == np.inf
    assert port_bound(size * 0, dead, dead) == 0
    assert np.isnan(port_bound(size * np.nan, dead, dead))


def test_derivatives_of_the_bound():
    slopes = Derivatives(lambda fixed, at: port_bound(**at))
    size, up, down = (x[0] for x in stars(4))
    slopes.check({}, {"size": size, "up": up, "down": down}, 0)


def test_float32():
    drawn = stars(8)
    bound = jax.vmap(port_bound)
    got = bound(*(x.astype(np.float32) for x in drawn))
    assert got.dtype == jnp.float32
    np.testing.assert_allclose(got, bound(*drawn), rtol=1e-6)


# ------------------------------------------------------------------------------------------------- the smooth surrogate
TEMPERATURES = np.array([0.3, 0.1, 0.03, 0.01, 0.003, 0.0])  # the last is the exact time


def slowest(at):
    return star_completion(at["size"], at["up"], at["down"]).max()


def star(seed, n):
    rng = np.random.default_rng(seed)
    size = rng.uniform(0, 1, (n, n)) ** 2
    np.fill_diagonal(size, 0)
    return {"size": size, "up": rng.uniform(1, 1.2, n), "down": rng.uniform(1, 1.2, n)}


def test_tends_to_the_exact_time():
    soft = jax.jit(jax.vmap(lambda at, t: soft_time(slowest, at, t), in_axes=(None, 0)))
    for seed in range(12):
        at = star(seed, 4)
        error = np.abs(soft(at, TEMPERATURES) / tree(**at).max() - 1)
        assert (np.diff(error) < 0).all()
        assert error[-2] < 0.005
        assert error[-1] < 1e-9


def test_the_error_away_from_kinks_is_second_order():
    # One port, so T = sum / capacity: a tenth of the temperature, a hundredth of the error.
    at = {"size": np.array([1.0, 2]), "capacity": np.array(3.0)}
    error = [float(soft_time(lambda at: at["size"].sum() / at["capacity"], at, t)) - 1 for t in (0.1, 0.01, 0.001)]
    np.testing.assert_allclose([error[0] / error[1], error[1] / error[2]], 100, rtol=0.02)


def busier(at):
    """The busier of two ports: a kink where they carry the same."""
    return jnp.maximum(at["size"][0] / at["capacity"][0], at["size"][1] / at["capacity"][1])


def test_derivatives_against_differences():
    slopes = Derivatives(lambda fixed, at: soft_time(busier, at, fixed, pairs=4))
    for seed in range(4):
        size, capacity = np.random.default_rng(seed).uniform(1, 2, (2, 2))
        slopes.check(np.array(0.1), {"size": size, "capacity": capacity}, seed)


slope = jax.jit(jax.value_and_grad(lambda size, t: soft_time(busier, {"size": size, "capacity": jnp.ones(2)}, t)))


def test_at_a_kink_the_slope_lies_between_the_two_sides():
    # Left of the kink the first port does not matter (slope 0), right of it nothing else does (slope 1).
    for temperature in (0.3, 0.01, 1e-4):
        value, at_kink = slope(np.array([1.0, 1.0]), temperature)
        assert 0.2 < at_kink[0] < 0.8
        assert 0.2 < at_kink[1] < 0.8
        np.testing.assert_allclose(at_kink.sum(), value, rtol=1e-12)  # time is proportional to bytes: Euler


def test_across_a_kink_the_slope_climbs_over_the_width_of_the_temperature():
    # The noise of two sizes and two capacities: 2 x 0.03 wide. The mean of e^(0.03 (z - w)), above 1 by 0.03^2, is all
    # the slope that it adds.
    across = np.exp(np.linspace(-0.3, 0.3, 61))
    climb = np.array([slope(np.array([size, 1.0]), 0.03)[1][0] for size in across])
    assert climb[0] == 0
    assert abs(climb[-1] - 1) < 2e-3
    assert (np.diff(climb) >= 0).all()
    assert np.diff(climb).max() < 0.2
    half = np.log(across[climb.searchsorted(0.5)])
    assert abs(half) < 0.03


def test_zero_infinity_and_integers_stay():
    at = {"size": jnp.array([0.0, 1.0]), "port": jnp.array(jnp.inf), "count": jnp.array(3)}

    def read(at):
        assert at["count"].dtype == jnp.asarray(3).dtype
        kept = (at["size"][0] == 0) & jnp.isinf(at["port"]) & (at["count"] == 3)
        return jnp.where(kept, at["size"][1], jnp.nan)

    assert np.isfinite(soft_time(read, at, 0.2))
    assert soft_time(busier, {"size": np.ones(2), "capacity": np.array([0.0, 1])}, 0.2) == np.inf


def test_keys_and_impossible_settings():
    at = {"size": np.ones(2), "capacity": np.ones(2)}
    values = [soft_time(busier, at, 0.2, key=key) for key in (None, None, jax.random.key(1))]
    assert values[0] == values[1] != values[2]
    for wrong in ({"temperature": -0.1}, {"pairs": 0}):
        assert next(iter(wrong)) in refused(soft_time, busier, at, **{"temperature": 0.1} | wrong)


def test_batches_and_float32():
    rng = np.random.default_rng(0)
    cases = [({"size": size, "capacity": capacity},) for size, capacity in rng.uniform(1, 2, (4, 2, 2))]
    at_once = functools.partial(soft_time, busier, temperature=0.1)
    assert_batch_is_its_loop(at_once, cases, rtol=1e-12)
    # The noise is drawn alike in every dtype.
    (single,) = jax.tree.map(np.float32, cases[0])
    assert at_once(single).dtype == jnp.float32
    np.testing.assert_allclose(at_once(single), at_once(*cases[0]), rtol=1e-5)
