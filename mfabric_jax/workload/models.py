"""Architectures of Mixture-of-Experts models.

Norms, biases and gates of shared experts are left out: they cost next to nothing. An attention class has

- `params(hidden)`: parameters; `products(hidden)`: inner and outer width of every projection;
- `ups`: indices of the projections from latents; `width`: mean width of a head's keys and values;
- `score_flops(sequence)`: causal forward FLOPs per token, without projections;
- `activation_elements(hidden)`: elements per token that are kept for the backward pass, by name (arXiv 2205.05198, with
  a fused kernel that stores no scores);
- `pointwise_elements()`: elements per token that kernels between products and scores read or write;
- `passed_on(tokens, sequences)`: elements that a context-parallel rank sends to the next one (arXiv 2310.01889).
"""

import dataclasses
import functools
import math
from typing import Any

from mfabric_jax import checks

MATRICES_PER_FFN = 3  # SwiGLU: gate, up and down projection


class _Kind:
    """Base class of the kinds of attention."""

    ups: Any = ()

    @property
    def shares(self) -> list[tuple[Any, float]]:
        """Every kind with its fraction of the blocks."""
        return [(self, 1.0)]

    def params(self: Any, hidden: int) -> int:
        return sum(inner * outer for inner, outer in self.products(hidden))


@dataclasses.dataclass(frozen=True)
class GroupedQuery(_Kind):
    """Grouped-query attention.

    - `kv_heads`: equals `heads` for multi-head attention; `window`: tokens that a query sees; 0: all.

    Raise `InputError` unless dimensions are whole numbers and `kv_heads` divides `heads`.
    """

    heads: int
    kv_heads: int
    head_dim: int
    window: int = 0

    def __post_init__(self) -> None:
        _check_dimensions(self, or_none=("window",))
        if self.heads % self.kv_heads:
            raise checks.InputError(f"attention.kv_heads must divide the {self.heads} heads, got {self.kv_heads}.")

    def score_flops(self, sequence: int) -> float:
        seen = min(self.window or sequence, sequence)
        return 2 * (seen - seen * seen / (2 * sequence)) * self.heads * 2 * self.head_dim

    def passed_on(self, tokens: int, sequences: int) -> int:
        """Return the elements of keys and values; a window does not reduce them."""
        return 2 * tokens * self.kv_heads * self.head_dim

    def activation_elements(self, hidden: int) -> dict[str, float]:
        """Return the elements of input, normed input, queries with keys and values, and output."""
        qkv = self.head_dim * (self.heads + 2 * self.kv_heads)
        return {"input": hidden, "norm": hidden, "qkv": qkv, "out": self.heads * self.head_dim}

    def products(self, hidden: int) -> list[tuple[int, int]]:
        out = self.heads * self.head_dim
        return [(hidden, out + 2 * self.kv_heads * self.head_dim), (out, hidden)]

    @property
    def width(self) -> float:
        return self.head_dim

    def pointwise_elements(self) -> float:
        """Return the elements of rotated queries and keys, read and written."""
        return 2 * self.head_dim * (self.heads + self.kv_heads)


