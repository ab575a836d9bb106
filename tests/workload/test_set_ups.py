"""The search for a set-up: against all there are, by hand, against what was published, and against the simulation."""

import dataclasses
import itertools
import json
import pathlib
import re
import subprocess
import sys
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mfabric_jax import Case, load, resolve, simulate
from mfabric_jax.checks import InputError
from mfabric_jax.evaluate.resolving.set_up import too_large_words
from mfabric_jax.timing.passes import order_of
from mfabric_jax.workload import (
    Gpu,
    GroupedQuery,
    Workload,
    block_seconds,
    fullest_stage,
    get,
    get_gpu,
    memory_of,
    models,
)
from mfabric_jax.workload.estimate import Speeds, iteration_seconds
from mfabric_jax.workload.gpus import GPUS
from mfabric_jax.workload.memory import RankLoad, step_bytes, usable_bytes
from mfabric_jax.workload.parallel import SHARDING
from mfabric_jax.workload.recompute import LEVELS
from mfabric_jax.workload.schedules import BACKWARD, passes_in_memory
from mfabric_jax.workload.set_ups import quickest

H100 = get_gpu("H100-SXM")

# Mixtral 8x22B cut into 64 experts of an eighth of the width (arXiv 2504.14960).
FINE = models.Architecture(*("fine", 56, 6144, GroupedQuery(48, 8, 128), 64, 8, 2048, "arXiv 2504.14960"), vocab=32000)


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
    assert found.why.startswith("No set-up fits 73.6 of 80 GB per GPU; tp ")


def test_an_almost_full_gpu_does_not_fit():
    # 79.3 of 80 GB: buffers of communication would not have room.
    architecture = models.Architecture(
        *("mine", 48, 5120, GroupedQuery(40, 8, 128), 64, 6, 1536, "made up"), vocab=135000
    )
    stated = {"gpus": 128, "tp": 1, "pp": 1, "ep": 64, "micro_batches": 8}
    full = quickest(architecture, H100, recompute="none", **stated)
    assert 79e9 < full.memory_bytes < 80e9
    assert not full.fits
    again = quickest(architecture, H100, **stated)
    assert (again.fits, again.recompute) == (True, "light")  # the least that fits


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
    reduced = 2 * 2 * (20 * 8 * 2) * (2 * 1 / 2) / H100.nvlink  # attention and experts, both ways: a ring of two
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


def test_it_is_quick_and_needs_no_jax():
    def seconds():
        start = time.process_time()
        quickest(models.DEEPSEEK_V3, H100, gpus=1024, global_batch=4096)
        return time.process_time() - start

    assert min(seconds() for _ in range(5)) < 0.5  # 0.03 on an idle core
    program = "import sys, mfabric_jax.workload.set_ups; print('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "False\n"


# Width 8, one head of 8: 256 parameters of attention; 4 experts of 3 x 8 x 10 with a gate of 32, one of four blocks
# dense with 3 x 8 x 20; embedding and head of 100 x 8. Four GPUs a stage: tp 2, ep 2.
TINY = models.Architecture(
    *("tiny", 4, 8, GroupedQuery(1, 1, 8), 4, 2, 10, "made up"), dense_blocks=1, dense_hidden=20, vocab=100
)


def tiny(**more):
    size = {"dp": 2, "tp": 2, "pp": 2, "ep": 2, "gpus": 16, "gpus_per_server": 4, "sequence": 6, "micro_batch": 1}
    return Workload("tiny", TINY, **size | {"micro_batches": 5} | more)


