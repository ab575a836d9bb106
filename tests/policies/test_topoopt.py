"""Circuits chosen once from expected demand: legal, connected, the same on every device, and where the demand is."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from mfabric_jax.fabric import Region
from mfabric_jax.fabric.topoopt import RING_NICS
from mfabric_jax.policies import topoopt, uniform
from tests.mistakes import refused

SERVERS = 6


@eqx.filter_jit
def circuits(demand, degree):
    region = Region(demand.shape[0], 400.0, degree)
    return topoopt(demand, region).circuits.checked(degree).count


def chosen(demand, degree):
    return np.asarray(circuits(jnp.asarray(demand, float), jnp.asarray(degree)))


def draw(seed, servers=SERVERS):
    rng = np.random.default_rng(seed)
    demand = 10.0 ** rng.uniform(0, 9, (servers, servers))
    if seed % 3 == 1:
        demand = rng.integers(0, 3, (servers, servers)).astype(float)  # ties and empty pairs
    if seed % 3 == 2:
        demand *= rng.random((servers, servers)) < 0.2
    return demand


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


def joined(count):
    reached = np.eye(len(count), dtype=bool)
    for _ in count:
        reached = reached | (reached.astype(int) @ (count > 0) > 0)
    return reached.all()


degrees = st.one_of(st.integers(0, 8), st.lists(st.integers(0, 8), min_size=SERVERS, max_size=SERVERS))


@settings(max_examples=100, derandomize=True)
@given(st.integers(0, 2**32 - 1), degrees)
def test_legal_and_what_plain_loops_choose(seed, degree):
    demand = draw(seed)
    count = chosen(demand, degree)  # `checked` refuses illegal ones
    np.testing.assert_array_equal(count, by_hand(demand, degree))
    assert np.issubdtype(count.dtype, np.integer)
    if np.min(degree) >= RING_NICS:
        assert joined(count)


def test_by_hand():
    # 4 servers of 4 NICs: the chain 01, 12, 23. Pairs 03: 8, 12: 6, 01: 5, 02: 1. First matching 03 and 12 (4 and 3
    # are left), second 01 (5); 2 and 3 have nothing for each other.
    demand = np.zeros((4, 4))
    demand[0, 3], demand[2, 1], demand[0, 1], demand[2, 0] = 8, 6, 5, 1
    want = np.zeros((4, 4), int)
    for i, j in ((0, 1), (1, 2), (2, 3), (0, 3), (1, 2), (0, 1)):
        want[i, j] += 1
        want[j, i] += 1
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
    # One pair unknown: nothing for it, and no endless loop. Infinite demand is just the heaviest.
    demand = draw(0)
    demand[0, 1] = np.nan
    assert chosen(demand, 6).sum(1).max() <= 6
    demand[0, 1] = np.inf
    assert chosen(demand, 6)[0, 1] == 5
    assert "demand must be [S S] with S = 4 servers, got [6, 6]" in refused(topoopt, draw(0), Region(4, 400.0))
