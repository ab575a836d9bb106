"""Drawn regions of NICs of 1 byte/s, all padded to 8 servers: one compiled program per routing. And plain oracles."""

import itertools
from fractions import Fraction

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.policies import Plan
from mfabric_jax.routing.region import part_times
from tests.oracles.graph import completion
from tests.oracles.tree import tree

SERVERS = 8
DIRECT, EPS = SERVERS, SERVERS + 1  # places in the shares, behind the servers that relay


def region(ports=2.0, *, efficiency=1.0, nic_gbps=8e-9, degree=6.0, dtype=float):
    """Numbers are arrays: other ones are no other program. `ports`: EPS ports of every server or of all."""
    nic_gbps, degree, efficiency = (np.asarray(x, dtype) for x in (nic_gbps, degree, efficiency))
    ports = np.broadcast_to(np.asarray(ports, dtype), SERVERS)
    return Region(SERVERS, nic_gbps, degree, ports, relay_efficiency=efficiency)


@eqx.filter_jit
def timed(where, count, demand, routing, shares):
    plan = Plan(Circuits(count), shares if routing == "relay" else None)
    return jnp.maximum(*part_times(where, plan, demand, routing=routing))  # of illegal circuits too


def seconds(where, count, demand, routing="unsplit", shares=None):
    """The time of one all-to-all, its arguments padded."""
    shares = all_over(DIRECT) if shares is None else shares
    return timed(where, padded(count), padded(demand), routing, shares)


def padded(table):
    """[S S] floats with servers behind that have no circuits and send nothing."""
    return np.pad(np.asarray(table, float), (0, SERVERS - len(table)))


def pairs(values, *, both=False, servers=SERVERS):
    """[S S] of {(i, j): value}; circuits join both ways."""
    table = np.zeros((servers, servers))
    for (i, j), value in values.items():
        table[i, j] = value
        table[j, i] = value if both else table[j, i]
    return table


def circuits(values):
    return pairs(values, both=True)


def all_over(place):
    shares = np.zeros((SERVERS, SERVERS, SERVERS + 2))
    shares[..., place] = 1
    return shares


def dealt(rng, degree, tries):
    """Circuits of drawn pairs, `tries` for each server, as long as both ends have a NIC left."""
    servers = len(degree)
    count = np.zeros((servers, servers))
    for i, j in rng.integers(servers, size=(tries * servers, 2)):
        if i != j and count[i].sum() < degree[i] and count[j].sum() < degree[j]:
            count[[i, j], [j, i]] += 1
    return count


def draw(seed, servers=SERVERS, ports=None):
    """(demand, circuits, EPS ports): dense, sparse or hot demand of about 1 byte; circuits within drawn degrees, or
    none; some servers without an EPS port. Pairs without any way send nothing."""
    rng = np.random.default_rng([seed, servers])
    demand = rng.uniform(0.1, 1, (servers, servers)) ** 2 * (rng.random((servers, servers)) < (0.8, 0.4, 1)[seed % 3])
    demand[:, 0] *= 20 if seed % 5 == 4 else 1
    np.fill_diagonal(demand, 0)
    count = dealt(rng, rng.choice([0, 2, 4, 6], servers, p=[0.1, 0.2, 0.3, 0.4]), 12) * (seed % 8 != 7)
    drawn = rng.choice([0.0, 1.0, 2.0, 3.5], servers, p=[0.1, 0.3, 0.5, 0.1])
    ports = drawn if ports is None else np.full(servers, float(ports))
    ways = (count > 0) | (np.minimum.outer(ports, ports) > 0)
    return padded(np.where(ways, demand, 0)), padded(count), np.pad(ports, (0, SERVERS - servers))


def draw_shares(seed, count, ports, kept=0.7):
    """Random shares over the paths that exist; pairs without any keep to circuits or EPS."""
    rng, shares = np.random.default_rng(seed), all_over(EPS) * 0
    for i, j in itertools.permutations(range(SERVERS), 2):
        way = [*((count[i] > 0) & (count[:, j] > 0)), count[i, j] > 0, min(ports[i], ports[j]) > 0]
        shares[i, j] = rng.uniform(0.1, 1, SERVERS + 2) * way * (rng.random(SERVERS + 2) < kept)
        if not shares[i, j].any():
            shares[i, j, DIRECT if count[i, j] else EPS] = 1
    return shares / np.maximum(shares.sum(2, keepdims=True), 1e-9)


def circuit_seconds(demand, count):
    return np.where(demand > 0, np.where(count > 0, demand / np.maximum(count, 1e-9), np.inf), 0)


def port_seconds(rest, ports):
    """Of the busiest EPS port; infinity where a dead one has bytes."""
    load = np.maximum(rest.sum(0), rest.sum(1))
    return max((b / p if p else np.inf for b, p in zip(load, ports, strict=True) if b), default=0.0)


def divided(demand, count, ports, kept):
    """(exact time, time if the EPS is paced) when the pairs in `kept` use their circuits and all others the EPS."""
    slowest, rest = circuit_seconds(np.where(kept, demand, 0), count).max(), np.where(kept, 0, demand)
    return max(slowest, tree(rest, ports, ports).max()), max(slowest, port_seconds(rest, ports))


def relayed(demand, count, ports, shares, efficiency):
    """Slowest pair under relay routing, in fractions."""
    capacity = [Fraction(float(c)) for c in [*count.ravel(), *ports, *ports]]
    flows, hops = np.argwhere(demand > 0), []
    for i, j in flows:
        *via, direct, eps = (Fraction(float(s)) for s in shares[i, j])
        path = [(i * SERVERS + k, s) for k, s in enumerate(via)]
        path += [(k * SERVERS + j, s / Fraction(float(efficiency))) for k, s in enumerate(via)]
        path += [(i * SERVERS + j, direct), (SERVERS**2 + i, eps), (SERVERS**2 + SERVERS + j, eps)]
        hops.append([(link, s) for link, s in path if s])
    sizes = [Fraction(float(demand[i, j])) for i, j in flows]
    return float(max(completion(capacity, hops, size=sizes), default=0))


def busiest_link(demand, count, ports, shares, efficiency):
    """Under relay routing, with all flows paced."""
    via, direct, eps = np.split(shares * demand[:, :, None], [SERVERS, SERVERS + 1], axis=2)
    load = direct[..., 0] + via.sum(1) + np.einsum("ijk->kj", via) / efficiency
    return max(circuit_seconds(load, count).max(), port_seconds(eps[..., 0], ports))
