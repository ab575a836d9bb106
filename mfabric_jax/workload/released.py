"""Facts of models in released `config.json` files, by `model_type`.

Fields of a release are those of huggingface/transformers or, for MiniMax and Kimi, of the code beside their weights.
Vision parts are not read.
"""

from collections.abc import Callable, Mapping
from typing import Any

from mfabric_jax import checks
from mfabric_jax.checks import InputError
from mfabric_jax.workload.mixers import Attention, GroupedQuery, Latent, Linear, Mixed
from mfabric_jax.workload.released_fields import check_unread, unread_in

Facts = dict[str, Any]
KEY = "model_type"
NEEDED = object()


class Config:
    """Typed access to the fields of a file. Errors name the field and the file. `read`: the fields that were read, by
    path of their table."""

    def __init__(self, values: Mapping[str, Any], named: str, path: str = "", read: dict[str, set[str]] | None = None):
        self.values, self.named, self.path = values, named, path
        self.read = {} if read is None else read
        self.read[path] = set()

    def no_number(self, *fields: str) -> None:
        """Mark as read the fields that change no number in this layout."""
        self.read[self.path].update(fields)

    def _value(self, field: str, default: Any) -> Any:
        self.no_number(field)
        value = self.values.get(field)
        if value is None and default is NEEDED:
            raise InputError(f"{self.named} must have the field {field}.")
        return default if value is None else value

    def whole(self, field: str, default: Any = NEEDED, at_least: int = 0) -> int:
        """Return a whole number; `default` if the field is missing or null."""
        return checks.whole(f"{field} of {self.named}", self._value(field, default), at_least=at_least)

    def flag(self, field: str) -> bool:
        value = self._value(field, False)
        if not isinstance(value, bool):
            raise InputError(f"{field} of {self.named} must be true or false, got {value!r}.")
        return value

    def word(self, field: str, default: str, allowed: tuple[str, ...]) -> str:
        """Return one of the allowed words. The error proposes no similar word, since similar words mean different
        things."""
        value = self._value(field, default)
        if value not in allowed:
            raise InputError(f"{field} of {self.named} must be {' or '.join(allowed)}, got {value!r:.80}.")
        return value

    def each(self, field: str, allowed: tuple | None = None) -> list:
        """Return a list, empty if missing: one of `allowed` per block, or places of blocks."""
        value, blocks = self._value(field, []), self.whole("num_hidden_layers", at_least=1)
        if not isinstance(value, list):
            raise InputError(f"{field} of {self.named} must be a list, got {value!r:.80}.")
        wrong = [entry for entry in value if (entry not in allowed if allowed else not _is_place(entry, blocks))]
        if wrong or (allowed and value and len(value) != blocks):
            what = f"{blocks} of {', '.join(map(str, allowed))}" if allowed else f"places from 0 to {blocks - 1}"
            raise InputError(f"{field} of {self.named} must be {what}, got {wrong[:3] or len(value)}.")
        return value

    def inside(self, field: str) -> "Config":
        value = self._value(field, NEEDED)
        if not isinstance(value, dict):
            raise InputError(f"{field} of {self.named} must be a table, got {value!r:.80}.")
        return Config(value, f"{field} of {self.named}", f"{self.path}.{field}".lstrip("."), self.read)


