"""Circuits of every all-to-all: by hand under each rule, chains against plain Python, long spans, partial turns."""

import dataclasses
import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.policies import Plan, greedy, sample_average, takes_many
from mfabric_jax.routing import degree_bound
from mfabric_jax.routing.region import parts_that_wait
from mfabric_jax.timing import switching
from mfabric_jax.timing.exchange import exchanges_between
from mfabric_jax.timing.iteration import FabricRates
from mfabric_jax.timing.passes import order_of, places
from mfabric_jax.timing.switching import First, SlotsToServe, Span, TradeOff, choose, latest_before, what_pays
from mfabric_jax.workload.compute import BlockSeconds
from mfabric_jax.workload.schedules import BACKWARD, SCHEDULES
from tests.oracles.greedy import greedy as plain_greedy
from tests.oracles.timeline import Stage
from tests.timing.jobs import DRAWN, SECONDS, job, numbers, region, timed
from tests.timing.jobs import TOKENS as ALL
from tests.timing.test_iteration import NVLINK
from tests.timing.test_iteration import SECONDS as HAND
from tests.timing.test_iteration import rates as hand_rates
from tests.timing.test_iteration import timed as ran

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
        if rule == "random":  # whatever was drawn
            circuits[:2] = [(tuple(got[0, 0]), A), (tuple(got[1, 0]), B)]
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
            assert (found.sum(2) == 5).all()  # every NIC is used
            assert len({one.tobytes() for one in found}) > 3  # more than UNIFORM with its servers in other orders


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


GB = 1e9
LAYERS, BATCHES = 5, 3
NARROW = Region(4, *numbers(8.0, 5, 2.0, 3.0))


def drawn(seed, iterations=1):
    return np.random.default_rng(seed).integers(0, 9, (iterations, LAYERS, BATCHES, 8, 8)).astype(float)


def plain_bytes(tokens):
    """Between servers [S S], of two ranks with an expert each; a token has 1,000 bytes."""
    return 1000 * tokens.reshape(SERVERS, 2, SERVERS, 2).sum((1, 3)) * (1 - np.eye(SERVERS))


def plain_passes():
    """(stage, pass, backward, [(layer, micro-batch) of its MoE blocks in running order])."""
    order = order_of(DRAWN)
    for stage, q in np.ndindex(order.kind.shape):
        layers = DRAWN.place_layers(int(order.chunk[stage, q]) * DRAWN.pp + stage)
        back, batch = bool(order.kind[stage, q] == BACKWARD), int(order.micro_batch[stage, q]) % BATCHES
        yield stage, q, back, [(layer, batch) for layer in (layers[::-1] if back else layers)]


def tell(demand, region, *, previous=None, key=None, weights=None):
    """Not circuits: how many bytes it is asked to serve."""
    if weights is None:
        return tell_mean(demand, region)
    bound = jnp.stack([degree_bound(region, one) for one in demand])
    times = jnp.where(bound > 0, weights / jnp.where(bound > 0, bound, 1), 0)
    return tell_mean((times[:, None, None] * demand).sum(0), region)


def tell_mean(demand, region, *, previous=None, key=None):
    """The same of the mean, for a policy that takes one demand."""
    return Plan(Circuits(jnp.rint(jnp.where(jnp.eye(SERVERS) > 0, 0, demand)).astype(int)))


def no_time(region, circuits, demand):
    return demand.sum() * 0, demand.sum() * 0


@eqx.filter_jit
def for_span(name, tokens, seen, policy):
    span = Span(name, seen)
    return exchanges_between(DRAWN, NARROW, tokens, policy, span=span, carry=no_time)


