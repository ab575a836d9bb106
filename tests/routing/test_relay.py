"""Relay routing against exact fluid simulation in fractions, hand-made cases and differences."""

from fractions import Fraction

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mfabric_jax import InputError, all_to_all_time
from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.policies import Plan
from mfabric_jax.routing import degree_bound, part_times, relay_bound
from tests.flows.derivatives import Derivatives
from tests.oracles.fluid import completion
from tests.oracles.tree import tree


def region(servers, **settings):
    """NICs of 1 byte/s."""
    return Region(servers=servers, nic_gbps=8e-9, **{"electrical_nics": 2.0} | settings)


@eqx.filter_jit
def seconds(where, count, shares, demand):
    return all_to_all_time(where, Plan(Circuits(count), shares), demand, routing="relay")


@eqx.filter_jit
def bound(where, count, shares, demand):
    return relay_bound(where, Plan(Circuits(count), shares), demand)


def paths(servers):
    """Which of [S S S+2] is a path."""
    legal = np.ones((servers, servers, servers + 2), bool)
    for i in range(servers):
        legal[i, i] = legal[i, :, i] = legal[:, i, i] = False
    return legal


def all_over(servers, slot):
    shares = np.zeros((servers, servers, servers + 2))
    shares[..., slot] = 1
    return shares


def draw(seed, servers, kept=0.6):
    """Circuits of every pair, unequal, random shares over some paths, and demand, all about 1."""
    rng = np.random.default_rng(seed)
    count = np.triu(rng.uniform(0.5, 2, (servers, servers)), 1)
    shares = rng.uniform(0.1, 1, (servers, servers, servers + 2)) * paths(servers)
    shares[..., :servers] *= rng.random((servers, servers, servers)) < kept
    shares /= np.maximum(shares.sum(2, keepdims=True), 1e-9)
    demand = rng.uniform(0.1, 1, (servers, servers)) * (rng.random((servers, servers)) < 0.8)
    np.fill_diagonal(demand, 0)
    return count + count.T, shares, demand


def loads(shares, demand, efficiency):
    """Bytes on every circuit [S S] and EPS port [2 S], path by path."""
    servers = len(demand)
    circuit, port = np.zeros((servers, servers)), np.zeros((2, servers))
    for i in range(servers):
        for j in range(servers):
            if i != j:
                *via, direct, eps = shares[i, j] * demand[i, j]
                for k, part in enumerate(via):
                    circuit[i, k] += part
                    circuit[k, j] += part / efficiency
                circuit[i, j] += direct
                port[0, i] += eps
                port[1, j] += eps
    return circuit, port


def simulated(count, shares, demand, efficiency, electrical):
    """Slowest pair of the exact fluid simulation, in fractions."""
    servers = len(demand)
    capacity = [Fraction(float(c)) for c in count.ravel()] + [Fraction(electrical)] * (2 * servers)
    pairs, hops = [(int(i), int(j)) for i, j in np.argwhere(demand > 0)], []
    for i, j in pairs:
        *via, direct, eps = (Fraction(float(s)) for s in shares[i, j])
        path = [(i * servers + k, s) for k, s in enumerate(via)]
        path += [(k * servers + j, s / Fraction(efficiency)) for k, s in enumerate(via)]
        path += [(i * servers + j, direct), (servers**2 + i, eps), (servers**2 + servers + j, eps)]
        hops.append([(link, s) for link, s in path if s])
    sizes = [Fraction(float(demand[pair])) for pair in pairs]
    ends = completion(capacity, hops, [Fraction(1)] * len(pairs), [np.inf] * len(pairs), sizes, [0] * len(pairs))
    return float(max(ends, default=0))


@pytest.mark.parametrize("servers", [2, 3])
@pytest.mark.parametrize("efficiency", [1.0, 0.5])
def test_agrees_with_an_exact_simulation(servers, efficiency):
    for seed in range(12):
        count, shares, demand = draw(seed, servers)
        where = region(servers, relay_efficiency=efficiency)
        expected = simulated(count, shares, demand, efficiency, 2)
        np.testing.assert_allclose(seconds(where, count, shares, demand), expected, rtol=1e-9)


def test_everything_direct_is_the_slowest_circuit():
    for seed in range(6):
        count, _, demand = draw(seed, 4)
        slowest = (demand / np.maximum(count, 0.1)).max()
        np.testing.assert_allclose(seconds(region(4), count, all_over(4, 4), demand), slowest, rtol=1e-12)


def test_everything_on_the_eps_is_a_star():
    for seed in range(6):
        count, _, demand = draw(seed, 4)
        demand[:, seed % 4] *= 10
        star = tree(demand, np.full(4, 2.0), np.full(4, 2.0)).max()
        np.testing.assert_allclose(seconds(region(4), count, all_over(4, 5), demand), star, rtol=1e-9)
        most = max(demand.sum(0).max(), demand.sum(1).max())
        np.testing.assert_allclose(bound(region(4), count, all_over(4, 5), demand), most / 2, rtol=1e-12)


