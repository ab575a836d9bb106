"""Layouts of released `config.json` files: what their fields say of a model.

Fields of a release are those of huggingface/transformers or, for MiniMax, Kimi, MiMo, Step and LongCat, of the code
beside their weights.
"""

import dataclasses
import math
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from mfabric_jax.checks import InputError
from mfabric_jax.workload.mixers import Attention, GatedDelta, GroupedQuery, Latent, Linear, Mamba1, Mamba2, Mixed
from mfabric_jax.workload.released_config import Config

Facts = dict[str, Any]
SLIDING, FULL, LINEAR = "sliding_attention", "full_attention", "linear_attention"


# --------------------------------------------------------------------------------------------------------------- parts
def _dimensions(config: Config, tied: bool = False) -> Facts:
    return {"blocks": config.whole("num_hidden_layers", at_least=1)} | _widths(config, tied)


def _widths(config: Config, tied: bool = False) -> Facts:
    """Width of a token, vocabulary, and whether embedding and head are one matrix (`tied` if no table says it)."""
    return {
        "hidden": config.whole("hidden_size", at_least=1),
        "vocab": config.whole("vocab_size"),
        "tied": config.flag("tie_word_embeddings", tied if config.tied is None else config.tied),
    }


def _common(config: Config, experts: str, expert_hidden: str, attention: Attention, tied: bool = False, **more: Any):
    parts = {
        "attention": attention,
        "experts": config.same(experts, at_least=1),
        "top_k": config.same("num_experts_per_tok", at_least=1),
        "expert_hidden": config.same(expert_hidden, at_least=1),
    }
    return parts | _dimensions(config, tied) | more


