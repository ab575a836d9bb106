"""Seconds of a token where one replica of a model serves prompts and answers on the same GPUs, as engines run it.

`gpus` GPUs hold one replica and split attention by heads. Experts are split by `expert_gpus` (EP) and, within each of
them, by matrices. Every layer has two all-reduces. Kernels take what they were measured to take
(`workload/measured_kernels.toml`). Beside its own steps, a request waits for the prompts of others: while one answer is
written, each of the other requests brings one prompt.

Numbers are of one pass over all tokens of a batch; nothing is fitted to a served model.
"""

import dataclasses
import functools
from typing import NamedTuple

from mfabric_jax.apps.serving.expert_load import ExpertLoad, place_experts
from mfabric_jax.apps.serving.layer_parts import (
    ATTENTION_KERNELS,
    LAYER_ELEMENTS,
    MOE_KERNELS,
    NORM_KERNELS,
    PassTokens,
    ServedModel,
    attention_s,
    ffn_s,
    formats_of,
    has_latents,
    head_s,
    routed_s,
    router_s,
    served_kernels,
)
from mfabric_jax.checks import Misfit, whole
from mfabric_jax.traffic.generator import layer_shares
from mfabric_jax.workload.gpus import Gpu
from mfabric_jax.workload.measured_kernels import FASTEST, all_reduce_s, pointwise_s
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
    norms: int = NORM_KERNELS
    attention: int = ATTENTION_KERNELS
    latent_cache: str | None = None


USUAL = EngineHabits()
HABITS = {
    "trtllm": EngineHabits(mixes=True, norms=0, attention=1, latent_cache="fp8"),
    "vllm": EngineHabits(mixes=True),
    "sglang": USUAL,
    FASTEST: USUAL,
}
SEED = 0  # of the order in which layers' experts are popular


@dataclasses.dataclass(frozen=True, eq=False)
class ServedReplica(ServedModel):
    """A model on the GPUs of one replica, which split attention, FFNs and experts. `habits`: of the engine."""

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
    table: str | None = None,
) -> ServedReplica:
    """Return a replica of a model.

    - `measured_experts`: experts are as popular as those of OLMoE in each of its five kinds of text (arXiv
      2409.02060); else equally.
    - `table`: a user's table of kernels (`measured_kernels`).

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
    latent = has_latents(architecture)
    cache = cache or (HABITS[engine].latent_cache if latent else None)
    return ServedReplica(
        architecture,
        served_kernels(gpu, engine, path=table),
        formats_of(weights, gpu, latent=latent, cache=cache),
        _load(architecture, expert_gpus, measured_experts),
        gpus,
        gpus,
        gpus // expert_gpus,
        habits=HABITS[engine],
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


def pass_parts(model: ServedReplica, tokens: PassTokens) -> LayerParts:
    """Return the seconds of a pass by part."""
    facts, every, gpus = model.architecture, tokens.every, model.tp
    moe, plain = len(facts.moe_blocks), facts.dense_part * model.dense_layers
    halves = facts.blocks * facts.mixer_part + moe + plain  # of layers: each has a norm and a reduction
    norms = (USUAL if gpus == 1 else model.habits).norms
    small = norms / 2 * halves + (MOE_KERNELS * moe if facts.choices else 0)
    moved = facts.blocks * every * facts.hidden * LAYER_ELEMENTS * ACTIVATION_BYTES
    sorted_copies = every * facts.top_k if model.gpus > 1 else 0.0
    written = tokens.answers + (tokens.prompts / tokens.length if tokens.length else 0.0)
    parts = LayerParts(
        facts.blocks * attention_s(model, tokens, model.habits.attention),
        moe * (router_s(model, every) + routed_s(model, every, sorted_copies)),
        moe * ffn_s(model, every, facts.shared_hidden) + plain * ffn_s(model, every, facts.dense_hidden),
        pointwise_s(model.kernels, small, moved),
        halves * all_reduce_s(model.kernels, gpus, every * facts.hidden * ACTIVATION_BYTES),
        head_s(model, written),
    )
    return LayerParts(*map(float, parts))


# --------------------------------------------------------------------------------------------------------------- tokens
class TokenSeconds(NamedTuple):
    """Seconds of a token: a decoding step, the prompts of others that a token waits for, and the parts of the step.

    `passes`: passes that fall on a token: the step, and prompts in passes of their own. Each waits for hosts.
    """

    step_s: float
    prompts_s: float
    parts: LayerParts
    passes: float = 1.0

    @property
    def tpot_s(self) -> float:
        return self.step_s + self.prompts_s


def token_seconds(
    model: ServedReplica, requests: float, prompt: float, answer: float, host_s: float = 0.0
) -> TokenSeconds:
    """Return the seconds from token to token where `requests` at a time have prompts and answers of these lengths.

    An answer sees its prompt and, on average, half of itself. While a request writes its answer, each of the others
    brings one prompt, so that requests / answer prompts fall on a token. A prompt takes a pass of its own or, if the
    engine mixes, what it adds to a step. `host_s`: seconds that every pass waits for hosts.
    """
    decoding, prompts = PassTokens(requests, prompt + answer / 2), requests / answer
    step = pass_parts(model, decoding)
    step_s = step.total + host_s
    if model.habits.mixes:
        added_s = pass_parts(model, decoding._replace(prompts=prompt, length=prompt)).total - step.total
        return TokenSeconds(step_s, prompts * added_s, step)
    return TokenSeconds(step_s, prompts * first_token_s(model, prompt, host_s), step, 1 + prompts)


def first_token_s(model: ServedReplica, prompt: float, host_s: float = 0.0) -> float:
    """Return the seconds of a lone prompt's pass, which its first token ends; `host_s`: its wait for hosts."""
    return pass_parts(model, PassTokens(prompts=prompt, length=prompt)).total + host_s
