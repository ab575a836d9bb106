"""Checks, folding, scaling and load statistics of token counts."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as nps

from mfabric_jax.checks import InputError
from mfabric_jax.traffic import Tokens

from .jobs import job


def tokens(rows):
    """[source, expert] as one iteration, layer and micro-batch."""
    return Tokens(np.asarray(rows)[None, None, None], "test")


def test_folding_adds_neighbours():
    folded = tokens([[1, 2, 3, 4, 5, 6]]).fold_experts(2)
    np.testing.assert_array_equal(folded.count[0, 0, 0], [[6, 15]])
    folded = tokens([[1, 2, 3, 4, 5, 6]]).fold_experts(3)
    np.testing.assert_array_equal(folded.count[0, 0, 0], [[3, 7, 11]])


def test_small_integers_do_not_overflow_when_folded():
    folded = tokens(np.array([[100, 100]], np.int8)).fold_experts(1)
    np.testing.assert_array_equal(folded.count[0, 0, 0], [[200]])


def test_scaling_keeps_shares_and_empty_rows():
    scaled = tokens([[1, 3], [0, 0], [2, 2]]).scaled_to(job(ep=2, experts=2, top_k=2))
    np.testing.assert_allclose(scaled.count[0, 0, 0], [[8, 24], [0, 0], [16, 16]])


def test_load_of_the_busiest_rank_by_hand():
    # Two ranks of two experts: rank 0 receives 1+2+5+0 = 8, rank 1 receives 3+0+0+1 = 4; mean 6.
    count = tokens([[1, 2, 3, 0], [5, 0, 0, 1]])
    np.testing.assert_allclose(count.rank_load_over_mean(2), [[[8 / 6]]])
    np.testing.assert_allclose(tokens([[0, 0, 0, 0]]).rank_load_over_mean(2), [[[1]]])


@given(count=nps.arrays(np.int64, (2, 1, 2, 3, 4), elements=st.integers(0, 50)))
def test_load_is_between_balanced_and_all_on_one(count):
    load = Tokens(count, "drawn").rank_load_over_mean(4)
    assert np.all((load >= 1 - 1e-12) & (load <= 4 + 1e-12))
    np.testing.assert_array_equal(Tokens(count, "drawn").rank_load_over_mean(1), 1)


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (np.ones((2, 2)), r"axes \[iteration, layer, micro_batch, source_rank, expert\], .* got shape \(2, 2\)"),
        (np.ones((1, 1, 0, 2, 2)), r"none empty, got shape \(1, 1, 0, 2, 2\)"),
        (np.array([[[[[1, -3]]]]]), r"not negative, got -3 at .* = \[0, 0, 0, 0, 1\]"),
        (np.array([[[[[np.nan, 1]]]]]), r"finite and not negative, got nan at .* = \[0, 0, 0, 0, 0\]"),
        (np.array([[[[[1, np.inf]]]]]), "got inf"),
        (np.array([[[[["many"]]]]]), "integers or reals, got dtype <U4"),
    ],
)
def test_impossible_counts_are_named(count, words):
    with pytest.raises(InputError, match=words):
        Tokens(count, "test")


def test_experts_that_do_not_fold_are_named():
    with pytest.raises(InputError, match=r"experts must divide the 6 experts of these tokens \(test\), got 4"):
        tokens([[1, 2, 3, 4, 5, 6]]).fold_experts(4)
    with pytest.raises(InputError, match="ep must divide the 6 experts"):
        tokens([[1, 2, 3, 4, 5, 6]]).rank_load_over_mean(5)
