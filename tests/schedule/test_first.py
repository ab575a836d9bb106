"""Which circuits every all-to-all finds: by hand under each rule, and chains of drawn ones against plain Python."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mfabric_jax.checks import InputError
from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.policies import Plan, greedy
from mfabric_jax.schedule import First, rates_of
from mfabric_jax.schedule.exchange import exchanges_between
from mfabric_jax.schedule.first import FIRST, SlotsToServe, TradeOff, choose
from mfabric_jax.schedule.iteration import walk
from mfabric_jax.workload import BlockSeconds
from tests.oracles.greedy import greedy as plain_greedy
from tests.schedule.jobs import job

RTOL = 1e-9

# ------------------------------------------------------------------------------------------------ iterations by hand
# One stage, one micro-batch, two blocks on 4 servers of two ranks. Every dispatch of block 0 sends 6 GB from server 0
# to 1, of block 1 from 2 to 3. Policy: all 6 circuits for the pair that needs them: A (0, 1) or B (2, 3). NICs of
# 1 GB/s: 1 s on 6 circuits; 3 s on 2 of the uniform topology, which random circuits also are, 2 for each of 3 peers
# (U); 6 s over the one NIC on packet switches where the other pair has all circuits.
# Attention 2 s and its all-reduce 3 s (1.5 GB at 0.5 GB/s), experts 4 s; backward 4 + 3 s behind and 8 s between.
SECONDS = BlockSeconds(2.0, 4.0, 100.0)
TP_BPS = 0.5e9
WORKLOAD = job(ep=8, experts=8, micro_batches=1)


def sent(pairs):
    tokens = np.zeros((2, 1, 8, 8))
    for layer, (source, sink) in enumerate(pairs):
        tokens[layer, 0, 2 * source, 2 * sink] = 6e9 / 2000
    return tokens


TOKENS, MISTAKEN = sent([(0, 1), (2, 3)]), sent([(0, 1), (0, 1)])


def one_pair(demand, region, *, previous=None, key=None):
    a, b = np.zeros((2, 4, 4), int)
    a[0, 1] = a[1, 0] = b[2, 3] = b[3, 2] = 6
    return Plan(Circuits(jnp.where(demand[0, 1] > demand[2, 3], a, b)))


@eqx.filter_jit
def simulate(rule, delay, predicted, cold=True):
    region = Region(4, 8.0, 6, 1.0, delay)
    trade_off = TradeOff(delay, 1e9, jnp.ones(2), jnp.asarray([4.0, 8.0]), jnp.asarray(7.0))
    first = First(rule, predicted if rule == "predict" else None, trade_off, cold=cold)
    found = exchanges_between(WORKLOAD, region, TOKENS, one_pair, first=first, carry=both_parts, key=jax.random.key(0))
    return found, walk(WORKLOAD, rates_of(region, nvlink_Bps=TP_BPS), found, SECONDS).slots


A, B, U = (6, 0), (0, 6), (2, 2)  # circuits of the pairs (0, 1) and (2, 3)


@pytest.mark.parametrize("rule", ["block", "reuse", "random", "predict", "mistaken"])
def test_two_blocks_by_hand(rule):
    for delay in (0.5, 3.0, 4.5, 6.0, 25.0):
        assert_two_blocks(rule, delay)


def assert_two_blocks(rule, delay):
    # What is left of the delay after 4 s of experts, 5 s of attention forward, 7 s of attention backward:
    all_, experts, ahead, behind = (max(0.0, delay - hidden) for hidden in (0, 4, 5, 7))
    forward, paid = {
        # 5 + [U to A] 1 + 4 + 1; 5 + [A to B] 1 + 4 + 1.
        "block": ([(A, A), (B, B)], [all_, all_]),
        # 5 + 3 + 4 + [U to A] 1; 5 + 6 (on A, over packet switches) + 4 + [A to B] 1.
        "reuse": ([(U, A), (A, B)], [experts, experts]),
        # 5 + 3 + 4 + [U to A] 1; [A to U] 5 + 3 + 4 + [U to B] 1.
        "random": ([(U, A), (U, B)], [experts, ahead + experts]),
        # Nobody waits before the first all-to-all: 5 + 1 + 4 + 1; [A to B] 5 + 1 + 4 + 1.
        "predict": ([(A, A), (B, B)], [0, ahead]),
        # The second block as "reuse".
        "mistaken": ([(A, A), (A, B)], [0, experts]),
    }[rule]
    length = {(A, A): 11, (B, B): 11, (U, A): 13, (U, B): 13, (A, B): 16}
    # Backward, on B: 1 + 8 + 1 + 7; [B to A, since the block before] 1 + 8 + 1 + 7; "reuse": 6 + 8 [B to A] + 1 + 7.
    last, late, takes = ((B, A), max(0.0, delay - 8), 22) if rule == "reuse" else ((A, A), behind, 17)
    paid, lengths = [*paid, 0, late], [*(length[pair] for pair in forward), 17, takes]
    predicted = MISTAKEN if rule == "mistaken" else TOKENS
    found, slots = simulate(rule if rule in FIRST else "predict", jnp.asarray(delay), predicted)
    np.testing.assert_array_equal(found.count[0][..., [0, 2], [1, 3]], [forward, [(B, B), last]])
    np.testing.assert_allclose(slots.paid_s[0].ravel(), paid, rtol=RTOL, atol=1e-12)
    np.testing.assert_allclose(slots.end[0].ravel(), np.cumsum(np.add(lengths, paid)), rtol=RTOL)
    flat = [U, *np.asarray(found.count)[0][..., [0, 2], [1, 3]].reshape(-1, 2).tolist()]
    changes = [tuple(a) != tuple(b) for a, b in itertools.pairwise(flat)]
    np.testing.assert_array_equal(found.switch.ravel(), changes)
    np.testing.assert_array_equal(found.ahead[0], [[rule not in ("block", "reuse")] * 2, [True, True]])


def test_what_pays_by_hand():
    for delay, circuits, lengths in [
        # U costs 3 + 3 s; to A before the first all-to-all costs 1 + 1 + the delay, before the second 3 + 1 + what 4 s
        # of experts leave of it. From A to B the same, but 6 instead of 3. Backward experts leave what is above 8.
        (1.0, [(A, A), (B, B), (B, B), (A, A)], (12, 12, 17, 17)),
        (3.0, [(U, A), (B, B), (B, B), (A, A)], (13, 14, 17, 17)),
        (5.0, [(U, A), (B, B), (B, B), (A, A)], (14, 16, 17, 17)),  # 3 + 1 + 1 < 6; 1 + 1 + 5 < 6 + 1 + 1
        (7.0, [(U, U), (U, U), (U, B), (A, A)], (15, 15, 19, 17)),  # 3 + 3 < 3 + 1 + 3; 7 s hidden behind
        (20.0, [(U, U), (U, U), (U, U), (U, U)], (15, 15, 21, 21)),
    ]:
        found, slots = simulate("pays", jnp.asarray(delay), TOKENS)
        got = np.asarray(found.count)[0][..., [0, 2], [1, 3]].reshape(4, 2, 2)
        np.testing.assert_array_equal(got, circuits)
        np.testing.assert_allclose(slots.end[0].ravel(), np.cumsum(lengths), rtol=RTOL)


# ------------------------------------------------------------------------------------------------------ drawn chains
STAGES, PASSES, DEPTH, SERVERS = 3, 6, 3, 4
REGION = Region(SERVERS, 8.0, jnp.asarray(5), jnp.asarray(0.5))
UNIFORM = np.array([[0, 2, 1, 2], [2, 0, 2, 1], [1, 2, 0, 2], [2, 1, 2, 0]])  # 5 turns of 3 matchings


def both_parts(region, circuits, demand):
    """Seconds at 1 byte/s: the slowest circuit, and all the rest over one server's NICs on packet switches."""
    count = circuits.count.astype(demand.dtype)
    served = count > 0
    optical = jnp.where(served, demand / jnp.where(served, count, 1), 0)
    return optical.max(), jnp.where(served, 0, demand).sum() / region.electrical_nics