def _is_place(value: Any, blocks: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < blocks


def _common(config: Config, experts: str, expert_hidden: str, attention: Attention, **more: Any) -> Facts:
    return _dimensions(config) | {
        "attention": attention,
        "experts": config.whole(experts, at_least=1),
        "top_k": config.whole("num_experts_per_tok", at_least=1),
        "expert_hidden": config.whole(expert_hidden, at_least=1),
        **more,
    }


def _dimensions(config: Config) -> Facts:
    return {
        "blocks": config.whole("num_hidden_layers", at_least=1),
        "hidden": config.whole("hidden_size", at_least=1),
        "vocab": config.whole("vocab_size"),
        "tied": config.flag("tie_word_embeddings"),
    }


def _grouped_query(config: Config, window: int = 0) -> GroupedQuery:
    heads = config.whole("num_attention_heads", at_least=1)
    width = config.whole("head_dim", config.whole("hidden_size", at_least=1) // heads, at_least=1)
    return GroupedQuery(heads, config.whole("num_key_value_heads", heads, at_least=1), width, window)


def _dense(config: Config, has_experts: Callable[[int], bool], hidden: str) -> Facts:
    """The dense blocks (only their number if they come first), and the width of their FFN, which the field `hidden`
    holds."""
    dense = tuple(block for block in range(config.whole("num_hidden_layers", at_least=1)) if not has_experts(block))
    first = dense == tuple(range(len(dense)))
    return {
        "dense_blocks": len(dense) if first else dense,
        "dense_hidden": config.whole(hidden, at_least=1) if dense else 0,
    }


def _mixtral(config: Config) -> Facts:
    attention = _grouped_query(config, config.whole("sliding_window", 0))
    return _common(config, "num_local_experts", "intermediate_size", attention)


def _olmoe(config: Config) -> Facts:
    return _common(config, "num_experts", "intermediate_size", _grouped_query(config))


def _qwen(config: Config) -> Facts:
    """Every `decoder_sparse_step`-th block has experts, except those in `mlp_only_layers`."""
    step, without = config.whole("decoder_sparse_step", 1, at_least=1), config.each("mlp_only_layers")
    dense = _dense(config, lambda block: (block + 1) % step == 0 and block not in without, "intermediate_size")
    more = dense | {"shared_hidden": config.whole("shared_expert_intermediate_size", 0)}
    if not config.flag("use_sliding_window"):
        config.no_number("sliding_window", "max_window_layers")
    return _common(config, "num_experts", "moe_intermediate_size", _grouped_query(config), **more)


def _after_dense(config: Config, attention: Attention) -> Facts:
    """The first blocks are dense; every `moe_layer_freq`-th later block has experts, in groups."""
    first, step = config.whole("first_k_dense_replace", 0), config.whole("moe_layer_freq", 1, at_least=1)
    width = config.whole("moe_intermediate_size", at_least=1)
    more = _dense(config, lambda block: block >= first and block % step == 0, "intermediate_size")
    more |= {"shared_hidden": config.whole("n_shared_experts", 0) * width}
    groups, chosen = config.whole("n_group", 1), config.whole("topk_group", 1)
    in_groups = config.word("topk_method", "noaux_tc", ("noaux_tc", "group_limited_greedy", "greedy")) != "greedy"
    more |= {"expert_groups": groups, "top_groups": chosen} if in_groups else {}
    more |= {"next_tokens": config.whole("num_nextn_predict_layers", 0)}
    return _common(config, "n_routed_experts", "moe_intermediate_size", attention, **more)


def _deepseek(config: Config) -> Facts:
    attention = Latent(
        heads=config.whole("num_attention_heads", at_least=1),
        query_rank=config.whole("q_lora_rank", 0),
        kv_rank=config.whole("kv_lora_rank", at_least=1),
        nope_dim=config.whole("qk_nope_head_dim", at_least=1),
        rope_dim=config.whole("qk_rope_head_dim", at_least=1),
        value_dim=config.whole("v_head_dim", at_least=1),
    )
    config.no_number("num_key_value_heads", "head_dim", "qk_head_dim")
    return _after_dense(config, attention)


def _glm(config: Config) -> Facts:
    return _after_dense(config, _grouped_query(config))


def _gpt_oss(config: Config) -> Facts:
    """Some blocks have a sliding window, the others full attention."""
    kinds = config.each("layer_types", ("sliding_attention", "full_attention"))
    window = config.whole("sliding_window", at_least=1) if "sliding_attention" in kinds else 0
    some = {"sliding_attention": _grouped_query(config, window), "full_attention": _grouped_query(config)}
    return _common(
        config, "num_local_experts", "intermediate_size", _attention_mix(kinds, some, _grouped_query(config))
    )


def _llama4(config: Config) -> Facts:
    """Every `interleave_moe_layer_step`-th block has experts and one shared expert; text part only."""
    step, named = config.whole("interleave_moe_layer_step", 1, at_least=1), config.each("moe_layers")

    def has_experts(block: int) -> bool:
        return block in named if named else (block + 1) % step == 0

    more = _dense(config, has_experts, "intermediate_size_mlp")
    more |= {"shared_hidden": config.whole("intermediate_size", at_least=1)}
    config.each("layer_types", ("chunked_attention", "full_attention"))
    config.no_number("intermediate_size_mlp")
    return _common(config, "num_local_experts", "intermediate_size", _grouped_query(config), **more)


def _minimax(config: Config) -> Facts:
    """Text-01 and M1 mostly use lightning attention (0, linear_attention); M2 uses full attention."""
    config.no_number("block_size")
    kinds = config.each("attn_type_list", (0, 1)) or config.each("layer_types", ("linear_attention", "full_attention"))
    full = _grouped_query(config)
    linear = Linear(full.heads, full.head_dim)
    some = {0: linear, "linear_attention": linear, 1: full, "full_attention": full}
    more = {"shared_hidden": config.whole("shared_intermediate_size", 0)}
    predicted = config.whole("num_mtp_modules", 0) * config.whole("mtp_transformer_layers", 1)
    more |= {"next_tokens": predicted if config.flag("use_mtp") else 0}
    return _common(config, "num_local_experts", "intermediate_size", _attention_mix(kinds, some, full), **more)


def _attention_mix(kinds: list, some: Mapping[Any, Attention], alone: GroupedQuery) -> Attention:
    blocks = {some[kind]: 0 for kind in kinds} or {alone: 1}
    for kind in kinds:
        blocks[some[kind]] += 1
    return next(iter(blocks)) if len(blocks) == 1 else Mixed(tuple(blocks.items()))  # type: ignore[arg-type]


def _dense_model(config: Config) -> Facts:
    """A model without experts: the FFN of every block is one expert that takes every token."""
    if not config.flag("use_sliding_window"):
        config.no_number("sliding_window", "max_window_layers")
    attention = _grouped_query(config)
    one = {"experts": 1, "top_k": 1, "expert_hidden": config.whole("intermediate_size", at_least=1)}
    return _dimensions(config) | {"attention": attention} | one


LAYOUTS: dict[str, Callable[[Config], Facts]] = {
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3"), _dense_model),
    "mixtral": _mixtral,
    "qwen2_moe": _qwen,
    "qwen3_moe": _qwen,
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
    "kimi_k2": _deepseek,
    "olmoe": _olmoe,
    "gpt_oss": _gpt_oss,
    "glm4_moe": _glm,
    "llama4": lambda config: _llama4(config.inside("text_config")),
    "llama4_text": _llama4,
    "minimax": _minimax,
    "minimax_text_01": _minimax,
    "minimax_m1": _minimax,
    "minimax_m2": _minimax,
}


def released_facts(values: Mapping[str, Any], named: str) -> Facts:
    """Return the facts of `Architecture` in a released `config.json`. Raise `InputError` for an unknown layout, and for
    missing, wrong or meaningful but unread fields."""
    kind = values.get(KEY)
    if not isinstance(kind, str):
        raise InputError(f"{KEY} of {named} must be text, got {kind!r:.80}.")
    if kind not in LAYOUTS:  # propose no similar layout: it would drop fields that it does not know
        raise InputError(f"{KEY} of {named} must be one that is known ({', '.join(LAYOUTS)}), got {kind!r:.80}.")
    config = Config(values, named)
    facts = LAYOUTS[kind](config)
    check_unread(dict(unread_in(values, config.read)), facts, kind, named)
    return facts
