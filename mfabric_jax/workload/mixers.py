"""What mixes the tokens of a sequence in a block: the kinds of attention, and state spaces.

Everything that a block's mixer costs follows from its class. Norms, biases, sinks and rotations of positions are left
out of parameters: they cost next to nothing. Each class has

- `products(hidden)`: inner and outer width of every projection, the output projection last; `ups`: indices of the
  projections from latents; `small_params(hidden)`: parameters outside projections (convolutions);
- `score_flops(sequence)`: causal forward FLOPs per token, without projections; `width`: mean width of a head's keys and
  values, by which measured rates are looked up;
- `activation_elements(hidden)`: elements per token that are kept for the backward pass, by name (arXiv 2205.05198, with
  a fused kernel that stores no scores); `pointwise_elements()`: elements per token that kernels between products and
  scores read or write;
- `passed_on(tokens, sequences)`: elements that a context-parallel rank sends to the next one (arXiv 2310.01889);
- `cache_elements(context)`, `index_bytes(context)`: elements and bytes that a request holds in decoding; `state`:
  elements of its state in float32, whatever the context; `whole_cache`: every GPU that splits heads holds the whole
  cache;
- `decoding(context)`: what each kernel of a decoding step reads and computes; `limit`: tokens that a query sees at
  most, 0: all;
- `products_of_gpu(hidden, gpus, decoding)`, `cache_part(gpus)`: what each of `gpus` GPUs that split heads computes and
  reads.
"""

import dataclasses
import math
from typing import Any, ClassVar, NamedTuple

from mfabric_jax import checks
from mfabric_jax.support.array_module import array_module

STATE_BYTES = 4.0  # of an element of a recurrent state, in float32


class DecodingWork(NamedTuple):
    """Work of one kernel of attention in decoding: `elements` in the cache's format and `index_bytes` that it reads for
    a request, and its FLOPs for a token."""

    elements: Any
    index_bytes: Any
    flops: Any


class Projection(NamedTuple):
    """Inner and outer width of a product on one GPU. `absorbed`: its weights are multiplied in bf16 whatever their
    format (up-projections of latents in decoding)."""

    inner: float
    outer: float
    absorbed: bool = False


class _Mixer:
    """Base class of mixers: a mixer without cache, state, latents or convolutions."""

    ups: Any = ()
    state: Any = 0
    limit: Any = 0
    whole_norm: Any = False
    whole_cache: ClassVar[bool] = False

    @property
    def shares(self) -> list[tuple[Any, float]]:
        """Every kind with its fraction of the blocks."""
        return [(self, 1.0)]

    def params(self: Any, hidden: int) -> int:
        return sum(inner * outer for inner, outer in self.products(hidden)) + self.small_params(hidden)

    def small_params(self, hidden: int) -> int:
        return 0

    def cache_elements(self, context: Any) -> Any:
        return 0.0 * context

    def index_bytes(self, context: Any) -> Any:
        return 0.0 * context

    def decoding(self, context: Any) -> tuple[DecodingWork, ...]:
        return ()

    def products_of_gpu(self: Any, hidden: int, gpus: int, *, decoding: bool) -> list[Projection]:
        """Return the products of one of `gpus` GPUs that split heads. `decoding`: of single tokens, not of prompts."""
        *first, (inner, outer) = self.products(hidden)
        return [*(Projection(wide, out / gpus) for wide, out in first), Projection(inner / gpus, outer)]

    def cache_part(self: Any, gpus: int) -> float:
        """Return the fraction of a request's cache that each of `gpus` GPUs that split heads reads."""
        return 1.0 if self.whole_cache else 1 / gpus


def _mean_seen(sequence: int, most: int) -> float:
    """Return the mean number of tokens that a query of a causal sequence sees; `most`: at most these; 0: all."""
    seen = min(most or sequence, sequence)
    return seen - seen * seen / (2 * sequence)


def _least(context: Any, most: int) -> Any:
    return array_module(context).minimum(context, most) if most else context


