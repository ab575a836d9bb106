"""Circuits that stay carry while others turn: what waits by hand, and iterations with it and without."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.policies import Plan
from mfabric_jax.routing.region import parts_that_wait
from mfabric_jax.timing.exchange import exchanges_between
from tests.mistakes import check_refused
from tests.timing.jobs import DRAWN, SECONDS, region, timed
from tests.timing.jobs import TOKENS as ALL
from tests.timing.test_first import TOKENS as TWO_PAIRS
from tests.timing.test_first import WORKLOAD, both_parts, one_pair
from tests.timing.test_spans import GB, RTOL, seconds

WHERE = Region(4, 8.0, 6, 1.0)


def square(pairs, both=True):
    found = np.zeros((4, 4))
    for (i, j), value in pairs.items():
        found[i, j] = value
        found[j, i] = value if both else found[j, i]
    return found


def waits(count, demand, turns, routing, shares=None):
    plan = Plan(Circuits(jnp.asarray(square(count), int)), shares)
    turning = jnp.asarray(square(dict.fromkeys(turns, 1)) > 0)
    return parts_that_wait(WHERE, plan, jnp.asarray(GB * square(demand, both=False)), turning, routing=routing)


def test_pairs_that_are_set_up_anew_wait():
    count, demand = {(0, 1): 1, (2, 3): 2}, {(0, 1): 2, (2, 3): 6, (0, 2): 1}
    for turns, late in (([(0, 1)], 2), ([(2, 3)], 3), ([(0, 1), (2, 3)], 3), ([], 0)):
        np.testing.assert_allclose(waits(count, demand, turns, "unsplit"), (3, 1, late), rtol=RTOL)
    # Split: 2 GB over a circuit and the port beside it take 1 s on either.
    np.testing.assert_allclose(waits({(0, 1): 1}, {(0, 1): 2}, [(0, 1)], "split"), (1, 1, 1), rtol=RTOL)


def test_a_path_waits_for_either_of_its_circuits():
    # 0 -> 2: a half over server 1, a half over packet switches; 0 -> 1: 1 GB on its circuit.
    shares = np.zeros((4, 4, 6))
    shares[..., -1] = 1 - np.eye(4)
    shares[0, 2] = [0, 0.5, 0, 0, 0, 0.5]
    shares[0, 1] = [0, 0, 0, 0, 1, 0]
    count, demand = {(0, 1): 1, (1, 2): 1}, {(0, 2): 4, (0, 1): 1}
    for turns, late in (([(1, 2)], 2), ([(0, 1)], 3), ([(2, 3)], 0)):
        np.testing.assert_allclose(waits(count, demand, turns, "relay", shares), (3, 2, late), rtol=RTOL)


# Two blocks: server 0 sends 6 GB to 1, always on 3 circuits, and 3 GB to 2 in one and to 3 in the other, on 3 circuits
# that turn: 2 s and 1 s. In the steady state the switch turns for block 1 forward and for block 0 backward.
def tokens_of(peers):
    tokens = np.zeros((2, 1, 8, 8))
    for layer, peer in enumerate(peers):
        tokens[layer, 0, 0, 2], tokens[layer, 0, 0, 2 * peer] = 3e6, 1.5e6
    return tokens


def one_turns(demand, region, *, previous=None, key=None):
    stays, a, b = square({(0, 1): 3}), square({(0, 2): 3}), square({(0, 3): 3})
    return Plan(Circuits(jnp.asarray(stays + jnp.where(demand[0, 2] > demand[0, 3], a, b), int)))


def solved(policy, tokens, partial):
    found = exchanges_between(WORKLOAD, Region(4, 8.0, 6, 1.0), tokens, policy, partial=partial)
    return found._replace(inside=0 * found.inside)


def test_what_stays_ends_at_its_own_time_and_what_turns_after_the_delay():
    whole, partly = (solved(one_turns, tokens_of((2, 3)), partial) for partial in (False, True))
    np.testing.assert_array_equal(np.asarray(partly.switch)[0, ..., 0], [[False, True], [False, True]])
    np.testing.assert_allclose(partly.optical, np.full((1, 2, 2, 2), 2 * GB), rtol=RTOL)
    # Nothing turned yet in this iteration; then the circuits to 3, until those to 2 turn.
    np.testing.assert_allclose(partly.waiting[0], GB * np.array([[[0, 0], [1, 1]], [[1, 1], [1, 1]]]), rtol=RTOL)
    for delay, paid in ((0.5, (0.5, 0)), (1.0, (1.0, 0)), (1.75, (1.75, 0.75))):
        for found, each in zip((whole, partly), paid, strict=True):
            np.testing.assert_allclose(seconds(found, delay)[1], 2 * each, rtol=1e-6, atol=1e-9)


def test_where_everything_changes_everything_waits():
    whole, partly = (solved(one_pair, TWO_PAIRS, partial) for partial in (False, True))
    for delay in (0.25, 4.0):
        np.testing.assert_allclose(seconds(whole, delay), seconds(partly, delay), rtol=RTOL)


@eqx.filter_jit
def both_ways(region):
    found = [exchanges_between(DRAWN, region, ALL, half_turns, partial=partial) for partial in (False, True)]
    return [timed(DRAWN, region, one, SECONDS, 10e9) for one in found], found[1]


def half_turns(demand, region, *, previous=None, key=None):
    """Servers 0 and 1 keep 3 circuits; what 2 and 3 have depends on the demand."""
    a, b = square({(2, 3): 3}), square({(0, 2): 2, (1, 3): 2})
    return Plan(Circuits(jnp.asarray(square({(0, 1): 3}) + jnp.where(demand[2, 3] > demand[0, 2], a, b), int)))


def test_never_later_than_when_all_wait():
    earlier = 0
    for delay in (0.1, 2.0, 8.0):
        (whole, partly), found = both_ways(region(delay=delay))
        assert partly.iteration_s <= whole.iteration_s
        earlier += float(partly.iteration_s) < float(whole.iteration_s) * (1 - 1e-6)
    assert earlier
    assert (np.asarray(found.waiting) <= np.asarray(found.optical)).all()


def test_paths_that_are_given_turn_together():
    given = {"carry": both_parts, "partial": True}
    said = "^partial needs flows that spread; carry must be None"
    check_refused(said, exchanges_between, WORKLOAD, WHERE, TWO_PAIRS, one_pair, **given)