@pytest.mark.parametrize("name", ["stage", "iteration", "run"])
def test_circuits_are_for_what_runs_in_their_span_and_stay_for_it(name):
    tokens, seen = drawn(0)[0], drawn(1, 2 if name == "run" else 1)
    found = for_span(name, tokens, seen, tell)
    count, switch = np.asarray(found.count), np.asarray(found.switch)
    assert np.asarray(found.ahead).all()
    begun = set()
    for stage, q, back, blocks in plain_passes():
        if name == "stage":
            source = [tokens] if back else [seen[0]]
            want = sum(plain_bytes(one[at]) for one in source for at in blocks)
        else:
            every = [at for p, _, _, some in plain_passes() if p == stage for at in some]
            want = sum(plain_bytes(one[at]) for one in seen for at in every)
        if blocks:
            assert (count[stage, q] == want).all(), (stage, q)
        first = (stage, q) if name == "stage" else stage
        told = [i for i in range(switch.shape[2]) if switch[stage, q, i].any()]
        moe = np.flatnonzero(places(DRAWN).layer[stage, q] >= 0).tolist()
        assert told in ([], moe[:1]), "only before the first all-to-all"
        if first in begun:
            assert not told
        begun.add(first)
    assert not switch[..., 1].any()
    assert switch.any() == (name == "stage")  # what stays for an iteration or a run is there when it begins


def test_a_policy_of_one_demand_gets_the_mean():
    tokens = drawn(2)
    found = np.asarray(for_span("iteration", tokens[0], tokens, tell_mean).count)
    for stage in range(DRAWN.pp):
        every = [at for p, _, _, some in plain_passes() if p == stage for at in some]
        want = np.rint(sum(plain_bytes(tokens[0][at]) for at in every) / len(every))
        np.testing.assert_array_equal(found[stage], np.broadcast_to(want, found[stage].shape))
    assert takes_many(sample_average)
    assert not takes_many(greedy)


@eqx.filter_jit
def iteration_and_each(tokens):
    spans = Span("iteration", tokens[None]), Span()
    return [exchanges_between(DRAWN, NARROW, tokens, greedy, span=span) for span in spans]


def test_demands_that_are_all_alike_need_one_set():
    alike = np.broadcast_to(drawn(3)[0, :1, :1], (LAYERS, BATCHES, 8, 8))
    once, each = iteration_and_each(alike)
    for part in ("optical", "electrical", "balanced"):
        np.testing.assert_allclose(getattr(once, part), getattr(each, part), rtol=RTOL)
    assert not np.asarray(once.switch).any()


def pairs_of(found):
    return np.asarray(found.count)[0][..., [0, 2], [1, 3]].reshape(4, 2, 2)


def test_a_block_keeps_what_its_first_all_to_all_found():
    region = Region(4, 8.0, 6, 1.0, 3.0)
    for predicted, forward in [(TOKENS, [(A, A), (B, B)]), (MISTAKEN, [(A, A), (A, A)])]:
        first = First("predict", predicted, cold=True)
        found = exchanges_between(
            WORKLOAD, region, TOKENS, one_pair, first=first, span=Span("block"), carry=both_parts, key=jax.random.key(0)
        )
        np.testing.assert_array_equal(pairs_of(found), [*forward, (B, B), (A, A)])
        assert not np.asarray(found.switch)[..., 1].any()
    plain = [exchanges_between(WORKLOAD, region, TOKENS, one_pair, span=Span(name)) for name in ("block", "all-to-all")]
    np.testing.assert_array_equal(plain[0].switch, plain[1].switch)
    np.testing.assert_array_equal(plain[0].optical, plain[1].optical)


# One stage, one micro-batch, two blocks; 6 GB over 6 circuits of 1 GB/s take 1 s, and nothing else takes any time.
NOTHING = BlockSeconds(0.0, 0.0, 0.0)


@eqx.filter_jit
def seconds(found, delay_s=0.0, each_s=0.0, decision_s=0.0):
    rates = FabricRates(1.0 * GB, 1e9 * GB, 1e9 * GB, delay_s=delay_s, each_s=each_s, decision_s=decision_s)
    done = timed(WORKLOAD, rates, found, NOTHING, 1e9 * GB)
    return done.iteration_s, done.reconfig_s


def given(**settings):
    found = exchanges_between(WORKLOAD, Region(4, 8.0, 6, 1.0), TOKENS, one_pair, **settings)
    return found._replace(inside=0 * found.inside)


def assert_adds(found, much, **more):
    (before, _), (after, _) = seconds(found, 0.25), seconds(found, **{"delay_s": 0.25} | more)
    np.testing.assert_allclose(after - before, much, rtol=1e-6, atol=1e-9)