class _Indexed(_Mixer):
    """Attention that may have an indexer of `index_heads` heads of width `index_dim`, which scores every token.

    `index_in_fp8`: its keys are cached in FP8, else in the cache's format.
    """

    index_in_fp8: ClassVar[bool] = False

    @property
    def _index_queries(self: Any) -> int:
        """Width of the indexer's queries and key."""
        return (self.index_heads + 1) * self.index_dim

    def _index_keys(self: Any, context: Any, *, in_fp8: bool) -> Any:
        """Return the cached elements of the indexer's keys, if they have this format."""
        return context * self.index_dim if self.index_in_fp8 == in_fp8 else 0.0 * context

    def index_bytes(self, context: Any) -> Any:
        return self._index_keys(context, in_fp8=True)

    def _index_flops(self: Any, tokens: Any) -> Any:
        """Return the FLOPs of the indexer for a query over this many tokens."""
        return 2 * self.index_heads * self.index_dim * tokens

    def _after_indexer(self: Any, attention: DecodingWork, context: Any) -> tuple[DecodingWork, ...]:
        """Return attention in decoding, after the indexer that reads the keys of all tokens."""
        if not self.index_heads:
            return (attention,)
        elements = self._index_keys(context, in_fp8=False)
        return DecodingWork(elements, self.index_bytes(context), self._index_flops(context)), attention


@dataclasses.dataclass(frozen=True)
class GroupedQuery(_Indexed):
    """Grouped-query attention.

    - `kv_heads`: equals `heads` for multi-head attention; `window`: tokens that a query sees; 0: all.
    - `value_dim`: width of a head's values; 0: `head_dim`. `gated`: a gate multiplies the output (arXiv 2505.06708).
    - `query_rank`: rank of the projection to queries (multi-matrix factorization attention, arXiv 2412.19255); 0: full.
    - `index_top_k`: tokens that a query sees, chosen by an indexer of `index_heads` heads of width `index_dim`; 0: all,
      without an indexer. Its keys are cached as keys and values are.
    - `borrows`: keys and values are those of an earlier block (cross-layer attention, arXiv 2405.12981).
    - `whole_norm`: queries and keys are each normed over all heads together, so GPUs that split heads add up squares.

    Raise `InputError` unless dimensions are whole numbers and `kv_heads` divides `heads`, and for an indexer in part.
    """

    heads: int
    kv_heads: int
    head_dim: int
    window: int = 0
    value_dim: int = 0
    gated: bool = False
    query_rank: int = 0
    index_heads: int = 0
    index_dim: int = 0
    index_top_k: int = 0
    borrows: bool = False
    whole_norm: bool = False

    def __post_init__(self) -> None:
        _check_dimensions(self, or_none=("window", "value_dim", "query_rank", *_INDEXER))
        _check_indexer(self)
        if self.heads % self.kv_heads:
            raise checks.InputError(f"attention.kv_heads must divide the {self.heads} heads, got {self.kv_heads}.")

    @property
    def _value(self) -> int:
        return self.value_dim or self.head_dim

    @property
    def _out(self) -> int:
        return self.heads * self._value

    @property
    def _keys(self) -> int:
        """Width of the keys and values of all heads."""
        return self.kv_heads * (self.head_dim + self._value)

    @property
    def _own_keys(self) -> int:
        """Width of the keys and values that the block computes and caches."""
        return 0 if self.borrows else self._keys

    @property
    def limit(self) -> int:
        """Tokens that a query sees at most; 0: all."""
        return min(filter(None, (self.window, self.index_top_k)), default=0)

    def score_flops(self, sequence: int) -> float:
        seen = 2 * _mean_seen(sequence, self.limit) * self.heads * (self.head_dim + self._value)
        return seen + self._index_flops(sequence / 2)

    def passed_on(self, tokens: int, sequences: int) -> int:
        """Return the elements of keys and values (and of the indexer's key); a window does not reduce them."""
        return tokens * (self._own_keys + self.index_dim)

    def activation_elements(self, hidden: int) -> dict[str, Any]:
        """Return the elements of input, normed input, queries with keys and values (and gates, and those of the
        indexer), and output; queries from a latent, and the latent before and after its norm, by themselves."""
        queries, others = self.heads * self.head_dim, self._own_keys + self.gated * self._out + self._index_queries
        ends = {"input": hidden, "norm": hidden, "out": self._out}
        if not self.query_rank:
            return ends | {"qkv": queries + others}
        return ends | {"latents": 2 * self.query_rank, "mla-up": queries, "qkv": others}

    def products(self, hidden: int) -> list[tuple[int, int]]:
        queries, others = self.heads * self.head_dim, self._own_keys + self.gated * self._out
        rank = [(hidden, self.query_rank + others), (self.query_rank, queries)]
        indexer = [(hidden, self._index_queries)] if self.index_heads else []
        return [*(rank if self.query_rank else [(hidden, queries + others)]), *indexer, (self._out, hidden)]

    def products_of_gpu(self, hidden: int, gpus: int, *, decoding: bool) -> list[Projection]:
        """Return the products of one of `gpus` GPUs that split heads; each has at least one head of keys and values."""
        first, *others = super().products_of_gpu(hidden, gpus, decoding=decoding)
        copied = self._own_keys * (self.cache_part(gpus) - 1 / gpus)
        return [first._replace(outer=first.outer + copied), *others]

    def cache_part(self, gpus: int) -> float:
        return max(1 / gpus, 1 / self.kv_heads)

    @property
    def ups(self) -> tuple[int, ...]:
        """Indices of those `products` that project from latents."""
        return (1,) if self.query_rank else ()

    @property
    def width(self) -> float:
        return (self.head_dim + self._value) / 2

    def pointwise_elements(self) -> float:
        """Return the elements of rotated queries and keys (and those of the indexer), of the latent's norm, and of the
        gated output, read and written."""
        rotated = self.head_dim * (self.heads + (0 if self.borrows else self.kv_heads)) + self._index_queries
        return 2 * (rotated + self.query_rank) + self.gated * 3 * self._out

    def cache_elements(self, context: Any) -> Any:
        return _least(context, self.window) * self._own_keys + self._index_keys(context, in_fp8=False)

    def decoding(self, context: Any) -> tuple[DecodingWork, ...]:
        """Return attention over the tokens that the query sees, after the indexer over all of them, if there is one."""
        seen = _least(context, self.limit)
        flops = 2 * self.heads * (self.head_dim + self._value) * seen
        return self._after_indexer(DecodingWork(seen * self._keys, 0.0 * context, flops), context)


