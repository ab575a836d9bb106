"""Demand that is hard on a policy, regions whose numbers are traced, and what every plan must keep to."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st

from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.routing import fluid_lower_bound

NIC_GBPS = 400.0
NIC = NIC_GBPS / 8 * 1e9  # bytes/s
ROUTINGS = ("unsplit", "split")
SEEDS = st.integers(0, 2**32 - 1)
SOME_EPS = st.sampled_from([0.0, 2.0])  # electrical NICs of every server


def any_degrees(servers, most=8):
    """Any optical NICs of each server."""
    return st.lists(st.integers(0, most), min_size=servers, max_size=servers)


@eqx.filter_jit
def times(counts, where, demand, routing):
    """Seconds of several sets of circuits."""
    return [fluid_lower_bound(where, Circuits(count), demand, routing=routing) for count in counts]


def region(servers, degree, electrical=2.0, dtype=float):
    """`degree` and `electrical` as arrays [S]: traced, so that no value compiles anew."""
    degrees = jnp.broadcast_to(jnp.asarray(degree), servers).astype(jnp.int32)
    electrical = jnp.broadcast_to(jnp.asarray(electrical, dtype), servers)
    return Region(servers, jnp.asarray(NIC_GBPS, dtype), degrees, electrical)


def hostile(seed, servers):
    """Zeros, one pair, ties, huge ranges, few pairs, hot receivers [S S], with a diagonal that must not matter."""
    rng = np.random.default_rng(seed)
    shape = servers, servers
    kind = rng.integers(7)
    if kind == 0:
        return rng.integers(0, 3, shape).astype(float)
    if kind == 1:
        return 10.0 ** rng.uniform(-3, 12, shape)
    if kind == 2:
        demand = np.zeros(shape)
        demand[rng.integers(servers), rng.integers(servers)] = 5
        return demand
    if kind == 3:
        return rng.uniform(0, 1, shape) * (rng.random(shape) < 0.3)
    if kind == 4:
        return np.ones(shape)
    if kind == 5:
        return np.outer(rng.zipf(1.6, servers), rng.zipf(1.6, servers)).astype(float)
    return np.zeros(shape)


def skewed(seed, servers):
    """Lognormal bytes, two thirds of the pairs silent [S S]: no ties."""
    rng = np.random.default_rng(seed)
    demand = 1e8 * rng.lognormal(0, 1, (servers, servers)) * (rng.random((servers, servers)) < 2 / 3)
    np.fill_diagonal(demand, 0)
    return demand


def assert_legal(count, degree):
    """Whole, symmetric, nobody joined to itself, within the degrees () or [S]."""
    count = np.asarray(count)
    assert np.issubdtype(count.dtype, np.integer)
    np.testing.assert_array_equal(count, count.T)
    np.testing.assert_array_equal(np.diagonal(count), 0)
    assert count.min() >= 0
    assert (count.sum(axis=1) <= degree).all()