@dataclasses.dataclass(frozen=True)
class Latent(_Kind):
    """Multi-head latent attention with low-rank projections (arXiv 2405.04434).

    - `query_rank`: 0 if queries are projected directly.

    Raise `InputError` for a dimension that is not a whole number.
    """

    heads: int
    query_rank: int
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int

    def __post_init__(self) -> None:
        _check_dimensions(self, or_none=("query_rank",))

    @property
    def _query_width(self) -> int:
        return self.heads * (self.nope_dim + self.rope_dim)

    def score_flops(self, sequence: int) -> float:
        return sequence * self.heads * (self.nope_dim + self.rope_dim + self.value_dim)

    def passed_on(self, tokens: int, sequences: int) -> int:
        """Return the elements of the key-value latent and of the key's rotary part."""
        return tokens * (self.kv_rank + self.rope_dim)

    def activation_elements(self, hidden: int) -> dict[str, float]:
        """Return the elements of input, normed input, latents (before and after their norms), queries with keys and
        values, and output."""
        latents = 2 * self.query_rank + 2 * self.kv_rank + self.rope_dim
        up = 2 * self._query_width + self.heads * self.value_dim
        return {"input": hidden, "norm": hidden, "latents": latents, "mla-up": up, "out": self.heads * self.value_dim}

    def products(self, hidden: int) -> list[tuple[int, int]]:
        query = [(hidden, self.query_rank), (self.query_rank, self._query_width)]
        up = (self.kv_rank, self.heads * (self.nope_dim + self.value_dim))
        others = [(hidden, self.kv_rank + self.rope_dim), up, (self.heads * self.value_dim, hidden)]
        return [*(query if self.query_rank else [(hidden, self._query_width)]), *others]

    @property
    def ups(self) -> tuple[int, ...]:
        """Indices of those `products` that project from latents."""
        return (1, 3) if self.query_rank else (2,)

    @property
    def width(self) -> float:
        return (self.nope_dim + self.rope_dim + self.value_dim) / 2

    def pointwise_elements(self) -> float:
        """Return the elements for norms of latents, rotated parts of queries, and concatenated keys and values."""
        latents = 2 * (self.query_rank + self.kv_rank)
        together = 2 * (self.nope_dim + self.value_dim) + self.rope_dim
        return latents + self.heads * (2 * self.rope_dim + together)


@dataclasses.dataclass(frozen=True)
class Linear(_Kind):
    """Gated linear (lightning) attention, whose cost per token does not grow with the sequence (arXiv 2401.04658,
    2501.08313)."""

    heads: int
    head_dim: int

    def __post_init__(self) -> None:
        _check_dimensions(self)

    def score_flops(self, sequence: int) -> float:
        """Return the FLOPs per token that update each head's state with keys and values and read it with queries."""
        return 4 * self.heads * self.head_dim**2

    def passed_on(self, tokens: int, sequences: int) -> int:
        """Return the elements of all heads' states, for all sequences."""
        return sequences * self.heads * self.head_dim**2

    def activation_elements(self, hidden: int) -> dict[str, float]:
        width = self.heads * self.head_dim
        return {"input": hidden, "norm": hidden, "qkv": 4 * width, "out": width}

    def products(self, hidden: int) -> list[tuple[int, int]]:
        width = self.heads * self.head_dim
        return [(hidden, 4 * width), (width, hidden)]

    @property
    def width(self) -> float:
        return self.head_dim

    def pointwise_elements(self) -> float:
        """Return the elements of gates and of the normed output, read and written."""
        return 4 * self.heads * self.head_dim


@dataclasses.dataclass(frozen=True)
class Mixed:
    """Attention of several kinds, each with its number of blocks. Every block counts as the mean of all."""

    parts: tuple[tuple["GroupedQuery | Latent | Linear", int], ...]

    def __post_init__(self) -> None:
        if not self.parts:
            raise checks.InputError("attention must have at least one kind, got none.")
        for _, blocks in self.parts:
            checks.whole("attention.blocks", blocks)

    def _mean(self, name: str, *of: int) -> float:
        total = sum(blocks * getattr(kind, name)(*of) for kind, blocks in self.parts)
        return total / sum(blocks for _, blocks in self.parts)

    params = functools.partialmethod(_mean, "params")
    score_flops = functools.partialmethod(_mean, "score_flops")
    passed_on = functools.partialmethod(_mean, "passed_on")

    def activation_elements(self, hidden: int) -> dict[str, float]:
        sums: dict[str, float] = {}
        for kind, share in self.shares:
            for name, elements in kind.activation_elements(hidden).items():
                sums[name] = sums.get(name, 0.0) + share * elements
        return sums

    @property
    def shares(self) -> list[tuple[Any, float]]:
        """Every kind with its fraction of the blocks."""
        total = sum(blocks for _, blocks in self.parts)
        return [(kind, blocks / total) for kind, blocks in self.parts]


