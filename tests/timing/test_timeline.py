"""The timeline of drawn pipelines against one plain clock per stage, and closed forms of even ones."""

import contextlib
import itertools
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mfabric_jax.evaluate.exchanges import exchanges_between
from mfabric_jax.evaluate.rules import First
from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.policies import Plan
from mfabric_jax.support.platforms import compiling_for
from mfabric_jax.timing.blocks import BlockCompute, Blocks, Rules, table_of
from mfabric_jax.timing.passes import Order, lane_of, order, order_of, places
from mfabric_jax.timing.timeline import run
from mfabric_jax.traffic.training import expert_flows, pipeline_flows
from mfabric_jax.workload import memory_of
from mfabric_jax.workload.schedules import (
    BACKWARD,
    FORWARD,
    INPUT,
    SCHEDULES,
    WEIGHT,
    PipelineShape,
    passes_in_memory,
    units_of,
)
from tests.oracles.timeline import Stage, stage_order, walk
from tests.timing.jobs import job

KINDS = {FORWARD: "F", BACKWARD: "B", INPUT: "I", WEIGHT: "W"}


def seconds(rng, shape=()):
    """Zero, whole or real, so that ties happen."""
    drawn = np.where(rng.random(shape) < 0.5, rng.integers(0, 5, shape), rng.uniform(0, 4, shape))
    return np.where(rng.random(shape) < 0.1, 0.0, drawn)


class Pipeline(NamedTuple):
    """Static: how passes are ordered."""

    schedule: str
    stages: int
    batches: int
    chunks: int = 1
    overlap: bool = False

    @property
    def order(self):
        return order(*self)


class Draw(NamedTuple):
    """Numbers of one iteration."""

    order: Order
    blocks: Blocks
    compute: BlockCompute
    send: np.ndarray
    delay: np.ndarray
    parts: np.ndarray
    decision: np.ndarray


def draw(seed, pipeline, depth, partial=False):
    """Dense blocks, padding and switches anywhere, some without any MoE; packets take longer, sometimes, or nothing.

    - `partial`: some circuits carry while others turn, delays differ, and decisions take a while.
    """
    rng = np.random.default_rng(seed)
    shape = (*pipeline.order.kind.shape, depth)
    present = rng.random(shape) < 0.8
    moe = present & (rng.random(shape) < rng.choice([0.3, 0.7, 1.0]))
    switch = rng.random((*shape, 2)) < rng.choice([0.2, 0.7, 1.0])  # of dense blocks: must not matter
    ahead = rng.random(shape) < rng.choice([0.2, 0.8])
    optical, packets = seconds(rng, (*shape, 2)), seconds(rng, (*shape, 2)) * rng.choice([0.0, 0.3, 1.0, 3.0])
    compute = BlockCompute(*(seconds(rng, pipeline.stages) for _ in range(4)))
    compute = compute._replace(expert_s=compute.moe_s * rng.uniform(0, 1, pipeline.stages))
    busy = rng.choice([1.0, 0.5, 1.7, 4.0], shape)
    send, delay = seconds(rng, pipeline.stages), seconds(rng) * rng.choice([1.0, 4.0])
    parts = np.asarray(float(rng.choice([1, 1, 2, 3, 5])))
    delay, waiting, decision = np.broadcast_to(delay, optical.shape), optical, np.zeros(())
    if partial:
        waiting = np.minimum(optical, seconds(rng, optical.shape) * rng.choice([0.0, 0.5, 1.0]))
        delay, decision, parts = delay + seconds(rng, optical.shape), seconds(rng), np.ones(())
    blocks = Blocks(present, moe, optical, packets, switch, ahead, waiting_s=waiting, busy=busy)
    return Draw(pipeline.order, blocks, compute, send, delay, parts, decision)


