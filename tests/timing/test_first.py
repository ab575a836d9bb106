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
from mfabric_jax.timing import First
from mfabric_jax.timing.exchange import exchanges_between
from mfabric_jax.timing.switching import SlotsToServe, TradeOff, choose
from tests.mistakes import check_refused
from tests.oracles.greedy import greedy as plain_greedy
from tests.timing.jobs import job

RTOL = 1e-9

# One stage, one micro-batch, two blocks on 4 servers of two ranks. Every dispatch of block 0 sends 6 GB from server 0
# to 1, of block 1 from 2 to 3. Policy: all 6 circuits for the pair that needs them: A (0, 1) or B (2, 3). The uniform
# topology has 2 for each of 3 peers (U), and so have random circuits.
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


A, B, U = (6, 0), (0, 6), (2, 2)  # circuits of the pairs (0, 1) and (2, 3)


def test_two_blocks_by_hand():
    for rule, predicted, forward in [
        ("block", None, [(A, A), (B, B)]),
        ("reuse", None, [(U, A), (A, B)]),  # as the block before left them
        ("random", None, [(U, A), (U, B)]),
        ("predict", TOKENS, [(A, A), (B, B)]),
        ("predict", MISTAKEN, [(A, A), (A, B)]),
    ]:
        first = First(rule, predicted, cold=True)
        region, key = Region(4, 8.0, 6, 1.0, 3.0), jax.random.key(0)
        found = exchanges_between(WORKLOAD, region, TOKENS, one_pair, first=first, carry=both_parts, key=key)
        # Backward, on B; for its own demand, since the block before.
        circuits = [*forward, (B, B), (B, A) if rule == "reuse" else (A, A)]
        got = np.asarray(found.count)[0][..., [0, 2], [1, 3]].reshape(4, 2, 2)
        np.testing.assert_array_equal(got, circuits)
        changes = [tuple(a) != tuple(b) for a, b in itertools.pairwise([U, *got.reshape(-1, 2).tolist()])]
        np.testing.assert_array_equal(found.switch.ravel(), changes)
        np.testing.assert_array_equal(found.ahead[0], [[rule not in ("block", "reuse")] * 2, [True, True]])


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
    count, before = choose(REGION, greedy, slots, both_parts, first, key)
    return count, (count != before).any((-2, -1))


def drawn_slots(seed):
    rng = np.random.default_rng(seed)
    shape = (STAGES, PASSES, DEPTH)
    demand, guess = rng.lognormal(0, 2, (2, *shape, SERVERS, SERVERS)) * (1 - np.eye(SERVERS))
    guess = np.where(rng.random((*shape, 1, 1)) < 0.3, demand, guess)
    demand[:, 1] = demand[:, 0]  # and circuits may stay
    moe, backward = rng.random(shape) < 0.7, np.broadcast_to(rng.random((STAGES, PASSES, 1)) < 0.5, shape)
    kind = backward * (1 + (rng.random((STAGES, PASSES, 1)) < 0.5))  # 2: gradients of inputs alone
    busy = rng.choice([1.0, 0.5, 3.0], shape)
    return SlotsToServe(*(jnp.asarray(x) for x in (demand, guess, moe, kind, busy)))


def drawn_stakes(rng):
    size, inner, delay = rng.uniform(0.5, 2, 2), rng.uniform(0, 9, 3), rng.uniform(0, 20)
    behind = rng.uniform(0, 9, 3) * [0, 1, 1]
    given = TradeOff(*(jnp.asarray(x) for x in (delay, rng.uniform(0.2, 2), size, inner, behind)))
    return given._replace(expert_s=given.inner_s * rng.uniform(0, 1))


