"""Parameters of models, operations and seconds of a block: by hand and against published sizes."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from mfabric_jax import Case, resolve
from mfabric_jax.case.paths import settings
from mfabric_jax.support.unread import Unread
from mfabric_jax.workload import (
    NAMES,
    Architecture,
    GroupedQuery,
    Latent,
    Workload,
    block_seconds,
    fullest_stage,
    get,
    get_gpu,
    models,
)
from mfabric_jax.workload.catalog import get_model, public_files
from mfabric_jax.workload.compute import block_flops, iteration_flops
from mfabric_jax.workload.mixers import Linear, Mixed
from mfabric_jax.workload.models import DEEPSEEK_V3, MIXTRAL_8X7B
from tests.mistakes import check_refused
from tests.workload.configs import RELEASED, Published


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
    assert models.DEEPSEEK_V3.attention.score_flops(2) == 2 * 1 * 128 * (192 + 128)


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
    tiny = models.Architecture("tiny", 3, 4, GroupedQuery(1, 1, 2), 2, 1, expert_hidden=3, **rest)
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
    direct = Latent(heads=2, query_rank=0, kv_rank=5, nope_dim=4, rope_dim=2, value_dim=3)
    assert direct.params(8) == 96 + 56 + 70 + 48
    # 4 queries: 1, 2, 2, 2 keys in a window of 2, less half of each one's own square, as the whole triangle counts.
    windowed, whole = GroupedQuery(2, 1, 3, window=2), GroupedQuery(2, 1, 3)
    assert whole.score_flops(4) == 2 * 2 * 12
    assert windowed.score_flops(4) == 2 * 1.5 * 12
    assert windowed.score_flops(2) == whole.score_flops(2)
    linear = Linear(2, 3)
    assert linear.params(8) == 5 * 8 * 6
    assert linear.score_flops(10**6) == 4 * 2 * 9
    mixed = Mixed(((whole, 1), (linear, 3)))
    assert mixed.params(8) == (whole.params(8) + 3 * linear.params(8)) / 4


# ------------------------------------------------------------------------------------------------------------- compute
def test_flops_of_a_tiny_block_counted_product_by_product():
    # Two tokens of width 4, one head of width 4; expert of width 3, top 1 of 2; shared expert of width 5.
    attention, more = GroupedQuery(1, 1, 4), {"shared_hidden": 5, "dense_blocks": 1, "dense_hidden": 7}
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


def test_deepseek_v3_has_671_billion_parameters_and_685_with_what_predicts_a_further_token():
    """Its page says 671 B, and 14 B of the MTP module with embedding and head of its own: 685 B. NVIDIA's count of
    FLOPs (6 a parameter, causal scores) is 250.4 G a token, and 260.6 with MTP."""
    model = DEEPSEEK_V3
    assert round(model.params() / 1e9, 2) == 671.03
    assert round(model.params(active=True) / 1e9, 2) == 37.55
    module = model.prediction_params + 2 * model.head_params
    assert module == 7168 * (1536 + 576 + 16384) + 1536 * 24576 + 512 * 32768 + 257 * 3 * 7168 * 2048 + 7168 * (
        256 + 2 * 7168 + 2 * 129280
    )
    assert (round((model.params() + module) / 1e9, 1), round(module / 1e9, 1)) == (684.5, 13.5)
    more = dataclasses.replace(model, blocks=62)
    for facts, predicted, published in ((model, 0, 250.4), (more, 1, 260.6)):
        job = Workload.of("m", facts, 1, 1, 1, 64, 64, micro_batches=1, head="counted", predicted=predicted)
        assert iteration_flops(job) / job.iteration_tokens / 1e9 == pytest.approx(published, rel=0.002)
    plain = dataclasses.replace(job, head="left-out")
    joined = iteration_flops(plain) - iteration_flops(dataclasses.replace(plain, predicted=0))
    assert joined / job.iteration_tokens == pytest.approx(6 * 2 * 7168**2, rel=1e-6)
    assert block_seconds(plain, get_gpu()).head_s == pytest.approx(joined / 3 / 64 / (312e12 * 0.5), rel=1e-6)


def test_seconds_are_flops_over_the_achieved_rate():
    for name in NAMES:
        workload = get(name)
        seconds = block_seconds(workload, get_gpu("A100-80GB-SXM"), efficiency=0.4)[:4]
        np.testing.assert_allclose(seconds, np.divide(block_flops(workload), workload.tp * 312e12 * 0.4), rtol=1e-12)
    # 32768 tokens x 2 experts x 6 x 4096 x 14336 FLOPs over 4 GPUs at 156 TFLOP/s: 37 ms, gate included.
    assert block_seconds(get("mixtral-8x7b"), get_gpu()).moe_s == pytest.approx(0.0370, abs=1e-4)
    traced = jax.jit(lambda efficiency: block_seconds(workload, get_gpu(), efficiency).moe_s)
    assert traced(2.0) == pytest.approx(block_seconds(workload, get_gpu(), 2.0).moe_s)


# Kimi-K2's 1.04e12 would be with one MoE block more than it has; Llama-4-Scout's 109e9 are with a vision encoder.
COUNTED_DIFFERENTLY = {"Kimi-K2": 1026.4, "Llama-4-Scout": 107.8}


@pytest.fixture
def released(tmp_path):
    """The architecture of a released model, read from its file."""

    def read(config):
        folder = tmp_path / "Some-Model"
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps(config))
        return get_model(str(folder)).architecture

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


PLAIN = {"architectures": ["X"], "bos_token_id": 0, "eos_token_id": [1, 2], "hidden_act": "silu", "rope_theta": 1e4}
PLAIN |= {"rope_scaling": {"factor": 4}, "rms_norm_eps": 1e-6, "attention_bias": False, "torch_dtype": "bfloat16"}
PLAIN |= {"attention_dropout": 0.1, "initializer_range": 0.02, "max_position_embeddings": 4096, "use_cache": True}
PLAIN |= {"router_aux_loss_coef": 0.001, "norm_topk_prob": True, "sliding_window": None, "index_topk": None}
OWN_FIELDS = {
    "deepseek_v3": {"topk_method": "noaux_tc", "scoring_func": "sigmoid", "routed_scaling_factor": 2.5, "ep_size": 1},
    "qwen2_moe": {"use_sliding_window": False, "sliding_window": 32768, "max_window_layers": 21},
    "gpt_oss": {"experts_per_token": 4, "swiglu_limit": 7.0},
    "glm4_moe": {"use_qk_norm": True, "partial_rotary_factor": 0.5},
    "minimax_text_01": {"block_size": 256, "layernorm_linear_attention_alpha": 3.5},
}


@pytest.mark.parametrize("name", RELEASED)
def test_fields_that_change_no_number_are_passed_over(released, name):
    config = RELEASED[name].config
    more = PLAIN | OWN_FIELDS.get(config["model_type"], {}) | {"mlp_window": [], "layer_types": None}
    assert released(more | config) == released(config)


def test_layers_that_all_have_full_attention_are_those_of_the_layout(released):
    config = RELEASED["Qwen3-30B-A3B"].config
    assert released(config | {"layer_types": ["full_attention"] * 48}) == released(config)


def test_other_fields_are_named(released):
    config = RELEASED["DeepSeek-V3"].config | {"quantization_config": {"quant_method": "fp8"}, "twin_experts": 2}
    with pytest.warns(Unread, match="fields are not read, .*: quantization_config, twin_experts"):
        released(config)


def test_a_window_and_groups_are_read_as_they_count(released):
    assert released(RELEASED["Mixtral-8x7B"].config | {"sliding_window": 2048}).attention.window == 2048
    assert released(RELEASED["Mixtral-8x7B"].config | {"sliding_window": None}).attention.window == 0
    assert released(RELEASED["DeepSeek-V3"].config | {"topk_method": "greedy"}).top_groups == 1  # without groups
    assert released(RELEASED["MiniMax-M2"].config | {"use_mtp": True, "num_mtp_modules": 3}).next_tokens == 3


def test_a_model_is_called_after_its_folder(tmp_path):
    text = json.dumps(RELEASED["OLMoE-1B-7B"].config)
    download = tmp_path / "models--allenai--OLMoE-1B-7B-0924" / "snapshots" / ("0123456789" * 4)
    for folder, name in ((tmp_path / "Mine", "Mine"), (download, "OLMoE-1B-7B-0924")):
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(text)
        assert get_model(str(folder / "config.json")).label == get_model(str(folder)).label == name


MINE = """
blocks = 48
hidden = 5120
attention = { heads = 40, kv_heads = 8, head_dim = 128 }
experts = 64
top_k = 6
expert_hidden = 1536
vocab = 128000
"""
DEGREES = "ep = 16\ntp = 1\npp = 4\ndp = 4\n"


@pytest.fixture
def own(tmp_path):
    """The path of a file with this text."""

    def written(text, name="mine.toml"):
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    return written


def job_of(path, **stated):
    """The job of a plain case of a model."""
    return resolve(Case().with_({"model.name": path} | {f"job.parallel.{k}": value for k, value in stated.items()})).job


def test_every_field_of_a_file(own):
    more = 'name = "of-mine"\nsource = "me"\nshared_hidden = 512\ntied = true\n'
    more += "dense_blocks = [0, 2]\ndense_hidden = 8192\n"
    job = job_of(own(MINE + DEGREES + more + 'precision = "fp8"\nrecompute = "block"\ngrad_bytes = 4\n'))
    attention = GroupedQuery(40, 8, 128)
    assert job.architecture == Architecture(
        *("of-mine", 48, 5120, attention, 64, 6, 1536, "me", 512, (0, 2), 8192, 128000, True)
    )
    assert (job.model, job.dp, job.tp, job.pp, job.ep, job.gpus) == ("of-mine", 4, 1, 4, 16, 256)
    assert (job.dispatch_bytes, job.combine_bytes, job.grad_bytes) == (1 + 4 / 128, 2, 4)
    assert (job.recompute, job.micro_batch, job.micro_batches) == ("block", 1, 4096 // (16 * 4))
    assert job.known_as == ""


def test_other_kinds_of_attention(own):
    latent = "{ heads = 8, query_rank = 0, kv_rank = 64, nope_dim = 32, rope_dim = 16, value_dim = 32 }"
    linear = '{ kind = "linear", heads = 40, head_dim = 128, blocks = 42 }'
    several = f"[{linear}, {{ heads = 40, kv_heads = 8, head_dim = 128, blocks = 6 }}]"
    known = "{ heads = 40, kv_heads = 8, head_dim = 128 }"
    assert get_model(own(MINE.replace(known, latent) + DEGREES)).architecture.attention == Latent(8, 0, 64, 32, 16, 32)
    mixed = Mixed(((Linear(40, 128), 42), (GroupedQuery(40, 8, 128), 6)))
    assert get_model(own(MINE.replace(known, several) + DEGREES, "b.toml")).architecture.attention == mixed


def test_degrees_follow_from_one_another():
    assert get("qwen-moe", ep=16).gpus == 8 * 1 * 4 * 16
    assert get("qwen-moe", gpus=2048).dp == 16


def test_a_model_without_degrees_gets_some_that_fit(own):
    for experts, blocks, gpus in ((64, 48, None), (60, 94, None), (128, 94, 512), (384, 61, 2048), (160, 92, 1024)):
        text = MINE.replace("experts = 64", f"experts = {experts}").replace("blocks = 48", f"blocks = {blocks}")
        job = job_of(own(text, f"e{experts}.toml"), **({} if gpus is None else {"gpus": gpus}))
        assert gpus in (None, job.gpus)
        assert job.ep >= 8 or experts == 60  # that no group of whole servers divides on 1,024 GPUs
        assert fullest_stage(job)[1].total <= 0.92 * 80e9
        assert job.dp * job.ep * job.micro_batches == pytest.approx(4096, rel=0.1)  # sequences of an iteration
    assert job_of(own(MINE), tp=2, pp=4).tp == 2


def test_published_models_are_named_like_those_of_the_paper():
    qwen = get_model("qwen3-235b").architecture
    assert (qwen.blocks, qwen.experts, qwen.top_k) == (94, 128, 8)
    check_refused("qwen3-234b", get_model, "qwen3-234b")
    listed = settings()["model.name"].doc
    assert [name for name in (*NAMES, *public_files()) if name not in listed] == []
