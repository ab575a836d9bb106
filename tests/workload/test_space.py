"""The space of set-ups, against loops over all workloads and all layouts."""

import dataclasses
import itertools

import pytest

from mfabric_jax.checks import InputError
from mfabric_jax.workload import GroupedQuery, Workload, get_gpu, models
from mfabric_jax.workload.layout import places_of
from mfabric_jax.workload.schedules import SCHEDULES
from mfabric_jax.workload.space import (
    MICRO_BATCHES,
    MOST_PIPELINED,
    OpenJob,
    count_for_bubble,
    degrees_of,
    dispatchers_of,
    kinds_of,
    layouts_of,
    shardings_of,
    usual_batch,
)

SMALL = models.Architecture(*("small", 6, 64, GroupedQuery(8, 8, 8), 8, 2, 32, "made up"), vocab=1000)
TWELVE = dataclasses.replace(SMALL, blocks=5, experts=12, dense_blocks=1, dense_hidden=64)
SERVER = dataclasses.replace(get_gpu("H100-SXM"), gpus_per_server=4)
FIELDS = {"model": "own", "known_as": "", "sequence": 64, "predicted": 0, "tp_reduces": "all", "node_limit": None}


def open_job(model, gpus, batch, *, frameworks="any", count=None, **stated):
    return OpenJob(model, SERVER, gpus, batch, FIELDS, stated, lambda *_: 4, count, frameworks)


def legal(model, gpus, batch):
    """Degrees and micro-batches of every workload that there is, one loop a degree."""
    ranges = range(1, 5), range(1, 5), range(1, 13), range(1, 13), range(1, 7), MICRO_BATCHES
    for tp, etp, ep, cp, pp, micro_batch in itertools.product(*ranges):
        folded, dp = tp // etp, gpus // (etp * ep * pp)
        if tp % etp or etp * ep * pp * dp != gpus or ep % (folded * cp) or (cp > 1 and 64 % (2 * cp * folded)):
            continue
        count = batch * cp * folded / (micro_batch * ep * dp)
        many = pp > 2 and micro_batch > MOST_PIPELINED
        if not count.is_integer() or count < 1 or many or (cp > 1 and micro_batch > 1):
            continue
        shape = {"gpus_per_server": 4, "sequence": 64, "micro_batch": micro_batch, "micro_batches": int(count)}
        try:
            Workload("own", model, dp, etp, pp, ep, gpus, **shape, cp=cp, folded=folded)
        except InputError:
            continue
        yield tp, etp, ep, cp, pp, dp, micro_batch, int(count)


@pytest.mark.parametrize(("model", "gpus", "batch"), [(SMALL, 16, 64), (SMALL, 48, 96), (TWELVE, 24, 48)])
def test_degrees_are_those_of_all_workloads(model, gpus, batch):
    found = [tuple(one[:8]) for one in degrees_of(open_job(model, gpus, batch))]
    assert len(set(found)) == len(found) > 20
    assert sorted(found) == sorted(legal(model, gpus, batch))


def test_stated_degrees_are_kept():
    every = list(degrees_of(open_job(SMALL, 16, 64)))
    for stated in (
        {"tp": 2},
        {"pp": 2, "ep": 4},
        {"cp": 2},
        {"dp": 4},
        {"micro_batch": 2, "cp": 1},
        {"etp": 1, "tp": 4},
    ):
        want = [one for one in every if all(getattr(one, name) == value for name, value in stated.items())]
        assert want
        kept = [*degrees_of(open_job(SMALL, 16, 64, **stated))]
        sizes = {one.micro_batch for one in want} if "cp" in stated else {one.micro_batch for one in kept}
        assert [one for one in kept if one.micro_batch in sizes] == want


def test_stated_schedules_and_ring_sizes_may_be_what_a_search_does_not_try():
    job = open_job(SMALL, 16, 64, schedule="gpipe", pp=1)
    (kind,) = kinds_of(job, next(degrees_of(job)))
    assert (kind.schedule, kind.pp) == ("gpipe", 1)
    odd = dataclasses.replace(open_job(SMALL, 16, 64, cp=4), fields=FIELDS | {"sequence": 68})  # 17 tokens a rank
    assert {one.cp for one in degrees_of(odd)} == {4}


@pytest.mark.parametrize("frameworks", ["any", "megatron-core"])
def test_kinds_are_those_of_all_workloads(frameworks):
    job = open_job(SMALL, 16, 64, frameworks=frameworks)
    names = [name for name in SCHEDULES if name != "gpipe"] if frameworks == "any" else ["1f1b", "interleaved"]
    for degrees in degrees_of(job):
        want = set()
        for name, chunks, overlap in itertools.product(names, range(1, 7), ("none", "passes")):
            beside = overlap == "passes" and degrees.ep == 1  # a single rank sends nothing
            if beside or (degrees.pp == 1 and name != "1f1b") or (name == "interleaved" and chunks == 1):
                continue
            try:
                job.workload(degrees._replace(schedule=name, chunks=chunks, overlap=overlap))
            except InputError:
                continue
            want.add((name, chunks, overlap))
        found = [(kind.schedule, kind.chunks, kind.overlap) for kind in kinds_of(job, degrees)]
        assert len(found) == len(set(found))
        assert set(found) == want


