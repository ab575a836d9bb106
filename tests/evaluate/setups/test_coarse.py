"""The coarse clock against the clock by blocks, for blocks that all take the same."""

import itertools

import numpy as np
import pytest

from mfabric_jax.evaluate.setups import coarse
from mfabric_jax.timing.blocks import Rules
from mfabric_jax.workload.schedules import SCHEDULES
from tests.evaluate.setups.even import RATES, coarse_s, job, usual_s

PLAIN = [("1f1b", 1), ("interleaved", 2), ("interleaved", 3), ("zb-h1", 1), ("zb-v", 2), ("dualpipe", 1)]
PAIRED = [("1f1b", 1), ("interleaved", 2), ("dualpipe", 1)]


def both(schedule, chunks, pp, overlap=False, blocks=0, times=4, **settings):
    """Seconds by the coarse and by the usual clock; one more block than places has some stages busier than others."""
    workload = job(
        pp=pp,
        blocks=blocks or 2 * pp * chunks + (pp > 1),
        micro_batches=times * pp,
        schedule=schedule,
        chunks=chunks,
        overlap_passes=overlap,
        **{"head": "known"} | settings,
    )
    rules = Rules(recompute=workload.recompute, dp_overlap=pp != 2, comm_cores=0.1 * overlap)
    return coarse_s(workload, rules), usual_s(workload, rules)


def shapes(some):
    for (schedule, chunks), pp in itertools.product(some, (1, 2, 4, 8)):
        if pp > 1 or schedule == "1f1b":
            yield schedule, chunks, pp


@pytest.mark.parametrize("recompute", ["none", "norm+activation", "block"])
def test_passes_alone_take_as_long_by_both_clocks(recompute):
    for n, shape in enumerate(shapes(PLAIN)):
        settings = {"recompute": recompute, "vocab": 8000 * (n % 2), "dense_blocks": n % 3 // 2}
        got, want = both(*shape, **settings)
        assert got == pytest.approx(want, rel=1e-9), shape


@pytest.mark.parametrize("recompute", ["none", "norm+activation"])
def test_passes_beside_each_other_take_as_long_by_both_clocks(recompute):
    for shape in shapes(PAIRED):
        blocks = 2 * shape[1] * shape[2]
        got, want = both(*shape, overlap=True, recompute=recompute, blocks=blocks)
        assert got == pytest.approx(want, rel=1e-9), shape
        # An output head is added beside no all-to-all, and blocks of unequal passes are beside each other as they can.
        got, want = both(*shape, overlap=True, recompute=recompute, vocab=8000)
        assert got == pytest.approx(want, rel=1e-9 if shape[0] == "1f1b" else 0.015), shape


@pytest.mark.parametrize("sharding", ["none", "gradients", "parameters"])
def test_gradients_and_parameters_take_as_long_by_both_clocks(sharding):
    for schedule, chunks, pp in (("1f1b", 1, 1), ("1f1b", 1, 2), ("interleaved", 2, 2)):
        got, want = both(schedule, chunks, pp, sharding=sharding, dp=4, vocab=8000)
        assert got == pytest.approx(want, rel=1e-9), (schedule, pp)


def test_long_iterations_repeat_their_steady_part(monkeypatch):
    for schedule, chunks, pp in (("1f1b", 1, 4), ("interleaved", 2, 4), ("zb-v", 2, 4), ("dualpipe", 1, 4)):
        blocks = 2 * pp * chunks * SCHEDULES[schedule].copies
        monkeypatch.setattr(coarse, "MOST_PLAYED", 1 << 17)
        played, _ = both(schedule, chunks, pp, blocks=blocks, times=16)
        monkeypatch.setattr(coarse, "MOST_PLAYED", 0)
        repeated, want = both(schedule, chunks, pp, blocks=blocks, times=16)
        assert played == pytest.approx(want, rel=1e-9), schedule
        assert repeated == pytest.approx(want, rel=1e-9), schedule


def test_iterations_are_played_in_full_where_a_slow_stage_takes_over_late(monkeypatch):
    # Stage 0 is a little slower; the last one, with the head, limits the first micro-batches.
    settings = {"dense_blocks": 3, "blocks": 13, "times": 16}
    got, want = both("1f1b", 1, 4, **settings)
    assert got == pytest.approx(want, rel=1e-9)
    monkeypatch.setattr(coarse, "MOST_PLAYED", 0)
    repeated, _ = both("1f1b", 1, 4, **settings)
    np.testing.assert_allclose(repeated, want, rtol=0.01)


def test_sends_between_stages_may_differ():
    for schedule, chunks, pp in (("1f1b", 1, 4), ("interleaved", 2, 4), ("zb-v", 2, 4), ("dualpipe", 1, 4)):
        # A model in two copies has sends of one copy alone, so its stages are as those of the other.
        each = [2e9, 5e9, 5e9, 2e9] if SCHEDULES[schedule].copies > 1 else [5e9, 2e9, 1e9, 20e9]
        rates = RATES._replace(send_Bps=np.array(each))
        workload = job(pp=pp, blocks=2 * pp * chunks, micro_batches=4 * pp, schedule=schedule, chunks=chunks)
        got, want = (clock(workload, Rules(), rates) for clock in (coarse_s, usual_s))
        assert got == pytest.approx(want, rel=1e-9), schedule
