"""Circuits of every all-to-all: by hand under each rule, chains against plain Python, long spans, partial turns."""

import dataclasses
import itertools
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mfabric_jax.evaluate import solver as solvers
from mfabric_jax.evaluate.circuits import WalkSteps, walk_circuits
from mfabric_jax.evaluate.exchanges import exchanges_between
from mfabric_jax.evaluate.rules import RELAY_TOLERANCE, CircuitSpan, First, TradeOff, trade_off_of, what_pays
from mfabric_jax.evaluate.solver import Numbered, OnHost, RegionFunctions, Tables, Traced
from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.policies import Plan, greedy, random_circuits, takes_many
from mfabric_jax.policies.reads import ALONE, EVERYTHING
from mfabric_jax.policies.sample_average import sample_average
from mfabric_jax.routing import degree_bound
from mfabric_jax.routing.region import parts_that_wait
from mfabric_jax.timing.iteration import FabricRates
from mfabric_jax.timing.passes import order_of, places
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


STAGES, PASSES, DEPTH, SERVERS, DEGREE = 3, 6, 3, 4, 5
REGION = Region(SERVERS, 8.0, jnp.asarray(DEGREE), jnp.asarray(0.5))
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


class Drawn(NamedTuple):
    """Blocks of all stages [P Q L] in running order, their demands and forecasts, and what a reconfiguration costs."""

    demand: np.ndarray
    forecast: np.ndarray
    sent: np.ndarray
    kind: np.ndarray
    busy: np.ndarray
    costs: TradeOff  # of every stage

    def costs_of(self, stage):
        each = ("delay_s", "nic_Bps", "inner_s", "behind_s", "each_s", "expert_s")
        return self.costs._replace(**{name: getattr(self.costs, name)[stage] for name in each})


def draw_blocks(seed):
    rng = np.random.default_rng(seed)
    shape = (STAGES, PASSES, DEPTH)
    demand, forecast = rng.lognormal(0, 2, (2, *shape, SERVERS, SERVERS)) * (1 - np.eye(SERVERS))
    forecast = np.where(rng.random((*shape, 1, 1)) < 0.3, demand, forecast)
    demand[:, 1] = demand[:, 0]  # and circuits may stay
    sent, backward = rng.random(shape) < 0.7, np.broadcast_to(rng.random((STAGES, PASSES, 1)) < 0.5, shape)
    kind = backward * (1 + (rng.random((STAGES, PASSES, 1)) < 0.5))  # 2: gradients of inputs alone
    busy = rng.choice([1.0, 0.5, 3.0], shape)
    return Drawn(demand, forecast, sent, kind, busy, draw_costs(rng))


def draw_costs(rng):
    inner, behind = rng.uniform(0, 9, (2, STAGES, 3)) * np.array([[[1, 1, 1]], [[0, 1, 1]]])
    delay, each, nic = rng.uniform(0, 15, STAGES), rng.uniform(0, 2, STAGES), rng.uniform(0.2, 2, STAGES)
    expert = rng.uniform(0, 1, (STAGES, 1))
    return TradeOff(delay, nic, rng.uniform(0.5, 2, 2), inner, behind, each, expert_s=inner * expert)


def by_number(blocks):
    """Every place's demand, then every place's forecast, under a number of its own; a random key for every place."""
    number = np.arange(blocks.sent.size, dtype=np.int32).reshape(blocks.sent.shape)
    forecast, kind = number + np.int32(number.size), blocks.kind.astype(np.int32)
    columns = number, forecast, number, 0 * number, blocks.sent, kind, blocks.busy, 0 * number
    demand = np.concatenate([x.reshape(-1, SERVERS, SERVERS) for x in (blocks.demand, blocks.forecast)])
    return demand, WalkSteps(*(x.reshape(STAGES, -1).T for x in columns))