Attention = GroupedQuery | Latent | Linear | Mixed


def up_params(attention: Attention, hidden: int) -> float:
    """Return the parameters that project latents to queries, keys and values; mean over blocks."""
    every = (
        (share, math.prod(kind.products(hidden)[number])) for kind, share in attention.shares for number in kind.ups
    )
    return sum(share * params for share, params in every)


def _check_dimensions(kind: Any, or_none: tuple[str, ...] = ()) -> None:
    for field in dataclasses.fields(kind):
        checks.whole(f"attention.{field.name}", getattr(kind, field.name), at_least=0 if field.name in or_none else 1)


@dataclasses.dataclass(frozen=True)
class Architecture:
    """Dimensions of one model. A block is attention and an FFN, with experts or dense.

    - `hidden`: width of a token; `expert_hidden`: inner width of one routed expert.
    - `shared_hidden`: inner width of all shared experts together; 0: none.
    - `dense_blocks`: number of leading dense blocks, or a tuple of the dense blocks' positions from 0.
    - `dense_hidden`: inner width of a dense FFN; 0: none.
    - `vocab`: vocabulary size of embedding and output head, one matrix if `tied`; 0: not counted.
    - `expert_groups`, `top_groups`: a token's experts lie in `top_groups` of `expert_groups` groups, which affects
      traffic only if the workload's `node_limit` is "model".
    - `next_tokens`: number of multi-token prediction blocks, which `blocks` leaves out.

    Raise `InputError` for a dimension that is not a whole number, `top_k` above `experts`, or blocks that do not exist.
    """

    name: str
    blocks: int
    hidden: int
    attention: Attention
    experts: int
    top_k: int
    expert_hidden: int
    source: str
    shared_hidden: int = 0
    dense_blocks: int | tuple[int, ...] = 0
    dense_hidden: int = 0
    vocab: int = 0
    tied: bool = False
    expert_groups: int = 1
    top_groups: int = 1
    next_tokens: int = 0

    def __post_init__(self) -> None:
        for field in ("blocks", "hidden", "experts", "top_k", "expert_hidden", "expert_groups", "top_groups"):
            checks.whole(field, getattr(self, field))
        for field in ("shared_hidden", "dense_hidden", "vocab", "next_tokens"):
            checks.whole(field, getattr(self, field), at_least=0)
        if not isinstance(self.tied, bool):
            raise checks.InputError(f"tied must be true or false, got {self.tied!r}.")
        if not isinstance(self.dense_blocks, tuple):
            checks.whole("dense_blocks", self.dense_blocks, at_least=0)
        if self.top_k > self.experts:
            raise checks.InputError(f"top_k must be at most experts ({self.experts}), got {self.top_k}.")
        which = self.dense_blocks if isinstance(self.dense_blocks, tuple) else tuple(range(self.dense_blocks))
        for block in which:
            checks.whole("dense_blocks", block, at_least=0)
        dense = len(which)
        if isinstance(self.dense_blocks, tuple) and (len({*which}) < dense or any(b >= self.blocks for b in which)):
            places = f"different places from 0 to {self.blocks - 1}"
            raise checks.InputError(f"dense_blocks must be {places}, got {list(which)}.")
        if dense >= self.blocks:
            raise checks.InputError(f"blocks must exceed the {dense} dense blocks of {self.name}, got {self.blocks}.")
        if dense and not self.dense_hidden:
            raise checks.InputError(f"dense_hidden must be above 0 for the {dense} dense blocks of {self.name}, got 0.")

    @functools.cached_property
    def moe_blocks(self) -> tuple[int, ...]:
        """Positions of the blocks with experts, ascending."""
        which = self.dense_blocks
        dense = set(which) if isinstance(which, tuple) else set(range(which))
        return tuple(block for block in range(self.blocks) if block not in dense)

    @property
    def attention_params(self) -> float:
        """Parameters of one block's attention, mean over blocks."""
        return self.attention.params(self.hidden)

    @property
    def gate_params(self) -> int:
        return self.hidden * self.experts

    @property
    def expert_params(self) -> int:
        return MATRICES_PER_FFN * self.hidden * self.expert_hidden

    @property
    def shared_params(self) -> int:
        """Parameters of all shared experts of one MoE block."""
        return MATRICES_PER_FFN * self.hidden * self.shared_hidden

    @property
    def dense_params(self) -> int:
        return MATRICES_PER_FFN * self.hidden * self.dense_hidden

    @property
    def head_params(self) -> int:
        """Parameters of the output head; the embedding has as many, unless tied."""
        return self.vocab * self.hidden

    @property
    def joining_params(self) -> int:
        """Parameters of an MTP projection, which joins two tokens' vectors before a multi-token prediction block."""
        return 2 * self.hidden**2

    @property
    def prediction_params(self) -> float:
        """Parameters of the `next_tokens` blocks: an MoE block and an MTP projection each (arXiv 2412.19437).
        They share the model's embedding and output head."""
        block = self.attention_params + self.gate_params + self.experts * self.expert_params + self.shared_params
        return self.next_tokens * (block + self.joining_params)

    def params(self, *, active: bool = False, embedding: bool = True, head: bool = True) -> float:
        """Return the parameters of the whole model, without the `next_tokens` blocks.

        - `active`: count only parameters that one token uses (`top_k` routed experts).
        - `embedding`, `head`: whether to count them; publishers differ. A tied matrix counts once for either.
        """
        routed = (self.top_k if active else self.experts) * self.expert_params
        moe = len(self.moe_blocks)
        inner = self.blocks * self.attention_params + moe * (self.gate_params + routed + self.shared_params)
        inner += (self.blocks - moe) * self.dense_params
        matrices = min(embedding + head, 1) if self.tied else embedding + head
        return inner + matrices * self.head_params


