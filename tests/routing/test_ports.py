"""Servers with unequal ports, as NIC failures leave them: every routing against plain oracles, port by port."""

import itertools
from fractions import Fraction

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import linprog

from mfabric_jax import InputError, all_to_all_time
from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.policies import Plan
from mfabric_jax.routing import ROUTINGS, degree_bound, part_times, relay_bound
from tests.oracles.fluid import completion
from tests.oracles.tree import tree


def region(servers, **settings):
    """NICs of 1 byte/s."""
    return Region(servers=servers, nic_gbps=8e-9, **settings)


def seconds(ports, count, demand, routing, shares=None, efficiency=1.0):
    return timed(ports, count, demand, routing, shares, np.asarray(efficiency))


@eqx.filter_jit
def timed(ports, count, demand, routing, shares, efficiency):
    where = region(len(demand), electrical_nics=ports, relay_efficiency=efficiency)
    return all_to_all_time(where, Plan(Circuits(count), shares), demand, routing=routing)


def draw(seed, servers):
    """Demand, circuits within drawn degrees, EPS ports: some servers without circuits, some without an EPS port."""
    rng = np.random.default_rng([seed, servers])
    demand = rng.uniform(0.1, 1, (servers, servers)) ** 2 * (rng.random((servers, servers)) < 0.8)
    np.fill_diagonal(demand, 0)
    degree, count = rng.choice([0, 2, 4, 6], servers, p=[0.2, 0.2, 0.2, 0.4]), np.zeros((servers, servers), int)
    for _ in range(12 * servers):
        i, j = rng.integers(servers, size=2)
        if i != j and count[i].sum() < degree[i] and count[j].sum() < degree[j]:
            count[i, j] += 1
            count[j, i] += 1
    ports = rng.choice([0.0, 1.0, 2.0, 3.5], servers, p=[0.1, 0.3, 0.5, 0.1])
    return demand, count, ports


def served(demand, count, ports):
    """The demand of the pairs that have a circuit or EPS ports at both ends."""
    return np.where((count > 0) | (np.minimum.outer(ports, ports) > 0), demand, 0)


def drawn_shares(seed, count, ports):
    """Random shares over the paths that exist; pairs without any keep the EPS."""
    rng, servers = np.random.default_rng(seed), len(count)
    shares = np.zeros((servers, servers, servers + 2))
    for i, j in itertools.permutations(range(servers), 2):
        way = [*((count[i] > 0) & (count[:, j] > 0)), count[i, j] > 0, min(ports[i], ports[j]) > 0]
        shares[i, j] = rng.uniform(0.1, 1, servers + 2) * way * (rng.random(servers + 2) < 0.7)
        if not shares[i, j].any():
            shares[i, j, -2 if count[i, j] else -1] = 1
    return shares / np.maximum(shares.sum(2, keepdims=True), 1e-9)


def port_seconds(rest, ports):
    """Of the busiest EPS port; infinity where a dead one has bytes."""
    load = np.maximum(rest.sum(0), rest.sum(1))
    return max((b / p if p else np.inf for b, p in zip(load, ports, strict=True) if b), default=0.0)


def circuit_seconds(demand, count):
    return np.where(demand > 0, np.where(count > 0, demand / np.maximum(count, 1), np.inf), 0)


@pytest.mark.parametrize("servers", [3, 8])
def test_unsplit_agrees_with_a_plain_simulation(servers):
    for seed in range(16):
        demand, count, ports = draw(seed, servers)
        demand = served(demand, count, ports)
        slowest = circuit_seconds(np.where(count > 0, demand, 0), count).max()
        want = max(slowest, tree(np.where(count > 0, 0, demand), ports, ports).max())
        np.testing.assert_allclose(seconds(ports, count, demand, "unsplit"), want, rtol=1e-9)


def kept_by_brute_force(demand, count, ports):
    """The least max(slowest circuit kept, busiest port of the rest) over all subsets of pairs with circuits."""
    active, best = np.argwhere((count > 0) & (demand > 0)), np.inf
    for choice in itertools.product([False, True], repeat=len(active)):
        kept = np.zeros(demand.shape, bool)
        kept[tuple(active[list(choice)].T)] = True
        rest = np.where(kept, 0, demand)
        best = min(best, max(circuit_seconds(np.where(kept, demand, 0), count).max(), port_seconds(rest, ports)))
    return best


