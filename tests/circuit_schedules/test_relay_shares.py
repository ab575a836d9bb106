"""Shares of paths over several stages: hand cases, and every block arrives over what the stages carry."""

import numpy as np
import pytest

from mfabric_jax.circuit_schedules import relay_shares
from mfabric_jax.circuit_schedules.families import FAMILIES
from mfabric_jax.circuit_schedules.relay_shares import share_paths
from tests.circuit_schedules.arrivals import carries


def shift(servers, by):
    return np.roll(np.eye(servers), by, axis=1)


def test_two_stages_by_hand():
    """Four servers, a shift by 1 and then by 2: each carries its own pairs and those on the way to the third."""
    shares = share_paths(1 - np.eye(4), [shift(4, 1)[None], shift(4, 2)[None]], 1.0, 0.0)
    np.testing.assert_allclose(shares.loads, [2 * shift(4, 1), 2 * shift(4, 2)])
    np.testing.assert_allclose(shares.seconds, [2, 2])


def test_passes_over_a_ring_by_hand():
    """Blocks over distances 1, 2 and 3 take as many passes. On a ring of both directions 3 is 1 backwards."""
    one_way = share_paths(1 - np.eye(4), [shift(4, 1)[None]] * 3, 2.0, 0.0)
    assert one_way.seconds.sum() == pytest.approx((1 + 2 + 3) / 2)
    assert one_way.loads.sum() == pytest.approx(4 * 6)
    both_ways = share_paths(1 - np.eye(4), [(shift(4, 1) + shift(4, 3))[None]] * 2, 2.0, 0.0)
    assert both_ways.seconds.sum() == pytest.approx((1 + 2 + 1) / 2 / 2)


def test_packet_NICs_carry_last_hops():
    """A ring of one pass misses two of three pairs: 2 / 0.5 s on packet NICs, but 3 / (1 + 0.5) if only all could."""
    shares = share_paths(1 - np.eye(4), [shift(4, 1)[None]], 1.0, 0.5)
    np.testing.assert_allclose(shares.seconds, [4])
    np.testing.assert_allclose(shares.loads[0], 1 - np.eye(4))


def test_no_shares(monkeypatch):
    assert share_paths(1 - np.eye(4), [shift(4, 1)[None]] * 2, 1.0, 0.0) is None, "distance 3 takes three passes"
    monkeypatch.setattr(relay_shares, "MOST_VARIABLES", 10)
    assert share_paths(1 - np.eye(4), [shift(4, 1)[None]] * 3, 1.0, 0.0) is None, "too large"


@pytest.mark.parametrize("packet", [0.0, 0.3])
def test_every_block_arrives(packet):
    for family in ("moe", "zipf", "one-hot", "permutation"):
        for stages in ([[1, 2], [3]], [[1], [2], [4]], [[1]] * 4, [[1, 4]] * 2):
            demand = 1e9 * FAMILIES[family](5, 2)
            patterns = [np.array([shift(5, by) for by in own]) for own in stages]
            shares = share_paths(demand, patterns, 10.0, 10 * packet)
            assert carries(demand, shares.loads)
            assert not carries(demand, 0.9 * shares.loads)
            for load, pattern, seconds in zip(shares.loads, patterns, shares.seconds, strict=True):
                over = np.where(pattern.any(0), 0, load)
                assert max(over.sum(0).max(), over.sum(1).max()) <= 10 * packet * seconds * (1 + 1e-6)
                if not packet:
                    busy = sum((load * circuits).max() for circuits in pattern) / 10
                    assert busy == pytest.approx(seconds)
