"""Local search: its moves against all moves; the threshold rule against a plain one; both against all circuits."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

from mfabric_jax.fabric import Circuits
from mfabric_jax.policies import Plan, greedy, uniform
from mfabric_jax.policies.local_search import (
    BISECTIONS,
    Limit,
    best_move,
    count_changes,
    local_search,
    scale_demand,
    threshold,
)
from tests.oracles import circuits as plain
from tests.oracles.moves import beyond, moves_around, need, too_many
from tests.oracles.threshold import bisected
from tests.policies import drawn
from tests.policies.drawn import NIC, ROUTINGS, SEEDS, any_degrees, assert_legal, hostile, skewed, times
from tests.routing.regions import dealt, pairs

SERVERS = 5
NONE = np.zeros((SERVERS, SERVERS), np.int32)  # always some previous circuits: fewer programs


region = functools.partial(drawn.region, SERVERS)


@eqx.filter_jit
@functools.partial(eqx.debug.assert_max_traces, max_traces=9)  # of all tests here: most, routing, dtype
def circuits(demand, where, routing, previous=NONE, most=None):
    plan = Plan(Circuits(previous))
    return local_search(demand, where, routing=routing, previous=plan, most_changed=most, rounds=30).circuits.count


@eqx.filter_jit
@functools.partial(eqx.debug.assert_max_traces, max_traces=6)  # likewise: two of each routing, a batch, float32
def by_threshold(demand, where, routing, starts=4):
    return threshold(demand, where, routing=routing, starts=starts).circuits.count


def drawn_circuits(seed, degree):
    """Some circuits, at random, within the degrees."""
    return dealt(np.random.default_rng(seed), degree, 2).astype(np.int32)


@eqx.filter_jit
def moved(count, demand, where, at, routing, limit, favour):
    work, loose = scale_demand(demand, where), jnp.ones(count.shape, bool)
    return best_move(count, loose, favour, work, where.degrees, at, routing, limit)[0]


@pytest.mark.parametrize("most", [None, 2])
@pytest.mark.parametrize("routing", ROUTINGS)
def test_the_best_of_all_moves_is_made(routing, most):
    made = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        degree, port = rng.integers(1, 6, SERVERS), rng.integers(0, 3, SERVERS).astype(float)
        demand, count, where = skewed(seed, SERVERS), drawn_circuits(seed, degree), region(degree, port)
        at, favour = jnp.asarray(rng.uniform(0.05, 0.6)), jnp.asarray(rng.uniform(0.5, 1, SERVERS))
        origin = drawn_circuits(seed + 100, degree)
        limit = None if most is None else Limit(jnp.asarray(origin, jnp.int32), jnp.asarray(most, jnp.int32))
        got = np.asarray(moved(jnp.asarray(count, jnp.int32), demand, where, at, routing, limit, favour))
        size, before = (demand / demand.max()).tolist(), count.tolist()
        allowed = None if most is None else (origin.tolist(), most)
        far = beyond(before, size, float(at), routing, allowed) > 0
        late = []
        for server in range(SERVERS):
            too = sum(too_many(before, size, port, float(at), routing, server))
            active = [
                0 if routing == "unsplit" and n < need(size, float(at), server, j) else n
                for j, n in enumerate(before[server])
            ]
            too += far * float(at) * np.abs(np.array(active) - origin[server]).sum()
            late.append(too * favour[server])
        ends = moves_around(int(np.argmax(late)), before, size, degree.tolist(), float(at), routing, allowed)
        total = [
            sum(sum(too_many(end, size, port, float(at), routing, server)) for server in range(SERVERS))
            + float(at) * beyond(end, size, float(at), routing, allowed)
            for end in (got.tolist(), *ends)
        ]
        assert_legal(got, degree)
        if ends and max(late) > 0:
            np.testing.assert_allclose(total[0], min(total[1:]), rtol=1e-9, atol=1e-12)
            made += 1
        else:
            np.testing.assert_array_equal(got, count)
    assert made > 20


@pytest.mark.parametrize("routing", ROUTINGS)
@settings(max_examples=60, derandomize=True)
@given(SEEDS, any_degrees(SERVERS))
def test_any_demand_gets_legal_circuits_no_later_than_where_it_starts(routing, seed, degree):
    demand, where = hostile(seed, SERVERS), region(np.array(degree))
    previous = drawn_circuits(seed, degree)
    local, by_rule = circuits(demand, where, routing, previous), by_threshold(demand, where, routing)
    assert_legal(local, np.array(degree))
    assert_legal(by_rule, np.array(degree))
    first = greedy(demand, where, rule="next").circuits.count
    time, of_rule, of_greedy, before = times([local, by_rule, first, jnp.asarray(previous)], where, demand, routing)
    assert time <= min(of_greedy, before)
    assert of_rule <= of_greedy


@pytest.mark.parametrize("routing", ROUTINGS)
def test_close_to_the_best_circuits_there_are(routing):
    over = []
    for seed in range(12):
        demand = skewed(seed, SERVERS)
        size, port = demand.tolist(), [2.0] * SERVERS
        least = plain.best([2] * SERVERS, size, port, routing)
        counts = (np.asarray(find(demand, region(2), routing)).tolist() for find in (circuits, by_threshold))
        over.append([plain.paced(count, size, port, routing) / least for count in counts])
    local, by_rule = np.array(over).T
    assert np.min(over) >= 1 - 1e-12
    assert np.mean(local < 1 + 1e-9) > 0.8
    assert np.mean(local) < 1.01
    assert np.mean(by_rule) < 1.02


@pytest.mark.parametrize("routing", ROUTINGS)
def test_changes_no_more_circuits_than_it_may_and_few_help(routing):
    where, ratios = region(3), []
    previous = np.asarray(uniform(None, where).circuits.count)
    within_two = [c for c in plain.topologies([3] * SERVERS) if plain.differing(c, previous.tolist()) <= 2]
    for seed in range(8):
        demand = skewed(seed, SERVERS)
        found = [np.asarray(circuits(demand, where, routing, previous, np.int32(most))) for most in (0, 1, 2, 9)]
        for most, count in zip((0, 1, 2, 9), found, strict=True):
            assert_legal(count, 3)
            down = np.triu(np.maximum(previous - count, 0)).sum()
            assert down <= most
            assert np.triu(np.maximum(count - previous, 0)).sum() <= most
            assert count_changes(jnp.asarray(count), jnp.asarray(previous)) <= most
        np.testing.assert_array_equal(found[0], previous)
        size, port = demand.tolist(), [2.0] * SERVERS
        least = min(plain.paced(count, size, port, routing) for count in within_two)
        ratios.append(plain.paced(found[2].tolist(), size, port, routing) / least)
    assert min(ratios) >= 1 - 1e-12
    assert np.mean(ratios) < 1.08


def test_circuits_that_are_no_longer_legal_are_taken_down_first():
    demand, degree = skewed(2, SERVERS), np.array([1, 3, 3, 0, 3])
    previous = np.asarray(uniform(demand, region(4)).circuits.count)
    for most in (None, np.int32(0)):
        count = np.asarray(circuits(demand, region(degree), "split", previous, most))
        assert_legal(count, degree)
    assert (count <= previous).all()
    assert count.sum() >= 4


@pytest.mark.parametrize(
    ("find", "routing", "rtol", "off"), [(circuits, "split", 1e-9, 0.01), (by_threshold, "unsplit", 1e-12, 0.03)]
)
def test_a_batch_equals_its_loop_and_float32_finds_nearly_the_same_times(find, routing, rtol, off):
    demands, each, ratios = np.stack([skewed(seed, SERVERS) for seed in range(9)]), np.arange(9), []
    together = jax.jit(jax.vmap(lambda demand, degree: find(demand, region(degree), routing)))
    for count, demand, degree in zip(together(demands, each), demands, each, strict=True):
        alone = find(demand, region(degree), routing)
        single = find(jnp.asarray(demand, jnp.float32), region(degree, dtype=jnp.float32), routing)
        assert_legal(single, degree)
        time, same, near = times([count, alone, single], region(degree), demand, routing)
        np.testing.assert_allclose(time, same, rtol=rtol)
        ratios.append(float(near / time))
    assert 1 - off < np.mean(ratios) < 1 + off  # other noise: dtypes draw their own


@pytest.mark.parametrize("routing", ROUTINGS)
def test_the_first_start_is_the_plain_rule(routing):
    better = 0
    for seed in range(25):
        rng = np.random.default_rng(seed)
        demand, degree = skewed(seed, 5), rng.integers(0, 6, 5)
        port = rng.integers(1, 3, 5).astype(float)
        where = region(degree, port)
        first = np.asarray(greedy(demand, where, rule="next").circuits.count)
        got = by_threshold(demand, where, routing, starts=1)
        want = bisected(first.tolist(), (demand / NIC).tolist(), degree.tolist(), port.tolist(), routing, BISECTIONS)
        time, least = times([got, np.array(want)], where, demand, routing)
        np.testing.assert_allclose(time, least, rtol=1e-9)
        better += not np.array_equal(got, first)
    assert better > 8


def test_a_pair_takes_what_it_needs_at_once():
    # Two EPS NICs, four optical ones. 0 -> 1: 12, 0 -> 2 and 0 -> 3: 2 each. Four circuits for 01 end at 12/4 = 3, the
    # EPS carries the rest by 4/2 = 2; with three for 01 it would be 4. One by one, greedy gives one of them to 02.
    demand = pairs({(0, 1): 12, (0, 2): 2, (0, 3): 2}, servers=SERVERS)
    count = np.asarray(by_threshold(demand, region(4), "unsplit"))
    assert count[0].tolist() == [0, 4, 0, 0, 0]


def test_without_an_eps_every_pair_gets_a_circuit_whatever_the_unit():
    demand = pairs({(0, 1): 1, (0, 2): 100, (3, 4): 5}, servers=SERVERS)
    for routing in ROUTINGS:
        count = np.asarray(by_threshold(demand, region(3, 0.0), routing))
        assert (count[0, 1], count[0, 2], count[3, 4] >= 1) == (1, 2, True)
        want = by_threshold(skewed(1, 5), region(6), routing)
        for factor in (2.0**-40, 2.0**40):  # powers of two: the scaled comparison is exactly the same
            np.testing.assert_array_equal(by_threshold(skewed(1, 5) * factor, region(6), routing), want)
