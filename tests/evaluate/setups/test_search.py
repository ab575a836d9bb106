"""The search of set-ups against timing all of them, its bound, and what more room, bandwidth and choice do to it."""

import numpy as np
import pytest

from mfabric_jax import InputError
from mfabric_jax.evaluate.resolving.ranking import least_load
from mfabric_jax.evaluate.resolving.traffic import draw_loads
from mfabric_jax.evaluate.setups.search import SetUpSearch
from mfabric_jax.timing.iteration import expert_load
from mfabric_jax.traffic.dispatch import kept_share
from mfabric_jax.workload.memory import fullest_stage, usable_bytes
from tests.evaluate.setups import even
from tests.evaluate.setups.spaces import LONG, SMALL, TIGHT, every, laid_out, rows_of, search_of

ROUNDED = 1e-5  # rows are in float32
HEURISTIC = 1.01  # set-ups whose coarse time is this much above the best are not timed


def fits(search, set_up):
    job = search.job.workload(set_up)
    gpu = search.job.gpu
    return fullest_stage(job, draw_loads(search.base, job))[1].total <= usable_bytes(gpu.memory_bytes)


def levels_of(search, set_up):
    """The levels of recomputation with which a set-up is legal and fits."""
    for level in search.job.some("recompute", search.levels(set_up)):
        one = set_up._replace(recompute=level)
        try:
            search.job.workload(one)
        except InputError:
            continue
        if fits(search, one):
            yield one


def timed(search, some=slice(None)):
    """The seconds of all set-ups, each with the least recomputation that fits."""
    each = [one for kind in every(search.job) for one in laid_out(search, kind)][some]
    fitted = (next(levels_of(search, one), None) for one in each)
    return {one: search.time(one) for one in fitted if one is not None}


NARROW = TIGHT | {"job.batch.micro_batch": 1, "job.dispatcher": "hybridep", "gpu.memory_gigabytes": 40.0}
SHARDED = NARROW | {"job.batch.micro_batch": 2, "gpu.memory_gigabytes": 80.0}  # sharded parameters are the quickest
SPACES = [
    (NARROW, "fat-tree", 100),
    (SHARDED, "fat-tree", 50),
    *(pytest.param(TIGHT, fabric, 400, marks=pytest.mark.slow) for fabric in ("fat-tree", "mfabric")),
    *(pytest.param(LONG, fabric, 400, marks=pytest.mark.slow) for fabric in ("fat-tree", "mfabric")),
]


@pytest.mark.parametrize(("settings", "fabric", "least"), SPACES)
def test_the_search_finds_the_least_of_all_set_ups(settings, fabric, least):
    search = search_of(settings | {"network.fabric": fabric})
    found = search.find()
    seconds = timed(search)
    best = min(seconds, key=seconds.get)
    assert len(seconds) > least
    print(f"{len(seconds)} set-ups fit; counts {found.counts}; bound {found.bound_s / found.seconds:.3f} of the best")
    assert found.seconds == pytest.approx(seconds[best], rel=1e-9), best.words
    assert found.seconds == pytest.approx(search.time(found.best), rel=1e-9)
    assert found.bound_s <= min(seconds.values()) * (1 + ROUNDED)
    bounds = {row.degrees: search.ranking.bound_seconds(row.degrees) for row in rows_of(search)}
    for one, time_s in seconds.items():
        row = one.plain._replace(recompute="none")
        assert bounds[row] <= time_s * (1 + ROUNDED), one.words


@pytest.mark.slow
def test_the_least_recomputation_that_fits_is_the_quickest():
    search = search_of(TIGHT | {"network.fabric": "fat-tree"})
    each = [one for kind in every(search.job) for one in laid_out(search, kind)]
    recomputed = (one for one in each if not fits(search, one))
    several = [levels for one in recomputed if len(levels := [*levels_of(search, one)]) > 1][::4]
    assert len(several) > 10
    for levels in several:
        seconds = [*map(search.time, levels)]
        assert seconds[0] <= min(seconds) * (1 + ROUNDED), levels[0].words
    print(f"{len(several)} with several levels")


