"""The timeline of drawn pipelines against one plain clock per stage, and closed forms of even ones."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mfabric_jax.schedule._order import BACKWARD, Order, order
from mfabric_jax.schedule.blocks import Blocks, Compute, Rules
from mfabric_jax.schedule.timeline import run
from tests.oracles.timeline import Region, timeline


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
    compute: Compute
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
    compute = Compute(*(seconds(rng, pipeline.stages) for _ in range(4)))
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
def slots_of(draws, eps_waits, recompute):
    """Slots of a batch of draws: their orders are traced too, so one trace serves every schedule of one shape."""

    def one(draw):
        rules = Rules(eps_waits, draw.parts, recompute)
        return run(draw.order, draw.blocks, draw.compute, draw.send, draw.delay, rules, draw.decision)

    return jax.vmap(one)(draws)


def batch(draws):
    """Many draws of one shape as one."""
    return jax.tree.map(lambda *leaves: jnp.asarray(np.stack(leaves)), *draws)


def plain(draw, pipeline, eps_waits, recompute, *, stretch=True):
    """The oracle's records of one draw, by pass."""
    order, blocks, compute = draw.order, draw.blocks, draw.compute
    exchange = np.stack([blocks.optical_s, blocks.packet_s], axis=-1)
    routed = (blocks.busy - 1) * compute.expert_s[:, None, None]
    experts = compute.moe_s[:, None, None] + routed
    table = {}
    for p, q in np.ndindex(order.kind.shape):
        table["FB"[int(order.kind[p, q] == BACKWARD)], p, int(order.micro_batch[p, q]), int(order.chunk[p, q])] = [
            {
                "attention": float(compute.attention_s[p]),
                "inner": float(experts[p, q, i] if blocks.moe[p, q, i] else compute.dense_s[p]),
                "tp": float(compute.tp_s[p]),
                "exchange": exchange[p, q, i].tolist() if blocks.moe[p, q, i] else None,
                "switch": blocks.switch[p, q, i].tolist(),
                "ahead": bool(blocks.ahead[p, q, i]),
                "delay": draw.delay[p, q, i].tolist(),
                "waiting": blocks.waiting_s[p, q, i].tolist(),
            }
            for i in np.flatnonzero(blocks.present[p, q])
        ]
    rules = (None, eps_waits, recompute, int(draw.parts), stretch, float(draw.decision))
    regions = [Region(*rules) for _ in range(pipeline.stages)]
    return timeline(table, *pipeline[:4], draw.send.tolist(), regions)


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


def drawn_cases(pipelines, depth, partial=(False,)):
    return [(one, draw(seed, one, depth, some)) for one in pipelines for seed in range(DRAWS) for some in partial]


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
    cases = drawn_cases(pipelines, depth, (False, True))
    got = slots_of(batch([draw for _, draw in cases]), eps_waits, recompute)
    paid = other = overlaps = 0
    for index, (pipeline, draw) in enumerate(cases):
        records, end = plain(draw, pipeline, eps_waits, recompute)
        assert_slots(got, index, draw, records)
        paid += sum(one["paid"] > 0 for row in records.values() for one in row)
        other += end != plain(draw, pipeline, not eps_waits, recompute)[1]
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
    got = np.asarray(slots_of(batch([draw for _, draw in cases]), False, "none").end)[..., -1]
    for index, (pipeline, draw) in enumerate(cases):
        end = plain(draw, pipeline, False, "none", stretch=False)[1]
        want = np.array([[end[by_pass(draw.order, p, q)] for q in range(got.shape[2])] for p in range(got.shape[1])])
        assert (got[index] <= want * (1 + RTOL) + ATOL).all()
        late += not np.allclose(got[index], want, rtol=RTOL, atol=ATOL)
        if not waits_inside(draw):
            np.testing.assert_allclose(got[index], want, rtol=RTOL, atol=ATOL)
            exact += 1
    assert exact >= len(cases) / 2
    assert late > 2


def even(pipeline):
    """Slots of one dense block a place: 2 s forward and 4 s backward, no time between stages."""
    shape = (*pipeline.order.kind.shape, 3)
    here, nothing = np.zeros(shape, bool), np.zeros((*shape, 2))
    here[..., 0] = True
    blocks = Blocks(here, np.zeros(shape, bool), nothing, nothing, nothing > 0, nothing[..., 0] > 0, None, nothing)
    compute = Compute(*(np.full(pipeline.stages, x) for x in (1.5, 100.0, 0.5, 0.0)))
    zero = np.zeros(pipeline.stages)
    draw = Draw(pipeline.order, blocks, compute, zero, np.full(nothing.shape, 9.0), np.asarray(1.0), np.zeros(()))
    return slots_of(batch([draw]), False, "none")


@pytest.mark.parametrize("pipeline", [*SMALL[:2], SMALL[3]])
def test_bubbles_of_even_stages(pipeline):
    # All M micro-batches through all V chunks, and P - 1 times one forward and one backward block.
    got = even(pipeline)
    blocks = pipeline.batches * pipeline.chunks + pipeline.stages - 1
    np.testing.assert_allclose(np.asarray(got.end).max(), 6 * blocks, rtol=RTOL)
