"""The pipeline against a plain 1F1B simulation, and against one clock per stage where passes wait for the switch."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mfabric_jax.schedule import one_f_one_b
from mfabric_jax.schedule.block import Pass
from mfabric_jax.schedule.order import BACKWARD
from mfabric_jax.schedule.pipeline import run_pipeline
from tests.oracles import pipeline as oracle
from tests.oracles.timeline import stage_order, timeline
from tests.schedule import drawn

SHAPES = [(1, 4), (2, 2), (3, 5), (4, 4), (5, 3), (4, 8)]
DRAWS = 40
RTOL = 1e-9


@functools.partial(jax.jit, static_argnums=(0, 1))
def run(stages, batches, passes, send, delay):
    order = one_f_one_b(stages, batches)
    return jax.vmap(lambda *one: run_pipeline(order, *one))(passes, send, delay)


def passes_of(duration, **known):
    """Passes of which only the duration, and what is named, matters: the rest is NaN or False."""
    nothing = np.full_like(duration, np.nan)
    settings = dict.fromkeys(Pass._fields, nothing) | {"opens": duration < 0, "exchanges": duration < 0}
    zero = 0 * duration
    return Pass(**settings | {"duration_s": duration, "head_s": zero, "slack_s": zero, "tail_s": zero} | known)


def by_name(values, order):
    """[P Q] by (kind, stage, micro-batch)."""
    kind, values = np.where(order.kind == BACKWARD, "B", "F"), np.asarray(values)
    return {(str(kind[at]), at[0], int(order.micro_batch[at])): values[at].item() for at in np.ndindex(values.shape)}


def assert_ends(got, want):
    assert got.keys() == want.keys()
    np.testing.assert_allclose([got[name] for name in want], list(want.values()), rtol=RTOL)


@pytest.mark.parametrize(("stages", "batches"), SHAPES)
def test_agrees_with_the_plain_simulation(stages, batches):
    order, rng = one_f_one_b(stages, batches), np.random.default_rng(stages * 100 + batches)
    cost = drawn.seconds(rng, (DRAWS, 2, stages, batches))                            # draw, kind, stage, micro-batch
    send = drawn.seconds(rng, DRAWS)
    stage = np.arange(stages)[:, None]
    duration = cost[:, (order.kind == BACKWARD).astype(int), stage, order.micro_batch]
    got = run(stages, batches, passes_of(duration), send, np.full(DRAWS, 1e3))
    for index in range(DRAWS):
        end, finish = oracle.one_f_one_b(*cost[index].tolist(), float(send[index]))
        assert_ends(by_name(got.end[index], order), finish)
        np.testing.assert_allclose(got.end[index].max(), end, rtol=RTOL)
    np.testing.assert_allclose(got.end - got.start, duration, rtol=RTOL, atol=1e-12)
    np.testing.assert_array_equal(got.waited, 0)


def waiting(order, passes, stages, batches, send, delay):
    """Ends and waits of passes given as dicts: the waiting rule with one clock and one quiet time per stage."""
    free, quiet = [0.0] * stages, [-np.inf] * stages
    end, waited = {}, {}
    todo = [stage_order(p, stages, batches) for p in range(stages)]
    while any(todo):
        for p in range(stages):
            if not todo[p]:
                continue
            kind, m = todo[p][0]
            neighbour = (kind, p - 1 if kind == "F" else p + 1, m)
            if 0 <= neighbour[1] < stages and neighbour not in end:
                continue
            start = max(free[p], end[neighbour] + send if neighbour in end else 0.0)
            one, name = passes[kind, p, m], (kind, p, m)
            allowed = start + one["head_s"] + one["slack_s"]                          # circuits there: no harm done yet
            waited[name] = max(0.0, quiet[p] + delay - allowed) if one["opens"] else 0.0
            free[p] = end[name] = start + waited[name] + one["duration_s"]
            if one["exchanges"]:
                quiet[p] = end[name] - one["tail_s"]
            todo[p].pop(0)
    return end, waited


@pytest.mark.parametrize(("stages", "batches"), SHAPES)
def test_waits_for_the_switch_where_circuits_change(stages, batches):
    order, rng = one_f_one_b(stages, batches), np.random.default_rng(stages * 100 + batches)
    shape = (DRAWS, *order.kind.shape)
    head, body, tail, slack = (drawn.seconds(rng, shape) for _ in range(4))
    exchanges = rng.random(shape) < 0.8
    opens = exchanges & (order.kind == BACKWARD) & (rng.random(shape) < 0.7)
    passes = passes_of(head + body + tail, head_s=head, slack_s=slack, tail_s=tail, opens=opens, exchanges=exchanges)
    send, delay = drawn.seconds(rng, DRAWS), drawn.seconds(rng, DRAWS) * 3
    got = run(stages, batches, passes, send, delay)
    for index in range(DRAWS):
        named = {field: by_name(getattr(passes, field)[index], order) for field in Pass._fields}
        each = {name: {field: named[field][name] for field in named} for name in named["duration_s"]}
        end, waited = waiting(order, each, stages, batches, float(send[index]), float(delay[index]))
        assert_ends(by_name(got.end[index], order), end)
        got_waits = by_name(got.waited[index], order)
        np.testing.assert_allclose([got_waits[name] for name in waited], list(waited.values()), rtol=RTOL, atol=1e-12)
    assert (np.asarray(got.waited) > 0).sum() > DRAWS / 4                                         # the draws do wait


@pytest.mark.parametrize(("stages", "batches", "depth"), [(1, 3, 2), (2, 4, 3), (4, 4, 2)])
def test_blocks_and_pipeline_together_are_one_clock_per_stage(stages, batches, depth):
    # The oracle knows no passes with heads and tails: it walks every block of every stage and the switch with it.
    order = one_f_one_b(stages, batches)
    draws = [drawn.draw(seed, stages, batches, depth) for seed in range(DRAWS)]
    passes, got = drawn.run(stages, batches, *drawn.batch(draws))
    eps_waits_matters = 0
    for index, one in enumerate(draws):
        settings = drawn.plain(one, order), stages, batches, float(one.send), float(one.delay)
        end, paid = timeline(*settings, one.eps_waits)
        eps_waits_matters += end != timeline(*settings, not one.eps_waits)[0]
        assert_ends(by_name(got.end[index], order), end)
        here = (passes.paid_s[index] + got.waited[index]).sum(axis=1)
        np.testing.assert_allclose(here, paid, rtol=RTOL, atol=1e-12)
    parts = passes.compute_s + passes.tp_s + passes.exchange_s + passes.paid_s
    np.testing.assert_allclose(parts, passes.duration_s, rtol=RTOL, atol=1e-12)
    assert eps_waits_matters > DRAWS / 4


def test_idle_time_hides_the_switch_by_hand():
    # One micro-batch, two stages. Forward 2 each with all-to-alls up to its end, backward 4 with the last all-to-all
    # one second before its end; send 3; backward passes want new circuits; delay 10.
    # Stage 0: forward [0, 2]. Stage 1: forward [5, 7]; its backward could start at 7 and waits until 7 + 10 = 17: ends
    # at 21. Stage 0: backward arrives at 24, and the switch has had 22 s since 2: no wait, ends at 28.
    duration = np.array([[[2.0, 4.0], [2.0, 4.0]]])
    backward = np.array([[[False, True], [False, True]]])
    passes = passes_of(duration, tail_s=np.where(backward, 1.0, 0.0), opens=backward, exchanges=duration > 0)
    got = run(2, 1, passes, np.array([3.0]), np.array([10.0]))
    np.testing.assert_allclose(got.end[0], [[2, 28], [7, 21]], rtol=RTOL)
    np.testing.assert_allclose(got.start[0], [[0, 24], [5, 7]], rtol=RTOL)
    np.testing.assert_allclose(got.waited[0], [[0, 0], [0, 10]], rtol=RTOL)


def test_a_head_before_the_first_all_to_all_covers_part_of_the_delay():
    # One stage: forward [0, 2] with all-to-alls to its end; backward runs 3 s before its first all-to-all: of 10 s it
    # waits for 7, and ends at 2 + 6 + 7.
    passes = passes_of(
        np.array([[[2.0, 6.0]]]), head_s=np.array([[[1.0, 3.0]]]), opens=np.array([[[False, True]]]),
        exchanges=np.array([[[True, True]]]),
    )  # fmt: skip
    got = run(1, 1, passes, np.zeros(1), np.full(1, 10.0))
    np.testing.assert_allclose(got.waited[0], [[0, 7]], rtol=RTOL)
    np.testing.assert_allclose(got.end[0], [[2, 15]], rtol=RTOL)


@pytest.mark.parametrize(("slack", "waited"), [(0.0, 7.0), (4.0, 3.0), (7.0, 0.0), (9.0, 0.0)])
def test_packets_that_take_longer_than_the_circuits_cover_part_of_the_delay(slack, waited):
    # As before: 7 s are left when it gets to its first all-to-all. The slack of a pass that opens nothing is no gain.
    passes = passes_of(
        np.array([[[2.0, 6.0]]]), head_s=np.array([[[1.0, 3.0]]]), slack_s=np.array([[[1.0, slack]]]),
        opens=np.array([[[False, True]]]), exchanges=np.array([[[True, True]]]),
    )  # fmt: skip
    got = run(1, 1, passes, np.zeros(1), np.full(1, 10.0))
    np.testing.assert_allclose(got.waited[0], [[0, waited]], rtol=RTOL)
    np.testing.assert_allclose(got.start[0], [[0, 2]], rtol=RTOL)
    np.testing.assert_allclose(got.end[0], [[2, 8 + waited]], rtol=RTOL)


def test_nobody_waits_before_the_first_all_to_all_of_the_iteration():
    passes = passes_of(np.array([[[2.0, 6.0]]]), opens=np.array([[[False, True]]]))
    got = run(1, 1, passes, np.zeros(1), np.full(1, 10.0))
    np.testing.assert_array_equal(got.waited, 0)
    assert jnp.isfinite(got.end).all()
