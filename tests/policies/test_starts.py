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
from mfabric_jax.policies.sample_average import joint, sample_average
from mfabric_jax.policies.samples import relay_limit
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
    # One server sends: circuits with all of its NICs suffice, since all others are free to relay.
    demand = np.zeros((SERVERS, SERVERS))
    demand[0, 1:] = 2e9, 1e9, 1e9, 2e9
    for before in ALTERNATIVES:
        found, seconds, limit = plan(demand, before)
        np.testing.assert_array_equal(found.circuits.count, before)
        assert seconds <= limit * (1 + 1.1e-3)

        def proposal(seen, region, *, previous=None, key=None, before=before):
            np.testing.assert_allclose(seen, demand, rtol=1e-12)
            return Plan(Circuits(before))

        named = joint(demand, Region(SERVERS, 400.0, 4, 1.0), start=proposal)
        np.testing.assert_array_equal(named.circuits.count, before)
        np.testing.assert_allclose(named.shares, found.shares, atol=1e-6)
        both = joint(demand, Region(SERVERS, 400.0, 4, 1.0), start=proposal, previous=Plan(Circuits(ALTERNATIVES[0])))
        np.testing.assert_array_equal(both.circuits.count, ALTERNATIVES[0])  # as good, and there before
    named = joint(demand, Region(SERVERS, 400.0, 4, 1.0), start="uniform")
    np.testing.assert_array_equal(named.circuits.count, EVEN)


def test_what_is_enough_says_when_to_stop():
    demand, region = chain(5, 1)[0], Region(SERVERS, 400.0, 4, 1.0)
    loose = joint(demand, region, previous=Plan(Circuits(EVEN)), start="previous", enough=9.0)
    np.testing.assert_array_equal(loose.circuits.count, EVEN)
    found, seconds, _ = plan(demand, EVEN)
    assert (np.asarray(found.circuits.count) != EVEN).any()
    assert seconds < 0.95 * fluid_lower_bound(region, loose, demand, routing="relay")


@settings(max_examples=30)
@given(SEEDS, any_degrees(SERVERS), SOME_EPS)
def test_legal_and_whole_for_any_demand_degrees_and_circuits(seed, degrees, electrical):
    rng = np.random.default_rng(seed)
    before = rng.integers(-1, 4, (SERVERS, SERVERS)) if seed % 2 else EVEN
    found, seconds, limit = plan(hostile(seed, SERVERS), before, degrees, electrical)
    assert_legal(found.circuits.count, degrees)
    shares = np.asarray(found.shares)
    np.testing.assert_allclose(shares.sum(2), 1 - np.eye(SERVERS), atol=1e-6)
    assert shares.min() >= 0
    assert seconds >= limit * (1 - 1e-6)


def test_nothing_to_start_from_nothing_to_send_and_unknown_demand():
    nothing, demand = np.zeros((SERVERS, SERVERS)), chain(3, 1)[0]
    np.testing.assert_array_equal(plan(nothing, ALTERNATIVES[1])[0].circuits.count, ALTERNATIVES[1])
    lopsided = EVEN + np.eye(SERVERS, k=1, dtype=int)
    marked = np.where(np.eye(SERVERS) > 0, 0, NO_CIRCUITS)  # what is planned where demand is NaN
    for before in (lopsided, marked, 3 * EVEN, EVEN + np.eye(SERVERS, dtype=int)):
        assert_legal(plan(nothing, before)[0].circuits.count, 4)
        fresh, seconds, _ = plan(demand, before)
        assert_legal(fresh.circuits.count, 4)
        assert seconds <= 1.02 * anew(demand)
    first = joint(demand, Region(SERVERS, 400.0, 4, 1.0), start="previous")
    np.testing.assert_allclose(first.shares, plan(demand, EVEN)[0].shares, atol=1e-5)
    none = plan(demand, EVEN, 0)[0]
    assert not np.asarray(none.circuits.count).any()
    np.testing.assert_allclose(none.shares[..., -1], 1 - np.eye(SERVERS))
    unknown = demand.copy()
    unknown[0, 1] = np.nan
    found = plan(unknown)[0]
    assert found.circuits.count[0, 1] == found.circuits.count[1, 0] == NO_CIRCUITS
    assert np.isnan(found.shares[0, 1]).all()


