"""The time of one all-to-all on a region, every routing: against plain oracles, by hand, and laws; servers may have
unequal ports, as failures leave them."""

import functools
import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import linprog

from mfabric_jax import InputError, all_to_all_time
from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.policies import Plan
from mfabric_jax.routing import degree_bound, fluid_lower_bound
from mfabric_jax.routing.region import ROUTINGS, part_times, port_bound, relay_bound
from tests.batches import assert_batch_is_its_loop
from tests.oracles import circuits as plain
from tests.oracles.tree import tree
from tests.routing.regions import (
    DIRECT,
    EPS,
    SERVERS,
    all_over,
    busiest_link,
    circuit_seconds,
    circuits,
    divided,
    draw,
    draw_shares,
    padded,
    pairs,
    port_seconds,
    region,
    relayed,
    seconds,
    timed,
)

NONE = pairs({})
parts = eqx.filter_jit(lambda where, count, demand: part_times(where, Circuits(count), demand, routing="split"))


@eqx.filter_jit
def paced(where, count, demand, routing):
    return fluid_lower_bound(where, Circuits(count), demand, routing=routing)


def drawn(*sizes, seeds=16, ports=None):
    """(EPS ports, region, circuits, demand) of many cases, those that send anything."""
    for servers, seed in itertools.product(sizes, range(seeds)):
        demand, count, own = draw(seed, servers, ports)
        if demand.any():
            yield own, region(own), count, demand


def test_unsplit_agrees_with_a_plain_simulation():
    for ports, where, count, demand in drawn(2, 3, 8):
        want, bound = divided(demand, count, ports, count > 0)
        np.testing.assert_allclose(seconds(where, count, demand), want, rtol=1e-9)
        np.testing.assert_allclose(seconds(where, count, demand.T), want, rtol=1e-9)  # the same backwards
        np.testing.assert_allclose(paced(where, count, demand, "unsplit"), bound, rtol=1e-12)


def test_best_path_keeps_what_brute_force_keeps():
    for ports, where, count, demand in drawn(2, 3, 8):
        alone = circuit_seconds(demand, count)
        active, choices = np.argwhere((count > 0) & (demand > 0)), [alone <= t for t in np.unique(alone)]
        if len(active) <= 6:  # all choices; else every threshold: what circuits finish within it stays
            choices = [NONE > 0 for _ in range(2 ** len(active))]
            for kept, choice in zip(choices, itertools.product([False, True], repeat=len(active)), strict=True):
                kept[tuple(active[list(choice)].T)] = True
        slowest = [circuit_seconds(np.where(kept, demand, 0), count).max() for kept in choices]
        rest = [port_seconds(np.where(kept, 0, demand), ports) for kept in choices]
        bound = np.maximum(slowest, rest).min()
        # The rule: a pair stays when its circuits finish it within the bound. This choice attains it in port bytes.
        kept = (count > 0) & (alone <= bound * (1 + 1e-12))
        np.testing.assert_allclose(divided(demand, count, ports, kept)[1], bound, rtol=1e-12)
        got = seconds(where, count, demand, "best-path")
        np.testing.assert_allclose(got, divided(demand, count, ports, kept)[0], rtol=1e-9)
        np.testing.assert_allclose(paced(where, count, demand, "best-path"), bound, rtol=1e-12)
        assert got >= bound * (1 - 1e-12)


def programme(demand, count, ports):
    """The least T over every division of bytes between circuits and EPS: linear in T and the bytes on the EPS."""
    flows = np.argwhere(demand > 0)
    size, active = (x[tuple(flows.T)] for x in (demand, count))
    rows = [np.append(-np.eye(len(flows))[n], -active[n]) for n in range(len(flows))]  # size - y <= active T
    limits = [*-size, *[0] * (2 * SERVERS)]
    for end, server in itertools.product((0, 1), range(SERVERS)):
        rows.append(np.append((flows[:, end] == server).astype(float), -ports[server]))
    bounds = [(0, s) for s in size] + [(0, None)]
    return linprog(np.append(0 * size, 1), A_ub=np.array(rows), b_ub=limits, bounds=bounds).fun