@dataclasses.dataclass(frozen=True)
class Latent(_Indexed):
    """Multi-head latent attention with low-rank projections (arXiv 2405.04434).

    - `query_rank`: 0 if queries are projected directly.
    - `index_top_k`: tokens that a query sees, chosen by an indexer of `index_heads` heads of width `index_dim`
      (DeepSeek Sparse Attention, arXiv 2512.02556); 0: all, without an indexer. Its keys are cached in FP8. Without
      `index_heads` the tokens are those that an earlier block's indexer chose.
    - `gated`: a gate multiplies the output.

    Raise `InputError` for a dimension that is not a whole number, and for an indexer in part.
    """

    heads: int
    query_rank: int
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    index_heads: int = 0
    index_dim: int = 0
    index_top_k: int = 0
    gated: bool = False

    whole_cache: ClassVar[bool] = True
    index_in_fp8: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check_dimensions(self, or_none=("query_rank", *_INDEXER))
        if self.index_heads or self.index_dim:
            _check_indexer(self)

    @property
    def _query_width(self) -> int:
        return self.heads * (self.nope_dim + self.rope_dim)

    def score_flops(self, sequence: int) -> float:
        width = self.nope_dim + self.rope_dim + self.value_dim
        return 2 * _mean_seen(sequence, self.index_top_k) * self.heads * width + self._index_flops(sequence / 2)

    def passed_on(self, tokens: int, sequences: int) -> int:
        """Return the elements of the key-value latent, of the key's rotary part and of the indexer's key."""
        return tokens * (self.kv_rank + self.rope_dim + self.index_dim)

    def activation_elements(self, hidden: int) -> dict[str, Any]:
        """Return the elements of input, normed input, latents (before and after their norms), queries with keys and
        values (and those of the indexer), and output."""
        latents = 2 * self.query_rank + 2 * self.kv_rank + self.rope_dim
        values = self.heads * self.value_dim
        up = 2 * self._query_width + values + self._index_queries + self.index_heads
        gate = {"qkv": values} if self.gated else {}
        return {"input": hidden, "norm": hidden, "latents": latents, "mla-up": up, "out": values} | gate

    def products(self, hidden: int) -> list[tuple[int, int]]:
        query = [(hidden, self.query_rank), (self.query_rank, self._query_width)]
        up = (self.kv_rank, self.heads * (self.nope_dim + self.value_dim))
        others = [(hidden, self.kv_rank + self.rope_dim), up]
        if self.index_heads:
            others += [(self.query_rank or hidden, self.index_heads * self.index_dim)]
            others += [(hidden, self.index_dim + self.index_heads)]
        if self.gated:
            others += [(hidden, self.heads * self.value_dim)]
        out = (self.heads * self.value_dim, hidden)
        return [*(query if self.query_rank else [(hidden, self._query_width)]), *others, out]

    def products_of_gpu(self, hidden: int, gpus: int, *, decoding: bool) -> list[Projection]:
        """Return the products of one of `gpus` GPUs that split heads: every GPU computes all latents, in one product;
        decoding multiplies queries and outputs by the up-projections (absorbed form)."""
        queries, heads = self._query_width / gpus, self.heads / gpus
        first = Projection(hidden, (self.query_rank or queries) + self.kv_rank + self.rope_dim)
        up = [Projection(self.query_rank, queries)] if self.query_rank else []
        absorbed = [(self.nope_dim, heads * self.kv_rank), (self.kv_rank, heads * self.value_dim)]
        if decoding:
            up += [Projection(*shape, absorbed=True) for shape in absorbed]
        else:
            up += [Projection(self.kv_rank, heads * (self.nope_dim + self.value_dim))]
        if self.index_heads:
            up += [Projection(self.query_rank or hidden, self.index_heads * self.index_dim)]
            up += [Projection(hidden, self.index_dim + self.index_heads)]
        if self.gated:
            up += [Projection(hidden, heads * self.value_dim)]
        return [first, *up, Projection(heads * self.value_dim, hidden)]

    @property
    def limit(self) -> int:
        return self.index_top_k

    @property
    def ups(self) -> tuple[int, ...]:
        """Indices of those `products` that project from latents."""
        return (1, 3) if self.query_rank else (2,)

    @property
    def width(self) -> float:
        return (self.nope_dim + self.rope_dim + self.value_dim) / 2

    def pointwise_elements(self) -> float:
        """Return the elements for norms of latents, rotated parts of queries, concatenated keys and values, the
        indexer's queries and keys, and the gated output."""
        latents = 2 * (self.query_rank + self.kv_rank) + self.gated * 3 * self.heads * self.value_dim
        together = 2 * (self.nope_dim + self.value_dim) + self.rope_dim
        return latents + self.heads * (2 * self.rope_dim + together) + 2 * self._index_queries

    def cache_elements(self, context: Any) -> Any:
        return context * (self.kv_rank + self.rope_dim)

    def decoding(self, context: Any) -> tuple[DecodingWork, ...]:
        """Return the indexer over all tokens, then attention in absorbed form: every head reads the latents that the
        query sees."""
        seen = _least(context, self.index_top_k)
        flops = 2 * self.heads * (2 * self.kv_rank + self.rope_dim) * seen
        return self._after_indexer(DecodingWork(self.cache_elements(seen), 0.0 * context, flops), context)