def test_counts_of_micro_batches_follow_from_a_bubble():
    job = open_job(SMALL, 16, None, count=count_for_bubble(0.1))
    for degrees in degrees_of(job):
        assert degrees.micro_batches == max(1, 9 * (degrees.pp - 1))
        for kind in kinds_of(job, degrees):
            bubble = SCHEDULES[kind.schedule].bubble(job.workload(kind).shape)
            assert bubble <= (kind.micro_batches + bubble) * 0.1 + 1e-9


def test_a_stated_overlap_counts_in_micro_batches():
    job = open_job(SMALL, 16, None, count=count_for_bubble(0.1), schedule="dualpipe", overlap="passes", chunks=1)
    for degrees in degrees_of(dataclasses.replace(job, stated=job.stated | {"pp": 4})):
        assert [kind.micro_batches for kind in kinds_of(job, degrees)] == [degrees.micro_batches]


def test_sharding_and_dispatchers():
    job = open_job(SMALL, 16, 64)
    short, long = (next(one for one in degrees_of(job) if one.pp == pp) for pp in (1, 4))
    assert set(shardings_of(job, short)) == {"optimizer", "gradients", "parameters"}
    assert set(shardings_of(job, long)) == {"optimizer"}
    assert len(dispatchers_of(job, 8)) == 3
    assert len(dispatchers_of(job, 1)) == 1
    assert dispatchers_of(open_job(SMALL, 16, 64, dispatcher="deepep"), 8) == [("deepep", "per-server")]
    stated = {"dispatcher": "nccl", "dispatch": "per-server"}
    assert dispatchers_of(open_job(SMALL, 16, 64, **stated), 8) == [("nccl", "per-server")]


# ------------------------------------------------------------------------------------------------------------- layouts
SHAPES = [(8, 0, 4, 1, "1f1b"), (9, 1, 4, 1, "1f1b"), (13, 0, 3, 2, "interleaved"), (61, 1, 16, 1, "1f1b")]
SHAPES += [(11, 0, 2, 2, "zb-v"), (10, 0, 4, 1, "dualpipe"), (48, 0, 4, 6, "interleaved"), (7, 1, 2, 3, "interleaved")]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("runs", [True, False])
def test_layouts_hold_every_block_and_letters_say_the_same(shape, runs):
    blocks, predicted, pp, chunks, schedule = shape
    found = layouts_of(blocks, predicted, pp, chunks, schedule, 1.5, runs=runs)
    sizes = [places_of(layout, blocks, predicted, pp * chunks) for layout in found]
    assert found
    assert len(set(sizes)) == len(sizes)
    for each in sizes:
        assert sum(each) == blocks
        assert len(each) == pp * chunks
        assert min(each) >= 1


def slowest(sizes, pp, schedule, head):
    """Blocks of the slowest stage, the head counted in blocks."""
    order, chunks = SCHEDULES[schedule], len(sizes) // pp
    spent = [0.0] * pp
    for stage in range(pp):
        for chunk in range(chunks * order.copies):
            place = order.part_of(stage, chunk, pp)
            spent[stage] += sizes[place] + head * (place == len(sizes) - 1)
    return max(spent)


def divisions(blocks, places):
    """Every division of blocks among places, each with at least one."""
    for cuts in itertools.combinations(range(1, blocks), places - 1):
        yield tuple(b - a for a, b in itertools.pairwise((0, *cuts, blocks)))


@pytest.mark.parametrize("head", [0.0, 0.6, 1.0, 2.4])
@pytest.mark.parametrize(
    ("blocks", "pp", "chunks", "schedule"),
    [(9, 4, 1, "1f1b"), (11, 3, 2, "interleaved"), (10, 2, 2, "zb-v"), (9, 4, 1, "dualpipe"), (8, 4, 1, "zb-h1")],
)
def test_one_layout_is_the_least_of_all(blocks, pp, chunks, schedule, head):
    found = layouts_of(blocks, 0, pp, chunks, schedule, head, runs=False)
    best = min(slowest(sizes, pp, schedule, head) for sizes in divisions(blocks, pp * chunks))
    each = [slowest(places_of(layout, blocks, 0, pp * chunks), pp, schedule, head) for layout in found]
    assert min(each) == pytest.approx(best)


def test_the_usual_batch_is_near_and_divides_evenly():
    for gpus in (8, 96, 256, 1000, 1024, 4096, 16384):
        batch = usual_batch(gpus)
        assert batch % gpus == 0
        assert abs(batch - 4096) <= max(gpus, 2048)
