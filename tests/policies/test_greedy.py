"""The greedy allocation against plain loops under its three rules; what is legal; what `uniform` ignores."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mfabric_jax.fabric import Region
from mfabric_jax.policies import greedy, uniform
from tests.oracles.greedy import exact_loss
from tests.oracles.greedy import greedy as plain_greedy
from tests.policies.drawn import assert_legal

RULES = ("printed", "released", "next")
NIC_GBPS = 400.0
DEGREES = st.sampled_from([2, 3, 6, 8]).flatmap(
    lambda servers: st.one_of(
        st.integers(0, 8).map(lambda degree: [degree] * servers),
        st.lists(st.integers(0, 8), min_size=servers, max_size=servers),
    )
)


def region(servers, degree):
    """`degree` as an array: traced, so that no degree compiles anew."""
    return Region(servers=servers, nic_gbps=NIC_GBPS, optical_degree=jnp.asarray(degree))


@eqx.filter_jit
def circuits(rule, demand, where):
    return greedy(demand, where, rule=rule).circuits.count


def draw(seed, servers):
    """Demand [S S] with a diagonal that must not matter."""
    rng = np.random.default_rng(seed)
    shape = (servers, servers)
    kind = rng.integers(6)
    if kind == 0:
        demand = rng.integers(0, 3, shape).astype(float)  # ties and zeros
    elif kind == 1:
        demand = 10.0 ** rng.uniform(0, 12, shape)  # huge ranges
    elif kind == 2:
        demand = np.zeros(shape)
        demand[rng.integers(servers), rng.integers(servers)] = 5
    elif kind == 3:
        demand = rng.uniform(0, 1, shape) * (rng.random(shape) < 0.3)  # sparse
    elif kind == 4:
        demand = np.ones(shape)
    else:
        demand = np.outer(rng.zipf(1.6, servers), rng.zipf(1.6, servers)).astype(float)  # hot experts, many bytes
    return demand


@pytest.mark.parametrize("rule", RULES)
@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.integers(0, 2**32 - 1), DEGREES)
def test_agrees_with_plain_loops(rule, seed, degree):
    demand = draw(seed, len(degree))
    count = np.asarray(circuits(rule, demand, region(len(degree), degree)))
    np.testing.assert_array_equal(count, plain_greedy(demand, degree, rule))
    assert_legal(count, degree)


def test_the_default_is_the_printed_rule():
    demand = draw(5, 6)
    plan = greedy(demand, region(6, 6))
    np.testing.assert_array_equal(plan.circuits.count, circuits("printed", demand, region(6, 6)))
    assert plan.shares is None


def test_an_unknown_rule_is_named():
    with pytest.raises(ValueError, match="rule"):
        greedy(draw(0, 4), region(4, 6), rule="reversed")


def both(pairs, servers):
    """Demand that sends the given bytes one way, so that a pair's sum is what is given."""
    demand = np.zeros((servers, servers))
    for (i, j), wanted in pairs.items():
        demand[i, j] = wanted
    return demand


def upper(count):
    return {(i, j): int(count[i, j]) for i, j in np.argwhere(np.triu(count))}


def test_printed_by_hand():
    # Three servers, two NICs each; pairs 01: 9, 02: 4, 12: 2. All start at infinity: by demand 01, then 02 get a
    # circuit; server 0 is full, so 12 gets one. Nobody can take more.
    count = circuits("printed", both({(0, 1): 9.0, (0, 2): 4.0, (1, 2): 2.0}, 3), region(3, 2))
    assert upper(count) == {(0, 1): 1, (0, 2): 1, (1, 2): 1}


def test_next_by_hand():
    # Same demand: scores 9, 4, 2. 01 takes one (9/2 = 4.5 left), 01 again (servers 0 and 1 are full): 02, 12 get none.
    count = circuits("next", both({(0, 1): 9.0, (0, 2): 4.0, (1, 2): 2.0}, 3), region(3, 2))
    assert upper(count) == {(0, 1): 2}


