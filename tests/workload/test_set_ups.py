"""The search for a set-up: against all there are, by hand, against what was published, and against the simulation."""

import dataclasses
import itertools
import re
import subprocess
import sys
import time

import pytest

from mfabric_jax import Case, resolve, simulate
from mfabric_jax.checks import InputError
from mfabric_jax.workload import GroupedQuery, Workload, fullest_stage, get, get_gpu, models
from mfabric_jax.workload.estimate import Speeds, iteration_seconds
from mfabric_jax.workload.memory import usable_bytes
from mfabric_jax.workload.parallel import RECOMPUTE
from mfabric_jax.workload.set_ups import quickest, set_ups_by_time
from tests.mistakes import refused

H100 = get_gpu("H100-SXM")
# Mixtral 8x22B cut into 64 experts of an eighth of the width (arXiv 2504.14960).
FINE = models.Architecture(*("fine", 56, 6144, GroupedQuery(48, 8, 128), 64, 8, 2048, "arXiv 2504.14960"), vocab=32000)
FINE_TOML = """
blocks = 56
hidden = 6144
attention = { heads = 48, kv_heads = 8, head_dim = 128 }
experts = 64
top_k = 8
expert_hidden = 2048
vocab = 32000
"""


def every(architecture, gpus, *, sequences=None, micro_batches=None, **fixed):
    """All workloads that there are, one loop a degree."""
    for tp, ep, pp, recompute in itertools.product(range(1, 9), range(1, 257), range(1, 65), RECOMPUTE):
        if gpus % (tp * ep * pp) or recompute != fixed.get("recompute", recompute):
            continue
        dp = gpus // (tp * ep * pp)
        count = micro_batches or sequences / (dp * ep)
        if (
            count % 1
            or not count
            or any(fixed.get(name, at) != at for name, at in (("tp", tp), ("ep", ep), ("pp", pp)))
        ):
            continue
        try:
            yield Workload(
                "one", architecture, dp, tp, pp, ep, gpus, micro_batch=1, micro_batches=int(count), recompute=recompute
            )
        except InputError:
            continue


@pytest.mark.parametrize(
    ("architecture", "gpus", "batch", "stated"),
    [
        (FINE, 512, {"micro_batches": 8}, {}),
        (FINE, 256, {"global_batch": 1024}, {"recompute": "none"}),
        (models.MIXTRAL_8X22B, 96, {"global_batch": 960}, {}),
        (models.DEEPSEEK_V3, 512, {"global_batch": 4096}, {"pp": 8}),
        (models.QWEN_MOE, 128, {"micro_batches": 16}, {"tp": 2, "ep": 4}),
    ],
)
def test_the_search_finds_the_best_there_is(architecture, gpus, batch, stated):
    sequences, micro_batches = batch.get("global_batch"), batch.get("micro_batches")
    all_of_them = list(every(architecture, gpus, sequences=sequences, micro_batches=micro_batches, **stated))
    found = quickest(architecture, H100, gpus=gpus, **batch, **stated)
    assert len(set_ups_by_time(architecture, H100, gpus=gpus, **batch, **stated)) == len(all_of_them)

    def per_token(job):
        return iteration_seconds(job, H100).total / job.iteration_tokens

    fitting = [job for job in all_of_them if fullest_stage(job)[1].total <= 0.92 * 80e9]
    wide = [job for job in fitting if job.ep >= 8 or "ep" in stated]
    best = min(wide or fitting, key=per_token)
    assert (found.tp, found.pp, found.ep, found.dp) == (best.tp, best.pp, best.ep, best.dp)
    assert (found.recompute, found.micro_batches) == (best.recompute, best.micro_batches)
    assert found.fits
    assert found.memory_bytes == fullest_stage(best)[1].total
    assert found.seconds_per_token == pytest.approx(per_token(best))
    assert found.tp * found.pp * found.ep * found.dp == gpus == found.gpus
    for name, value in stated.items():
        assert getattr(found, name) == value


def test_where_nothing_fits_the_one_that_needs_least_is_taken_and_said():
    found = quickest(models.DEEPSEEK_V3, H100, gpus=64, micro_batches=8)
    least = min(fullest_stage(job)[1].total for job in every(models.DEEPSEEK_V3, 64, micro_batches=8))
    assert not found.fits
    assert found.memory_bytes == least > usable_bytes(80e9)
    assert found.why.startswith("No set-up fits 73.6 of 80 GB a GPU; tp ")


def test_an_almost_full_gpu_does_not_fit():
    # 79.3 of 80 GB: buffers of communication would not have room.
    architecture = models.Architecture(
        *("mine", 48, 5120, GroupedQuery(40, 8, 128), 64, 6, 1536, "made up"), vocab=128000
    )
    stated = {"gpus": 128, "tp": 1, "pp": 1, "ep": 64, "micro_batches": 8}
    full = quickest(architecture, H100, recompute="none", **stated)
    assert 79e9 < full.memory_bytes < 80e9
    assert not full.fits
    again = quickest(architecture, H100, **stated)
    assert (again.fits, again.recompute) == (True, "attention")  # the least that fits