@pytest.mark.parametrize("servers", [2, 3])
def test_best_path_keeps_what_brute_force_keeps(servers):
    for seed in range(24):
        demand, count, ports = draw(seed, servers)
        demand = served(demand, count, ports)
        bound = kept_by_brute_force(demand, count, ports)
        kept = (count > 0) & (circuit_seconds(demand, count) <= bound * (1 + 1e-12))
        slowest = circuit_seconds(np.where(kept, demand, 0), count).max()
        want = max(slowest, tree(np.where(kept, 0, demand), ports, ports).max())
        np.testing.assert_allclose(seconds(ports, count, demand, "best-path"), want, rtol=1e-9)
        assert want >= bound * (1 - 1e-12)


def divided(demand, count, ports):
    """The least T over every division of bytes between circuits and EPS: a linear programme in bytes on the EPS."""
    servers, pairs = len(demand), np.argwhere(demand > 0)
    size, active = (x[tuple(pairs.T)] for x in (demand, count))
    rows = [np.append(-np.eye(len(pairs))[n], -active[n]) for n in range(len(pairs))]  # size - y <= active T
    limits = list(-size)
    for end, server in itertools.product((0, 1), range(servers)):
        rows.append(np.append((pairs[:, end] == server).astype(float), -ports[server]))
        limits.append(0)
    bounds = [(0, s) for s in size] + [(0, None)]
    return linprog(np.append(np.zeros(len(pairs)), 1), A_ub=np.array(rows), b_ub=limits, bounds=bounds).fun


@pytest.mark.parametrize("servers", [4, 8])
def test_no_division_of_bytes_ends_earlier_than_split(servers):
    for seed in range(16):
        demand, count, ports = draw(seed, servers)
        demand = served(demand, count, ports)
        if demand.any():
            got = seconds(ports, count, demand, "split")
            np.testing.assert_allclose(got, divided(demand, count, ports), rtol=1e-9)


def simulated(demand, count, ports, shares, efficiency):
    """Slowest pair under relay routing, in fractions."""
    servers = len(demand)
    capacity = [Fraction(float(c)) for c in [*count.ravel(), *ports, *ports]]
    pairs, hops = np.argwhere(demand > 0), []
    for i, j in pairs:
        *via, direct, eps = (Fraction(float(s)) for s in shares[i, j])
        path = [(i * servers + k, s) for k, s in enumerate(via)]
        path += [(k * servers + j, s / Fraction(efficiency)) for k, s in enumerate(via)]
        path += [(i * servers + j, direct), (servers**2 + i, eps), (servers**2 + servers + j, eps)]
        hops.append([(link, s) for link, s in path if s])
    sizes = [Fraction(float(demand[i, j])) for i, j in pairs]
    many = len(pairs)
    return float(max(completion(capacity, hops, [Fraction(1)] * many, [np.inf] * many, sizes, [0] * many), default=0))


@pytest.mark.parametrize("efficiency", [1.0, 0.5])
def test_relay_agrees_with_an_exact_simulation(efficiency):
    for seed in range(12):
        demand, count, ports = draw(seed, 3)
        demand, shares = served(demand, count, ports), drawn_shares(seed, count, ports)
        got = seconds(ports, count, demand, "relay", shares, efficiency)
        np.testing.assert_allclose(got, simulated(demand, count, ports, shares, efficiency), rtol=1e-9)


def test_the_relay_bound_is_the_busiest_link():
    for seed in range(8):
        demand, count, ports = draw(seed, 5)
        demand, shares = served(demand, count, ports), drawn_shares(seed, count, ports)
        via, direct, eps = np.split(shares * demand[:, :, None], [5, 6], axis=2)
        load = direct[..., 0] + via.sum(1) + np.einsum("ijk->kj", via) / 0.5
        want = max(circuit_seconds(load, count).max(), port_seconds(eps[..., 0], ports))
        where = region(5, electrical_nics=ports, relay_efficiency=0.5)
        np.testing.assert_allclose(relay_bound(where, Plan(Circuits(count), shares), demand), want, rtol=1e-12)


def test_the_degree_bound_by_hand():
    # Server 0 sends 10 bytes over 1 + 2 NICs, server 2 receives 13 over 6 + 0.5.
    demand = np.array([[100, 4.0, 6], [0, 0, 7], [0, 0, 0]])
    where = region(3, optical_degree=np.array([1, 6, 6]), electrical_nics=np.array([2, 2, 0.5]))
    np.testing.assert_allclose(degree_bound(where, demand), 10 / 3, rtol=1e-15)
    where = eqx.tree_at(lambda r: r.optical_degree, where, np.array([6, 6, 2]))
    np.testing.assert_allclose(degree_bound(where, demand), 13 / 2.5, rtol=1e-15)
    where = region(3, optical_degree=np.array([6, 6, 0]), electrical_nics=np.array([2.0, 2, 0]))
    assert degree_bound(where, demand) == np.inf


