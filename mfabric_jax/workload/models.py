"""Models as what their parts are: in every block a mixer of tokens (attention, a state space or none) and an FFN (with
experts, dense or none).

Parameters, FLOPs, memory, bytes and times follow from the parts. Norms and biases are left out: they cost next to
nothing.
"""

import dataclasses
import functools

from mfabric_jax import checks
from mfabric_jax.workload.mixers import Attention, GroupedQuery, Latent


@dataclasses.dataclass(frozen=True)
class Architecture:
    """Parts of one model. A block is a mixer (`attention`) and an FFN, with experts, dense or neither.

    - `hidden`: width of a token; `expert_hidden`: inner width of one routed expert.
    - `shared_hidden`: inner width of all shared experts together; 0: none.
    - `dense_blocks`: number of leading dense blocks, or a tuple of the dense blocks' positions from 0.
    - `dense_hidden`: inner width of a dense FFN; 0: none. `bare_blocks`: positions of blocks without an FFN.
    - `matrices`: of every FFN: 3 (gate, up and down projection, as in SwiGLU) or 2 (without a gate).
    - `zero_experts`: experts that return their input and compute nothing; `top_k` then counts the others, on average.
    - `expert_width`: width of the vectors that routed experts take, between two projections from and to `hidden`; 0:
      `hidden`, without projections.
    - `vocab`: vocabulary size of embedding and output head, one matrix if `tied`; 0: not counted.
    - `expert_groups`, `top_groups`: a token's experts lie in `top_groups` of `expert_groups` groups, which affects
      traffic only if the workload's `node_limit` is "model".
    - `next_tokens`: number of multi-token prediction blocks, which `blocks` leaves out.

    A model without experts has one, which takes every token.

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
    bare_blocks: tuple[int, ...] = ()
    matrices: int = 3
    zero_experts: int = 0
    expert_width: int = 0

    def __post_init__(self) -> None:
        for field in ("blocks", "hidden", "experts", "top_k", "expert_hidden", "expert_groups", "top_groups"):
            checks.whole(field, getattr(self, field))
        for field in ("shared_hidden", "dense_hidden", "vocab", "next_tokens", "zero_experts", "expert_width"):
            checks.whole(field, getattr(self, field), at_least=0)
        if self.matrices not in (2, 3):
            raise checks.InputError(f"matrices must be 2 or 3, got {self.matrices!r:.80}.")
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
        bare = self._checked_bare(which)
        if dense + bare >= self.blocks:
            without = f"{dense} dense blocks" + (f" and {bare} without an FFN" if bare else "")
            raise checks.InputError(f"blocks must exceed the {without} of {self.name}, got {self.blocks}.")
        if dense and not self.dense_hidden:
            raise checks.InputError(f"dense_hidden must be above 0 for the {dense} dense blocks of {self.name}, got 0.")

    def _checked_bare(self, dense: tuple[int, ...]) -> int:
        for block in self.bare_blocks:
            checks.whole("bare_blocks", block, at_least=0)
        bare = {*self.bare_blocks}
        if len(bare) < len(self.bare_blocks) or bare & {*dense} or any(block >= self.blocks for block in bare):
            places = f"different places from 0 to {self.blocks - 1} that are not dense"
            raise checks.InputError(f"bare_blocks must be {places}, got {list(self.bare_blocks)}.")
        return len(bare)

    @functools.cached_property
    def moe_blocks(self) -> tuple[int, ...]:
        """Positions of the blocks with experts, ascending."""
        which = self.dense_blocks
        without = {*self.bare_blocks, *(which if isinstance(which, tuple) else range(which))}
        return tuple(block for block in range(self.blocks) if block not in without)

    @functools.cached_property
    def dense_part(self) -> float:
        """Fraction of the blocks without experts that have a dense FFN; 1 if there are none."""
        plain = self.blocks - len(self.moe_blocks)
        return 1 - len(self.bare_blocks) / plain if plain else 1.0

    @functools.cached_property
    def mixer_part(self) -> float:
        """Fraction of the blocks that have a mixer."""
        return sum(share for _, share in self.attention.shares)

    @property
    def routed_width(self) -> int:
        """Width of the vectors that travel to routed experts."""
        return self.expert_width or self.hidden

    @functools.cached_property
    def attention_params(self) -> float:
        """Parameters of one block's attention, mean over blocks."""
        return self.attention.params(self.hidden)

    @property
    def gate_params(self) -> int:
        """Parameters of one MoE block's router, and of the projections around its routed experts."""
        return self.hidden * (self.choices + 2 * self.expert_width)

    @property
    def choices(self) -> int:
        """Experts that a router chooses from; 0 without a router: the one expert of a dense model takes every token."""
        every = self.experts + self.zero_experts
        return every if every > 1 else 0

    @property
    def expert_params(self) -> int:
        return self.matrices * self.routed_width * self.expert_hidden

    @property
    def shared_params(self) -> int:
        """Parameters of all shared experts of one MoE block."""
        return self.matrices * self.hidden * self.shared_hidden

    @property
    def dense_params(self) -> float:
        """Parameters of the FFN of one block without experts, mean over these blocks."""
        return self.dense_part * self.matrices * self.hidden * self.dense_hidden

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
