"""The timeline of drawn pipelines against one plain clock per stage, and closed forms of even ones."""

import numpy as np
import pytest

from mfabric_jax.schedule.order import BACKWARD
from mfabric_jax.schedule.timeline import Blocks, Compute
from tests.schedule import drawn
from tests.schedule.drawn import Pipeline

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
FIELDS = {"compute_s": "computed", "tp_s": "tp", "exchange_s": "exposed", "paid_s": "paid"}
FIELDS |= {"begin": "begin", "end": "end"}


def drawn_cases(pipelines, depth):
    return [(one, drawn.draw(seed, one, depth)) for one in pipelines for seed in range(DRAWS)]


def by_pass(order, p, q):
    return "FB"[int(order.kind[p, q] == BACKWARD)], p, int(order.micro_batch[p, q]), int(order.chunk[p, q])


def rows(draw, records):
    """(where, record) of every block."""
    for p, q in np.ndindex(draw.order.kind.shape):
        here = np.flatnonzero(draw.blocks.present[p, q])
        for i, record in zip(here, records[by_pass(draw.order, p, q)], strict=True):
            yield (p, q, i), record


def assert_slots(got, index, draw, records):
    """Every block of one draw."""
    where, want = zip(*rows(draw, records), strict=True)
    at = (index, *np.transpose(where))
    for field, name in FIELDS.items():
        have = np.asarray(getattr(got, field))[at]
        np.testing.assert_allclose(have, [one[name] for one in want], rtol=RTOL, atol=ATOL, err_msg=field)
    moe = [(place, one) for place, one in zip(where, want, strict=True) if one["over"]]
    if moe:
        where, want = zip(*moe, strict=True)
        at = (index, *np.transpose(where))
        for field in ("over", "inner"):
            have = np.asarray(getattr(got, field))[at]
            np.testing.assert_allclose(have, [one[field] for one in want], rtol=RTOL, atol=ATOL, err_msg=field)


@pytest.mark.parametrize(("pipelines", "depth", "eps_waits", "recompute"), CASES)
def test_agrees_with_one_clock_per_stage(pipelines, depth, eps_waits, recompute):
    cases = drawn_cases(pipelines, depth)
    got = drawn.slots_of(drawn.batch([draw for _, draw in cases]), eps_waits, recompute)
    paid = other = overlaps = 0
    for index, (pipeline, draw) in enumerate(cases):
        records, end = drawn.plain(draw, pipeline, eps_waits, recompute)
        assert_slots(got, index, draw, records)
        paid += sum(one["paid"] > 0 for row in records.values() for one in row)
        other += end != drawn.plain(draw, pipeline, not eps_waits, recompute)[1]
        overlaps += draw.parts > 1
    absent = ~np.stack([draw.blocks.present for _, draw in cases])
    for field in ("compute_s", "tp_s", "exchange_s", "paid_s"):
        np.testing.assert_allclose(np.asarray(getattr(got, field))[absent], 0, atol=ATOL)
    parts = got.compute_s + got.tp_s + got.exchange_s + got.paid_s
    np.testing.assert_allclose(parts, got.end - got.begin, rtol=RTOL, atol=ATOL)
    assert (np.asarray(got.exchange_s) > -ATOL).all()
    assert paid > len(cases)  # the draws do wait
    assert other > len(cases) / 6  # and packets may, too
    assert overlaps > len(cases) / 4


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
    got = np.asarray(drawn.slots_of(drawn.batch([draw for _, draw in cases]), False, "none").end)[..., -1]
    for index, (pipeline, draw) in enumerate(cases):
        end = drawn.plain(draw, pipeline, False, "none", stretch=False)[1]
        want = np.array([[end[by_pass(draw.order, p, q)] for q in range(got.shape[2])] for p in range(got.shape[1])])
        assert (got[index] <= want * (1 + RTOL) + ATOL).all()
        late += not np.allclose(got[index], want, rtol=RTOL, atol=ATOL)
        if not waits_inside(draw):
            np.testing.assert_allclose(got[index], want, rtol=RTOL, atol=ATOL)
            exact += 1
    assert exact >= len(cases) / 2
    assert late > 2


# ---------------------------------------------------------------------------------------------------- even pipelines
def even(pipeline):
    """Slots of one dense block a place: 2 s forward and 4 s backward, no time between stages."""
    shape = (*pipeline.order.kind.shape, 3)
    here, nothing = np.zeros(shape, bool), np.zeros((*shape, 2))
    here[..., 0] = True
    blocks = Blocks(here, np.zeros(shape, bool), nothing, nothing, nothing > 0, nothing[..., 0] > 0)
    compute = Compute(*(np.full(pipeline.stages, x) for x in (1.5, 100.0, 0.5, 0.0)))
    zero = np.zeros(pipeline.stages)
    draw = drawn.Draw(pipeline.order, blocks, compute, zero, np.asarray(9.0), np.asarray(1.0))
    return drawn.slots_of(drawn.batch([draw]), False, "none")


@pytest.mark.parametrize("pipeline", [*SMALL[:2], SMALL[3]])
def test_bubbles_of_even_stages(pipeline):
    # All M micro-batches through all V chunks, and P - 1 times one forward and one backward block.
    got = even(pipeline)
    blocks = pipeline.batches * pipeline.chunks + pipeline.stages - 1
    np.testing.assert_allclose(np.asarray(got.end).max(), 6 * blocks, rtol=RTOL)


def test_first_and_last_stage_send_each_other_chunks():
    # One micro-batch of 2 chunks through 2 stages, no computation: sends of 1 s ahead and 10 s around, and all back.
    # A second micro-batch follows at the same times: nothing takes any time.
    pipeline = Pipeline("interleaved", 2, 2, 2)
    base = drawn.draw(0, pipeline, 3)
    nothing = base.blocks._replace(present=base.blocks.present & False, moe=base.blocks.moe & False)
    compute = Compute(*(np.zeros(2) for _ in range(4)))
    draw = base._replace(blocks=nothing, compute=compute, send=np.array([1.0, 10.0]))
    got = np.asarray(drawn.slots_of(drawn.batch([draw]), False, "none").end)[0, ..., -1]
    ends = {by_pass(draw.order, p, q): got[p, q] for p, q in np.ndindex(got.shape)}
    for m in range(2):
        assert [ends["F", p, m, c] for c in range(2) for p in range(2)] == [0, 1, 11, 12]
        assert [ends["B", p, m, c] for c in (1, 0) for p in (1, 0)] == [12, 13, 23, 24]
