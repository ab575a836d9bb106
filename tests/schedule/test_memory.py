"""Policies that look at the demand alone are asked once for each: the same all-to-alls as block after block."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.policies import Plan, get, greedy
from mfabric_jax.schedule.exchange import exchanges_between, remembers
from tests.schedule import jobs

SCARCE = jobs.region(degree=5)


def attentive(demand, region, *, previous=None, key=None):
    """Greedy that looks at the circuits in place, to no effect."""
    count = greedy(demand, region).circuits.count
    return Plan(Circuits(count if previous is None else count + 0 * previous.circuits.count.astype(count.dtype)))


@eqx.filter_jit
def both(region, tokens):
    return [exchanges_between(jobs.DRAWN, region, tokens, policy) for policy in (greedy, attentive)]


def test_once_for_each_demand_is_what_block_after_block_gives():
    once, each = both(SCARCE, jobs.TOKENS)
    assert np.asarray(once.switch).any()
    assert not np.asarray(once.switch).all()
    for name in once._fields:
        np.testing.assert_allclose(getattr(once, name), getattr(each, name), rtol=1e-12, err_msg=name)


def test_who_looks_at_the_plan_in_place_or_the_key():
    demand, start = jnp.ones((4, 4), jnp.float32), jnp.zeros((4, 4), jnp.int32)
    gbps, nics, delay_s, efficiency = (jnp.asarray(x, jnp.float32) for x in (8.0, 2.0, 1.0, 1.0))
    single = Region(4, gbps, jnp.asarray(5, jnp.int32), nics, delay_s, efficiency)
    do = {"previous", "random", "joint", "local-search", "learned"}
    for name in {"greedy", "uniform", "index", "topoopt", "matching", *do}:
        assert remembers(get(name), single, demand, start, jax.random.key(0)) is (name in do), name
