"""Split routing against bisection, a linear programme and differences."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import linprog

from mfabric_jax import all_to_all_time
from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.routing import degree_bound, part_times
from tests.flows.derivatives import Derivatives
from tests.oracles.greedy import greedy

NIC = 400 * 0.125e9  # bytes/s
EPS = 2 * NIC


def region(servers, **settings):
    return Region(servers=servers, nic_gbps=400.0, **{"optical_degree": 6, "electrical_nics": 2} | settings)


@eqx.filter_jit
def seconds(where, count, demand, routing="split"):
    return all_to_all_time(where, Circuits(count), demand, routing=routing)


def draw(seed, servers):
    """Dense, sparse or hot demand in bytes with an empty diagonal, and greedy circuits (every fourth time none)."""
    rng = np.random.default_rng(seed)
    demand = rng.uniform(0, 1, (servers, servers)) ** 3 * 1e9
    if seed % 3 == 1:
        demand *= rng.random((servers, servers)) < 0.4
    if seed % 3 == 2:
        demand[:, 0] *= 20
    np.fill_diagonal(demand, 0)
    count = np.zeros((servers, servers), int)
    return demand, np.array(greedy(demand, 6, ("printed", "next")[seed % 2])) if seed % 4 else count


def bisected(demand, circuit, port):
    """The smallest T at which no port has more left over from the circuits than it carries by T."""

    def enough(t):
        rest = [[max(d - c * t, 0.0) for d, c in zip(*rows, strict=True)] for rows in zip(demand, circuit, strict=True)]
        return all(sum(line) <= port * t for line in [*rest, *zip(*rest, strict=True)])

    low, high = 0.0, 1.0
    while not enough(high):
        low, high = high, 2 * high
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def programme(demand, circuit, port):
    """The least T over every division of bytes: linear in T and the bytes y on the EPS."""
    servers = len(demand)
    pairs = np.argwhere(demand > 0)
    sizes = np.array([demand[i, j] for i, j in pairs])
    most = sizes.max()
    rows, limits = [], []
    for f, (i, j) in enumerate(pairs):  # D - y <= C T
        row = np.zeros(len(pairs) + 1)
        row[f], row[-1] = -1, -circuit[i, j] / port
        rows.append(row)
        limits.append(-sizes[f] / most)
    for side in (0, 1):
        for server in range(servers):  # sum of y <= E T
            row = np.append((pairs[:, side] == server).astype(float), -1)
            rows.append(row)
            limits.append(0)
    bounds = [(0, size / most) for size in sizes] + [(0, None)]
    cost = np.append(np.zeros(len(pairs)), 1)
    return linprog(cost, A_ub=np.array(rows), b_ub=limits, bounds=bounds).fun * most / port


@pytest.mark.parametrize("servers", [2, 3, 8, 16])
def test_agrees_with_bisection(servers):
    for seed in range(24):
        demand, count = draw(seed, servers)
        if demand.any():
            got = seconds(region(servers), count, demand)
            assert got.shape == ()
            np.testing.assert_allclose(got, bisected(demand.tolist(), (count * NIC).tolist(), EPS), rtol=1e-12)


@pytest.mark.parametrize("servers", [3, 8])
def test_no_division_of_bytes_ends_earlier(servers):
    for seed in range(12):
        demand, count = draw(seed, servers)
        if demand.any():
            got = seconds(region(servers), count, demand)
            np.testing.assert_allclose(got, programme(demand, count * NIC, EPS), rtol=1e-9)


@pytest.mark.parametrize("servers", [4, 8])
def test_lies_between_the_degree_bound_and_the_other_routings(servers):
    for seed in range(12):
        demand, count = draw(seed, servers)
        where, split = region(servers), seconds(region(servers), count, demand)
        assert split >= degree_bound(where, demand) * (1 - 1e-12)
        for other in ("unsplit", "best-path"):
            assert split <= seconds(where, count, demand, other) * (1 + 1e-12)


def test_one_pair_by_hand():
    # 1e9 bytes over two circuits and two electrical NICs: 4 B. Unsplit would take 2 B.
    demand, count = np.array([[0, 1e9], [0, 0]]), np.array([[0, 2], [2, 0]])
    np.testing.assert_allclose(seconds(region(2), count, demand), 1e9 / (4 * NIC), rtol=1e-15)


def test_a_pair_done_early_leaves_the_port_to_the_others():
    # Server 0 sends 1 byte over a circuit of 1 B/s, and 12 bytes without one, over ports of 2 B/s. All three together:
    # 13 / 3 > 1, so the first is done before; the second alone takes 6.
    unit = Region(servers=3, nic_gbps=8e-9, electrical_nics=2)
    demand, count = np.array([[0, 1.0, 12], [0, 0, 0], [0, 0, 0]]), np.array([[0, 1, 0], [1, 0, 0], [0, 0, 0]])
    np.testing.assert_allclose(seconds(unit, count, demand), 6, rtol=1e-12)
    np.testing.assert_allclose(part_times(unit, Circuits(count), demand, routing="split"), (1, 6), rtol=1e-12)


def test_the_diagonal_is_ignored_and_no_demand_takes_no_time():
    demand, count = draw(1, 4)
    at = seconds(region(4), count, demand)
    assert at == seconds(region(4), count, demand + np.diag([1e12] * 4))
    assert seconds(region(4), count, np.diag([1e9] * 4)) == 0


def test_without_eps_only_circuits_carry():
    where, count = region(3, electrical_nics=0), np.array([[0, 2, 1], [2, 0, 0], [1, 0, 0]])
    active = np.array([[0, 4e9, 1e9], [1e9, 0, 0], [0, 0, 0]])
    np.testing.assert_allclose(seconds(where, count, active), 4e9 / (2 * NIC), rtol=1e-15)
    optical, electrical = part_times(where, Circuits(count), active, routing="split")
    assert (electrical, optical) == (0, seconds(where, count, active))
    inactive = active.copy()
    inactive[1, 2] = 1
    assert seconds(where, count, inactive) == np.inf
    assert seconds(where, count * 0, active) == np.inf
    assert seconds(where, count * 0, active * 0) == 0


def test_what_is_not_a_number_stays_none():
    demand, count = draw(1, 4)
    demand[0, 1] = np.nan
    assert np.isnan(seconds(region(4), count, demand))
    demand[0, 1] = np.inf
    assert seconds(region(4), count, demand) == np.inf


@pytest.mark.parametrize("scale", [1e-6, 1e3, 1e12, 1e25])
def test_float32_keeps_its_digits_at_any_range(scale):
    # Only sums and ratios of positive numbers, S of them: a few times 6e-8. Bytes of one instance span 12 decades.
    for seed in range(12):
        _, count = draw(seed, 8)
        demand = (10.0 ** np.random.default_rng(seed).uniform(-6, 6, (8, 8)) * scale).astype(np.float32)
        where = Region(servers=8, nic_gbps=np.float32(400), electrical_nics=2)
        got = seconds(where, count, demand)
        assert got.dtype == jnp.float32
        np.testing.assert_allclose(got, seconds(region(8), count, demand.astype(float)), rtol=1e-6)


def scaled(fixed, at):
    """The time on circuits [0, 1] and bytes of about 1, with NICs of 1 byte/s."""
    where = Region(servers=4, nic_gbps=at["nic"] * 8e-9, electrical_nics=at["electrical"])
    return all_to_all_time(where, Circuits(at["count"]), at["demand"], routing="split")


slopes = Derivatives(scaled)
at_count = jax.jit(jax.value_and_grad(lambda count, at: scaled({}, at | {"count": count})))


@pytest.mark.parametrize("seed", range(12))
def test_derivatives_against_differences(seed):
    rng = np.random.default_rng(seed)
    count = rng.uniform(0.1, 2, (4, 4)) * (rng.random((4, 4)) < 0.6)
    at = {"count": count, "demand": rng.uniform(0, 1, (4, 4)) ** 2, "nic": np.array(1.3), "electrical": np.array(1.7)}
    slopes.check({}, at, seed)


def test_a_pair_without_circuit_feels_its_first():
    for seed in range(6):
        rng = np.random.default_rng(seed)
        count, at = rng.uniform(0, 1, (4, 4)), {"demand": rng.uniform(0, 1, (4, 4)), "nic": np.array(1.0)}
        at |= {"electrical": np.array(1.0)}
        count[:, 1] = count[0] = 0
        here, slope = at_count(count, at)
        for pair in np.argwhere(count == 0):
            more = count.copy()
            more[tuple(pair)] += 1e-7
            rise = (at_count(more, at)[0] - here) / 1e-7
            np.testing.assert_allclose(rise, slope[tuple(pair)], rtol=1e-5, atol=1e-7)
        assert (slope < 0).any()


def test_the_slope_at_a_tie_supports_the_time_from_below():
    # T is convex in the circuits; with equal demand everywhere, every port ties and the slope must be a sub-gradient.
    even = {"demand": 1 - np.eye(4), "nic": np.array(1.0), "electrical": np.array(1.0)}
    at = 0.5 * (1 - np.eye(4))
    here, slope = at_count(at, even)
    rng = np.random.default_rng(0)
    for _ in range(40):
        there = np.maximum(at + rng.normal(0, 0.3, (4, 4)), 0)
        assert at_count(there, even)[0] >= here + np.sum(slope * (there - at)) - 1e-12


def test_derivatives_are_finite_where_nothing_is_sent_or_nothing_arrives():
    for electrical in (0.0, 1.0):
        for demand in (np.zeros((4, 4)), np.ones((4, 4))):
            at = {"demand": demand, "nic": np.array(1.0), "electrical": np.array(electrical)}
            assert np.isfinite(at_count(np.zeros((4, 4)), at)[1]).all()
            pulled = slopes.pullback({}, at | {"count": np.zeros((4, 4))}, np.array(1.0))
            assert all(np.isfinite(part).all() for part in pulled.values())


def test_a_batch_of_demands_circuits_and_regions_equals_its_loop():
    drawn = [draw(seed, 4) for seed in range(8)]
    demands, counts = (np.stack(column) for column in zip(*drawn, strict=True))
    nics = np.linspace(100.0, 800.0, 8)

    def one(nic_gbps, count, demand):
        where = Region(servers=4, nic_gbps=nic_gbps, electrical_nics=2)
        return all_to_all_time(where, Circuits(count), demand, routing="split")

    together = jax.jit(jax.vmap(one))(nics, counts, demands)
    alone = [seconds(region(4), *draw(seed, 4)[::-1]) * 400 / nics[seed] for seed in range(8)]
    np.testing.assert_allclose(together, alone, rtol=1e-12)
    slope = jax.jit(jax.grad(one, argnums=(0, 2)))
    batch = jax.jit(jax.vmap(slope))(nics, counts, demands)
    for index in range(8):
        for many, single in zip(batch, slope(nics[index], counts[index], demands[index]), strict=True):
            np.testing.assert_allclose(many[index], single, rtol=1e-12)


def test_new_circuits_do_not_retrace():
    def at(where, count, demand):
        return all_to_all_time(where, Circuits(count), demand, routing="split")

    once = eqx.filter_jit(eqx.debug.assert_max_traces(at, max_traces=1))
    for seed in range(4):
        demand, count = draw(seed, 4)
        once(region(4), count, demand)


def test_the_parts_are_the_last_pair_on_circuits_and_the_common_end():
    at = eqx.filter_jit(lambda count, demand: part_times(region(8), Circuits(count), demand, routing="split"))
    for seed in range(12):
        demand, count = draw(seed, 8)
        optical, electrical = at(count, demand)
        np.testing.assert_allclose(electrical, seconds(region(8), count, demand), rtol=1e-15)
        alone = np.where(count > 0, demand / np.maximum(count * NIC, 1), 0).max()
        np.testing.assert_allclose(optical, min(alone, electrical), rtol=1e-12)