@pytest.mark.parametrize("routing", ROUTINGS)
def test_equal_ports_are_one_port(routing):
    for seed in range(8):
        demand, count, _ = draw(seed, 4)
        for port in (0.0, 2.0):
            ports = np.full(4, port)
            shares = drawn_shares(seed, count, ports)
            one = seconds(np.asarray(port), count, demand, routing, shares)
            np.testing.assert_allclose(seconds(ports, count, demand, routing, shares), one, rtol=1e-14)
            both = [region(4, optical_degree=d, electrical_nics=p) for d, p in ((6, port), (np.full(4, 6), ports))]
            assert degree_bound(both[0], demand) == degree_bound(both[1], demand)


@pytest.mark.parametrize("routing", ["unsplit", "best-path", "split"])
def test_a_dead_port_carries_nothing(routing):
    # Server 2 has no EPS port: what circuits do not reach never arrives, in either direction; the others do not care.
    demand, count = np.array([[0, 4.0, 0], [0, 0, 0], [0, 0, 0]]), np.array([[0, 0, 1], [0, 0, 0], [1, 0, 0]])
    ports = np.array([2.0, 2, 0])
    assert seconds(ports, count, demand, routing) == 2
    for pair in ((1, 2), (2, 1)):
        lost = demand.copy()
        lost[pair] = 1
        assert seconds(ports, count, lost, routing) == np.inf
    active = demand.copy()
    active[2, 0] = 3.0
    assert seconds(ports, count, active, routing) == 3


def test_the_parts_of_split_with_dead_ports():
    demand, count = np.array([[0, 4.0, 2], [0, 0, 0], [0, 0, 0]]), np.array([[0, 2, 1], [2, 0, 0], [1, 0, 0]])
    at = [
        part_times(region(3, electrical_nics=np.array(p)), Circuits(count), demand, routing="split")
        for p in ([2.0, 2, 0], [2.0, 0, 0])
    ]
    np.testing.assert_allclose(at[0], (2, 2), rtol=1e-15)
    np.testing.assert_allclose(at[1], (2, 0), rtol=1e-15)  # one live port joins nobody


@pytest.mark.parametrize("routing", ROUTINGS)
def test_a_batch_of_regions_equals_its_loop(routing):
    drawn = [draw(seed, 4) for seed in range(6)]
    demands, counts, ports = (np.stack(column) for column in zip(*drawn, strict=True))
    shares = np.stack([drawn_shares(seed, count, port) for seed, (_, count, port) in enumerate(drawn)])
    regions = eqx.tree_at(lambda r: r.electrical_nics, region(4), jnp.asarray(ports))

    def one(where, count, demand, shares):
        return all_to_all_time(where, Plan(Circuits(count), shares), demand, routing=routing)

    axes = jax.tree.map(lambda leaf: 0 if np.ndim(leaf) else None, regions)
    together = jax.jit(jax.vmap(one, in_axes=(axes, 0, 0, 0)))(regions, counts, demands, shares)
    alone = [seconds(ports[n], counts[n], demands[n], routing, shares[n]) for n in range(6)]
    np.testing.assert_allclose(together, alone, rtol=1e-12)


@pytest.mark.parametrize("routing", ROUTINGS)
def test_the_slope_in_every_port(routing):
    demand, count, _ = draw(3, 4)
    ports, shares = np.array([1.0, 2.3, 1.7, 3.1]), drawn_shares(3, count, np.ones(4))
    slope = jax.grad(lambda p: seconds(p, count, demand, routing, shares))(ports)
    for server in range(4):
        up, down = (seconds(ports + step * np.eye(4)[server], count, demand, routing, shares) for step in (1e-6, -1e-6))
        np.testing.assert_allclose(slope[server], (up - down) / 2e-6, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("field", ["optical_degree", "electrical_nics"])
def test_a_wrong_number_of_ports_is_named(field):
    for value in (np.ones(3, int), np.ones((4, 1), int), [6, 6, 6]):
        shape = str(list(np.shape(value))).replace("[", r"\[").replace("]", r"\]")
        with pytest.raises(InputError, match=rf"{field} must be a number or .* \[S\] = \[4\], .* got {shape}\."):
            region(4, **{field: value})
    with pytest.raises(InputError, match=f"{field} must be finite and not negative"):
        region(4, **{field: np.array([6, 6, -1, 6])})
    where = jax.jit(lambda value: region(4, **{field: value}))(np.arange(4))
    np.testing.assert_array_equal(getattr(where, field), np.arange(4))