class _Recurrent(_Mixer):
    """A mixer whose cost per token does not grow with the sequence: heads have a state of `state` elements together."""

    def passed_on(self: Any, tokens: int, sequences: int) -> int:
        """Return the elements of all heads' states, for all sequences."""
        return sequences * self.state


class _Convolved(_Recurrent):
    """A recurrence after a causal convolution over `convolution` tokens, with a gated and normed output."""

    def small_params(self: Any, hidden: int) -> int:
        return self._convolution_width * self.convolution

    @property
    def _convolution_flops(self: Any) -> int:
        return 2 * self._convolution_width * self.convolution

    def pointwise_elements(self: Any) -> float:
        """Return the elements of the convolution and of the gated and normed output, read and written."""
        return 2 * self._convolution_width + 3 * self._out


@dataclasses.dataclass(frozen=True)
class Linear(_Recurrent):
    """Gated linear (lightning) attention (arXiv 2401.04658, 2501.08313)."""

    heads: int
    head_dim: int

    def __post_init__(self) -> None:
        _check_dimensions(self)

    @property
    def state(self) -> int:
        return self.heads * self.head_dim**2

    def score_flops(self, sequence: int) -> float:
        """Return the FLOPs per token that update each head's state with keys and values and read it with queries."""
        return 4 * self.state

    def activation_elements(self, hidden: int) -> dict[str, Any]:
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
class GatedDelta(_Convolved):
    """Gated delta rule (arXiv 2412.06464), as in Qwen3-Next: `key_heads` heads of queries and keys of width `key_dim`,
    `value_heads` of values of width `value_dim`; a causal convolution over `convolution` tokens before it.

    - `decay_rank`: rank of the projection to one decay for every channel of the keys, as in Kimi Delta Attention (arXiv
      2510.26692); 0: one decay for every head. `gate_rank`: rank of the projection to the output gate; 0: full.
    """

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    convolution: int = 4
    decay_rank: int = 0
    gate_rank: int = 0

    def __post_init__(self) -> None:
        _check_dimensions(self, or_none=("convolution", "decay_rank", "gate_rank"))
        if self.value_heads % self.key_heads:
            what = f"attention.key_heads must divide the {self.value_heads} value_heads"
            raise checks.InputError(f"{what}, got {self.key_heads}.")

    @property
    def _convolution_width(self) -> int:
        """Width of queries, keys and values."""
        return 2 * self.key_heads * self.key_dim + self._out

    @property
    def _out(self) -> int:
        return self.value_heads * self.value_dim

    @property
    def state(self) -> int:
        return self._out * self.key_dim

    def score_flops(self, sequence: int) -> float:
        """Return the FLOPs per token: each head's state is read for its key, corrected, and read for its query."""
        return 6 * self.state + self._convolution_flops

    def activation_elements(self, hidden: int) -> dict[str, Any]:
        """Return the elements of input, normed input, queries, keys and values (before and after the convolution) with
        output gate, decays and a number per head, and output."""
        decays = self.value_heads * self.key_dim + self.decay_rank if self.decay_rank else self.value_heads
        qkv = 2 * self._convolution_width + self._out + self.gate_rank + decays + self.value_heads
        return {"input": hidden, "norm": hidden, "qkv": qkv, "out": self._out}

    def products(self, hidden: int) -> list[tuple[int, int]]:
        gate, decay = self.gate_rank or self._out, self.decay_rank or self.value_heads
        first = [(hidden, self._convolution_width + gate + decay + self.value_heads)]
        first += [(self.gate_rank, self._out)] if self.gate_rank else []
        first += [(self.decay_rank, self.value_heads * self.key_dim)] if self.decay_rank else []
        return [*first, (self._out, hidden)]

    @property
    def width(self) -> float:
        return (self.key_dim + self.value_dim) / 2


