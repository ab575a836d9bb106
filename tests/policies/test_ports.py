"""Servers with unequal optical degrees, as NIC failures leave them."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.fabric.circuits import round_robin
from mfabric_jax.policies import greedy, uniform
from tests.policies.drawn import assert_legal
from tests.policies.test_greedy import DEGREES, draw


@eqx.filter_jit
def circuits(policy, demand, degree, **named):
    where = Region(servers=len(demand), nic_gbps=400.0, optical_degree=degree)
    return policy(demand, where, **named).circuits.count


@settings(max_examples=100, derandomize=True)
@given(DEGREES)
def test_uniform_is_legal_and_gives_every_server_what_it_would_have_among_the_least(degree):
    servers, degree = len(degree), np.array(degree)
    demand = np.zeros((servers, servers))
    count = np.asarray(circuits(uniform, demand, degree))
    assert_legal(count, degree)
    Circuits(count).checked(degree)
    least, most = (np.asarray(circuits(uniform, demand, at)) for at in (degree.min(), degree.max()))
    assert (least <= count).all()
    assert (count <= most).all()
    # Two servers that lost nothing are joined as if nobody had lost anything.
    whole = degree == degree.max()
    both = whole[:, None] & whole[None, :]
    np.testing.assert_array_equal(count[both], most[both])


def test_uniform_turn_by_turn():
    for servers in (4, 6, 8):
        rng, rounds = np.random.default_rng(servers), round_robin(servers)
        for _ in range(5):
            degree = rng.integers(0, 2 * servers, servers)
            want = np.zeros((servers, servers), int)
            for turn in range(degree.max(initial=0)):
                for i, j in np.argwhere(rounds[turn % len(rounds)]):
                    want[i, j] += turn < min(degree[i], degree[j])
            np.testing.assert_array_equal(circuits(uniform, np.zeros((servers, servers)), degree), want)


@pytest.mark.parametrize("policy", [greedy, uniform])
def test_equal_degrees_are_one_degree(policy):
    for servers in (2, 5, 8):
        for degree in (0, 3, 6):
            demand = draw(degree, servers)
            one = circuits(policy, demand, np.asarray(degree))
            each = circuits(policy, demand, np.full(servers, degree))
            assert one.dtype == each.dtype
            np.testing.assert_array_equal(one, each)


@pytest.mark.parametrize("policy", [greedy, uniform])
def test_a_server_without_ports_gets_no_circuit(policy):
    demand = np.ones((5, 5))
    count = np.asarray(circuits(policy, demand, np.array([6, 0, 6, 6, 1])))
    assert count[1].sum() == 0
    assert count[4].sum() <= 1
    assert count[0, 2] >= 1


def test_too_many_circuits_at_one_server_are_named():
    count = np.array([[0, 2, 1], [2, 0, 1], [1, 1, 0]])  # degrees 3, 3, 2
    Circuits(count).checked(np.array([3, 3, 2]))
    with pytest.raises(Exception, match="more circuits at a server than its optical degree"):
        Circuits(count).checked(np.array([3, 2, 3]))


@pytest.mark.parametrize("policy", [greedy, uniform])
def test_a_batch_of_regions_equals_its_loop(policy):
    rng = np.random.default_rng(0)
    demands, degrees = np.stack([draw(seed, 6) for seed in range(8)]), rng.integers(0, 8, (8, 6))
    regions = Region(servers=6, nic_gbps=400.0, optical_degree=6)
    regions = eqx.tree_at(lambda r: r.optical_degree, regions, jnp.asarray(degrees))
    in_axes = jax.tree.map(lambda leaf: 0 if np.ndim(leaf) else None, regions)
    together = jax.jit(jax.vmap(lambda d, r: policy(d, r).circuits.count, in_axes=(0, in_axes)))(demands, regions)
    for index in range(8):
        np.testing.assert_array_equal(together[index], circuits(policy, demands[index], degrees[index]))
