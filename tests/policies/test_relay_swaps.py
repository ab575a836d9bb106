"""Swaps of circuits are legal and small; link prices find the one that matters, and tell what a circuit is worth."""

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given

from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.policies._soft_circuits import rounded
from mfabric_jax.policies.relay_swaps import circuit_worth, swaps
from mfabric_jax.routing import best_relay_shares
from tests.policies.drawn import SEEDS, SOME_EPS, any_degrees, assert_legal
from tests.routing.regions import pairs

SERVERS, MANY = 5, 6


@jax.jit
def tried(count, degrees, electrical, demand, shares, key):
    region = Region(SERVERS, 400.0, degrees, electrical)
    worth = circuit_worth(region, Circuits(count), shares, demand)
    return worth, swaps(count, degrees, worth, key, MANY)


@given(SEEDS, any_degrees(SERVERS), SOME_EPS)
def test_every_swap_is_legal_and_moves_two_circuits_at_most(seed, degrees, electrical):
    rng = np.random.default_rng(seed)
    degrees = np.asarray(degrees, np.int32)
    count = rounded(rng.uniform(0, 2, (SERVERS, SERVERS)), degrees, least=rng.choice([0.0, 0.5]))
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
