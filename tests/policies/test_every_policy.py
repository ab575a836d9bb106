"""Every policy of the registry: legal whatever the demand and the degrees, compiled once, in batches as alone."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mfabric_jax.case.policies import NAMES as NAMES_OF_SETTINGS
from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.fabric.region import round_robin
from mfabric_jax.policies import REGISTRY, SETTLE_TIES, Plan, get_suitable, random_circuits, uniform
from mfabric_jax.policies.reads import BY_NAME
from tests.batches import assert_batch_is_its_loop
from tests.policies.drawn import SEEDS, SOME_EPS, any_degrees, assert_legal, hostile, region

SERVERS = 5
OWN_FILES = ("threshold", "local-search", "relaxed", "joint")  # with `hostile` demand too
NAMES = [name for name in REGISTRY if name not in OWN_FILES]
LEGAL = any_degrees(SERVERS)


@functools.cache
def planned(name):
    """Compiled once, as is shown here: demand, degrees, electrical NICs and a key are data."""

    def plan(demand, degrees, electrical, key):
        where = region(SERVERS, degrees, electrical)
        policy = get_suitable(name, routing="split")
        if name == "static":
            policy = functools.partial(policy, mean=demand)
        before = Plan(Circuits(jnp.zeros((SERVERS, SERVERS), jnp.int32)))
        return policy(demand, where, previous=before, key=key).circuits.count

    return jax.jit(eqx.debug.assert_max_traces(plan, max_traces=1))


@pytest.mark.parametrize("name", NAMES)
def test_circuits_are_legal_and_a_batch_equals_its_loop(name):
    if name in ("matching", "exact"):
        pytest.importorskip("scipy")
    cases = []

    @settings(max_examples=25, derandomize=True)
    @given(SEEDS, st.sampled_from([1e-9, 1.0, 1e6]), LEGAL, SOME_EPS)
    def legal(seed, scale, degrees, electrical):
        case = scale * hostile(seed, SERVERS), np.asarray(degrees), np.asarray(electrical), jax.random.key(0)
        count = planned(name)(*case)
        assert_legal(count, np.asarray(degrees))
        cases.append(case)

    legal()
    assert_batch_is_its_loop(planned(name), cases[-6:])


@eqx.filter_jit
def uniform_count(degree):
    return uniform(None, Region(len(degree), 400.0, degree)).circuits.count


def test_names_that_settings_know_are_those_of_the_registry():
    assert set(NAMES_OF_SETTINGS) == set(REGISTRY)
    assert set(BY_NAME) | set(SETTLE_TIES) <= set(REGISTRY)


def test_uniform_turn_by_turn_whatever_the_degrees():
    for servers in (4, 5, 8):
        rng, rounds = np.random.default_rng(servers), round_robin(servers)
        for degree in [*rng.integers(0, 2 * servers, (5, servers)), *np.full((9, servers), np.arange(9)[:, None])]:
            count = np.asarray(uniform_count(degree))
            least, most = (np.asarray(uniform_count(np.full(servers, end))) for end in (degree.min(), degree.max()))
            whole = degree == degree.max()
            assert_legal(count, degree)
            assert (least <= count).all()
            assert (count <= most).all()
            np.testing.assert_array_equal(count[whole][:, whole], most[whole][:, whole])  # as if nobody lost a NIC
            if whole.all():  # pairs differ by one at most; an even number of servers leaves no NIC idle
                assert np.ptp(count[~np.eye(servers, dtype=bool)]) <= 1
                assert servers % 2 or (count.sum(axis=1) == degree).all()
            if servers % 2 == 0:
                want = np.zeros((servers, servers), int)
                for turn in range(degree.max(initial=0)):
                    for i, j in np.argwhere(rounds[turn % len(rounds)]):
                        want[i, j] += turn < min(degree[i], degree[j])
                np.testing.assert_array_equal(count, want)


def test_random_circuits_are_many_legal_and_leave_no_nic_idle_that_could_be_used():
    drawn = jax.jit(jax.vmap(lambda key, degree: random_circuits(None, region(5, degree), key=key).circuits.count))
    keys, rng = jax.random.split(jax.random.key(5), 400), np.random.default_rng(5)
    even = np.full((400, 5), 6)  # the uniform circuits have 12 orders of these servers
    count = np.asarray(drawn(keys, even))
    assert len({one.tobytes() for one in count}) > 150
    np.testing.assert_array_equal(count.sum(2), even)
    np.testing.assert_allclose(count.mean(0)[~np.eye(5, dtype=bool)], 6 / 4, atol=0.3)  # every pair alike: 5 sigma
    degrees = rng.integers(0, 8, (400, 5)) + rng.integers(0, 30, (400, 5)) * (rng.random((400, 5)) < 0.1)
    for one, degree in zip(np.asarray(drawn(keys, degrees)), degrees, strict=True):
        assert_legal(one, degree)
        assert one.sum() // 2 == min(degree.sum() // 2, degree.sum() - degree.max())  # the most of any multigraph
