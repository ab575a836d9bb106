"""What stands in for exact times: on which side a bound errs, and the smooth surrogate's limit, slope and kinks."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from mfabric_jax.flows import port_bound, processor_sharing, soft_time, star_completion
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


def served(sizes, capacity):
    """Processor sharing of one port, event by event: the flows that are left share it equally."""
    ends, now, sent = [0.0] * len(sizes), 0.0, 0.0
    order = sorted((size, flow) for flow, size in enumerate(sizes) if size > 0)
    for done, (size, flow) in enumerate(order):
        now += (size - sent) * (len(order) - done) / capacity
        sent, ends[flow] = size, now
    return ends


bounds = jax.jit(jax.vmap(lambda *star: (port_bound(*star), processor_sharing(*star))))


def test_a_star_takes_at_least_the_bound_and_processor_sharing_is_the_later_of_two_ports():
    for n in (1, 3, 8):
        drawn = stars(n)
        for size, up, down, bound, shared in zip(*drawn, *bounds(*drawn), strict=True):
            rows = np.array([served(size[i], up[i]) for i in range(n)])
            columns = np.array([served(size[:, j], down[j]) for j in range(n)]).T
            np.testing.assert_allclose(shared, np.maximum(rows, columns), rtol=1e-12)
            np.testing.assert_allclose(bound, max((size.sum(1) / up).max(), (size.sum(0) / down).max()), rtol=1e-15)
            np.testing.assert_allclose(shared.max(), bound, rtol=1e-12)
            exact = tree(size, up, down)
            assert bound * (1 - 1e-12) <= exact.max() <= 1.2 * bound
            if n == 8:
                assert np.abs(shared[exact > 0] / exact[exact > 0] - 1).mean() < 0.25


def test_dead_ports_and_empty_stars():
    size, dead = np.ones((2, 2)), np.array([0.0, 1])
    assert port_bound(size, dead, np.ones(2)) == np.inf
    np.testing.assert_array_equal(processor_sharing(size, dead, np.ones(2)), [[np.inf] * 2, [2] * 2])
    assert port_bound(size * 0, dead, dead) == 0
    assert not processor_sharing(size * 0, dead, dead).any()
    assert np.isnan(port_bound(size * np.nan, dead, dead))


def test_derivatives_of_the_bounds():
    slopes = Derivatives(lambda fixed, at: jnp.append(processor_sharing(**at).reshape(-1), port_bound(**at)))
    size, up, down = (x[0] for x in stars(4))
    slopes.check({}, {"size": size, "up": up, "down": down}, 0)


def test_float32():
    drawn = stars(8)
    for got, want in zip(bounds(*(x.astype(np.float32) for x in drawn)), bounds(*drawn), strict=True):
        assert got.dtype == jnp.float32
        np.testing.assert_allclose(got, want, rtol=1e-6)


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