def test_split_agrees_with_plain_loops_and_no_division_of_bytes_ends_earlier():
    for ports, where, count, demand in drawn(2, 3, 8):
        got = seconds(where, count, demand, "split")
        np.testing.assert_allclose(got, plain.paced(count, demand, ports, "split"), rtol=1e-12)
        np.testing.assert_allclose(got, programme(demand, count, ports), rtol=1e-9)
        assert got >= degree_bound(region(ports, degree=count.sum(1)), demand) * (1 - 1e-12)
        for other in ("unsplit", "best-path"):
            assert got <= seconds(where, count, demand, other) * (1 + 1e-12)


def test_the_parts_of_split_are_the_last_pair_on_circuits_and_the_common_end():
    for _, where, count, demand in drawn(8, ports=2):
        optical, electrical = parts(where, count, demand)
        np.testing.assert_allclose(electrical, seconds(where, count, demand, "split"), rtol=1e-15)
        alone = np.where(count > 0, circuit_seconds(demand, count), 0).max()
        np.testing.assert_allclose(optical, min(alone, electrical), rtol=1e-12)


FIRST_THREE = np.array([2.0, 2, 0, 2, 2, 2, 2, 2])  # server 2 has no EPS port


def test_what_never_arrives_and_two_pairs_by_hand():
    for joined, sent, ports, want in [
        # Six circuits join two servers; unsplit traffic leaves the EPS idle.
        ({(0, 1): 6}, {(0, 1): 3.0, (1, 0): 1.0}, 2.0, {"unsplit": 3 / 6, "split": 3 / 8}),
        # A first circuit can make a pair slower: alone on the EPS it has 2 bytes/s.
        ({(0, 1): 1}, {(0, 1): 1.0}, 2.0, {"unsplit": 1, "best-path": 1 / 2, "split": 1 / 3}),
        # Without an EPS one byte without a circuit never arrives; nor does one from or to a server without a port.
        ({(0, 1): 2}, {(0, 1): 4.0, (0, 2): 1.0}, 0.0, {"unsplit": np.inf, "best-path": np.inf, "split": np.inf}),
        ({(0, 2): 1}, {(0, 1): 4.0, (1, 2): 1.0}, FIRST_THREE, {"unsplit": np.inf, "best-path": np.inf}),
        ({(0, 2): 1}, {(0, 1): 4.0, (2, 1): 1.0}, FIRST_THREE, {"unsplit": np.inf, "split": np.inf}),
    ]:
        for routing, value in want.items():
            got = seconds(region(ports), circuits(joined), pairs(sent), routing)
            np.testing.assert_allclose(got, value, rtol=1e-12, err_msg=routing)


def test_the_degree_bound_by_hand():
    # Server 0 sends 4 + 6 bytes, server 2 receives 6 + 7.
    sent = pairs({(0, 0): 100, (0, 1): 4, (0, 2): 6, (1, 2): 7})
    most = np.full(SERVERS, 6.0)
    for degree, ports, want in [
        (6.0, 2.0, 13 / 8),
        (np.array([1, *most[1:]]), np.array([2, 2, 0.5, *most[3:]]), 10 / 3),  # 1 + 2 NICs, 6 + 0.5
        (np.array([6, 6, 2, *most[3:]]), np.array([2, 2, 0.5, *most[3:]]), 13 / 2.5),
        (np.array([6, 6, 0, *most[3:]]), np.array([2, 2, 0, *most[3:]]), np.inf),
    ]:
        np.testing.assert_allclose(degree_bound(region(ports, degree=degree), sent), want, rtol=1e-15)
    assert degree_bound(region(0, degree=0), sent * 0) == 0
    assert np.isnan(degree_bound(region(), sent + pairs({(0, 1): np.nan})))