DEEP = {  # dense blocks, shared experts, multi-token prediction, unequal layouts
    **{"model.blocks": 5, "model.dense_blocks": 2, "model.dense_hidden": 8192, "model.next_tokens": 1, "job.mtp": True},
    "job.parallel.pp": 4,
}
BOUNDED = {
    "recomputation": (TIGHT | {"job.recompute": "block"}, slice(None, None, 40)),
    "cores that communicate": (SMALL | {"job.overlap": "passes", "job.passes.comm_cores": 0.3}, slice(None, None, 12)),
    "copies of the model": (SMALL | {"job.schedule": "dualpipe"}, slice(None, None, 8)),
    "heads": (SMALL | DEEP, slice(None, None, 8)),
    "dropped tokens": (SMALL | {"job.capacity_factor": 1.0, "job.parallel.ep": 8}, slice(None, None, 20)),
    "skewed and dropped": (
        SMALL
        | {"job.capacity_factor": 1.0, "traffic.source": "generated", "traffic.generated.skew": 4.0}
        | {"job.parallel.ep": 2},
        slice(None, None, 24),
    ),
    "weights on every replica": (SMALL | {"job.sharding": "none"}, slice(None, None, 30)),
}


@pytest.mark.parametrize("name", BOUNDED)
def test_no_set_up_takes_less_than_the_bound(name):
    settings, some = BOUNDED[name]
    search = search_of(settings | {"network.fabric": "fat-tree"})
    rows = rows_of(search)
    bounds = {row.degrees: search.ranking.bound_seconds(row.degrees) for row in rows}
    seconds = timed(search, some)
    assert len(seconds) >= 4
    below = {one: bounds[one.plain._replace(recompute="none")] / time_s for one, time_s in seconds.items()}
    assert max(below.values()) <= 1 + ROUNDED, max(below, key=below.get).words
    assert max(below.values()) > 0.25
    print(f"{name}: {len(below)} set-ups, bound at most {max(below.values()):.3f} of the time")


@pytest.mark.parametrize("fabric", ["fat-tree", "mfabric"])
def test_no_estimate_is_below_what_degrees_must_compute(fabric):
    search = search_of(SMALL | {"network.fabric": fabric, "job.overlap": "passes", "job.passes.comm_cores": 0.1})
    counted, least = 0, {}
    for row in rows_of(search):
        degrees = row.degrees._replace(dispatcher="nccl", dispatch="per-expert", sharding="optimizer")
        least[degrees] = search.ranking.least_seconds(degrees)
        assert least[degrees] <= row.seconds.min(initial=np.inf) * (1 + ROUNDED)
        counted += len(row.stages.kinds)
    assert counted == sum(map(search.ranking.many, least)) > 0
    assert max(least.values()) < np.inf


def test_the_bound_is_nearly_reached_where_nothing_waits():
    # One EP rank and one stage send nothing; gradients overlap with all but the last block.
    alone = {f"job.parallel.{name}": 1 for name in ("tp", "ep", "cp")}
    settings = SMALL | alone | {"gpu.memory_gigabytes": 400.0, "job.sharding": "optimizer", "job.parallel.gpus": 2}
    settings |= {"job.batch.global_batch": 512}
    search = search_of(settings | {"network.fabric": "fat-tree", "compute.experts": "balanced"})
    (row,) = (row for row in rows_of(search) if (row.degrees.pp, row.degrees.micro_batch) == (1, 4))
    bound, seconds = search.ranking.bound_seconds(row.degrees), search.time(row.degrees)
    assert 0.99 * seconds < bound <= seconds * (1 + ROUNDED)
    left_out = search_of(
        settings | {"network.fabric": "fat-tree", "compute.experts": "balanced", "job.optimizer_step": False}
    )
    (other,) = (other for other in rows_of(left_out) if other.degrees == row.degrees)
    assert bound - left_out.ranking.bound_seconds(other.degrees) == pytest.approx(
        seconds - left_out.time(row.degrees), rel=1e-2
    )
    assert bound - left_out.ranking.bound_seconds(other.degrees) > 0.01


def test_dropped_tokens_leave_the_busiest_rank_less_than_an_even_load():
    job = even.job(ep=4, capacity_factor=1.25)
    assert least_load(even.job(ep=4)) == 1
    rng, loads = np.random.default_rng(0), []
    for hot in range(1, 9):  # how many of 8 experts the tokens of a block choose
        share = np.zeros(8)
        share[rng.permutation(8)[:hot]] = rng.dirichlet(np.ones(hot))
        count = np.broadcast_to(share * job.selections, (1, 1, 4, 8))
        loads.append(float(expert_load(job, count * kept_share(job, count), 1)[0, 0]))
    assert min(loads) == pytest.approx(1.25 / 8 * 4)  # of one expert, which is on one of four ranks
    assert least_load(job) == pytest.approx(1.25 / 8)
    assert least_load(job) <= min(loads) < 1


