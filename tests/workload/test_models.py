"""Parameters of models, operations and seconds of a block: by hand and against published sizes."""

import dataclasses
import json
import re

import jax
import numpy as np
import pytest

from mfabric_jax.workload import NAMES, Workload, block_seconds, get, get_gpu, models
from mfabric_jax.workload.attention import Linear, Mixed
from mfabric_jax.workload.compute import block_flops, iteration_flops
from tests.mistakes import refused


def test_parts_by_hand():
    # Query and output 4096 x 4096 each, key and value 4096 x 1024 each; three matrices of 4096 x 14336 an expert.
    model = models.MIXTRAL_8X7B
    assert model.attention_params == 2 * 4096 * 4096 + 2 * 4096 * 1024
    assert (model.expert_params, model.gate_params) == (3 * 4096 * 14336, 4096 * 8)
    assert (model.shared_params, model.dense_params) == (0, 0)
    # Latent: down and up projection of the query, then of key and value (with one rotary key of 64), then the output.
    query = 7168 * 1536 + 1536 * 128 * 192
    key_value = 7168 * (512 + 64) + 512 * 128 * (128 + 128)
    assert models.DEEPSEEK_V3.attention_params == query + key_value + 128 * 128 * 7168
    assert models.DEEPSEEK_V3.attention.score_width == 128 * (192 + 128)


def test_sizes_are_the_published_ones(shared_data):
    published = json.loads((shared_data / "models.json").read_text())["models"]
    for model, name in (
        (models.MIXTRAL_8X22B, "mixtral-8x22b"),
        (models.MIXTRAL_8X7B, "mixtral-8x7b"),
        (models.LLAMA_MOE, "llama-moe-3.0b-2of16"),
        (models.QWEN_MOE, "qwen1.5-moe-a2.7b"),
        (models.DEEPSEEK_V3, "deepseek-r1"),
    ):
        facts = published[name]
        assert model.attention_params / 1e6 == pytest.approx(facts["attention_params_per_layer_M"], abs=5e-4)
        assert model.expert_params / 1e6 == pytest.approx(facts["params_per_expert_M"], abs=5e-3)
        assert (model.blocks, model.hidden, model.top_k) == (facts["num_layers"], facts["hidden_size"], facts["top_k"])
        assert model.dense_blocks == facts["first_dense_layers"]
        assert model.dense_hidden == facts.get("dense_ffn_intermediate", 0)
        assert model.shared_hidden == facts.get("shared_expert_intermediate_total", 0)


def test_parameters_of_a_whole_model_by_hand():
    # Width 4: 32 parameters of attention in each of 3 blocks; 2 experts of 3 x 4 x 3, a gate of 8, a shared expert of
    # 3 x 4 x 5 in two of them, 3 x 4 x 7 in the dense one; embedding and head of 10 x 4.
    rest = {"shared_hidden": 5, "dense_blocks": (1,), "dense_hidden": 7, "vocab": 10, "source": "made up"}
    tiny = models.Architecture("tiny", 3, 4, models.GroupedQuery(1, 1, 2), 2, 1, expert_hidden=3, **rest)
    assert tiny.params() == 3 * 32 + 2 * (2 * 36 + 8 + 60) + 84 + 2 * 40
    assert tiny.params(active=True, embedding=False) == 3 * 32 + 2 * (36 + 8 + 60) + 84 + 40
    tied = dataclasses.replace(tiny, tied=True)
    assert tiny.params() - tied.params() == 40
    assert tied.params(embedding=False) == tied.params(head=False) == tied.params()
    assert tied.params(embedding=False, head=False) == tied.params() - 40
    two = dataclasses.replace(tiny, next_tokens=2)
    assert (two.params(), two.prediction_params) == (tiny.params(), 2 * (32 + 2 * 36 + 8 + 60 + 2 * 16))


def test_kinds_of_attention_by_hand():
    # Projected directly: 8 x 2 x 6; keys and values through rank 5: 8 x (5 + 2), 5 x 2 x (4 + 3); output 2 x 3 x 8.
    direct = models.Latent(heads=2, query_rank=0, kv_rank=5, nope_dim=4, rope_dim=2, value_dim=3)
    assert direct.params(8) == 96 + 56 + 70 + 48
    # 4 queries: 1, 2, 2, 2 keys in a window of 2, less half of each one's own square, as the whole triangle counts.
    windowed, whole = models.GroupedQuery(2, 1, 3, window=2), models.GroupedQuery(2, 1, 3)
    assert whole.score_flops(4) == 2 * 2 * 12
    assert windowed.score_flops(4) == 2 * 1.5 * 12
    assert windowed.score_flops(2) == whole.score_flops(2)
    linear = Linear(2, 3)
    assert linear.params(8) == 5 * 8 * 6
    assert linear.score_flops(10**6) == 4 * 2 * 9
    mixed = Mixed(((whole, 1), (linear, 3)))
    assert mixed.params(8) == (whole.params(8) + 3 * linear.params(8)) / 4
    assert "kv_heads must divide the 3 heads, got 2" in refused(models.GroupedQuery, 3, 2, 4)


