"""Every policy of the registry keeps to the degrees, whatever the demand; searches are tested in their own files."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mfabric_jax.fabric import Circuits
from mfabric_jax.policies import REGISTRY, Plan, suited
from tests.policies.drawn import assert_legal, hostile, region

SERVERS = 5
OWN_FILES = ("threshold", "local-search", "relaxed", "joint")  # with `hostile` demand too
ON_THE_HOST = ("matching", "exact")


@functools.cache
def planned(name):
    """Compiled once: demand, degrees, electrical NICs and a key are data."""

    def plan(demand, degrees, electrical, key):
        where = region(SERVERS, degrees, electrical)
        policy = suited(name, routing="split")
        if name == "static":
            policy = functools.partial(policy, mean=demand)
        before = Plan(Circuits(jnp.zeros((SERVERS, SERVERS), jnp.int32)))
        return policy(demand, where, previous=before, key=key)

    return jax.jit(plan)


@pytest.mark.parametrize("name", [name for name in REGISTRY if name not in OWN_FILES])
@settings(max_examples=25, derandomize=True)
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([1e-9, 1.0, 1e6]),
    st.lists(st.integers(0, 8), min_size=SERVERS, max_size=SERVERS),
    st.sampled_from([0.0, 2.0]),
)
def test_circuits_are_symmetric_whole_and_within_every_degree(name, seed, scale, degrees, electrical):
    if name in ON_THE_HOST:
        pytest.importorskip("scipy")
    where = np.asarray(degrees), np.asarray(electrical)
    count = planned(name)(scale * hostile(seed, SERVERS), *where, jax.random.key(0)).circuits.count
    assert_legal(count, np.asarray(degrees))