def test_the_bound_of_ports_on_drawn_stars_and_at_dead_ports():
    for seed, n in itertools.product(range(6), (1, 3, 8)):
        rng = np.random.default_rng([n, seed])
        size, (up, down) = rng.uniform(0, 1, (n, n)) ** 2, rng.uniform(1, 2, (2, n))
        size[:, 0] *= (1, 10)[seed % 2]
        bound, exact = port_bound(size, up, down), tree(size, up, down)
        np.testing.assert_allclose(bound, max((size.sum(1) / up).max(), (size.sum(0) / down).max()), rtol=1e-15)
        assert bound * (1 - 1e-12) <= exact.max() <= 1.2 * bound
    size, dead = np.ones((2, 2)), np.array([0.0, 1])
    assert port_bound(size, dead, np.ones(2)) == np.inf
    assert port_bound(size * 0, dead, dead) == 0
    assert np.isnan(port_bound(size * np.nan, dead, dead))


@pytest.mark.parametrize("routing", ROUTINGS)
def test_a_batch_of_regions_equals_its_loop(routing):
    drawn = [draw(seed, 4) for seed in range(6)]
    demands, counts, ports = (np.stack(column) for column in zip(*drawn, strict=True))
    shares = np.stack([draw_shares(seed, count, port) for seed, (_, count, port) in enumerate(drawn)])
    nics = np.linspace(4e-9, 16e-9, len(ports))

    def one(ports, nic, count, demand, shares):
        where = Region(SERVERS, nic, 6, ports)
        return all_to_all_time(where, Plan(Circuits(count), shares), demand, routing=routing)

    def alone(ports, nic, count, demand, shares):
        return seconds(region(ports), count, demand, routing, shares) * 8e-9 / nic

    cases = list(zip(ports, nics, counts.astype(int), demands, shares, strict=True))
    assert_batch_is_its_loop(one, cases, alone, rtol=1e-9)
    # The diagonal does not count, and time scales with bytes.
    where, more = region(ports[0]), 8 * demands[0] + np.eye(SERVERS) * 1e3
    once = alone(ports[0], 8e-9, *cases[0][2:])
    np.testing.assert_allclose(seconds(where, counts[0], more, routing, shares[0]), 8 * once, rtol=1e-12)


def test_single_precision_keeps_its_digits_at_any_range():
    # Split: only sums and ratios of positive numbers, S of them: a few times 6e-8. Bytes span 12 decades.
    single = region(nic_gbps=400, dtype=np.float32)
    for seed, scale in itertools.product(range(12), (1e-6, 1e12, 1e25)):
        _, count, _ = draw(seed, ports=2)
        demand = (10.0 ** np.random.default_rng(seed).uniform(-6, 6, (8, 8)) * scale).astype(np.float32)
        want = seconds(region(nic_gbps=400), count, demand, "split")
        got = timed(single, count.astype(np.float32), demand, "split", None)
        assert got.dtype == jnp.float32
        np.testing.assert_allclose(got, want, rtol=1e-6)
        if scale == 1e12:
            got = timed(single, count.astype(np.float32), demand, "unsplit", None)
            np.testing.assert_allclose(got, seconds(region(nic_gbps=400), count, demand), rtol=1e-5)


def test_results_have_the_wider_dtype_and_no_less_than_single_precision():
    demand, count, _ = draw(2, ports=2)
    want = float(all_to_all_time(region(), Circuits(count), demand))
    half = jnp.asarray(demand, jnp.bfloat16)  # 8 bits of a sum of bytes would be no time at all
    exact = float(all_to_all_time(region(), Circuits(count), np.asarray(half, float)))
    plain = Region(SERVERS, 8e-9, 6, 2.0)
    for given, where, dtype, right in (
        (demand, plain, jnp.float64, want),
        (demand.astype(np.float32), plain, jnp.float32, want),
        (demand.astype(np.float32), region(), jnp.float64, want),
        (half, plain, jnp.float32, exact),
        (demand.tolist(), plain, jnp.float64, want),
    ):
        assert all_to_all_time(where, Circuits(count), given).dtype == dtype
        single = jnp.float32 if dtype == jnp.float32 else fluid_lower_bound(where, Circuits(count), given).dtype
        assert degree_bound(where, given).dtype == single  # bounds have the demand's, at least float32
        np.testing.assert_allclose(all_to_all_time(where, Circuits(count), given), right, rtol=1e-6)


