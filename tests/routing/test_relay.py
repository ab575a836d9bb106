"""Relay routing with given shares: against an exact fluid simulation in fractions, and by hand."""

import equinox as eqx
import jax
import numpy as np
import pytest

from mfabric_jax import InputError, all_to_all_time
from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.policies import Plan
from mfabric_jax.routing import degree_bound
from mfabric_jax.routing.region import part_times, relay_bound
from tests.routing.regions import (
    DIRECT,
    EPS,
    SERVERS,
    all_over,
    busiest_link,
    circuits,
    draw,
    draw_shares,
    pairs,
    region,
    relayed,
    seconds,
)


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
    demand[0, 1] = 0
    assert np.isfinite(time(where, pairs({}), shares, demand))
    assert time(where, pairs({}), shares, demand * 0) == 0


def test_the_parts_are_the_last_pairs_that_use_circuits_and_the_eps():
    # 0 -> 1 direct (3 s, then 0), 1 -> 2 over the EPS (2 s), 2 -> 0 half and half (EPS port of 2 B/s: circuit 1 s).
    count, shares = circuits({(0, 1): 1, (0, 2): 1}), shared({(1, 2): {EPS: 1}, (2, 0): {DIRECT: 0.5, EPS: 0.5}})
    for sent, want in ((3, (3, 2)), (0, (1, 2))):
        demand, plan = pairs({(0, 1): sent, (1, 2): 4, (2, 0): 2}), Plan(Circuits(count), shares)
        np.testing.assert_allclose(part_times(region(), plan, demand, routing="relay"), want, rtol=1e-12)


MISTAKES = {
    "sum to 1": {DIRECT: 0.5},
    "through an end": {0: 0.5, DIRECT: 0.5},
    "an end of the pair": {1: 0.5, DIRECT: 0.5},
    "0 or more": {2: -0.5, DIRECT: 0.5, EPS: 1},
}


def test_impossible_shares_are_named():
    count = demand = 1 - np.eye(SERVERS)

    def relay(shares):
        return all_to_all_time(region(), Plan(Circuits(count), shares), demand, routing="relay")

    lost = jax.jit(relay)
    for sentence, parts in MISTAKES.items():
        shares = shared({(0, 1): parts})
        with pytest.raises(InputError, match=sentence) as mistake:
            relay(shares)
        assert "0 -> 1" in str(mistake.value)
        assert np.isnan(lost(shares))  # traced, they cannot be named, but lost bytes are not passed over
    for plan, words in (
        (Circuits(count), "shares"),
        (Plan(Circuits(count)), "shares"),
        (Plan(Circuits(count), np.ones((3, 3, 3))), r"\[8, 8, 10\]"),
    ):
        with pytest.raises(InputError, match=words):
            all_to_all_time(region(), plan, demand, routing="relay")
    for efficiency in (0.0, -1.0, 1.5, np.nan):
        with pytest.raises(InputError, match="relay_efficiency"):
            Region(3, 8e-9, relay_efficiency=efficiency)
