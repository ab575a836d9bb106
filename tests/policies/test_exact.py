"""Exact circuits against all circuits there are, matchings against all sets of pairs."""

import itertools
import sys

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.policies import greedy_next
from mfabric_jax.routing import fluid_lower_bound
from tests.mistakes import check_refused
from tests.oracles.relay_programme import best_relay_shares
from tests.routing.regions import pairs

pytest.importorskip("scipy")
from mfabric_jax.policies.exact import exact, exact_circuits, matching
from tests.oracles import circuits as plain
from tests.policies.drawn import NIC, ROUTINGS, SEEDS, any_degrees, assert_legal, hostile, region, skewed

paced = eqx.filter_jit(fluid_lower_bound)


def drawn(seed, servers, most):
    """Demand, degrees and EPS NICs, all of them unequal."""
    rng = np.random.default_rng(seed)
    return skewed(seed, servers), rng.integers(1, most + 1, servers), rng.integers(0, 3, servers).astype(float)


@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize(("servers", "most", "cases"), [(4, 4, 12), (5, 2, 8)])
def test_no_circuits_are_better(routing, servers, most, cases):
    for seed in range(cases):
        demand, degree, port = drawn(seed, servers, most)
        where = region(servers, degree, port)
        count, time, bound = exact_circuits(where, demand, routing=routing)
        want = plain.best(degree.tolist(), (demand / NIC).tolist(), port.tolist(), routing)
        np.testing.assert_allclose(time, want, rtol=3e-6)
        if np.isfinite(want):
            assert time * (1 - 3e-6) <= bound <= time
            np.testing.assert_allclose(paced(where, Circuits(count), demand, routing=routing), time, rtol=1e-9)
        assert_legal(count, degree)


@pytest.mark.parametrize("efficiency", [1.0, 0.6])
def test_no_circuits_are_better_with_relays(efficiency):
    for seed in range(4):
        demand, degree, _ = drawn(seed, 4, 2)
        where = Region(4, 400.0, jnp.asarray(degree), jnp.asarray([1.0, 2, 1, 1]), relay_efficiency=efficiency)
        plan = exact(demand, where, routing="relay")
        _, time, bound = exact_circuits(where, demand, routing="relay")
        want = min(
            best_relay_shares(where, Circuits(np.array(count)), demand)[1]
            for count in plain.topologies(degree.tolist())
        )
        np.testing.assert_allclose([time, bound], want, rtol=1e-5)
        np.testing.assert_allclose(paced(where, plan, demand, routing="relay"), want, rtol=1e-5)
        assert_legal(plan.circuits.count, degree)


@settings(max_examples=25, derandomize=True)
@given(SEEDS, any_degrees(4, most=3))
def test_any_demand_gets_legal_circuits_and_shares(seed, degree):
    plan = exact(hostile(seed, 4), region(4, np.array(degree)), routing="relay", seconds=5.0)
    assert_legal(plan.circuits.count, np.array(degree))
    np.testing.assert_allclose(np.asarray(plan.shares).sum(2)[~np.eye(4, dtype=bool)], 1, rtol=1e-6)


def test_float32_says_the_same():
    for seed in range(3):
        demand = skewed(seed, 4)
        single = exact(jnp.asarray(demand, jnp.float32), region(4, 3, dtype=jnp.float32), routing="split")
        double = exact(demand, region(4, 3), routing="split")
        times = [paced(region(4, 3), plan, demand, routing="split") for plan in (single, double)]
        np.testing.assert_allclose(*times, rtol=1e-5)


def test_known_circuits_are_never_lost_and_bytes_without_a_way_take_forever():
    demand, where = skewed(3, 5), region(5, 3)
    count, time, bound = exact_circuits(where, demand, routing="split", seconds=1e-6)
    first = paced(where, greedy_next(demand, where), demand, routing="split")
    assert bound <= time <= first * (1 + 1e-9)
    np.testing.assert_allclose(paced(where, Circuits(count), demand, routing="split"), time, rtol=1e-9)
    assert exact_circuits(region(4, 1, 0.0), np.ones((4, 4)), routing="unsplit")[1:] == (np.inf, np.inf)


# ----------------------------------------------------------------------------------------------------------- matchings


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


def test_no_pair_with_free_nics_waits_and_none_gets_circuits_for_nothing():
    for seed in range(30):
        demand, degree = hostile(seed, 6), np.random.default_rng(seed).integers(0, 9, 6)
        count = np.asarray(matching(demand, region(6, degree)).circuits.count)
        assert_legal(count, degree)
        spare, both = count.sum(1) < degree, demand + demand.T
        assert not (both[spare][:, spare] * ~np.eye(spare.sum(), dtype=bool) > 0).any()
        assert not ((count > 0) & (both == 0)).any()


@pytest.mark.parametrize("policy", [exact, matching])
def test_without_scipy_the_sentence_says_how_to_install_it(policy, monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    words = rf"policy '{policy.__name__}' needs scipy.optimize.*pip install"
    check_refused(words, policy, np.ones((4, 4)), region(4, 3))
