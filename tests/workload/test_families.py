"""Current families of language models, read from their `config.json`: parameters by hand and as published, kinds of
blocks, wrappers, what is not read, and files that are slightly wrong."""

import copy
import dataclasses
import json
import random
import warnings

import pytest

from mfabric_jax.checks import InputError
from mfabric_jax.support.unread import Unread
from mfabric_jax.workload.catalog import get_model
from mfabric_jax.workload.mixers import GatedDelta, GroupedQuery, Latent, Mamba1, Mamba2, Mixed
from mfabric_jax.workload.models import Architecture
from mfabric_jax.workload.public_models import public_model
from tests.workload.configs import RELEASED
from tests.workload.families import COUNTED_BEFORE, FAMILIES, NANO_PATTERN, Family


@pytest.fixture
def released(tmp_path):
    """The architecture of a released model, read from its file."""

    def read(config) -> Architecture:
        folder = tmp_path / "Some-Model"
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps(config))
        return get_model(str(folder)).architecture

    return read


def counted(model, matrices, **kind):
    """Billions of parameters with embedding (e) and head (h)."""
    return model.params(embedding="e" in matrices, head="h" in matrices, **kind) / 1e9


@pytest.mark.parametrize("name", FAMILIES)
def test_parameters_are_those_by_hand_and_the_published_ones(released, name):
    family: Family = FAMILIES[name]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = released(family.config)
    named = [str(warning.message).rpartition(": ")[2] for warning in caught]
    dense = name in ("Step-3.5-Flash", "Step-3.7-Flash", "ERNIE-4.5-300B-A47B")  # blocks that predict, without experts
    assert named == (["num_nextn_predict_layers."] if dense else [])
    assert model.params() == pytest.approx(family.total, rel=1e-12)
    assert model.params(active=True) == pytest.approx(family.active, rel=1e-12)
    sizes = counted(model, family.counted[0]), counted(model, family.counted[1], active=True)
    assert sizes == pytest.approx(family.published, rel=family.within)


def test_deepseek_v3_2_by_name_is_its_released_config(released):
    own = get_model("deepseek-v3.2").architecture
    assert dataclasses.replace(own, name="", source="") == dataclasses.replace(
        released(FAMILIES["DeepSeek-V3.2"].config), name="", source=""
    )
    assert public_model("deepseek-ai/DeepSeek-V3.2-Exp").architecture == own


@pytest.mark.parametrize("name", COUNTED_BEFORE)
@pytest.mark.filterwarnings("ignore::mfabric_jax.support.unread.Unread")
def test_parameters_are_those_that_others_counted(released, name):
    total, active, matrices = COUNTED_BEFORE[name]
    model = released(FAMILIES[name].config)
    assert model.params() / 1e9 == pytest.approx(total, rel=0.005)
    assert counted(model, matrices, active=True) == pytest.approx(active, rel=0.005)


