"""Operations and seconds of a block."""

import json

import jax
import numpy as np
import pytest

from mfabric_jax.checks import InputError
from mfabric_jax.workload import NAMES, Workload, block_flops, block_seconds, get, get_gpu, models


def test_flops_of_a_tiny_block_counted_product_by_product():
    # Two tokens of width 4, one head of width 4; expert of width 3, top 1 of 2; shared expert of width 5.
    tiny = models.Architecture(
        name="tiny",
        blocks=2,
        hidden=4,
        attention=models.GroupedQuery(1, 1, 4),
        experts=2,
        top_k=1,
        expert_hidden=3,
        source="made up",
        shared_hidden=5,
        dense_blocks=1,
        dense_hidden=7,
    )
    workload = Workload("tiny", tiny, 1, 1, 1, 1, gpus=1, gpus_per_server=1, sequence=2, micro_batch=1)
    flops = block_flops(workload)
    projections = 2 * (2 * 4 * 4) * 4
    full_square = 2 * (2 * 2 * 4) * 2  # scores, then weighted values: 2 queries x 2 keys x 4 wide
    assert flops.attention == projections + full_square / 2
    assert flops.moe == 2 * (2 * 4 * 2 + 2 * 3 * 4 * 3 + 2 * 3 * 4 * 5)
    assert flops.dense == 2 * (2 * 3 * 4 * 7)


@pytest.mark.parametrize("name", NAMES)
def test_seconds_are_flops_over_the_achieved_rate(name):
    workload = get(name)
    seconds = block_seconds(workload, get_gpu("A100-80GB-SXM"), efficiency=0.4)
    np.testing.assert_allclose(seconds, np.divide(block_flops(workload), workload.tp * 312e12 * 0.4), rtol=1e-12)


def test_mixtral_experts_take_the_measured_order_of_magnitude():
    # 32768 tokens x 2 experts x 6 x 4096 x 14336 FLOPs over 4 GPUs at 156 TFLOP/s: 37 ms, gate included.
    seconds = block_seconds(get("mixtral-8x7b"), get_gpu())
    assert seconds.moe_s == pytest.approx(0.0370, abs=1e-4)


def test_efficiency_may_be_traced():
    def moe_s(efficiency):
        return block_seconds(get("qwen-moe"), get_gpu(), efficiency).moe_s

    assert jax.jit(moe_s)(2.0) == pytest.approx(moe_s(2.0))


def test_mistakes_are_named():
    with pytest.raises(InputError, match="gpu 'H100' is unknown"):
        get_gpu("H100")
    with pytest.raises(InputError, match="efficiency must be finite and above 0, got 0"):
        block_seconds(get("qwen-moe"), get_gpu(), 0)


def test_rates_are_those_of_the_data_sheets(shared_data):
    facts = json.loads((shared_data / "hardware.json").read_text())["gpus"]
    for name, fact in facts.items():
        gpu = get_gpu(name)
        assert gpu.bf16_flops == pytest.approx(fact["bf16_dense_tflops"] * 1e12)
        assert gpu.nvlink == pytest.approx(fact["nvlink_per_direction_GBps"] * 1e9)
