"""Seconds of a block from measured kernels, against hand-worked ones and published products."""

import dataclasses
import json
import math

import pytest

from mfabric_jax import InputError
from mfabric_jax.workload import Gpu, get_gpu, models
from mfabric_jax.workload.block_kernels import BlockKernels, achieved_by_kernels, kernel_seconds
from mfabric_jax.workload.catalog import NAMES, get
from mfabric_jax.workload.compute import block_flops
from mfabric_jax.workload.dispatch_kernels import package_families, training_parts
from mfabric_jax.workload.gpus import GPUS
from mfabric_jax.workload.kernels import (
    DISPATCHERS,
    HOW,
    IDEAL,
    SHARED,
    TrainingRates,
    rates_of,
    shares_of,
    table,
    training_rates,
)
from mfabric_jax.workload.measured_kernels import MeasuredKernels, measured_kernels
from mfabric_jax.workload.parallel import Workload
from mfabric_jax.workload.training_code import TrainingCode
from tests.small import scenario, small

H100, H800 = get_gpu("H100-SXM"), get_gpu("H800-SXM")
JOB = Workload("m", models.MIXTRAL_8X7B, 1, 1, 1, 8, 8, sequence=4096, micro_batch=1, micro_batches=2)
TWICE = TrainingRates(1.0, {"bf16": 0.25, "fp8": 0.5}, {"128": {"4096": 2.0}})


def flat(flops=100.0, memory_Bps=10.0, floor_us=0.0):
    """Kernels at these rates, with sharp knees and whole waves."""
    gpu = Gpu("flat", bf16_flops=flops, fp8_flops=2 * flops, nvlink=1.0, source="", memory_Bps=memory_Bps)
    product = {"floor_us": floor_us, "rate": 1.0, "bw": 1.0, "out": 1.0, "p": math.inf, "wave": 0.0, "cast": 1.0}
    each_ns = {"1024": 2 * 128 * 1024 * 1e9 / flops}  # of a token and head
    facts = {"sms": 1, "products": dict.fromkeys(("bf16", "fp8"), product), "prompt_ns": {"128/0": each_ns}}
    return MeasuredKernels(gpu, facts | {"pointwise": {"floor_us": 0.0, "bw": 1.0}})


def kernels(precision="bf16", job=JOB, of=None, rates=TWICE, **code):
    return BlockKernels(job, of or flat(), rates, precision, TrainingCode(**code))


def test_a_product_by_hand():
    # 4 x 5 with 5 x 6: 240 FLOPs at 100 a second, less than reading 50 elements of two bytes at 10 bytes a second; then
    # 24 elements are written. Gradients of weights: 240 FLOPs at 25 a second; a float32 sum is read and written.
    found = kernels()._product(4, 5, 6)
    assert found.forward == pytest.approx(2 * (20 + 30) / 10 + 2 * 24 / 10)
    assert found.inputs == pytest.approx(2 * (24 + 30) / 10 + 2 * 20 / 10)
    assert found.weights == pytest.approx(240 / 25 + 2 * 4 * 30 / 10)
    large = kernels()._product(400, 500, 600)
    assert large.forward == pytest.approx(2 * 400 * 500 * 600 / 100 + 2 * 400 * 600 / 10)
    half = kernels(rates=TWICE._replace(sustained=0.5))._product(400, 500, 600)
    assert half.forward == pytest.approx(2 * 400 * 500 * 600 / 50 + 2 * 400 * 600 / 10)
    assert kernels(weights_rate=0.5)._product(400, 500, 600) == large  # of FP8 alone
    plain, slow = (kernels("fp8", weights_rate=rate)._product(400, 500, 600) for rate in (1.0, 0.5))
    assert slow.forward == plain.forward
    assert plain.weights == pytest.approx(2 * 400 * 500 * 600 / (200 * 0.5) + 2 * 4 * 500 * 600 / 10)
    assert slow.weights - plain.weights == pytest.approx(2 * 400 * 500 * 600 / (200 * 0.5))