def stubborn(demand, region, *, previous=None, key=None):
    """Greedy, unless the largest flow has three circuits already."""
    there = previous.circuits.count.reshape(-1)[jnp.argmax(demand)] >= 3
    fresh = greedy(demand, region).circuits.count
    return Plan(Circuits(jnp.where(there, previous.circuits.count.astype(fresh.dtype), fresh)))


def plainly(policy, demand, before):
    """The circuits of `greedy` and of `stubborn`, in plain Python."""
    there = policy is stubborn and before.reshape(-1)[np.argmax(demand)] >= 3
    return before if there else np.array(plain_greedy(demand, DEGREE))


@jax.jit
def drawn_by_jax(keys):
    return jax.vmap(lambda key: random_circuits(None, REGION, key=key).circuits.count)(keys)


def drawn_plainly(keys):
    """The sum of five matchings, each one of three."""
    pairs = np.array([[[0, 1], [2, 3]], [[0, 2], [1, 3]], [[0, 3], [1, 2]]])
    count = np.zeros((len(keys), SERVERS, SERVERS), int)
    for at, seed in enumerate(keys):
        for a, b in pairs[np.random.default_rng(seed).integers(0, 3, DEGREE)].reshape(-1, 2):
            count[at, a, b] += 1
            count[at, b, a] += 1
    return count


# Each: (policy, rule, seed, cold, both) -> circuits of both all-to-alls of every block and those before them, whether
# they differ, and what the random circuits of every place are.
def on_the_host(policy, rule, seed, *, cold, both):
    blocks = draw_blocks(seed)
    demand, steps = by_number(blocks)

    def choose(one):
        return np.stack([plainly(policy, *each) for each in zip(one.demand, one.before, strict=True)])

    def seconds(count, demand):
        return tuple(np.array(list(map(plain_parts, count, demand))).T)

    keys = np.arange(blocks.sent.size) + 1000 * seed
    tables = Tables(demand, key=keys)
    solver = OnHost(tables, UNIFORM, RegionFunctions(choose, drawn_plainly, seconds, None), READS[policy])
    count, before = walk_circuits(solver, rule, steps, blocks.costs, cold=cold, both=both)
    return *(solver.as_arrays(each) for each in (count, before)), solver.differ(count, before), drawn_plainly(keys)


def in_jax(policy, rule, seed, *, cold, both):
    blocks = draw_blocks(seed)
    demand, steps = by_number(blocks)
    keys = jax.random.split(jax.random.key(seed), blocks.sent.size)
    found = traced(policy, rule, demand, steps, keys, blocks.costs, cold, both)
    return *map(np.asarray, found), np.asarray(drawn_by_jax(keys))


@eqx.filter_jit
def traced(policy, rule, demand, steps, keys, costs, cold, both):
    solver = Traced(Tables(demand, key=keys), REGION, policy, both_parts)
    count, before = walk_circuits(solver, rule, steps, costs, cold=cold, both=both)
    return count, before, solver.differ(count, before)


def by_numbers_in_jax(policy, rule, seed, *, cold, both):
    blocks = draw_blocks(seed)
    demand, steps = by_number(blocks)
    keys = jax.random.split(jax.random.key(seed), blocks.sent.size)

    @jax.jit
    def numbered(demand, keys, costs, busy):
        solver = Numbered(Tables(demand, key=keys), REGION, policy, both_parts)
        count, before = walk_circuits(solver, rule, steps._replace(busy=busy), costs, cold=cold, both=both)
        return solver.as_arrays(count), solver.as_arrays(before), solver.differ(count, before)

    found = numbered(demand, keys, blocks.costs, steps.busy)
    return *map(np.asarray, found), np.asarray(drawn_by_jax(keys))


READS = {greedy: ALONE, stubborn: EVERYTHING}
WALKS = [(on_the_host, greedy), (in_jax, greedy), (by_numbers_in_jax, greedy)]
WALKS += [(on_the_host, stubborn), (in_jax, stubborn)]
MOST_WALKS = [one for one in WALKS if one != (in_jax, greedy)]  # `stubborn` is `greedy` unless it keeps what is there
walks = pytest.mark.parametrize(("walk", "policy"), WALKS, ids=lambda one: one.__name__)