CONFIG = "config.json"  # the file of a release with these dimensions
OF_MODEL = {field.name: field for field in dataclasses.fields(Architecture) if field.name not in ("name", "source")}
_MIXTRAL_8X22B = "Mistral model card; yanring/Megatron-MoE-ModelZoo@e865051 Mixtral-8x22B.yaml"
_MIXTRAL_8X7B = "arXiv 2401.04088; mistralai/Mixtral-8x7B-v0.1 config.json"
_LLAMA = "arXiv 2406.16554; pjlab-sys4nlp/llama-moe@b17aff4 (2 of 16; the 3.5B variant takes 4 of 16)"
_QWEN = "Qwen/Qwen1.5-MoE-A2.7B config.json, with the 32 routed experts of arXiv 2501.03905 (the release has 60)"
_DEEPSEEK = "arXiv 2412.19437; deepseek-ai/DeepSeek-V3@9b4e978 config_671B.json (DeepSeek-R1 is the same architecture)"

# Blocks, width of a token, attention (heads, key-value heads, width of a head), experts, top-k, inner width of an
# expert.
MIXTRAL_8X22B = Architecture(
    "mixtral-8x22b", 56, 6144, GroupedQuery(48, 8, 128), 8, 2, 16384, source=_MIXTRAL_8X22B, vocab=32768
)
MIXTRAL_8X7B = Architecture(
    "mixtral-8x7b", 32, 4096, GroupedQuery(32, 8, 128), 8, 2, 14336, source=_MIXTRAL_8X7B, vocab=32000
)
LLAMA_MOE = Architecture("llama-moe-3.0b", 32, 4096, GroupedQuery(32, 32, 128), 16, 2, 688, source=_LLAMA, vocab=32000)
QWEN_MOE = Architecture(
    "qwen1.5-moe", 24, 2048, GroupedQuery(16, 16, 128), 32, 4, 1408, source=_QWEN, shared_hidden=5632, vocab=151936
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
    vocab=129280,
    expert_groups=8,
    top_groups=4,
    next_tokens=1,
    source=_DEEPSEEK,
)