@eqx.filter_jit
def traced(draws, eps_waits, recompute):
    """Slots of a batch of draws: their orders are traced too, so one trace serves every schedule of one shape."""

    def one(draw):
        blocks, compute, send, delay = jax.tree.map(lambda x: x[None], draw[1:5])
        rules = Rules(eps_waits, draw.parts, recompute)
        slots = run(draw.order, table_of(draw.order, blocks, compute, delay, rules), send, rules, draw.decision)
        return jax.tree.map(lambda x: x[0], slots)

    return jax.vmap(one)(draws)


def batch(draws):
    """Many draws of one shape as one."""
    return jax.tree.map(lambda *leaves: np.stack(leaves), *draws)


def slots_of(cases, eps_waits, recompute):
    """Slots of cases (pipeline, draw) on the host; those of one pipeline stand together and run side by side."""
    every = []
    for pipeline, group in itertools.groupby(cases, lambda case: case[0]):
        _, blocks, compute, send, delay, parts, decision = batch([draw for _, draw in group])
        compute = jax.tree.map(lambda x: x.reshape(len(x), -1), compute)  # one number may serve all stages
        rules = Rules(eps_waits, parts[:, None, None, None], recompute)
        table = table_of(pipeline.order, blocks, compute, delay, rules)
        every.append(run(pipeline.order, table, send, rules, decision))
    return jax.tree.map(lambda *each: np.concatenate(each), *every)


def named(schedule, shape):
    """What every stage runs, by the names of the oracle."""
    rows = [units_of(schedule, p, shape) for p in range(shape.stages)]
    return [[tuple((KINDS[kind], m, c) for kind, m, c in unit) for unit in row] for row in rows]


def plain(draw, pipeline, rules, *, stretch=True):
    """The oracle's records of one draw by stage and position, and when every pass is over."""
    blocks, compute, shape = draw.blocks, draw.compute, PipelineShape(*pipeline[1:])
    experts = blocks.moe if blocks.experts is None else blocks.experts
    beside = np.zeros_like(blocks.optical_s) if blocks.others_s is None else blocks.others_s
    scores = 0 * compute.attention_s if np.ndim(compute.scores_s) == 0 else compute.scores_s
    table = {}
    for p, q, i in np.ndindex(blocks.present.shape):
        at, busy = (p, q, i), (blocks.busy[p, q, i] - 1) * compute.expert_s[p]
        both = list(zip(blocks.optical_s[at], blocks.packet_s[at], strict=True))
        block = {
            "attention": float(compute.attention_s[p]),
            "scores": float(scores[p]),
            "inner": float(compute.moe_s[p] + busy if experts[at] else compute.dense_s[p]),
            "tp": float(compute.tp_s[p]),
            "exchange": both if blocks.moe[at] else None,
            "switch": blocks.switch[at].tolist(),
            "ahead": bool(blocks.ahead[at]),
            "delay": draw.delay[at].tolist(),
            "waiting": blocks.waiting_s[at].tolist(),
            "beside": beside[at].tolist(),
            "held": 0.0 if blocks.counts_s is None else float(blocks.counts_s[at]),
        }
        table.setdefault((p, q), []).append(block if blocks.present[at] else None)
    given = (None, rules.eps_waits, rules.recompute, int(draw.parts), stretch, float(draw.decision), rules.comm_cores)
    schedule, clocks = SCHEDULES[pipeline.schedule], [Stage(*given) for _ in range(shape.stages)]

    def send(a, b, around):
        return 0 if a == b and shape.stages > 1 else draw.send[shape.stages - 1 if around else min(a, b)]

    return walk(named(pipeline.schedule, shape), lambda p, c: schedule.part_of(p, c, shape.stages), table, send, clocks)


RECORDED = {"begin": "begin", "end": "end", "compute_s": "computed", "tp_s": "tp", "paid_s": "paid"}

RECORDED |= {"exchange_s": "exposed"}

CLOSE = {"rtol": 1e-9, "atol": 1e-10}


