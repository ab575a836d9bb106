"""Unread fields of a released `config.json`: fields that its layout does not use.

A field that means another computation is refused. A field that could change a number is named in a warning. A field
that changes none is ignored; norms and biases cost next to nothing.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from mfabric_jax.checks import InputError
from mfabric_jax.support.unread import name_unread

NO_NUMBER = re.compile(
    r"""
    name | model_type | _name_or_path | architectures | auto_map | transformers_version | torch_dtype | dtype | task.*
    | .*token_ids? | .*token_index | .*_token | tokenizer_class | id2label | label2id | prefix | problem_type
    | finetuning_task | ignore_index | max_length | min_length | do_sample | early_stopping | num_beams
    | num_beam_groups | diversity_penalty | temperature | top_k | top_p | typical_p | .*_penalty | .*ngram_size
    | bad_words_ids | num_return_sequences | .*suppress_tokens | remove_invalid_values | return_dict.* | output_.*
    | torchscript | use_bfloat16 | tf_legacy_loss | pruned_heads | chunk_size_feed_forward | is_encoder_decoder
    | is_decoder | tie_encoder_decoder | use_cache | cache_implementation | _?attn_implementation.* | _.*
    | initializer_.* | .*dropout.* | .*norm.* | .*_eps | .*epsilon | .*bias.* | clip_qkv | swiglu_limit
    | (?!qk_).*rope.* | .*rotary.* | .*max_position_embeddings | initial_context_length | max_model_len
    | max_sequence_length | model_max_length | attn_temperature_tuning | attn_scale | floor_scale | for_llm_compressor
    | router_.* | .*aux_loss.* | seq_aux | scoring_func | routed_scaling_factor | shared_moe_mode
    | pretraining_tp | ep_size | intermediate_size | .*placeholder | moe_router_dtype
    """,
    re.VERBOSE,
)
OTHER_MODEL = re.compile(
    r"""
    ^index_ | ^indexer | sparse | ^linear_ | ^gdn_ | ^kda_ | delta | mamba | ssm | conv | ^hybrid | sliding | window
    | ^swa_ | ^attn_layer | ^full_attn | attention_interval | (?<!^mlp_)layer_types | layers_block_type | layer_pattern
    | block_pattern | ^zero_expert | compress | lightning | lora_rank | ^qk_ | ^v_head_dim | attn_output_gate
    | ^altup | ^hc_ | ^n_streams | ^engram | ^latent | ^global_head_dim | ^num_global | ^ngram | ^use_cla | ^cla_
    | ^share_q_dim | kv_shared | per_layer_input | ^residual_moe | latent_size | ^routed_expert_hidden | ^o_groups
    """,
    re.VERBOSE,
)
GATED = ("silu", "swish", "swiglu", "swigluoai", "situ", "gelu", "gelu_new", "gelu_pytorch_tanh", "geglu", "quick_gelu")
SAME = {  # fields that repeat a fact under another name
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), "experts"),
    **dict.fromkeys(("num_experts_per_tok", "experts_per_token", "moe_topk", "moe_top_k"), "top_k"),
    **dict.fromkeys(("num_layers", "n_layers", "n_layer"), "blocks"),
}
MOST_SHOWN = 8


def check_unread(unread: Mapping[str, Any], facts: Mapping[str, Any], kind: str, named: str, table: str = "") -> None:
    """Raise `InputError` for unread fields that mean another model than `model_type` does; warn of the other unread
    fields. `table`: that of the model of text, whose wrapper's fields are only named."""
    left = {field: value for field, value in unread.items() if _counts(field, value, facts)}
    inside = f"{table}." if table else ""
    means_other = (field for field in left if field.startswith(inside) and _means_other(field))
    if other := [f"{field} = {left[field]!r:.40}" for field in means_other]:
        more = f" and {len(other) - MOST_SHOWN} more" if len(other) > MOST_SHOWN else ""
        raise InputError(
            f"{named} has {', '.join(other[:MOST_SHOWN])}{more}, which {kind} does not have: without them the numbers "
            f"would be those of another model."
        )
    name_unread(named, "fields", left)


def lost_fields(unread: Mapping[str, Any], facts: Mapping[str, Any]) -> list[str]:
    """Return the unread fields that may change a number, those that mean another computation first."""
    left = [field for field, value in unread.items() if _counts(field, value, facts)]
    return sorted(left, key=lambda field: not _means_other(field))


def _counts(field: str, value: Any, facts: Mapping[str, Any]) -> bool:
    """Whether a field is in use and may change a number."""
    name = field.rpartition(".")[2]
    if value in (None, 0, "", [], {}) or value == facts.get(SAME.get(name, ""), NotImplemented):
        return False
    if name == "hidden_act":
        return value not in GATED
    full = isinstance(value, list) and {*map(str, value)} == {"full_attention"}
    return not full and not NO_NUMBER.fullmatch(name)


def _means_other(field: str) -> bool:
    name = field.rpartition(".")[2]
    return name == "hidden_act" or OTHER_MODEL.search(name) is not None


def unread_in(values: Mapping[str, Any], read: Mapping[str, set[str]], within: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the unread fields with their paths. `read`: the fields that were read, by path of their table."""
    for field, value in values.items():
        path = f"{within}{field}"
        if path in read:
            yield from unread_in(value, read, f"{path}.")
        elif field not in read[within.rstrip(".")]:
            yield path, value
