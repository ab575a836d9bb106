"""Seconds of a token where one replica of a model serves prompts and answers on the same GPUs, as engines run it.

`gpus` GPUs hold one replica and split attention by heads. Experts are split by `expert_gpus` (EP) and, within each of
them, by matrices. Every layer has two all-reduces. Kernels take what they were measured to take
(`workload/measured_kernels.toml`). Beside its own steps, a request waits for the prompts of others: while one answer is
written, each of the other requests brings one prompt.

Numbers are of one pass over all tokens of a batch; nothing is fitted to a served model.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import numpy as np

from mfabric_jax.apps.serving.expert_load import ExpertLoad, place_experts
from mfabric_jax.checks import InputError, Misfit, one_of, whole
from mfabric_jax.traffic.generator import layer_shares
from mfabric_jax.workload.gpus import Gpu
from mfabric_jax.workload.kernels import is_blackwell
from mfabric_jax.workload.measured_kernels import (
    FASTEST,
    ExpertWork,
    MeasuredKernels,
    all_reduce_s,
    decode_s,
    experts_s,
    latent_s,
    measured_kernels,
    pointwise_s,
    product_s,
    prompt_attention_s,
)
from mfabric_jax.workload.mixers import STATE_BYTES
from mfabric_jax.workload.models import Architecture
from mfabric_jax.workload.volume import ACTIVATION_BYTES


class EngineHabits(NamedTuple):
    """How an engine runs a pass.

    - `mixes`: passes hold tokens of prompts and of answers together. TensorRT-LLM: in-flight batching; vLLM: chunked
      prefill, on by default since V1. SGLang runs prompts in passes of their own (`--enable-mixed-chunk` is off).
    - `norms`: small kernels for the two norms with their residuals of a layer whose GPUs reduce together.
      TensorRT-LLM fuses them with all-reduces (`AllReduceFusionOp.RESIDUAL_RMS_NORM`).
    - `attention`: small kernels around attention: norms of heads, rotation, write of the cache. TensorRT-LLM's
      operator, which was measured as a whole, rotates and writes itself; latent attention was measured as a whole, too.
    - `latent_cache`: format of cached latents, unless stated: FP8 in TensorRT-LLM's recipe for DeepSeek-R1.
    """

    mixes: bool = False
    norms: int = 2
    attention: int = 3
    latent_cache: str | None = None


USUAL = EngineHabits()
HABITS = {
    "trtllm": EngineHabits(mixes=True, norms=0, attention=1, latent_cache="fp8"),
    "vllm": EngineHabits(mixes=True),
    "sglang": USUAL,
    FASTEST: USUAL,
}
MOE_KERNELS = 3  # small kernels of a layer with experts: the router's scores and choice, the sum with shared experts
LAYER_ELEMENTS = 10  # that small kernels of a layer read or write, over the width of a token
SQUARES = 2 * 4.0  # bytes of the sums of squares of a token's queries and keys
SEED = 0  # of the order in which layers' experts are popular


class ReplicaFormats(NamedTuple):
    """Number formats of projections of attention, of FFNs outside of routed experts, of routed experts, and of the
    cache."""

    attention: str
    ffn: str
    experts: str
    cache: str


def formats_of(weights: str, gpu: Gpu, *, latent: bool = False, cache: str | None = None) -> ReplicaFormats:
    """Return the formats of a release in `weights`.

    - NVFP4 releases keep latent attention in bf16 and state an FP8 cache (NVIDIA's DeepSeek-R1-FP4). Others cache in
      bf16, the engines' default, unless `cache` says otherwise.
    - mxfp4 and int4 hold only routed experts in four bits. Blackwell multiplies MXFP4 with MXFP8 activations, Hopper
      turns it into bf16 (TensorRT-LLM's deployment guide for gpt-oss).
    """
    blackwell = is_blackwell(gpu)
    known = {
        "bf16": ReplicaFormats("bf16", "bf16", "bf16", "bf16"),
        "fp8": ReplicaFormats("fp8", "fp8", "fp8", "bf16"),
        "nvfp4": ReplicaFormats("bf16" if latent else "nvfp4", "nvfp4", "nvfp4", "fp8"),
        "mxfp4": ReplicaFormats("bf16", "bf16", "mxfp4-fp8" if blackwell else "mxfp4", "bf16"),
        "int4": ReplicaFormats("bf16", "bf16", "int4", "bf16"),
    }
    formats = known[one_of("weights", weights, known)]
    return formats if cache is None else formats._replace(cache=cache)


@dataclasses.dataclass(frozen=True, eq=False)
class ServedReplica:
    """A model on the GPUs of one replica.

    - `gpus`: that split attention and FFNs; `expert_gpus`: EP, by which routed experts are split.
    - `load`: experts of each of `expert_gpus` GPUs and how often they are selected.
    - `habits`: of the engine.
    """

    architecture: Architecture
    kernels: MeasuredKernels
    formats: ReplicaFormats
    load: ExpertLoad
    gpus: int = 1
    expert_gpus: int = 1
    habits: EngineHabits = USUAL


def replica(
    architecture: Architecture,
    gpu: Gpu,
    gpus: int,
    expert_gpus: int = 1,
    weights: str = "fp8",
    *,
    engine: str = FASTEST,
    cache: str | None = None,
    measured_experts: bool = True,
) -> ServedReplica:
    """Return a replica of a model.

    - `measured_experts`: experts are as popular as those of OLMoE in each of its five kinds of text (arXiv
      2409.02060); else equally.

    Raise `InputError` for an unknown engine or format, and `Misfit` for degrees that do not divide the model.
    """
    whole("tp", gpus)
    whole("ep", expert_gpus)
    if gpus % expert_gpus:
        raise Misfit(f"ep must divide the tp = {gpus} GPUs of a replica, got {expert_gpus}.")
    if expert_gpus > architecture.experts:
        raise Misfit(
            f"ep must be at most the {architecture.experts} experts of {architecture.name}, got {expert_gpus}."
        )
    if gpu.memory_Bps is None:
        raise InputError(f"serving needs gpu.memory_gigabytes_per_s, which is not known for {gpu.name}.")
    kernels = measured_kernels(gpu, engine)
    latent = any(kind.whole_cache for kind, _ in architecture.attention.shares)
    cache = cache or (HABITS[engine].latent_cache if latent else None)
    return ServedReplica(
        architecture,
        kernels,
        formats_of(weights, gpu, latent=latent, cache=cache),
        _load(architecture, expert_gpus, measured_experts),
        gpus,
        expert_gpus,
        HABITS[engine],
    )


@functools.lru_cache(maxsize=64)
def _load(architecture: Architecture, expert_gpus: int, measured: bool) -> ExpertLoad:
    slots = -(-architecture.experts // expert_gpus)
    shares = None
    if measured and architecture.experts > 1:
        by_text, _ = layer_shares(architecture, LAYERS, SEED)
        shares = by_text.reshape(-1, architecture.experts)
    return place_experts(architecture, expert_gpus, slots, shares, placed=False)


LAYERS = 3  # for which popularity was measured


class PassTokens(NamedTuple):
    """Tokens of a pass: of `answers` requests that each see `context` tokens, and of `prompts` of `length` each."""

    answers: float = 0.0
    context: float = 0.0
    prompts: float = 0.0
    length: float = 0.0

    @property
    def every(self) -> float:
        return self.answers + self.prompts


class LayerParts(NamedTuple):
    """Seconds of a pass by part, over all layers.

    - `attention`: projections and scores; `experts`: routed experts of the busiest GPU, with the router; `dense`: dense
      FFNs and shared experts; `beside`: norms and other small kernels; `reduces`: all-reduces; `head`: output head.
    """

    attention: float
    experts: float
    dense: float
    beside: float
    reduces: float
    head: float

    @property
    def total(self) -> float:
        return sum(self)


# ---------------------------------------------------------------------------------------------------------------- parts
def pass_parts(model: ServedReplica, tokens: PassTokens) -> LayerParts:
    """Return the seconds of a pass by part."""
    facts, kernels, every = model.architecture, model.kernels, tokens.every
    moe, plain = len(facts.moe_blocks), facts.dense_part * (facts.blocks - len(facts.moe_blocks))
    mixers = facts.blocks * facts.mixer_part
    reduced = (mixers + moe + plain) * all_reduce_s(kernels, model.gpus, every * facts.hidden * ACTIVATION_BYTES)
    norms = (USUAL if model.gpus == 1 else model.habits).norms
    beside = norms / 2 * (mixers + moe + plain) + (MOE_KERNELS * moe if facts.choices else 0)
    moved = facts.blocks * every * facts.hidden * LAYER_ELEMENTS * ACTIVATION_BYTES
    written = tokens.answers + (tokens.prompts / tokens.length if tokens.length else 0.0)
    return LayerParts(
        facts.blocks * sum(share * attention_s(model, kind, tokens) for kind, share in facts.attention.shares),
        moe * (router_s(model, every) + routed_s(model, every)),
        moe * ffn_s(model, every, facts.shared_hidden) + plain * ffn_s(model, every, facts.dense_hidden),
        float(pointwise_s(kernels, beside, moved)),
        float(reduced),
        float(product_s(kernels, "bf16", written, facts.hidden, facts.vocab / model.gpus)) if facts.vocab else 0.0,
    )


def attention_s(model: ServedReplica, kind: Any, tokens: PassTokens) -> float:
    """Return the seconds of one layer's attention of a kind."""
    kernels, every, total = model.kernels, tokens.every, 0.0
    for shape in kind.products_of_gpu(model.architecture.hidden, model.gpus, decoding=tokens.prompts == 0):
        number = "bf16" if shape.absorbed else model.formats.attention
        total += float(product_s(kernels, number, every, shape.inner, shape.outer))
    if kind.whole_cache:
        total += float(latent_s(kernels, every))
    else:
        moved = ACTIVATION_BYTES * every * kind.pointwise_elements() / model.gpus
        total += float(pointwise_s(kernels, model.habits.attention, moved))
    if kind.whole_norm:
        total += float(all_reduce_s(kernels, model.gpus, every * SQUARES))
    total += decoding_s(model, kind, tokens) if tokens.answers else 0.0
    return total + (scores_s(model, kind, tokens) if tokens.prompts else 0.0)


def decoding_s(model: ServedReplica, kind: Any, tokens: PassTokens) -> float:
    """Return the seconds of one layer's attention over caches, indexers and recurrent states included."""
    kernels, part, context = model.kernels, kind.cache_part(model.gpus), tokens.context
    *before, core = kind.decoding(context) or (None,)
    total = sum(
        float(pointwise_s(kernels, 1, tokens.answers * (work.index_bytes + work.elements * ACTIVATION_BYTES)))
        for work in before
    )
    if kind.state:
        states = 2 * STATE_BYTES * tokens.answers * kind.state / model.gpus
        total += float(pointwise_s(kernels, 1, states))
    if core is None:
        return total
    seen = min(context, kind.limit) if kind.limit else context
    heads = max(1, round(kind.heads / model.gpus)) if kind.whole_cache else 0
    elements = part * core.elements / seen
    return total + float(decode_s(kernels, model.formats.cache, elements, tokens.answers, seen, heads))


def scores_s(model: ServedReplica, kind: Any, tokens: PassTokens) -> float:
    """Return the seconds of one layer's scores of whole prompts. Recurrences, and indexers, which every GPU computes,
    take their FLOPs at the rate of attention scores."""
    kernels, length = model.kernels, max(2.0, tokens.length)
    flop_s = float(prompt_attention_s(kernels, kind.width, 0, 1.0, 1.0, LONG)) / (2 * kind.width * LONG)
    if kind.state:
        return tokens.prompts * kind.score_flops(round(length)) / model.gpus * flop_s
    heads = kind.heads / model.gpus
    core = float(prompt_attention_s(kernels, kind.width, kind.limit, heads, tokens.prompts, length))
    return core + tokens.prompts * kind.index_heads * kind.index_dim * length * flop_s


LONG = 4096  # tokens of a prompt at whose rate recurrences compute


def router_s(model: ServedReplica, every: float) -> float:
    """Return the seconds of a router and of projections around routed experts; 0 without a router."""
    facts, kernels = model.architecture, model.kernels
    total = float(product_s(kernels, "bf16", every, facts.hidden, facts.choices)) if facts.choices else 0.0
    if facts.expert_width:
        for shape in (facts.hidden, facts.expert_width / model.gpus), (facts.expert_width / model.gpus, facts.hidden):
            total += float(product_s(kernels, model.formats.ffn, every, *shape))
    return total


def routed_s(model: ServedReplica, every: float) -> float:
    """Return the seconds of one layer's routed experts on the busiest GPU, mean over layers. A model without experts
    has one, a dense FFN."""
    facts, load = model.architecture, model.load
    if not facts.choices:
        return ffn_s(model, every, facts.expert_hidden)
    chances = load.slot_chances.reshape(len(load.slot_chances), load.gpus, load.slots)
    active = (1 - (1 - np.minimum(chances, 1.0)) ** every).sum(-1)
    split = model.gpus // model.expert_gpus
    copies = every * facts.top_k if model.expert_gpus > 1 else 0.0
    work = ExpertWork(
        active, every * chances.sum(-1), copies, facts.routed_width, facts.expert_hidden / split, facts.matrices
    )
    return float(experts_s(model.kernels, model.formats.experts, work).max(-1).mean())


def ffn_s(model: ServedReplica, every: float, width: float) -> float:
    """Return the seconds of an FFN that all GPUs of a replica split; 0 if `width` is 0."""
    if not width:
        return 0.0
    facts, inner = model.architecture, width / model.gpus
    shapes = (facts.hidden, (facts.matrices - 1) * inner), (inner, facts.hidden)
    products = sum(float(product_s(model.kernels, model.formats.ffn, every, *shape)) for shape in shapes)
    return products + float(pointwise_s(model.kernels, 1, ACTIVATION_BYTES * facts.matrices * every * inner))


# --------------------------------------------------------------------------------------------------------------- tokens
class TokenSeconds(NamedTuple):
    """Seconds of a token: a decoding step, the prompts of others that a token waits for, and the parts of the step."""

    step_s: float
    prompts_s: float
    parts: LayerParts

    @property
    def tpot_s(self) -> float:
        return self.step_s + self.prompts_s


def token_seconds(model: ServedReplica, requests: float, prompt: float, answer: float) -> TokenSeconds:
    """Return the seconds from token to token where `requests` at a time have prompts and answers of these lengths.

    An answer sees its prompt and, on average, half of itself. While a request writes its answer, each of the others
    brings one prompt, so that requests / answer prompts fall on a token. A prompt takes a pass of its own or, if the
    engine mixes, what it adds to a step.
    """
    decoding = PassTokens(requests, prompt + answer / 2)
    step = pass_parts(model, decoding)
    if model.habits.mixes:
        added_s = pass_parts(model, decoding._replace(prompts=prompt, length=prompt)).total - step.total
    else:
        added_s = pass_parts(model, PassTokens(prompts=prompt, length=prompt)).total
    return TokenSeconds(step.total, requests / answer * added_s, step)


def first_token_s(model: ServedReplica, prompt: float) -> float:
    """Return the seconds of a lone prompt's pass, which its first token ends."""
    return pass_parts(model, PassTokens(prompts=prompt, length=prompt)).total
