"""The named approximations: what each is by definition, on which side it errs, and about how much."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mfabric_jax import InputError
from mfabric_jax.flows import FlowProblem, completion_times, max_min_rates
from mfabric_jax.flows.bounds import k_rounds_completion, k_rounds_rates, port_bound, processor_sharing
from mfabric_jax.flows.star import as_problem
from tests.flows.derivatives import Derivatives
from tests.flows.instances import draw, padded
from tests.oracles.tree import tree

FLOWS, LINKS, HOPS = 12, 6, 3


def stars(n, count=12):
    """Dense, sparse and hot demand on unequal ports."""
    rng = np.random.default_rng(n)
    size = rng.uniform(0, 1, (count, n, n)) ** 2
    size[1::3] *= rng.random(size[1::3].shape) < 0.4
    size[2::3, :, 0] *= 10
    return size, rng.uniform(1, 2, (count, n)), rng.uniform(1, 2, (count, n))


def served(sizes, capacity):
    """Processor sharing of one port, event by event: who is left shares it equally."""
    ends, now, order = [0.0] * len(sizes), 0.0, sorted((s, f) for f, s in enumerate(sizes) if s > 0)
    sent = 0.0
    for done, (size, f) in enumerate(order):
        now += (size - sent) * (len(order) - done) / capacity
        sent, ends[f] = size, now
    return ends


@pytest.mark.parametrize("n", [1, 3, 8])
def test_processor_sharing_is_the_later_of_two_ports(n):
    for size, up, down in zip(*stars(n), strict=True):
        rows = np.array([served(size[i], up[i]) for i in range(n)])
        columns = np.array([served(size[:, j], down[j]) for j in range(n)]).T
        got = jax.jit(processor_sharing)(size, up, down)
        np.testing.assert_allclose(got, np.maximum(rows, columns), rtol=1e-12)


@pytest.mark.parametrize("n", [2, 8])
def test_the_port_bound_is_below_the_exact_time_and_is_processor_sharing_at_its_end(n):
    exact = []
    for size, up, down in zip(*stars(n), strict=True):
        bound = jax.jit(port_bound)(size, up, down)
        np.testing.assert_allclose(bound, max((size.sum(1) / up).max(), (size.sum(0) / down).max()), rtol=1e-15)
        np.testing.assert_allclose(jax.jit(processor_sharing)(size, up, down).max(), bound, rtol=1e-12)
        exact.append(tree(size, up, down).max() / bound)
    assert min(exact) >= 1 - 1e-12
    assert max(exact) < 1.2


def test_single_flows_are_near_their_exact_times():
    size, up, down = stars(8)
    near = jax.vmap(processor_sharing)(size, up, down)
    exact = np.stack([tree(*one) for one in zip(size, up, down, strict=True)])
    error = np.abs(near[exact > 0] / exact[exact > 0] - 1)
    assert error.mean() < 0.1


def test_dead_ports_and_empty_stars():
    size, dead = np.ones((2, 2)), np.array([0.0, 1])
    assert port_bound(size, dead, np.ones(2)) == np.inf
    np.testing.assert_array_equal(processor_sharing(size, dead, np.ones(2)), [[np.inf] * 2, [2] * 2])
    assert port_bound(size * 0, dead, dead) == 0
    assert not processor_sharing(size * 0, dead, dead).any()
    assert np.isnan(port_bound(size * np.nan, dead, dead))


def test_impossible_settings_are_named():
    with pytest.raises(InputError, match="rounds"):
        k_rounds_rates(FlowProblem(np.ones(1), np.zeros((1, 1), int)), -1)


star_slopes = Derivatives(lambda fixed, at: jnp.append(processor_sharing(**at).reshape(-1), port_bound(**at)))


def test_derivatives_of_the_star_bounds():
    size, up, down = (x[0] for x in stars(4))
    star_slopes.check({}, {"size": size, "up": up, "down": down}, 0)


limited = jax.jit(k_rounds_rates, static_argnames="rounds")
exactly = jax.jit(max_min_rates)


@pytest.mark.parametrize("seed", range(30))
def test_rounds_rise_to_the_exact_rates_and_are_always_feasible(seed):
    arrays = padded(draw(seed, FLOWS, LINKS, HOPS), FLOWS, LINKS, HOPS, seed=seed)
    problem, exact = arrays.problem(), exactly(arrays.problem())
    before = np.zeros(FLOWS)
    for rounds in (0, 1, 2, 3, FLOWS - 1):
        rate = np.asarray(limited(problem, rounds))
        assert (rate >= before * (1 - 1e-12)).all()
        assert (rate <= exact.rate * (1 + 1e-12)).all()
        finite = np.where(np.isfinite(rate), rate, 0)
        used = np.zeros(LINKS)
        np.add.at(used, arrays.hops, np.where(arrays.hops >= 0, arrays.share * finite[:, None], 0))
        assert (used <= arrays.capacity * (1 + 1e-12)).all()
        if rounds + 1 >= exact.rounds:
            np.testing.assert_allclose(rate, exact.rate, rtol=1e-12)
        before = rate


def test_no_round_is_the_smallest_equal_share_by_hand():
    # Links of 2 and 1; flow 0 crosses both, flow 1 the first, flow 2 the second. Equal shares 1 and 1/2: without a
    # round flow 1 gets 1; after one, flow 0 is frozen at 1/2 and flow 1 gets the other 3/2.
    problem = FlowProblem(np.array([2.0, 1]), np.array([[0, 1], [0, -1], [1, -1]]))
    np.testing.assert_array_equal(limited(problem, 0), [0.5, 1, 0.5])
    np.testing.assert_array_equal(limited(problem, 1), [0.5, 1.5, 0.5])


completion = jax.jit(k_rounds_completion, static_argnames="rounds")


@pytest.mark.parametrize("seed", range(10))
def test_enough_rounds_give_the_exact_completion(seed):
    arrays = padded(draw(seed, FLOWS, LINKS, HOPS), FLOWS, LINKS, HOPS, seed=seed)
    exact = jax.jit(completion_times)(arrays.problem(), arrays.size).finish
    np.testing.assert_allclose(completion(arrays.problem(), arrays.size, FLOWS - 1), exact, rtol=1e-9)


def test_two_rounds_are_near_the_exact_completion_of_a_star():
    for size, up, down in zip(*stars(8, 6), strict=True):
        problem, exact = as_problem(jnp.stack([up, down]), jnp.zeros((2, 0))), tree(size, up, down)
        got = np.asarray(completion(problem, size.reshape(-1), 2)).reshape(8, 8)
        np.testing.assert_allclose(got.max(), exact.max(), rtol=0.02)
        assert np.abs(got[exact > 0] / exact[exact > 0] - 1).mean() < 0.07


round_slopes = Derivatives(
    lambda fixed, at: k_rounds_completion(FlowProblem(at["capacity"], fixed, weight=at["weight"]), at["size"], 2)
)


def test_derivatives_of_the_rounds():
    arrays = padded(draw(0, 4, 4, 2, edges=False), 4, 4, 2)
    at = {"capacity": arrays.capacity, "weight": arrays.weight, "size": arrays.size}
    round_slopes.check(arrays.hops, at, 0)


def test_batches_equal_their_loops_and_new_instances_do_not_retrace():
    size, up, down = stars(4, 4)
    for function in (port_bound, processor_sharing):
        once = jax.jit(eqx.debug.assert_max_traces(function, max_traces=1))
        alone = [once(*one) for one in zip(size, up, down, strict=True)]
        np.testing.assert_allclose(jax.jit(jax.vmap(function))(size, up, down), alone, rtol=1e-12)
    problem = as_problem(jnp.ones((2, 4)), jnp.zeros((2, 0)))
    flat = size.reshape(4, -1)
    together = jax.jit(jax.vmap(lambda one: k_rounds_completion(problem, one, 1)))(flat)
    np.testing.assert_allclose(together, [completion(problem, one, 1) for one in flat], rtol=1e-12)


def test_float32():
    size, up, down = (x.astype(np.float32) for x in stars(8))
    wide = [x.astype(float) for x in (size, up, down)]
    for function in (port_bound, processor_sharing):
        got = jax.vmap(function)(size, up, down)
        assert got.dtype == jnp.float32
        np.testing.assert_allclose(got, jax.vmap(function)(*wide), rtol=1e-6)