@pytest.mark.filterwarnings("ignore::mfabric_jax.support.unread.Unread")
def test_kinds_of_blocks(released):
    def of(name):
        return released(FAMILIES[name].config)

    sparse = {"index_heads": 64, "index_dim": 128, "index_top_k": 2048}
    assert of("DeepSeek-V3.2").attention == Latent(128, 1536, 512, 128, 64, 128, **sparse)
    (chooses, full), (shares, shared) = of("GLM-5.2").attention.parts
    assert (full, shared, chooses.index_heads, shares.index_heads) == (21, 57, 32, 0)
    assert chooses.index_top_k == shares.index_top_k == 2048
    delta, gated = GatedDelta(16, 32, 128, 128, 4), GroupedQuery(16, 2, 256, gated=True)
    assert of("Qwen3-Next-80B-A3B").attention == Mixed(((delta, 36), (gated, 12)))
    full, window = GroupedQuery(64, 4, 192, value_dim=128), GroupedQuery(64, 8, 192, 128, 128)
    assert of("MiMo-V2-Flash").attention == Mixed(((full, 9), (window, 39)))
    assert of("Step-3.5-Flash").attention == Mixed(
        ((GroupedQuery(64, 8, 128), 12), (GroupedQuery(96, 8, 128, 512), 33))
    )
    assert of("Step-3").attention == GroupedQuery(64, 1, 256, query_rank=2048)
    chosen = GroupedQuery(64, 4, 128, index_heads=4, index_dim=128, index_top_k=16 * 128)
    assert of("MiniMax-M3").attention == Mixed(((GroupedQuery(64, 4, 128), 3), (chosen, 57)))
    nano = of("Nemotron-3-Nano")
    assert nano.attention == Mixed(((Mamba2(64, 64, 128, 8, 4), 23), (None, 23), (GroupedQuery(32, 2, 128), 6)))
    assert (nano.blocks, nano.matrices, nano.moe_blocks[:3], len(nano.bare_blocks)) == (52, 2, (1, 3, 6), 29)
    assert (of("Nemotron-3-Super").expert_width, of("Kimi-K3").expert_width) == (1024, 3584)
    longcat = of("LongCat-Flash")
    assert (longcat.blocks, longcat.zero_experts, longcat.top_k, longcat.moe_blocks) == (
        56,
        256,
        8,
        (*range(1, 56, 2),),
    )
    assert of("Jamba-1.5-Mini").attention == Mixed(((Mamba1(8192, 16, 256, 4), 28), (GroupedQuery(32, 8, 128), 4)))
    assert of("ERNIE-4.5-300B-A47B").dense_blocks == 3
    assert of("Qwen3.5-397B-A17B").next_tokens == of("MiniMax-M3").next_tokens == 1


def test_text_in_a_wrapper_is_read_and_the_other_parts_are_named(released):
    config = FAMILIES["Qwen3.5-397B-A17B"].config
    plain = released(config)
    with pytest.warns(Unread, match="are not read, .*: vision_config, sliding_pictures"):
        assert released(config | {"vision_config": {"depth": 27}, "sliding_pictures": 2}) == plain
    assert released(config | {"tie_word_embeddings": True}).tied  # the wrapper's holds
    assert released({"model_type": "my_pictures", "llm_config": config["text_config"]}).params() == plain.params()
    assert released(config["text_config"]).params() == plain.params()
    air = RELEASED["GLM-4.5-Air"].config
    seeing = {"model_type": "glm4v_moe", "text_config": air | {"model_type": "glm4v_moe_text"}}
    assert released(seeing).params() == released(air).params()
    bare = {key: value for key, value in FAMILIES["MiniMax-M3"].config["text_config"].items() if key != "model_type"}
    assert released(bare | {"model_type": "minimax_m3"}).params() == FAMILIES["MiniMax-M3"].total


def test_own_files_say_what_these_models_are(released, tmp_path):
    """What shared/cases/04 could say only nearly: Qwen3-Next 79.87 B for 79.67, Nemotron-3-Nano 103 B for 31.58."""
    qwen = """
    blocks = 48
    hidden = 2048
    experts = 512
    top_k = 10
    expert_hidden = 512
    shared_hidden = 512
    vocab = 151936
    [[attention]]
    kind = "gated-delta"
    blocks = 36
    key_heads = 16
    value_heads = 32
    key_dim = 128
    value_dim = 128
    [[attention]]
    blocks = 12
    heads = 16
    kv_heads = 2
    head_dim = 256
    gated = true
    """
    places = [place for place, letter in enumerate(NANO_PATTERN) if letter != "E"]
    nemotron = f"""
    blocks = 52
    hidden = 2688
    experts = 128
    top_k = 6
    expert_hidden = 1856
    shared_hidden = 3712
    matrices = 2
    bare_blocks = {places}
    vocab = 131072
    attention = [
        {{ kind = "state-space", heads = 64, head_dim = 64, state_dim = 128, groups = 8, blocks = 23 }},
        {{ kind = "none", blocks = 23 }},
        {{ heads = 32, kv_heads = 2, head_dim = 128, blocks = 6 }},
    ]
    """
    jamba = 'attention = [{ kind = "mamba-1", inner = 8192, state_dim = 16, rank = 256, blocks = 28 }, '
    jamba += "{ heads = 32, kv_heads = 8, head_dim = 128, blocks = 4 }]\nblocks = 32\nhidden = 4096\nexperts = 16\n"
    jamba += "top_k = 2\nexpert_hidden = 14336\ndense_hidden = 14336\nvocab = 65536\n"
    jamba += f"dense_blocks = {[*range(0, 32, 2)]}\n"
    for name, text in (("Qwen3-Next-80B-A3B", qwen), ("Nemotron-3-Nano", nemotron), ("Jamba-1.5-Mini", jamba)):
        (tmp_path / "own.toml").write_text(text)
        own, theirs = get_model(str(tmp_path / "own.toml")).architecture, released(FAMILIES[name].config)
        differ = {field for field in vars(own) if getattr(own, field) != getattr(theirs, field)}
        assert differ <= {"name", "source", "moe_blocks"}, differ
        assert own.params() == theirs.params()


