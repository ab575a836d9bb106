"""Completion times with a resolution: how far they may be from exact ones, and that they have no derivative."""

import functools
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mfabric_jax import InputError
from mfabric_jax.flows import FlowProblem, Outcome, completion_times
from tests.flows.instances import draw, padded

F, L, H = 12, 8, 4
exactly = eqx.filter_jit(completion_times)
seeds = st.integers(0, 2**32 - 1)


@eqx.filter_jit
def at(problem, size, start, resolution):
    return completion_times(problem, size, start, resolution=resolution)


def solve(problem, size, start, resolution):
    """The resolution is traced: a number would be compiled in."""
    return at(problem, size, start, jnp.asarray(resolution))


@functools.cache
def drawn(seed, edges=True):
    """A problem, its bytes and starts, its exact finish times, and how long it takes."""
    arrays = padded(draw(seed, F, L, H, edges), F, L, H, seed=seed)
    given = arrays.problem(), arrays.size, arrays.start
    finish = np.asarray(exactly(*given).finish)
    ends = finish[np.isfinite(finish)]
    return given, finish, float(ends.max(initial=0) - arrays.start.min())


@settings(max_examples=150, derandomize=True)
@given(seeds, st.booleans())
def test_no_time_at_all_is_exact(seed, edges):
    given, finish, _ = drawn(seed, edges)
    got = solve(*given, 0.0)
    np.testing.assert_array_equal(got.finish, finish)
    assert got.outcome == (Outcome.starved if np.isinf(finish).any() else Outcome.solved)


@settings(max_examples=300, derandomize=True)
@given(seeds, st.booleans(), st.sampled_from([1e-5, 1e-3, 1e-2, 0.1, 1.0, 100.0]))
def test_what_cannot_end_never_does_and_time_goes_forward(seed, edges, part):
    # Flows over links of capacity 0 wait for ever, also where others end and start around them.
    (problem, size, start), finish, span = drawn(seed, edges)
    got = solve(problem, size, start, part * span)
    np.testing.assert_array_equal(np.isfinite(got.finish), np.isfinite(finish))
    assert np.all(got.finish >= start)
    np.testing.assert_array_equal(np.asarray(got.finish)[size == 0], start[size == 0])
    assert got.events <= 2 * F + 1
    assert got.outcome == (Outcome.starved if np.isinf(finish).any() else Outcome.solved)


@settings(max_examples=300, derandomize=True)
@given(seeds, st.booleans(), st.sampled_from([1e-4, 1e-3, 1e-2, 0.1]))
def test_how_far_off(seed, edges, part):
    # Rates that fall at an event which is not seen bring flows early, idle bandwidth brings them late, and errors
    # add up over events: in 6,000 draws of 12 flows single ones came 2 resolutions early and 10 late, the last one
    # between 0.15 early and 1.65 late.
    given, finish, span = drawn(seed, edges)
    ends, resolution = np.isfinite(finish), part * span or 1.0
    got, exact = np.asarray(solve(*given, resolution).finish)[ends], finish[ends]
    off = (got - exact) / resolution
    assert off.min(initial=0) > -4
    assert off.max(initial=0) < 20
    assert -0.5 < (got.max(initial=0) - exact.max(initial=0)) / resolution < 3


@pytest.mark.parametrize("seed", range(10))
def test_it_converges(seed):
    given, finish, span = drawn(seed, False)
    settled = finish[np.isfinite(finish)]
    off = [
        np.abs(np.asarray(solve(*given, span * part).finish)[np.isfinite(finish)] - settled).max()
        for part in (1e-1, 1e-3, 1e-5, 1e-7)
    ]
    assert off[-1] < 1e-5 * span
    assert off[1] < 20e-3 * span
    assert off[2] < 20e-5 * span


def test_one_link_by_hand():
    # 3 B/s for flows of 1, 2 and 9 bytes: exact ends are 1, 5/3 and 4. Looked at every 1.5 s at most: flow 0 ends at 1
    # and its bandwidth idles until 1.5; there 0.5 and 7.5 bytes are left at 1.5 B/s: flow 1 ends at 1.5 + 1/3, looked
    # at again at 3, where 7.5 - 2.25 bytes are left for 3 B/s: 4.75.
    problem = FlowProblem(np.array([3.0]), np.zeros((3, 1), int))
    np.testing.assert_allclose(exactly(problem, np.array([1.0, 2.0, 9.0])).finish, [1, 5 / 3, 4], rtol=1e-14)
    got = solve(problem, np.array([1.0, 2.0, 9.0]), np.zeros(3), 1.5)
    np.testing.assert_allclose(got.finish, [1, 1.5 + 1 / 3, 4.75], rtol=1e-14)
    assert got.events == 3


def test_a_start_is_an_event_of_its_own():
    # Alone until 0.5, though looked at every 10 s; from then on halves: flow 1 ends after 1 s, flow 0 goes on at half.
    problem = FlowProblem(np.array([2.0]), np.zeros((2, 1), int))
    got = solve(problem, np.array([4.0, 1.0]), np.array([0.0, 0.5]), 10.0)
    np.testing.assert_allclose(got.finish, [0.5 + 3.0, 1.5], rtol=1e-14)
    assert got.events == 2


def test_fewer_events():
    rng = np.random.default_rng(0)
    size = rng.uniform(1, 2, 100)
    problem = FlowProblem(np.ones(1), np.zeros((100, 1), int))
    exact, coarse = (completion_times(problem, size, resolution=r) for r in (None, size.sum() / 20))
    assert exact.events == 100
    assert coarse.events <= 21
    assert 0 <= float(coarse.finish.max() - exact.finish.max()) <= size.sum() / 20


def test_it_has_no_derivative():
    problem = FlowProblem(np.ones(1), np.zeros((2, 1), int))

    def last(size, resolution=None):
        return completion_times(problem, size, resolution=resolution).finish.max()

    size = jnp.array([1.0, 2.0])
    jax.make_jaxpr(jax.grad(last))(size)
    for derivative in (jax.grad, jax.jacfwd, lambda f: jax.jit(jax.grad(f))):
        for resolution in (0.0, 0.1):
            with pytest.raises(InputError, match="no derivative with a resolution; leave resolution at None"):
                jax.make_jaxpr(derivative(lambda size, r=resolution: last(size, r)))(size)
    jax.make_jaxpr(jax.grad(lambda x: x * last(size, 0.1)))(2.0)  # beside a derivative it may stand


def test_a_resolution_does_not_retrace_when_it_is_an_array():
    problem = FlowProblem(np.ones(1), np.zeros((2, 1), int))
    once = eqx.filter_jit(eqx.debug.assert_max_traces(completion_times, max_traces=1))
    for resolution in (0.0, 0.5, 2.0):
        once(problem, np.array([1.0, 2.0]), resolution=jnp.asarray(resolution))


@pytest.mark.parametrize("resolution", [-1.0, math.nan, math.inf])
def test_resolutions_that_are_none(resolution):
    problem = FlowProblem(np.ones(1), np.zeros((2, 1), int))
    with pytest.raises(InputError, match="resolution must be finite and not negative, got"):
        completion_times(problem, 1.0, resolution=resolution)