@pytest.mark.parametrize("efficiency", [1.0, 0.5, 0.25])
def test_one_relay_by_hand(efficiency):
    # 0 sends 8 bytes to 1: a quarter via 2, half direct, a quarter over the EPS. Circuits 0-2 of 2 B/s, 2-1 of 1, 0-1
    # of 2, ports of 2: the second relay hop takes 2 / efficiency bytes at 1 B/s, the direct circuit 4 / 2 = 2 s.
    count, demand = np.array([[0, 2, 2], [2, 0, 1], [2, 1, 0]]), np.zeros((3, 3))
    demand[0, 1] = 8
    shares = all_over(3, 3)
    shares[0, 1] = [0, 0, 0.25, 0.5, 0.25]
    where = region(3, relay_efficiency=efficiency)
    np.testing.assert_allclose(seconds(where, count, shares, demand), max(2, 2 / efficiency), rtol=1e-12)


def test_a_relay_shares_its_circuits_with_the_direct_pairs():
    # 0 -> 1 only via 2 (2 bytes); 0 -> 2 direct (1 byte): the circuit 0-2 of 1 B/s gives each 1/2 until 2 s, then the
    # relayed pair has it alone: 3 s. On its way out, 2-1 carries 2 -> 1 (4 bytes at 2 B/s) too: it never binds.
    count, demand = np.array([[0, 0, 1], [0, 0, 4], [1, 4, 0]]), np.array([[0, 2.0, 1], [0, 0, 0], [0, 4, 0]])
    shares = all_over(3, 3)
    shares[0, 1] = [0, 0, 1, 0, 0]
    np.testing.assert_allclose(seconds(region(3), count, shares, demand), 3, rtol=1e-12)


@pytest.mark.parametrize("efficiency", [1.0, 0.6])
def test_no_earlier_than_the_busiest_link(efficiency):
    for seed in range(12):
        count, shares, demand = draw(seed, 4)
        where = region(4, relay_efficiency=efficiency)
        circuit, port = loads(shares, demand, efficiency)
        busiest = max((circuit / np.where(count > 0, count, 1)).max(), port.max() / 2)
        np.testing.assert_allclose(bound(where, count, shares, demand), busiest, rtol=1e-12)
        at = seconds(where, count, shares, demand)
        assert at >= busiest * (1 - 1e-12)
        # Every server's bytes leave over one of its links, once.
        nics = eqx.tree_at(lambda r: r.optical_degree, where, count.sum(1).max())
        assert at >= degree_bound(nics, demand) * (1 - 1e-12)


def test_a_single_bottleneck_is_reached():
    # One circuit is slow, so slow that everything else is through before.
    for seed in range(6):
        count, shares, demand = draw(seed, 4, kept=1.0)
        demand[:] = 0.1
        np.fill_diagonal(demand, 0)
        count[0, 1] = count[1, 0] = 0.001
        at, least = seconds(region(4), count, shares, demand), bound(region(4), count, shares, demand)
        np.testing.assert_allclose(at, least, rtol=1e-9)


def test_split_is_relay_with_its_own_shares():
    for seed in range(6):
        count, _, demand = draw(seed, 4)
        where = region(4)
        split = all_to_all_time(where, Circuits(count), demand, routing="split")
        shares = all_over(4, 4)
        shares[..., 4] = np.minimum(count * split / np.maximum(demand, 1e-9), 1)
        shares[..., 5] = 1 - shares[..., 4]
        np.testing.assert_allclose(bound(where, count, shares, demand), split, rtol=1e-12)
        assert seconds(where, count, shares, demand) >= split * (1 - 1e-9)


def test_a_share_over_a_missing_circuit_never_arrives_and_no_share_needs_none():
    count, demand = np.zeros((3, 3)), 1 - np.eye(3)
    shares = all_over(3, 4)
    assert np.isfinite(seconds(region(3), count, shares, demand))
    shares[0, 1] = [0, 0, 0.1, 0, 0.9]
    assert seconds(region(3), count, shares, demand) == np.inf
    assert bound(region(3), count, shares, demand) == np.inf
    demand[0, 1] = 0
    assert np.isfinite(seconds(region(3), count, shares, demand))
    assert seconds(region(3), count, shares, demand * 0) == 0