def test_a_batch_equals_its_loop():
    degrees, ports = np.full(SERVERS, 4, np.int32), np.ones(())
    cases = [
        (jnp.asarray(demand), degrees, ports, jnp.asarray(ALTERNATIVES[n % 3], jnp.int32))
        for n, demand in enumerate(chain(1, 5))
    ]
    assert_batch_is_its_loop(lambda *case: again.__wrapped__.__wrapped__(*case)[0], cases, again_plan, 1e-6, 1e-6)


def again_plan(*case):
    return again(*case)[0]


def test_single_precision_stays_single():
    demand = chain(5, 1)[0]
    single = joint(demand.astype(np.float32), Region(SERVERS, 400.0, 4, 1.0), start="previous")
    assert single.shares is not None
    assert single.shares.dtype == np.float32
    double = plan(demand)
    assert double[0].shares.dtype == np.float64
    late = fluid_lower_bound(Region(SERVERS, 400.0, 4, 1.0), single, demand.astype(np.float32), routing="relay")
    np.testing.assert_allclose(late, double[1], rtol=5e-3)


@pytest.mark.parametrize("how", [{"routing": "split"}, {"routes": "fixed"}, {}])
def test_many_demands_start_from_circuits_too(how):
    demands, region = np.stack(chain(2, 3)), Region(SERVERS, 400.0, 4, 1.0)
    policy = functools.partial(sample_average, previous=Plan(Circuits(ALTERNATIVES[1])), start="previous", **how)
    better = policy(demands, region, rounds=2)
    assert_legal(better.circuits.count, 4)
    assert (np.asarray(better.circuits.count) != ALTERNATIVES[1]).any()
    np.testing.assert_array_equal(policy(0 * demands, region, rounds=2).circuits.count, ALTERNATIVES[1])
    form = {"split": None, "fixed": (5, 5, 7)}.get(next(iter(how.values()), ""), (3, 5, 5, 7))
    assert (None if better.shares is None else better.shares.shape) == form


def test_an_evaluator_does_not_search_without_the_start():
    assert _search_of(get("joint")) is not None
    assert _search_of(get("joint", start=None)) is not None
    assert _search_of(get("joint(start=previous)")) is None


# ------------------------------------------------------------------------------------------------------ kept by layer
def test_plans_are_kept_a_layer_in_a_scan():
    region, layers = Region(SERVERS, 400.0, 4, 1.0), 3
    order = np.array([0, 2, 0, 1, 2, 2], np.int32)

    def turning(demand, region, *, previous=None, key=None):
        """As a plan of what was planned before: circuits move on by one server."""
        return Plan(Circuits(jnp.roll(previous.circuits.count, demand[0, 1].astype(jnp.int32), (0, 1))))

    def step(kept, now):
        layer, demand = now
        plan, kept = kept.plan_layer(turning, layer, demand, region)
        return kept, plan.circuits.count

    first = LayerPlans(jnp.asarray(np.stack(ALTERNATIVES[1:] + ALTERNATIVES[1:2])))
    shifts = np.arange(1, 7)
    kept, counts = jax.jit(lambda first: lax.scan(step, first, (order, shifts[:, None, None] * np.ones((5, 5)))))(first)
    want = [np.asarray(count) for count in first.count]
    for layer, shift, count in zip(order, shifts, counts, strict=True):
        want[layer] = np.roll(want[layer], shift, (0, 1))
        np.testing.assert_array_equal(count, want[layer])
    np.testing.assert_array_equal(kept.count, want)
    even = LayerPlans.first(region, layers)
    np.testing.assert_array_equal(even.count, np.broadcast_to(EVEN, (3, SERVERS, SERVERS)))


def test_held_out_records_are_served_near_the_bound_from_plans_kept_a_layer(shared_data):
    trace, region = str(shared_data / "smartmoe_gate_trace"), Region(16, 400.0, 4, 1)
    layers, records = 4, 6
    demands = jnp.asarray(traffic.sampler(trace, "test").recorded_demands(16)[:records, :layers])
    policy = get("joint", start="previous", enough=0.005)

    def step(kept, now):
        layer, demand = now
        plan, kept = kept.plan_layer(policy, layer, demand, region)
        return kept, fluid_lower_bound(region, plan, demand, routing="relay") / relay_limit(region, demand)

    order = jnp.tile(jnp.arange(layers), records)
    run = jax.jit(lambda kept: lax.scan(step, kept, (order, demands.reshape(-1, 16, 16)))[1])
    over = np.asarray(run(LayerPlans.first(region, layers))).reshape(records, layers)
    assert over[0].mean() < 1.01
    assert over[1:].mean() <= 1.005
    assert over.max() < 1.03
