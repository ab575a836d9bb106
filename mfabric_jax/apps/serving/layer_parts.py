"""Seconds and bytes of a model's layers on one GPU, part by part, for replicas and for pools alike.

GPUs may split attention by heads, FFNs with the output head, and the matrices of every expert, each by its own number.
Kernels take what they were measured to take (`workload/measured_kernels.py`). Numbers of tokens may be arrays, NumPy's
or JAX's, that broadcast. Communication between layers is left to the callers: `replica` reduces, `step` sends tokens to
experts.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import numpy as np

from mfabric_jax.apps.serving.expert_load import SURE, ExpertLoad
from mfabric_jax.case import Case
from mfabric_jax.checks import InputError, one_of
from mfabric_jax.support.array_module import align_rank, array_module
from mfabric_jax.workload.gpus import Gpu
from mfabric_jax.workload.kernels import is_blackwell, states
from mfabric_jax.workload.measured_kernels import (
    CACHE,
    FASTEST,
    FORMATS,
    ExpertWork,
    MeasuredKernels,
    all_reduce_s,
    decode_s,
    experts_s,
    is_measured,
    latent_s,
    measured_kernels,
    pointwise_s,
    product_s,
    prompt_attention_s,
    score_flop_s,
)
from mfabric_jax.workload.mixers import STATE_BYTES
from mfabric_jax.workload.models import Architecture
from mfabric_jax.workload.volume import ACTIVATION_BYTES

NORM_KERNELS = 2  # small kernels of a layer: its two norms, each with its residual
ATTENTION_KERNELS = 3  # small kernels around attention: norms of heads, rotation, write of the cache
MOE_KERNELS = 3  # small kernels of a layer with experts: the router's scores and choice, the sum with shared experts
LAYER_ELEMENTS = 10  # that small kernels of a layer read or write, over the width of a token
SQUARES = 2 * 4.0  # bytes of the sums of squares of a token's queries and keys
LONG = 4096  # tokens of a prompt at whose rate recurrences and indexers compute
MOST_HEADS = 128  # of latent attention that were measured; kernels of more take as many times longer


class ServedFormats(NamedTuple):
    """Number formats of projections of attention, of FFNs outside of routed experts, of routed experts, and of the
    cache."""

    attention: str
    ffn: str
    experts: str
    cache: str


def formats_of(weights: str, gpu: Gpu, *, latent: bool = False, cache: str | None = None) -> ServedFormats:
    """Return the formats of a release in `weights`.

    - NVFP4 releases keep latent attention in bf16 and state an FP8 cache (NVIDIA's DeepSeek-R1-FP4). Others cache in
      bf16, the engines' default, unless `cache` says otherwise.
    - mxfp4 and int4 hold only routed experts in four bits: gpt-oss (arXiv 2508.10925), Kimi-K2-Thinking (model card).
      Blackwell multiplies MXFP4 with MXFP8 activations, Hopper turns it into bf16 (TensorRT-LLM's deployment guide for
      gpt-oss).

    Raise `InputError` for an unknown format, and for NVFP4 on a GPU that does not multiply it.
    """
    blackwell = is_blackwell(gpu)
    known = {
        "bf16": ServedFormats("bf16", "bf16", "bf16", "bf16"),
        "fp8": ServedFormats("fp8", "fp8", "fp8", "bf16"),
        "nvfp4": ServedFormats("bf16" if latent else "nvfp4", "nvfp4", "nvfp4", "fp8"),
        "mxfp4": ServedFormats("bf16", "bf16", "mxfp4-fp8" if blackwell else "mxfp4", "bf16"),
        "int4": ServedFormats("bf16", "bf16", "int4", "bf16"),
    }
    formats = known[one_of("weights", weights, known)]
    if weights == "nvfp4" and not blackwell:
        raise InputError(f"weights nvfp4 need a GPU of the Blackwell family, got {gpu.name}.")
    return formats if cache is None else formats._replace(cache=cache)


def served_kernels(gpu: Gpu, engine: str = FASTEST, how: str = "usual", path: str | None = None) -> MeasuredKernels:
    """Return the kernels of a GPU that serves (`measured_kernels`).

    Raise `InputError` if its memory's bandwidth is not known, and for NVLS where all-reduces were measured.
    """
    if gpu.memory_Bps is None:
        raise InputError(f"serving needs gpu.memory_gigabytes_per_s, which is not known for {gpu.name}.")
    if gpu.nvls and is_measured(gpu) and not states(path, gpu):
        raise InputError(
            f"gpu.nvls must be false for serving on {gpu.name}, whose all-reduces were measured, with NVLS where NCCL "
            "and engines chose it; leave it out."
        )
    return measured_kernels(gpu, engine, how, path)


def table_of(case: Case) -> str | None:
    """Return the user's table of kernels that a case states, or None."""
    return getattr(case.compute.rate, "table", None)


def has_latents(architecture: Architecture) -> bool:
    """Return whether a model has latent attention."""
    return any(kind.whole_cache for kind, _ in architecture.attention.shares)


@dataclasses.dataclass(frozen=True, eq=False)
class ServedModel:
    """A model on GPUs that serve it.

    - `load`: experts of each of the GPUs that split experts, and how often they are selected.
    - `tp`, `ffn_tp`, `expert_tp`: GPUs that split attention by heads, FFNs with the output head, and every expert.
    - `drafting`: whether an extra block drafts further tokens (MTP); `architecture` does not include that block.
    """

    architecture: Architecture
    kernels: MeasuredKernels
    formats: ServedFormats
    load: ExpertLoad
    tp: int = 1
    ffn_tp: int = 1
    expert_tp: int = 1
    drafting: bool = False

    @property
    def gpus(self) -> int:
        """GPUs that split experts."""
        return self.load.gpus

    @functools.cached_property
    def distinct_gpus(self) -> tuple[Any, Any]:
        """Chances of slots [layers, gpus, slots] and of GPUs [layers, gpus], with one GPU for all that have equal
        ones."""
        load = self.load
        chances, taken = load.slot_chances.reshape(len(load.slot_chances), load.gpus, load.slots), load.per_gpu()
        each = np.concatenate([np.sort(chances, axis=-1), taken[..., None]], axis=-1)
        keys = np.moveaxis(each, 1, 0).reshape(load.gpus, -1)
        _, first = np.unique(np.round(keys / (SURE * abs(keys).max())), axis=0, return_index=True)
        return chances[:, first], taken[:, first]

    @property
    def dense_layers(self) -> int:
        return self.architecture.blocks - len(self.architecture.moe_blocks)

    def parameter_bytes(self, part: str) -> float:
        """Return the bytes of a parameter, scales included. `part`: a field of `ServedFormats`."""
        return FORMATS[getattr(self.formats, part)].weight


class PassTokens(NamedTuple):
    """Tokens of a pass on all GPUs that split attention.

    - `answers`: tokens of answers that each see `context` tokens (None: no answers), `queries` of each request.
    - `prompts`: tokens of prompts of `length` each (0: no prompts).
    """

    answers: Any = 0.0
    context: Any = None
    prompts: Any = 0.0
    length: float = 0.0
    queries: float = 1.0

    @property
    def every(self) -> Any:
        return self.answers + self.prompts


# ------------------------------------------------------------------------------------------------------------ attention
def attention_s(model: ServedModel, tokens: PassTokens, small: float = ATTENTION_KERNELS) -> Any:
    """Return the seconds of one layer's attention, mean over layers. `small`: small kernels around it."""
    total = 0.0
    for kind, share in model.architecture.attention.shares:
        total = total + share * _projections_s(model, kind, tokens, small)
        if tokens.context is not None:
            total = total + share * _decoding_s(model, kind, tokens)
        if tokens.length:
            total = total + share * _scores_s(model, kind, tokens)
    return total


def _projections_s(model: ServedModel, kind: Any, tokens: PassTokens, small: float) -> Any:
    """Seconds of the products around attention and of small kernels; those of latent attention were measured as a
    whole."""
    kernels, every, total = model.kernels, tokens.every, 0.0
    for shape in kind.products_of_gpu(model.architecture.hidden, model.tp, decoding=not tokens.length):
        number = "bf16" if shape.absorbed else model.formats.attention
        total = total + product_s(kernels, number, every, shape.inner, shape.outer)
    if kind.whole_norm:
        total = total + all_reduce_s(kernels, model.tp, every * SQUARES)
    if kind.whole_cache:
        return total + latent_s(kernels, every)
    return total + pointwise_s(kernels, small, ACTIVATION_BYTES * every * kind.pointwise_elements() / model.tp)


def _decoding_s(model: ServedModel, kind: Any, tokens: PassTokens) -> Any:
    """Seconds of one layer's attention over caches, indexers and recurrent states included.

    An indexer reads its keys or takes its FLOPs. Several queries of a request read latents as more heads do.
    """
    kernels, cache, context = model.kernels, model.formats.cache, tokens.context
    xp, requests = array_module(*tokens), tokens.answers / tokens.queries
    *before, core = kind.decoding(context) or (None,)
    total = 0.0
    for work in before:
        read_s = pointwise_s(kernels, 1, requests * (work.index_bytes + work.elements * CACHE[cache]))
        total = total + xp.maximum(read_s, tokens.answers * work.flops * score_flop_s(kernels, kind.width, LONG))
    if kind.state:
        total = total + pointwise_s(kernels, 1, 2 * STATE_BYTES * requests * kind.state / model.tp)
    if core is None:
        return total
    seen = xp.minimum(context, kind.limit) if kind.limit else context
    elements, heads = kind.cache_part(model.tp) * core.elements / seen, 0
    if kind.whole_cache:
        several = kind.heads / model.tp * tokens.queries
        elements, heads = elements * max(1.0, several / MOST_HEADS), max(1, round(several))
    return total + decode_s(kernels, cache, elements, requests, seen, heads)


def _scores_s(model: ServedModel, kind: Any, tokens: PassTokens) -> Any:
    """Seconds of one layer's scores of whole prompts. Recurrences, and indexers, which every GPU computes, take their
    FLOPs at the rate of attention scores."""
    kernels, length, flop_s = model.kernels, max(2.0, tokens.length), score_flop_s(model.kernels, kind.width, LONG)
    if kind.state:
        return tokens.prompts * kind.score_flops(round(length)) / model.tp * flop_s
    core = prompt_attention_s(kernels, kind.width, kind.limit, kind.heads / model.tp, tokens.prompts, length)
    return core + tokens.prompts * kind.index_heads * kind.index_dim * length * flop_s


# --------------------------------------------------------------------------------------------- experts and other layers
def routed_s(model: ServedModel, every: Any, copies: Any = 0.0) -> Any:
    """Return the seconds of one layer's routed experts on the busiest GPU, mean over layers.

    - `every`: tokens of all GPUs that split experts; `copies`: copies of tokens that each GPU sorts (`ExpertWork`).

    A model without a router has one expert, a dense FFN.
    """
    facts, xp = model.architecture, array_module(every)
    if not facts.choices:
        return ffn_s(model, every * model.load.per_gpu().max(), facts.expert_hidden)
    every = xp.asarray(every, float)[..., None, None]
    chances, taken = model.distinct_gpus
    missed = xp.power(align_rank(1 - np.minimum(chances, 1.0), every[..., None]), every[..., None])
    work = ExpertWork(
        (1 - missed).sum(-1),
        every * align_rank(taken, every),
        copies,
        facts.routed_width,
        facts.expert_hidden / model.expert_tp,
        facts.matrices,
    )
    return experts_s(model.kernels, model.formats.experts, work).max(-1).mean(-1)


def router_s(model: ServedModel, tokens: Any) -> Any:
    """Return the seconds of a router and of projections around routed experts; 0 without a router."""
    facts, kernels, total = model.architecture, model.kernels, 0.0 * tokens
    if facts.choices:
        total = total + product_s(kernels, "bf16", tokens, facts.hidden, facts.choices)
    if facts.expert_width:
        width = facts.expert_width / model.ffn_tp
        for inner, outer in (facts.hidden, width), (width, facts.hidden):
            total = total + product_s(kernels, model.formats.ffn, tokens, inner, outer)
    return total


def ffn_s(model: ServedModel, tokens: Any, width: float) -> Any:
    """Return the seconds of an FFN outside of routed experts; 0 if `width` is 0."""
    if not width:
        return 0.0 * tokens
    facts, number, inner = model.architecture, model.formats.ffn, width / model.ffn_tp
    first = product_s(model.kernels, number, tokens, facts.hidden, (facts.matrices - 1) * inner)
    gated = pointwise_s(model.kernels, 1, ACTIVATION_BYTES * facts.matrices * tokens * inner)
    return first + gated + product_s(model.kernels, number, tokens, inner, facts.hidden)


def small_kernels_s(model: ServedModel, tokens: Any, *, norms: float = NORM_KERNELS, moe: bool = False) -> Any:
    """Return the seconds of a layer's `norms` small kernels of norms and, with `moe`, of those around experts."""
    count = norms + (MOE_KERNELS if moe and model.architecture.choices else 0)
    return pointwise_s(model.kernels, count, tokens * model.architecture.hidden * LAYER_ELEMENTS * ACTIVATION_BYTES)


def joining_s(model: ServedModel, tokens: Any) -> Any:
    """Return the seconds of the MTP projection before a drafting block (`joining_params`), which every GPU has."""
    hidden = model.architecture.hidden
    return product_s(model.kernels, model.formats.ffn, tokens, 2 * hidden, hidden)


def head_s(model: ServedModel, tokens: Any) -> Any:
    """Return the seconds of the output head; 0 without a vocabulary."""
    facts = model.architecture
    if not facts.vocab:
        return 0.0 * tokens
    return product_s(model.kernels, "bf16", tokens, facts.hidden, facts.vocab / model.ffn_tp)


# --------------------------------------------------------------------------------------------------------------- memory
def weight_bytes(model: ServedModel) -> float:
    """Return the weights of a GPU [B]: attention, dense and shared FFNs, experts in its slots, router, embedding and
    head. A drafting block adds one block with experts and its MTP projection (`joining_params`)."""
    facts, moe = model.architecture, len(model.architecture.moe_blocks) + model.drafting
    attention = (facts.blocks + model.drafting) * facts.attention_params / model.tp
    ffn = model.dense_layers * facts.dense_params + model.drafting * facts.joining_params
    plain = moe * facts.gate_params + facts.head_params * (1 if facts.tied else 2)
    others = model.parameter_bytes("ffn") * ffn + ACTIVATION_BYTES * plain
    return model.parameter_bytes("attention") * attention + others / model.ffn_tp + expert_bytes(model)


def expert_bytes(model: ServedModel) -> float:
    """Return the weights of a GPU's routed and shared experts [B]."""
    facts, ffn = model.architecture, model.parameter_bytes("ffn")
    each = model.parameter_bytes("experts") if facts.choices else ffn
    routed = each * model.load.slots * facts.expert_params / model.expert_tp
    return (len(facts.moe_blocks) + model.drafting) * (ffn * facts.shared_params / model.ffn_tp + routed)


def cache_bytes(model: ServedModel, context: Any, gpus: int = 1) -> Any:
    """Return the bytes that a request of `context` tokens caches in all layers: keys and values of windows no further
    than they see, and keys of indexers.

    - `gpus`: GPUs that split the heads of attention; the bytes are those of one of them, which has at least one head
      of keys and values.
    """
    total = 0.0 * context
    for kind, share in model.architecture.attention.shares:
        held = kind.cache_elements(context) * CACHE[model.formats.cache] + kind.index_bytes(context)
        total = total + share * kind.cache_part(gpus) * held
    return (model.architecture.blocks + model.drafting) * total


def state_bytes(model: ServedModel) -> float:
    """Return the bytes of a request's states of recurrent layers, over all layers; 0 if there are none."""
    each = sum(share * kind.state * STATE_BYTES for kind, share in model.architecture.attention.shares)
    return (model.architecture.blocks + model.drafting) * each


def request_bytes(model: ServedModel, context: Any) -> Any:
    """Return the bytes of one request's cache and states on each GPU that computes its attention."""
    return cache_bytes(model, context, model.tp) + state_bytes(model) / model.tp
