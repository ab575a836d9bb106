"""Attention of one block: parameters, operations and what it keeps for the backward pass, by kind.

Every kind has `params(hidden)`; `score_flops(sequence)`: forward FLOPs per token beside those of its projections,
causal; and `kept(hidden)`: elements per token that its backward pass needs, namely its input before and after the norm,
what its projections give, and its output (arXiv 2205.05198, with a fused kernel that does not store scores); and
`passed_on(tokens, sequences)`: elements that a context-parallel rank passes on (arXiv 2310.01889) of its part of so
many sequences, so many tokens together.
"""

import dataclasses

from mfabric_jax import checks


@dataclasses.dataclass(frozen=True)
class GroupedQuery:
    """Grouped-query attention; multi-head attention is the case `kv_heads == heads`.

    - `window`: tokens that a query sees at most, 0: all before it.

    `InputError` for a dimension that is no whole number, and for query heads that key-value heads do not divide.
    """

    heads: int
    kv_heads: int
    head_dim: int
    window: int = 0

    def __post_init__(self) -> None:
        _whole(self, "heads", "kv_heads", "head_dim")
        checks.whole("attention.window", self.window, at_least=0)
        if self.heads % self.kv_heads:
            raise checks.InputError(f"attention.kv_heads must divide the {self.heads} heads, got {self.kv_heads}.")

    def params(self, hidden: int) -> int:
        """Parameters of the query, key, value and output projections."""
        return 2 * hidden * self.head_dim * (self.heads + self.kv_heads)

    @property
    def score_width(self) -> int:
        """Multiply-adds per pair of (query token, key token): all heads, scores and weighted values together."""
        return self.heads * 2 * self.head_dim

    def score_flops(self, sequence: int) -> float:
        """Scores and weighted values of one token, the mean over a sequence."""
        return 2 * _keys(sequence, self.window) * self.score_width

    def passed_on(self, tokens: int, sequences: int) -> int:
        """Keys and values, all of them under a window, too."""
        return 2 * tokens * self.kv_heads * self.head_dim

    def kept(self, hidden: int) -> int:
        """Input and its norm, queries, keys, values, output."""
        return 2 * hidden + 2 * self.head_dim * (self.heads + self.kv_heads)


@dataclasses.dataclass(frozen=True)
class Latent:
    """Multi-head latent attention: queries, keys and values come out of low-rank projections (arXiv 2405.04434).

    - `query_rank`: 0 where queries are projected directly.

    `InputError` for a dimension that is no whole number.
    """

    heads: int
    query_rank: int
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int

    def __post_init__(self) -> None:
        _whole(self, "heads", "kv_rank", "nope_dim", "rope_dim", "value_dim")
        checks.whole("attention.query_rank", self.query_rank, at_least=0)

    @property
    def _query_width(self) -> int:
        return self.heads * (self.nope_dim + self.rope_dim)

    def params(self, hidden: int) -> int:
        """Parameters of all projections; the rotary part of the key is shared by the heads."""
        query = self.query_rank * (hidden + self._query_width) if self.query_rank else hidden * self._query_width
        key_value = hidden * (self.kv_rank + self.rope_dim)
        key_value += self.kv_rank * self.heads * (self.nope_dim + self.value_dim)
        return query + key_value + self.heads * self.value_dim * hidden

    @property
    def score_width(self) -> int:
        """Multiply-adds per pair of (query token, key token): all heads, scores and weighted values together."""
        return self.heads * (self.nope_dim + self.rope_dim + self.value_dim)

    def score_flops(self, sequence: int) -> float:
        """Scores and weighted values of one token, the mean over a sequence."""
        return 2 * _keys(sequence, 0) * self.score_width

    def passed_on(self, tokens: int, sequences: int) -> int:
        """The latent of keys and values, and the rotary part of the key."""
        return tokens * (self.kv_rank + self.rope_dim)

    def kept(self, hidden: int) -> int:
        """Input and its norm, both latents before and after theirs, queries, keys, values, output."""
        latents = 2 * self.query_rank + 2 * self.kv_rank + self.rope_dim
        return 2 * hidden + latents + 2 * self._query_width + 2 * self.heads * self.value_dim


@dataclasses.dataclass(frozen=True)
class Linear:
    """Gated linear attention, as lightning attention is (arXiv 2401.04658, 2501.08313): its cost per token does not
    grow with the sequence. `InputError` for a dimension that is no whole number."""

    heads: int
    head_dim: int

    def __post_init__(self) -> None:
        _whole(self, "heads", "head_dim")

    def params(self, hidden: int) -> int:
        """Parameters of the query, key, value, gate and output projections."""
        return 5 * hidden * self.heads * self.head_dim

    def score_flops(self, sequence: int) -> float:
        """Keys times values into the state of every head, and queries times that."""
        return 4 * self.heads * self.head_dim**2

    def passed_on(self, tokens: int, sequences: int) -> int:
        """The state of every head and sequence."""
        return sequences * self.heads * self.head_dim**2

    def kept(self, hidden: int) -> int:
        """Input and its norm, queries, keys, values, gate, output."""
        return 2 * hidden + 5 * self.heads * self.head_dim


@dataclasses.dataclass(frozen=True)
class Mixed:
    """Attention of several kinds: every block counts as the mean of them.

    - `parts`: (kind, so many blocks of it). `InputError` where there are none.
    """

    parts: tuple[tuple["GroupedQuery | Latent | Linear", int], ...]

    def __post_init__(self) -> None:
        if not self.parts:
            raise checks.InputError("attention must have at least one kind, got none.")
        for _, blocks in self.parts:
            checks.whole("attention.blocks", blocks)

    @property
    def blocks(self) -> int:
        """Of all kinds together."""
        return sum(blocks for _, blocks in self.parts)

    def _mean(self, name: str, *of: int) -> float:
        total = sum(blocks * getattr(kind, name)(*of) for kind, blocks in self.parts)
        return total / self.blocks

    def params(self, hidden: int) -> float:
        """Parameters of the mean block."""
        return self._mean("params", hidden)

    def score_flops(self, sequence: int) -> float:
        """Beside projections, one token, the mean block."""
        return self._mean("score_flops", sequence)

    def passed_on(self, tokens: int, sequences: int) -> float:
        """Elements of the mean block."""
        return self._mean("passed_on", tokens, sequences)

    def kept(self, hidden: int) -> float:
        """Elements per token of the mean block."""
        return self._mean("kept", hidden)


Attention = GroupedQuery | Latent | Linear | Mixed


def _whole(kind: object, *fields: str) -> None:
    for field in fields:
        checks.whole(f"attention.{field}", getattr(kind, field))


def _keys(sequence: int, window: int) -> float:
    """Keys that a query sees, the mean over a sequence."""
    seen = min(window or sequence, sequence)
    return seen - seen * seen / (2 * sequence)