def assert_records(got, one, records):
    """Every block, alone or in a pair; how often the switch was waited for."""
    paid, at = 0, []
    for (p, q), found in records.items():
        if isinstance(found, tuple):
            paid += assert_pair(got, p, q, *found)
        else:
            here = np.flatnonzero(one.blocks.present[p, q])
            at += [((p, q, i), record) for i, record in zip(here, found, strict=True)]
    for field, name in RECORDED.items():
        assert_at(getattr(got, field), [(index, record[name]) for index, record in at], field)
    for field in ("over", "inner"):
        assert_at(getattr(got, field), [(index, record[field]) for index, record in at if record["over"]], field)
    return paid + sum(record["paid"] > 0 for _, record in at)


def assert_at(found, wanted, name):
    """Values at indices; `wanted`: (index, value)."""
    if wanted:
        indices, values = zip(*wanted, strict=True)
        np.testing.assert_allclose(found[tuple(np.transpose(indices))], values, **CLOSE, err_msg=name)


def assert_pair(got, p, q, done, lost, exposed):
    """Every part of two passes that run at once; whether the switch was waited for."""
    np.testing.assert_allclose(got.exchange_s[p, q : q + 2].sum(), exposed, **CLOSE)
    np.testing.assert_allclose(got.paid_s[p, q].sum(), lost, **CLOSE)
    wanted = {name: [] for name in ("begin", "end", "inner", "start", "over")}
    for (of, what, r), (start, over, *rest) in done.items():
        at = p, q + (of == "B"), r
        if what == "before" or (what == "attention" and of == "F"):
            wanted["begin"].append((at, start))
        elif what in ("attention", "behind"):
            wanted["end"].append((at, rest[0]))
        elif what == "experts":
            wanted["inner"].append((at, (start, rest[0])))
        else:
            wanted["start"].append(((*at, what), start))
            wanted["over"].append(((*at, what), over))
    for field, each in wanted.items():
        assert_at(getattr(got, field), each, field)
    return lost > 0


DRAWS = 14  # of every pipeline

RTOL, ATOL = 1e-9, 1e-11


def orders(stages, batches):
    """Those of as many passes: 1F1B, GPipe, interleaved over one chunk, and over two with half the micro-batches."""
    whole = [Pipeline(schedule, stages, batches) for schedule in ("1f1b", "gpipe", "interleaved")]
    return [*whole, Pipeline("interleaved", stages, batches // 2, 2)]


SMALL, LARGE, ALONE = orders(2, 4), orders(3, 6), orders(1, 4)

EARLY = [Pipeline("1f1b", 4, 2), Pipeline("gpipe", 4, 2)]  # fewer micro-batches than stages

CASES = [
    (SMALL, 3, False, "none"),
    (LARGE, 2, True, "none"),
    (LARGE, 2, False, "attention"),
    (SMALL, 3, False, "block"),
    (ALONE, 4, True, "block"),
    (EARLY, 2, False, "none"),
]


def drawn_cases(pipelines, depth, partial=(False,)):
    return [(one, draw(seed, one, depth, some)) for one in pipelines for seed in range(DRAWS) for some in partial]


@pytest.mark.parametrize(("pipelines", "depth", "eps_waits", "recompute"), CASES)
def test_agrees_with_one_clock_per_stage(pipelines, depth, eps_waits, recompute):
    cases = drawn_cases(pipelines, depth, (False, True))
    got = slots_of(cases, eps_waits, recompute)
    rules, others = (Rules(waits, 1, recompute) for waits in (eps_waits, not eps_waits))
    paid = other = overlaps = 0
    for index, (pipeline, draw) in enumerate(cases):
        records, end = plain(draw, pipeline, rules)
        paid += assert_records(jax.tree.map(lambda x, index=index: x[index], got), draw, records)
        other += end != plain(draw, pipeline, others)[1]
        overlaps += draw.parts > 1
    absent = ~np.stack([draw.blocks.present for _, draw in cases])
    for field in ("compute_s", "tp_s", "exchange_s", "paid_s"):
        np.testing.assert_allclose(np.asarray(getattr(got, field))[absent], 0, atol=ATOL)
    parts = got.compute_s + got.tp_s + got.exchange_s + got.paid_s
    np.testing.assert_allclose(parts, got.end - got.begin, rtol=RTOL, atol=ATOL)
    assert (np.asarray(got.exchange_s) > -ATOL).all()
    assert paid > len(cases)  # the draws do wait
    assert other > len(cases) / 6  # and packets may, too
    assert overlaps > len(cases) / 8


def test_traced_orders_are_those_of_the_host():
    cases = drawn_cases(SMALL, 3, (False, True))
    got = traced(jax.tree.map(jnp.asarray, batch([draw for _, draw in cases])), False, "block")
    want = slots_of(cases, False, "block")
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-12, atol=1e-12), got, want)