def block_end(one, fresh, before, costs, *, reconfigures, hidden, kind, busy):
    """When the second all-to-all of a block is over, counted from its first, if circuits are for it from the first or
    the second one on (0, 1), or stay (2); the circuits. `hidden`: since when the switch knew, before the first."""
    size, nic = costs.size, float(costs.nic_Bps)
    delay = float(costs.delay_s) + float(costs.each_s) * np.maximum(fresh - before, 0).sum() / 2
    size = size[::-1] if kind else size
    clock, active = 0.0, -np.inf
    for which in (0, 1):
        if which == reconfigures:
            active = (-hidden if which == 0 else over) + delay
        circuits = fresh if which >= reconfigures else before
        optical, packets = (part / nic * size[which] for part in plain_parts(circuits, one))
        over = max(clock + packets, max(clock, active) + optical if optical else clock)
        inner_s, expert_s = (float(part[kind]) for part in (costs.inner_s, costs.expert_s))
        clock = over + (inner_s + (busy - 1) * expert_s) * (which == 0)
    return over, (fresh if reconfigures == 0 else before, before if reconfigures == 2 else fresh)


def assert_chain(blocks, count, before, differ, pair_of, *, cold=False):
    """`pair_of` (at, before, behind) -> the two circuits of a block; they stay where there are no experts. Unless
    `cold`, the iteration begins with what one that began with uniform circuits leaves."""
    count, before, differ = (
        np.moveaxis(x, 2, 0).reshape(*blocks.sent.shape, *x.shape[1:2], *x.shape[3:]) for x in (count, before, differ)
    )
    different = 0
    for p in range(STAGES):
        there = UNIFORM
        for last in (True,) if cold else (False, True):
            behind = 0
            for q, i in np.ndindex(PASSES, DEPTH):
                pair = pair_of((p, q, i), there, behind) if blocks.sent[p, q, i] else (there, there)
                if last:
                    changes = [(pair[0] != there).any(), (pair[1] != pair[0]).any()]
                    np.testing.assert_array_equal(count[p, q, i], pair)
                    np.testing.assert_array_equal(before[p, q, i], [there, pair[0]])
                    np.testing.assert_array_equal(differ[p, q, i], changes)
                    different += sum(changes)
                there, behind = pair[1], int(blocks.sent[p, q, i]) * int(blocks.kind[p, q, i])
    assert STAGES <= different < 2 * np.size(blocks.sent)


@pytest.mark.parametrize(("walk", "policy"), MOST_WALKS, ids=lambda one: one.__name__)
@pytest.mark.parametrize("rule", ["block", "reuse", "random", "predict", "span"])
def test_chains_of_circuits(rule, walk, policy):
    for seed, cold, both in ((0, False, rule != "reuse"), (1, True, False)):
        blocks = draw_blocks(seed)
        *found, drawn = walk(policy, rule, seed, cold=cold, both=both)
        drawn = drawn.reshape(*blocks.sent.shape, SERVERS, SERVERS)

        def pair_of(at, before, behind, blocks=blocks, drawn=drawn, both=both):
            fresh, ahead = (plainly(policy, one[at], before) for one in (blocks.demand, blocks.forecast))
            if rule == "span":
                return ahead, ahead
            first = {"block": fresh, "reuse": before, "random": drawn[at], "predict": ahead}[rule]
            first = fresh if blocks.kind[at] > 0 and rule != "reuse" else first
            return first, first if both else fresh

        assert_chain(blocks, *found, pair_of, cold=cold)
        used = drawn[blocks.sent & (blocks.kind == 0)]
        assert (used.sum(2) == DEGREE).all()  # every NIC is used
        assert len({one.tobytes() for one in used}) > 3  # more than UNIFORM with its servers in other orders