def _grouped_query(config: Config, window: int = 0, **more: Any) -> GroupedQuery:
    heads = config.whole("num_attention_heads", at_least=1)
    width = config.whole("head_dim", config.whole("hidden_size", at_least=1) // heads, at_least=1)
    return GroupedQuery(heads, config.whole("num_key_value_heads", heads, at_least=1), width, window, **more)


def _pass_over_unused_window(config: Config) -> None:
    if not config.flag("use_sliding_window"):
        config.no_number("sliding_window", "max_window_layers")


def _latent(config: Config, **more: Any) -> Latent:
    config.no_number("num_key_value_heads", "head_dim", "qk_head_dim")
    return Latent(
        heads=config.whole("num_attention_heads", at_least=1),
        query_rank=config.whole("q_lora_rank", 0),
        kv_rank=config.whole("kv_lora_rank", at_least=1),
        nope_dim=config.whole("qk_nope_head_dim", at_least=1),
        rope_dim=config.whole("qk_rope_head_dim", at_least=1),
        value_dim=config.whole("v_head_dim", at_least=1),
        **more,
    )


def _dense(config: Config, has_experts: Callable[[int], bool], hidden: str) -> Facts:
    """The dense blocks (only their number if they come first), and the width of their FFN, which the field `hidden`
    holds."""
    dense = tuple(block for block in range(config.whole("num_hidden_layers", at_least=1)) if not has_experts(block))
    first = dense == tuple(range(len(dense)))
    return {
        "dense_blocks": len(dense) if first else dense,
        "dense_hidden": config.whole(hidden, at_least=1) if dense else 0,
    }


def _expert_list(config: Config) -> Callable[[int], bool] | None:
    """Which blocks have experts, if the file lists it."""
    if kinds := config.each("mlp_layer_types", ("dense", "sparse")):
        config.no_number("first_k_dense_replace", "moe_layer_freq", "decoder_sparse_step", "mlp_only_layers")
        return lambda block: kinds[block] == "sparse"
    if config.is_list("moe_layer_freq") and (some := config.each("moe_layer_freq", (0, 1))):
        config.no_number("first_k_dense_replace")
        return lambda block: some[block] == 1
    return None


def _after_dense(config: Config, attention: Attention, dense: str = "intermediate_size", **more: Any) -> Facts:
    """The first blocks are dense; every `moe_layer_freq`-th later block has experts, in groups."""
    has_experts = _expert_list(config)
    if has_experts is None:
        first, step = config.whole("first_k_dense_replace", 0), config.whole("moe_layer_freq", 1, at_least=1)
        has_experts = lambda block: block >= first and block % step == 0  # noqa: E731
    facts = _dense(config, has_experts, dense)
    facts |= {"shared_hidden": config.whole("n_shared_experts", 0) * config.whole("moe_intermediate_size", at_least=1)}
    groups, chosen = config.whole("n_group", 1), config.whole("topk_group", 1)
    in_groups = config.word("topk_method", "noaux_tc", ("noaux_tc", "group_limited_greedy", "greedy")) != "greedy"
    facts |= {"expert_groups": groups, "top_groups": chosen} if in_groups else {}
    facts |= {"next_tokens": config.whole("num_nextn_predict_layers", 0)}
    return _common(config, "n_routed_experts", "moe_intermediate_size", attention, **facts | more)


def _attention_mix(kinds: Sequence[Hashable], some: Mapping[Any, Any], alone: GroupedQuery | None = None) -> Attention:
    """The mixers of all blocks by their kinds; `alone` if there are none."""
    blocks: dict[Any, int] = {some[kind]: 0 for kind in kinds} or {alone: 1}
    for kind in kinds:
        blocks[some[kind]] += 1
    return next(iter(blocks)) if len(blocks) == 1 else Mixed(tuple(blocks.items()))


# ------------------------------------------------------------------------------------- grouped-query attention, windows
def _mixtral(config: Config) -> Facts:
    attention = _grouped_query(config, config.whole("sliding_window", 0))
    return _common(config, "num_local_experts", "intermediate_size", attention)


def _olmoe(config: Config) -> Facts:
    return _common(config, "num_experts", "intermediate_size", _grouped_query(config))


def _grok(config: Config) -> Facts:
    for scale in ("attn_output_multiplier", "max_attn_value", "embedding_multiplier_scale", "output_multiplier_scale"):
        config.no_number(scale)
    config.rename(num_experts="num_local_experts")
    return _common(config, "num_experts", "intermediate_size", _grouped_query(config), tied=True)


def _grok2(config: Config) -> Facts:
    """Every block has a dense FFN beside its experts."""
    if "Grok1ForCausalLM" not in (config.values.get("architectures") or ()):
        raise InputError(f"architectures of {config.named} must be ['Grok1ForCausalLM'] for the model_type git.")
    config.no_number("embedding_multiplier_scale", "output_multiplier_scale", "attn_temperature_len")
    config.no_number("attn_logit_softcapping", "router_logit_softcapping", "final_logit_softcapping")
    if config.values.get("sliding_window_size") == -1:
        config.no_number("sliding_window_size", "global_attn_every_n")
    beside = config.whole("intermediate_size", at_least=1) if config.flag("residual_moe") else 0
    return _common(config, "num_local_experts", "moe_intermediate_size", _grouped_query(config), shared_hidden=beside)


def _dbrx(config: Config) -> Facts:
    """The fields of attention and FFN lie in tables of their own."""
    config.rename(num_hidden_layers="n_layers", hidden_size="d_model", num_attention_heads="n_heads")
    config.no_number("max_seq_len", "resid_pdrop", "emb_pdrop", "num_key_value_heads")
    attention, ffn = config.inside("attn_config"), config.inside("ffn_config")
    kv_heads = attention.whole("kv_n_heads", at_least=1)
    attention.no_number("attn_pdrop", "tie_word_embeddings")
    ffn.rename(num_experts_per_tok="moe_top_k")
    ffn.no_number("moe_jitter_eps", "moe_loss_weight", "moe_normalize_expert_weights", "uniform_expert_assignment")
    ffn.no_number("tie_word_embeddings")
    if ffn.has("ffn_act_fn"):
        ffn.inside("ffn_act_fn").word("name", "silu", ("silu", "gelu"))
    hidden, heads = config.whole("hidden_size", at_least=1), config.whole("num_attention_heads", at_least=1)
    return _dimensions(config) | {
        "attention": GroupedQuery(heads, kv_heads, max(hidden // heads, 1)),
        "experts": ffn.whole("moe_num_experts", at_least=1),
        "top_k": ffn.whole("num_experts_per_tok", at_least=1),
        "expert_hidden": ffn.whole("ffn_hidden_size", at_least=1),
    }


def _qwen(config: Config) -> Facts:
    _pass_over_unused_window(config)
    return _qwen_experts(config, _grouped_query(config))


def _qwen_experts(config: Config, attention: Attention, **more: Any) -> Facts:
    """Every `decoder_sparse_step`-th block has experts, except those in `mlp_only_layers`."""
    has_experts = _expert_list(config)
    if has_experts is None:
        step, without = config.whole("decoder_sparse_step", 1, at_least=1), config.each("mlp_only_layers")
        has_experts = lambda block: (block + 1) % step == 0 and block not in without  # noqa: E731
    facts = _dense(config, has_experts, "intermediate_size")
    facts |= {"shared_hidden": config.whole("shared_expert_intermediate_size", 0)}
    return _common(config, "num_experts", "moe_intermediate_size", attention, **facts | more)


def _glm(config: Config) -> Facts:
    return _after_dense(config, _grouped_query(config))


def _gpt_oss(config: Config) -> Facts:
    """Some blocks have a sliding window, the others full attention."""
    kinds = config.each("layer_types", (SLIDING, FULL))
    window = config.whole("sliding_window", at_least=1) if SLIDING in kinds else 0
    some = {SLIDING: _grouped_query(config, window), FULL: _grouped_query(config)}
    mix = _attention_mix(kinds, some, _grouped_query(config))
    return _common(config, "num_local_experts", "intermediate_size", mix)


def _llama4(config: Config) -> Facts:
    """Every `interleave_moe_layer_step`-th block has experts and one shared expert; text part only."""
    step, named = config.whole("interleave_moe_layer_step", 1, at_least=1), config.each("moe_layers")

    def has_experts(block: int) -> bool:
        return block in named if named else (block + 1) % step == 0

    more = _dense(config, has_experts, "intermediate_size_mlp")
    more |= {"shared_hidden": config.whole("intermediate_size", at_least=1)}
    config.each("layer_types", ("chunked_attention", FULL))
    config.no_number("intermediate_size_mlp", "no_rope_layers", "no_rope_layer_interval")
    return _common(config, "num_local_experts", "intermediate_size", _grouped_query(config), **more)


def _minimax(config: Config) -> Facts:
    """Text-01 and M1 mostly use lightning attention (0, linear_attention); M2 uses full attention."""
    config.no_number("block_size")
    kinds = config.each("attn_type_list", (0, 1)) or config.each("layer_types", (LINEAR, FULL))
    whole_norm = config.flag("use_qk_norm") and config.word("qk_norm_type", "per_head", ("per_head", "per_layer"))
    full = _grouped_query(config, whole_norm=whole_norm == "per_layer")
    linear = Linear(full.heads, full.head_dim)
    some = {0: linear, LINEAR: linear, 1: full, FULL: full}
    more: Facts = {"shared_hidden": config.whole("shared_intermediate_size", 0)}
    predicted = config.whole("num_mtp_modules", 0) * config.whole("mtp_transformer_layers", 1)
    more |= {"next_tokens": predicted if config.flag("use_mtp") else 0}
    return _common(config, "num_local_experts", "intermediate_size", _attention_mix(kinds, some, full), **more)


def _minimax_m3(config: Config) -> Facts:
    """Most blocks see some blocks of tokens, which an indexer chooses; the first blocks have full attention and are
    dense."""
    gated, sparse = config.flag("attention_output_gate"), config.inside("sparse_attention_config")
    full = _grouped_query(config, gated=gated)
    tokens = sparse.whole("sparse_topk_blocks", at_least=1) * sparse.whole("sparse_block_size", at_least=1)
    heads, width = sparse.whole("sparse_num_index_heads", at_least=1), sparse.whole("sparse_index_dim", at_least=1)
    some = {0: full, 1: _grouped_query(config, gated=gated, index_heads=heads, index_dim=width, index_top_k=tokens)}
    sparse.no_number("sparse_score_type", "sparse_init_block", "sparse_local_block")
    sparse.blocks = config.whole("num_hidden_layers", at_least=1)
    kinds, without = (sparse.each(field, (0, 1)) for field in ("sparse_attention_freq", "sparse_disable_index_value"))
    if not sparse.flag("use_sparse_attention", True):
        kinds = []
    elif not kinds or not without:
        raise InputError(f"{sparse.named} must have the fields sparse_attention_freq and sparse_disable_index_value.")
    elif any(kind > no for kind, no in zip(kinds, without, strict=True)):
        raise InputError(f"sparse_disable_index_value of {sparse.named} must be 1 in every sparse block.")
    config.rename(num_nextn_predict_layers=("num_nextn_predict_layers", "num_mtp_modules"))
    config.no_number("num_mtp_modules", "swiglu_alpha")
    config.rename(moe_intermediate_size=("moe_intermediate_size", "intermediate_size"))
    config.rename(n_routed_experts="num_local_experts")
    shared = config.whole("n_shared_experts", 0) * config.whole("shared_intermediate_size", 0)
    mix = _attention_mix(kinds, some, full)
    return _after_dense(config, mix, "dense_intermediate_size", shared_hidden=shared)


def _mimo(config: Config) -> Facts:
    """Blocks with a sliding window (1) have key-value heads of their own; values are narrower than keys."""
    full = _grouped_query(config, value_dim=config.whole("v_head_dim", 0))
    window = GroupedQuery(
        heads=config.whole("swa_num_attention_heads", full.heads, at_least=1),
        kv_heads=config.whole("swa_num_key_value_heads", full.kv_heads, at_least=1),
        head_dim=config.whole("swa_head_dim", full.head_dim, at_least=1),
        window=config.whole("sliding_window", at_least=1),
        value_dim=config.whole("swa_v_head_dim", full.value_dim),
    )
    config.no_number("sliding_window_size", "attention_chunk_size", "attention_value_scale")
    config.no_number("add_swa_attention_sink_bias", "add_full_attention_sink_bias", "swa_rope_theta")
    kinds = config.each("hybrid_layer_pattern", (0, 1))
    if not kinds:
        raise InputError(f"{config.named} must have the field hybrid_layer_pattern.")
    return _after_dense(config, _attention_mix(kinds, {0: full, 1: window}))


def _gemma4(config: Config) -> Facts:
    """Every block has a dense FFN beside its experts; full attention has wider heads than sliding windows."""
    if not config.flag("enable_moe_block"):
        raise InputError(
            f"enable_moe_block of {config.named} must be true: models without experts are not read in this layout."
        )
    blocks = config.whole("num_hidden_layers", at_least=1)
    kinds = config.each("layer_types", (SLIDING, FULL)) or [FULL if n % 6 == 5 else SLIDING for n in range(blocks)]
    local = _grouped_query(config, config.whole("sliding_window", at_least=1))
    of_full = config.whole("num_global_key_value_heads", local.kv_heads, at_least=1)
    shared_keys = config.flag("attention_k_eq_v")
    wide = GroupedQuery(
        local.heads, of_full if shared_keys else local.kv_heads, config.whole("global_head_dim", 512, at_least=1)
    )
    if not config.whole("hidden_size_per_layer_input", 0):
        config.no_number("vocab_size_per_layer_input")
    config.no_number("final_logit_softcapping", "use_bidirectional_attention")
    config.word("hidden_activation", "gelu_pytorch_tanh", ("gelu_pytorch_tanh", "gelu", "silu"))
    config.rename(num_experts_per_tok="top_k_experts")
    more = {"shared_hidden": config.whole("intermediate_size", at_least=1)}
    mix = _attention_mix(kinds, {SLIDING: local, FULL: wide})
    return _common(config, "num_experts", "moe_intermediate_size", mix, tied=True, **more)


def _step(config: Config) -> Facts:
    """Step 3 projects queries through a rank; Step 3.5 and 3.7 have windows, with heads of their own."""
    config.rename(num_key_value_heads="num_attention_groups", num_experts="moe_num_experts")
    config.rename(num_experts_per_tok="moe_top_k", share_expert_dim="share_expert_dims")
    config.no_number("max_seq_len", "use_head_wise_attn_gate", "norm_expert_weight", "need_fp32_gate", "zero_centered")
    config.no_number("use_moe_router_bias", "moe_router_scaling_factor", "moe_router_activation", "n_shared_experts")
    config.no_number("yarn_only_types", "swiglu_limits", "swiglu_limits_shared", "use_rope_layers")
    config.word("att_impl_type", "GQA", ("GQA", "MFA"))
    predicted = config.whole("num_nextn_predict_layers", 0)
    config.not_counted("num_nextn_predict_layers")  # dense blocks
    full = _grouped_query(config, query_rank=config.whole("share_q_dim", 0))
    kinds, local = config.each("layer_types", (SLIDING, FULL), further=predicted), full
    if SLIDING in kinds:
        other = config.inside("attention_other_setting") if config.has("attention_other_setting") else config
        if other is not config:
            other.rename(num_key_value_heads="num_attention_groups")
            other.word("attention_type", SLIDING, (SLIDING,))
        local = GroupedQuery(
            heads=other.whole("num_attention_heads", full.heads, at_least=1),
            kv_heads=other.whole("num_key_value_heads", full.kv_heads, at_least=1),
            head_dim=other.whole("head_dim", full.head_dim, at_least=1),
            window=config.whole("sliding_window", at_least=1),
            query_rank=full.query_rank,
        )
    more = _dense(config, _step_experts(config), "intermediate_size")
    more |= {"shared_hidden": config.whole("share_expert_dim", 0)}
    mix = _attention_mix(kinds, {SLIDING: local, FULL: full}, full)
    return _common(config, "num_experts", "moe_intermediate_size", mix, **more)


def _step_experts(config: Config) -> Callable[[int], bool]:
    """Blocks with experts: those that `moe_layers_enum` lists (in text, too), or all after the first."""
    value = config.values.get("moe_layers_enum")
    if isinstance(value, str) and re.fullmatch(r"\s*\d{1,4}(\s*,\s*\d{1,4})*\s*", value):
        value = [int(block) for block in value.split(",")]
    if value is None:
        first = config.whole("first_k_dense_replace", 1)
        return lambda block: block >= first
    blocks = config.whole("num_hidden_layers", at_least=1)
    config.no_number("moe_layers_enum", "first_k_dense_replace", "moe_every_n_layer")
    listed = Config({"moe_layers_enum": value, "num_hidden_layers": blocks}, config.named).each("moe_layers_enum")
    return lambda block: block in listed


def _ernie(config: Config) -> Facts:
    """Every `moe_layer_interval`-th block from a first to a last one has experts."""
    blocks = config.whole("num_hidden_layers", at_least=1)
    first, step = config.whole("moe_layer_start_index", 0), config.whole("moe_layer_interval", 1, at_least=1)
    last = -1 if config.values.get("moe_layer_end_index") == -1 else config.whole("moe_layer_end_index", blocks - 1)
    config.no_number("moe_layer_end_index", "use_bias", "moe_norm_min", "moe_gate", "moe_gate_act", "moe_capacity")
    config.no_number("moe_use_aux_free", "moe_use_hard_gate")
    config.rename(num_experts_per_tok=("moe_k", "moe_topk"), num_experts="moe_num_experts")
    end = blocks - 1 if last == -1 else last
    more = _dense(config, lambda block: (block + 1) % step == 0 and first <= block <= end, "intermediate_size")
    shared = config.whole("moe_num_shared_experts", 0) * config.whole("moe_intermediate_size", at_least=1)
    more |= {"shared_hidden": shared}
    return _common(config, "num_experts", "moe_intermediate_size", _grouped_query(config), tied=True, **more)


def _hunyuan(config: Config) -> Facts:
    """Every block has experts; their numbers may be listed, one for each block."""
    config.rename(num_experts_per_tok="moe_topk", head_dim="attention_head_dim")
    config.rename(moe_intermediate_size=("moe_intermediate_size", "intermediate_size"))
    config.no_number("moe_drop_tokens", "moe_random_routing_dropped_token", "capacity_factor", "use_mixed_mlp_moe")
    config.no_number("attention_head_dim", "moe_layer_num_skipped", "norm_topk_prob", "group_limited_greedy")
    if config.whole("moe_layer_num_skipped", 0):
        raise InputError(f"moe_layer_num_skipped of {config.named} must be 0, since dense blocks have no width there.")
    width = config.same("moe_intermediate_size", at_least=1)
    shared = config.same("num_shared_expert", 1) if config.flag("use_mixed_mlp_moe") else 0
    mix = _cross_layer(config)
    return _common(config, "num_experts", "moe_intermediate_size", mix, shared_hidden=shared * width)


def _cross_layer(config: Config) -> Attention:
    """Of `cla_share_factor` blocks the first computes keys and values, and the others borrow them."""
    own, factor = _grouped_query(config), config.whole("cla_share_factor", 2, at_least=1)
    if not config.flag("use_cla"):
        return own
    kinds = [block % factor > 0 for block in range(config.whole("num_hidden_layers", at_least=1))]
    return _attention_mix(kinds, {False: own, True: dataclasses.replace(own, borrows=True)})


# ----------------------------------------------------------------------------------------------------- latent attention
def _deepseek(config: Config) -> Facts:
    return _after_dense(config, _latent(config))


def _deepseek_sparse(config: Config) -> Facts:
    """An indexer chooses the tokens that a query sees; some blocks may see those that an earlier one chose."""
    seen = config.whole("index_topk", at_least=1)
    heads, width = config.whole("index_n_heads", at_least=1), config.whole("index_head_dim", at_least=1)
    config.no_number("indexer_rope_interleave", "index_share_for_mtp_iteration")
    config.each("layer_types", ("deepseek_sparse_attention",))
    chooses = _latent(config, index_heads=heads, index_dim=width, index_top_k=seen)
    some = {"full": chooses, "shared": _latent(config, index_top_k=seen)}
    kinds = config.each("indexer_types", ("full", "shared"))
    if kinds:
        config.no_number("index_topk_freq", "index_skip_topk_offset", "index_topk_pattern")
    elif config.whole("index_topk_freq", 1, at_least=1) == 1:
        config.no_number("index_skip_topk_offset")
    else:
        raise InputError(f"{config.named} must have the field indexer_types, since index_topk_freq is above 1.")
    return _after_dense(config, _attention_mix(kinds or ["full"], some))


def _longcat(config: Config) -> Facts:
    """A layer is two blocks: a dense one, and one with experts whose dense FFN counts as a shared expert (arXiv
    2509.01322). A part of the choices are of zero experts: `top_k` counts the others, on average."""
    layers = config.whole("num_layers", at_least=1)
    if config.values.get("num_hidden_layers") in (layers, 2 * layers):
        config.no_number("num_hidden_layers")
    config.rename(num_experts_per_tok="moe_topk", intermediate_size="ffn_hidden_size")
    config.no_number("mla_scale_q_lora", "mla_scale_kv_lora")
    config.word("attention_method", "MLA", ("MLA", "mla"))
    experts, none = config.whole("n_routed_experts", at_least=1), config.whole("zero_expert_num", 0)
    config.word("zero_expert_type", "identity", ("identity",))
    chosen = round(config.whole("num_experts_per_tok", at_least=1) * experts / (experts + none))
    dense = config.whole("intermediate_size", at_least=1)
    return _widths(config) | {
        "blocks": 2 * layers,
        "attention": _latent(config),
        "experts": experts,
        "top_k": max(chosen, 1),
        "zero_experts": none,
        "expert_hidden": config.whole("expert_ffn_hidden_size", at_least=1),
        "shared_hidden": dense,
        "dense_blocks": tuple(range(0, 2 * layers, 2)),
        "dense_hidden": dense,
        "next_tokens": config.whole("num_nextn_predict_layers", 0),
    }


# ----------------------------------------------------------------------------------------- recurrences and state spaces
def _qwen_next(config: Config) -> Facts:
    """Most blocks have a gated delta rule, the others gated attention."""
    linear = GatedDelta(
        key_heads=config.whole("linear_num_key_heads", at_least=1),
        value_heads=config.whole("linear_num_value_heads", at_least=1),
        key_dim=config.whole("linear_key_head_dim", at_least=1),
        value_dim=config.whole("linear_value_head_dim", at_least=1),
        convolution=config.whole("linear_conv_kernel_dim", 4),
    )
    full = _grouped_query(config, gated=config.flag("attn_output_gate", True))
    blocks, every = (
        config.whole("num_hidden_layers", at_least=1),
        config.whole("full_attention_interval", 4, at_least=1),
    )
    usual = [FULL if (block + 1) % every == 0 else LINEAR for block in range(blocks)]
    mix = _attention_mix(config.each("layer_types", (LINEAR, FULL)) or usual, {LINEAR: linear, FULL: full})
    config.no_number("mamba_ssm_dtype", "output_gate_type")
    if not config.flag("mtp_use_dedicated_embeddings"):
        config.no_number("mtp_use_dedicated_embeddings")
    _pass_over_unused_window(config)
    return _qwen_experts(config, mix, next_tokens=config.whole("mtp_num_hidden_layers", 0))


def _kimi_linear(config: Config) -> Facts:
    """Most blocks have Kimi Delta Attention, the others latent attention (arXiv 2510.26692). Lists count from 1."""
    table, blocks = config.inside("linear_attn_config"), config.whole("num_hidden_layers", at_least=1)
    heads, width = table.whole("num_heads", at_least=1), table.whole("head_dim", at_least=1)
    full_gate = table.flag("use_full_rank_gate")
    delta = GatedDelta(
        *(heads, heads, width, width),
        convolution=table.whole("short_conv_kernel_size", 4),
        decay_rank=width,
        gate_rank=0 if full_gate else width,
    )
    table.no_number("gate_lower_bound", "kda_layers", "full_attn_layers")
    places = {name: table.values.get(name) for name in ("kda_layers", "full_attn_layers")}
    both = [block for some in places.values() if isinstance(some, list) for block in some]
    if not all(type(block) is int for block in both) or sorted(both) != list(range(1, blocks + 1)):
        named = f"kda_layers and full_attn_layers of {table.named}"
        raise InputError(f"{named} must be lists that hold each block from 1 to {blocks} once.")
    linear = {*(places["kda_layers"] or ())}
    latent = _latent(config, gated=config.flag("mla_use_output_gate"))
    mix = _attention_mix([block in linear for block in range(1, blocks + 1)], {True: delta, False: latent})
    config.no_number("mla_use_nope", "moe_renormalize", "latent_moe_use_norm", "use_grouped_topk")
    config.no_number("moe_router_activation_func", "activation_situ_beta", "activation_situ_linear_beta")
    config.rename(n_routed_experts="num_experts", num_experts_per_tok="num_experts_per_token")
    config.rename(n_shared_experts="num_shared_experts", n_group="num_expert_group")
    return _after_dense(config, mix, expert_width=config.whole("routed_expert_hidden_size", 0))


NEMOTRON = {"M": "mamba", "*": "attention", "E": "moe", "-": "mlp"}


def _nemotron(config: Config) -> Facts:
    """Every block is a mixer or an FFN; FFNs have two matrices. Experts may take vectors of another width."""
    kinds = _nemotron_blocks(config)
    config.rename(head_dim="attention_head_dim")
    mamba = Mamba2(
        heads=config.whole("mamba_num_heads", at_least=1),
        head_dim=config.whole("mamba_head_dim", at_least=1),
        state_dim=config.whole("ssm_state_size", at_least=1),
        groups=config.whole("n_groups", 1, at_least=1),
        convolution=config.whole("conv_kernel", 4),
    )
    mixers = {"mamba": mamba, "attention": _grouped_query(config), "moe": None, "mlp": None}
    config.no_number("expand", "chunk_size", "use_conv_bias", "use_mamba_kernels", "mamba_hidden_act", "mlp_bias")
    config.no_number("mamba_proj_bias", "mamba_ssm_cache_dtype", "residual_in_fp32", "rescale_prenorm_residual")
    config.no_number("time_step_floor", "time_step_limit", "time_step_max", "time_step_min", "time_step_rank")
    config.no_number("num_logits_to_keep", "moe_shared_expert_overlap")
    for field, usual in (("mtp_hybrid_override_pattern", "*E"), ("mtp_layers_block_type", ["attention", "moe"])):
        if config.values.get(field) == usual:
            config.no_number(field)
    config.word("mlp_hidden_act", "relu2", ("relu2",))
    places = {kind: tuple(n for n, other in enumerate(kinds) if other == kind) for kind in NEMOTRON.values()}
    if not places["moe"]:
        raise InputError(
            f"{config.named} has no block with experts: models without experts are not read in this layout."
        )
    shared = config.whole("moe_shared_expert_intermediate_size", 0) if config.whole("n_shared_experts", 0) else 0
    return _widths(config) | {
        "blocks": len(kinds),
        "attention": _attention_mix(kinds, mixers),
        "experts": config.whole("n_routed_experts", at_least=1),
        "top_k": config.whole("num_experts_per_tok", at_least=1),
        "expert_hidden": config.whole("moe_intermediate_size", at_least=1),
        "expert_width": config.whole("moe_latent_size", 0),
        "shared_hidden": shared,
        "dense_blocks": places["mlp"] or 0,
        "dense_hidden": config.whole("intermediate_size", at_least=1) if places["mlp"] else 0,
        "bare_blocks": tuple(sorted(places["mamba"] + places["attention"])),
        "matrices": 2,
        "expert_groups": config.whole("n_group", 1),
        "top_groups": config.whole("topk_group", 1),
        "next_tokens": config.whole("num_nextn_predict_layers", 0),
    }


def _nemotron_blocks(config: Config) -> list[str]:
    """The kind of every block, from a pattern such as "M-M*ME" or a list of words."""
    field = "hybrid_override_pattern" if config.has("hybrid_override_pattern") else "layers_block_type"
    value = config.values.get(field)
    letters = list(value) if isinstance(value, str) else value
    words = NEMOTRON if isinstance(value, str) else {word: word for word in NEMOTRON.values()}
    if not isinstance(letters, list) or not letters or any(letter not in [*words] for letter in letters):
        raise InputError(f"{field} of {config.named} must be a pattern of {', '.join(words)}, got {value!r:.80}.")
    config.no_number(field)
    if (blocks := config.whole("num_hidden_layers", len(letters), at_least=1)) != len(letters):
        raise InputError(f"{field} of {config.named} must be of the {blocks} blocks, got {len(letters)}.")
    return [words[letter] for letter in letters]


def _jamba(config: Config) -> Facts:
    """Every `attn_layer_period`-th block has attention, the others Mamba 1; every `expert_layer_period`-th experts."""
    hidden, blocks = config.whole("hidden_size", at_least=1), config.whole("num_hidden_layers", at_least=1)
    if config.values.get("mamba_dt_rank") == "auto":
        config.no_number("mamba_dt_rank")
        rank = math.ceil(hidden / 16)
    else:
        rank = config.whole("mamba_dt_rank", math.ceil(hidden / 16), at_least=1)
    inner = config.whole("mamba_expand", 2, at_least=1) * hidden
    mamba = Mamba1(inner, config.whole("mamba_d_state", 16, at_least=1), rank, config.whole("mamba_d_conv", 4))
    full = _grouped_query(config)
    config.no_number("use_mamba_kernels", "mamba_conv_bias", "mamba_proj_bias", "num_logits_to_keep", "n_ctx")
    config.no_number("calc_logits_for_entire_prompt", "mamba_inner_layernorms")
    some = {}
    for what in ("attn", "expert"):
        period, offset = config.whole(f"{what}_layer_period", at_least=1), config.whole(f"{what}_layer_offset")
        some[what] = [block % period == offset for block in range(blocks)]
    config.each("layers_block_type", ("attention", "mamba"))
    more = _dense(config, lambda block: some["expert"][block], "intermediate_size")
    mix = _attention_mix(some["attn"], {True: full, False: mamba})
    return _common(config, "num_experts", "intermediate_size", mix, **more)


def _without_experts(config: Config) -> Facts:
    """The FFN of every block is one expert, which takes every token."""
    _pass_over_unused_window(config)
    expert = {"experts": 1, "top_k": 1, "expert_hidden": config.whole("intermediate_size", at_least=1)}
    return _dimensions(config) | expert | {"attention": _grouped_query(config)}


LAYOUTS: dict[str, Callable[[Config], Facts]] = {
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3"), _without_experts),
    "mixtral": _mixtral,
    **dict.fromkeys(("qwen2_moe", "qwen3_moe", "qwen3_vl_moe_text"), _qwen),
    **dict.fromkeys(("qwen3_next", "qwen3_5_moe_text"), _qwen_next),
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "kimi_k2", "glm4_moe_lite", "mistral4"), _deepseek),
    **dict.fromkeys(("deepseek_v32", "glm_moe_dsa"), _deepseek_sparse),
    "kimi_linear": _kimi_linear,
    "olmoe": _olmoe,
    "gpt_oss": _gpt_oss,
    **dict.fromkeys(("glm4_moe", "glm4v_moe_text"), _glm),
    "llama4_text": _llama4,
    **dict.fromkeys(("minimax", "minimax_text_01", "minimax_m1", "minimax_m2"), _minimax),
    "minimax_m3": _minimax_m3,
    "nemotron_h": _nemotron,
    "longcat_flash": _longcat,
    "mimo_v2_flash": _mimo,
    "gemma4_text": _gemma4,
    **dict.fromkeys(("step3_text", "step3p5", "step3p7"), _step),
    "ernie4_5_moe": _ernie,
    **dict.fromkeys(("hunyuan", "hunyuan_v1_moe"), _hunyuan),
    "jamba": _jamba,
    "dbrx": _dbrx,
    "grok-1": _grok,
    "git": _grok2,
}
# Models of text with other parts: the layout of their text where its table does not name it.
WRAPPERS = {
    "llama4": "llama4_text",
    "qwen3_vl_moe": "qwen3_vl_moe_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "kimi_k25": "kimi_k2",
    "kimi_k3": "kimi_linear",
    "glm4v_moe": "glm4v_moe_text",
    "minimax_m3_vl": "minimax_m3",
    "gemma4": "gemma4_text",
    "step3_vl": "step3_text",
    "mistral3": "mistral4",
}