def test_a_bubble_costs_what_it_costs(tmp_path):
    path = tmp_path / "fine.toml"
    path.write_text(FINE_TOML)
    job = get(str(path), gpus=512, micro_batches=8)
    assert (job.pp - 1) / (8 + job.pp - 1) < 0.3  # of 16 stages: 65 %


def test_a_published_set_up_is_found():
    # Mixtral 8x7B on 256 H200, 1,024 sequences, two a micro-batch: TP 1, PP 1, EP 8 (github.com/AI-Hypercomputer/
    # gpu-recipes, a3ultra).
    found = quickest(models.MIXTRAL_8X7B, get_gpu("H200-SXM"), gpus=256, global_batch=1024, micro_batch=2)
    assert (found.tp, found.pp, found.ep, found.dp, found.micro_batches) == (1, 1, 8, 32, 2)


def test_an_estimate_by_hand():
    # Two stages of a block each, on two servers of 4 GPUs a stage: tp 2, ep 4; 3 micro-batches of 2 x 10 tokens.
    facts = {"dp": 1, "tp": 2, "pp": 2, "ep": 4, "gpus": 16, "gpus_per_server": 4, "sequence": 10, "micro_batch": 2}
    model = models.Architecture(*("tiny", 2, 8, GroupedQuery(1, 1, 8), 4, 2, 10, "made up"))
    job = Workload("tiny", model, **facts, micro_batches=3, sharding="none", recompute="attention")
    rate = 0.4 * H100.bf16_flops * 2
    attention = 20 * (2 * 4 * 64 + 2 * (10 / 2) * 2 * 8) / rate
    moe = 20 * 2 * (32 + 2 * 240) / rate
    computed = 4 * attention + 3 * moe
    reduced = 2 * (20 * 8 * 2) * (2 * 1 / 2) / H100.nvlink  # forward and backward: a ring of two
    nics = 4 * 100e9 / 8  # of a server
    leaves = 2 * (20 * 2 * 2 / 4) * 8 * (2 + 2) / nics  # two ranks a server, half of 40 selections, there and back
    sent = 2 * (20 * 8 * 2) * 2 / nics  # two ranks, activations and gradients
    gpu = dataclasses.replace(H100, gpus_per_server=4)
    found = iteration_seconds(job, gpu, Speeds(efficiency=0.4, nic_gbps=100))
    assert found.computation == pytest.approx(3 * computed)
    assert found.tensor_parallel == pytest.approx(3 * reduced)
    assert found.all_to_alls == pytest.approx(3 * 2 * leaves)
    assert found.bubble == pytest.approx(computed + reduced + 2 * leaves + sent)
    dense, expert = 2 * (256 + 32), 2 * 240  # bytes; one expert a rank
    between = dense + 0  # a ring of two servers; the experts have one replica
    inside = dense / 2 * 2 * (1 / 2)
    assert expert > 0
    assert found.gradients == pytest.approx(between / nics + inside / H100.nvlink)


def test_the_estimate_is_near_the_simulation():
    even = {"network.fabric": "fat-tree", "traffic.knobs": "balanced", "compute.experts": "balanced"}
    even |= {"model.name": "qwen-moe", "network.tiers": 3, "network.link_delay_s": 0, "job.overlap_gradients": False}
    even |= {"job.optimizer_step": False, "job.batch.micro_batches": 8, "job.batch.micro_batch": 1}
    for degrees, recompute in (((2, 1, 16, 1), "none"), ((1, 4, 8, 1), "attention")):
        spread = {
            f"job.parallel.{name}": degree for name, degree in zip(("tp", "pp", "ep", "dp"), degrees, strict=True)
        }
        case = Case().with_(even | spread | {"job.recompute": recompute})
        (row,) = simulate(case).rows()
        assert iteration_seconds(resolve(case).job, H100).total == pytest.approx(row["iteration_s"], rel=0.05)


def test_mistakes():
    assert re.search("gpus 250; 248 or 256 GPUs would do", refused(quickest, FINE, H100, gpus=250))
    assert re.search("ep 48; leave one of them out", refused(quickest, FINE, H100, ep=48))
    said = refused(quickest, FINE, H100, gpus=512, global_batch=1000, tp=1, pp=1)
    assert "no set-up with tp 1, pp 1, gpus 512 divides global_batch 1000; 512 or 1024 would do" in said
    said = refused(quickest, FINE, H100, gpus=512, global_batch=1024, micro_batches=2)
    assert said == "global_batch 1024 is not used beside micro_batches 2."


def test_it_is_quick_and_needs_no_jax():
    def seconds():
        start = time.process_time()
        quickest(models.DEEPSEEK_V3, H100, gpus=1024, global_batch=4096)
        return time.process_time() - start

    assert min(seconds() for _ in range(5)) < 0.05
    program = "import sys, mfabric_jax.workload.set_ups; print('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "False\n"
