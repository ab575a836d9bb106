"""What `config.json` of released models says, as far as it is read, and what their publishers say of their size.

Fields under the names of the released files, dimensions from reports and model cards, not copied from the files.
That published sizes come out is what checks them.
"""

from typing import Any, NamedTuple


def grouped(layers, hidden, heads, kv_heads, vocab, **more) -> dict[str, Any]:
    common = {"num_hidden_layers": layers, "hidden_size": hidden, "vocab_size": vocab, "tie_word_embeddings": False}
    return common | {"num_attention_heads": heads, "num_key_value_heads": kv_heads} | more


def latent(layers, hidden, heads, vocab, query_rank, **more) -> dict[str, Any]:
    ranks = {"q_lora_rank": query_rank, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64}
    return grouped(layers, hidden, heads, heads, vocab, **ranks, v_head_dim=128, **more)


class Published(NamedTuple):
    """Billions as published, the last digit as it is printed. `counted`: which matrices are counted where (total, then
    active): "e" embedding, "h" head, "m" blocks that predict further words."""

    config: dict[str, Any]
    total: str
    active: str
    counted: tuple[str, str]
    source: str


MIXTRAL = {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}
QWEN3 = {"model_type": "qwen3_moe", "num_experts": 128, "num_experts_per_tok": 8, "head_dim": 128}
QWEN3 |= {"decoder_sparse_step": 1, "mlp_only_layers": []}
V2 = {"model_type": "deepseek_v2", "num_experts_per_tok": 6, "n_shared_experts": 2, "first_k_dense_replace": 1}
V2 |= {"moe_layer_freq": 1}
V3 = {"num_experts_per_tok": 8, "n_shared_experts": 1, "moe_intermediate_size": 2048, "intermediate_size": 18432}
GLM = {"model_type": "glm4_moe", "num_experts_per_tok": 8, "n_shared_experts": 1, "head_dim": 128}
GLM |= {"num_nextn_predict_layers": 1, "n_group": 1, "topk_group": 1}
OSS = {"model_type": "gpt_oss", "num_experts_per_tok": 4, "intermediate_size": 2880, "sliding_window": 128}
OSS |= {"head_dim": 64}
LLAMA = {"intermediate_size": 8192, "intermediate_size_mlp": 16384, "num_experts_per_tok": 1, "head_dim": 128}
MINIMAX = {"model_type": "minimax_text_01", "num_local_experts": 32, "num_experts_per_tok": 2, "head_dim": 128}
MINIMAX |= {"intermediate_size": 9216, "shared_intermediate_size": 0, "attn_type_list": ([0] * 7 + [1]) * 10}
M2 = {"model_type": "minimax_m2", "num_local_experts": 256, "num_experts_per_tok": 8, "intermediate_size": 1536}
M2 |= {"head_dim": 128, "attn_type_list": [1] * 62}