def test_a_decision_is_paid_where_nothing_hides_it():
    # A, B forward, B, A backward: the switch turns for the second block and for the last, which is known ahead.
    steady, cold = given(), given(first=First(cold=True))
    np.testing.assert_array_equal(np.asarray(steady.switch)[0, ..., 0], [[False, True], [False, True]])
    assert_adds(steady, 0.5, decision_s=0.5)
    assert_adds(cold, 2 * 0.5, decision_s=0.5)  # and for the first
    assert_adds(given(span=Span("iteration", TOKENS[None])), 0, decision_s=0.5)
    # Circuits for a prediction are there; those for the demand are decided while the first all-to-all runs.
    mistaken = given(first=First("predict", MISTAKEN, cold=True), key=jax.random.key(0))
    first_s = float(np.asarray(mistaken.load)[0, 0, 1, 0]) / GB
    assert first_s > 1
    assert_adds(mistaken, 0, decision_s=0.5 * first_s)
    assert_adds(mistaken, 0.5, decision_s=first_s + 0.5)


def test_every_circuit_that_is_set_up_anew_counts():
    found = given()
    np.testing.assert_array_equal(np.asarray(found.anew)[0, ..., 0], [[0, 6], [0, 6]])
    np.testing.assert_array_equal(np.asarray(given(first=First(cold=True)).anew)[0, 0, :, 0], [4, 6])  # 2 were there
    np.testing.assert_allclose(seconds(found, 0.25, 0.5), seconds(found, 0.25 + 6 * 0.5), rtol=RTOL)
    assert seconds(found, 0.25, 0.5)[0] > seconds(found, 0.25)[0] + 3


def how_many(demand, region, *, previous=None, key=None, weights=None):
    """Not circuits: for how many demands it is asked."""
    return Plan(Circuits(jnp.full((SERVERS, SERVERS), len(demand) if demand.ndim == 3 else 1)))


def test_a_policy_that_takes_many_demands_gets_scenarios_of_a_prediction():
    first = First("predict", TOKENS, cold=True, scenarios=5, sigma=0.1)
    found = np.asarray(given_policy(how_many, first).count)[0, ..., 0, 1]
    np.testing.assert_array_equal(found, [[[5, 1], [5, 1]], [[1, 1], [1, 1]]])


def given_policy(policy, first):
    region, key = Region(SERVERS, 8.0, 6, 1.0), jax.random.key(0)
    return exchanges_between(WORKLOAD, region, TOKENS, policy, first=first, carry=no_time, key=key)


BYTES = 125e6


def weighed(policy, cold):
    """For four delays, from free to never worth it."""
    found, workload = [], dataclasses.replace(job(ep=8, experts=8), micro_batches=5)
    busy = np.random.default_rng(0).choice([1.0, 3.0], places(workload).layer.shape)
    for delay in (0.0, 0.02, 0.2, 5.0):
        sizes, inner, behind = jnp.ones(2), jnp.asarray([0.05, 0.1, 0.05]), jnp.asarray([0.0, 0.02, 0.01])
        trade_off = TradeOff(jnp.asarray(delay), jnp.asarray(5e10), sizes, inner, behind, jnp.asarray(1e-3))
        trade_off = trade_off._replace(expert_s=0.8 * inner, busy=jnp.asarray(busy))
        first = First("pays", trade_off=trade_off, cold=cold)
        found.append(exchanges_between(workload, region(), ALL, policy, first=first))
    return found


