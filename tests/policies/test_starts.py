"""Searches that start from circuits: those that suffice stay with shares, others improve; plans kept by layer."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from jax import lax

from mfabric_jax import traffic
from mfabric_jax.evaluate.asking import _search_of
from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.fabric.region import NO_CIRCUITS
from mfabric_jax.policies import LayerPlans, Plan, get, uniform
from mfabric_jax.policies.samples import relay_limit
from mfabric_jax.policies.sample_average import joint, sample_average
from mfabric_jax.routing import fluid_lower_bound
from tests.batches import assert_batch_is_its_loop
from tests.policies.drawn import SEEDS, SOME_EPS, any_degrees, assert_legal, hostile

SERVERS = 5
EVEN = np.array(uniform(None, Region(SERVERS, 400.0, 4)).circuits.count)
FULL = {"steps": 60, "samples": 2}


def place(degrees, electrical):
    return Region(SERVERS, 400.0, degrees, electrical)


@jax.jit
@functools.partial(eqx.debug.assert_max_traces, max_traces=1)  # of all tests of this file
def again(demand, degrees, electrical, before):
    """The plan from earlier circuits, its time and the limit [s]."""
    plan = joint(demand, place(degrees, electrical), previous=Plan(Circuits(before)), start="previous")
    seconds = fluid_lower_bound(place(degrees, electrical), plan, demand, routing="relay")
    return plan, seconds, relay_limit(place(degrees, electrical), demand)


def plan(demand, before=EVEN, degrees=4, electrical=1.0):
    degrees = np.broadcast_to(degrees, SERVERS).astype(np.int32)
    return again(np.asarray(demand, float), degrees, np.asarray(electrical, float), np.asarray(before, np.int32))


@jax.jit
def anew(demand):
    found = joint(demand, place(jnp.full(SERVERS, 4), jnp.ones(())), **FULL)
    return fluid_lower_bound(place(4, 1.0), found, demand, routing="relay")


def chain(seed, steps, memory=0.95):
    """Demands whose logarithms walk."""
    rng = np.random.default_rng(seed)
    walk, out = rng.normal(0, 1.2, (SERVERS, SERVERS)), []
    for _ in range(steps):
        walk = memory * walk + np.sqrt(1 - memory**2) * rng.normal(0, 1.2, walk.shape)
        out.append(1e8 * np.exp(walk) * ~np.eye(SERVERS, dtype=bool))
    return out


def test_plans_along_chains_are_as_fast_as_of_the_whole_search():
    ratio, stayed = [], 0
    for seed in range(4):
        count = EVEN
        for demand in chain(seed, 10):
            found, seconds, limit = plan(demand, count)
            assert_legal(found.circuits.count, 4)
            assert seconds >= limit * (1 - 1e-6)
            ratio.append(float(seconds / anew(demand)))
            stayed += bool((np.asarray(found.circuits.count) == count).all())
            count = np.asarray(found.circuits.count)
    assert np.mean(ratio) < 1.003
    assert max(ratio) < 1.02
    assert 4 < stayed < 36


def ring(*order):
    count = np.zeros((SERVERS, SERVERS), np.int32)
    for i, j in zip(order, np.roll(order, -1), strict=True):
        count[i, j] += 1
        count[j, i] += 1
    return count


ALTERNATIVES = [EVEN, ring(0, 1, 2, 3, 4) + ring(0, 1, 2, 3, 4), ring(0, 2, 4, 1, 3) + ring(0, 3, 1, 4, 2)]


def test_circuits_that_suffice_are_the_result_whichever_they_are():
    # One pair of servers has bytes, and more NICs than are needed: with relays any connected circuits reach the bound.
    demand = np.zeros((SERVERS, SERVERS))
    demand[0, 1] = demand[1, 2] = 1e9
    enough = {}
    for before in ALTERNATIVES:
        found, seconds, limit = plan(demand, before)
        if seconds <= limit * 1.001:
            enough[before.tobytes()] = (np.asarray(found.circuits.count) == before).all()
    print(enough)