def test_groups_formats_and_launches_of_a_product():
    fp8 = kernels("fp8")._product(40, 50, 60, groups=3)
    assert fp8.forward == pytest.approx(3 * (2 * 40 * 50 * 60 / 200 + 40 * 60 * 2 / 10))
    late = kernels("fp8", of=flat(floor_us=5e5))._product(40, 50, 60, groups=3)
    assert late.forward - fp8.forward == pytest.approx(0.5)  # one kernel for all groups
    assert kernels("bf16")._cast(100) == 0
    assert kernels("fp8")._cast(100) == 100 * 4 / 10


@pytest.mark.parametrize(
    ("rows", "outer", "inner", "tflops", "groups"),
    [
        *((4096, 2112, 7168, 1058, 1), (4096, 24576, 1536, 990, 1), (4096, 32768, 512, 590, 1)),
        *((4096, 7168, 16384, 1358, 1), (4096, 4096, 7168, 1304, 1), (4096, 7168, 2048, 1025, 1)),
        *((8192, 4096, 7168, 1297, 4), (8192, 7168, 2048, 1099, 4)),
        *((4096, 4096, 7168, 1288, 8), (4096, 7168, 2048, 1093, 8)),
    ],
)
def test_products_that_were_published(rows, outer, inner, tflops, groups):
    """DeepGEMM's table for H800, FP8, of spring 2025: short runs. The kernels of the engines are somewhat slower."""
    short = training_rates(H800)._replace(sustained=1.0)
    one = kernels("fp8", of=measured_kernels(H800), rates=short)._product(rows, inner, outer, groups=groups)
    got = 2 * rows * inner * outer * groups / one.forward / 1e12
    assert got == pytest.approx(tflops, rel=0.15 if inner > 512 else 0.25)


@pytest.mark.parametrize(
    ("outer", "inner", "ms"), [(4096, 7168, 3.148), (2048, 7168, 1.606), (7168, 2048, 1.732), (7168, 4096, 3.52)]
)
def test_experts_of_mi355x_in_training(outer, inner, ms):
    """Primus-Turbo's mega MoE: 65,536 rows of 32 experts in bf16, products alone."""
    gpu = get_gpu("MI355X")
    one = kernels(of=measured_kernels(gpu), rates=training_rates(gpu))._product(2048, inner, outer, groups=32)
    assert 1e3 * one.forward == pytest.approx(ms, rel=0.12)


def test_gradients_of_weights_of_experts_of_mi355x():
    """The same: 3.337 ms with outputs of two bytes. Here sums of four bytes are read and written."""
    gpu = get_gpu("MI355X")
    of = measured_kernels(gpu)
    one = kernels(of=of, rates=training_rates(gpu))._product(2048, 7168, 4096, groups=32)
    facts, elements = of.facts["products"]["bf16"], 32 * 4096 * 7168
    sums_s = JOB.accumulated_bytes * elements * (1 / facts["out"] + 1 / facts["bw"]) / 8e12
    assert one.weights - sums_s == pytest.approx(3.337e-3 - 2 * elements / facts["out"] / 8e12, rel=0.1)


@pytest.mark.parametrize(
    ("groups", "rows", "outer", "inner", "tflops"),
    [
        *((1, 8192, 12_288, 4096, 638.59), (1, 8192, 8192, 28_672, 579.12)),
        *((8, 4096, 4096, 7168, 547.67), (32, 8192, 7168, 2048, 497.13)),
    ],
)
def test_products_of_mi300x_in_training(groups, rows, outer, inner, tflops):
    """Primus-Turbo's dense and grouped products in bf16."""
    gpu = get_gpu("MI300X")
    one = kernels(of=measured_kernels(gpu), rates=training_rates(gpu))._product(rows, inner, outer, groups=groups)
    assert 2 * groups * rows * outer * inner / one.forward / 1e12 == pytest.approx(tflops, rel=0.1)


