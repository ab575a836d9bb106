"""Circuits with relay shares: legal, never later than greedy with its best shares, near the joint programme; swaps."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.policies.circuit_search import circuit_worth, swaps
from mfabric_jax.policies.greedy import greedy
from mfabric_jax.policies.relaxed import round_circuits
from mfabric_jax.policies.sample_average import joint
from mfabric_jax.policies.samples import relay_limit
from mfabric_jax.routing import Plan, fluid_lower_bound, relay_shares
from mfabric_jax.routing.potentials import RelayLinks
from mfabric_jax.routing.relay import link_seconds
from tests.batches import assert_batch_is_its_loop
from tests.oracles.relay_programme import best_relay_shares
from tests.policies.drawn import SEEDS, SOME_EPS, any_degrees, assert_legal, hostile
from tests.routing.regions import pairs

SERVERS, NIC = 5, 50e9
QUICK = {"steps": 60, "samples": 2, "rounds": 2}
NONE = np.zeros((SERVERS, SERVERS), np.int32)  # always some circuits in place: one program


@jax.jit
@functools.partial(eqx.debug.assert_max_traces, max_traces=1)  # of all tests of this file
def planned(demand, degrees, electrical, efficiency, key, before):
    """The plan, its time, and that of greedy circuits with their shares [s]."""
    region = Region(SERVERS, 400.0, degrees, electrical, relay_efficiency=efficiency)
    plan = joint(demand, region, key=key, previous=Plan(Circuits(before)), **QUICK)
    first = greedy(demand, region, rule="next").circuits
    shares = relay_shares(region, first, demand)
    return (
        plan,
        fluid_lower_bound(region, plan, demand, routing="relay"),
        fluid_lower_bound(region, Plan(first, shares), demand, routing="relay"),
    )


def plan(demand, degrees=6, electrical=2.0, efficiency=1.0, seed=0, before=NONE):
    degrees = np.broadcast_to(degrees, SERVERS).astype(np.int32)
    where = np.asarray(electrical, float), np.asarray(efficiency, float)
    return planned(demand, degrees, *where, jax.random.key(seed), before)


def programme(demand, degrees, electrical, efficiency):
    """Least T with real-valued circuits [s]: capacities C T are unknowns U, and all is linear; SciPy's HiGHS."""
    servers = range(len(demand))
    demand = np.where(np.eye(len(demand), dtype=bool), 0, demand)
    unit = demand.max()
    ways = [
        (i, j, k)
        for i in servers
        for j in servers
        if demand[i, j]
        for k in [*servers, "direct", "EPS"]
        if k not in (i, j)
    ]
    pairs = [(i, j) for i in servers for j in servers if i < j]
    columns = {name: place for place, name in enumerate([*ways, *pairs, "T"])}
    within, complete = {}, {}
    for i, j, k in ways:
        complete.setdefault((i, j), {})[i, j, k] = 1
        hops = {"direct": [((i, j), 1)], "EPS": [(("up", i), 1), (("down", j), 1)]}
        for link, load in hops.get(k, [((i, k), 1), ((k, j), 1 / efficiency)]):
            within.setdefault(link, {})[i, j, k] = load
    for link, row in within.items():
        if link[0] in ("up", "down"):
            row["T"] = -electrical
        else:
            row[tuple(sorted(link))] = -1
    for i in servers:
        within["degree", i] = {pair: 1 for pair in pairs if i in pair} | {"T": -degrees[i]}

    def matrix(rows):
        dense = np.zeros((len(rows), len(columns)))
        for at, row in zip(dense, rows.values(), strict=True):
            for name, value in row.items():
                at[columns[name]] = value
        return dense

    least = np.zeros(len(columns))
    least[columns["T"]] = 1
    sent = [demand[pair] / unit for pair in complete]
    done = linprog(least, matrix(within), np.zeros(len(within)), matrix(complete), sent, method="highs")
    return done.fun * unit / NIC


