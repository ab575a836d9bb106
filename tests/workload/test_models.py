"""Parameter counts against hand computations and the published sizes."""

import dataclasses
import json

import pytest

from mfabric_jax.checks import InputError
from mfabric_jax.workload import models

PUBLISHED_AS = {
    models.MIXTRAL_8X22B: "mixtral-8x22b",
    models.MIXTRAL_8X7B: "mixtral-8x7b",
    models.LLAMA_MOE: "llama-moe-3.0b-2of16",
    models.QWEN_MOE: "qwen1.5-moe-a2.7b",
    models.DEEPSEEK_V3: "deepseek-r1",
}


def test_mixtral_parts_by_hand():
    # Query and output 4096 x 4096 each, key and value 4096 x 1024 each; three matrices of 4096 x 14336 an expert.
    model = models.MIXTRAL_8X7B
    assert model.attention_params == 2 * 4096 * 4096 + 2 * 4096 * 1024
    assert model.expert_params == 3 * 4096 * 14336
    assert model.gate_params == 4096 * 8
    assert (model.shared_params, model.dense_params) == (0, 0)


def test_latent_attention_by_hand():
    # Down and up projection of the query, then of key and value (with one rotary key of 64), then the output.
    query = 7168 * 1536 + 1536 * 128 * 192
    key_value = 7168 * (512 + 64) + 512 * 128 * (128 + 128)
    assert models.DEEPSEEK_V3.attention_params == query + key_value + 128 * 128 * 7168
    assert models.DEEPSEEK_V3.attention.score_width == 128 * (192 + 128)


@pytest.mark.parametrize(("model", "published"), PUBLISHED_AS.items(), ids=PUBLISHED_AS.values())
def test_sizes_are_the_published_ones(shared_data, model, published):
    facts = json.loads((shared_data / "models.json").read_text())["models"][published]
    assert model.attention_params / 1e6 == pytest.approx(facts["attention_params_per_layer_M"], abs=5e-4)
    assert model.expert_params / 1e6 == pytest.approx(facts["params_per_expert_M"], abs=5e-3)
    assert (model.blocks, model.hidden, model.top_k) == (facts["num_layers"], facts["hidden_size"], facts["top_k"])
    assert model.dense_blocks == facts["first_dense_layers"]
    assert model.dense_hidden == facts.get("dense_ffn_intermediate", 0)
    assert model.shared_hidden == facts.get("shared_expert_intermediate_total", 0)


def test_whole_deepseek_has_671_billion_parameters():
    # Everything counted, and the embedding and head (2 x 129280 x 7168) added by hand: 671.0e9 as published.
    model = models.DEEPSEEK_V3
    moe = model.gate_params + 256 * model.expert_params + model.shared_params
    total = 61 * model.attention_params + 58 * moe + 3 * model.dense_params + 2 * 129280 * 7168
    assert total / 1e9 == pytest.approx(671.025, abs=5e-3)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"top_k": 9}, r"top_k must be at most experts \(8\), got 9"),
        ({"blocks": 0}, "blocks must be a whole number"),
        ({"hidden": 1.5}, "hidden must be a whole number"),
        ({"dense_blocks": 32}, "blocks must exceed the 32 dense blocks"),
    ],
)
def test_impossible_dimensions_are_named(change, words):
    with pytest.raises(InputError, match=words):
        dataclasses.replace(models.MIXTRAL_8X7B, **change)
