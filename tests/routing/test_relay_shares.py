"""Shares for relay routing: the linear programme by hand and by brute force, and gradient steps beside it."""

import itertools
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mfabric_jax import InputError, all_to_all_time
from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.flows import completion_times
from mfabric_jax.policies import Plan, greedy, uniform
from mfabric_jax.routing import best_relay_shares, degree_bound, relay_bound, relay_shares
from mfabric_jax.routing.relay import checked_shares, relay_problem

NIC = 400 * 0.125e9  # bytes/s


def unit(servers, **settings):
    """NICs of 1 byte/s."""
    return Region(servers=servers, nic_gbps=8e-9, **{"electrical_nics": 2.0} | settings)


def sending(servers, pairs):
    demand = np.zeros((servers, servers))
    for pair, size in pairs.items():
        demand[pair] = size
    return demand


def joining(servers, pairs):
    count = np.zeros((servers, servers), int)
    for (i, j), many in pairs.items():
        count[i, j] = count[j, i] = many
    return Circuits(count)


@eqx.filter_jit
def seconds(region, circuits, shares, demand, routing="relay"):
    return all_to_all_time(region, Plan(circuits, shares), demand, routing=routing)


@eqx.filter_jit
def bound(region, circuits, shares, demand):
    return relay_bound(region, Plan(circuits, shares), demand)


degree_bound = eqx.filter_jit(degree_bound)


@eqx.filter_jit
def chosen(policy, demand, region):
    return policy(demand, region).circuits


