"""Local search: its moves against all moves, its results against all circuits there are."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mfabric_jax.fabric import Circuits
from mfabric_jax.policies import Plan, greedy, uniform
from mfabric_jax.policies._local_search import improved, local_search
from mfabric_jax.policies._steps import scaled
from mfabric_jax.policies.moves import Limit, best_move, changed
from mfabric_jax.routing import fluid_lower_bound
from tests.mistakes import refused
from tests.oracles import circuits as plain
from tests.oracles.moves import beyond, moves_around, need, too_many
from tests.policies import drawn
from tests.policies.drawn import ROUTINGS, assert_legal, hostile, skewed

DEGREES = st.lists(st.integers(0, 8), min_size=5, max_size=5)
SERVERS = 5
NONE = np.zeros((SERVERS, SERVERS), np.int32)  # always some previous circuits: fewer programs


region = functools.partial(drawn.region, SERVERS)


@eqx.filter_jit
@functools.partial(eqx.debug.assert_max_traces, max_traces=9)  # of all tests of this file: most, routing, dtype
def circuits(demand, where, routing, previous=NONE, most=None):
    plan = Plan(Circuits(previous))
    return local_search(demand, where, routing=routing, previous=plan, most_changed=most, rounds=30).circuits.count


@eqx.filter_jit
def times(counts, where, demand, routing):
    return [fluid_lower_bound(where, Circuits(count), demand, routing=routing) for count in counts]


def drawn_circuits(seed, degree):
    """Some circuits, at random, within the degrees."""
    rng = np.random.default_rng(seed)
    count, free = NONE.copy(), np.array(degree)
    for _ in range(rng.integers(12)):
        i, j = rng.choice(SERVERS, 2, replace=False)
        if free[i] and free[j]:
            count[[i, j], [j, i]] += 1
            free[[i, j]] -= 1
    return count


@eqx.filter_jit
def moved(count, demand, where, at, routing, limit, favour):
    work, loose = scaled(demand, where), jnp.ones(count.shape, bool)
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
@settings(max_examples=50, derandomize=True)
@given(st.integers(0, 2**32 - 1), DEGREES)
def test_any_demand_gets_legal_circuits_no_later_than_where_it_starts(routing, seed, degree):
    demand, where = hostile(seed, SERVERS), region(np.array(degree))
    previous = drawn_circuits(seed, degree)
    count = circuits(demand, where, routing, previous)
    assert_legal(count, np.array(degree))
    first = greedy(demand, where, rule="next").circuits.count
    time, *others = times([count, first, jnp.asarray(previous, jnp.int32)], where, demand, routing)
    assert time <= min(others)


@pytest.mark.parametrize("routing", ROUTINGS)
def test_finds_the_best_circuits_there_are(routing):
    over = []
    for seed in range(12):
        demand = skewed(seed, SERVERS)
        count = np.asarray(circuits(demand, region(2), routing)).tolist()
        size, port = demand.tolist(), [2.0] * SERVERS
        least = plain.best([2] * SERVERS, size, port, routing)
        over.append(plain.paced(count, size, port, routing) / least)
    assert min(over) >= 1 - 1e-12
    assert np.mean(np.array(over) < 1 + 1e-9) > 0.8
    assert np.mean(over) < 1.01


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
            assert changed(jnp.asarray(count), jnp.asarray(previous)) <= most
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


def test_a_batch_equals_its_loop_and_float32_finds_nearly_the_same_times():
    demands, degrees, ratios = np.stack([skewed(seed, SERVERS) for seed in range(9)]), np.arange(9), []
    together = jax.jit(jax.vmap(lambda demand, degree: circuits(demand, region(degree), "split")))
    for count, demand, degree in zip(together(demands, degrees), demands, degrees, strict=True):
        alone = circuits(demand, region(degree), "split")
        single = circuits(jnp.asarray(demand, jnp.float32), region(degree, dtype=jnp.float32), "split")
        assert_legal(single, degree)
        time, same, near = times([count, alone, single], region(degree), demand, "split")
        np.testing.assert_allclose(time, same, rtol=1e-9)
        ratios.append(float(near / time))
    assert 0.99 < np.mean(ratios) < 1.01  # other chance: dtypes draw their own


def test_mistakes_are_named():
    demand, where = np.ones((SERVERS, SERVERS)), region(2)
    previous = uniform(demand, where)
    for call, words in (
        (lambda: local_search(demand, where, routing="relay"), "routing 'relay' is unknown"),
        (lambda: improved(NONE, demand, where, rounds=-1), "rounds must be a whole number of at least 0"),
        (lambda: local_search(demand, where, most_changed=2), "most_changed needs the previous plan"),
        (lambda: local_search(demand, where, previous=previous, most_changed=-1), "most_changed must be a whole numbe"),
        (lambda: local_search(np.ones((4, 4)), drawn.region(4, 2), previous=previous), "previous must have circuits"),
    ):
        assert words in refused(call)


def test_improved_keeps_the_limit_and_never_worsens():
    where, gained = region(3), 0
    better = eqx.filter_jit(lambda count, demand, most: improved(count, demand, where, rounds=30, most_changed=most))
    for seed in range(10):
        demand, start = skewed(seed, SERVERS), drawn_circuits(seed, [3] * SERVERS)
        count = np.asarray(better(jnp.asarray(start), demand, jnp.asarray(2)))
        assert_legal(count, 3)
        assert max(np.triu(np.maximum(start - count, 0)).sum(), np.triu(np.maximum(count - start, 0)).sum()) <= 2
        time, before = times([count, jnp.asarray(start, jnp.int32)], where, demand, "split")
        assert time <= before
        gained += int(time < before)
    assert gained > 5
