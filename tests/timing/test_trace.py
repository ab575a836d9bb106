"""Segments of a timeline: by hand, and against the slots they are drawn from."""

import itertools

import jax
import numpy as np
import pytest

from mfabric_jax.timing.blocks import BlockCompute, Blocks, Rules, table_of
from mfabric_jax.timing.iteration import Walked
from mfabric_jax.timing.passes import order_of, places
from mfabric_jax.timing.timeline import run
from mfabric_jax.timing.trace import LABELS, TRACKS, one_block, segments
from mfabric_jax.workload.schedules import BACKWARD, FORWARD, WEIGHT
from tests.timing.jobs import job

TOLERANCE = {"rtol": 1e-9, "atol": 1e-9}


def timeline(workload, blocks, compute, send_s, delay_s, rules, reduce_s=None):
    """The iteration of numbers."""
    given = jax.tree.map(lambda x: np.asarray(x)[None], (blocks, compute, delay_s))
    table = table_of(order_of(workload), *given, rules)
    slots = run(order_of(workload), table, send_s[None], rules)
    table, slots = jax.tree.map(lambda x: x[0], (table, slots))
    reduce_s = np.zeros(workload.pp) if reduce_s is None else np.asarray(reduce_s)
    return Walked(slots, table, blocks, compute, reduce_s, {}, 0 * reduce_s, np.float64(0))


def spans(found, **where):
    return [(one["start_s"], one["end_s"]) for one in found if where.items() <= one.items()]


def length(found, **where):
    return sum(end - start for start, end in spans(found, **where))


def told(workload, blocks, reduce_s=None):
    """Segments: 2 s of attention, 3 of experts, 1 of TP; nothing between stages; the switch takes 7."""
    compute = BlockCompute(*map(np.float64, (2.0, 3.0, 9.0, 1.0)))
    return segments(workload, timeline(workload, blocks, compute, np.zeros(1), np.float64(7.0), Rules(), reduce_s))


def test_a_block_by_hand():
    # Forward: gate at 3, the switch turns until 10, packets are through at 5, circuits at 10.5: 5.5 late. Backward the
    # switch is told when the combine is over, at 15.5; again 5.5 late. Gradients take 4 s.
    here, parts = np.ones((1, 2, 1), bool), np.ones((1, 2, 1, 2))
    blocks = Blocks(here, here, 0.5 * parts, 2.0 * parts, parts * [1, 0] > 0, np.asarray([[[False], [True]]]))
    found = told(job(blocks=1, micro_batches=1), blocks, reduce_s=[4.0])
    forward = [
        (0, 2, "compute", "attention"),
        (2, 3, "NVSwitch", "TP"),
        (3, 10, "OCS", "reconfigure"),
        (3, 5, "EPS", "dispatch"),
        (4.5, 10, "waiting", "switch"),
        (10, 10.5, "OCS", "dispatch"),
        (10.5, 13.5, "compute", "experts"),
        (13.5, 15.5, "EPS", "combine"),
        (13.5, 14, "OCS", "combine"),
    ]
    backward = [
        (15.5, 22.5, "OCS", "reconfigure"),
        (15.5, 17.5, "EPS", "combine grad"),
        (17, 22.5, "waiting", "switch"),
        (22.5, 23, "OCS", "combine grad"),
        (23, 29, "compute", "experts"),
        (29, 31, "EPS", "dispatch grad"),
        (29, 29.5, "OCS", "dispatch grad"),
        (31, 35, "compute", "attention"),
        (35, 36, "NVSwitch", "TP"),
    ]
    for direction, want in (("forward", forward), ("backward", backward), (None, [(36, 40, "EPS", "gradients")])):
        got = [one for one in found if one["direction"] == direction]
        got = sorted((one["start_s"], one["end_s"], one["track"], one["label"]) for one in got)
        assert [one[2:] for one in got] == [one[2:] for one in sorted(want)]
        np.testing.assert_allclose([one[:2] for one in got], [one[:2] for one in sorted(want)], **TOLERANCE)
    mine = {"stage": 0, "micro_batch": 0, "place": 0, "block": 0}
    assert all((mine.items() <= one.items()) != (one["kind"] == "dp") for one in found)
    assert {one["track"] for one in found} == set(TRACKS)


