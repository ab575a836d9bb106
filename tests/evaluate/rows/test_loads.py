"""Memory takes the traffic that time takes: of one rank in all of its blocks, where time waits for any."""

import dataclasses

import numpy as np
import pytest

from mfabric_jax import Case, cases, resolve, simulate
from mfabric_jax.evaluate.experts import busy_of_blocks, busy_of_layers
from mfabric_jax.evaluate.resolving.remedies import remedies
from mfabric_jax.evaluate.resolving.set_up import memory_columns, too_large_words
from mfabric_jax.evaluate.resolving.traffic import draw_loads, traffic_of
from mfabric_jax.workload import fullest_stage, get, memory_of, models
from mfabric_jax.workload.memory import RankLoad
from tests.evaluate.resolving.open_jobs import choose_quickly, quick_job

LOADS = (RankLoad(1.5, 2.0), RankLoad())
TOKEN = 1  # a tile: no rounding
SKEWED = {"model.name": "mixtral-8x7b", "model.recipe": "none", "gpu.name": "H100-SXM", "network.fabric": "fat-tree"}
SKEWED |= {"traffic.source": "generated", "traffic.generated.skew": 0.8, "compute.received.tile": TOKEN}
SKEWED |= {"job.recompute": "none", "job.batch.micro_batches": 8}
SKEWED |= {f"job.parallel.{name}": of for name, of in (("tp", 2), ("pp", 4), ("ep", 8), ("dp", 1))}


def test_activations_of_routed_experts_grow_with_what_a_rank_receives():
    """Mixtral 8x7B, a token: 2 rows of 4096, 6 x 14336 of gates and products, two bytes each, and rows on their way,
    out and back; all else stays."""
    job = get("mixtral-8x7b", dp=1, tp=1, pp=2, ep=8, gpus=16)
    even, loaded = memory_of(job, 0), memory_of(job, 0, LOADS)
    routed = job.tokens * 2 * (2 * 4096 + 2 * 3 * 14336)  # of a block
    assert loaded.inner - even.inner == pytest.approx(0.5 * routed * 16 * 2)  # 16 blocks, 2 micro-batches in flight
    assert loaded.buffers == pytest.approx(2 * even.buffers) == 2 * job.tokens * 2 * 4096 * (2 + 2)
    same = ("weights", "gradients", "optimizer", "attention", "logits")
    assert all(getattr(loaded, name) == getattr(even, name) for name in same)
    assert memory_of(job, 1, LOADS) == memory_of(job, 1)
    again = [memory_of(dataclasses.replace(job, recompute="block"), 0, loads) for loads in (None, LOADS)]
    assert again[1].inner == again[0].inner  # a block keeps its input alone, and computes the rest again
    assert again[1].buffers - again[0].buffers == pytest.approx(routed + job.tokens * 2 * 4096 * 4)


@pytest.mark.parametrize("more", [{}, {"job.capacity_factor": 1.25}, {"placement.hierarchical.redundant_experts": 8}])
def test_memory_and_time_take_the_same_load(more):
    resolved = resolve(Case().with_(SKEWED | more))
    job = resolved.job
    (tokens,) = traffic_of(resolved.case, job)
    kept = tokens.count[0]
    if job.capacity_factor is not None:
        most = job.capacity_factor * kept.sum(axis=2).mean(axis=-1, keepdims=True)[:, :, None]
        kept = kept * np.minimum(1, most / kept.sum(axis=2, keepdims=True))
    of_rank = kept.sum(axis=2).reshape(*kept.shape[:2], job.ep, -1).sum(axis=-1) / job.selections  # [L P R]
    loads = draw_loads(resolved.case, job)
    blocks = [list(job.stage_layers(stage)) for stage in range(job.pp)]
    for load, mine in zip(loads, blocks, strict=True):
        sums = [sum(of_rank[layer, :, rank].mean() for layer in mine) / len(mine) for rank in range(job.ep)]
        assert load.kept == pytest.approx(max(sums), rel=1e-6)
        assert load.block == pytest.approx(max(of_rank[layer].max() for layer in mine), rel=1e-6)
    busy = busy_of_blocks(job, busy_of_layers(job, kept, TOKEN))  # [P Q L]: of any rank, for which time waits
    for load, each in zip(loads, busy, strict=True):
        assert load.kept <= each.mean() <= load.block
    (row,) = simulate(cases(resolved.original)).rows()
    assert row["memory_gb"] == pytest.approx(fullest_stage(job, loads)[1].total / 1e9)
    assert row["memory_gb"] == memory_columns(resolved, job)["memory_gb"]
    assert (row["memory_inner_gb"] > fullest_stage(job)[1].inner / 1e9) == (max(loads)[0] > 1)


def test_balanced_experts_and_traffic_without_skew_need_the_memory_of_an_even_load():
    even = {"traffic.generated.skew": 0.0}
    for more in (even, {"compute.experts": "balanced"}, even | {"compute.experts": "balanced"}):
        resolved = resolve(Case().with_({name: of for name, of in SKEWED.items() if "tile" not in name} | more))
        needs = memory_columns(resolved, resolved.job)["memory_gb"]
        assert needs == pytest.approx(fullest_stage(resolved.job)[1].total / 1e9, rel=1e-9)


def test_what_is_searched_and_advised_fits_under_the_load_of_its_traffic():
    loads_of = lambda job: (RankLoad(3.0, 3.0),) * job.pp  # noqa: E731
    stated = {"gpus": 64, "micro_batches": 16, "micro_batch": 4}
    found, heavy = (choose_quickly(models.MIXTRAL_8X7B, **stated, **how) for how in ({}, {"loads_of": loads_of}))
    assert heavy.fits
    assert heavy.memory_bytes <= 0.92 * 80e9
    assert heavy.memory_bytes == fullest_stage(heavy.workload, loads_of(heavy.workload))[1].total
    assert heavy.set_up != found.set_up
    job = get("mixtral-8x7b", dp=8, tp=1, pp=1, ep=8, gpus=64, micro_batch=2, recompute="none", sharding="optimizer")
    opened = lambda gpus: quick_job(models.MIXTRAL_8X7B, gpus=gpus, micro_batches=16)  # noqa: E731
    for remedy in remedies(job, lambda changed: dataclasses.replace(job, **changed), opened, loads_of):
        assert fullest_stage(remedy.workload, loads_of(remedy.workload))[1].total <= 0.92 * 80e9
    open_case = Case().with_(SKEWED | {"job.recompute": "fit", "traffic.generated.skew": 1.5})
    assert memory_columns((resolved := resolve(open_case)), resolved.job)["fits"]
    assert too_large_words(resolved) is None
