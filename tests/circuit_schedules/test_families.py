"""Demand families: lines, supports, seeds."""

import numpy as np
import pytest

from mfabric_jax.circuit_schedules.families import FAMILIES, moe, one_hot, permutation, standard, zipf


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_the_busiest_line_is_one_and_seeds_tell_draws_apart(family):
    draws = [family(12, seed) for seed in (0, 0, 1)]
    np.testing.assert_array_equal(draws[0], draws[1])
    assert (draws[0] != draws[2]).any()
    for draw in draws:
        assert (np.diagonal(draw) == 0).all()
        assert (draw >= 0).all()
        assert max(draw.sum(0).max(), draw.sum(1).max()) == pytest.approx(1)


def test_standard_has_equal_lines_and_few_partners():
    draw = standard(32, 0)
    np.testing.assert_allclose([draw.sum(0), draw.sum(1)], 1)
    assert 12 < (draw > 0).sum(1).max() <= 16
    whole = standard(32, 0, heavy=2, light=3, share=0.8, noise=0.0)
    np.testing.assert_allclose(np.unique(whole[whole > 0].round(9))[0], 0.2 / 3)
    assert (whole > 0.39).sum() <= 64


def test_moe_without_noise_is_an_outer_product():
    draw = moe(6, 1, skew=0.8, senders=0.0, shape=1e9)
    shares = np.sort(draw.max(0))[::-1]
    np.testing.assert_allclose(shares / shares[0], np.arange(1, 7) ** -0.8, rtol=1e-3)
    both = moe(6, 1, skew=0.8, shape=1e9)
    np.testing.assert_allclose(both[0, 1] * both[2, 3], both[0, 3] * both[2, 1], rtol=1e-3)
    assert both.sum(1).max() / both.sum(1).min() > 2


def test_zipf_is_zipf_over_pairs():
    sizes = np.sort(zipf(8, 0, skew=0.5)[~np.eye(8, dtype=bool)])[::-1]
    ratios = sizes / sizes[0]
    assert ratios[-1] == pytest.approx(64**-0.5, rel=0.3)
    assert len(np.unique(sizes.round(12))) == 56


def test_permutation_and_one_hot():
    np.testing.assert_array_equal(permutation(7, 2).sum(0), np.ones(7))
    draw = one_hot(7, 2)
    np.testing.assert_array_equal(np.sort((draw > 0).sum(0)), [1] * 6 + [6])