def test_released_by_hand():
    # Four servers, two NICs; 01: 300, 02: 2, 23: 1. 01 takes one: 300/100 = 3, still the largest: a second. Servers 0
    # and 1 are full, 02 loses its score. 23 takes one (1/100), then the second (0.01/200).
    count = circuits("released", both({(0, 1): 300.0, (0, 2): 2.0, (2, 3): 1.0}, 4), region(4, 2))
    assert upper(count) == {(0, 1): 2, (2, 3): 2}
    # 'printed' serves all three pairs first: 01, 02 (server 0 full), 23; nobody else can take a second.
    count = circuits("printed", both({(0, 1): 300.0, (0, 2): 2.0, (2, 3): 1.0}, 4), region(4, 2))
    assert upper(count) == {(0, 1): 1, (0, 2): 1, (2, 3): 1}


def test_a_lone_pair_takes_every_circuit():
    for rule in RULES:
        assert upper(circuits(rule, both({(1, 3): 1e-3}, 4), region(4, 6))) == {(1, 3): 6}


def test_both_directions_count():
    # 01 sends 5 each way, 02 sends 8 one way: 10 > 8, so with one NIC each 01 gets it.
    demand = both({(0, 1): 5.0, (1, 0): 5.0, (0, 2): 8.0}, 3)
    for rule in RULES:
        assert upper(circuits(rule, demand, region(3, 1))) == {(0, 1): 1}


@pytest.mark.parametrize("rule", RULES)
def test_demand_in_any_unit_gives_the_same_circuits(rule):
    # Powers of two: the scaled comparison is exactly the same.
    for seed in range(20):
        demand = draw(seed, 8)
        want = circuits(rule, demand, region(8, 6))
        for factor in (2.0**-30, 2.0**40):
            np.testing.assert_array_equal(circuits(rule, demand * factor, region(8, 6)), want)


@pytest.mark.parametrize("rule", RULES)
def test_float32_stays_legal_and_serves_the_same_pairs_when_sums_are_exact(rule):
    for seed in range(20):
        demand = np.random.default_rng(seed).integers(0, 1000, (8, 8)).astype(np.float32)
        count = np.asarray(circuits(rule, demand, region(8, 6)))
        assert_legal(count, 6)
        if rule == "printed":
            np.testing.assert_array_equal(count.sum(), np.sum(plain_greedy(demand, 6, rule)))


def test_another_degree_does_not_retrace():
    def count(demand, where):
        return greedy(demand, where).circuits.count

    once = eqx.filter_jit(eqx.debug.assert_max_traces(count, max_traces=1))
    for degree in (0, 3, 8):
        where = eqx.tree_at(lambda r: r.optical_degree, region(5, 6), np.asarray(degree))
        once(draw(1, 5), jax.tree.map(np.asarray, where))


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
    pairs = list(itertools.combinations(range(4), 2))
    rng = np.random.default_rng(0)
    cases = [
        (both({pair: rng.random() for pair, some in zip(pairs, graph, strict=True) if some}, 4), degree)
        for graph in itertools.product([False, True], repeat=len(pairs))
        for degree in itertools.product([1, 2, 3], repeat=4)
    ]
    demands, degrees = (np.array(part) for part in zip(*cases, strict=True))
    count = jax.jit(jax.vmap(lambda demand, degree: circuits("printed", demand, region(4, degree))))(demands, degrees)
    for (demand, degree), circuits_ in zip(cases, np.asarray(count), strict=True):
        assert circuits_.sum() == np.sum(plain_greedy(demand, list(degree), loss=exact_loss)), (demand, degree)


@pytest.mark.parametrize("servers", [2, 3, 6, 7])
def test_uniform_is_legal_and_ignores_demand(servers):
    for degree in range(9):
        where = region(servers, degree)
        count = np.asarray(uniform(np.ones((servers, servers)), where).circuits.count)
        assert_legal(count, degree)
        for seed in range(3):
            np.testing.assert_array_equal(uniform(draw(seed, servers), where).circuits.count, count)
        # Pairs differ by one circuit at most; an even number of servers leaves no NIC idle.
        off = count[~np.eye(servers, dtype=bool)]
        assert off.max() - off.min() <= 1
        if servers % 2 == 0:
            np.testing.assert_array_equal(count.sum(axis=1), degree)