def test_parts_by_hand():
    held = memory_of(tiny(), 0)
    dense = (2 * 256 + 32 + 480 + 800) / 2  # attention, gate, dense FFN, embedding; TP halves all
    expert = 2 * 240 / 2  # one of two blocks, 4 experts over ep 2
    assert held.weights == 2 * (dense + expert)
    assert held.gradients == 4 * (dense + expert)  # summed in float32
    assert held.optimizer == 12 * (dense / 4 + expert / 2)  # 4 replicas, those of an expert 2
    assert memory_of(tiny(sharding="none"), 0).optimizer == 12 * (dense + expert)
    # Per token: attention 2 x 8 + 2 x 16; the dense FFN 2 x 8 + 3 x 20; the MoE one 2 x 8, 4 float32 logits, and for
    # both choices 8 + 3 x 10. Six tokens in bf16, two micro-batches in flight on stage 0.
    attention, ffn, moe = 48, 76, 16 + 8 + 2 * 38
    assert held.activations == 2 * 2 * 6 * (2 * attention + ffn + moe) / 2
    assert held.logits == 0
    assert held.buffers == 6 * 2 * 8 * (2 + 2) / 2  # rows of both choices that travel to experts and back
    last = memory_of(tiny(), 1)
    assert last.activations == 2 * 6 * 2 * (attention + moe) / 2
    assert last.logits == 6 * (2 * 2 * 8 + 4 * 100) / 2
    assert fullest_stage(tiny()) == (1, last)
    assert last.total == sum(last) > held.total
    again, block = (memory_of(tiny(recompute=kind), 0) for kind in ("attention", "block"))
    assert again.activations == 2 * 6 * 2 * (2 * 8 + ffn + moe) / 2
    assert again.buffers - held.buffers == 2 * 6 * (attention - 8) / 2  # its input is kept
    assert block.activations == 2 * 6 * 2 * 2 * 8 / 2
    assert block.buffers - held.buffers == 2 * 6 * (attention - 8 + moe) / 2


def test_what_replicas_share_out():
    dense, expert = (2 * 256 + 32 + 480 + 800) / 2, 240.0  # as above; 4 replicas, those of an expert 2
    share, whole = dense / 4 + expert / 2, dense + expert
    block = (256 + 32 + 2 * 240) / 2  # the MoE block, larger than the dense one of 256 + 480
    none, one, two, three = (memory_of(tiny(sharding=kind), 0) for kind in SHARDING)
    assert (none.weights, none.gradients, none.optimizer) == (2 * whole, 4 * whole, 12 * whole)
    assert (one.weights, one.gradients, one.optimizer) == (2 * whole, 4 * whole, 12 * share)
    assert (two.weights, two.gradients, two.optimizer) == (2 * whole, 4 * (share + block), 12 * share)
    assert (three.weights, three.gradients, three.optimizer) == (
        2 * (share + 2 * block),
        4 * (share + block),
        12 * share,
    )
    assert none.activations == three.activations
    assert step_bytes(tiny(), 0) == (4 + 12 + 12 + 2) * share
    assert step_bytes(tiny(sharding="none", accumulated_bytes=2), 0) == (2 + 12 + 12 + 2) * whole


def test_number_formats_in_memory():
    usual = memory_of(tiny(), 0)
    small = memory_of(tiny(accumulated_bytes=2, moment_bytes=2, weight_bytes=1, kept_bytes=1), 0)
    assert (small.weights, small.gradients, small.optimizer) == (
        usual.weights / 2,
        usual.gradients / 2,
        usual.optimizer * 8 / 12,
    )
    # A byte less of what products keep: of attention 8 normed and 8 of output; of a FFN the normed input, gate and up
    # (2 x 20 or 2 x 2 x 10) and their product; of experts their rows, too.
    kept = 2 * 16 + (8 + 3 * 20) + (8 + 2 * (8 + 3 * 10))
    assert usual.activations - small.activations == 2 * 6 * kept / 2


def test_a_dense_block_with_attention_of_today_agrees_with_the_published_count():
    # arXiv 2205.05198 counts 34 bytes per element of a token for GPT (FFN of 4 x hidden, GELU, dropout) without scores:
    # less 2 masks of a byte, and 16 of the inner FFN, here gated: 2 x 3 x inner in place of 2 x 2 x 4 x hidden.
    hidden, inner = 64, 96
    dense = models.Architecture(
        *("gpt", 2, hidden, GroupedQuery(4, 4, 16), 2, 1, 8, "made up"), dense_blocks=1, dense_hidden=inner
    )
    job = Workload("gpt", dense, 1, 1, 2, 1, gpus=2, gpus_per_server=1, sequence=10, micro_batch=1, micro_batches=1)
    assert memory_of(job, 0).activations == 10 * ((34 - 2 - 16) * hidden + 2 * 3 * inner)


