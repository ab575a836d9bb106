"""Circuits chosen once from expected demand: legal, connected, the same on every device, and where the demand is."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse.csgraph import connected_components

from mfabric_jax.fabric import Region
from mfabric_jax.fabric.nic_use import RING_NICS
from mfabric_jax.policies import topoopt, uniform
from tests.policies.drawn import SEEDS, any_degrees, hostile, skewed
from tests.routing.regions import pairs

SERVERS = 6


@eqx.filter_jit
def circuits(demand, degree):
    region = Region(demand.shape[0], 400.0, degree)
    return topoopt(demand, region).circuits.check_legal(degree).count


def chosen(demand, degree):
    return np.asarray(circuits(jnp.asarray(demand, float), jnp.asarray(degree)))


def by_hand(demand, degree):
    """Plain loops: a chain where both ends have two NICs, then matchings, heaviest pair first, served demand halved."""
    servers = len(demand)
    degree = np.broadcast_to(degree, servers)
    left, count = np.triu(demand + demand.T, 1), np.zeros((servers, servers), int)
    for i in range(servers - 1):
        if min(degree[i], degree[i + 1]) >= 2:
            count[i, i + 1] = count[i + 1, i] = 1
    free = np.maximum(degree - 2, 0)
    while True:
        taken = []
        while True:
            able = [i for i in range(servers) if free[i] > 0 and not any(i in pair for pair in taken)]
            pairs = [pair for pair in itertools.combinations(able, 2) if left[pair] > 0]
            if not pairs:
                break
            taken.append(max(pairs, key=lambda pair: left[pair]))  # the first of equals
        if not taken:
            return count
        for i, j in taken:
            count[i, j] += 1
            count[j, i] += 1
            free[i] -= 1
            free[j] -= 1
            left[i, j] /= 2


@given(SEEDS, st.integers(0, 8) | any_degrees(SERVERS))
def test_legal_and_what_plain_loops_choose(seed, degree):
    demand = hostile(seed, SERVERS)
    count = chosen(demand, degree)  # `checked` refuses illegal ones
    np.testing.assert_array_equal(count, by_hand(demand, degree))
    assert np.issubdtype(count.dtype, np.integer)
    if np.min(degree) >= RING_NICS:
        assert connected_components(count)[0] == 1


def test_by_hand():
    # 4 servers of 4 NICs: the chain 01, 12, 23. Pairs 03: 8, 12: 6, 01: 5, 02: 1. First matching 03 and 12 (4 and 3
    # are left), second 01 (5); 2 and 3 have nothing for each other.
    demand = pairs({(0, 3): 8, (2, 1): 6, (0, 1): 5, (2, 0): 1}, servers=4)
    want = pairs({(0, 1): 2, (1, 2): 2, (2, 3): 1, (0, 3): 1}, both=True, servers=4)
    np.testing.assert_array_equal(chosen(demand, 4), want)


def test_other_demands_and_settings():
    chain = np.eye(SERVERS, k=1, dtype=int)
    for degree in (2, 5, 8):  # no demand is a chain
        np.testing.assert_array_equal(chosen(np.zeros((SERVERS, SERVERS)), degree), chain + chain.T)
    for servers in (1, 2, 3):
        np.testing.assert_array_equal(chosen(np.ones((servers, servers)), 4), by_hand(np.ones((servers, servers)), 4))
    demand, region = np.arange(SERVERS**2).reshape(SERVERS, SERVERS), Region(SERVERS, 400.0, 5)
    for same in (demand, demand.astype(np.float32)):
        plan = topoopt(same, region, previous=uniform(same, region), key=jax.random.key(1))
        np.testing.assert_array_equal(plan.circuits.count, by_hand(demand.astype(float), 5))
        assert plan.shares is None


def test_unknown_and_infinite_demand():
    demand = skewed(0, SERVERS)
    demand[0, 1] = np.inf
    assert chosen(demand, 6)[0, 1] == 5, "just the heaviest pair"
    demand[0, 1] = np.nan
    with pytest.raises(ValueError, match="demand that is negative or NaN"):
        chosen(demand, 6)