def plain_parts(count, demand):
    served = count > 0
    return (demand[served] / count[served]).max(initial=0.0), demand[~served].sum() / 0.5


@eqx.filter_jit
def chosen(rule, slots, trade_off, key, cold=False):
    first = First(rule, predicted=0 if rule == "predict" else None, trade_off=trade_off, cold=cold)
    return choose(REGION, greedy, slots, both_parts, first, key)


def drawn_slots(seed):
    rng = np.random.default_rng(seed)
    shape = (STAGES, PASSES, DEPTH)
    demand, guess = rng.lognormal(0, 2, (2, *shape, SERVERS, SERVERS)) * (1 - np.eye(SERVERS))
    guess = np.where(rng.random((*shape, 1, 1)) < 0.3, demand, guess)
    demand[:, 1] = demand[:, 0]  # and circuits may stay
    moe, backward = rng.random(shape) < 0.7, np.broadcast_to(rng.random((STAGES, PASSES, 1)) < 0.5, shape)
    return SlotsToServe(*(jnp.asarray(x) for x in (demand, guess, moe, backward)))


def drawn_stakes(rng):
    size, inner, behind, delay = rng.uniform(0.5, 2, 2), rng.uniform(0, 9, 2), rng.uniform(0, 9), rng.uniform(0, 20)
    return TradeOff(*(jnp.asarray(x) for x in (delay, rng.uniform(0.2, 2), size, inner, behind)))