def test_the_limit_of_relaying_by_hand():
    # Four servers send server 0 one byte each over one circuit and one EPS NIC: T >= 2. One byte can be direct; of the
    # others T go over the EPS and the rest counts twice: 1 + 2 (3 - T) <= T gives T >= 7 / 3.
    demand = np.zeros((SERVERS, SERVERS))
    demand[1:, 0] = NIC
    for sent, efficiency, want in ((demand, 0.5, 7 / 3), (demand, 1.0, 2), (demand.T, 0.5, 2)):
        limit = relay_limit(Region(SERVERS, 400.0, 1, 1, relay_efficiency=jnp.asarray(efficiency)), sent)
        np.testing.assert_allclose(limit, want, rtol=1e-12)


@settings(max_examples=40, derandomize=True)
@given(SEEDS, any_degrees(SERVERS), SOME_EPS, st.sampled_from([1.0, 0.5]))
def test_legal_and_never_later_than_greedy(seed, degrees, electrical, efficiency):
    found, seconds, greedy_seconds = plan(hostile(seed, SERVERS), degrees, electrical, efficiency)
    assert_legal(found.circuits.count, degrees)
    shares = np.asarray(found.shares)
    np.testing.assert_allclose(shares.sum(2), 1 - np.eye(SERVERS), atol=1e-6)
    assert shares.min() >= 0
    region = Region(SERVERS, 400.0, np.asarray(degrees), electrical, relay_efficiency=jnp.asarray(efficiency))
    assert seconds >= relay_limit(region, hostile(seed, SERVERS)) * (1 - 1e-6)
    assert seconds <= greedy_seconds * (1 + 1.2e-3)  # 0.1 % for circuits in place; steps round differently


def test_near_the_joint_programme_where_greedy_is_not():
    over, greedy_over = [], []
    for seed in range(8):
        rng = np.random.default_rng(seed)
        hot = rng.dirichlet(np.full(SERVERS, 0.3))
        demand = 1e9 * hot * rng.uniform(0.9, 1.1, (SERVERS, SERVERS))
        efficiency = (1.0, 0.5)[seed % 2]
        least = programme(demand, [3] * SERVERS, 1.0, efficiency)
        _, seconds, greedy_seconds = plan(demand, 3, 1.0, efficiency)
        over.append(seconds / least)
        greedy_over.append(greedy_seconds / least)
    assert min(over) >= 1 - 1e-9
    assert np.mean(over) < 1.06
    assert np.mean(greedy_over) > np.mean(over) + 0.05


def test_a_batch_over_demands_and_regions_equals_its_loop():
    nics = np.array([[6] * 5, [0, 1, 2, 3, 4], [8] * 5], np.int32)
    keys = jax.random.split(jax.random.key(1), 3)
    cases = [
        (jnp.asarray(hostile(seed, SERVERS), float), nics[n], np.ones(()), np.ones(()), keys[n], NONE)
        for n, seed in enumerate((0, 3, 7))
    ]
    # Of the plan alone: what the bounds take to compile, here once more, is a third.
    assert_batch_is_its_loop(lambda *case: planned(*case)[0], cases, rtol=1e-6, atol=1e-6)


def test_circuits_in_place_stay_where_they_are_as_good():
    def after(demand, before, degrees):
        return np.asarray(plan(demand, degrees, 1.0, before=before)[0].circuits.count)

    rng = np.random.default_rng(2)
    demand, other = rng.lognormal(0, 1.5, (SERVERS, SERVERS)), np.zeros((SERVERS, SERVERS))
    degrees = np.full(SERVERS, 3, np.int32)
    before = after(demand, NONE, degrees)
    np.testing.assert_array_equal(after(demand * rng.uniform(0.9999, 1.0001, demand.shape), before, degrees), before)
    assert before[0, 3] < 3
    other[0, 3] = 1
    assert after(other, before, degrees)[0, 3] == 3
    assert_legal(after(demand, before, degrees - 1), degrees - 1)


def test_float32_without_a_key():
    demand = hostile(5, SERVERS).astype(np.float32)
    found = joint(demand, Region(SERVERS, 400.0), steps=3, samples=1, rounds=0)
    assert found.shares is not None
    assert found.shares.dtype == np.float32
    assert_legal(found.circuits.count, 6)


# ----------------------------------------------------------------------------------------------- swaps of circuits
MANY = 6