def block_end(one, before, trade_off, *, switches, hidden, kind, busy):
    """When the second all-to-all of a block is over, counted from its first, if circuits are for it from the first or
    the second one on (0, 1), or stay (2); the circuits. `hidden`: since when the switch knew, before the first."""
    fresh = np.array(plain_greedy(one, 5))
    size, (delay, nic) = np.asarray(trade_off.size), (float(trade_off.delay_s), float(trade_off.nic_Bps))
    size = size[::-1] if kind else size
    clock, active = 0.0, -np.inf
    for which in (0, 1):
        if which == switches:
            active = (-hidden if which == 0 else over) + delay
        circuits = fresh if which >= switches else before
        optical, packets = (part / nic * size[which] for part in plain_parts(circuits, one))
        over = max(clock + packets, max(clock, active) + optical if optical else clock)
        inner_s, expert_s = (float(part[kind]) for part in (trade_off.inner_s, trade_off.expert_s))
        clock = over + (inner_s + (busy - 1) * expert_s) * (which == 0)
    return over, (fresh if switches == 0 else before, before if switches == 2 else fresh)


def assert_chain(slots, count, switch, pair_of, cold=False):
    """`pair_of` (at, before, behind) -> the two circuits of a block; they stay where there are no experts. Unless
    `cold`, the iteration begins with what one that began with uniform circuits leaves."""
    different = 0
    for p in range(STAGES):
        before = UNIFORM
        for last in (True,) if cold else (False, True):
            behind = 0
            for q, i in np.ndindex(PASSES, DEPTH):
                pair = pair_of((p, q, i), before, behind) if slots.moe[p, q, i] else (before, before)
                changes = [(pair[0] != before).any(), (pair[1] != pair[0]).any()]
                if last:
                    np.testing.assert_array_equal(count[p, q, i], pair)
                    np.testing.assert_array_equal(switch[p, q, i], changes)
                    different += sum(changes)
                before, behind = pair[1], int(slots.moe[p, q, i]) * int(slots.kind[p, q, i])
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
            known = rule == "block" or (slots.kind[at] > 0 and rule != "reuse")
            return (fresh if known else found[rule]), fresh

        assert_chain(slots, count, switch, pair_of, cold)
        if rule == "random":
            found = count[np.asarray(slots.moe & (slots.kind == 0))][:, 0]
            assert (np.sort(found.reshape(len(found), -1)) == np.sort(UNIFORM.ravel())).all()
            assert len({one.tobytes() for one in found}) == 3  # which pairs have only one circuit


def test_pays_takes_what_ends_first():
    switched = set()
    for seed in range(6):
        slots, trade_off = drawn_slots(seed), drawn_stakes(np.random.default_rng(seed))
        count, switch = map(np.asarray, chosen("pays", slots, trade_off, KEY))
        demand = np.asarray(slots.demand)

        def pair_of(at, before, behind, slots=slots, trade_off=trade_off, count=count, demand=demand):
            kind = int(slots.kind[at])
            hidden = float(trade_off.behind_s[behind]) if kind else 0.0
            given = {"hidden": hidden, "kind": kind, "busy": float(slots.busy[at])}
            ends = [block_end(demand[at], before, trade_off, switches=s, **given) for s in range(3)]
            if (ends[0][1][0] == before).all():  # nothing to change: no end matters
                return before, before
            # The last of those that are best: switch late, or not at all.
            first = min(end for end, _ in ends)
            best = max(s for s in range(3) if ends[s][0] <= first * (1 + RTOL))
            switched.add((best, kind))
            return ends[best][1]

        assert_chain(slots, count, switch, pair_of)
    assert switched >= {(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (0, 2), (1, 2)}


def test_what_first_lacks_is_said_in_a_sentence():
    check_refused(r"first 'blocks' is unknown \(did you mean 'block'\?\); allowed: block,", First, "blocks")
    check_refused(r"^first 'predict' needs the predicted tokens \[layer M R E\], got none\.$", First, "predict")
    check_refused(r"^first 'pays' needs the trade_off \(delay, .* computation\), got none\.$", First, "pays")
    with pytest.raises(InputError, match=r"^first 'random' needs a key, got none\.$"):
        choose(REGION, greedy, drawn_slots(0), both_parts, First("random"), None)
    assert First().rule == "block"