def test_rates_of_grouped_products_and_of_formats_of_training():
    rates = TrainingRates(
        0.5, {"bf16": 0.8, "fp8": 1.0}, {}, {"products": 0.5, "weights": 0.25}, {"bf16": 1.0, "fp8": 2.0}
    )
    of = flat(100.0, None)
    flops = 2 * 64 * 32 * 16
    one, many = (kernels(of=of, rates=rates)._product(64, 32, 16, groups=groups) for groups in (1, 4))
    assert one[:3] == pytest.approx([flops / 50, flops / 50, flops / 40])
    assert many[:3] == pytest.approx([4 * flops / 25, 4 * flops / 25, 4 * flops / 5])
    fp8 = kernels("fp8", of=of, rates=rates)._product(64, 32, 16)
    bf16_rate = kernels("fp8", of=of, rates=rates._replace(products={"fp8": 1.0}))._product(64, 32, 16)
    assert bf16_rate.forward == pytest.approx(2 * fp8.forward)


def test_a_table_of_ones_own_may_leave_out_grouped_products(tmp_path):
    mine = {"training": {"mine": dict(table()["training"]["hopper"])}}
    assert "grouped" not in mine["training"]["mine"]
    (tmp_path / "mine.json").write_text(json.dumps(mine))
    assert training_rates(H100, path=str(tmp_path / "mine.json")).grouped == {"products": 1.0, "weights": 1.0}
    mine["training"]["mine"]["grouped"] = {"products": [0.5, 0.6, 0.7], "weights": [1.0, 1.0, 1.0]}
    (tmp_path / "mine.json").write_text(json.dumps(mine))
    assert training_rates(H100, path=str(tmp_path / "mine.json")).grouped == {"products": 0.6, "weights": 1.0}
    mine["training"]["mine"]["grouped"] = {"products": [0.5, 0.6, 0.7]}
    (tmp_path / "mine.json").write_text(json.dumps(mine))
    with pytest.raises(
        InputError, match=r"training\.mine\.grouped must be a table with products, weights, got none of"
    ):
        training_rates(H100, path=str(tmp_path / "mine.json"))


def test_attention_scores_and_their_backward_pass():
    (kind,) = {kind for kind, _ in JOB.architecture.attention.shares}
    flops = JOB.tokens * kind.score_flops(4096)
    assert kernels()._scores(kind, backward=False) == pytest.approx(flops / 100)
    assert kernels()._scores(kind, backward=True) == pytest.approx(2 * flops / 100)
    between = TrainingRates(1.0, {}, {"128": {"1024": 3.0, "4096": 2.0}, "64": {"1024": 9.0}})
    assert between.attention_backward(100, 2048) == pytest.approx(2.5)  # halfway by the logarithm
    assert between.attention_backward(80, 10**6) == 9.0


def test_all_flops_are_there_whatever_the_model():
    """At one FLOP/s and with boundless memory, seconds are FLOPs; scores have twice as many backward."""
    ones = TrainingRates(1.0, {"bf16": 1.0, "fp8": 1.0}, {"128": {"1024": 2.5}})
    for name in NAMES:
        job = dataclasses.replace(get(name), head="known")
        found, flops = kernels(job=job, of=flat(1.0, None), rates=ones).block(), block_flops(job)
        assert found.attention_s == pytest.approx(flops.attention / job.tp)
        assert found.moe_s == pytest.approx(flops.moe / job.tp)
        assert found.expert_s == pytest.approx(flops.expert / job.tp)
        scores = found.scores_s
        back = found.backward.attention
        assert back.inputs + back.weights == pytest.approx(2 * (found.attention_s - scores) + 2.5 * scores)
        if job.architecture.dense_blocks:
            assert found.dense_s == pytest.approx(flops.dense / job.tp)
        head = job.tokens * 2 * job.architecture.head_params / job.tp
        assert found.head_s == pytest.approx(head)
        assert found.backward.head == pytest.approx(2 * head)
        assert found.issued is None


