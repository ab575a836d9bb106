"""Every policy of the registry keeps to the degrees, whatever the demand."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.policies import REGISTRY, Plan, suited

SERVERS = 5
SCALES = {"zeros": 0.0, "wide": 1.0, "tiny": 1e-9, "huge": 1e6}
KINDS = ("one pair", "ties", *SCALES)
QUICK = {
    "threshold": {"starts": 2},
    "local-search": {"rounds": 10},
    "relaxed": {"steps": 10, "samples": 2, "rounds": 5},
    "joint": {"steps": 10, "samples": 1, "rounds": 1},
}
ON_THE_HOST = ("matching", "exact")


def draw(kind, seed):
    """[S S] bytes; the diagonal must not matter."""
    rng, shape = np.random.default_rng(seed), (SERVERS, SERVERS)
    if kind == "one pair":
        return 1e-3 * (np.arange(SERVERS**2) == rng.integers(SERVERS**2)).reshape(shape)
    if kind == "ties":
        return rng.integers(0, 2, shape).astype(float)
    return SCALES[kind] * 10.0 ** rng.uniform(-3, 12, shape) * (rng.random(shape) < 0.7)


@functools.cache
def planned(name):
    """Compiled once: demand, degrees, electrical NICs and a key are data."""

    def plan(demand, degrees, electrical, key):
        region = Region(SERVERS, jnp.asarray(400.0), degrees, electrical)
        before = Plan(Circuits(jnp.zeros((SERVERS, SERVERS), jnp.int32)))
        policy = suited(name, routing="split", **QUICK.get(name, {}))
        if name == "static":
            policy = functools.partial(policy, mean=demand)
        return policy(demand, region, previous=before, key=key)

    return jax.jit(plan)


@pytest.mark.parametrize("name", REGISTRY)
@settings(max_examples=25, derandomize=True)
@given(
    st.sampled_from(KINDS),
    st.integers(0, 2**32 - 1),
    st.lists(st.integers(0, 8), min_size=SERVERS, max_size=SERVERS),
    st.sampled_from([0.0, 2.0]),
)
def test_circuits_are_symmetric_whole_and_within_every_degree(name, kind, seed, degrees, electrical):
    if name in ON_THE_HOST:
        pytest.importorskip("scipy")
    where = np.asarray(degrees), np.asarray(electrical)
    count = planned(name)(draw(kind, seed), *where, jax.random.key(0)).circuits.count
    assert np.issubdtype(count.dtype, np.integer)
    Circuits(np.asarray(count)).checked(np.asarray(degrees))