def waits_inside(draw):
    """A first all-to-all may wait for its circuits while its packets, which take longer, go on."""
    blocks = draw.blocks
    slower = (blocks.packet_s > blocks.optical_s) & (blocks.optical_s > 0)
    return bool((slower[..., 0] & blocks.moe).any())


def test_parts_arrive_when_circuits_and_packets_brought_them():
    # To the experts a dispatch is one stretch that is over when it is over. That is when circuits and packets bring its
    # parts, unless circuits wait for the switch while packets, which take longer, do not: then they come later.
    cases, exact, late = [], 0, 0
    for pipeline, draw in drawn_cases(SMALL, 3):
        draw = draw._replace(parts=np.asarray(float(2 + len(cases) % 4)))
        if len(cases) % 2:
            packet_s = np.minimum(draw.blocks.packet_s, draw.blocks.optical_s)
            draw = draw._replace(blocks=draw.blocks._replace(packet_s=packet_s))
        cases.append((pipeline, draw))
    got = slots_of(cases, False, "none").end[..., -1]
    for index, (pipeline, draw) in enumerate(cases):
        end = plain(draw, pipeline, Rules(), stretch=False)[1]
        want = np.array([[end[p, q] for q in range(got.shape[2])] for p in range(got.shape[1])])
        assert (got[index] <= want * (1 + RTOL) + ATOL).all()
        late += not np.allclose(got[index], want, rtol=RTOL, atol=ATOL)
        if not waits_inside(draw):
            np.testing.assert_allclose(got[index], want, rtol=RTOL, atol=ATOL)
            exact += 1
    assert exact >= len(cases) / 2
    assert late > 2


def bubbles(schedule, shape, forward, inputs, weights):
    """What every stage waits until the last is through, and from its own first pass to its own last, where all blocks
    take equally long and nothing is sent."""
    # A dense block whose experts take all of `weights`, attention the rest.
    assert inputs >= weights
    assert forward == (inputs + weights) / 2  # two products for each one of the forward pass
    times = {"attention": forward - weights, "inner": weights, "scores": forward - weights, "tp": 0}
    block = times | {"exchange": None, "beside": (0, 0)}
    units, one = named(schedule, shape), SCHEDULES[schedule]
    rows = [[step for unit in row for step in unit] for row in units]
    blocks = {(p, q): [block] for p, row in enumerate(rows) for q in range(len(row))}
    stages = [Stage(0) for _ in rows]
    _, end = walk(units, lambda p, c: one.part_of(p, c, shape.stages), blocks, lambda *_: 0, stages)
    length = {"F": forward, "B": inputs + weights, "I": inputs, "W": weights}
    work = [sum(length[kind] for kind, _, _ in row) for row in rows]
    through = [end[p, len(row) - 1] for p, row in enumerate(rows)]
    begun = [end[p, 0] - length[rows[p][0][0]] for p in range(shape.stages)]
    assert len({round(one, 9) for one in work}) == 1
    return max(through) - work[0], [b - a - w for a, b, w in zip(begun, through, work, strict=True)]


EVEN = (1.0, 1.0, 1.0)
SCORES = (1.0, 1.25, 0.75)  # attention scores have no weights: B > F > W