@jax.jit
def tried(count, degrees, electrical, demand, shares, key):
    size, circuit = demand / demand.max(), count.astype(demand.dtype)
    port, one = jnp.broadcast_to(electrical, SERVERS), jnp.ones(())
    seconds = link_seconds(size, circuit, port, shares, one)
    seconds = jnp.where(jnp.isfinite(seconds), seconds, 0).reshape(SERVERS + 2, SERVERS)
    worth = circuit_worth(RelayLinks(size, circuit, port, one), seconds)
    return worth, swaps(count, degrees, worth, key, MANY)


@given(SEEDS, any_degrees(SERVERS), SOME_EPS)
def test_every_swap_is_legal_and_moves_two_circuits_at_most(seed, degrees, electrical):
    rng = np.random.default_rng(seed)
    degrees = np.asarray(degrees, np.int32)
    count = round_circuits(rng.uniform(0, 2, (SERVERS, SERVERS)), degrees, least=rng.choice([0.0, 0.5]))
    sent = rng.random((SERVERS, SERVERS)) < rng.choice([0, 0.5, 1])
    demand = 10.0 ** rng.uniform(-3, 12, (SERVERS, SERVERS)) * sent
    shares = rng.dirichlet(np.ones(SERVERS + 2), (SERVERS, SERVERS))
    worth, found = tried(count, degrees, electrical, demand, shares, jax.random.key(seed))
    assert found.shape == (MANY, SERVERS, SERVERS)
    assert not np.isnan(worth.added).any()
    assert (np.asarray(worth.added) >= 0).all()
    for new in np.asarray(found):
        assert_legal(new, degrees)
        change = np.triu(new - np.asarray(count))
        assert change[change > 0].sum() <= 2
        assert -change[change < 0].sum() <= 2


def settled(demand, count, degree, electrical):
    """Worths and swaps at the best shares."""
    degrees = np.broadcast_to(degree, SERVERS).astype(np.int32)
    shares, seconds = best_relay_shares(Region(SERVERS, 400.0, degrees, electrical), Circuits(count), demand)
    worth, found = tried(count, degrees, electrical, demand, jnp.asarray(shares), jax.random.key(0))
    return worth, np.asarray(found), seconds


def joined(values):
    return pairs(values, both=True, servers=SERVERS).astype(np.int32)


def test_swaps_by_hand():
    for sent, degrees, before, want in (
        # 0 -> 1 and 2 -> 3 have all bytes, one circuit a server: two wrong circuits are crossed.
        ({(0, 1): 1, (2, 3): 1}, 1, {(0, 2): 1, (1, 3): 1}, {(0, 1): 1, (2, 3): 1}),
        # 0 -> 1 has all bytes, and both servers have a free NIC: nothing is given up.
        ({(0, 1): 1}, 2, {(0, 1): 1}, {(0, 1): 2}),
        # 0 sends to 1 and 2, which have one NIC each and are joined to each other: two free NICs break into a circuit.
        ({(0, 1): 1, (0, 2): 1}, [2, 1, 1, 0, 0], {(1, 2): 1}, {(0, 1): 1, (0, 2): 1}),
    ):
        _, found, _ = settled(1e9 * pairs(sent, servers=SERVERS), joined(before), degrees, 1.0)
        np.testing.assert_array_equal(found[0], joined(want))


def test_a_second_way_in_is_worth_what_the_programme_gains():
    # 0 sends to 1 over one circuit; a circuit 2-1 opens a relay 0-2-1, since 0-2 is joined and idle.
    demand = pairs({(0, 1): 1e9}, servers=SERVERS)
    count = joined({(0, 1): 1, (0, 2): 1, (0, 3): 1})
    worth, _, seconds = settled(demand, count, 4, 1.0)
    gain = {}
    for pair in ((1, 2), (1, 3), (1, 4), (2, 3)):
        more = count + joined({pair: 1})
        gain[pair] = seconds - best_relay_shares(Region(SERVERS, 400.0, 4, 1.0), Circuits(more), demand)[1]
    assert gain[1, 2] > 0.2 * seconds
    assert gain[2, 3] == gain[1, 4] == 0
    assert worth.added[1, 2] > 0.2
    np.testing.assert_allclose(worth.added[1, 2], worth.added[1, 3], rtol=1e-6)
    assert worth.added[1, 2] > 5 * worth.added[2, 3]
    assert worth.held[0, 1] > 5 * worth.held[0, 2]
