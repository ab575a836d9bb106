"""The choice without a search: against all set-ups there are, and against what was published."""

import dataclasses
import itertools
import subprocess
import sys
import time

import pytest

from mfabric_jax import Case
from mfabric_jax.checks import InputError
from mfabric_jax.evaluate.resolving import quick
from mfabric_jax.evaluate.resolving.ranking import Estimates
from mfabric_jax.evaluate.resolving.resolve import resolve_without_jax
from mfabric_jax.workload import Workload, fullest_stage, get_gpu, models
from mfabric_jax.workload.block_kernels import kernel_seconds
from mfabric_jax.workload.catalog import NAMES
from mfabric_jax.workload.kernels import shares_of
from mfabric_jax.workload.memory import usable_bytes
from mfabric_jax.workload.recompute import LEVELS
from mfabric_jax.workload.space import SetUp
from tests.evaluate.resolving.open_jobs import FINE, H100, choose_quickly, quick_job


def every(architecture, gpus, *, sequences=None, micro_batches=None, **fixed):
    """All workloads that there are, one loop a degree."""
    for tp, ep, pp, recompute in itertools.product(range(1, 9), range(1, 257), range(1, 65), LEVELS):
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
        shape = {"micro_batch": 1, "micro_batches": int(count), "recompute": recompute}
        try:
            yield Workload("one", architecture, dp, tp, pp, ep, gpus, **shape)
        except InputError:
            continue


def per_token(job):
    """A function that gives the estimated seconds per token of a workload with such a set-up."""
    ranking = Estimates(
        job,
        lambda workload: kernel_seconds(workload, H100),
        lambda workload, dispatcher: quick.nominal_rates(workload, H100, dispatcher),
        lambda dispatcher: shares_of(1, dispatcher).cores,
        overlaps_gradients=False,
    )

    def seconds(one):
        own = SetUp(one.tp, one.tp, one.ep, 1, one.pp, one.dp, 1, one.micro_batches, recompute=one.recompute)
        (row,) = ranking.rows(own)
        return row.seconds.item() / one.iteration_tokens

    return seconds


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
def test_the_choice_is_the_least_of_all_estimates_that_fit(architecture, gpus, batch, stated):
    sequences, micro_batches = batch.get("global_batch"), batch.get("micro_batches")
    all_of_them = list(every(architecture, gpus, sequences=sequences, micro_batches=micro_batches, **stated))
    found = choose_quickly(architecture, gpus=gpus, **batch, **stated)
    fitting = [job for job in all_of_them if fullest_stage(job)[1].total <= 0.92 * 80e9]
    wide = [job for job in fitting if job.ep >= 8 or "ep" in stated]
    seconds = per_token(quick_job(architecture, gpus=gpus, **batch, **stated))
    best = min(wide or fitting, key=seconds)
    assert found.fits
    assert found.workload.stated_degrees == best.stated_degrees
    assert (found.workload.recompute, found.workload.micro_batches) == (best.recompute, best.micro_batches)
    assert seconds(found.workload) == seconds(best)
    assert found.memory_bytes == fullest_stage(best)[1].total
    assert found.workload.gpus == gpus
    for name, value in stated.items():
        assert getattr(found.set_up, name) == value


def test_where_nothing_fits_the_one_that_needs_least_is_taken_and_said():
    found = choose_quickly(models.DEEPSEEK_V3, gpus=64, micro_batches=8)
    least = min(fullest_stage(job)[1].total for job in every(models.DEEPSEEK_V3, 64, micro_batches=8))
    assert not found.fits
    assert found.memory_bytes == least > usable_bytes(80e9)
    assert found.why.startswith("no set-up fits 73.6 of 80 GB per GPU; this one needs the least, ")


def test_an_almost_full_gpu_does_not_fit():
    # 79.3 of 80 GB: buffers of communication would not have room.
    architecture = dataclasses.replace(
        FINE,
        blocks=48,
        hidden=5120,
        attention=models.GroupedQuery(40, 8, 128),
        expert_hidden=1536,
        top_k=6,
        vocab=135000,
    )
    stated = {"gpus": 128, "tp": 1, "pp": 1, "ep": 64, "micro_batches": 8}
    full = choose_quickly(architecture, recompute="none", **stated)
    assert 79e9 < full.memory_bytes < 80e9
    assert not full.fits
    again = choose_quickly(architecture, **stated)
    assert (again.fits, again.set_up.recompute) == (True, "light")  # the least that fits