@pytest.mark.parametrize("stages", [2, 4, 8])
def test_published_bubbles(stages):
    # F, B, W: forward, gradients of inputs, of weights. arXiv 2104.04473: (p - 1)(F + B + W). ZB-H1, arXiv 2401.10241:
    # (p - 1)(F + B - W). ZB-V, 2405.15362: none on any stage where F = B = W; before the last stage begins p - 1 chunks
    # run. DualPipe, 2412.19437, where a forward pass takes as long as gradients of inputs: (p/2 - 1)(F&B + B + W - 3W).
    for length in (EVEN, SCORES):
        f, b, w = length
        for schedule in ("1f1b", "gpipe", "interleaved"):
            assert bubbles(schedule, PipelineShape(stages, 2 * stages), *length)[0] == pytest.approx(
                (stages - 1) * (f + b + w)
            )
        several = PipelineShape(stages, 2 * stages, 3)
        assert bubbles("interleaved", several, *length)[0] == pytest.approx((stages - 1) * (f + b + w))
        assert bubbles("zb-h1", PipelineShape(stages, 2 * stages), *length)[0] == pytest.approx(
            (stages - 1) * (f + b - w)
        )
    whole, own = bubbles("zb-v", PipelineShape(stages, 2 * stages, 2), *EVEN)
    assert own == [0] * stages
    assert whole == pytest.approx(stages - 1)
    for micro_batches in (2 * stages, 4 * stages + 2):
        f, b, w = EVEN
        got = bubbles("dualpipe", PipelineShape(stages, micro_batches, 1, True), *EVEN)[0]
        assert got == pytest.approx((stages / 2 - 1) * ((f + b + w) + (b + w) - 3 * w))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_bubble_that_micro_batches_are_chosen_for_is_what_is_left(schedule):
    one = SCHEDULES[schedule]
    for stages, overlap, chunks in itertools.product((2, 4, 6), (False, True), (one.chunks,) if one.chunks else (1, 2)):
        if not overlap or one.overlaps:
            shape = PipelineShape(stages, 4 * stages, chunks, overlap)
            got = bubbles(schedule, shape, *EVEN)[0] / (3 * chunks)  # of a micro-batch on a stage
            assert got == pytest.approx(one.bubble(shape)), shape


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_pass_runs_once_and_what_is_held_is_counted(schedule):
    one = SCHEDULES[schedule]
    for stages, rounds, overlap in itertools.product((2, 4, 6), (1, 2, 3), (False, True)):
        if overlap and not one.overlaps:
            continue
        chunks = one.chunks or 2
        shape = PipelineShape(stages, max(one.least, rounds) * stages, chunks, overlap)
        copies = chunks * one.copies
        for p in range(stages):
            steps = [step for unit in units_of(schedule, p, shape) for step in unit]
            ran = {kind: [(m, c) for k, m, c in steps if k == kind] for kind in KINDS}
            half = shape.micro_batches // one.copies
            want = [
                (m, c) for m in range(shape.micro_batches) for c in range(copies) if one.copies == 1 or m // half == c
            ]
            assert sorted(ran[FORWARD]) == sorted(ran[BACKWARD] + ran[INPUT]) == sorted(want)
            assert sorted(ran[WEIGHT]) == sorted(ran[INPUT])
            held_now, most = 0, 0
            for unit in units_of(schedule, p, shape):
                together = len(unit) > 1 and one.warm_up is not None  # one takes what the other releases
                for kind, _, _ in unit:
                    held_now += {FORWARD: 1, INPUT: 0}.get(kind, -1)
                    most = most if together else max(most, held_now)
            assert sum(passes_in_memory(schedule, p, shape, copies)) == most
            usual = {"zb-h1": stages, "zb-v": 2 * stages, "dualpipe": stages + 1}
            assert most <= usual.get(
                schedule, most
            )  # published: ZB-H1 and ZB-V what 1F1B has at most, DualPipe one more


