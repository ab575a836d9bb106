"""Dollars per NIC, counted by hand, and the published ratios."""

import itertools
import math

import pytest

from mfabric_jax import InputError
from mfabric_jax.fabric import Electrical, Prices, Region, server_cost
from mfabric_jax.fabric.cost import REGIONAL_OCS, Attachment, tree

FIBRE = 0.3 * 500
LISTED = {100: (99, 659, 187), 200: (239, 1079, 374), 400: (659, 1499, 1090), 800: (1399, 2248, 1400)}


def fat_tree(gbps, **settings):
    return server_cost(Electrical("fat-tree", gbps, **settings), gbps)


def mfabric(gbps, **settings):
    return server_cost(Region(4, gbps, **settings), gbps)


@pytest.mark.parametrize(("gbps", "published"), [(100, 1.524), (200, 1.790), (400, 2.289), (800, 2.331)])
def test_fat_tree_over_mfabric(gbps, published):
    assert fat_tree(gbps) / mfabric(gbps) == pytest.approx(published, abs=5e-4)


def test_dollars_per_nic_at_400_by_hand():
    assert 1499 + 5 * 1090 + 6 * 659 + 3 * FIBRE == 11353
    assert tree().cost(400, Prices()) == pytest.approx(11353, rel=1e-12)
    assert 1499 + 659 + FIBRE + 520 == 2828
    assert REGIONAL_OCS.cost(400, Prices()) == pytest.approx(2828, rel=1e-12)
    assert fat_tree(400) == pytest.approx(8 * 11353, rel=1e-12)
    assert mfabric(400) == pytest.approx(6 * 2828 + 2 * 11353, rel=1e-12)


@pytest.mark.parametrize("gbps", LISTED)
@pytest.mark.parametrize("k", [1.0, 3.0, 4.0])
def test_oversubscribed_by_its_formula(gbps, k):
    transceiver, nic, port = LISTED[gbps]
    by_hand = nic + (1 + 4 / k) * port + (2 + 4 / k) * transceiver + (1 + 2 / k) * FIBRE
    fabric = Electrical("oversub-fat-tree", gbps, oversubscription=k)
    assert server_cost(fabric, gbps) == pytest.approx(8 * by_hand, rel=1e-12)


def test_parts_that_only_count_once():
    assert fat_tree(400, nics=4) == pytest.approx(4 * 11353)
    assert fat_tree(400, nic_use="pooled") == fat_tree(400)
    assert server_cost(Electrical("rail-optimized", 400.0), 400) == fat_tree(400)
    assert mfabric(400, optical_degree=0, electrical_nics=8) == pytest.approx(fat_tree(400))
    assert mfabric(400, optical_degree=3, electrical_nics=1) == pytest.approx(mfabric(400) / 2)
    panel = Attachment(panel_ports=1).cost(400, Prices())
    assert panel == pytest.approx(1499 + 659 + FIBRE + 100)


def test_the_bandwidth_of_the_fabric_itself_is_not_what_is_priced():
    assert server_cost(Region(4, 100.0), 400) == mfabric(400)


def test_between_listed_bandwidths_prices_are_straight_lines_on_log_axes():
    along = math.log(300 / 200) / math.log(2)
    for part, low, high in (("transceiver", 239, 659), ("nic", 1079, 1499), ("switch_port", 374, 1090)):
        by_hand = math.exp(math.log(low) + along * (math.log(high) - math.log(low)))
        assert Prices().at(part, 300) == pytest.approx(by_hand, rel=1e-12)
    # sqrt(100 x 200): the geometric mean of the neighbours.
    assert Prices().at("nic", math.sqrt(20000)) == pytest.approx(math.sqrt(659 * 1079), rel=1e-12)


@pytest.mark.parametrize("gbps", LISTED)
def test_listed_prices_are_exact(gbps):
    prices = tuple(Prices().at(part, gbps) for part in ("transceiver", "nic", "switch_port"))
    assert prices == pytest.approx(LISTED[gbps], rel=1e-12)


@pytest.mark.parametrize("gbps", [50, 99.9, 800.1, 1000])
def test_no_price_outside_the_list(gbps):
    with pytest.raises(InputError, match=rf"nic_gbps {gbps:g} has no price; .* from 100 to 800 Gbps\.$"):
        fat_tree(gbps)
    with pytest.raises(InputError, match=f"nic_gbps {gbps:g} has no price"):
        mfabric(gbps)


@pytest.mark.parametrize("cost", [fat_tree, mfabric])
def test_more_bandwidth_costs_more(cost):
    dollars = [cost(gbps) for gbps in range(100, 801, 25)]
    assert all(a < b for a, b in itertools.pairwise(dollars))


def test_own_prices():
    cheap = Prices(gbps=(100, 800), transceiver=(1, 1), nic=(1, 1), switch_port=(1, 1), fibre_per_metre=0)
    assert server_cost(Electrical("fat-tree", 400.0), 400, cheap) == 8 * (1 + 5 + 6)
    assert server_cost(Region(2, 400.0), 400, cheap) == 6 * (1 + 1 + 520) + 2 * 12