def test_a_published_set_up_is_chosen():
    # Mixtral 8x7B on 256 H200, 1,024 sequences, two a micro-batch: TP 1, PP 1, EP 8 (github.com/AI-Hypercomputer/
    # gpu-recipes, a3ultra).
    h200 = get_gpu("H200-SXM")
    found = choose_quickly(models.MIXTRAL_8X7B, h200, gpus=256, global_batch=1024, micro_batch=2).set_up
    assert (found.tp, found.pp, found.ep, found.dp, found.micro_batches) == (1, 1, 8, 32, 2)


def test_open_gpus_are_near_a_thousand():
    for stated in ({}, {"dp": 3}, {"dp": 3, "pp": 5}, {"pp": 7}, {"dp": 2048}):
        found = choose_quickly(FINE, **stated, micro_batches=64).workload
        near = [
            dp * tp * ep * pp
            for tp, ep, pp in itertools.product((1, 2, 4, 8), (1, 2, 4, 8, 16, 32, 64), range(1, 57))
            for dp in ([stated["dp"]] if "dp" in stated else range(1, 2049))
            if pp == stated.get("pp", pp) and dp * tp * ep % 8 == 0 and (tp * ep % 8 == 0 or 8 % (tp * ep) == 0)
        ]
        assert max(found.gpus / 1024, 1024 / found.gpus) == min(max(size / 1024, 1024 / size) for size in near), stated


def degrees_on(fabric, model, **more):
    stated = {"model.name": model, "model.recipe": "none", "job.search": "recipe", "compute.experts": "balanced"}
    return resolve_without_jax(Case().with_(stated | {"network.fabric": fabric} | more)).job.stated_degrees


@pytest.mark.parametrize("model", NAMES)
def test_a_choice_depends_on_no_fabric(model):
    every = [degrees_on(fabric, model) for fabric in ("fat-tree", "mfabric", "acos", "torus")]
    assert every == every[:1] * len(every)


def test_degrees_that_do_not_fill_a_domain_are_left_out():
    assert degrees_on("nvl72", "llama-moe") == degrees_on("fat-tree", "llama-moe")
    tree, domains = (degrees_on(fabric, "deepseek-v3") for fabric in ("fat-tree", "nvl72"))
    assert tree["tp"] * tree["ep"] * tree["dp"] % 64
    assert domains["tp"] * domains["ep"] * domains["dp"] % 64 == 0


def test_models_of_the_paper_keep_the_set_ups_that_golden_rows_have():
    for model in ("llama-moe", "qwen-moe", "qwen-moe-ep16"):
        for gpus, dp in ((64, 8), (256, 32), (1024, 128)):
            stated = {"model.name": model, "job.parallel.gpus": gpus}
            job = resolve_without_jax(Case().with_(stated)).job
            assert job.stated_degrees == {"tp": 1, "ep": 8, "dp": dp, "pp": 1}
            assert job.recompute == "none"


def test_sequences_of_an_open_batch_are_about_four_thousand_whatever_the_gpus():
    for gpus in (24, 1000, 1016):  # of 125 and 127 servers
        stated = {"model.name": "qwen-moe", "model.recipe": "none", "job.search": "recipe", "job.parallel.gpus": gpus}
        job = resolve_without_jax(Case().with_(stated)).job
        assert job.iteration_tokens / job.sequence == pytest.approx(4096, rel=0.1)


def test_micro_batches_follow_from_what_the_case_states_of_them():
    stated = {"model.name": "mixtral-8x7b", "model.recipe": "none", "job.parallel.gpus": 64}
    for batch, count in (
        ({"micro_batches": 12}, lambda pp: 12),
        ({"per_stage": 3}, lambda pp: 3 * pp),
        ({"bubble": 0.1}, lambda pp: max(1, 9 * (pp - 1))),
    ):
        case = Case().with_(stated | {f"job.batch.{name}": value for name, value in batch.items()})
        job = resolve_without_jax(case).job
        assert job.micro_batches == count(job.pp)


def test_it_is_quick_and_needs_no_jax():
    def seconds():
        job = quick_job(models.DEEPSEEK_V3, gpus=1024, global_batch=4096)
        start = time.process_time()
        quick.choose(job)
        return time.process_time() - start

    assert min(seconds() for _ in range(5)) < 0.2  # 0.04 on an idle core
    program = "import sys, mfabric_jax.evaluate.resolving.ranking; print('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "False\n"
