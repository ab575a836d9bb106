"""The greedy allocation against plain loops under its three rules; what is legal."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mfabric_jax.policies import greedy
from tests.oracles.greedy import exact_loss
from tests.oracles.greedy import greedy as plain_greedy
from tests.policies.drawn import assert_legal, hostile, region
from tests.routing.regions import pairs

RULES = ("printed", "released", "next")
DEGREES = st.sampled_from([2, 3, 6, 8]).flatmap(
    lambda servers: st.one_of(
        st.integers(0, 8).map(lambda degree: [degree] * servers),
        st.lists(st.integers(0, 8), min_size=servers, max_size=servers),
    )
)


@eqx.filter_jit
def circuits(rule, demand, where):
    return greedy(demand, where, rule=rule).circuits.count


@pytest.mark.parametrize("rule", RULES)
@settings(max_examples=150, derandomize=True)
@given(st.integers(0, 2**32 - 1), DEGREES)
def test_agrees_with_plain_loops(rule, seed, degree):
    demand = hostile(seed, len(degree))
    count = np.asarray(circuits(rule, demand, region(len(degree), degree)))
    np.testing.assert_array_equal(count, plain_greedy(demand, degree, rule))
    assert_legal(count, degree)


def upper(count):
    return {(i, j): int(count[i, j]) for i, j in np.argwhere(np.triu(count))}


def test_by_hand():
    three, four = {(0, 1): 9.0, (0, 2): 4.0, (1, 2): 2.0}, {(0, 1): 300.0, (0, 2): 2.0, (2, 3): 1.0}
    lone, ways = {(1, 3): 1e-3}, {(0, 1): 5.0, (1, 0): 5.0, (0, 2): 8.0}
    for rule, sent, servers, degree, want in (
        # All start at infinity: by demand 01, then 02 get a circuit; server 0 is full, so 12 gets one.
        ("printed", three, 3, 2, {(0, 1): 1, (0, 2): 1, (1, 2): 1}),
        # Scores 9, 4, 2. 01 takes one (9/2 = 4.5 left), 01 again (servers 0 and 1 are full): 02, 12 get none.
        ("next", three, 3, 2, {(0, 1): 2}),
        # 01 takes one: 300/100 = 3, still the largest: a second. Servers 0 and 1 are full, 02 loses its score. 23
        # takes one (1/100), then the second (0.01/200).
        ("released", four, 4, 2, {(0, 1): 2, (2, 3): 2}),
        ("printed", four, 4, 2, {(0, 1): 1, (0, 2): 1, (2, 3): 1}),  # first a circuit for all three pairs
        *[(rule, lone, 4, 6, {(1, 3): 6}) for rule in RULES],
        *[(rule, ways, 3, 1, {(0, 1): 1}) for rule in RULES],  # both directions count: 10 > 8
    ):
        count = circuits(rule, pairs(sent, servers=servers), region(servers, degree))
        assert upper(count) == want, (rule, sent)


def test_demand_in_any_unit_gives_the_same_circuits():
    for seed, rule in itertools.product(range(20), RULES):
        demand = hostile(seed, 8)
        want = circuits(rule, demand, region(8, 6))
        for factor in (2.0**-30, 2.0**40):  # powers of two: the scaled comparison is exactly the same
            np.testing.assert_array_equal(circuits(rule, demand * factor, region(8, 6)), want)
    np.testing.assert_array_equal(
        greedy(demand, region(8, 6)).circuits.count, circuits("printed", demand, region(8, 6))
    )


def test_float32_stays_legal_and_serves_as_many_pairs_when_sums_are_exact():
    for seed, rule in itertools.product(range(20), RULES):
        demand = np.random.default_rng(seed).integers(0, 1000, (8, 8)).astype(np.float32)
        count = np.asarray(circuits(rule, demand, region(8, 6, dtype=jnp.float32)))
        assert_legal(count, 6)
        if rule == "printed":
            np.testing.assert_array_equal(count.sum(), np.sum(plain_greedy(demand, 6, rule)))


def test_demand_between_all_of_eight_servers_gives_24_circuits():
    # Columns alike, as in recordings without sources; balanced; few values; hot experts; no ties but at infinity.
    rng = np.random.default_rng(0)
    column = np.concatenate([np.ones((1, 8)), rng.random((400, 8)), rng.integers(1, 3, (400, 8))])
    hot = 10 ** rng.uniform(0, 6, (400, 8, 1))
    demands = np.concatenate([np.repeat(column[:, None, :], 8, 1), hot * hot.mT, rng.random((400, 8, 8)) + 0.01])
    count = np.asarray(jax.jit(jax.vmap(lambda demand: circuits("printed", demand, region(8, 6))))(demands))
    np.testing.assert_array_equal(count.sum((1, 2)), 2 * 24)
    assert_legal(count[0], 6)


def test_ties_leave_as_many_further_circuits_as_can_be_found_by_trying_all():
    """Every graph of demand between four servers, with 1 to 3 NICs each."""
    every = list(itertools.combinations(range(4), 2))
    rng = np.random.default_rng(0)
    cases = [
        (pairs({pair: rng.random() for pair, some in zip(every, graph, strict=True) if some}, servers=4), degree)
        for graph in itertools.product([False, True], repeat=len(every))
        for degree in itertools.product([1, 2, 3], repeat=4)
    ]
    demands, degrees = (np.array(part) for part in zip(*cases, strict=True))
    count = jax.jit(jax.vmap(lambda demand, degree: circuits("printed", demand, region(4, degree))))(demands, degrees)
    for (demand, degree), circuits_ in zip(cases, np.asarray(count), strict=True):
        assert circuits_.sum() == np.sum(plain_greedy(demand, list(degree), loss=exact_loss)), (demand, degree)