def test_illegal_circuits_are_an_error_where_they_are_traced():
    demand, count, _ = draw(2, ports=2)
    checked = eqx.filter_jit(lambda where, count, demand: all_to_all_time(where, Circuits(count), demand))
    for wrong, rule in (
        (count + 9 * circuits({(0, 1): 1}), "more circuits at a server"),
        (-count, "a count that is negative or NaN"),
    ):
        with pytest.raises(Exception, match=f"circuits: {rule}"):
            jax.block_until_ready(checked(region(), wrong, demand))
        with pytest.raises(InputError, match=f"circuits: {rule}"):
            all_to_all_time(region(), Circuits(wrong), demand)
    with pytest.raises(Exception, match="circuits: a count that is negative or NaN"):
        jax.block_until_ready(checked(region(), count * np.nan, demand))


def test_unsplit_time_has_the_derivative_of_one_pair_and_split_of_many():
    demand = padded(np.random.default_rng(0).uniform(1, 2, (4, 4)) * (1 - np.eye(4)))
    count = padded(1 - np.eye(4))
    moved = {
        routing: np.count_nonzero(jax.grad(timed, 2)(region(), count, demand, routing, all_over(DIRECT)))
        for routing in ("unsplit", "split", "relay")
    }
    assert moved["unsplit"] == moved["relay"] == 1  # relay over direct circuits alone: the same one
    assert moved["split"] == 3  # all of the busiest port
    relays = np.where(np.eye(SERVERS)[..., None] > 0, 0, draw_shares(0, count, np.full(SERVERS, 2.0)))
    assert np.count_nonzero(jax.grad(timed, 2)(region(), count, demand, "relay", relays)) > 3


def test_the_derivative_in_a_whole_region_leaves_its_degree_out():
    demand, count, _ = draw(2, ports=2)
    where = Region(SERVERS, jnp.asarray(8e-9), 6, jnp.asarray(2.0))  # numbers that are no arrays are left out, too
    found = eqx.filter_grad(lambda where: all_to_all_time(where, Circuits(count), demand))(where)
    assert found.optical_degree is None
    assert found.delay_s is None
    seconds = all_to_all_time(where, Circuits(count), demand)
    np.testing.assert_allclose(found.nic_gbps, -seconds / 8e-9, rtol=1e-9)  # time is in proportion to 1 / bandwidth


def scaled(routing, at):
    where = Region(4, at["nic"] * 8e-9, 6, at["ports"], relay_efficiency=at.get("efficiency", 1.0))
    plan = Plan(Circuits(at["count"]), at.get("shares"))
    return jnp.maximum(*part_times(where, plan, at["demand"], routing=routing))


BOTH = {routing: jax.jit(jax.value_and_grad(functools.partial(scaled, routing))) for routing in ROUTINGS}


def point(seed, routing):
    """Real-valued circuits and bytes of about 1 between 4 servers, some pairs without; shares over paths that exist."""
    rng = np.random.default_rng(seed)
    count, ports = rng.uniform(0.1, 2, (4, 4)) * (rng.random((4, 4)) < 0.6), rng.uniform(1, 3, 4)
    count *= 1 - np.eye(4)
    at = {"count": count, "demand": rng.uniform(0.1, 1, (4, 4)) ** 2, "nic": np.array(1.3), "ports": ports}
    if routing == "relay":
        whole = draw_shares(seed, padded(count), np.full(SERVERS, 1.0))[:4, :4]
        at |= {"shares": np.delete(whole, range(4, SERVERS), axis=2), "efficiency": np.array(0.8)}
    return at


@pytest.mark.parametrize("routing", ROUTINGS)
def test_slopes_against_differences(routing):
    # Every argument is moved alone, in proportion to itself.
    for seed in range(6):
        rng, at = np.random.default_rng(seed), point(seed, routing)
        value, slopes = BOTH[routing](at)
        for name, here in at.items():
            move = 1e-6 * here * rng.normal(size=here.shape)
            ahead, behind = (BOTH[routing](at | {name: here + sign * move})[0] for sign in (1, -1))
            want = (ahead - behind) / 2e-6
            got = np.sum(slopes[name] * move) * 1e6
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-8 * value, err_msg=name)


