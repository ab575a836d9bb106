"""The orders 1F1B, interleaved and GPipe against their definitions by what is in flight."""

import itertools

import numpy as np
import pytest

from mfabric_jax.schedule._order import BACKWARD, FORWARD, order, order_of
from tests.oracles.timeline import stage_order
from tests.schedule.jobs import job

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
