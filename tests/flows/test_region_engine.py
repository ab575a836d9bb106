"""The star kernel gives the general engine's answers: hundreds of regions of skewed demand, 2 to 32 servers."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mfabric_jax.checks import InputError
from mfabric_jax.flows import completion_times, max_min_rates, star_completion, star_rates
from mfabric_jax.flows.star import as_problem

FAMILIES = ("zipf", "hot expert", "sparse", "one pair", "empty")


def demand(rng, servers: int, family: str) -> np.ndarray:
    """Bytes between servers; a third of the pairs is away on circuits."""
    size = rng.gamma(2.0, 0.5, (servers, servers)) * 1e9
    if family == "zipf":
        size *= rng.permutation(1 / np.arange(1, servers + 1) ** 1.2)
    if family == "hot expert":
        size[:, rng.integers(servers)] *= 20
    if family == "sparse":
        size *= rng.random(size.shape) < 0.2
    if family in ("one pair", "empty"):
        size[:] = 0
    if family == "one pair":
        size[0, servers - 1] = 3e9
    else:
        size *= rng.random(size.shape) < 0.67
    np.fill_diagonal(size, 0)
    return size


def regions(servers: int, count: int, dtype=np.float64):
    """Demands [count S S] and ports up and down [count S]: equal in half of them."""
    rng = np.random.default_rng([servers, count])
    size = np.stack([demand(rng, servers, FAMILIES[n % len(FAMILIES)]) for n in range(count)])
    uneven = rng.uniform(0.5, 1.5, (2, count, servers)) * (np.arange(count) % 2)[:, None]
    up, down = 2.5e10 * np.where(uneven > 0, uneven, 1.0)
    return tuple(jnp.asarray(x, dtype) for x in (size, up, down))


@jax.jit
@jax.vmap
def general(size, up, down):
    problem = as_problem(jnp.stack([up, down]), jnp.zeros((2, 0), size.dtype))
    running = eqx.tree_at(lambda p: p.weight, problem, (size > 0).astype(size.dtype).reshape(-1))
    finish = completion_times(problem, size.reshape(-1)).finish
    return finish.reshape(size.shape), max_min_rates(running).rate.reshape(size.shape)


@jax.jit
@jax.vmap
def special(size, up, down):
    return star_completion(size, up, down), star_rates(size, up, down)


@pytest.mark.parametrize(("servers", "count"), [(2, 200), (6, 200), (8, 200), (13, 50), (32, 5)])
def test_equals_the_general_engine(servers, count):
    instances = regions(servers, count)
    for got, want in zip(special(*instances), general(*instances), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-9)


@pytest.mark.parametrize(("servers", "count"), [(8, 200), (32, 5), (64, 2)])
def test_single_precision(servers, count):
    exact = special(*regions(servers, count))
    single = special(*regions(servers, count, np.float32))
    # A port's room is what up to 2 S subtractions left of it; a port that is nearly full loses digits with them.
    for got, want, worst in zip(single, exact, (2e-5, 1e-4), strict=True):
        want = np.asarray(want)
        error = np.abs(np.asarray(got)[want > 0] / want[want > 0] - 1)
        assert error.max() < worst
        assert np.quantile(error, 0.99) < 1e-5


def test_rates_of_dead_ports_and_bad_numbers():
    size = jnp.asarray([[0.0, 1.0], [1.0, 0.0]])
    np.testing.assert_array_equal(star_rates(size, jnp.asarray([0.0, 2.0]), jnp.ones(2)), [[0, 0], [1, 0]])
    assert np.isnan(jax.jit(star_rates)(size, jnp.asarray([jnp.nan, 2.0]), jnp.ones(2))).all()
    with pytest.raises(InputError, match="up must be finite"):
        star_rates(size, jnp.asarray([jnp.nan, 2.0]), jnp.ones(2))


def test_slope_of_rates():
    # One source (port 3) to two destinations (ports 1 and 5): 1 and 2. More at destination 0 takes from the other.
    size = jnp.zeros((3, 3)).at[0, 1].set(1).at[0, 2].set(1)
    up, down = jnp.asarray([3.0, 1.0, 1.0]), jnp.asarray([1.0, 1.0, 5.0])
    slope = jax.jacrev(lambda port: star_rates(size, up, port))(down)
    np.testing.assert_allclose(slope[0, 1], [0, 1, 0])
    np.testing.assert_allclose(slope[0, 2], [0, -1, 0])
    np.testing.assert_allclose(jax.jacfwd(lambda port: star_rates(size, port, down))(up)[0, 2], [1, 0, 0])