def test_a_block_is_cut_from_the_middle_and_begins_with_its_reconfiguration():
    # Three blocks a stage; block 1 is the middle one. Without reconfiguration a forward block takes 10, a backward one
    # 15; block 2's gradients of attention and TP (5) hide as much of the switch's 7.
    workload = job(blocks=3, micro_batches=2)
    shape = (1, 4, 3)
    moe, backward = np.ones(shape, bool), places(workload).backward
    two = np.full((*shape, 2), 2.0)
    switch = np.stack([backward, 0 * backward], axis=-1).astype(bool)
    blocks = Blocks(moe, moe, two, two / 2, switch, backward)
    cut = one_block(workload, told(workload, blocks))
    assert {one["block"] for one in cut if one["direction"] == "forward"} == {1}
    assert {one["micro_batch"] for one in cut} == {1}
    np.testing.assert_allclose(spans(cut, direction="forward", kind="attention"), [(0, 2)], **TOLERANCE)
    np.testing.assert_allclose(spans(cut, label="attention (next block)"), [(10, 14)], **TOLERANCE)
    np.testing.assert_allclose(spans(cut, label="reconfigure"), [(10, 17)], **TOLERANCE)
    np.testing.assert_allclose(spans(cut, kind="waiting"), [(15, 17)], **TOLERANCE)
    np.testing.assert_allclose(spans(cut, label="combine grad", track="OCS"), [(17, 19)], **TOLERANCE)
    np.testing.assert_allclose(spans(cut, direction="backward", kind="tp"), [(14, 15), (31, 32)], **TOLERANCE)
    np.testing.assert_allclose(spans(cut, label="reconfigure (previous block)"), [(27, 32)], **TOLERANCE)


CASES = [
    (job(pp=3, blocks=5, micro_batches=4, dense_blocks=1), Rules()),
    (job(pp=2, blocks=7, micro_batches=2, schedule="interleaved", chunks=2), Rules()),
    (job(pp=2, blocks=3, micro_batches=3, schedule="gpipe", recompute="attention"), Rules(True, 1, "attention")),
    (job(pp=2, blocks=4, micro_batches=2, dense_blocks=1, recompute="block"), Rules(True, 1, "block")),
    (job(pp=2, blocks=4, micro_batches=2, dense_blocks=(1, 2), recompute="block"), Rules(True, 3, "block")),
    (job(pp=2, blocks=6, micro_batches=3, dense_blocks=1, schedule="zb-v"), Rules(True, 1)),
    (job(pp=2, blocks=4, micro_batches=4, schedule="dualpipe", overlap_passes=False), Rules()),
]
DRAWS = 4


def draw(seed, workload):
    """Numbers of one iteration: some circuits without load, some that switch, some chosen ahead."""
    rng = np.random.default_rng(seed)
    where = places(workload)
    shape = where.layer.shape

    def seconds(*shape):
        return rng.uniform(0, 3, shape) * (rng.random(shape) < 0.8)

    optical_s, packet_s = seconds(*shape, 2), seconds(*shape, 2)
    switch, ahead = rng.random((*shape, 2)) < 0.6, where.backward | (rng.random(shape) < 0.4)
    blocks = Blocks(where.present, where.layer >= 0, optical_s, packet_s, switch, ahead, experts=where.experts >= 0)
    compute = BlockCompute(*(rng.uniform(0.1, 3, workload.pp) for _ in range(4)))
    return blocks, compute, seconds(workload.pp), np.float64(rng.choice([0.5, 6.0]))