def test_the_parts_are_the_last_pairs_that_use_circuits_and_the_eps():
    # 0 -> 1 direct (3 s), 1 -> 2 over the EPS (2 s), 2 -> 0 half and half (EPS port of 2 B/s free: circuit 1 s).
    count, demand = np.array([[0, 1, 1], [1, 0, 0], [1, 0, 0]]), np.array([[0, 3.0, 0], [0, 0, 4], [2, 0, 0]])
    shares = all_over(3, 4)
    shares[0, 1], shares[2, 0] = [0, 0, 0, 1, 0], [0, 0, 0, 0.5, 0.5]
    for where, parts in ((0, (3, 2)), (3, (1, 2))):
        demand[0, 1] = 3 - where
        got = part_times(region(3), Plan(Circuits(count), shares), demand, routing="relay")
        np.testing.assert_allclose(got, parts, rtol=1e-12)


MISTAKES = {
    "sum to 1": lambda s: s.__setitem__((0, 1, 4), 0.5),
    "through an end": lambda s: s.__setitem__((0, 1), [0.5, 0, 0, 0.5, 0]),
    "an end of the pair": lambda s: s.__setitem__((0, 1), [0, 0.5, 0, 0.5, 0]),
    "0 or more": lambda s: s.__setitem__((0, 1), [0, 0, -0.5, 0.5, 1]),
}


@pytest.mark.parametrize("sentence", MISTAKES)
def test_impossible_shares_are_named(sentence):
    count, demand, shares = np.ones((3, 3)), np.ones((3, 3)), all_over(3, 4)
    MISTAKES[sentence](shares)
    with pytest.raises(InputError, match=sentence) as mistake:
        all_to_all_time(region(3), Plan(Circuits(count), shares), demand, routing="relay")
    assert "0 -> 1" in str(mistake.value)
    # Traced, they cannot be named, but lost bytes are not passed over.
    lost = jax.jit(lambda s: all_to_all_time(region(3), Plan(Circuits(count), s), demand, routing="relay"))
    assert np.isnan(lost(shares))


def test_relay_without_shares_is_named():
    count, demand = np.ones((3, 3)), np.ones((3, 3))
    for plan in (Circuits(count), Plan(Circuits(count))):
        with pytest.raises(InputError, match="shares"):
            all_to_all_time(region(3), plan, demand, routing="relay")
    with pytest.raises(InputError, match=r"\[3, 3, 5\]"):
        all_to_all_time(region(3), Plan(Circuits(count), np.ones((3, 3, 3))), demand, routing="relay")


@pytest.mark.parametrize("efficiency", [0.0, -1.0, 1.5, np.nan])
def test_an_impossible_efficiency_is_named(efficiency):
    with pytest.raises(InputError, match="relay_efficiency"):
        region(3, relay_efficiency=efficiency)


def test_a_batch_equals_its_loop():
    stacked = [np.stack(column) for column in zip(*(draw(seed, 3) for seed in range(6)), strict=True)]
    efficiency = np.linspace(0.5, 1, 6)

    def one(count, shares, demand, efficiency):
        return seconds(region(3, relay_efficiency=efficiency), count, shares, demand)

    together = jax.jit(jax.vmap(one))(*stacked, efficiency)
    alone = [one(*(x[index] for x in stacked), efficiency[index]) for index in range(6)]
    np.testing.assert_allclose(together, alone, rtol=1e-12)


def scaled(fixed, at):
    where = region(3, electrical_nics=at["electrical"], relay_efficiency=at["efficiency"])
    return all_to_all_time(where, Plan(Circuits(at["count"]), at["shares"]), at["demand"], routing="relay")


slopes = Derivatives(scaled)


@pytest.mark.parametrize("seed", range(6))
def test_derivatives_against_differences(seed):
    count, shares, demand = draw(seed, 3)
    at = {"count": count, "shares": shares, "demand": demand}
    slopes.check({}, at | {"electrical": np.array(1.7), "efficiency": np.array(0.8)}, seed)


def test_float32_agrees():
    for seed in range(6):
        one = [x.astype(np.float32) for x in draw(seed, 3)]
        where = Region(servers=3, nic_gbps=np.float32(8e-9), electrical_nics=2)
        got = seconds(where, *one)
        assert got.dtype == jnp.float32
        np.testing.assert_allclose(got, seconds(region(3), *(x.astype(float) for x in one)), rtol=1e-5)


def test_the_degree_bound_by_hand():
    # Server 0 sends 4 + 6 bytes, server 2 receives 6 + 7; eight NICs of 1 B/s.
    demand = np.array([[100, 4.0, 6], [0, 0, 7], [0, 0, 0]])
    np.testing.assert_allclose(degree_bound(region(3), demand), 13 / 8, rtol=1e-15)
    assert degree_bound(region(3, optical_degree=0, electrical_nics=0), demand) == np.inf
    assert degree_bound(region(3, optical_degree=0, electrical_nics=0), demand * 0) == 0
    demand[0, 1] = np.nan
    assert np.isnan(degree_bound(region(3), demand))
