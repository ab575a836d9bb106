"""The order of passes and their ends in loops, against plain Python."""

import numpy as np
import pytest

from mfabric_jax.evaluate.setups import coarse
from mfabric_jax.evaluate.setups.passes_loops import alternate, play_passes
from mfabric_jax.timing.passes import order
from mfabric_jax.workload.schedules import (
    BACKWARD,
    FORWARD,
    INPUT,
    SCHEDULES,
    WEIGHT,
    PipelineShape,
    interleaved_warm_up,
    units_of,
)


def alternated(schedule, shape):
    """The units of all stages by `alternate`."""
    stages, micro_batches, chunks, overlap = shape
    shaped = (stages, 2 * micro_batches * chunks)
    kind, micro_batch, chunk = np.full((3, *shaped), -1, np.int32)
    paired = np.zeros(shaped, np.bool_)
    warm_up = SCHEDULES[schedule].warm_up
    assert warm_up is not None
    warm = np.array([warm_up(stage, shape) for stage in range(stages)])
    alternate(stages, micro_batches, chunks, warm, overlap, kind, micro_batch, chunk, paired)
    every = []
    for stage in range(stages):
        steps = [*zip(kind[stage].tolist(), micro_batch[stage].tolist(), chunk[stage].tolist(), strict=True)]
        units, at = [], 0
        while at < len(steps):
            width = 2 if paired[stage, at] else 1
            units.append(tuple(steps[at : at + width]))
            at += width
        every.append(tuple(units))
    return every


def test_passes_alternate_as_the_schedule_says():
    rng = np.random.default_rng(0)
    for _ in range(150):
        stages, micro_batches, chunks = (int(rng.integers(1, most)) for most in (9, 30, 5))
        shape = PipelineShape(stages, micro_batches, chunks, bool(rng.integers(2)))
        for schedule in ("1f1b", "interleaved"):
            own = shape._replace(chunks=1) if schedule == "1f1b" else shape
            want = [units_of(schedule, stage, own) for stage in range(stages)]
            assert alternated(schedule, own) == want, (schedule, own)


def test_micro_batches_may_be_no_multiple_of_the_stages():
    shape = PipelineShape(stages=4, micro_batches=6, chunks=2)
    assert interleaved_warm_up(0, shape) == 10
    first = [*((m, 0) for m in range(4)), *((m, 1) for m in range(4)), (4, 0), (5, 0)]
    assert alternated("interleaved", shape)[0][:10] == tuple(((FORWARD, m, c),) for m, c in first)


def longest_path(schedule, shape, times, pair_of, send):
    """Ends of stages, and end and kind of the last backward pass of every place on a stage."""
    found, table = order(schedule, *shape), SCHEDULES[schedule].part_of
    stages, passes = found.kind.shape
    later = np.zeros_like(found.kind, bool) if found.later is None else found.later
    kind = np.where(later, INPUT, found.kind)
    place = np.array([[table(p, c, stages) if c >= 0 else -1 for c in row] for p, row in enumerate(found.chunk)])
    needs = dict(zip((found.stage * passes + found.position).tolist(), found.needs.tolist(), strict=True))
    paired = np.zeros_like(later) if found.paired is None else found.paired
    end = {}
    last = {}

    def came(p, q):
        at = needs[p * passes + q]
        if at < 0:
            return 0.0
        other = place.reshape(-1)[at]
        return end[divmod(at, passes)] + (send[min(other, place[p, q])] if other != place[p, q] else 0.0)

    for p, q in zip(found.stage.tolist(), found.position.tolist(), strict=True):
        if (p, q) in end or place[p, q] < 0:
            end.setdefault((p, q), end.get((p, q - 1), 0.0))
            continue
        unit = [q, q + 1] if paired[p, q] else [q]
        ready = max(came(p, each) for each in unit)
        own = pair_of(place[p, q], place[p, q + 1]) if len(unit) > 1 else times[kind[p, q], place[p, q]]
        done = max(end.get((p, q - 1), 0.0), ready) + own
        for each in unit:
            end[p, each] = done
            if kind[p, each] != FORWARD:
                assert len(unit) == 1 or any(place[p, q + 2 :] == place[p, each])  # the last pass of a place is alone
                last[p, place[p, each]] = done, kind[p, each]
    return [end[p, passes - 1] for p in range(stages)], last


SHAPES = [
    *[("1f1b", PipelineShape(pp, m, 1, overlap)) for pp, m in ((1, 3), (2, 3), (4, 9), (8, 8)) for overlap in (0, 1)],
    *[
        ("interleaved", PipelineShape(pp, m * pp, c, overlap))
        for pp, m, c in ((2, 1, 2), (4, 3, 3))
        for overlap in (0, 1)
    ],
    *[("zb-h1", PipelineShape(pp, m)) for pp, m in ((2, 2), (4, 9), (8, 5))],
    *[("zb-v", PipelineShape(pp, m, 2)) for pp, m in ((2, 3), (4, 3), (4, 12))],
    *[("dualpipe", PipelineShape(pp, m, 1, overlap)) for pp, m in ((2, 4), (4, 8), (4, 14)) for overlap in (0, 1)],
]


@pytest.mark.parametrize(("schedule", "shape"), SHAPES)
def test_passes_end_where_the_longest_path_does(schedule, shape):
    shape = shape._replace(overlap=bool(shape.overlap))
    rng = np.random.default_rng(shape.stages * 100 + shape.micro_batches)
    places = shape.stages * shape.chunks
    times, send = rng.uniform(1, 2, (4, places)), np.append(rng.uniform(0.1, 0.5, places - 1), 0.0)
    blocks, pair, alone = rng.integers(0, 4, places).astype(float), rng.uniform(0.1, 0.5, 2), rng.uniform(0.05, 0.2, 2)

    def pair_of(f, b):
        both = min(blocks[f], blocks[b])
        length = times[FORWARD, f] + times[BACKWARD, b] - both * alone.sum()
        return length + (pair[0] + both * pair[1] if both else 0.0)

    want, of_places = longest_path(schedule, shape, times, pair_of, send)
    kind, micro_batch, place, paired = coarse._passes(schedule, shape)
    ends, last = np.zeros(shape.stages), np.zeros((shape.stages, places))
    of_last = np.zeros(last.shape, np.int64)
    given = kind, micro_batch, place, paired, shape.micro_batches, times, pair, send, *alone, blocks
    assert play_passes(*given, ends, last, of_last)
    np.testing.assert_allclose(ends, want, rtol=1e-12)
    for (stage, part), each in of_places.items():
        np.testing.assert_allclose((last[stage, part], of_last[stage, part]), each, rtol=1e-12)
    assert {*of_last[last > 0].tolist()} <= {BACKWARD, WEIGHT}


def test_passes_that_wait_for_themselves_are_refused():
    one = np.array([[BACKWARD, FORWARD]], np.int32), np.zeros((1, 2), np.int32), np.zeros((1, 2), np.int32)
    zeros = np.zeros((1, 1)), np.zeros((1, 1), np.int64)
    given = np.zeros((1, 2), np.bool_), 1, np.ones((4, 1)), np.zeros(2), np.zeros(1), 0.0, 0.0, np.zeros(1)
    assert not play_passes(*one, *given, np.zeros(1), *zeros)
