"""Architectures of the simulated Mixture-of-Experts models: dimensions, and the parameters that follow from them.

Norms, biases and the gates of shared experts are left out: they move next to no bytes and take next to no time.
"""

import dataclasses
import functools

from mfabric_jax import checks
from mfabric_jax.workload.attention import Attention, GroupedQuery, Latent

MATRICES_PER_FFN = 3  # SwiGLU: gate, up and down projection


@dataclasses.dataclass(frozen=True)
class Architecture:
    """Dimensions of one model. Every block is attention and an FFN, with experts or dense.

    - `hidden`: width of a token; `expert_hidden`: inner width of one routed expert.
    - `shared_hidden`: inner width of all shared experts together, 0 without any.
    - `dense_blocks`: how many FFNs have no experts, the first ones, or which (a tuple of places from 0).
    - `dense_hidden`: inner width of the FFN of a dense block, 0 without any.
    - `vocab`: words of the embedding and of the output head, which are the same matrix where `tied`; 0: not counted.
    - `expert_groups`, `top_groups`: experts are chosen from so many groups (traffic depends on it where a workload's
      `node_limit` is "model").
    - `next_tokens`: further blocks that predict more than the next word (a fact: they are not simulated).

    Raises `InputError` for a dimension that is no whole number, more choices than experts, blocks that are not there.
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
        if self.top_k > self.experts:
            raise checks.InputError(f"top_k must be at most experts ({self.experts}), got {self.top_k}.")
        self._check_blocks()

    def _check_blocks(self) -> None:
        which = self.dense_blocks
        for block in which if isinstance(which, tuple) else (which,):
            checks.whole("dense_blocks", block, at_least=0)
        if isinstance(which, tuple) and (len(set(which)) < len(which) or any(block >= self.blocks for block in which)):
            raise checks.InputError(
                f"dense_blocks must be different places from 0 to {self.blocks - 1}, got {list(which)}."
            )
        if (dense := len(which) if isinstance(which, tuple) else which) >= self.blocks:
            raise checks.InputError(f"blocks must exceed the {dense} dense blocks of {self.name}, got {self.blocks}.")
        if dense and not self.dense_hidden:
            raise checks.InputError(f"dense_hidden must be above 0 for the {dense} dense blocks of {self.name}, got 0.")

    @functools.cached_property
    def moe_blocks(self) -> tuple[int, ...]:
        """Places of the blocks with experts, ascending."""
        which = self.dense_blocks
        dense = set(which) if isinstance(which, tuple) else set(range(which))
        return tuple(block for block in range(self.blocks) if block not in dense)

    @property
    def attention_params(self) -> float:
        """Parameters of one block's attention (the mean where blocks differ)."""
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

    @property
    def head_params(self) -> int:
        """Parameters of the output head; as many again in the embedding, unless they are the same matrix."""
        return self.vocab * self.hidden

    @property
    def prediction_params(self) -> float:
        """Parameters of the `next_tokens` blocks that predict further words: an MoE block, and a projection of the
        hidden state beside the word (arXiv 2412.19437)."""
        block = self.attention_params + self.gate_params + self.experts * self.expert_params + self.shared_params
        return self.next_tokens * (block + 2 * self.hidden**2)

    def params(self, *, active: bool = False, embedding: bool = True, head: bool = True) -> float:
        """Parameters of the whole model, without those of `next_tokens`.

        - `active`: those that one token uses: of the routed experts `top_k`.
        - `embedding`, `head`: counted or not; publishers differ in that. A tied matrix counts once for either.
        """
        routed = (self.top_k if active else self.experts) * self.expert_params
        moe = len(self.moe_blocks)
        inner = self.blocks * self.attention_params + moe * (self.gate_params + routed + self.shared_params)
        inner += (self.blocks - moe) * self.dense_params
        matrices = min(embedding + head, 1) if self.tied else embedding + head
        return inner + matrices * self.head_params


_MIXTRAL_8X22B = "Mistral model card; yanring/Megatron-MoE-ModelZoo@e865051 Mixtral-8x22B.yaml"
_MIXTRAL_8X7B = "arXiv 2401.04088; mistralai/Mixtral-8x7B-v0.1 config.json"
_LLAMA = "arXiv 2406.16554; pjlab-sys4nlp/llama-moe@b17aff4 (2 of 16; the 3.5B variant takes 4 of 16)"
_QWEN = "Qwen/Qwen1.5-MoE-A2.7B config.json, with the 32 routed experts of arXiv 2501.03905 (the release has 60)"
_DEEPSEEK = "arXiv 2412.19437; deepseek-ai/DeepSeek-V3@9b4e978 config_671B.json (DeepSeek-R1 is the same architecture)"

# Blocks, width of a token, attention (heads, key-value heads, width of a head), experts, how many of them a token
# takes, inner width of an expert.
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
