"""A server that has lost its way to the packet switches: by hand and against an exact simulation of its relay."""

import re
from fractions import Fraction

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mfabric_jax import InputError
from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.routing import part_times, relayed_part_times
from tests.oracles.fluid import completion


@eqx.filter_jit
def parts(count, demand, ports, server):
    """NICs of 1 byte/s."""
    region = Region(servers=len(demand), nic_gbps=8e-9, electrical_nics=ports)
    return relayed_part_times(region, Circuits(count), demand, server=server)


@eqx.filter_jit
def unsplit(count, demand, ports):
    return part_times(Region(servers=len(demand), nic_gbps=8e-9, electrical_nics=ports), Circuits(count), demand)


def circuits(servers, *pairs):
    count = np.zeros((servers, servers), int)
    for a, b, many in pairs:
        count[a, b] = count[b, a] = many
    return count


def between(servers, *flows):
    demand = np.zeros((servers, servers))
    for a, b, size in flows:
        demand[a, b] = size
    return demand


def ports_without(server, servers, port=2.0):
    return np.where(np.arange(servers) == server, 0, port)


def draw(seed, servers, server):
    """Demand and circuits; the server without ports has a circuit at least, other ports are unequal."""
    rng = np.random.default_rng([seed, servers, server])
    count = np.triu(rng.integers(1, 4, (servers, servers)) * (rng.random((servers, servers)) < 0.4), 1)
    count += count.T
    if not count[server].any():
        peer = rng.choice([s for s in range(servers) if s != server])
        count[server, peer] = count[peer, server] = 2
    ports = np.where(np.arange(servers) == server, 0, rng.choice([0.5, 1.0, 2.0], servers))
    return count, rng.integers(0, 9, (servers, servers)).astype(float), ports


def simulated(count, demand, ports, server):
    """When the last pair with any hop on a circuit, and the last with one on a port, are done."""
    servers, peer = len(demand), max(range(len(demand)), key=lambda s: (count[server][s], -s))
    capacity = {("circuit", a, b): Fraction(int(count[a, b])) for a in range(servers) for b in range(servers)}
    capacity |= {(way, s): Fraction(ports[s]) for way in ("up", "down") for s in range(servers)}
    number, flows = {link: n for n, link in enumerate(capacity)}, []
    for a, b in np.argwhere(demand > 0).tolist():
        if a == b:
            continue
        if count[a, b]:
            path = [("circuit", a, b)]
        elif a == server:
            path = [("circuit", a, peer), ("up", peer), ("down", b)]
        elif b == server:
            path = [("up", a), ("down", peer), ("circuit", peer, b)]
        else:
            path = [("up", a), ("down", b)]
        flows.append((path, Fraction(demand[a, b])))
    hops = [[(number[link], Fraction(1)) for link in path] for path, _ in flows]
    many = len(flows)
    finish = completion(list(capacity.values()), hops, [1] * many, [np.inf] * many, [s for _, s in flows], [0] * many)

    def last(kinds):
        ends = [f for (path, _), f in zip(flows, finish, strict=True) if any(link[0] in kinds for link in path)]
        return float(max(ends, default=0))

    return last({"circuit"}), last({"up", "down"})


@pytest.mark.parametrize(("servers", "server"), [(4, 0), (4, 2), (4, 3)])
def test_agrees_with_an_exact_simulation(servers, server):
    for seed in range(12):
        count, demand, ports = draw(seed, servers, server)
        got = parts(count, demand, ports, server)
        np.testing.assert_allclose(got, simulated(count, demand, ports, server), rtol=1e-9)