@dataclasses.dataclass(frozen=True)
class Mamba2(_Convolved):
    """State space of Mamba 2 (arXiv 2405.21060): `heads` heads of width `head_dim`, each with `state_dim` states, whose
    inputs and outputs are shared in `groups`; a causal convolution over `convolution` tokens before it."""

    heads: int
    head_dim: int
    state_dim: int
    groups: int = 1
    convolution: int = 4

    def __post_init__(self) -> None:
        _check_dimensions(self, or_none=("convolution",))
        if self.heads % self.groups:
            raise checks.InputError(f"attention.groups must divide the {self.heads} heads, got {self.groups}.")

    @property
    def _out(self) -> int:
        return self.heads * self.head_dim

    @property
    def _convolution_width(self) -> int:
        """Width of what the convolution reads: values, and inputs and outputs of states."""
        return self._out + 2 * self.groups * self.state_dim

    @property
    def state(self) -> int:
        return self._out * self.state_dim

    def score_flops(self, sequence: int) -> float:
        """Return the FLOPs per token that decay and update each head's states and read them."""
        return 5 * self.state + self._convolution_flops

    def activation_elements(self, hidden: int) -> dict[str, Any]:
        """Return the elements of input, normed input, convolution (before and after), gate and time steps, and
        output."""
        inside = 2 * self._convolution_width + self._out + self.heads
        return {"input": hidden, "norm": hidden, "qkv": inside, "out": self._out}

    def products(self, hidden: int) -> list[tuple[int, int]]:
        return [(hidden, self._out + self._convolution_width + self.heads), (self._out, hidden)]

    @property
    def width(self) -> float:
        return self.head_dim