@walks
def test_pays_takes_what_ends_first(walk, policy):
    taken = set()
    for seed in range(6 if walk is not by_numbers_in_jax else 2):
        blocks = draw_blocks(seed)
        *found, _ = walk(policy, "pays", seed, cold=False, both=False)

        def pair_of(at, before, behind, blocks=blocks):
            costs, kind = blocks.costs_of(at[0]), int(blocks.kind[at])
            hidden = float(costs.behind_s[behind]) if kind else 0.0
            given = {"hidden": hidden, "kind": kind, "busy": float(blocks.busy[at])}
            fresh = plainly(policy, blocks.demand[at], before)
            ends = [block_end(blocks.demand[at], fresh, before, costs, reconfigures=s, **given) for s in range(3)]
            if (fresh == before).all():  # nothing to change: no end matters
                return before, before
            # The last of those that are best: reconfigure late, or not at all.
            first = min(end for end, _ in ends)
            best = max(s for s in range(3) if ends[s][0] <= first * (1 + RTOL))
            taken.add((best, kind))
            return ends[best][1]

        assert_chain(blocks, *found, pair_of)
    if policy is greedy:
        assert taken >= {(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (0, 2), (1, 2)}


def test_circuits_stay_through_blocks_without_experts_and_into_the_next_iteration():
    """Two stages of five blocks. The first sends demands 3 and 5, in its third and its last block, the second none."""
    sent = np.array([[False, False, True, False, True], [False] * 5])
    number = np.where(sent, [[0, 0, 3, 0, 5]] * 2, 0).T
    steps = WalkSteps(number, number, 0 * number, 0 * number, sent.T, 0 * number, 0 * number, 0 * number)
    for cold, before, after in (
        (False, [[5, 5, 5, 3, 3], [9] * 5], [[5, 5, 3, 3, 5], [9] * 5]),
        (True, [[9, 9, 9, 3, 3], [9] * 5], [[9, 9, 3, 3, 5], [9] * 5]),
    ):
        demand = np.arange(6)[:, None, None]
        solver = OnHost(
            Tables(demand), np.full((1, 1), 9), RegionFunctions(lambda one: one.demand, None, None, None), ALONE
        )
        served, there = walk_circuits(solver, "block", steps, cold=cold)
        for found, want in ((served[:, 0], after), (served[:, 1], after), (there[:, 0], before), (there[:, 1], after)):
            np.testing.assert_array_equal(solver.as_arrays(found)[..., 0, 0].T, want)


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
    span = CircuitSpan(name, seen)
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
    spans = CircuitSpan("iteration", tokens[None]), CircuitSpan()
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
            WORKLOAD,
            region,
            TOKENS,
            one_pair,
            first=first,
            span=CircuitSpan("block"),
            carry=both_parts,
            key=jax.random.key(0),
        )
        np.testing.assert_array_equal(pairs_of(found), [*forward, (B, B), (A, A)])
        assert not np.asarray(found.switch)[..., 1].any()
    plain = [
        exchanges_between(WORKLOAD, region, TOKENS, one_pair, span=CircuitSpan(name))
        for name in ("block", "all-to-all")
    ]
    np.testing.assert_array_equal(plain[0].switch, plain[1].switch)
    np.testing.assert_array_equal(plain[0].optical, plain[1].optical)


# One stage, one micro-batch, two blocks; 6 GB over 6 circuits of 1 GB/s take 1 s, and nothing else takes any time.
NOTHING = BlockSeconds(0.0, 0.0, 0.0)


def seconds(found, delay_s=0.0, each_s=0.0, decision_s=0.0):
    return at_rates(found, *numbers(delay_s, each_s, decision_s))


@eqx.filter_jit
def at_rates(found, delay_s, each_s, decision_s):
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
    assert_adds(given(span=CircuitSpan("iteration", TOKENS[None])), 0, decision_s=0.5)
    # Circuits for a prediction are there; those for the demand are decided while the first all-to-all runs.
    mistaken = given(first=First("predict", MISTAKEN, cold=True), key=jax.random.key(0))
    first_s = float(np.asarray(mistaken.load)[0, 0, 1, 0]) / GB
    assert first_s > 1
    assert_adds(mistaken, 0, decision_s=0.5 * first_s)
    assert_adds(mistaken, 0.5, decision_s=first_s + 0.5)


