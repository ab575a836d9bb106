"""Matchings against all sets of pairs."""

import itertools
import sys

import numpy as np
import pytest

pytest.importorskip("scipy")
from mfabric_jax.policies._matching import matching
from tests.mistakes import refused
from tests.oracles import circuits as plain
from tests.policies.drawn import assert_legal, hostile, region, skewed
from tests.routing.regions import pairs


def upper(count):
    return {pair: int(count[pair]) for pair in itertools.combinations(range(len(count)), 2)}


def test_the_first_set_is_a_heaviest():
    for degree, seed in itertools.product(([1, 1, 1, 1], [2, 1, 2, 1], [2, 2, 2, 2]), range(10)):
        demand = 1 + skewed(seed, 4)
        count = upper(np.asarray(matching(demand, region(4, np.array(degree))).circuits.count))
        weight = {(i, j): demand[i, j] + demand[j, i] for i, j in count}
        first = sum(weight[pair] for pair, circuits in count.items() if circuits)
        want = plain.heaviest(weight, degree)
        # A later set may join pairs that the first left inactive, with the NICs that are left.
        assert first >= want * (1 - 1e-9)
        if max(degree) == 1:
            np.testing.assert_allclose(first, want, rtol=1e-9)


def test_by_hand():
    # 01: 5, 02: 4, 13: 4, one NIC each: the heaviest pair alone carries 5, the other two 8.
    demand = pairs({(0, 1): 5, (2, 0): 4, (1, 3): 4}, servers=4)
    count = upper(np.asarray(matching(demand, region(4, 1)).circuits.count))
    assert {pair for pair, circuits in count.items() if circuits} == {(0, 2), (1, 3)}
    # Three NICs. First 01, 02, 12, each one circuit; then, with one NIC left each, 01.
    demand = pairs({(0, 1): 9, (0, 2): 4, (1, 2): 2}, servers=3)
    count = upper(np.asarray(matching(demand, region(3, 3)).circuits.count))
    assert count == {(0, 1): 2, (0, 2): 1, (1, 2): 1}


def test_no_pair_with_free_nics_waits_and_none_gets_circuits_for_nothing(monkeypatch):
    for seed in range(30):
        demand, degree = hostile(seed, 6), np.random.default_rng(seed).integers(0, 9, 6)
        count = np.asarray(matching(demand, region(6, degree)).circuits.count)
        assert_legal(count, degree)
        spare, both = count.sum(1) < degree, demand + demand.T
        assert not (both[spare][:, spare] * ~np.eye(spare.sum(), dtype=bool) > 0).any()
        assert not ((count > 0) & (both == 0)).any()
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    said = refused(matching, np.ones((4, 4)), region(4, 2))
    assert said.startswith("policy 'matching' needs scipy.optimize")
    assert "pip install" in said
