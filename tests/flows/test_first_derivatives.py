"""Second derivatives are refused, and first ones within programs that hold first ones are not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mfabric_jax.flows import FlowProblem, completion_times, max_min_rates, star_completion, star_rates
from tests.mistakes import refused

HOPS = jnp.array([[0, 1], [0, 2], [1, 2]])
CAPACITY = jnp.array([1.0, 2.0, 3.3])
ALIKE = jnp.ones((3, 3))


def rates(capacity):
    return max_min_rates(FlowProblem(capacity, HOPS)).rate.sum()


def times(capacity):
    return completion_times(FlowProblem(capacity, HOPS), jnp.array([3.0, 4.0, 5.0])).finish.sum()


def star_times(up):
    return star_completion(ALIKE, up, jnp.ones(3)).sum()


def rates_of_star(up):
    return star_rates(ALIKE, up, 9 * jnp.ones(3)).sum()


@pytest.mark.parametrize("of", [rates, times, star_times, rates_of_star])
def test_a_second_derivative_is_refused_and_a_first_is_not(of):
    assert np.any(jax.jit(jax.grad(of))(CAPACITY))
    for second in (jax.hessian(of), jax.jacrev(jax.grad(of)), jax.jit(jax.jacfwd(jax.jit(jax.grad(of))))):
        assert "have first derivatives alone" in refused(second, CAPACITY)


def test_steps_down_a_slope_are_differentiated_past_it_alone():
    """What is stopped is no second derivative: rates change by 0.5, 1, 0 for a unit of capacity."""

    def after(capacity):
        slope = jax.lax.stop_gradient(jax.grad(rates)(jax.lax.stop_gradient(capacity)))
        return rates(capacity - 0.1 * slope)

    np.testing.assert_allclose(jax.jit(jax.grad(after))(CAPACITY), [0.5, 1, 0], atol=1e-6)
    np.testing.assert_allclose(jax.vmap(jax.grad(rates))(CAPACITY[None]), [[0.5, 1, 0]], atol=1e-6)
    assert "alone" in refused(jax.grad(lambda c: rates(c - 0.1 * jax.grad(rates)(c))), CAPACITY)