def test_what_is_not_fused_moves_its_bytes():
    rows, inner, width = JOB.selections, models.MIXTRAL_8X7B.expert_hidden, models.MIXTRAL_8X7B.hidden
    plain = kernels().experts()
    clamped, biased, looped = (
        kernels(**code).experts()
        for code in ({"unfused": frozenset({"clamp"})}, {"unfused": frozenset({"bias"})}, {"loop_s": 3.0})
    )
    assert clamped.forward - plain.forward == pytest.approx(8 * 2 * rows * inner / 10)
    assert clamped.inputs - plain.inputs == pytest.approx(10 * 2 * rows * inner / 10)
    assert biased.forward - plain.forward == pytest.approx(6 * 2 * rows * width / 10)
    assert biased.inputs - plain.inputs == pytest.approx(8 * 2 * rows * width / 10)
    for mine, other in zip(looped[:3], plain[:3], strict=True):
        assert mine - other == pytest.approx(2 * 3.0 * JOB.experts_per_rank)


def test_folded_gpus_split_attention_and_hold_other_experts():
    plain = Workload("m", models.MIXTRAL_8X22B, 1, 1, 1, 8, 8, micro_batches=2)
    folded = dataclasses.replace(plain, folded=2)
    alone, both = (kernel_seconds(job, H100) for job in (plain, folded))
    assert both.attention_s == pytest.approx(alone.attention_s / 2, rel=0.1)  # half the tokens a GPU
    assert both.expert_s == pytest.approx(alone.expert_s / 2, rel=0.1)
    narrow = dataclasses.replace(plain, sequence_parallel=False, folded=2)
    assert kernel_seconds(narrow, H100).attention_s > both.attention_s


@pytest.mark.parametrize("precision", ["bf16", "fp8"])
def test_low_figures_are_slower_than_usual_and_high_ones_faster(precision):
    for gpu in GPUS.values():
        if precision == "fp8" and gpu.fp8_flops is None:
            continue
        for name in NAMES:
            slow, usual, fast = (kernel_seconds(get(name), gpu, precision, how) for how in HOW)
            for part in ("attention_s", "moe_s", "expert_s", "scores_s"):
                assert getattr(slow, part) >= getattr(usual, part) >= getattr(fast, part) > 0, (gpu.name, name, part)
            assert 0.1 < achieved_by_kernels(get(name), gpu, precision, usual) < 1


def leaves(node):
    """Lists of three fractions."""
    if isinstance(node, list):
        return [node]
    return [x for one in node.values() if isinstance(one, dict | list) for x in leaves(one)]


def test_fractions_of_the_table_are_below_the_peak_and_in_order():
    told = table()["counts"]["us"]
    assert told == sorted(told, reverse=True)
    for name, one in table().items():
        if name in ("counts", "training"):
            continue
        found = leaves({key: value for key, value in one.items() if key != "gpus"})
        assert len(found) >= 9 or name == "launch"
        for low, usual, high in found:
            assert 0 < low <= usual <= high < 1, name


def test_training_is_slower_than_short_runs_and_backward_than_forward():
    for one in table()["training"].values():
        low, usual, high = one["sustained"]
        assert 0 < low < usual <= high <= 1
        assert all(0 < low <= usual <= high <= 1 for low, usual, high in one["weights"].values())
        ratios = [ratio for by in one["attention_backward"].values() for ratio in by.values()]
        assert all(2 < ratio < 11 for ratio in ratios)
        assert max(ratios) < 4 or one["gpus"] == ["MI300X"]  # which has no assembly for heads of 192 and 128


def test_an_unknown_gpu_takes_the_wide_estimate():
    unknown, known = dataclasses.replace(H100, name="mine"), get_gpu("A100-80GB-SXM")
    for gpu, family in ((unknown, "other"), (known, "ampere")):
        usual = table()[family]["products"]["bf16"][HOW.index("usual")]
        assert rates_of(gpu).products["bf16"] == gpu.bf16_flops * usual
        assert measured_kernels(gpu).facts["products"]["bf16"]["rate"] == pytest.approx(usual)
        assert training_rates(gpu).sustained == 1.0  # its rates are those of long runs
    assert measured_kernels(H800).facts is not None
    assert measured_kernels(H800).facts["products"] == measured_kernels(H100).facts["products"]