# --------------------------------------------------------------------------------------------------- what is not read
def refused(released, config) -> str:
    with pytest.raises(InputError) as caught:
        released(config)
    return str(caught.value)


def test_an_unknown_layout_is_refused_with_what_the_nearest_one_would_lose(released):
    more = {"compress_ratios": [4, 128], "hc_mult": 4, "o_groups": 8, "twin_experts": 2}
    sentence = refused(released, FAMILIES["DeepSeek-V3.2"].config | more | {"model_type": "deepseek_v4"})
    assert sentence.startswith(
        "write the dimensions of the model in a FILE.toml (mfabric --help models), or model_type "
    )
    assert (
        "'deepseek_v32', which would lose compress_ratios, hc_mult, o_groups, twin_experts: model_type of" in sentence
    )
    assert "must be 'deepseek_v32', whose fields it has" in refused(
        released, FAMILIES["DeepSeek-V3.2"].config | {"model_type": "seek"}
    )
    dense = {"model_type": "phi", "num_hidden_layers": 2, "hidden_size": 8, "num_attention_heads": 2}
    assert "is unknown, 'phi', and its fields fit none; known are" in refused(released, dense)
    dense |= {"intermediate_size": 16, "vocab_size": 9}
    assert "must be 'llama', whose fields it has, got 'phi'; known are" in refused(released, dense)
    assert "its fields fit none" in refused(released, {"model_type": "new", "num_experts": 8})
    inside = {
        "model_type": "kimi_k25",
        "text_config": FAMILIES["Kimi-K2.5"].config["text_config"] | {"model_type": "k9"},
    }
    assert "model_type of text_config of" in refused(released, inside)


@pytest.mark.parametrize(
    ("name", "changed", "words"),
    [
        ("GLM-5", {"index_topk_freq": 4}, "must have the field indexer_types, since index_topk_freq is above 1"),
        ("GLM-5", {"index_n_heads": 0}, "index_n_heads of"),
        ("Qwen3-Next-80B-A3B", {"use_sliding_window": True, "sliding_window": 64}, "has sliding_window = 64"),
        ("LongCat-Flash", {"zero_expert_type": "constant"}, "must be identity, got 'constant'"),
        (
            "LongCat-Flash",
            {"ngram_vocab_size_ratio": 8},
            "has ngram_vocab_size_ratio = 8, which longcat_flash does not",
        ),
        ("MiMo-V2-Flash", {"hybrid_layer_pattern": None}, "must have the field hybrid_layer_pattern"),
        ("Nemotron-3-Nano", {"hybrid_override_pattern": "MEX"}, "must be a pattern of M, *, E, -, got 'MEX'"),
        ("Nemotron-3-Nano", {"hybrid_override_pattern": "ME"}, "must be of the 52 blocks, got 2"),
        ("Nemotron-3-Nano", {"hybrid_override_pattern": "M-" * 26}, "has no block with experts"),
        ("Nemotron-3-Nano", {"mlp_hidden_act": "silu"}, "must be relu2, got 'silu'"),
        ("Hunyuan-A13B", {"moe_topk": [8] * 31 + [4]}, "must be one number for all blocks, got 2 different ones"),
        ("Hunyuan-Large", {"cla_share_factor": 0}, "cla_share_factor of"),
        ("Grok-2", {"architectures": ["GitForCausalLM"]}, "must be ['Grok1ForCausalLM'] for the model_type git"),
        ("Step-3.5-Flash", {"moe_layers_enum": "3,x"}, "must be a list, got '3,x'"),
        ("Kimi-Linear-48B-A3B", {"linear_attn_config": {"num_heads": 32, "head_dim": 128}}, "each block from 1 to 27"),
        ("DBRX", {"ffn_config": 3}, "must be a table, got 3"),
        ("Grok-1", {"residual_moe": True}, "has residual_moe = True, which grok-1 does not have"),
    ],
    ids=lambda value: str(value)[:24],
)
def test_what_means_another_model_is_refused(released, name, changed, words):
    assert words in refused(released, FAMILIES[name].config | changed)