def test_passes_that_run_together_hold_rows_of_both_and_a_block_more():
    # Rows of a token: two choices of 8 elements there and back, 2 bytes each. A block of the first stage: attention 48
    # elements a token, and beside it 76 of the dense FFN or 100 of experts (`test_parts_by_hand`), 2 bytes each.
    rows, newest = 2 * 8 * (2 + 2), 2 * (48 + 100)
    micro_batches = {"micro_batches": 8}
    for schedule, extra in (("1f1b", newest), ("interleaved", newest), ("dualpipe", 0)):  # dualpipe holds both passes
        shape = micro_batches | {"schedule": schedule, "chunks": 2 if schedule == "interleaved" else 1}
        alone, pair = (memory_of(tiny(**shape, overlap_passes=pair), 0) for pair in (False, True))
        assert alone.buffers == 6 / 2 * rows
        assert pair.buffers == 6 / 2 * (2 * rows + extra)
    # A rank that receives twice as much: 76 of the 100 elements are of rows that it received.
    loads = (RankLoad(block=2.0),) * 2
    pair = memory_of(tiny(**micro_batches, overlap_passes=True), 0, loads)
    assert pair.buffers == 6 / 2 * (2 * 2 * rows + 2 * (48 + 100 + 76))


def test_tied_words_are_copied_to_both_ends_and_context_parallel_ranks_keep_their_part_of_the_tokens():
    def weights(stage, **more):
        return memory_of(
            dataclasses.replace(tiny(**more), architecture=dataclasses.replace(TINY, tied=True)), stage
        ).weights

    whole = {"dp": 4, "pp": 1}
    assert memory_of(tiny(**whole), 0).weights - weights(0, **whole) == 2 * 800 / 2
    assert weights(1) == memory_of(tiny(), 1).weights
    plain, shared = (memory_of(tiny(cp=cp), 1) for cp in (1, 2))
    assert (shared.activations, shared.logits) == (plain.activations / 2, plain.logits / 2)
    assert shared.weights == plain.weights


@given(
    st.sampled_from([("1f1b", 1), ("gpipe", 1), ("interleaved", 2), ("interleaved", 3)]),
    *(st.integers(1, 5), st.integers(1, 4)),
)
def test_passes_in_flight_are_those_of_the_schedule(kind, stages, rounds):
    (schedule, chunks), stages = kind, max(stages, 2)
    model = dataclasses.replace(models.MIXTRAL_8X7B, blocks=stages * chunks)
    shape = {"schedule": schedule, "chunks": chunks, "micro_batches": stages * rounds}
    job = Workload("m", model, dp=1, tp=1, pp=stages, ep=8, gpus=8 * stages, **shape)
    order = order_of(job)
    for stage in range(stages):
        steps = np.where(order.kind[stage] == BACKWARD, -1, 1)
        in_flight = passes_in_memory(schedule, stage, job.shape, chunks)
        assert sum(in_flight) == np.cumsum(steps).max()
        assert len(in_flight) == chunks


def paper(model, changes):
    facts = {"model.name": model, "gpu.name": "H100-SXM", "gpu.nvlink_gigabytes_per_s": None}
    return load(preset="paper", changes=facts | changes)


def path_of(field):
    group = "batch." if "batch" in field else "" if field in ("recompute", "sharding") else "parallel."
    return f"job.{group}{field}"