def test_whole_deepseek_has_671_billion_parameters():
    # As published, 671.0e9, and 37e9 of them active (arXiv 2412.19437); 11.5e9 more predict the next but one word
    # (README_WEIGHTS.md of the release).
    model = models.DEEPSEEK_V3
    assert model.params() / 1e9 == pytest.approx(671.025, abs=5e-3)
    assert round(model.params(active=True) / 1e9) == 38
    assert round(model.params(active=True, embedding=False) / 1e9) == 37
    assert model.prediction_params / 1e9 == pytest.approx(11.5, rel=0.01)


def test_impossible_dimensions_are_named():
    for change, words in (
        ({"top_k": 9}, r"top_k must be at most experts \(8\), got 9"),
        ({"blocks": 0}, "blocks must be a whole number"),
        ({"hidden": 1.5}, "hidden must be a whole number"),
        ({"dense_blocks": 32}, "blocks must exceed the 32 dense blocks"),
    ):
        assert re.search(words, refused(dataclasses.replace, models.MIXTRAL_8X7B, **change))


# ------------------------------------------------------------------------------------------------------------- compute
def test_flops_of_a_tiny_block_counted_product_by_product():
    # Two tokens of width 4, one head of width 4; expert of width 3, top 1 of 2; shared expert of width 5.
    attention, more = models.GroupedQuery(1, 1, 4), {"shared_hidden": 5, "dense_blocks": 1, "dense_hidden": 7}
    tiny = models.Architecture("tiny", 2, 4, attention, experts=2, top_k=1, expert_hidden=3, source="made up", **more)
    workload = Workload.of("tiny", tiny, 1, 1, 1, 1, gpus=1, gpus_per_server=1, sequence=2, micro_batch=1)
    flops = block_flops(workload)
    projections = 2 * (2 * 4 * 4) * 4
    full_square = 2 * (2 * 2 * 4) * 2  # scores, then weighted values: 2 queries x 2 keys x 4 wide
    assert flops.attention == projections + full_square / 2
    assert flops.moe == 2 * (2 * 4 * 2 + 2 * 3 * 4 * 3 + 2 * 3 * 4 * 5)
    assert flops.dense == 2 * (2 * 3 * 4 * 7)


def test_an_iteration_is_six_flops_a_parameter_and_token_and_its_scores():
    # Mixtral 8x7B: attention, gate and two of eight experts of 32 blocks are active, 12.6 billion; and the head.
    active = 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 4096 * 8 + 2 * 3 * 4096 * 14336)
    scores = 32 * 3 * 4 * 4096 * 4096 / 2  # queries x 4096 keys, half of them masked; forward and twice that backward
    job = get("mixtral-8x7b", micro_batches=3, tp=2, dp=2, ep=8, pp=4, gpus=128)
    tokens = 3 * job.micro_batch * 4096 * 2 * 8
    assert iteration_flops(job) == pytest.approx((6 * active + scores) * tokens, rel=1e-12)
    assert iteration_flops(dataclasses.replace(job, recompute="block")) == iteration_flops(job)
    head = dataclasses.replace(job, head="counted")
    assert iteration_flops(head) - iteration_flops(job) == pytest.approx(6 * 4096 * 32000 * tokens, rel=1e-9)


def test_seconds_are_flops_over_the_achieved_rate():
    for name in NAMES:
        workload = get(name)
        seconds = block_seconds(workload, get_gpu("A100-80GB-SXM"), efficiency=0.4)
        np.testing.assert_allclose(seconds, np.divide(block_flops(workload), workload.tp * 312e12 * 0.4), rtol=1e-12)
    # 32768 tokens x 2 experts x 6 x 4096 x 14336 FLOPs over 4 GPUs at 156 TFLOP/s: 37 ms, gate included.
    assert block_seconds(get("mixtral-8x7b"), get_gpu()).moe_s == pytest.approx(0.0370, abs=1e-4)
    traced = jax.jit(lambda efficiency: block_seconds(workload, get_gpu(), efficiency).moe_s)
    assert traced(2.0) == pytest.approx(block_seconds(workload, get_gpu(), 2.0).moe_s)
    assert "efficiency must be finite and above 0, got 0" in refused(lambda: block_seconds(workload, get_gpu(), 0))