def test_the_slope_at_a_tie_supports_the_time_from_below():
    # T is convex in the circuits; with equal demand everywhere every port ties, and the slope must be a sub-gradient.
    even = {"demand": 1 - np.eye(4), "nic": np.array(1.0), "ports": np.ones(4), "count": 0.5 * (1 - np.eye(4))}
    (here, slopes), rng = BOTH["split"](even), np.random.default_rng(0)
    for _ in range(40):
        there = np.maximum(even["count"] + rng.normal(0, 0.3, (4, 4)), 0)
        rise = np.sum(slopes["count"] * (there - even["count"]))
        assert BOTH["split"](even | {"count": there})[0] >= here + rise - 1e-12


# Relay routing with given shares.


@eqx.filter_jit
def bound(where, count, shares, demand):
    return relay_bound(where, Plan(Circuits(count), shares), demand)


def time(where, count, shares, demand):
    return seconds(where, count, demand, "relay", shares)


def shared(pairs_of_shares):
    """Shares {(i, j): {place: part}}; all other pairs on their circuits."""
    shares = all_over(DIRECT)
    for pair, parts in pairs_of_shares.items():
        shares[pair] = 0
        for place, part in parts.items():
            shares[(*pair, place)] = part
    return shares


def test_agrees_with_an_exact_simulation():
    # Unequal ports and circuits, some dead.
    for seed in range(16):
        servers, efficiency = 2 + seed % 2, (1.0, 0.5)[seed // 2 % 2]
        demand, count, ports = draw(seed, servers)
        count *= np.random.default_rng(seed).uniform(0.5, 2)
        shares, where = draw_shares(seed, count, ports), region(ports, efficiency=efficiency)
        want = relayed(demand, count, ports, shares, efficiency)
        np.testing.assert_allclose(time(where, count, shares, demand), want, rtol=1e-9)


def test_no_earlier_than_the_busiest_link_and_the_degree_bound():
    for seed in range(16):
        demand, count, ports = draw(seed, 5)
        efficiency, shares = (1.0, 0.6)[seed % 2], draw_shares(seed, count, ports)
        where = region(ports, efficiency=efficiency, degree=count.sum(1))
        want = busiest_link(demand, count, ports, shares, efficiency)
        np.testing.assert_allclose(bound(where, count, shares, demand), want, rtol=1e-12)
        got = time(where, count, shares, demand)
        assert got >= want * (1 - 1e-12)
        assert got >= degree_bound(where, demand) * (1 - 1e-12)  # a server's bytes leave over its links, once


def test_a_share_over_a_missing_circuit_never_arrives_and_no_share_needs_none():
    demand, where = pairs({(0, 1): 1, (1, 2): 1}), region()
    assert np.isfinite(time(where, pairs({}), all_over(EPS), demand))
    shares = all_over(EPS)
    shares[0, 1, [2, EPS]] = 0.1, 0.9
    assert time(where, pairs({}), shares, demand) == np.inf
    assert bound(where, pairs({}), shares, demand) == np.inf
    lost = all_over(EPS)
    lost[0, 1, EPS] = 0.5
    assert np.isnan(time(where, pairs({}), lost, demand))  # traced, it cannot be named; what is lost is not passed over
    demand[0, 1] = 0
    assert np.isfinite(time(where, pairs({}), shares, demand))
    assert time(where, pairs({}), shares, demand * 0) == 0


def test_the_parts_are_the_last_pairs_that_use_circuits_and_the_eps():
    # 0 -> 1 direct (3 s, then 0), 1 -> 2 over the EPS (2 s), 2 -> 0 half and half (EPS port of 2 B/s: circuit 1 s).
    count, shares = circuits({(0, 1): 1, (0, 2): 1}), shared({(1, 2): {EPS: 1}, (2, 0): {DIRECT: 0.5, EPS: 0.5}})
    for sent, want in ((3, (3, 2)), (0, (1, 2))):
        demand, plan = pairs({(0, 1): sent, (1, 2): 4, (2, 0): 2}), Plan(Circuits(count), shares)
        np.testing.assert_allclose(part_times(region(), plan, demand, routing="relay"), want, rtol=1e-12)
