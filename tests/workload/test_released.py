"""`config.json` of released models: what is read from each layout, and the published sizes that follow from it."""

import json
import pathlib
import re

import pytest

import mfabric_jax
from mfabric_jax.checks import InputError
from mfabric_jax.workload import Latent, get
from mfabric_jax.workload.attention import GroupedQuery, Linear
from mfabric_jax.workload.models import DEEPSEEK_V3, MIXTRAL_8X7B
from tests.mistakes import refused
from tests.workload.configs import RELEASED, Published

# Kimi-K2's 1.04e12 would be with one MoE block more than it has; Llama-4-Scout's 109e9 are with a vision encoder.
COUNTED_DIFFERENTLY = {"Kimi-K2": 1026.4, "Llama-4-Scout": 107.8}


@pytest.fixture
def released(tmp_path):
    """The architecture of a released model, read from its file."""

    def read(config):
        folder = tmp_path / "Some-Model"
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps(config))
        return get(folder).architecture

    return read


def counted(model, matrices, **kind):
    """Billions of parameters with the matrices that a publisher counts."""
    some = model.params(embedding="e" in matrices, head="h" in matrices, **kind)
    return (some + ("m" in matrices) * model.prediction_params) / 1e9


def last_digit(text):
    return 10.0 ** -len(text.partition(".")[2])


@pytest.mark.parametrize("name", RELEASED)
def test_published_sizes(released, name):
    published: Published = RELEASED[name]
    model = released(published.config)
    total, whole = counted(model, published.counted[0]), float(published.total)
    if name in COUNTED_DIFFERENTLY:
        assert total == pytest.approx(COUNTED_DIFFERENTLY[name], abs=0.05)
    else:
        assert abs(total - whole) <= max(0.01 * whole, last_digit(published.total) / 2)
    # Some publishers cut the last digit off.
    active = counted(model, published.counted[1], active=True)
    assert abs(active - float(published.active)) < last_digit(published.active)


def test_a_release_is_what_the_catalogue_says(released):
    deepseek, mixtral = (released(RELEASED[name].config) for name in ("DeepSeek-V3", "Mixtral-8x7B"))
    for model, ours in ((deepseek, DEEPSEEK_V3), (mixtral, MIXTRAL_8X7B)):
        differ = {field for field in vars(ours) if getattr(model, field) != getattr(ours, field)}
        assert differ - {"moe_blocks"} == {"name", "source"}


def test_which_blocks_have_experts(released):
    assert released(RELEASED["Llama-4-Maverick"].config).moe_blocks == tuple(range(1, 48, 2))
    assert released(RELEASED["GLM-4.5"].config).dense_blocks == 3
    qwen = RELEASED["Qwen3-30B-A3B"].config | {"num_hidden_layers": 8, "intermediate_size": 6144}
    model = released(qwen | {"decoder_sparse_step": 2, "mlp_only_layers": [3]})
    assert (model.moe_blocks, model.dense_hidden) == ((1, 5, 7), 6144)
    named = RELEASED["Llama-4-Maverick"].config["text_config"] | {"moe_layers": [0, 2]}
    assert released(named).moe_blocks == (0, 2)


def test_kinds_of_attention(released):
    lightning = released(RELEASED["MiniMax-Text-01"].config).attention
    assert lightning.parts == ((Linear(64, 128), 70), (GroupedQuery(64, 8, 128), 10))
    windows = released(RELEASED["gpt-oss-20b"].config).attention
    assert windows.parts == ((GroupedQuery(64, 8, 64, 128), 12), (GroupedQuery(64, 8, 64), 12))
    assert released(RELEASED["MiniMax-M2"].config).attention == GroupedQuery(48, 8, 128)
    lite = released(RELEASED["DeepSeek-V2-Lite"].config)
    assert lite.attention == Latent(16, 0, 512, 128, 64, 128)
    by_width = RELEASED["OLMoE-1B-7B"].config  # no head_dim: hidden over heads
    assert released(by_width).attention == GroupedQuery(16, 16, 128)


def test_what_a_file_lacks_is_named(released):
    config = RELEASED["Qwen3-30B-A3B"].config
    for change, words in (
        ({"num_experts": None}, r"config\.json' must have the field num_experts\.$"),
        ({"num_experts": "128"}, r"num_experts of .*config\.json' must be a whole number of at least 1, got '128'"),
        ({"num_experts_per_tok": 200}, r"top_k must be at most experts \(128\), got 200"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings of .* must be true or false, got 1"),
        ({"mlp_only_layers": [48]}, r"mlp_only_layers of .* must be places from 0 to 47, got \[48\]"),
        ({"num_key_value_heads": 3}, "kv_heads must divide the 32 heads, got 3"),
        ({"model_type": "llama"}, "model_type of .* 'llama' is unknown .*allowed: mixtral, qwen2_moe, .*minimax_m2"),
        ({"model_type": 3}, "model_type of .* must be text, got 3"),
    ):
        with pytest.raises(InputError) as caught:
            released(config | change)
        assert re.search(words, str(caught.value)), caught.value
    lightning = RELEASED["MiniMax-Text-01"].config | {"attn_type_list": [0, 1]}
    with pytest.raises(InputError, match=r"attn_type_list of .* must be 80 of 0, 1, got 2\."):
        released(lightning)
    with pytest.raises(InputError, match=r"text_config of .* must have the field num_local_experts"):
        released({"model_type": "llama4", "text_config": {"num_hidden_layers": 2, "hidden_size": 8, **ONE_HEAD}})


ONE_HEAD = {"num_attention_heads": 1, "intermediate_size": 4}


def test_a_model_is_called_after_its_folder(tmp_path):
    text = json.dumps(RELEASED["OLMoE-1B-7B"].config)
    download = tmp_path / "models--allenai--OLMoE-1B-7B-0924" / "snapshots" / ("0123456789" * 4)
    for folder, name in ((tmp_path / "Mine", "Mine"), (download, "OLMoE-1B-7B-0924")):
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(text)
        assert get(folder / "config.json").model == get(folder).model == name
    (tmp_path / "other.json").write_text(text)
    assert get(str(tmp_path / "other.json") + ":ep=8:dp=4").model == "other:ep=8:dp=4"
    assert "must hold facts of a model" in refused(get, _written(tmp_path / "list.json", "[1]"))


def _written(path, text):
    path.write_text(text)
    return path


def test_the_table_of_the_page_is_what_comes_out(released):
    page = (pathlib.Path(mfabric_jax.__file__).parents[1] / "docs" / "models.md").read_text(encoding="utf-8")
    for name, published in RELEASED.items():
        model = released(published.config)
        sizes = [counted(model, of) for of in ("eh", "")]
        sizes += [counted(model, of, active=True) for of in ("eh", "h", "")]
        row = " | ".join([name, *(f"{size:.2f}" for size in sizes), f"{published.total} / {published.active}"])
        assert f"| {row} |" in page