def running(workload):
    """(key of a running block, where it is), by the order and the blocks of every place."""
    order, where = order_of(workload), places(workload)
    for p, q in np.ndindex(order.kind.shape):
        if order.chunk[p, q] < 0:
            continue
        place = workload.stage_places(p)[order.chunk[p, q]]
        first, here = sum(workload.place_blocks[:place]), np.flatnonzero(where.present[p, q])
        direction = {FORWARD: "forward", BACKWARD: "backward", WEIGHT: "weights"}[int(order.kind[p, q])]
        own = range(first, first + len(here))
        for at, block in zip(here, own if direction == "forward" else reversed(own), strict=True):
            who = {"micro_batch": int(order.micro_batch[p, q]), "place": place, "block": block}
            yield who | {"direction": direction}, (p, q, int(at))


@pytest.mark.parametrize(("workload", "rules"), CASES)
def test_segments_agree_with_slots(workload, rules):
    waited = 0
    for seed in range(DRAWS):
        blocks, compute, send_s, delay_s = draw(seed, workload)
        walked = timeline(workload, blocks, compute, send_s, delay_s, rules, np.arange(workload.pp) + 1.0)
        slots, found = walked.slots, segments(workload, walked, rules)
        assert_apart(workload, found)
        again = {one["kind"] for one in found if one["label"].endswith(" again")}
        everything = {"attention", "tp", "all-to-all", "experts", "dense"}
        assert again <= {"none": set(), "attention": {"attention"}, "block": everything}[rules.recompute]
        assert ("attention" in again) == (rules.recompute != "none")
        for who, at in running(workload):
            mine = [one for one in found if who.items() <= one.items()]
            assert_block(mine, slots, at, rules)
        if rules.parts == 1:
            assert_whole(workload, found, slots)
        assert_turns(workload, found, slots, blocks, float(delay_s))
        waited += len(spans(found, label="switch"))
    assert waited > DRAWS


def assert_apart(workload, found):
    """Nothing on one track of one stage overlaps, not even by rounding; all within the iteration."""
    for stage, track in itertools.product(range(workload.pp), TRACKS):
        mine = spans(found, stage=stage, track=track)
        assert mine == sorted(mine)
        assert all(start < end for start, end in mine)
        assert all(one[1] <= two[0] for one, two in itertools.pairwise(mine))
    assert min(one["start_s"] for one in found) >= 0


def assert_block(mine, slots, at, rules):
    """Lengths of a block against its slot."""
    sums = {"compute_s": {"track": "compute"}, "tp_s": {"track": "NVSwitch"}, "paid_s": {"label": "switch"}}
    for field, where in sums.items():
        np.testing.assert_allclose(length(mine, **where), getattr(slots, field)[at], **TOLERANCE, err_msg=field)
    carried = {one["label"] for one in mine if one["kind"] == "all-to-all"}
    longest = [max(length(mine, label=label, track=track) for track in ("EPS", "OCS")) for label in carried]
    if rules.parts == 1:
        np.testing.assert_allclose(sum(longest), slots.exchange_s[at], **TOLERANCE)
    else:
        assert sum(longest) >= slots.exchange_s[at] - TOLERANCE["atol"]
    for which, label in enumerate(LABELS.get(mine[0]["direction"], ())):
        for start, end in spans(mine, label=label):
            assert slots.start[(*at, which)] - 1e-9 <= start
            assert end <= slots.over[(*at, which)] + 1e-9


def assert_whole(workload, found, slots):
    """Every second of every stage is spent on something, and waits for the pipeline are what is left."""
    total = max(one["end_s"] for one in found if one["kind"] != "reconfigure")
    for stage in range(workload.pp):
        own = sum(getattr(slots, field)[stage].sum() for field in ("compute_s", "tp_s", "exchange_s", "paid_s"))
        idle = length(found, stage=stage, label="pipeline")
        np.testing.assert_allclose(own + stage + 1.0 + idle, total, **TOLERANCE)