def drawn(seed, pipeline, depth):
    """Passes of gradients of weights have no all-to-alls, nor have some of the others."""
    one = draw(seed, pipeline, depth, partial=True)
    blocks, rng = one.blocks, np.random.default_rng(seed)
    blocks = blocks._replace(moe=blocks.moe & (one.order.kind != WEIGHT)[..., None], experts=blocks.moe)
    silent = np.random.default_rng(seed).random(one.order.kind.shape) < 0.2
    blocks = blocks._replace(moe=blocks.moe & ~silent[..., None])
    nothing = (one.order.chunk < 0)[..., None]
    blocks = blocks._replace(moe=blocks.moe & ~nothing, present=blocks.present & ~nothing)
    scores = one.compute.attention_s * rng.uniform(0, 1, pipeline.stages)
    beside = seconds(rng, blocks.optical_s.shape) * (rng.random(blocks.optical_s.shape) < rng.choice([0.0, 0.3, 1.0]))
    runs = blocks.present & (one.order.kind != WEIGHT)[..., None]
    blocks = blocks._replace(others_s=np.where(runs[..., None], beside, 0))
    dispatches = blocks.moe & (one.order.kind == FORWARD)[..., None]
    blocks = blocks._replace(counts_s=np.where(dispatches, seconds(rng, dispatches.shape), 0))
    return one._replace(blocks=blocks, compute=one.compute._replace(scores_s=scores))


ALONE_TOO, WAVES = (None,), ("cuda",)  # programs beside the host: one pass after another, and as on an accelerator
DRAWN = [
    (Pipeline("zb-h1", 3, 4), Rules(), ALONE_TOO),
    (Pipeline("zb-v", 2, 4, 2), Rules(True, recompute="attention"), WAVES),
    (Pipeline("dualpipe", 4, 8), Rules(), ()),
    (Pipeline("dualpipe", 4, 8, 1, True), Rules(comm_cores=0.15), ALONE_TOO + WAVES),
    (Pipeline("1f1b", 3, 5, 1, True), Rules(True, recompute="attention"), ALONE_TOO),
    (Pipeline("interleaved", 2, 4, 2, True), Rules(comm_cores=0.25), ()),
    (Pipeline("1f1b", 2, 3), Rules(True, recompute="block"), WAVES),
]
DRAWS_OF_EACH, DEPTH = 8, 3
PICTURED = ("begin", "inner", "reconfigure_start", "active", "waiting", "runs", "held")


@pytest.mark.parametrize(("pipeline", "rules", "programs"), DRAWN)
def test_drawn_pipelines_agree_with_plain_clocks(pipeline, rules, programs):
    """On the host; programs of each kind of rules say the same."""
    draws = [drawn(seed, pipeline, DEPTH) for seed in range(DRAWS_OF_EACH)]
    given = jax.tree.map(lambda *x: np.stack(x), *(one[1:5] for one in draws))
    decision, fixed = np.stack([one.decision for one in draws]), pipeline.order

    def played(given, decision, every=True):
        blocks, compute, send, delay = given
        return run(fixed, table_of(fixed, blocks, compute, delay, rules), send, rules, decision, every=every)

    got = played(given, decision)
    for name in programs:
        with compiling_for(name) if name else contextlib.nullcontext():
            other = jax.jit(lambda *given: played(*given))(*jax.tree.map(jnp.asarray, (given, decision)))
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-12, atol=1e-12), got, other)
    least = played(given, decision)._replace(**dict.fromkeys(PICTURED))
    jax.tree.map(np.testing.assert_array_equal, least, played(given, decision, every=False))
    paid = pairs = 0
    for index, one in enumerate(draws):
        records, end = plain(one, pipeline, rules)
        paid += assert_records(jax.tree.map(lambda x, index=index: x[index], got), one, records)
        pairs += sum(isinstance(record, tuple) for record in records.values())
        np.testing.assert_allclose(got.end[index].max(), max(end.values()), rtol=1e-9)
    beside = np.stack([one.blocks.others_s for one in draws]).sum(-1)
    parts = got.compute_s + got.tp_s + got.exchange_s + got.paid_s + beside
    assert (got.exchange_s > -1e-9).all()
    assert (parts.sum((2, 3)) <= got.end.max((2, 3)) + 1e-9).all()
    assert paid > DRAWS_OF_EACH
    assert (pairs > 0) == (pipeline.order.paired is not None)


