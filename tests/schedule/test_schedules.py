"""Every schedule: published bubbles, and drawn pipelines against one plain clock per stage and lane."""

import itertools

import equinox as eqx
import jax
import numpy as np
import pytest

from mfabric_jax.schedule.all_to_alls import _lane
from mfabric_jax.schedule.blocks import Rules
from mfabric_jax.schedule.switching import _served_in_turn
from mfabric_jax.schedule.timeline import run, run_plain
from mfabric_jax.traffic.training import expert_flows, pipeline_flows
from mfabric_jax.workload import memory_of
from mfabric_jax.workload.schedules import BACKWARD, FORWARD, INPUT, SCHEDULES, WEIGHT, PipelineShape, held, units_of
from tests.oracles.pipeline import Stage, walk
from tests.schedule.jobs import job
from tests.schedule.test_timeline import Pipeline, batch, draw, seconds
from tests.small import refused

KINDS = {FORWARD: "F", BACKWARD: "B", INPUT: "I", WEIGHT: "W"}


def named(schedule, shape):
    """What every stage runs, by the names of the oracle."""
    rows = [units_of(schedule, p, shape) for p in range(shape.stages)]
    return [[tuple((KINDS[kind], m, c) for kind, m, c in unit) for unit in row] for row in rows]


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
    _, end = walk(units, lambda p, c: one.place(p, c, shape.stages), blocks, lambda *_: 0, stages)
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
            for kind, _, _ in steps:
                held_now += {FORWARD: 1, INPUT: 0}.get(kind, -1)
                most = max(most, held_now)
            assert sum(held(schedule, p, shape, copies)) == most
            usual = {"zb-h1": stages, "zb-v": 2 * stages, "dualpipe": stages + 1}
            assert most <= usual.get(
                schedule, most
            )  # published: ZB-H1 and ZB-V what 1F1B has at most, DualPipe one more


def drawn(seed, pipeline, depth):
    """Passes of gradients of weights have no all-to-alls."""
    one = draw(seed, pipeline, depth, partial=True)
    blocks, rng = one.blocks, np.random.default_rng(seed)
    blocks = blocks._replace(moe=blocks.moe & (one.order.kind != WEIGHT)[..., None], experts=blocks.moe)
    nothing = (one.order.chunk < 0)[..., None]
    blocks = blocks._replace(moe=blocks.moe & ~nothing, present=blocks.present & ~nothing)
    scores = one.compute.attention_s * rng.uniform(0, 1, pipeline.stages)
    beside = seconds(rng, blocks.optical_s.shape) * (rng.random(blocks.optical_s.shape) < rng.choice([0.0, 0.3, 1.0]))
    runs = blocks.present & (one.order.kind != WEIGHT)[..., None]
    blocks = blocks._replace(beside_s=np.where(runs[..., None], beside, 0))
    return one._replace(blocks=blocks, compute=one.compute._replace(scores_s=scores))


def plain(one, pipeline, rules):
    """The oracle's records of one draw, and when every pass is over."""
    blocks, compute, shape = one.blocks, one.compute, PipelineShape(*pipeline[1:])
    table = {}
    for p, q in np.ndindex(one.order.kind.shape):
        experts = compute.moe_s[p] + (blocks.busy[p, q] - 1) * compute.expert_s[p]
        table[p, q] = [
            {
                "attention": float(compute.attention_s[p]),
                "scores": float(compute.scores_s[p]),
                "inner": float(experts[i] if blocks.experts[p, q, i] else compute.dense_s[p]),
                "tp": float(compute.tp_s[p]),
                "exchange": list(zip(blocks.optical_s[p, q, i], blocks.packet_s[p, q, i], strict=True))
                if blocks.moe[p, q, i]
                else None,
                "switch": blocks.switch[p, q, i].tolist(),
                "ahead": bool(blocks.ahead[p, q, i]),
                "delay": one.delay[p, q, i].tolist(),
                "waiting": blocks.waiting_s[p, q, i].tolist(),
                "beside": blocks.beside_s[p, q, i].tolist(),
            }
            if blocks.present[p, q, i]
            else None
            for i in range(blocks.present.shape[2])
        ]
    stages = [
        Stage(
            None, rules.eps_waits, rules.recompute, stretch=True, decision=float(one.decision), cores=rules.comm_cores
        )
        for _ in range(shape.stages)
    ]

    def send(a, b, around):
        if a == b:
            return 0
        return one.send[shape.stages - 1 if around else min(a, b)]

    schedule = SCHEDULES[pipeline.schedule]
    return walk(named(pipeline.schedule, shape), lambda p, c: schedule.place(p, c, shape.stages), table, send, stages)


DRAWN = [
    (Pipeline("zb-h1", 3, 4), Rules()),
    (Pipeline("zb-v", 2, 4, 2), Rules(True, recompute="attention")),
    (Pipeline("dualpipe", 4, 8), Rules()),
    (Pipeline("dualpipe", 4, 8, 1, True), Rules(comm_cores=0.15)),
    (Pipeline("1f1b", 3, 5, 1, True), Rules(True, recompute="attention")),
    (Pipeline("interleaved", 2, 4, 2, True), Rules(comm_cores=0.25)),
    (Pipeline("1f1b", 2, 3), Rules(True, recompute="block")),
]
DRAWS, DEPTH = 8, 3