@pytest.mark.parametrize("cold", [False, True])
def test_looked_up_or_one_after_the_other(cold, monkeypatch):
    looked_up = weighed(greedy, cold)
    monkeypatch.setattr(switching, "few_pairs", lambda own: False)
    in_turn = weighed(lambda *given, **rest: greedy(*given, **rest), cold)  # another policy: traced anew
    for ours, theirs in zip(looked_up, in_turn, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            assert (one is None) == (other is None)
            if one is not None:
                np.testing.assert_allclose(one, other, rtol=1e-12)
    changes = [int(one.switch.sum()) for one in looked_up]
    assert changes[0] > changes[-1] == 0


@pytest.mark.parametrize("recompute", ["none", "attention"])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_what_is_foreseen_is_what_every_kind_of_pass_computes(schedule, recompute):
    # All-to-alls take no time: experts run between the two of a block, and behind the second what hides the switch.
    settings = {"schedule": schedule, "recompute": recompute, "overlap_passes": False}
    chunks = 2 if schedule in ("interleaved", "zb-v") else 1
    workload = job(pp=2, blocks=4, micro_batches=6, chunks=chunks, **settings)
    where, slots = places(workload), ran(workload).walked.slots
    trade_off = switching.trade_off_of(workload, hand_rates(), HAND)
    kinds, at = {0, 1, 2} if SCHEDULES[schedule].splits else {0, 1}, where.layer >= 0
    assert kinds >= set(where.kind[at]) >= {0, max(kinds)}
    experts, behind = slots.inner[..., 1] - slots.inner[..., 0], slots.end - slots.over[..., 1]
    for foreseen, found in ((trade_off.inner_s, experts), (trade_off.behind_s, behind)):
        np.testing.assert_allclose(found[at], foreseen[where.kind[at]], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("recompute", ["none", "attention"])
def test_what_is_foreseen_is_what_a_plain_clock_needs(recompute):
    # A switch that turns for as long as the block behind computes is not waited for; what it turns longer is.
    workload = job(blocks=2, micro_batches=1, recompute=recompute)
    behind_s = float(switching.trade_off_of(workload, hand_rates(), HAND).behind_s[1])
    block = {"attention": HAND.attention_s, "inner": HAND.moe_s, "tp": 1.5e9 / NVLINK, "exchange": [(1, 0)] * 2}
    for delay, paid in ((behind_s, 0.0), (behind_s + 0.1, 0.1)):
        region = Stage(delay, recompute=recompute)
        region.run("B", block | {"switch": (False, False), "ahead": True})
        second = region.run("B", block | {"switch": (True, False), "ahead": True})
        assert second["paid"] == pytest.approx(paid)


def test_a_gain_within_the_tolerance_is_none():
    old, new = (jnp.asarray(BYTES), jnp.asarray(0.0)), (jnp.asarray(0.9995 * BYTES), jnp.asarray(0.0))
    free = TradeOff(0.0, 1.0, jnp.ones(2), jnp.zeros(3), jnp.zeros(3))
    given = old, new, jnp.asarray(1.0), jnp.asarray(0), jnp.asarray(0), jnp.asarray(1.0)
    assert what_pays(free, *given).all()
    assert not what_pays(free._replace(tolerance=switching.RELAY_TOLERANCE), *given).any()


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
    whole, partly = (solved(one_pair, TOKENS, partial) for partial in (False, True))
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


def test_what_was_in_place_before_an_iteration_outlasts_blocks_without_experts():
    at = np.array([[-1, -1, 3, -1, 5], [-1, -1, -1, -1, -1]])
    np.testing.assert_array_equal(latest_before(at, False), [[5, 5, 5, 3, 3], [-1] * 5])
    np.testing.assert_array_equal(latest_before(at, True), [[-1, -1, -1, 3, 3], [-1] * 5])


def test_dense_blocks_at_the_front_change_no_circuits():
    """Two MoE blocks behind a dense one: the pair of each block's demand gets six circuits, forward and backward."""
    workload = job(ep=8, experts=8, micro_batches=1, blocks=3, dense_blocks=1)
    warm, cold = (
        exchanges_between(workload, Region(4, 8.0, 6, 1.0), TOKENS, one_pair, first=First(cold=cold))
        for cold in (False, True)
    )
    np.testing.assert_array_equal(warm.anew[0, :, :, 0], [[0, 0, 6], [0, 6, 0]])  # backward ends as forward begins
    np.testing.assert_array_equal(warm.switch[0, :, :, 0], [[False, False, True], [False, True, False]])
    np.testing.assert_array_equal(warm.count[0, 0, 0], [square({(0, 1): 6})] * 2)  # of the iteration before
    np.testing.assert_array_equal(cold.anew[0, :, :, 0], [[0, 4, 6], [0, 6, 0]])  # uniform circuits hold two of six
    np.testing.assert_array_equal(cold.switch[0, :, :, 0], [[False, True, True], [False, True, False]])
