"""Every broad family is what its words say, for each key another draw, the same for the same key."""

import jax
import numpy as np
import pytest

from mfabric_jax.traffic.demand_families import BROAD, drawn_of

KEYS = jax.random.split(jax.random.key(3), 20)


@pytest.fixture(scope="module")
def drawn():
    return {name: np.asarray(drawn_of(KEYS, family, 8)) for name, family in BROAD.items()}


@pytest.mark.parametrize("family", BROAD)
def test_demand_is_finite_not_negative_and_between_servers(drawn, family):
    one = drawn[family]
    assert one.shape == (20, 8, 8)
    assert np.isfinite(one).all()
    assert (one >= 0).all()
    assert (one[:, np.arange(8), np.arange(8)] == 0).all()
    assert (one.sum((1, 2)) > 0).all()
    assert len(np.unique(one.sum((1, 2)))) > 10  # draws differ


def test_most_of_a_permutation_goes_to_one_partner_each(drawn):
    partner = drawn["near-permutation"].argmax(2)
    assert all(sorted(row) == list(range(8)) for row in partner)


def test_halves_send_to_each_other_alone(drawn):
    for one in drawn["bipartite"]:
        half = one[0] > 0
        assert half.sum() == 4
        assert ((one > 0) == (half[:, None] != half[None])).all()


def test_low_rank_and_hot_servers_stand_out(drawn):
    rest = np.stack([one + np.diag(np.full(8, np.nan)) for one in drawn["hot-rows"]])
    rows = np.sort(np.nanmedian(rest, axis=2), axis=1)
    assert (rows[:, -1] > 2.5 * rows[:, 0]).all()
    off = drawn["low-rank"][0][:4, 4:]  # no diagonal in it
    assert np.linalg.matrix_rank(off, tol=1e-4 * off.max()) == 3


def test_a_gate_selects_whole_tokens(drawn):
    assert (drawn["gate"] == np.round(drawn["gate"])).all()