@pytest.mark.parametrize(
    ("model", "changes"),
    [
        ("llama-moe", {"job.batch.bubble": 0.15}),
        ("llama-moe", {f"job.parallel.{name}": one for name, one in {"tp": 1, "pp": 8, "ep": 16, "dp": 16}.items()}),
        ("qwen-moe", {"job.batch.micro_batches": 8}),
    ],
)
def test_whatever_a_remedy_changes_the_run_that_follows_it_fits(model, changes):
    case = paper(model, changes)
    asked = resolve(case)
    said = too_large_words(asked)
    assert said is not None
    several = said.partition("what fits: ")[2].removesuffix(".").split("; ")
    assert len(several) >= 3
    for words in several:
        flags = {field.replace("-", "_"): value for field, value in re.findall(r"([\w-]+) (\w+)(?=,| \()", words)}
        flags = {path_of(field): int(value) if value.isdigit() else value for field, value in flags.items()}
        job = resolve(case.with_(flags)).job
        needs = fullest_stage(job)[1].total
        assert needs <= 0.92 * 80e9, words
        assert f"({needs / 1e9:.1f}".removesuffix(".0") in words
        assert job.gpus == asked.job.gpus, words
        assert f"{job.micro_batches} micro-batches" in words or job.micro_batches == asked.job.micro_batches


def test_a_remedy_that_needs_more_gpus_says_so():
    degrees = {"job.parallel.tp": 1, "job.parallel.pp": 4, "job.parallel.ep": 8, "job.parallel.dp": 1}
    said = too_large_words(resolve(paper("deepseek-r1", degrees)))
    assert said is not None
    found = re.search(r"what fits: .*gpus (\d+).* on (\d+) GPUs instead of 32", said)
    assert found, said
    assert found[1] == found[2] != "32"
    never = resolve(paper("deepseek-r1", degrees | {"job.parallel.pp": 1, "job.batch.micro_batch": 1}))
    assert too_large_words(never).endswith("no other set-up fits, either.")


PAGE = (pathlib.Path(__file__).parents[2] / "docs" / "gpus.md").read_text(encoding="utf-8")
OWN = """
name = "own"
bf16_tflops = 500
nvlink_gigabytes_per_s = 100
memory_gigabytes = 96
gpus_per_server = 4
scale_up_gpus = 16
nics = 2
watts = 650
"""


def test_rates_are_those_of_the_data_sheets(shared_data):
    for name, fact in json.loads((shared_data / "hardware.json").read_text())["gpus"].items():
        gpu = get_gpu(name)
        assert gpu.bf16_flops == pytest.approx(fact["bf16_dense_tflops"] * 1e12)
        assert gpu.nvlink == pytest.approx(fact["nvlink_per_direction_GBps"] * 1e9)


def test_the_catalogue_is_whole():
    """Each fact is known, fp8 is twice bf16 where there is any, servers hold 8 with a NIC each."""
    assert {"H20-SXM", "B300-HGX", "GB300-NVL72", "MI300X", "MI355X"} <= set(GPUS)
    for name, gpu in GPUS.items():
        assert gpu.name == name
        assert gpu.source
        assert None not in (gpu.memory_bytes, gpu.memory_Bps, gpu.watts)
        assert (gpu.gpus_per_server, gpu.scale_up_gpus, gpu.nics) == (8, None, None)
        assert gpu.fp8_flops is None or gpu.fp8_flops == pytest.approx(2 * gpu.bf16_flops, rel=1e-3)
    # 2 x 4096 FLOPs of bf16 a clock and matrix core unit: 304 compute units at 2.1 GHz, 256 at 2.4 GHz.
    assert GPUS["MI300X"].bf16_flops == pytest.approx(304 * 2048 * 2.1e9, rel=1e-3)
    assert GPUS["MI355X"].bf16_flops == pytest.approx(256 * 4096 * 2.4e9, rel=1e-3)
    assert GPUS["H200-SXM"].memory_bytes == 141e9


