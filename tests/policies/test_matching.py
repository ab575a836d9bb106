"""Matchings against all sets of pairs."""

import itertools
import sys

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("scipy")
from mfabric_jax.policies._matching import matching
from tests.oracles import circuits as plain
from tests.policies.drawn import assert_legal, hostile, region, skewed


def upper(count):
    return {pair: int(count[pair]) for pair in itertools.combinations(range(len(count)), 2)}


@pytest.mark.parametrize("degree", [[1, 1, 1, 1], [2, 1, 2, 1], [2, 2, 2, 2]])
def test_the_first_set_is_a_heaviest(degree):
    for seed in range(10):
        demand = 1 + skewed(seed, 4)
        count = upper(np.asarray(matching(demand, region(4, np.array(degree))).circuits.count))
        weight = {(i, j): demand[i, j] + demand[j, i] for i, j in count}
        first = sum(weight[pair] for pair, circuits in count.items() if circuits)
        want = plain.heaviest(weight, degree)
        # A later set may join pairs that the first left inactive, with the NICs that are left.
        assert first >= want * (1 - 1e-9)
        if max(degree) == 1:
            np.testing.assert_allclose(first, want, rtol=1e-9)


def test_not_greedy():
    # 01: 5, 02: 4, 13: 4, one NIC each: the heaviest pair alone carries 5, the other two 8.
    demand = np.zeros((4, 4))
    demand[0, 1], demand[2, 0], demand[1, 3] = 5, 4, 4
    count = upper(np.asarray(matching(demand, region(4, 1)).circuits.count))
    assert {pair for pair, circuits in count.items() if circuits} == {(0, 2), (1, 3)}


def test_sets_by_hand():
    # Three NICs. First 01, 02, 12, each one circuit; then, with one NIC left each, 01.
    demand = np.zeros((3, 3))
    demand[0, 1], demand[0, 2], demand[1, 2] = 9, 4, 2
    count = upper(np.asarray(matching(demand, region(3, 3)).circuits.count))
    assert count == {(0, 1): 2, (0, 2): 1, (1, 2): 1}


@settings(max_examples=60, derandomize=True)
@given(st.integers(0, 2**32 - 1), st.lists(st.integers(0, 8), min_size=6, max_size=6))
def test_any_demand_gets_legal_circuits_that_leave_no_pair_waiting(seed, degree):
    demand = hostile(seed, 6)
    count = np.asarray(matching(demand, region(6, np.array(degree))).circuits.count)
    assert_legal(count, np.array(degree))
    spare = count.sum(1) < degree
    both = demand + demand.T
    assert not (both[spare][:, spare] * ~np.eye(spare.sum(), dtype=bool) > 0).any()
    assert not ((count > 0) & (both == 0)).any()


def test_a_batch_equals_its_loop():
    demands, degrees = np.stack([skewed(seed, 5) for seed in range(4)]), np.arange(1, 5)
    one = jax.jit(lambda demand, degree: matching(demand, region(5, degree)).circuits.count)
    together = jax.jit(jax.vmap(one))(demands, degrees)
    for index in range(4):
        np.testing.assert_array_equal(together[index], one(demands[index], degrees[index]))


def test_without_scipy_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    with pytest.raises(ValueError, match=r"policy 'matching' needs scipy.optimize.*pip install"):
        matching(np.ones((4, 4)), region(4, 2))
