"""Stars by the compiled loop of the host, against an engine of its own, exact fractions and the kernel of XLA."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mfabric_jax.flows import completion_times, star_completion
from mfabric_jax.flows.host.star import flow_ends, latest_ends
from mfabric_jax.flows.star import as_problem

NEAR = 1e-11


def by_the_engine(size, leaf, groups):
    """The end of every flow, by the general engine, which knows links and flows alone."""
    return np.asarray(completion_times(as_problem(leaf, groups), size.reshape(-1), engine="host").finish)


@st.composite
def stars(draw):
    """(size [N N], leaf [2 N], groups [2 G])"""
    n = draw(st.sampled_from((1, 2, 3, 4, 6, 8, 12)))
    racks = draw(st.sampled_from([racks for racks in (0, 1, 2, 3, 4) if racks == 0 or n % racks == 0]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    whole = draw(st.booleans())  # ties
    size = rng.integers(0, 4, (n, n)).astype(float) if whole else np.exp(rng.normal(0, 1.5, (n, n)))
    size = size * (rng.random((n, n)) < draw(st.sampled_from((0.2, 0.7, 1.0)))) * draw(st.sampled_from((1e-3, 1, 1e12)))
    leaf = rng.integers(1, 3, (2, n)).astype(float) if whole else 0.2 + rng.random((2, n))
    groups = (0.3 + rng.random((2, racks))) * (1 if whole else n / max(racks, 1))
    groups[:, rng.random(racks) < 0.2] = np.inf
    return size, leaf * draw(st.sampled_from((1.0, 1e9))), groups * (1e9 if leaf.max() > 10 else 1)


@settings(max_examples=150)
@given(stars())
def test_ends_as_the_general_engine_says(star):
    size, leaf, groups = star
    (got,), want = latest_ends(size[None], leaf, groups), by_the_engine(size, leaf, groups)
    np.testing.assert_allclose(got, want.max(initial=0), rtol=NEAR)
    np.testing.assert_allclose(flow_ends(size[None], leaf, groups)[0].ravel(), want, rtol=NEAR)


@pytest.mark.parametrize("racks", [0, 2])
def test_ends_as_the_kernel_of_xla_says(racks):
    rng = np.random.default_rng(racks)
    size, leaf = np.exp(rng.normal(0, 1, (6, 16, 16))), 0.5 + rng.random((2, 16))
    groups = 3 + rng.random((2, racks)) if racks else None
    kernel = jax.vmap(lambda one: star_completion(one, *leaf, *(() if groups is None else groups)).max())
    np.testing.assert_allclose(latest_ends(size, leaf, groups), kernel(size), rtol=NEAR)


def test_ports_of_a_group_whose_levels_differ_by_rounding_are_filled_again():
    """Ports of one group fill at one level, up to rounding: one that is taken to be lower would keep its rate."""
    size = np.array([[0.0, 1.41, 2.27], [0.27, 2.47, 1.56], [0.58, 1.79, 1.44]])
    leaf, groups = np.array([[0.70, 0.76, 1.25], [0.78, 0.99, 1.48]]), np.array([[1.64], [0.32]])
    want = by_the_engine(size, leaf, groups).max()
    np.testing.assert_allclose(latest_ends(size[None], leaf, groups), want, rtol=NEAR)


def test_two_flows_by_hand():
    """3 and 1 bytes leave one port of 1 byte/s: the short one ends at 2 s, the long one at 4 s."""
    assert latest_ends(np.array([[[0.0, 3, 1], [0, 0, 0], [0, 0, 0]]]), np.ones((2, 3))) == 4


def test_batched_equals_looped_and_leaves_its_inputs_alone():
    rng = np.random.default_rng(0)
    size, leaf = rng.random((5, 8, 8)).astype(np.float32), np.ones((2, 8), np.float32)
    given = size.copy(), leaf.copy()
    got = latest_ends(size, leaf)
    np.testing.assert_array_equal(got, [latest_ends(one[None], leaf)[0] for one in size])
    np.testing.assert_array_equal(size, given[0])
    np.testing.assert_array_equal(leaf, given[1])


def test_edges():
    ones = np.ones((2, 2))
    dead = np.array([[1.0, 1.0], [0.0, 1.0]])
    assert latest_ends(np.zeros((0, 2, 2)), ones).shape == (0,)
    assert latest_ends(np.zeros((1, 2, 2)), ones) == 0
    assert latest_ends(np.full((1, 1, 1), 3.0), np.full((2, 1), 2.0)) == 1.5
    assert latest_ends(np.ones((1, 2, 2)), dead) == np.inf
    assert (flow_ends(np.ones((1, 2, 2)), dead) == np.inf).all()
    assert latest_ends(np.array([[[0, 1.0], [0, 1.0]]]), dead) == 2  # nothing crosses the dead port
    assert latest_ends(np.array([[[0, 1.0], [0, 0]]]), ones, np.zeros((2, 1))) == np.inf
    got = latest_ends(np.array([[[np.nan, 1], [1, 1]], [[np.inf, 1], [1, 1]], [[1, 1], [1, 1.0]]]), ones)
    assert np.isnan(got[:2]).all()
    assert got[2] == 2
    assert np.isnan(latest_ends(np.ones((1, 2, 2)), np.full((2, 2), np.nan)))
