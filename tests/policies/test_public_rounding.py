"""`policies.rounded`: legal whatever the scores, by plain loops, the same in the network."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mfabric_jax import policies
from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.policies.network import PolicyNetwork
from mfabric_jax.policies.relaxed import soft_circuits
from mfabric_jax.policies.samples import normalise
from mfabric_jax.traffic.scenarios import expected_demand
from tests.mistakes import refused
from tests.oracles.greedy import greedy as plain_greedy
from tests.policies.drawn import SEEDS, any_degrees, hostile

SERVERS = 5


@jax.jit
def both_ways(scores, demand, degree):
    region = Region(SERVERS, 8.0, degree)
    return policies.round_scores(scores, region), policies.round_scores(scores, region, demand=demand)


@settings(max_examples=80, derandomize=True)
@given(SEEDS, any_degrees(SERVERS), st.sampled_from([jnp.float32, jnp.float64]))
def test_any_scores_give_legal_circuits(seed, degree, dtype):
    scores = np.random.default_rng(seed).normal(size=(SERVERS, SERVERS)) * 2.0 ** (seed % 120)
    scores.flat[seed % 25] = (np.inf, -np.inf)[seed % 2]
    for count in both_ways(jnp.asarray(scores, dtype), jnp.asarray(hostile(seed, SERVERS), dtype), np.asarray(degree)):
        assert jnp.issubdtype(count.dtype, jnp.integer)
        Circuits(np.asarray(count)).check_legal(np.asarray(degree))


def test_scores_are_dealt_as_by_plain_loops_and_their_unit_does_not_matter():
    for seed in range(20):
        scores = np.random.default_rng(seed).random((SERVERS, SERVERS))
        got = policies.round_scores(scores, Region(SERVERS, 8.0, 4))
        np.testing.assert_array_equal(got, plain_greedy(scores, 4, "next"))
        np.testing.assert_array_equal(policies.round_scores(scores * 2.0**30, Region(SERVERS, 8.0, 4)), got)


def test_a_network_rounds_by_the_same_function():
    network, region = PolicyNetwork(6, 1, key=jax.random.key(0)), Region(SERVERS, 8.0, 4)
    demand = jnp.asarray(np.random.default_rng(1).pareto(1.2, (SERVERS, SERVERS)) + 1, jnp.float32)
    seen, spread = expected_demand(demand, 0.3)
    soft = soft_circuits(network.logits(normalise(seen, region), region.degrees, spread), region.degrees)
    want = policies.round_scores(soft, region, demand=seen)
    np.testing.assert_array_equal(network(demand, region, sigma=0.3, share_steps=0).circuits.count, want)


@pytest.mark.parametrize("shape", [(4, 5), (5,), (2, 5, 5)])
def test_scores_of_another_shape_are_refused(shape):
    said = refused(policies.round_scores, np.ones(shape), Region(SERVERS, 8.0))
    assert said == f"scores must be [S S] with S = 5 servers, got {list(shape)}."
