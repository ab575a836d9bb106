"""What is told of models, jobs and GPUs that cannot be."""

import json
import pathlib
import tempfile

from mfabric_jax import Case, resolve
from mfabric_jax.workload import GroupedQuery, block_seconds, get, get_gpu, micro_batches_for
from mfabric_jax.workload.catalog import get_model
from tests.workload.configs import RELEASED
from tests.workload.test_gpus import OWN
from tests.workload.test_models import DEGREES, MINE


def written(read, text, name):
    """What is read of a file with this text."""
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / name
        file.write_text(text)
        return read(str(file))


def own(text):
    """The job of a model of one's own."""
    return lambda: written(lambda path: resolve(Case().with_({"model.name": path})).job, text, "mine.toml")


def released(name, **changed):
    """A model from its `config.json` with some fields changed."""
    return lambda: written(get_model, json.dumps(RELEASED[name].config | changed), "config.json")


def gpu(text):
    """A GPU of a file."""
    return lambda: written(get_gpu, text, "own.toml")


def mixtral(**settings):
    """Mixtral 8x7B with these settings."""
    return lambda: get("mixtral-8x7b", **settings)


ONE_HEAD = {"num_hidden_layers": 2, "hidden_size": 8, "num_attention_heads": 1, "intermediate_size": 4}
REFUSED = [
    # dimensions and files of models
    (lambda: GroupedQuery(3, 2, 4), "attention.kv_heads must divide the 3 heads, got 2."),
    (mixtral(top_k=9), "mixtral-8x7b: top_k must be at most experts (8), got 9."),
    (mixtral(dense_blocks=32), "blocks must exceed the 32 dense blocks"),
    (
        own(MINE.replace("top_k = 6", "topk = 6")),
        "mine.toml': field of a model 'topk' is unknown (did you mean 'top_k'",
    ),
    (own(MINE.replace("top_k = 6\n", "")), "mine.toml': a model needs top_k."),
    (own(MINE.replace("kv_heads = 8, ", "")), "grouped-query attention needs kv_heads"),
    (own(MINE.replace("kv_heads = 8", "kv_head = 8")), "field of grouped-query attention 'kv_head' is unknown"),
    (
        own(MINE.replace("{ heads = 40, kv_heads = 8, head_dim = 128 }", "8")),
        "attention must be a table such as",
        "got 8",
    ),
    (
        own(MINE.replace("{ heads = 40", "[{ heads = 40").replace("128 }", "128 }]")),
        "must state its number of blocks",
    ),
    (
        own(MINE + "dense_blocks = [99]\ndense_hidden = 8"),
        "dense_blocks must be different places from 0 to 47, got [99]",
    ),
    (own(MINE + 'name = "a:b"'), "name of", "must be text without : and , in it, got 'a:b'"),
    (
        own(MINE + "gpus = 250"),
        "no set-up has gpus 250: gpus must fill whole servers of 8; gpus 248 or 256 would do.",
    ),
    (own(MINE + "ep = [1]"), "ep must be one number or word, got [1]"),
    (own(MINE + DEGREES + "gpus = 512"), "job.parallel.gpus 512 and dp 4 do not agree"),
    (own(MINE + DEGREES.replace("ep = 16", "ep = 48")), "job.parallel.ep must divide the 64 experts, got 48"),
    (lambda: written(get_model, "[1]", "list.json"), "must hold facts of a model by name, got [1]"),
    (released("Qwen3-30B-A3B", num_experts=None), "config.json' must have the field num_experts."),
    (released("Qwen3-30B-A3B", tie_word_embeddings=1), "tie_word_embeddings of", "must be true or false, got 1"),
    (released("Qwen3-30B-A3B", mlp_only_layers=[48]), "mlp_only_layers of", "must be places from 0 to 47, got [48]"),
    (
        released("Qwen3-30B-A3B", model_type="phi"),
        "model_type of",
        "must be 'qwen2_moe', whose fields it has, got 'phi'; ",
        "known are llama, mistral",
    ),
    # a model that is renamed to one that looks alike
    (
        released("DeepSeek-V3", index_topk=1024, index_n_heads=32, hc_mult=4, o_groups=8, model_type="deepseek_v4"),
        "write the dimensions of the model in a FILE.toml (mfabric --help models), or model_type 'deepseek_v2', which ",
        "would lose index_topk, index_n_heads, hc_mult, o_groups: model_type of",
        "is unknown, 'deepseek_v4'; known are llama",
    ),
    (
        released("DeepSeek-V3", index_topk=1024, index_n_heads=32, index_head_dim=64),
        "has index_topk = 1024, index_n_heads = 32, index_head_dim = 64, which deepseek_v3 does not have",
        "the numbers would be those of another model",
    ),
    (released("Qwen3-30B-A3B", full_attention_interval=4), "has full_attention_interval = 4, which qwen3_moe does not"),
    (released("Qwen3-30B-A3B", linear_num_key_heads=8), "has linear_num_key_heads = 8"),
    (released("Qwen3-30B-A3B", use_sliding_window=True, sliding_window=4096), "has sliding_window = 4096"),
    (released("GLM-4.5", kv_lora_rank=512, qk_rope_head_dim=64), "has kv_lora_rank = 512, qk_rope_head_dim = 64"),
    (released("GLM-4.5", layer_types=["linear_attention"] * 92), "has layer_types = "),
    (released("Kimi-K2", zero_expert_num=64, zero_expert_type="identity"), "has zero_expert_num = 64"),
    (released("Kimi-K2", hybrid_override_pattern="ME*"), "has hybrid_override_pattern = 'ME*'"),
    (released("OLMoE-1B-7B", hidden_act="relu2"), "has hidden_act = 'relu2'"),
    (released("DeepSeek-V3", topk_method="hashed"), "topk_method of", "must be noaux_tc or group_limited_greedy or"),
    (
        released("Llama-4-Scout", text_config=RELEASED["Llama-4-Scout"].config["text_config"] | {"index_topk": 8}),
        "has text_config.index_topk = 8, which llama4 does not have",
    ),
    (released("MiniMax-Text-01", attn_type_list=[0, 1]), "attn_type_list of", "must be 80 of 0, 1, got 2."),
    (released("Llama-4-Scout", text_config=ONE_HEAD), "text_config of", "must have the field num_local_experts."),
    # jobs
    (lambda: get("qwen-moe", ep="x"), "qwen-moe: ep must be a whole number of at least 1, got 'x'."),
    (mixtral(ep=4, dp=8, gpus=1024), "must equal gpus, got 8 x 4 x 4 x 4 = 512 but gpus = 1024; gpus (--gpus) of 512"),
    (mixtral(tp=3, gpus=768), "tp must divide gpus_per_server (8), got 3"),
    (mixtral(gpus=1000), "gpus must be a multiple of tp x ep x pp = 128, got 1000"),
    (mixtral(ep=3, gpus=384), "EP group of tp x ep = 4 x 3 = 12 GPUs does not fit whole servers of 8"),
    (
        mixtral(dp=1, tp=1, pp=4, ep=4, gpus=16),  # two servers, but two stages on each
        "a pipeline stage of dp x tp x ep = 1 x 1 x 4 = 4 GPUs must fill whole servers of 8 (gpus_per_server)",
    ),
    (mixtral(ep=16, gpus=2048), "ep must divide the 8 experts, got 16"),
    (mixtral(pp=64, gpus=16384), "pp must be at most the 32 blocks, got 64"),
    (mixtral(schedule="interleaved", chunks=9), "pp x chunks = 4 x 9 must be at most the 32 blocks, got 36"),
    (
        mixtral(sequence=2**26, micro_batch=64),
        "micro_batch x sequence x top_k must be at most 2,147,483,647 selections",
    ),
    (mixtral(cp=3), "cp must divide ep (8) and the 4096 tokens of a sequence, got 3"),
    (mixtral(redundant_experts=3), "redundant_experts must be a multiple of the 8 ranks (ep), got 3."),
    (mixtral(vocab=0, head="counted"), "head 'counted' needs the vocab of mixtral-8x7b, which is not known"),
    (mixtral(chunks=2), "chunks must be 1 under schedule '1f1b', got 2"),
    (mixtral(chunks=3, schedule="zb-v"), "chunks must be 2 under schedule 'zb-v', got 3"),
    (
        mixtral(schedule="dualpipe", micro_batches=6),
        "micro_batches must be even and at least 2 x pp = 8 under schedule",
    ),
    (
        mixtral(schedule="interleaved", chunks=2, micro_batches=6),
        "micro_batches must be a multiple of the 4 stages (pp) under schedule 'interleaved', got 6.",
    ),
    (mixtral(schedule="zb-h1", overlap_passes=True), "overlap_passes needs schedule 1f1b, interleaved, dualpipe, got"),
    (
        mixtral(overlap_passes=True, recompute="block"),
        "overlap_passes needs recompute without moe and block, got",
    ),
    (mixtral(schedule="zb-h1", sharding="parameters"), "sharding must be none or optimizer with schedule 'zb-h1', got"),
    (lambda: get("llama-moe").stage_layers(4), "stage must be from 0 to 3, got 4"),
    (lambda: micro_batches_for(1.5, 4), "bubble must be a fraction between 0 and 1, got 1.5"),
    # GPUs
    (gpu("bf16_tflop = 1"), "field of a GPU 'bf16_tflop' is unknown (did you mean 'bf16_tflops'?)"),
    (gpu("watts = 700"), "a GPU needs bf16_tflops and nvlink_gigabytes_per_s, or like"),
    (gpu(OWN.replace("nics = 2", "nics = 2.5")), "own.toml': nics must be a whole number"),
    (gpu('like = "H100"'), "like 'H100' is unknown (did you mean 'H100-SXM'?)"),
    (lambda: get_gpu("H100"), "gpu 'H100' is unknown (did you mean 'H100-SXM'?)", "MI355X, FILE.toml or FILE.json."),
    (lambda: block_seconds(get("qwen-moe"), get_gpu(), precision="fp8"), "has no known peak on the GPU A100"),
]
