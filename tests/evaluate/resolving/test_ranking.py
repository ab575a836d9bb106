"""Estimates of set-ups, against sums by hand."""

import dataclasses
import itertools
import math

import pytest

from mfabric_jax import Case, resolve, simulate
from mfabric_jax.evaluate.resolving.quick import NominalRates, nominal_rates
from mfabric_jax.evaluate.resolving.ranking import (
    BlockTimes,
    Estimates,
    MeanAllToAlls,
    block_times,
    even_all_to_alls,
    gradient_seconds,
    pipeline_seconds,
    shape_job,
    stages_of,
)
from mfabric_jax.workload import GroupedQuery, Workload, block_seconds, get_gpu, models
from mfabric_jax.workload.block_kernels import kernel_seconds
from mfabric_jax.workload.kernels import shares_of
from mfabric_jax.workload.space import degrees_of
from tests.evaluate.resolving.open_jobs import FIELDS, FINE, H100, open_job

NO_RATES = NominalRates(*[math.inf] * 5, tp_over=1.0, beside=1.0, counts_s=0.0)
# Two blocks of 1 head of 8 and 4 experts of 3 x 8 x 10.
TINY = models.Architecture(*("tiny", 2, 8, GroupedQuery(1, 1, 8), 4, 2, 10, "made up"))
# Two stages of a block each, on two servers of 4 GPUs a stage: tp 2, ep 4; 3 micro-batches of 2 x 10 tokens.
SPREAD = {"dp": 1, "tp": 2, "pp": 2, "ep": 4, "gpus": 16, "gpus_per_server": 4, "sequence": 10, "micro_batch": 2}


def tiny(**changes):
    facts = SPREAD | {"micro_batches": 3, "sharding": "none"} | changes
    return Workload("tiny", TINY, **facts)


def alone(architecture, **changes):
    """One GPU with a whole model."""
    spread = {"dp": 1, "tp": 1, "pp": 1, "ep": 1, "gpus": 1, "gpus_per_server": 1, "micro_batch": 1, "micro_batches": 1}
    return Workload("one", architecture, **spread | changes)


@pytest.mark.parametrize("recompute", ["none", "attention", "block"])
@pytest.mark.parametrize("model", [FINE, dataclasses.replace(FINE, dense_blocks=3, dense_hidden=8192)])
def test_a_block_of_one_gpu_takes_its_seconds(model, recompute):
    job = alone(model, recompute=recompute, head="counted")
    seconds = kernel_seconds(job, H100)
    back, dense = seconds.backward, (model.blocks - len(model.moe_blocks)) / model.blocks
    mean = lambda attention, moe, other: attention + (1 - dense) * moe + dense * other  # noqa: E731
    forward = mean(seconds.attention_s, seconds.moe_s, seconds.dense_s)
    backward = mean(sum(back.attention), sum(back.moe), sum(back.dense))
    found = block_times(job, seconds, NO_RATES, even_all_to_alls(job), cores=0.0)
    assert found.forward == pytest.approx(forward)
    assert found.backward == pytest.approx(backward)
    assert found.paired == pytest.approx(forward + backward)
    assert found.head == pytest.approx(seconds.head_s + back.head)
    again = mean(back.attention.again, back.moe.again, back.dense.again)
    assert found.least == pytest.approx(forward + backward - again)


def test_a_block_by_hand():
    job = tiny(recompute="attention")
    rate = 0.4 * H100.bf16_flops * 2
    attention, moe = 20 * (2 * 4 * 64 + 2 * (10 / 2) * 2 * 8) / rate, 20 * 2 * (32 + 2 * 240) / rate
    ring = (20 * 8 * 2) * (2 * 1 / 2) / 7e9  # an all-reduce of two GPUs, of attention and of experts
    leaves = (20 * 2 * 2 / 4) * 8 * 2 / 5e9  # of 40 selections half, by two ranks of 2 GPUs: 4 NICs
    rates = NO_RATES._replace(nic_Bps=5e9 / 2, nvlink_Bps=10e9, tp_over=0.7, counts_s=1e-6)
    found = block_times(job, block_seconds(job, H100, 0.4), rates, even_all_to_alls(job), cores=0.0)
    assert found.forward == pytest.approx(attention + moe + 2 * ring + 2 * leaves + 1e-6)
    assert found.backward == pytest.approx(3 * attention + 2 * moe + 2 * ring + 2 * leaves)