def draw(seed, servers, dtype=np.float64):
    """Region, circuits and demand: zipf, sparse, lognormal or hot; every other time servers that lost NICs."""
    rng = np.random.default_rng([seed, servers])
    shape, order = (servers, servers), np.arange(servers)[None]
    kinds = (
        lambda: rng.gamma(2, 0.5, shape) / (order + 1) ** 1.2,
        lambda: rng.uniform(0, 1, shape) ** 3 * (rng.random(shape) < 0.4),
        lambda: rng.lognormal(0, 1.5, shape),
        lambda: rng.uniform(0.5, 1, shape) * np.where(order < 2, 4, 1),
    )
    demand = kinds[seed % 4]() * 1e9
    np.fill_diagonal(demand, 0)
    lost = rng.integers(0, 3, servers) * (seed // 4 % 2)
    efficiency = (1, 0.8, 0.5)[seed % 3]
    ports = (6 - lost, (2 - lost.clip(0, 1)).astype(dtype))
    where = Region(servers, jnp.asarray(400, dtype), *ports, relay_efficiency=jnp.asarray(efficiency, dtype))
    demand = demand.astype(dtype)
    return where, chosen((greedy, uniform)[seed % 5 == 0], demand, where), demand


def assert_legal(shares, circuits, region):
    """Rows of two servers sum to 1 and use no missing circuit or port; others are 0."""
    shares, servers = np.asarray(checked_shares(np.asarray(shares), region.servers)), region.servers
    pair = ~np.eye(servers, dtype=bool)
    np.testing.assert_allclose(shares.sum(2), pair, atol=1e-6)
    active, port = np.asarray(circuits.count) > 0, np.broadcast_to(region.eps_Bps, servers) > 0
    for i, j in zip(*np.nonzero(pair), strict=True):
        way = np.append(active[i] & active[:, j], [active[i, j], port[i] & port[j]])
        way[[i, j]] = False
        assert (shares[i, j][~way] == 0).all() or not way.any()


def test_by_hand_at_half_efficiency():
    # Circuits of 1 B/s between all three servers, EPS ports of 1 B/s. 0 sends 12 bytes to 1: by T its circuit carries
    # T, the EPS T, and via 2 goes T / 2, for it counts twice on 2-1: 12 = 2.5 T.
    where = unit(3, electrical_nics=1.0, relay_efficiency=0.5)
    circuits = joining(3, {(0, 1): 1, (0, 2): 1, (1, 2): 1})
    shares, least = best_relay_shares(where, circuits, sending(3, {(0, 1): 12}))
    np.testing.assert_allclose(least, 4.8, rtol=1e-12)
    np.testing.assert_allclose(shares[0, 1], [0, 0, 0.2, 0.4, 0.4], rtol=1e-12)
    # 2 sends 3 bytes to 1 as well, best over its circuit, which leaves T - 3 there: 12 = 2 T + (T - 3) / 2.
    shares, least = best_relay_shares(where, circuits, sending(3, {(0, 1): 12, (2, 1): 3}))
    np.testing.assert_allclose(least, 5.4, rtol=1e-12)
    np.testing.assert_allclose(shares[0, 1], [0, 0, 0.1, 0.45, 0.45], rtol=1e-12)
    np.testing.assert_allclose(shares[2, 1], [0, 0, 0, 1, 0], atol=1e-12)
    # Gradient steps find the same.
    near = relay_shares(where, circuits, sending(3, {(0, 1): 12, (2, 1): 3}))
    np.testing.assert_allclose(near[0, 1], shares[0, 1], atol=0.01)


def corners(parts):
    """All ways [n 3] to divide 1 over three paths in steps of 1 / parts."""
    return np.array([(a, b, parts - a - b) for a in range(parts + 1) for b in range(parts + 1 - a)]) / parts


def busiest(count, port, efficiency, sizes, divided):
    """Busiest link, when pairs 0 -> 1 and 1 -> 2 of three servers divide (relay, direct, EPS) as `divided` says."""
    (via_a, direct_a, eps_a), (via_b, direct_b, eps_b) = (s * part for s, part in zip(sizes, divided, strict=True))
    onto = {(0, 1): direct_a, (1, 2): direct_b, (0, 2): via_a + via_b / efficiency}
    onto |= {(2, 1): via_a / efficiency, (1, 0): via_b}
    with np.errstate(divide="ignore", invalid="ignore"):
        links = [np.nan_to_num(load / count[link], nan=0.0, posinf=np.inf) for link, load in onto.items()]
    ports = [eps_a / port[0], eps_a / port[1], eps_b / port[1], eps_b / port[2]]
    return np.max(np.stack(np.broadcast_arrays(*links, *ports)), axis=0)


@pytest.mark.parametrize("seed", range(8))
def test_no_division_on_a_grid_is_better(seed):
    # 0 -> 1 (via 2) and 1 -> 2 (via 0) meet on the circuit 0 -> 2.
    rng, parts = np.random.default_rng(seed), 40
    count = np.triu(rng.integers(0, 4, (3, 3)), 1)
    count, port, efficiency = count + count.T, rng.choice([0.5, 1, 2], 3), rng.choice([1, 0.7, 0.4])
    sizes = rng.uniform(1, 9, 2)
    where = unit(3, electrical_nics=port, relay_efficiency=efficiency)
    demand = sending(3, {(0, 1): sizes[0], (1, 2): sizes[1]})
    shares, least = best_relay_shares(where, Circuits(count), demand)
    own = [shares[0, 1][[2, 3, 4]], shares[1, 2][[0, 3, 4]]]
    np.testing.assert_allclose(busiest(count, port, efficiency, sizes, own), least, rtol=1e-9)
    grid = corners(parts)
    found = busiest(count, port, efficiency, sizes, [grid.T[:, :, None], grid.T[:, None, :]]).min()
    assert least <= found * (1 + 1e-12)
    assert found <= least * (1 + 6 / parts)


def test_the_programme_lies_between_the_degree_bound_and_every_other_routing():
    gain = []
    for seed in range(20):
        where, circuits, demand = draw(seed, 8)
        shares, least = best_relay_shares(where, circuits, demand)
        assert_legal(shares, circuits, where)
        np.testing.assert_allclose(bound(where, circuits, shares, demand), least, rtol=1e-12)
        assert least >= degree_bound(where, demand) * (1 - 1e-9)
        times = [float(seconds(where, circuits, None, demand, name)) for name in ("split", "best-path", "unsplit")]
        assert least <= min(times) * (1 + 1e-9)
        gain.append(times[0] / least)
    assert np.mean(gain) > 1.05


def test_forwarding_that_costs_more_is_never_faster():
    for seed in range(4):
        where, circuits, demand = draw(seed, 8)
        at = [eqx.tree_at(lambda r: r.relay_efficiency, where, jnp.asarray(e)) for e in (1.0, 0.7, 0.3, 0.01)]
        times = [best_relay_shares(one, circuits, demand)[1] for one in at]
        assert (np.diff(times) >= -1e-9 * times[0]).all()
        split = seconds(where, circuits, None, demand, "split")
        assert times[-1] >= 0.9 * split


@pytest.mark.parametrize("scale", [1e-12, 1e9])
def test_any_unit_of_bytes_gives_the_same(scale):
    where, circuits, demand = draw(2, 6)
    _, least = best_relay_shares(where, circuits, demand)
    np.testing.assert_allclose(best_relay_shares(where, circuits, demand * scale)[1], least * scale, rtol=1e-9)
    near = relay_shares(where, circuits, demand)
    np.testing.assert_allclose(relay_shares(where, circuits, demand * scale), near, atol=0.02)


@pytest.mark.parametrize(("servers", "seeds", "dtype"), [(8, 24, np.float64), (16, 6, np.float64), (8, 12, np.float32)])
def test_gradient_steps_come_near_the_programme(servers, seeds, dtype):
    late = []
    for seed in range(seeds):
        where, circuits, demand = draw(seed, servers, dtype)
        shares = relay_shares(where, circuits, demand)
        assert shares.dtype == dtype
        assert_legal(shares, circuits, where)
        _, least = best_relay_shares(where, circuits, demand)
        late.append(float(bound(where, circuits, shares, demand)) / least - 1)
    assert min(late) > -1e-5
    assert max(late) < 0.01
    assert np.mean(late) < 0.002


def test_gradient_steps_begin_at_split_and_are_never_worse():
    for seed in range(8):
        where, circuits, demand = draw(seed, 8)
        split = seconds(where, circuits, None, demand, "split")
        at = [bound(where, circuits, relay_shares(where, circuits, demand, steps=n), demand) for n in (0, 3, 200)]
        np.testing.assert_allclose(at[0], split, rtol=1e-9)
        assert split * (1 + 1e-9) >= at[1] >= at[2] * (1 - 1e-9)


@jax.jit
def paced_ends(rate, ports, shares, efficiency, size):
    problem = relay_problem(rate, ports, shares, efficiency)
    return completion_times(eqx.tree_at(lambda p: p.weight, problem, size), size).finish


def test_paced_flows_end_with_the_busiest_link():
    # Rates in proportion to bytes are max-min rates with bytes as weights: no pair ends after the bound.
    for seed in range(4):
        where, circuits, demand = draw(seed, 6)
        shares, least = best_relay_shares(where, circuits, demand)
        ports = np.broadcast_to(where.eps_Bps, 6)
        rate = circuits.count.astype(float) * NIC
        ends = paced_ends(rate, ports, shares, where.relay_efficiency, demand.reshape(-1))
        np.testing.assert_allclose(ends.max(), least, rtol=1e-9)


def test_flows_that_are_not_paced_end_later_but_within_twice_the_bound():
    # Alone, a pair is its own pace.
    where, circuits, _ = draw(0, 6)
    demand = sending(6, {(0, 3): 1e9})
    shares, least = best_relay_shares(where, circuits, demand)
    np.testing.assert_allclose(seconds(where, circuits, shares, demand), least, rtol=1e-9)
    for seed in range(8):
        where, circuits, demand = draw(seed, 8)
        for shares in (best_relay_shares(where, circuits, demand)[0], relay_shares(where, circuits, demand)):
            least = bound(where, circuits, shares, demand)
            assert least * (1 - 1e-9) <= seconds(where, circuits, shares, demand) <= 2.1 * least


def both(where, circuits, demand):
    """Shares of the programme and of gradient steps, both legal, and the programme's time."""
    shares, least = best_relay_shares(where, circuits, demand)
    near = relay_shares(where, circuits, demand)
    for one in (shares, near):
        assert_legal(one, circuits, where)
    return shares, near, least


@pytest.mark.parametrize("servers", [1, 2, 3])
def test_no_bytes_no_circuits_one_pair(servers):
    none, some = joining(servers, {}), joining(servers, {(0, 1): 3} if servers > 1 else {})
    nothing = np.zeros((servers, servers))
    for circuits, electrical in itertools.product((none, some), (0.0, 2.0)):
        assert both(unit(servers, electrical_nics=electrical), circuits, nothing)[2] == 0
    if servers > 1:
        demand = sending(servers, {(0, 1): 10.0})
        for circuits, rate in ((none, 2), (some, 5)):
            shares, near, least = both(unit(servers), circuits, demand)
            np.testing.assert_allclose(least, 10 / rate, rtol=1e-12)
            np.testing.assert_allclose(near, shares, atol=0.02)


def test_a_pair_that_only_a_relay_reaches():
    # Nothing but circuits: 0-1 of 2 B/s and 1-2 of 1, so 0 -> 2 goes via 1; and 8 bytes 0 -> 1 beside it.
    where, circuits = unit(3, electrical_nics=0.0), joining(3, {(0, 1): 2, (1, 2): 1})
    shares, near, least = both(where, circuits, sending(3, {(0, 2): 2.0, (0, 1): 8.0}))
    assert least == pytest.approx(5, rel=1e-12)
    assert shares[0, 2, 1] == near[0, 2, 1] == 1


def test_a_pair_without_a_path_never_arrives_and_the_others_keep_the_best():
    where = unit(4, electrical_nics=np.array([2.0, 2, 2, 0]))
    circuits = joining(4, {(0, 1): 1, (1, 2): 1, (0, 2): 1})
    alone = sending(4, {(0, 1): 12.0, (2, 1): 3.0})
    shares, near, least = both(where, circuits, alone + sending(4, {(0, 3): 1.0}))
    assert least == np.inf
    assert shares[0, 3, -1] == near[0, 3, -1] == 1
    want = best_relay_shares(where, circuits, alone)[1]
    np.testing.assert_allclose(bound(where, circuits, shares, alone), want, rtol=1e-9)
    np.testing.assert_allclose(bound(where, circuits, near, alone), want, rtol=0.02)


def test_circuits_of_a_relaxation_may_be_as_thin_as_they_like():
    where, circuits, demand = draw(2, 8)
    count = circuits.count.astype(float) * 0.7
    count = np.asarray(count)
    assert (count == 0).sum() > 8
    _, least = best_relay_shares(where, Circuits(count), demand)
    for thin in (1e-6, 1e-12, 1e-16, 1e-30):
        more = Circuits(np.where(count > 0, count, np.where(np.eye(8, dtype=bool), 0, thin)))
        shares, near, found = both(where, more, demand)
        np.testing.assert_allclose(found, least, rtol=max(10 * thin, 1e-7))
        np.testing.assert_allclose(bound(where, more, shares, demand), found, rtol=1e-12)
        assert bound(where, more, near, demand) <= 1.02 * least


def test_pairs_without_bytes_keep_to_their_circuits():
    where, circuits, demand = draw(1, 8)
    shares, near, _ = both(where, circuits, demand)
    idle = (demand == 0) & ~np.eye(8, dtype=bool)
    active = (np.asarray(circuits.count) > 0)[idle]
    for one in (shares, np.asarray(near)):
        np.testing.assert_array_equal(one[idle][:, -2:], np.stack([active, ~active], axis=1))


def test_a_batch_equals_its_loop_and_new_numbers_do_not_retrace():
    drawn = [draw(seed, 6) for seed in range(6)]
    regions, circuits, demands = (jax.tree.map(lambda *x: jnp.stack(x), *part) for part in zip(*drawn, strict=True))
    one = eqx.debug.assert_max_traces(lambda r, c, d: relay_shares(r, c, d, steps=60), max_traces=1)
    together = jax.jit(jax.vmap(one))(regions, circuits, demands)
    for index, (where, count, demand) in enumerate(drawn):
        np.testing.assert_allclose(together[index], relay_shares(where, count, demand, steps=60), atol=1e-6)


def test_a_key_moves_the_start():
    where, circuits, demand = draw(2, 8)
    _, least = best_relay_shares(where, circuits, demand)
    plain, again = relay_shares(where, circuits, demand), relay_shares(where, circuits, demand)
    np.testing.assert_array_equal(plain, again)
    moved = [relay_shares(where, circuits, demand, key=jax.random.key(seed)) for seed in (0, 1)]
    assert not np.allclose(moved[0], moved[1], atol=1e-3)
    for shares in moved:
        assert bound(where, circuits, shares, demand) <= 1.01 * least


def test_the_slope_of_the_best_time_is_that_with_fixed_shares():
    where, circuits, demand = draw(2, 6)

    def time(demand):
        return bound(where, circuits, relay_shares(where, circuits, demand), demand)

    slope = jax.grad(time)(demand)
    up, down = (best_relay_shares(where, circuits, demand * (1 + step))[1] for step in (1e-3, -1e-3))
    np.testing.assert_allclose(np.sum(slope * demand), (up - down) / 2e-3, rtol=0.01)


def test_mistakes_are_named(monkeypatch):
    where, circuits, demand = draw(0, 4)
    for bad in (np.nan, np.inf, -1.0):
        wrong = demand.copy()
        wrong[1, 2] = bad
        with pytest.raises(InputError, match=f"demand must be finite and not negative, got {bad} from server 1 to 2"):
            best_relay_shares(where, circuits, wrong)
    for function in (best_relay_shares, relay_shares):
        with pytest.raises(InputError, match=r"demand must be \[S S\] with S = 4"):
            function(where, circuits, demand[:3, :3])
        with pytest.raises(InputError, match=r"circuits must be \[S S\] with S = 4 servers, got \[3, 3\]"):
            function(where, joining(3, {}), demand)
    with pytest.raises(InputError, match="steps must be a whole number of at least 0, got -1"):
        relay_shares(where, circuits, demand, steps=-1)
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    with pytest.raises(InputError, match=r"needs scipy.*pip install 'mfabric-jax\[exact\]'"):
        best_relay_shares(where, circuits, demand)