def by_bytes(demand, region, *, previous=None, key=None):
    """Circuits that tell demands apart, not legal ones: as many as server 0 sends to 1, and fewer elsewhere."""
    sent = jnp.rint(demand[0, 1] / 2000).astype(int)
    return Plan(Circuits(jnp.zeros((4, 4), int).at[0, 1].set(sent).at[2, 3].set(1000 - sent)))


def by_bytes_and_what_is_there(demand, region, *, previous=None, key=None):
    count = by_bytes(demand, region).circuits.count
    return Plan(Circuits(count if previous is None else count + 0 * previous.circuits.count.astype(count.dtype)))


@pytest.mark.parametrize(
    ("policy", "cold"), [(by_bytes, False), (by_bytes_and_what_is_there, False), (by_bytes_and_what_is_there, True)]
)
def test_all_to_alls_of_a_pair_take_turns_and_find_the_circuits_of_the_other_pass(policy, cold):
    # One block a pass: combine gradient, dispatch, dispatch gradient, combine.
    np.testing.assert_array_equal(lane_of(np.array([[True, False]]), 1), [[2, 0, 3, 1]])
    workload = job(pp=2, ep=8, experts=8, blocks=2, micro_batches=4, schedule="dualpipe", overlap_passes=True)
    where, forward, backward = places(workload), 4, 5  # of the only pair of a stage
    np.testing.assert_array_equal(np.argwhere(order_of(workload).paired), [[0, forward], [1, forward]])
    in_turn = [(backward, 0), (forward, 0), (backward, 1), (forward, 1)]
    ran = [*itertools.product(range(4), range(2)), *in_turn, *itertools.product((6, 7), range(2))]
    sizes = 2 ** np.arange(8).reshape(2, 4)  # of block and micro-batch: any difference tells between which two
    tokens = np.zeros((2, 4, 8, 8))
    tokens[:, :, 0, 2] = sizes
    given = workload, Region(4, 8.0, 6, 1.0), jnp.asarray(tokens), policy
    found = exchanges_between(*given, first=First(cold=cold))
    for stage in range(2):
        layer, micro_batch = (at[stage, :, 0] for at in where.pick(2, 4))
        size = [int(sizes[layer[at], micro_batch[at]]) for at, _ in ran]
        for (at, which), now, then in zip(ran, size, [None if cold else size[-1], *size[:-1]], strict=True):
            assert found.switch[stage, at, 0, which] == (now != then)
            if then is not None:
                assert found.new_circuits[stage, at, 0, which] == abs(now - then) / 2
        assert [size[at] != size[at - 1] for at in range(8, 12)] == [True] * 4


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved", "dualpipe"])
def test_blocks_of_a_pair_are_beside_each_other_from_the_first(schedule):
    workload = job(
        pp=4,
        ep=8,
        experts=8,
        blocks=14,
        micro_batches=8,
        schedule=schedule,
        overlap_passes=True,
        layout_of_blocks="ends",
    )
    order, where = order_of(workload), places(workload)
    sizes = set()
    for stage, q in np.argwhere(order.paired):
        many = where.present[stage, q : q + 2].sum(axis=-1)
        assert where.present[stage, q : q + 2].all(axis=0).sum() == many.min()
        forward, backward = (where.block[stage, pass_][: many.min()] for pass_ in (q, q + 1))
        assert (np.diff(forward) == 1).all()
        assert (np.diff(backward) == -1).all()
        sizes.add(tuple(many))
    assert any(max(each) < where.present.shape[-1] for each in sizes)