# Server 0 has lost its ports; it has 1 circuit to server 1 and 2 to server 2. Ports carry 2 bytes/s.
COUNT = circuits(4, (0, 1, 1), (0, 2, 2))
BY_HAND = {
    "nothing": ([], (0, 0)),
    "what stays": ([(0, 0, 9), (1, 1, 9)], (0, 0)),
    "a circuit of its own": ([(0, 1, 3)], (3, 0)),
    "out through the peer": ([(0, 3, 6)], (3, 3)),
    "back through the peer": ([(3, 0, 6)], (3, 3)),
    "the peer's circuits are shared": ([(0, 3, 6), (0, 2, 2)], (4, 4)),  # 1 byte/s each for 2 s, then 2
    "the peer's ports are shared": ([(0, 3, 6), (2, 1, 2)], (4, 4)),
    "the receiver's port is shared": ([(0, 3, 6), (1, 3, 2)], (4, 4)),
    "both ways at once": ([(0, 3, 6), (3, 0, 6)], (3, 3)),
    "the others do not care": ([(1, 3, 5), (3, 2, 4)], (0, 2.5)),
    "circuits of others": ([(1, 0, 3), (3, 1, 8)], (3, 4)),
}


@pytest.mark.parametrize("case", BY_HAND)
def test_by_hand(case):
    flows, want = BY_HAND[case]
    got = parts(COUNT, between(4, *flows), ports_without(0, 4), 0)
    np.testing.assert_allclose(got, want, rtol=1e-12, atol=0)


def test_the_first_of_equal_peers_relays():
    count, demand = circuits(4, (3, 1, 1), (3, 2, 1)), between(4, (3, 0, 4))
    for ports, want in (([1.0, 1, 2, 0], 4), ([1, 0.5, 2, 0], 8), ([1, 1, 0.5, 0], 4)):
        np.testing.assert_allclose(parts(count, demand, np.array(ports), 3), (want, want), rtol=1e-12)


@pytest.mark.parametrize("server", [0, 2])
def test_without_a_circuit_nothing_leaves(server):
    count, ports = circuits(4, (1, 3, 2)), ports_without(server, 4)
    away, back = (between(4, pair) for pair in ((server, 1, 1.0), (1, server, 1.0)))
    assert parts(count, away, ports, server)[0] == np.inf
    assert parts(count, back, ports, server)[0] == np.inf
    np.testing.assert_allclose(parts(count, between(4, (1, 3, 4)), ports, server), (2, 0), rtol=1e-12)


def test_a_server_joined_to_all_needs_no_relay():
    # Then it is unsplit routing, whose parts another engine solves.
    for seed in range(6):
        count, demand, ports = draw(seed, 4, 1)
        count[1], count[:, 1] = 2, 2
        count[1, 1] = 0
        want = unsplit(count, demand, ports)
        np.testing.assert_allclose(parts(count, demand, ports, 1), want, rtol=1e-9)


def test_a_batch_equals_its_loop():
    drawn = [draw(seed, 4, 2) for seed in range(8)]
    got = jax.jit(jax.vmap(lambda *one: parts(*one, 2)))(*(np.stack(column) for column in zip(*drawn, strict=True)))
    want = [parts(*one, 2) for one in drawn]
    np.testing.assert_allclose(np.stack(got, axis=1), want, rtol=1e-12)


def test_bandwidth_and_single_precision():
    count, demand, ports = draw(5, 4, 2)
    region = Region(servers=4, nic_gbps=400.0, electrical_nics=ports)
    got = relayed_part_times(region, Circuits(count), jnp.asarray(demand * 1e9, jnp.float32), server=2)
    assert got[0].dtype == got[1].dtype == jnp.float32
    want = np.array(simulated(count, demand, ports, 2)) * 1e9 / 50e9
    np.testing.assert_allclose(got, want, rtol=1e-5)


def test_integers_are_bytes_too():
    count, demand, ports = draw(6, 4, 2)
    region = Region(servers=4, nic_gbps=4e-9, electrical_nics=ports)  # half a byte per second
    got = relayed_part_times(region, Circuits(count), demand.astype(int), server=2)
    np.testing.assert_allclose(got, 2 * np.array(simulated(count, demand, ports, 2)), rtol=1e-9)


def test_demand_that_does_not_fit():
    region = Region(servers=4, nic_gbps=8e-9)
    with pytest.raises(InputError, match=re.escape("demand must be [S S] with S = 4 servers, got [3, 3].")):
        relayed_part_times(region, Circuits(COUNT), np.ones((3, 3)), server=0)
