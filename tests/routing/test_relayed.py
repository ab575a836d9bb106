"""A server that has lost its way to the packet switches: against an exact simulation of its relay."""

import functools
from fractions import Fraction

import equinox as eqx
import numpy as np

from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.routing.region import relayed_part_times
from tests.batches import assert_batch_is_its_loop
from tests.oracles.graph import completion
from tests.routing.regions import pairs


@eqx.filter_jit
def parts(count, demand, ports, server, nic_gbps=8e-9):
    """NICs of 1 byte/s unless told otherwise."""
    region = Region(servers=4, nic_gbps=nic_gbps, electrical_nics=ports)
    return relayed_part_times(region, Circuits(count), demand, server=server)


def draw(seed, server):
    """Demand and circuits; the server without ports has a circuit at least, other ports are unequal."""
    rng = np.random.default_rng([seed, 4, server])
    count = np.triu(rng.integers(1, 4, (4, 4)) * (rng.random((4, 4)) < 0.4), 1)
    count += count.T
    if not count[server].any():
        peer = rng.choice([s for s in range(4) if s != server])
        count[server, peer] = count[peer, server] = 2
    ports = np.where(np.arange(4) == server, 0, rng.choice([0.5, 1.0, 2.0], 4))
    return count, rng.integers(0, 9, (4, 4)).astype(float), ports


def simulated(count, demand, ports, server):
    """When the last pair with any hop on a circuit, and the last with one on a port, are done."""
    servers, peer = len(demand), max(range(len(demand)), key=lambda s: (count[server][s], -s))
    capacity = {("circuit", a, b): Fraction(int(count[a, b])) for a in range(servers) for b in range(servers)}
    capacity |= {(way, s): Fraction(ports[s]) for way in ("up", "down") for s in range(servers)}
    number, paths, sizes = {link: n for n, link in enumerate(capacity)}, [], []
    for a, b in np.argwhere(demand * ~np.eye(servers, dtype=bool) > 0).tolist():
        if count[a, b]:
            path = [("circuit", a, b)]
        elif a == server:
            path = [("circuit", a, peer), ("up", peer), ("down", b)]
        elif b == server:
            path = [("up", a), ("down", peer), ("circuit", peer, b)]
        else:
            path = [("up", a), ("down", b)]
        paths.append(path)
        sizes.append(Fraction(demand[a, b]))
    hops = [[(number[link], Fraction(1)) for link in path] for path in paths]
    finish = completion(list(capacity.values()), hops, size=sizes)

    def last(kinds):
        ends = (f for path, f in zip(paths, finish, strict=True) if any(link[0] in kinds for link in path))
        return float(max(ends, default=0))

    return last({"circuit"}), last({"up", "down"})


def test_agrees_with_an_exact_simulation():
    for server in (0, 2, 3):
        cases = [draw(seed, server) for seed in range(12)]
        each = [parts(*case, server) for case in cases]
        np.testing.assert_allclose(each, [simulated(*case, server) for case in cases], rtol=1e-9)
    assert_batch_is_its_loop(functools.partial(parts, server=server), cases, rtol=1e-12)


def test_without_a_circuit_nothing_leaves_and_nothing_arrives():
    count, ports = pairs({(1, 3): 2}, both=True, servers=4).astype(int), np.array([0, 2.0, 2, 2])
    for sent, want in (((0, 1), np.inf), ((1, 0), np.inf), ((1, 3), 1 / 2)):
        np.testing.assert_allclose(parts(count, pairs({sent: 1}, servers=4), ports, 0)[0], want, rtol=1e-12)