def test_ranks_wait_for_the_last_before_a_dispatch_with_and_without_a_capacity():
    kernels = {"compute.rate": "kernels", "gpu.name": "H100-SXM", "network.fabric": "fat-tree"}
    waited_s = lambda changes: scenario(small(kernels | changes)).rates(400.0).counts_s  # noqa: E731
    assert waited_s({}) == pytest.approx(3.11 / (48 * 64), rel=1e-3)  # once a block and micro-batch of the profile
    assert waited_s({"job.capacity_factor": 8.0}) == waited_s({})
    assert waited_s({"compute.rate": "efficiency"}) == 0.0


def test_links_between_measured_numbers_of_servers():
    assert shares_of(8, "ideal") == IDEAL
    two, three, four = (shares_of(servers, "nccl").nic for servers in (2, 3, 4))
    assert two < three < four
    assert shares_of(1024, "nccl").nic == shares_of(8, "nccl").nic
    for name in DISPATCHERS:
        slow, usual, fast = (shares_of(4, name, how) for how in HOW)
        assert slow.nic < usual.nic < fast.nic
        assert 0 < usual.cores < 0.2
    with pytest.raises(InputError, match="dispatcher 'mine' is unknown; allowed: nccl, deepep, hybridep"):
        shares_of(2, "mine")


def test_kernels_of_training_stand_beside_those_of_serving():
    parts = training_parts()
    assert set(parts["communication"]) == {"rings", *DISPATCHERS}
    assert not {"rings", "counts"} & set(package_families())
    assert package_families()["nccl"].dispatch.nic == parts["communication"]["nccl"]["nic"]["4"][1]
    assert table()["counts"] == parts["counts"]


def test_a_table_of_ones_own_needs_only_its_own_gpus(tmp_path):
    (tmp_path / "mine.json").write_text(json.dumps({"ampere": table()["ampere"]}))
    mine = table(str(tmp_path / "mine.json"))
    assert {name: mine[name] for name in SHARED} == {name: table()[name] for name in SHARED}
    assert rates_of(H100, path=str(tmp_path / "mine.json")) == rates_of(H100)
    assert shares_of(4, "nccl", "usual", str(tmp_path / "mine.json")) == shares_of(4, "nccl")


FAMILY = table()["other"] | {"gpus": ["H100-SXM"]}
WRONG_TABLES = {
    "a top-level key that is no table": ({"mine": math.inf}, "mine must be a table with products, grouped"),
    "text": ({"mine": "fast"}, "mine must be a table"),
    "a list": ({"launch": [1.0]}, "launch must be a table with us"),
    "no numbers": ({"mine": {}}, "mine must be a table"),
    "a part that lacks": ({"mine": {"gpus": ["H100-SXM"], "products": FAMILY["products"]}}, "got none of grouped"),
    "GPUs that are no list": ({"mine": FAMILY | {"gpus": "H100-SXM"}}, "mine.gpus must be a list of names of GPUs"),
    "two numbers": ({"mine": FAMILY | {"memory": {"stream": [1.0, 1.0]}}}, "mine.memory.stream must be 3 numbers"),
    "a text among them": ({"counts": {"us": [1.0, "x", 2.0]}}, "counts.us must be a number"),
    "an infinity": ({"launch": {"us": math.inf}}, "launch.us must be finite"),
    "a width that is none": ({"mine": FAMILY | {"attention": {"forward": {"x": 1}, "backward": {}}}}, "whole numbers"),
    "a misspelt part": ({"mine": FAMILY | {"product": 1.0}}, "name 'product' is unknown"),
    "communication": ({"communication": {"rings": 1}}, "communication.rings must be a table with nic"),
}


@pytest.mark.parametrize("wrong", WRONG_TABLES)
def test_a_table_of_ones_own_has_the_parts_of_the_packages(wrong, tmp_path):
    own, said = WRONG_TABLES[wrong]
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(own))
    with pytest.raises(InputError, match=said) as caught:
        rates_of(H100, "usual", str(file))
    assert str(caught.value).startswith(f"{str(file)!r}: ")


def test_a_family_of_ones_own_is_enough(tmp_path):
    file = tmp_path / "mine.json"
    file.write_text(json.dumps({"mine": FAMILY}))
    assert (
        rates_of(H100, "usual", str(file)).products["bf16"] == H100.bf16_flops * table()["other"]["products"]["bf16"][1]
    )