def assert_turns(workload, found, slots, blocks, delay_s):
    """A reconfiguration from every finite turn, for the delay or until the next."""
    for stage in range(workload.pp):
        told = slots.reconfigure_start[stage][blocks.switch[stage] & blocks.moe[stage][..., None]]
        told = np.unique(told[np.isfinite(told)])
        ends = np.minimum(told + delay_s, [*told[1:], np.inf])
        turns = spans(found, stage=stage, kind="reconfigure")
        np.testing.assert_allclose(turns, np.stack([told, ends], 1), **TOLERANCE)


def test_what_two_passes_compute_together_is_apart_and_all_that_they_send_is_there():
    workload, rules = job(pp=2, blocks=4, micro_batches=4, schedule="dualpipe"), Rules(comm_cores=0.2)
    blocks, compute, send_s, delay_s = draw(0, workload)
    walked = timeline(workload, blocks, compute, send_s, delay_s, rules)
    slots, found = walked.slots, segments(workload, walked, rules)
    assert_apart(workload, found)
    for stage in range(workload.pp):
        work = (slots.compute_s + slots.tp_s)[stage].sum()
        alone = length(found, stage=stage, track="compute") + length(found, stage=stage, track="NVSwitch", kind="tp")
        np.testing.assert_allclose(alone, work, **TOLERANCE)
        sent = blocks.packet_s[stage][blocks.moe[stage]].sum()
        np.testing.assert_allclose(length(found, stage=stage, track="EPS"), sent, **TOLERANCE)


def test_counts_stand_apart_from_the_dispatch_that_they_come_before():
    """The block above, of whose forward dispatch half a second on every track is counts; the gradients of a dispatch
    and a combine have none."""
    here, parts = np.ones((1, 2, 1), bool), np.ones((1, 2, 1, 2))
    blocks = Blocks(here, here, 0.75 * parts, 2.0 * parts, parts * [1, 0] > 0, np.asarray([[[False], [True]]]))
    counted = blocks._replace(counts_s=np.array([[[0.5], [0.0]]]))
    whole, found = (told(job(blocks=1, micro_batches=1), some) for some in (blocks, counted))
    for track, begin, end in (("EPS", 3, 5), ("OCS", 10, 10.75)):
        np.testing.assert_allclose(spans(whole, track=track, label="dispatch"), [(begin, end)], **TOLERANCE)
        np.testing.assert_allclose(spans(found, track=track, label="counts"), [(begin, begin + 0.5)], **TOLERANCE)
        np.testing.assert_allclose(spans(found, track=track, label="dispatch"), [(begin + 0.5, end)], **TOLERANCE)
    rest = [[one for one in some if one["label"] not in ("counts", "dispatch")] for some in (whole, found)]
    assert rest[0] == rest[1]


def test_where_two_passes_run_together_counts_hold_computation():
    workload, rules, counts_s = job(pp=2, blocks=4, micro_batches=4, schedule="dualpipe"), Rules(comm_cores=0.2), 0.4
    blocks, compute, send_s, delay_s = draw(0, workload)
    where = places(workload)
    held_s = counts_s * (blocks.moe & ~where.backward)
    more = held_s[..., None] * np.array([1.0, 0.0])
    blocks = blocks._replace(packet_s=blocks.packet_s + more, optical_s=blocks.optical_s + more, counts_s=held_s)
    walked = timeline(workload, blocks, compute, send_s, delay_s, rules)
    slots, found = walked.slots, segments(workload, walked, rules)
    assert_apart(workload, found)
    together = order_of(workload).in_pairs[..., None] & (held_s > 0)
    for stage in range(workload.pp):
        each = spans(found, stage=stage, track="compute", kind="counts")
        np.testing.assert_allclose([end - begin for begin, end in each], np.full(together[stage].sum(), counts_s))
        work = (slots.compute_s + slots.tp_s)[stage].sum()
        computed = [one for one in found if one["stage"] == stage and one["kind"] not in ("counts", "all-to-all")]
        tracks = {track: length(computed, track=track) for track in ("compute", "NVSwitch")}
        np.testing.assert_allclose(sum(tracks.values()), work, **TOLERANCE)
        assert length(found, stage=stage, track="EPS", kind="counts") == pytest.approx(held_s[stage].sum())