def test_a_schedule_may_fit_where_1f1b_does_not():
    dense = {"model.blocks": 6, "model.dense_blocks": 1, "model.dense_hidden": 8192, "job.batch.global_batch": 8}
    settings = {"gpu.memory_gigabytes": 22.0, "traffic.source": "generated", "traffic.generated.skew": 1.0}
    settings |= {"job.parallel.pp": 2, "job.dispatcher": "nccl", "network.fabric": "fat-tree"}
    search = search_of(SMALL | dense | settings)
    assert search.find().best.schedule == "zb-v"
    assert all(search.fit(row.degrees.plain) is None for row in rows_of(search))


def test_what_is_found_is_never_slower_than_what_the_search_starts_from(monkeypatch):
    monkeypatch.setattr(SetUpSearch, "_in_order", lambda self, best: iter(()))
    search = search_of(SMALL | {"network.fabric": "fat-tree"})
    one = next(kind for kind in every(search.job) if kind.pp == 4)
    another = next(kind for kind in every(search.job) if kind.ep == 8)
    seconds = [search.time(seed) for seed in (one, another)]
    found = search.find(one, another)
    assert found.seconds == min(seconds)
    assert [found.one_s, found.recipe_s] == seconds


def test_what_is_found_fits_the_traffic_of_the_case(monkeypatch):
    monkeypatch.setattr(SetUpSearch, "_fit", lambda self, set_up: set_up._replace(recompute="none"))
    search = search_of(NARROW | {"gpu.memory_gigabytes": 22.0, "network.fabric": "fat-tree"})
    assert fits(search, search.find().best)


def test_parameters_are_gathered_from_the_replicas_of_a_stage():
    settings = SMALL | {"network.fabric": "fat-tree", "compute.experts": "balanced", "network.nic_gbps": 100.0}
    search = search_of(settings | {"job.sharding": "parameters", "job.parallel.pp": 2})
    some = [one for one in every(search.job) if one.dp == 2 and one.dispatcher == "nccl"]
    assert some
    for one in some:
        assert search.coarse(one) == pytest.approx(search.time(one), rel=0.03), one.words


def test_stated_cores_that_communicate_hold_for_every_clock():
    stated = search_of(SMALL | {"network.fabric": "fat-tree", "job.overlap": "passes", "job.passes.comm_cores": 0.3})
    usual = search_of(SMALL | {"network.fabric": "fat-tree", "job.overlap": "passes"})
    row = next(row for row in rows_of(stated) if row.degrees.ep == 4 and row.degrees.pp == 1 and len(row.seconds))
    set_up = row.set_up(0)
    assert stated.coarse(set_up) / usual.coarse(set_up) == pytest.approx(
        stated.time(set_up) / usual.time(set_up), rel=0.02
    )
    assert stated.time(set_up) > 1.05 * usual.time(set_up)
    assert stated.ranking.times(set_up).paired > usual.ranking.times(set_up).paired


@pytest.mark.parametrize("settings", [TIGHT, SMALL | {"job.frameworks": "any", "gpu.memory_gigabytes": 22.0}])
def test_what_is_left_out_as_too_large_never_fits(settings):
    search = search_of(settings | {"network.fabric": "fat-tree"})
    left_out = kept = 0
    for row in rows_of(search):
        fewer = search._without_too_large(row)
        left = {fewer.set_up(number) for number in range(len(fewer.seconds))}
        kept += len(left)
        for gone in {row.set_up(number) for number in range(len(row.seconds))} - left:
            left_out += 1
            levels = search.levels(gone)
            assert not levels or not search._fits_exactly(gone._replace(recompute=levels[-1])), gone.words
    assert left_out > 20
    assert kept > 20


def test_samples_that_need_a_little_too_much_memory_may_fit(monkeypatch):
    search = search_of(TIGHT | {"network.fabric": "fat-tree"})
    sampled = search.blocks.load

    def load_more(set_up):  # by 1.5 % of all memory
        load, job = sampled(set_up), search.job.workload(set_up)
        routed = fullest_stage(job, (load,) * set_up.pp)[1].inner
        return load._replace(kept=load.kept + 0.015 * search.room / max(routed, 1.0))

    monkeypatch.setattr(search.blocks, "load", load_more)
    seen = 0
    for row in rows_of(search):
        for one in {row.set_up(number).plain for number in range(len(row.seconds))}:
            levels = search.levels(one)
            exact = next((level for level in levels if search._fits_exactly(one._replace(recompute=level))), None)
            if exact is not None:
                assert levels.index(search.fit(one).recompute) <= levels.index(exact), one.words
                seen += exact != levels[0]
    assert seen > 20