@dataclasses.dataclass(frozen=True)
class Mamba1(_Recurrent):
    """State space of Mamba 1 (arXiv 2312.00752): `inner` channels, each with `state_dim` states and a time step from a
    latent of `rank`; a causal convolution over `convolution` tokens before it."""

    inner: int
    state_dim: int
    rank: int
    convolution: int = 4

    def __post_init__(self) -> None:
        _check_dimensions(self, or_none=("convolution",))

    @property
    def state(self) -> int:
        return self.inner * self.state_dim

    @property
    def _small(self) -> int:
        """Width of the latent of time steps, and of what enters and leaves states."""
        return self.rank + 2 * self.state_dim

    def small_params(self, hidden: int) -> int:
        """Return the parameters of the convolution, and a rate of decay for each state."""
        return self.inner * (self.convolution + self.state_dim)

    def score_flops(self, sequence: int) -> float:
        """Return the FLOPs per token that form every state's decay (2), decay and update it and read it (5)."""
        return 7 * self.state + 2 * self.inner * self.convolution

    def activation_elements(self, hidden: int) -> dict[str, Any]:
        """Return the elements of input, normed input, convolution (before and after), gate, time steps and what enters
        and leaves states, and output."""
        return {"input": hidden, "norm": hidden, "qkv": 4 * self.inner + self._small, "out": self.inner}

    def products(self, hidden: int) -> list[tuple[int, int]]:
        return [(hidden, 2 * self.inner), (self.inner, self._small), (self.rank, self.inner), (self.inner, hidden)]

    @property
    def width(self) -> float:
        return self.state_dim

    def pointwise_elements(self) -> float:
        """Return the elements of the convolution and of the gated output, read and written."""
        return 5 * self.inner


Kind = GroupedQuery | Latent | Linear | GatedDelta | Mamba2 | Mamba1


@dataclasses.dataclass(frozen=True)
class Mixed:
    """Mixers of several kinds, each with its number of blocks; None: blocks without a mixer. Every block counts as the
    mean of all."""

    parts: tuple[tuple[Kind | None, int], ...]

    def __post_init__(self) -> None:
        if not any(kind is not None for kind, _ in self.parts):
            raise checks.InputError("attention must have at least one kind, got none.")
        for _, blocks in self.parts:
            checks.whole("attention.blocks", blocks)

    @property
    def shares(self) -> list[tuple[Any, float]]:
        """Every kind with its fraction of the blocks; the fractions sum to less than 1 if some blocks have no mixer."""
        total = sum(blocks for _, blocks in self.parts)
        return [(kind, blocks / total) for kind, blocks in self.parts if kind is not None]

    def params(self, hidden: int) -> float:
        return sum(share * kind.params(hidden) for kind, share in self.shares)

    def score_flops(self, sequence: int) -> float:
        return sum(share * kind.score_flops(sequence) for kind, share in self.shares)

    def passed_on(self, tokens: int, sequences: int) -> float:
        return sum(share * kind.passed_on(tokens, sequences) for kind, share in self.shares)

    def activation_elements(self, hidden: int) -> dict[str, Any]:
        sums: dict[str, float] = {}
        for kind, share in self.shares:
            for name, elements in kind.activation_elements(hidden).items():
                sums[name] = sums.get(name, 0.0) + share * elements
        return sums


Attention = Kind | Mixed


def up_params(attention: Attention, hidden: int) -> float:
    """Return the parameters that project latents to queries, keys and values; mean over blocks."""
    every = (
        (share, math.prod(kind.products(hidden)[number])) for kind, share in attention.shares for number in kind.ups
    )
    return sum(share * params for share, params in every)


_INDEXER = ("index_heads", "index_dim", "index_top_k")


def _check_indexer(kind: Any) -> None:
    indexer = [getattr(kind, name) for name in _INDEXER]
    if any(indexer) and not all(indexer):
        raise checks.InputError(
            f"attention.index_heads, index_dim and index_top_k must all be above 0, or all 0, got {indexer}."
        )


def _check_dimensions(kind: Any, or_none: tuple[str, ...] = ()) -> None:
    for field in dataclasses.fields(kind):
        value = getattr(kind, field.name)
        if field.type in (bool, "bool"):
            if not isinstance(value, bool):
                raise checks.InputError(f"attention.{field.name} must be true or false, got {value!r}.")
        else:
            checks.whole(f"attention.{field.name}", value, at_least=0 if field.name in or_none else 1)
