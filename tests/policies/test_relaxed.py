"""Relaxed circuits: legal, no later than greedy on average, near the best of all; the objectives against plain ones."""

import functools
import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

from mfabric_jax.fabric import Region
from mfabric_jax.policies.greedy import greedy
from mfabric_jax.policies.paced import split_latest, unsplit_latest
from mfabric_jax.policies.relaxed import relaxed
from mfabric_jax.policies.samples import samples_of
from mfabric_jax.routing import fluid_lower_bound
from tests.batches import assert_batch_is_its_loop
from tests.oracles import circuits as plain
from tests.policies.drawn import SEEDS, SOME_EPS, any_degrees, assert_legal, hostile

SERVERS, NIC = 4, 50e9
QUICK = {"steps": 60, "samples": 2, "rounds": 20}
ROUTINGS = ("unsplit", "split")


@functools.partial(jax.jit, static_argnames="routing")
@functools.partial(eqx.debug.assert_max_traces, max_traces=len(ROUTINGS))  # of all tests of this file
def chosen(demand, degrees, electrical, key, *, routing):
    """The circuits, their paced time and greedy's [s]."""
    region = Region(SERVERS, 400.0, degrees, electrical)
    plan = relaxed(demand, region, key=key, routing=routing, **QUICK)
    first = greedy(demand, region, rule="next").circuits
    times = [fluid_lower_bound(region, circuits, demand, routing=routing) for circuits in (plan.circuits, first)]
    return plan.circuits.count, *times


def choose(demand, routing, degrees=3, electrical=1.0, seed=0):
    degrees = jnp.asarray(np.broadcast_to(degrees, SERVERS), jnp.int32)
    return chosen(jnp.asarray(demand), degrees, jnp.asarray(electrical, float), jax.random.key(seed), routing=routing)


@pytest.mark.parametrize("routing", ROUTINGS)
@settings(max_examples=60, derandomize=True)
@given(SEEDS, any_degrees(SERVERS), SOME_EPS)
def test_legal_for_any_demand(routing, seed, degrees, electrical):
    count, *_ = choose(hostile(seed, SERVERS).astype(float), routing, degrees, electrical)
    assert_legal(count, degrees)


@pytest.mark.parametrize("routing", ROUTINGS)
def test_near_the_best_of_all_circuits(routing):
    over, greedy_over = [], []
    for seed in range(6):
        demand = np.random.default_rng(seed).lognormal(0, 1.2, (SERVERS, SERVERS)) * (1 - np.eye(SERVERS)) * 1e9
        size, port = (demand / NIC).tolist(), [1.0] * SERVERS
        best = plain.best([3] * SERVERS, size, port, routing)
        count, seconds, first = choose(demand, routing)
        np.testing.assert_allclose(seconds, plain.paced(np.asarray(count).tolist(), size, port, routing), rtol=1e-9)
        over.append(float(seconds) / best)
        greedy_over.append(float(first) / best)
    assert min(over) > 1 - 1e-9
    assert np.mean(over) < 1.02
    assert np.mean(over) < np.mean(greedy_over)


@pytest.mark.parametrize(("routing", "latest"), [("split", split_latest), ("unsplit", unsplit_latest)])
def test_the_objective_at_whole_circuits_is_the_time(routing, latest):
    region = Region(SERVERS, 400.0, 3, 1.0)
    measured = jax.jit(lambda demand, count: latest(samples_of(demand[None], region), count, jnp.asarray(1e-4))[0])
    for seed, count in enumerate(itertools.islice(plain.topologies([3] * SERVERS), 3, None, 40)):
        demand = np.random.default_rng(seed).lognormal(0, 1.2, (SERVERS, SERVERS)) * (1 - np.eye(SERVERS))
        bound = max(demand.sum(0).max(), demand.sum(1).max()) / 4
        want = plain.paced(count, demand.tolist(), [1.0] * SERVERS, routing) / bound
        np.testing.assert_allclose(measured(demand, np.asarray(count, float)), want, rtol=2e-3)


def test_the_slope_of_split_time_is_that_of_its_differences():
    region, rng = Region(SERVERS, 400.0, 3, 1.0), np.random.default_rng(4)
    samples = samples_of(jnp.asarray(rng.lognormal(0, 1, (1, SERVERS, SERVERS))), region)
    count, way = rng.uniform(0.2, 1.5, (SERVERS, SERVERS)), rng.normal(size=(SERVERS, SERVERS))
    latest = jax.jit(lambda step: split_latest(samples, count + step * way, jnp.asarray(0.05))[0])
    slope = jax.jit(jax.grad(latest))(0.0)
    np.testing.assert_allclose(slope, (latest(1e-6) - latest(-1e-6)) / 2e-6, rtol=1e-5)


def test_a_batch_over_demands_and_regions_equals_its_loop():
    nics, keys = np.array([[6] * 4, [0, 1, 2, 3], [8] * 4], np.int32), jax.random.split(jax.random.key(1), 3)
    cases = [
        (jnp.asarray(hostile(seed, SERVERS), float), nics[n], np.ones(()), keys[n]) for n, seed in enumerate((1, 4, 8))
    ]
    assert_batch_is_its_loop(lambda *case: chosen(*case, routing="split")[0], cases)


def test_float32_without_a_key_and_shares_for_relay():
    demand, region = hostile(5, SERVERS).astype(np.float32), Region(SERVERS, 400.0, 3)
    plan = relaxed(demand, region, routing="relay", steps=60, samples=2)
    assert_legal(plan.circuits.count, 3)
    assert plan.shares is not None
    assert plan.shares.dtype == np.float32
    np.testing.assert_allclose(plan.shares.sum(2), 1 - np.eye(SERVERS), atol=1e-5)
    split = fluid_lower_bound(region, greedy(demand, region, rule="next").circuits, demand, routing="split")
    assert fluid_lower_bound(region, plan, demand, routing="relay") <= split