def test_experts_of_the_busiest_rank_and_cores_that_send():
    job = alone(FINE)
    seconds, even = kernel_seconds(job, H100), even_all_to_alls(job)
    usual, busy = (block_times(job, seconds, NO_RATES, sent, 0.0) for sent in (even, even._replace(busy=1.5)))
    assert busy.forward - usual.forward == pytest.approx(0.5 * seconds.expert_s)
    assert busy.backward - usual.backward == pytest.approx(0.5 * sum(seconds.backward.expert))
    assert busy.least == pytest.approx(usual.least)
    beside = block_times(job, seconds, NO_RATES, even, cores=0.2)
    assert beside.paired == pytest.approx(usual.paired / 0.8)


EVEN = [(1, 8, 8), (2, 16, 8), (1, 4, 4), (4, 4, 8), (1, 32, 8)]


@pytest.mark.parametrize(("tp", "ep", "per_server"), EVEN)
def test_even_all_to_alls_against_a_double_loop(tp, ep, per_server):
    job = alone(FINE, tp=tp, ep=ep, gpus=tp * ep, gpus_per_server=per_server)
    each = 4096 * 8 / ep * 6144 * 2  # bytes from a rank to each
    servers = lambda rank: rank * tp // per_server  # noqa: E731
    leaving, inside = [0.0] * (tp * ep // per_server), [0.0] * ep
    for one, other in itertools.product(range(ep), range(ep)):
        if servers(one) != servers(other):
            leaving[servers(one)] += each
        elif one != other:
            inside[one] += each
    found = even_all_to_alls(job)
    assert found.between == pytest.approx(max(leaving) / per_server / 4096)
    assert found.inside == pytest.approx(max(inside) / tp / 4096)
    assert found.busy == 1.0


def test_a_single_rank_sends_nothing():
    assert even_all_to_alls(alone(FINE)) == MeanAllToAlls(0.0, 0.0)


def test_copies_for_a_server_are_fewer_than_for_experts():
    shape = {"ep": 32, "gpus": 32, "gpus_per_server": 8}
    each, once = (even_all_to_alls(alone(FINE, **shape, dispatch=way)) for way in ("per-expert", "per-server"))
    servers, experts, chosen = 4, 64, 8
    missed = math.comb(experts - experts // servers, chosen) / math.comb(experts, chosen)
    assert once.between == pytest.approx((servers - 1) * (1 - missed) * 6144 * 2)
    assert each.between == pytest.approx(chosen * 3 / 4 * 6144 * 2)


def test_gradients_by_hand():
    dense = 2 * (256 + 32)  # bytes of attention and gate; the experts have one replica
    rates = NO_RATES._replace(eps_Bps=50e9, nvlink_Bps=400e9)
    between, inside = dense, dense / 2 * 2 * (1 / 2)  # rings of two servers, and of two GPUs in each
    assert gradient_seconds(tiny(), rates) == pytest.approx(between / 50e9 + inside / 400e9)


def test_a_pipeline_by_hand():
    stated = {"pp": 4, "tp": 1, "ep": 8, "cp": 1, "micro_batch": 1, "schedule": "1f1b", "chunks": 1, "overlap": "none"}
    job = open_job(FINE, gpus=64, **stated)
    (degrees,) = degrees_of(job)
    stages = stages_of(job, degrees, 1.4, 0)
    times = BlockTimes(1.0, 2.0, 2.5, 4.2)
    assert (degrees.dp, degrees.micro_batches) == (2, 256)
    found = dict(zip((kind.layout for kind in stages.kinds), pipeline_seconds(stages, times, 4, 56, 256), strict=True))
    assert found["even"] == pytest.approx(256 * (14 * 3 + 4.2) + 3 * 14 * 3)
    assert found["ends"] == pytest.approx(256 * (15 * 3) + 3 * 14 * 3)
    assert min(found.values()) == found[next(name for name in found if name not in ("even", "ends"))]


def ranking_of(job):
    return Estimates(
        job,
        lambda workload: kernel_seconds(workload, job.gpu),
        lambda workload, dispatcher: nominal_rates(workload, job.gpu, dispatcher),
        lambda dispatcher: shares_of(1, dispatcher).cores,
    )


def test_rows_are_sorted_and_no_estimate_is_below_their_bound():
    job = open_job(FINE, gpus=64, tp=1)
    ranking, number = ranking_of(job), 0
    for degrees in degrees_of(job):
        for row in ranking.rows(degrees):
            assert list(row.seconds) == sorted(row.seconds)
            assert ranking.bound_seconds(row.degrees) <= row.seconds[0]
            assert row.set_up(0).pp == degrees.pp
            number += 1
    assert number > 100


def test_blocks_on_one_stage_stand_for_those_of_a_set_up():
    job = open_job(FINE, gpus=64, tp=2, pp=4)
    degrees = next(one for one in degrees_of(job) if one.ep == 8)
    mini, own = shape_job(job, degrees), job.workload(degrees)
    assert (mini.pp, mini.micro_batches) == (1, 1)
    same = ("tp", "ep", "cp", "folded", "micro_batch", "gpus_per_server", "sequence", "tokens")
    assert [getattr(mini, name) for name in same] == [getattr(own, name) for name in same]


def test_nominal_rates_are_those_of_the_nics_of_a_server():
    gpu = dataclasses.replace(H100, nics=4)
    job = alone(FINE, ep=8, gpus=8, gpus_per_server=8)
    shares = shares_of(1, "nccl")
    rates = nominal_rates(job, gpu, "nccl")
    assert rates.nic_Bps == pytest.approx(4 * 50e9 * shares.nic / 8)
    assert rates.eps_Bps == pytest.approx(4 * 50e9 * shares.ring_nic)
    assert rates.send_Bps == pytest.approx(4 * 50e9 * shares.send)
    assert rates.inside_Bps == pytest.approx(H100.nvlink * shares.nvlink)
    assert nominal_rates(job, gpu, "ideal") == rates  # those of the usual dispatcher


def test_an_estimate_is_near_the_simulation():
    even = {"network.fabric": "fat-tree", "traffic.knobs": "balanced", "compute.experts": "balanced"}
    even |= {"model.name": "qwen-moe", "network.tiers": 3, "network.link_delay_s": 0, "job.overlap_gradients": False}
    even |= {"job.optimizer_step": False, "job.batch.micro_batches": 8, "job.batch.micro_batch": 1}
    for degrees, recompute in (((2, 1, 16, 1), "none"), ((1, 4, 8, 1), "attention")):
        spread = {
            f"job.parallel.{name}": degree for name, degree in zip(("tp", "pp", "ep", "dp"), degrees, strict=True)
        }
        resolved = resolve(Case().with_(even | spread | {"job.recompute": recompute}))
        (row,) = simulate(resolved.original).rows()
        job, fields = resolved.job, {name: getattr(resolved.job, name) for name in FIELDS} | {"head": "known"}
        tp, pp, ep, dp = degrees
        stated = {"tp": tp, "etp": tp, "pp": pp, "ep": ep, "dp": dp, "cp": 1, "micro_batch": 1, "recompute": recompute}
        stated |= {"schedule": "1f1b", "chunks": 1, "overlap": "none", "layout": "even", "sharding": "optimizer"}
        stated |= {"dispatcher": "nccl", "dispatch": "per-expert"}
        opened = open_job(
            job.architecture, get_gpu("H100-SXM"), gpus=job.gpus, micro_batches=8, fields=fields, **stated
        )
        ranked = dataclasses.replace(ranking_of(opened), overlaps_gradients=False)
        (one,) = degrees_of(opened)
        (best,) = ranked.rows(one._replace(recompute=recompute))
        assert best.seconds.item() == pytest.approx(row["iteration_s"], rel=0.06)