def _oss(layers, experts):
    kinds = ["sliding_attention", "full_attention"] * (layers // 2)
    return grouped(layers, 2880, 64, 8, 201088, **OSS, num_local_experts=experts, layer_types=kinds)


def _v2(layers, hidden, heads, query_rank, experts, expert, dense):
    sizes = {"n_routed_experts": experts, "moe_intermediate_size": expert, "intermediate_size": dense}
    return latent(layers, hidden, heads, 102400, query_rank, **V2, **sizes)


def _v3(kind, heads, vocab, experts, dense, **more):
    which = {"model_type": kind, "n_routed_experts": experts, "first_k_dense_replace": dense}
    return latent(61, 7168, heads, vocab, 1536, **V3, **which, **more)


def _glm(layers, hidden, experts, expert, width, dense):
    sizes = {"n_routed_experts": experts, "moe_intermediate_size": expert, "intermediate_size": width}
    return grouped(layers, hidden, 96, 8, 151552, **GLM, **sizes, first_k_dense_replace=dense)


def _llama(experts, step):
    text = grouped(48, 5120, 40, 8, 202048, **LLAMA, num_local_experts=experts, interleave_moe_layer_step=step)
    return {"model_type": "llama4", "text_config": text | {"model_type": "llama4_text"}}


QWEN15 = {"model_type": "qwen2_moe", "num_experts": 60, "num_experts_per_tok": 4, "moe_intermediate_size": 1408}
QWEN15 |= {"shared_expert_intermediate_size": 5632, "intermediate_size": 5632, "decoder_sparse_step": 1}
QWEN2 = {"model_type": "qwen2_moe", "num_experts": 64, "num_experts_per_tok": 8, "moe_intermediate_size": 2560}
QWEN2 |= {"shared_expert_intermediate_size": 20480, "intermediate_size": 18944, "decoder_sparse_step": 1}
OLMOE = {"model_type": "olmoe", "num_experts": 64, "num_experts_per_tok": 8, "intermediate_size": 1024}
BOTH = ("eh", "eh")

RELEASED = {
    "Mixtral-8x7B": Published(
        grouped(32, 4096, 32, 8, 32000, **MIXTRAL, intermediate_size=14336),
        "46.7",
        "12.9",
        BOTH,
        "mistral.ai, Dec 2023",
    ),
    "Mixtral-8x22B": Published(
        grouped(56, 6144, 48, 8, 32768, **MIXTRAL, intermediate_size=16384), "141", "39", BOTH, "mistral.ai, Apr 2024"
    ),
    "Qwen1.5-MoE-A2.7B": Published(grouped(24, 2048, 16, 16, 151936, **QWEN15), "14.3", "2.7", BOTH, "model card"),
    "Qwen2-57B-A14B": Published(grouped(28, 3584, 28, 4, 151936, **QWEN2), "57", "14", BOTH, "arXiv 2407.10671"),
    "Qwen3-30B-A3B": Published(
        grouped(48, 2048, 32, 4, 151936, **QWEN3, moe_intermediate_size=768), "30.5", "3.3", BOTH, "model card"
    ),
    "Qwen3-235B-A22B": Published(
        grouped(94, 4096, 64, 4, 151936, **QWEN3, moe_intermediate_size=1536), "235", "22", BOTH, "model card"
    ),
    "DeepSeek-V2": Published(_v2(60, 5120, 128, 1536, 160, 1536, 12288), "236", "21", ("eh", "h"), "arXiv 2405.04434"),
    "DeepSeek-V2-Lite": Published(
        _v2(27, 2048, 16, None, 64, 1408, 10944), "15.7", "2.4", ("eh", "h"), "arXiv 2405.04434"
    ),
    "DeepSeek-V3": Published(
        _v3("deepseek_v3", 128, 129280, 256, 3, n_group=8, topk_group=4, num_nextn_predict_layers=1),
        *("671", "37", ("eh", "h"), "arXiv 2412.19437"),
    ),
    "Kimi-K2": Published(_v3("kimi_k2", 64, 163840, 384, 1), "1040", "32", ("eh", "h"), "arXiv 2507.20534"),
    "OLMoE-1B-7B": Published(grouped(16, 2048, 16, 16, 50304, **OLMOE), "6.9", "1.3", BOTH, "arXiv 2409.02060"),
    "gpt-oss-20b": Published(_oss(24, 32), "20.91", "3.61", ("eh", "h"), "arXiv 2508.10925"),
    "gpt-oss-120b": Published(_oss(36, 128), "116.83", "5.13", ("eh", "h"), "arXiv 2508.10925"),
    "GLM-4.5": Published(_glm(92, 5120, 160, 1536, 12288, 3), "355", "32", ("m", ""), "arXiv 2508.06471"),
    "GLM-4.5-Air": Published(_glm(46, 4096, 128, 1408, 10944, 1), "106", "12", ("", ""), "arXiv 2508.06471"),
    "Llama-4-Scout": Published(_llama(16, 1), "109", "17", BOTH, "model card (with a vision encoder)"),
    "Llama-4-Maverick": Published(_llama(128, 2), "400", "17", BOTH, "model card (with a vision encoder)"),
    "MiniMax-Text-01": Published(
        grouped(80, 6144, 64, 8, 200064, **MINIMAX), "456", "45.9", ("eh", ""), "arXiv 2501.08313"
    ),
    "MiniMax-M2": Published(grouped(62, 3072, 48, 8, 200064, **M2), "230", "10", ("eh", ""), "model card"),
}
