"""The threshold rule against a plain one, and against greedy and all circuits there are."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mfabric_jax.fabric import Circuits
from mfabric_jax.policies import greedy
from mfabric_jax.policies._threshold import BISECTIONS, threshold
from mfabric_jax.routing import fluid_lower_bound
from tests.mistakes import refused
from tests.oracles import circuits as plain
from tests.oracles.threshold import bisected
from tests.policies.drawn import NIC, ROUTINGS, assert_legal, hostile, region, skewed

DEGREES = st.lists(st.integers(0, 8), min_size=5, max_size=5)


@eqx.filter_jit
@functools.partial(
    eqx.debug.assert_max_traces, max_traces=6
)  # of all tests of this file: two of each routing, a batch, float32
def circuits(demand, where, routing, starts=4):
    return threshold(demand, where, routing=routing, starts=starts).circuits.count


@eqx.filter_jit
def times(counts, where, demand, routing):
    return [fluid_lower_bound(where, Circuits(count), demand, routing=routing) for count in counts]


@pytest.mark.parametrize("routing", ROUTINGS)
@settings(max_examples=60, derandomize=True)
@given(st.integers(0, 2**32 - 1), DEGREES)
def test_any_demand_gets_legal_circuits_no_later_than_greedys(routing, seed, degree):
    demand, where = hostile(seed, 5), region(5, np.array(degree))
    count = circuits(demand, where, routing)
    assert_legal(count, np.array(degree))
    time, other = times([count, greedy(demand, where, rule="next").circuits.count], where, demand, routing)
    assert time <= other


@pytest.mark.parametrize("routing", ROUTINGS)
def test_the_first_start_is_the_plain_rule(routing):
    better = 0
    for seed in range(25):
        rng = np.random.default_rng(seed)
        demand, degree = skewed(seed, 5), rng.integers(0, 6, 5)
        port = rng.integers(1, 3, 5).astype(float)
        where = region(5, degree, port)
        first = np.asarray(greedy(demand, where, rule="next").circuits.count)
        got = circuits(demand, where, routing, starts=1)
        want = bisected(first.tolist(), (demand / NIC).tolist(), degree.tolist(), port.tolist(), routing, BISECTIONS)
        time, least = times([got, np.array(want)], where, demand, routing)
        np.testing.assert_allclose(time, least, rtol=1e-9)
        better += not np.array_equal(got, first)
    assert better > 8


@pytest.mark.parametrize("routing", ROUTINGS)
def test_close_to_the_best_circuits_there_are(routing):
    over = []
    for seed in range(12):
        demand = skewed(seed, 5)
        count = np.asarray(circuits(demand, region(5, 2), routing)).tolist()
        least = plain.best([2] * 5, demand.tolist(), [2.0] * 5, routing)
        over.append(plain.paced(count, demand.tolist(), [2.0] * 5, routing) / least)
    assert min(over) >= 1 - 1e-12
    assert np.mean(over) < 1.02


def test_a_pair_takes_what_it_needs_at_once():
    # Two EPS NICs, four optical ones. 0 -> 1: 12, 0 -> 2 and 0 -> 3: 2 each. Four circuits for 01 end at 12/4 = 3, the
    # EPS carries the rest by 4/2 = 2; with three for 01 it would be 4. One by one, greedy gives one of them to 02.
    demand = np.zeros((5, 5))
    demand[0, 1], demand[0, 2], demand[0, 3] = 12, 2, 2
    count = np.asarray(circuits(demand, region(5, 4), "unsplit"))
    assert count[0].tolist() == [0, 4, 0, 0, 0]


def test_without_an_eps_every_pair_gets_a_circuit_whatever_the_unit():
    demand = np.zeros((5, 5))
    demand[0, 1], demand[0, 2], demand[3, 4] = 1, 100, 5
    for routing in ROUTINGS:
        count = np.asarray(circuits(demand, region(5, 3, 0.0), routing))
        assert (count[0, 1], count[0, 2], count[3, 4] >= 1) == (1, 2, True)
        want = circuits(skewed(1, 5), region(5, 6), routing)
        for factor in (2.0**-40, 2.0**40):  # powers of two: the scaled comparison is exactly the same
            np.testing.assert_array_equal(circuits(skewed(1, 5) * factor, region(5, 6), routing), want)


def test_a_batch_equals_its_loop_and_float32_finds_nearly_the_same_times():
    demands, degrees, ratios = np.stack([skewed(seed, 5) for seed in range(9)]), np.arange(9), []
    together = jax.jit(jax.vmap(lambda demand, degree: circuits(demand, region(5, degree), "unsplit")))
    for count, demand, degree in zip(together(demands, degrees), demands, degrees, strict=True):
        alone = circuits(demand, region(5, degree), "unsplit")
        single = circuits(jnp.asarray(demand, jnp.float32), region(5, degree, dtype=jnp.float32), "unsplit")
        assert_legal(single, degree)
        time, same, near = times([count, alone, single], region(5, degree), demand, "unsplit")
        np.testing.assert_allclose(time, same, rtol=1e-12)
        ratios.append(float(near / time))
    assert 0.97 < np.mean(ratios) < 1.03  # other noise: dtypes draw their own


def test_mistakes_are_named():
    assert "routing 'relay' is unknown" in refused(threshold, np.ones((5, 5)), region(5, 2), routing="relay")
    assert "starts must be a whole number of at least 1" in refused(threshold, np.ones((5, 5)), region(5, 2), starts=0)
    assert "demand must be" in refused(threshold, np.ones((4, 5)), region(5, 2))