def block_end(one, before, trade_off, *, switches, hidden, backward):
    """When the second all-to-all of a block is over, counted from its first, if circuits are for it from the first or
    the second one on (0, 1), or stay (2); the circuits. `hidden`: since when the switch knew, before the first."""
    fresh = np.array(plain_greedy(one, 5))
    size, (delay, nic) = np.asarray(trade_off.size), (float(trade_off.delay_s), float(trade_off.nic_Bps))
    size = size[::-1] if backward else size
    clock, active = 0.0, -np.inf
    for which in (0, 1):
        if which == switches:
            active = (-hidden if which == 0 else over) + delay
        circuits = fresh if which >= switches else before
        optical, packets = (part / nic * size[which] for part in plain_parts(circuits, one))
        over = max(clock + packets, max(clock, active) + optical if optical else clock)
        clock = over + float(trade_off.inner_s[int(backward)]) * (which == 0)
    return over, (fresh if switches == 0 else before, before if switches == 2 else fresh)


def assert_chain(slots, count, switch, pair_of, cold=False):
    """`pair_of` (at, before, behind) -> the two circuits of a block; they stay where there are no experts. Unless
    `cold`, the iteration begins with what one that began with uniform circuits leaves."""
    different = 0
    for p in range(STAGES):
        before = UNIFORM
        for last in (True,) if cold else (False, True):
            behind = False
            for q, i in np.ndindex(PASSES, DEPTH):
                pair = pair_of((p, q, i), before, behind) if slots.moe[p, q, i] else (before, before)
                changes = [(pair[0] != before).any(), (pair[1] != pair[0]).any()]
                if last:
                    np.testing.assert_array_equal(count[p, q, i], pair)
                    np.testing.assert_array_equal(switch[p, q, i], changes)
                    different += sum(changes)
                before, behind = pair[1], bool(slots.moe[p, q, i] & slots.backward[p, q, i])
    assert STAGES <= different < 2 * np.size(slots.moe)


KEY = jax.random.key(3)


@pytest.mark.parametrize("rule", ["block", "reuse", "random", "predict"])
def test_chains_of_circuits(rule):
    for seed, cold in ((0, False), (1, False), (1, True)):
        slots = drawn_slots(seed)
        count, switch = map(np.asarray, chosen(rule, slots, None, jax.random.fold_in(KEY, seed), cold))
        demand, guess = np.asarray(slots.demand), np.asarray(slots.guess)

        def pair_of(at, before, behind, slots=slots, count=count, demand=demand, guess=guess):
            fresh = np.array(plain_greedy(demand[at], 5))
            found = {"reuse": before, "random": count[at][0], "predict": np.array(plain_greedy(guess[at], 5))}
            known = rule == "block" or (slots.backward[at] and rule != "reuse")
            return (fresh if known else found[rule]), fresh

        assert_chain(slots, count, switch, pair_of, cold)
        if rule == "random":
            found = count[np.asarray(slots.moe & ~slots.backward)][:, 0]
            assert (np.sort(found.reshape(len(found), -1)) == np.sort(UNIFORM.ravel())).all()
            assert len({one.tobytes() for one in found}) == 3  # which pairs have only one circuit


def test_pays_takes_what_ends_first():
    switched = set()
    for seed in range(6):
        slots, trade_off = drawn_slots(seed), drawn_stakes(np.random.default_rng(seed))
        count, switch = map(np.asarray, chosen("pays", slots, trade_off, KEY))
        demand = np.asarray(slots.demand)

        def pair_of(at, before, behind, slots=slots, trade_off=trade_off, count=count, demand=demand):
            backward = bool(slots.backward[at])
            hidden = float(trade_off.behind_s) if backward and behind else 0.0
            given = {"hidden": hidden, "backward": backward}
            ends = [block_end(demand[at], before, trade_off, switches=s, **given) for s in range(3)]
            if (ends[0][1][0] == before).all():  # nothing to change: no end matters
                return before, before
            # The last of those that are best: switch late, or not at all.
            first = min(end for end, _ in ends)
            best = max(s for s in range(3) if ends[s][0] <= first * (1 + RTOL))
            switched.add((best, backward))
            return ends[best][1]

        assert_chain(slots, count, switch, pair_of)
    assert switched >= {(0, False), (1, False), (2, False), (0, True), (1, True)}


# ---------------------------------------------------------------------------------------------------------- mistakes
def test_what_first_lacks_is_said_in_a_sentence():
    with pytest.raises(InputError, match=r"first 'blocks' is unknown \(did you mean 'block'\?\); allowed: block,"):
        First("blocks")
    with pytest.raises(InputError, match=r"^first 'predict' needs the predicted tokens \[layer M R E\], got none\.$"):
        First("predict")
    with pytest.raises(InputError, match=r"^first 'pays' needs the trade_off \(delay, .* computation\), got none\.$"):
        First("pays")
    with pytest.raises(InputError, match=r"^first 'random' needs a key, got none\.$"):
        choose(REGION, greedy, drawn_slots(0), both_parts, First("random"), None)
    assert First().rule == "block"