def test_two_stages_hold_the_same_under_dualpipe_and_send_what_both_ends_do():
    usual, both = job(pp=4, blocks=8, micro_batches=8), job(pp=4, blocks=8, micro_batches=8, schedule="dualpipe")
    assert both.stages_alike == ((0, 3), (1, 2))
    assert both.paths == ((0, 1, 2, 3), (3, 2, 1, 0))
    assert both.stage_layers(0) == [0, 1, 6, 7]
    tokens = np.random.default_rng(0).integers(0, 9, (1, 8, 8, 4, 4))
    for flows in (expert_flows, lambda workload, _: pipeline_flows(workload)):
        one, other = (flows(workload, tokens) for workload in (usual, both))
        np.testing.assert_allclose(other.size.sum(), one.size.sum())
    v = job(pp=4, blocks=8, micro_batches=8, schedule="zb-v")
    assert v.paths == ((0, 1, 2, 3, 3, 2, 1, 0),)
    assert [v.stage_places(stage) for stage in range(4)] == [(0, 7), (1, 6), (2, 5), (3, 4)]
    assert memory_of(both, 0).weights == 2 * memory_of(usual, 0).weights


SIZES = [*itertools.product(("1f1b", "gpipe"), range(1, 6), range(1, 7), (1,))]
GROUPS = itertools.product(range(1, 5), (1, 2, 3), range(1, 5))
SIZES += [("interleaved", stages, groups * stages, chunks) for stages, groups, chunks in GROUPS]
KIND = {"F": FORWARD, "B": BACKWARD}


def rows(order):
    """What each stage runs: lists of (kind, micro-batch, chunk)."""
    table = np.stack([order.kind, order.micro_batch, order.chunk], axis=-1).tolist()
    return [[tuple(step) for step in row] for row in table]


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved", "gpipe"])
def test_every_pass_runs_once_by_what_is_in_flight_and_when_it_can(schedule):
    for size in SIZES:
        if size[0] == schedule:
            got = order(*size)
            assert_passes(got, *size)
            assert_needs(got, *size)


def assert_passes(got, schedule, stages, batches, chunks):
    passes = 2 * batches * chunks
    assert got.kind.shape == got.micro_batch.shape == got.chunk.shape == (stages, passes)
    everything = [(kind, m, c) for kind in (FORWARD, BACKWARD) for m in range(batches) for c in range(chunks)]
    for p, row in enumerate(rows(got)):
        assert row == [(KIND[kind], m, c) for kind, m, c in stage_order(schedule, p, stages, batches, chunks)]
        assert sorted(row) == everything
    merged = zip(got.stage.tolist(), got.position.tolist(), strict=True)
    assert sorted(merged) == [(p, q) for p in range(stages) for q in range(passes)]


def assert_needs(got, schedule, stages, batches, chunks):
    """A forward pass needs the stage before (the first: the chunk before, from the last stage), a backward pass the
    stage behind and its own forward pass; a stage runs one pass after the other."""
    done, table, passes = set(), rows(got), got.kind.shape[1]
    path = [(a, b) for b in range(chunks) for a in range(stages)]
    boundary = {frozenset((a, (a + 1) % stages)): a for a in range(stages)}
    merged = zip(*(x.tolist() for x in (got.stage, got.position, got.needs, got.crossing)), strict=True)
    for p, q, need, crossing in merged:
        kind, m, c = table[p][q]
        at = path.index((p, c)) + (-1 if kind == FORWARD else 1)
        if 0 <= at < len(path):
            neighbour, chunk = path[at]
            assert (neighbour, kind, m, chunk) in done
            other, place = divmod(need, passes)
            assert (other, *table[other][place]) == (neighbour, kind, m, chunk)
            assert stages == 2 or crossing == boundary[frozenset((p, neighbour))]
        else:
            assert need == -1
        assert kind == FORWARD or (p, FORWARD, m, c) in done
        assert q == 0 or (p, *table[p][q - 1]) in done
        done.add((p, kind, m, c))


def test_a_workload_has_its_schedule():
    for schedule, chunks in (("1f1b", 1), ("gpipe", 1), ("interleaved", 2)):
        got = order_of(job(pp=2, blocks=4, micro_batches=4, schedule=schedule, chunks=chunks))
        assert rows(got) == rows(order(schedule, 2, 4, chunks))
        assert rows(got) != rows(order("interleaved", 2, 4, 1))
