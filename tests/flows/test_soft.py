"""The smooth surrogate: its limit, its derivative, and what it does at a kink."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mfabric_jax import InputError
from mfabric_jax.flows import star_completion
from mfabric_jax.flows.soft import soft_time
from tests.flows.derivatives import Derivatives
from tests.oracles.tree import tree

TEMPERATURES = np.array([0.3, 0.1, 0.03, 0.01, 0.003, 0.0])  # the last is the exact time


def slowest(at):
    return star_completion(at["size"], at["up"], at["down"]).max()


def star(seed, n):
    rng = np.random.default_rng(seed)
    size = rng.uniform(0, 1, (n, n)) ** 2
    np.fill_diagonal(size, 0)
    return {"size": size, "up": rng.uniform(1, 1.2, n), "down": rng.uniform(1, 1.2, n)}


soft = jax.jit(jax.vmap(lambda at, temperature: soft_time(slowest, at, temperature), in_axes=(None, 0)))


def test_tends_to_the_exact_time():
    for seed in range(12):
        at = star(seed, 4)
        exact = tree(at["size"], at["up"], at["down"]).max()
        error = np.abs(soft(at, TEMPERATURES) / exact - 1)
        assert (np.diff(error) < 0).all()
        assert error[-2] < 0.005
        assert error[-1] < 1e-9


def test_the_error_away_from_kinks_is_second_order():
    # One port, so T = sum / capacity: a tenth of the temperature, a hundredth of the error.
    at = {"size": np.array([1.0, 2]), "capacity": np.array(3.0)}
    error = [float(soft_time(lambda at: at["size"].sum() / at["capacity"], at, t)) - 1 for t in (0.1, 0.01, 0.001)]
    np.testing.assert_allclose([error[0] / error[1], error[1] / error[2]], 100, rtol=0.02)


soft_slopes = Derivatives(lambda fixed, at: soft_time(slowest, at, fixed, pairs=4))


def test_derivatives_against_differences():
    for seed in range(2):
        soft_slopes.check(np.array(0.1), star(seed, 3), seed)


def busier(at):
    """The busier of two ports: a kink where they carry the same."""
    return jnp.maximum(at["size"][0] / at["capacity"][0], at["size"][1] / at["capacity"][1])


slope = jax.jit(jax.value_and_grad(lambda size, t: soft_time(busier, {"size": size, "capacity": jnp.ones(2)}, t)))


@pytest.mark.parametrize("temperature", [0.3, 0.01, 1e-4])
def test_at_a_kink_the_slope_lies_between_the_two_sides(temperature):
    # Left of the kink the first port does not matter (slope 0), right of it it is all that does (slope 1).
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


def test_a_kink_of_the_exact_star():
    # 0 sends 1 to 1, which sends s to 0: the last is the larger. Slopes 0 and 1 on either side of s = 1.
    def slope_of_last(s):
        size = np.zeros((3, 3))
        size[0, 1], size[1, 0] = 1, s
        point = {"size": size, "up": np.ones(3), "down": np.ones(3)}
        return soft_slopes.pullback(np.array(0.05), point, np.array(1.0))["size"][1, 0]

    climb = [slope_of_last(s) for s in (0.5, 1.0, 2.0)]
    np.testing.assert_allclose(climb[0], 0, atol=1e-12)
    assert 0.2 < climb[1] < 0.8
    np.testing.assert_allclose(climb[2], 1, atol=0.05)


def test_zero_infinity_and_integers_stay():
    at = {"size": jnp.array([0.0, 1.0]), "port": jnp.array(jnp.inf), "count": jnp.array(3)}

    def read(at):
        assert at["count"].dtype == jnp.asarray(3).dtype
        kept = (at["size"][0] == 0) & jnp.isinf(at["port"]) & (at["count"] == 3)
        return jnp.where(kept, at["size"][1], jnp.nan)

    assert np.isfinite(soft_time(read, at, 0.2))
    assert soft_time(busier, {"size": np.ones(2), "capacity": np.array([0.0, 1])}, 0.2) == np.inf


def test_another_key_is_another_noise_and_none_is_always_the_same():
    at = {"size": np.ones(2), "capacity": np.ones(2)}
    values = [soft_time(busier, at, 0.2, key=key) for key in (None, None, jax.random.key(1))]
    assert values[0] == values[1] != values[2]


@pytest.mark.parametrize("wrong", [{"temperature": -0.1}, {"pairs": 0}])
def test_impossible_settings_are_named(wrong):
    at = {"size": np.ones(2), "capacity": np.ones(2)}
    with pytest.raises(InputError, match=next(iter(wrong))):
        soft_time(busier, at, **{"temperature": 0.1} | wrong)


def test_a_batch_equals_its_loop():
    stacked = jax.tree.map(lambda *x: np.stack(x), *(star(seed, 4) for seed in range(4)))
    together = jax.jit(jax.vmap(lambda at: soft_time(slowest, at, TEMPERATURES[1])))(stacked)
    alone = [soft(star(seed, 4), TEMPERATURES)[1] for seed in range(4)]
    np.testing.assert_allclose(together, alone, rtol=1e-12)


def test_float32_agrees():
    # The noise is drawn alike in every dtype; the star errs by 1e-5 in float32.
    for seed in range(4):
        small = jax.tree.map(lambda x: x.astype(np.float32), star(seed, 4))
        got = soft(small, TEMPERATURES.astype(np.float32))
        assert got.dtype == jnp.float32
        wide = jax.tree.map(lambda x: x.astype(float), small)
        np.testing.assert_allclose(got, soft(wide, TEMPERATURES), rtol=3e-5)
