"""Architectures of the simulated Mixture-of-Experts models: dimensions, and the parameters that follow from them.

Norms, biases, embeddings and the output head are left out: they move next to no bytes and take next to no time.
"""

import dataclasses

from mfabric_jax import checks

MATRICES_PER_FFN = 3  # SwiGLU: gate, up and down projection


@dataclasses.dataclass(frozen=True)
class GroupedQuery:
    """Grouped-query attention; multi-head attention is the case `kv_heads == heads`."""

    heads: int
    kv_heads: int
    head_dim: int

    def params(self, hidden: int) -> int:
        """Parameters of the query, key, value and output projections."""
        return 2 * hidden * self.head_dim * (self.heads + self.kv_heads)

    @property
    def score_width(self) -> int:
        """Multiply-adds per pair of (query token, key token): all heads, scores and weighted values together."""
        return self.heads * 2 * self.head_dim


@dataclasses.dataclass(frozen=True)
class Latent:
    """Multi-head latent attention: queries, keys and values come out of low-rank projections (arXiv 2405.04434)."""

    heads: int
    query_rank: int
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int

    def params(self, hidden: int) -> int:
        """Parameters of all projections; the rotary part of the key is shared by the heads."""
        query = self.query_rank * (hidden + self.heads * (self.nope_dim + self.rope_dim))
        key_value = hidden * (self.kv_rank + self.rope_dim)
        key_value += self.kv_rank * self.heads * (self.nope_dim + self.value_dim)
        return query + key_value + self.heads * self.value_dim * hidden

    @property
    def score_width(self) -> int:
        """Multiply-adds per pair of (query token, key token): all heads, scores and weighted values together."""
        return self.heads * (self.nope_dim + self.rope_dim + self.value_dim)


@dataclasses.dataclass(frozen=True)
class Architecture:
    """Dimensions of one model. Every block is attention and an FFN; the first `dense_blocks` FFNs have no experts.

    - `hidden`: width of a token; `expert_hidden`: inner width of one routed expert.
    - `shared_hidden`: inner width of all shared experts together, 0 without any.
    - `dense_hidden`: inner width of the FFN of a dense block, 0 without any.

    Raises `InputError` for a dimension that is no whole number, or for more choices than experts.
    """

    name: str
    blocks: int
    hidden: int
    attention: GroupedQuery | Latent
    experts: int
    top_k: int
    expert_hidden: int
    source: str
    shared_hidden: int = 0
    dense_blocks: int = 0
    dense_hidden: int = 0

    def __post_init__(self) -> None:
        for field in ("blocks", "hidden", "experts", "top_k", "expert_hidden"):
            checks.whole(field, getattr(self, field))
        for field in ("shared_hidden", "dense_blocks", "dense_hidden"):
            checks.whole(field, getattr(self, field), at_least=0)
        if self.top_k > self.experts:
            raise checks.InputError(f"top_k must be at most experts ({self.experts}), got {self.top_k}.")
        if self.dense_blocks >= self.blocks:
            raise checks.InputError(
                f"blocks must exceed the {self.dense_blocks} dense blocks of {self.name}, got {self.blocks}."
            )

    @property
    def attention_params(self) -> int:
        """Parameters of one block's attention."""
        return self.attention.params(self.hidden)

    @property
    def gate_params(self) -> int:
        """Parameters of one MoE block's gate."""
        return self.hidden * self.experts

    @property
    def expert_params(self) -> int:
        """Parameters of one routed expert."""
        return MATRICES_PER_FFN * self.hidden * self.expert_hidden

    @property
    def shared_params(self) -> int:
        """Parameters of all shared experts of one MoE block."""
        return MATRICES_PER_FFN * self.hidden * self.shared_hidden

    @property
    def dense_params(self) -> int:
        """Parameters of the FFN of one dense block."""
        return MATRICES_PER_FFN * self.hidden * self.dense_hidden


_MIXTRAL_8X22B = "Mistral model card; yanring/Megatron-MoE-ModelZoo@e865051 Mixtral-8x22B.yaml"
_MIXTRAL_8X7B = "arXiv 2401.04088; mistralai/Mixtral-8x7B-v0.1 config.json"
_LLAMA = "arXiv 2406.16554; pjlab-sys4nlp/llama-moe@b17aff4 (2 of 16; the 3.5B variant takes 4 of 16)"
_QWEN = "Qwen/Qwen1.5-MoE-A2.7B config.json, with the 32 routed experts of arXiv 2501.03905 (the release has 60)"
_DEEPSEEK = "arXiv 2412.19437; deepseek-ai/DeepSeek-V3@9b4e978 config_671B.json (DeepSeek-R1 is the same architecture)"

# First numbers: blocks, width of a token. Grouped-query attention: heads, key-value heads, width of a head.
MIXTRAL_8X22B = Architecture(
    "mixtral-8x22b", 56, 6144, GroupedQuery(48, 8, 128), experts=8, top_k=2, expert_hidden=16384, source=_MIXTRAL_8X22B
)
MIXTRAL_8X7B = Architecture(
    "mixtral-8x7b", 32, 4096, GroupedQuery(32, 8, 128), experts=8, top_k=2, expert_hidden=14336, source=_MIXTRAL_8X7B
)
LLAMA_MOE = Architecture(
    "llama-moe-3.0b", 32, 4096, GroupedQuery(32, 32, 128), experts=16, top_k=2, expert_hidden=688, source=_LLAMA
)
QWEN_MOE = Architecture(
    "qwen1.5-moe", 24, 2048, GroupedQuery(16, 16, 128), 32, 4, expert_hidden=1408, source=_QWEN, shared_hidden=5632
)
DEEPSEEK_V3 = Architecture(
    name="deepseek-v3",
    blocks=61,
    hidden=7168,
    attention=Latent(heads=128, query_rank=1536, kv_rank=512, nope_dim=128, rope_dim=64, value_dim=128),
    experts=256,
    top_k=8,
    expert_hidden=2048,
    shared_hidden=2048,
    dense_blocks=3,
    dense_hidden=18432,
    source=_DEEPSEEK,
)