def test_every_circuit_that_is_set_up_anew_counts():
    found = given()
    np.testing.assert_array_equal(np.asarray(found.new_circuits)[0, ..., 0], [[0, 6], [0, 6]])
    np.testing.assert_array_equal(
        np.asarray(given(first=First(cold=True)).new_circuits)[0, 0, :, 0], [4, 6]
    )  # 2 were there
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


def weighed(policy):
    """For four delays, from free to never worth it."""
    found, workload = [], dataclasses.replace(job(ep=8, experts=8), micro_batches=5)
    busy = np.random.default_rng(0).choice([1.0, 3.0], places(workload).layer.shape)
    for delay in (0.0, 0.02, 0.2, 5.0):
        sizes, inner, behind = jnp.ones(2), jnp.asarray([0.05, 0.1, 0.05]), jnp.asarray([0.0, 0.02, 0.01])
        trade_off = TradeOff(jnp.asarray(delay), jnp.asarray(5e10), sizes, inner, behind, jnp.asarray(1e-3))
        trade_off = trade_off._replace(expert_s=0.8 * inner, busy=jnp.asarray(busy))
        first = First("pays", trade_off=trade_off)
        found.append(exchanges_between(workload, region(), ALL, policy, first=first))
    return found


def test_looked_up_or_one_after_the_other(monkeypatch):
    looked_up = weighed(greedy)
    monkeypatch.setattr(solvers, "_few_pairs", lambda steps: False)
    in_turn = weighed(lambda *given, **rest: greedy(*given, **rest))  # another policy: traced anew
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
    trade_off = trade_off_of(workload, hand_rates(), HAND)
    kinds, at = {0, 1, 2} if SCHEDULES[schedule].splits else {0, 1}, where.layer >= 0
    assert kinds >= set(where.kind[at]) >= {0, max(kinds)}
    experts, behind = slots.inner[..., 1] - slots.inner[..., 0], slots.end - slots.over[..., 1]
    for foreseen, found in ((trade_off.inner_s, experts), (trade_off.behind_s, behind)):
        np.testing.assert_allclose(found[at], foreseen[where.kind[at]], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("recompute", ["none", "attention"])
def test_what_is_foreseen_is_what_a_plain_clock_needs(recompute):
    # A switch that turns for as long as the block behind computes is not waited for; what it turns longer is.
    workload = job(blocks=2, micro_batches=1, recompute=recompute)
    behind_s = float(trade_off_of(workload, hand_rates(), HAND).behind_s[1])
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
    assert not what_pays(free._replace(tolerance=RELAY_TOLERANCE), *given).any()


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


def test_dense_blocks_at_the_front_change_no_circuits():
    """Two MoE blocks behind a dense one: the pair of each block's demand gets six circuits, forward and backward."""
    workload = job(ep=8, experts=8, micro_batches=1, blocks=3, dense_blocks=1)
    warm, cold = (
        exchanges_between(workload, Region(4, 8.0, 6, 1.0), TOKENS, one_pair, first=First(cold=cold))
        for cold in (False, True)
    )
    np.testing.assert_array_equal(
        warm.new_circuits[0, :, :, 0], [[0, 0, 6], [0, 6, 0]]
    )  # backward ends as forward begins
    np.testing.assert_array_equal(warm.switch[0, :, :, 0], [[False, False, True], [False, True, False]])
    np.testing.assert_array_equal(warm.count[0, 0, 0], [square({(0, 1): 6})] * 2)  # of the iteration before
    np.testing.assert_array_equal(
        cold.new_circuits[0, :, :, 0], [[0, 4, 6], [0, 6, 0]]
    )  # uniform circuits hold two of six
    np.testing.assert_array_equal(cold.switch[0, :, :, 0], [[False, True, True], [False, True, False]])
