"""The 1F1B order against its definition by what is in flight."""

import numpy as np
import pytest

from mfabric_jax.schedule import one_f_one_b
from mfabric_jax.schedule.order import BACKWARD, FORWARD
from tests.oracles.timeline import stage_order

SIZES = [(stages, batches) for stages in range(1, 6) for batches in range(1, 7)]
KIND = {"F": FORWARD, "B": BACKWARD}


def rows(order):
    """What each stage runs: lists of (kind, micro-batch)."""
    return [list(zip(*row, strict=True)) for row in zip(order.kind.tolist(), order.micro_batch.tolist(), strict=True)]


@pytest.mark.parametrize(("stages", "batches"), SIZES)
def test_every_stage_runs_one_forward_one_backward(stages, batches):
    order = one_f_one_b(stages, batches)
    want = [[(KIND[kind], m) for kind, m in stage_order(p, stages, batches)] for p in range(stages)]
    assert rows(order) == want


@pytest.mark.parametrize(("stages", "batches"), SIZES)
def test_every_pass_runs_once(stages, batches):
    order = one_f_one_b(stages, batches)
    assert order.kind.shape == order.micro_batch.shape == (stages, 2 * batches)
    everything = sorted((kind, m) for kind in (FORWARD, BACKWARD) for m in range(batches))
    assert all(sorted(row) == everything for row in rows(order))
    merged = zip(order.stage.tolist(), order.position.tolist(), strict=True)
    assert sorted(merged) == [(p, q) for p in range(stages) for q in range(2 * batches)]


@pytest.mark.parametrize(("stages", "batches"), SIZES)
def test_the_merged_order_respects_every_need(stages, batches):
    # A forward pass needs the stage before, a backward pass the stage behind and its own forward pass; a stage runs
    # one pass after the other.
    order, done = one_f_one_b(stages, batches), set()
    table = rows(order)
    for p, q, need in zip(order.stage.tolist(), order.position.tolist(), order.needs.tolist(), strict=True):
        kind, m = table[p][q]
        neighbour = p - 1 if kind == FORWARD else p + 1
        if 0 <= neighbour < stages:
            assert (neighbour, kind, m) in done
            at, place = divmod(need, 2 * batches)
            assert (at, *table[at][place]) == (neighbour, kind, m)
        else:
            assert need == -1
        if kind == BACKWARD:
            assert (p, FORWARD, m) in done
        if q:
            assert (p, *table[p][q - 1]) in done
        done.add((p, kind, m))


@pytest.mark.parametrize(("stages", "batches"), SIZES)
def test_warm_up_and_what_is_in_flight(stages, batches):
    order = one_f_one_b(stages, batches)
    for p in range(stages):
        held = np.cumsum(np.where(order.kind[p] == FORWARD, 1, -1))
        assert held.max() == min(stages - p, batches)
        assert np.argmax(order.kind[p] == BACKWARD) == min(stages - p, batches)   # forwards before the first backward
        assert held[-1] == 0


def test_by_hand():
    # Two stages, three micro-batches: the first runs one forward ahead.
    f, b = FORWARD, BACKWARD
    first, second = rows(one_f_one_b(2, 3))
    assert first == [(f, 0), (f, 1), (b, 0), (f, 2), (b, 1), (b, 2)]
    assert second == [(f, 0), (b, 0), (f, 1), (b, 1), (f, 2), (b, 2)]