def test_an_indexer_with_values_and_a_model_without_experts_are_refused(released):
    text = copy.deepcopy(FAMILIES["MiniMax-M3"].config["text_config"])
    text["sparse_attention_config"]["sparse_disable_index_value"] = [0] * 60
    assert "must be 1 in every sparse block" in refused(released, {"model_type": "minimax_m3_vl", "text_config": text})
    dense = FAMILIES["Gemma-4-26B-A4B"].config["text_config"] | {"enable_moe_block": False}
    assert "models without experts are not read" in refused(released, dense)


def test_a_model_without_experts_has_one_that_takes_every_token(released):
    """Llama-3.1-70B: 80 blocks of 2 x 8192 x (64 + 8) x 128 and 3 x 8192 x 28672, embedding and head (70.6 B as
    published)."""
    sizes = {"num_hidden_layers": 80, "hidden_size": 8192, "intermediate_size": 28672, "vocab_size": 128256}
    heads = {"num_attention_heads": 64, "num_key_value_heads": 8, "tie_word_embeddings": False}
    model = released({"model_type": "llama"} | sizes | heads)
    by_hand = 80 * (2 * 8192 * (64 + 8) * 128 + 3 * 8192 * 28672) + 2 * 128256 * 8192
    assert model.params() == model.params(active=True) == by_hand
    assert (model.experts, model.choices, model.gate_params) == (1, 0, 0)


WRONG = (None, "x", "", -1, 0, 1, 7, 1.5, True, False, [], [1], {}, {"a": 1}, 2**40, ["full_attention"], "2,3")


def mutate(config, chance):
    """A copy of a config with one field left out, of another kind, or under another name, and an unknown field."""
    config = copy.deepcopy(config)
    tables = [config, *(value for value in config.values() if isinstance(value, dict))]
    tables += [value for table in tables[1:] for value in table.values() if isinstance(value, dict)]
    table = chance.choice(tables)
    field, what = chance.choice(sorted(table)), chance.choice(("leave out", "retype", "rename"))
    value = table.pop(field)
    if what == "retype":
        table[field] = chance.choice(WRONG)
    elif what == "rename":
        table[f"my_{field}"] = value
    tables[min(len(tables) - 1, 1) if "text_config" in config else 0]["twin_experts"] = 3
    return config


@pytest.mark.parametrize("seed", range(4))
def test_slightly_wrong_files_end_in_one_sentence_or_a_valid_read(released, seed):
    chance, read = random.Random(seed), 0
    for _ in range(75):
        config = mutate(FAMILIES[chance.choice(sorted(FAMILIES))].config, chance)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                model = released(config)
            except InputError as mistake:
                sentence = str(mistake)
                assert sentence.endswith("."), sentence
                assert "\n" not in sentence, sentence
                assert "Some-Model" in sentence, sentence
                continue
        read += 1
        assert model.params() >= model.params(active=True) > 0
        assert any("twin_experts" in str(warning.message) for warning in caught), config
    assert 10 < read < 70