@pytest.mark.parametrize(("pipeline", "rules"), DRAWN)
def test_drawn_pipelines_agree_with_plain_clocks(pipeline, rules):
    draws = [drawn(seed, pipeline, DEPTH) for seed in range(DRAWS)]
    walked, fixed = run, pipeline.order

    def every(draws):
        given = (draws.blocks, draws.compute, draws.send, draws.delay)
        return jax.vmap(lambda one, decision: walked(fixed, *one, rules, decision))(given, draws.decision)

    got = jax.tree.map(np.asarray, eqx.filter_jit(every)(batch([one._replace(order=None) for one in draws])))
    paid = pairs = 0
    for index, one in enumerate(draws):
        assert_alike(run_plain(fixed, one.blocks, one.compute, one.send, one.delay, rules, one.decision), got, index)
        records, end = plain(one, pipeline, rules)
        paid += assert_records(jax.tree.map(lambda x, index=index: x[index], got), one, records)
        pairs += sum(isinstance(record, tuple) for record in records.values())
        np.testing.assert_allclose(got.end[index].max(), max(end.values()), rtol=1e-9)
    beside = np.stack([one.blocks.beside_s for one in draws]).sum(-1)
    parts = got.compute_s + got.tp_s + got.exchange_s + got.paid_s + beside
    assert (got.exchange_s > -1e-9).all()
    assert (parts.sum((2, 3)) <= got.end.max((2, 3)) + 1e-9).all()
    assert paid > DRAWS
    assert (pairs > 0) == (pipeline.order.paired is not None)


def assert_alike(slots, got, index):
    """The clock without JAX says the same."""
    for field, value in slots._asdict().items():
        if value is not None:
            np.testing.assert_allclose(value, getattr(got, field)[index], rtol=1e-12, atol=1e-12, err_msg=field)


RECORDED = {"begin": "begin", "end": "end", "compute_s": "computed", "paid_s": "paid", "exchange_s": "exposed"}


def assert_records(got, one, records):
    """Every block, alone or in a pair; how often the switch was waited for."""
    close = {"rtol": 1e-9, "atol": 1e-10}
    paid = 0
    for (p, q), found in records.items():
        if not isinstance(found, tuple):
            here = np.flatnonzero(one.blocks.present[p, q])
            for i, record in zip(here, found, strict=True):
                for field, name in RECORDED.items():
                    np.testing.assert_allclose(getattr(got, field)[p, q, i], record[name], **close)
                paid += record["paid"] > 0
            continue
        done, lost, exposed = found
        np.testing.assert_allclose(got.exchange_s[p, q : q + 2].sum(), exposed, **close)
        np.testing.assert_allclose(got.paid_s[p, q].sum(), lost, **close)
        paid += lost > 0
        for (of, what, r), (start, over, *rest) in done.items():
            at = p, q + (of == "B"), r
            if what == "before" or (what == "attention" and of == "F"):
                np.testing.assert_allclose(got.begin[at], start, **close)
            elif what in ("attention", "behind"):
                np.testing.assert_allclose(got.end[at], rest[0], **close)
            elif what == "experts":
                np.testing.assert_allclose(got.inner[at], (start, rest[0]), **close)
            else:
                np.testing.assert_allclose((got.start[at][what], got.over[at][what]), (start, over), **close)
    return paid


def test_all_to_alls_of_a_pair_take_turns_and_find_the_circuits_of_the_other_pass():
    # One block each, demands 0 forward and 1 backward: combine gradient, dispatch, dispatch gradient, combine.
    lane = _lane(np.array([[True, False]]), 1)
    np.testing.assert_array_equal(lane, [[2, 0, 3, 1]])
    serving, before = _served_in_turn(np.array([[[0], [1]]]), lane, True)
    np.testing.assert_array_equal(serving, [[[[0, 0]], [[1, 1]]]])
    np.testing.assert_array_equal(before, [[[[1, 1]], [[-1, 0]]]])


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
    assert [v.held_places(stage) for stage in range(4)] == [(0, 7), (1, 6), (2, 5), (3, 4)]
    assert memory_of(both, 0).weights == 2 * memory_of(usual, 0).weights


def test_settings_that_do_not_go_with_passes_that_overlap_are_refused():
    both = {"model.name": "llama-moe", "network.fabric": "mfabric", "job.schedule": "dualpipe", "job.overlap": "passes"}
    for changed, words in (
        (
            {"circuits.turn": "reuse"},
            "circuits.turn must be on-demand or span (iteration or run) beside job.overlap passes",
        ),
        (
            {"circuits.span.length": "stage"},
            "circuits.turn must be on-demand or span (iteration or run) beside job.overlap",
        ),
        ({"circuits.partial": True}, "circuits.partial must be false beside job.overlap passes, got true."),
        ({"compute.received.combine": "rank"}, "compute.received.combine must be barrier beside job.overlap passes"),
    ):
        assert words in refused(both | changed)