def test_a_file_is_a_gpu(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(OWN)
    gpu = get_gpu(file)
    known = {"memory_bytes": 96e9, "gpus_per_server": 4, "scale_up_gpus": 16, "nics": 2, "watts": 650.0}
    assert gpu == Gpu("own", 500e12, 100e9, "as given in mine.toml", **known)
    assert get_gpu(gpu) is gpu
    like = tmp_path / "like.json"
    like.write_text(json.dumps({"like": "H100-SXM", "gpus_per_server": 4}))
    gpu, h100 = get_gpu(str(like)), get_gpu("H100-SXM")
    assert (gpu.name, gpu.gpus_per_server, gpu.fp8_flops) == ("like", 4, h100.fp8_flops)


def test_computing_in_fp8_takes_the_other_peak():
    job = get("mixtral-8x7b")
    half = np.asarray(block_seconds(job, get_gpu("MI300X"))[:4]) / 2
    np.testing.assert_allclose(block_seconds(job, get_gpu("MI300X"), precision="fp8")[:4], half, rtol=1e-4)


def test_the_page_lists_the_catalogue():
    rows = re.findall(r"^\| `([\w-]+)` \| (\S+) \| (\S+) \| (\S+) \| (\S+) \| (\S+) \| (\S+) \|", PAGE, re.M)
    listed = {name: tuple(None if x == "-" else float(x.replace(",", "")) for x in rest) for name, *rest in rows}
    assert list(listed) == list(GPUS)
    for name, gpu in GPUS.items():
        tera, giga = (gpu.bf16_flops, gpu.fp8_flops), (gpu.memory_bytes, gpu.memory_Bps, gpu.nvlink)
        scaled = [x and x / 1e12 for x in tera] + [x and x / 1e9 for x in giga] + [gpu.watts]
        assert listed[name] == tuple(x and pytest.approx(x) for x in scaled), name


EIGHT = models.Architecture(
    *("tiny", 8, 1024, GroupedQuery(16, 16, 64), 8, 2, 2048, "made up"), vocab=32000
)  # 8 blocks, 8 experts


def refused(**stated):
    """The sentence that refuses a set-up of EIGHT; None: it has one."""
    try:
        quickest(EIGHT, H100, **stated)
    except InputError as mistake:
        return str(mistake)
    return None


def test_a_refusal_names_the_rule_and_values_that_pass():
    stage = "a pipeline stage fills whole servers of 8 GPUs, so gpus must be a multiple of pp x 8 = "
    assert refused(tp=1, pp=4, ep=2, gpus=8) == (
        f"no set-up has tp 1, ep 2, pp 4, gpus 8: {stage}32; pp 1 or gpus 32 or 64 would do."
    )
    assert (
        refused(pp=2, ep=4, gpus=8) == f"no set-up has ep 4, pp 2, gpus 8: {stage}16; pp 1 or gpus 16 or 32 would do."
    )
    assert "a pipeline stage fills whole servers, so tp x ep x dp must be a multiple of 8 GPUs" in refused(
        tp=1, ep=1, dp=1
    )
    assert "gpus must be a multiple of tp x ep x pp x dp" in refused(tp=2, ep=8, gpus=8)
    assert "micro_batches must be a multiple of the" in refused(
        gpus=64, pp=4, schedule="interleaved", chunks=2, micro_batches=6
    )


def test_every_refusal_has_a_rule_and_what_it_suggests_passes():
    random = np.random.default_rng(5)
    choices = {"tp": (1, 2, 3, 16), "ep": (1, 2, 3, 8, 16), "pp": (1, 2, 4, 7, 9), "dp": (1, 2, 5)}
    choices |= {"gpus": (8, 12, 16, 24, 100)}
    refusals = suggestions = 0
    for _ in range(150):
        stated = {name: int(random.choice(values)) for name, values in choices.items() if random.random() < 0.6}
        sentence = refused(micro_batches=8, **stated)
        if sentence is None:
            continue
        refusals += 1
        assert " must " in sentence, sentence
        if sentence.startswith("no set-up has"):
            for name, values in re.findall(r"(tp|ep|pp|dp|gpus) (\d+(?: or \d+)*)", sentence.partition("; ")[2]):
                for value in values.split(" or "):
                    suggestions += 1
                    assert refused(micro_batches=8, **stated | {name: int(value)}) is None, (sentence, name, value)
    assert min(refusals, suggestions) > 50
