"""Seconds of one decoding step and of one prefill pass, by part, as plain arithmetic on numbers or arrays.

Every GPU computes attention for its own requests (or `tp` GPUs split it) and holds some experts. Tokens travel to
experts and back in every MoE layer. A matrix product takes the longer of its FLOPs at the rate of measured kernels and
its operands at the memory's rate. Attention takes the longer of reading the requests' caches and its FLOPs. Experts
take the time of the busiest GPU. Two micro-batches can hide communication: with X seconds of communication, and C of
computation on the cores that communication leaves, a layer takes max(2C, 2X, C + X). Without overlap, both
micro-batches run as one, and communication follows computation.

Sources: DeepSeek-V3, arXiv 2412.19437; SGLang, lmsys.org of 2025-05-05; FlashMLA, deepseek-ai/open-infra-index.
"""

import dataclasses
from typing import Any, NamedTuple, Protocol

import numpy as np

from mfabric_jax import units
from mfabric_jax.apps.serving.expert_load import SURE, ExpertLoad
from mfabric_jax.apps.serving.families import Family, TransferKernel
from mfabric_jax.apps.serving.group import Crossing
from mfabric_jax.checks import InputError
from mfabric_jax.support.array_module import align_rank, array_module
from mfabric_jax.workload import Gpu
from mfabric_jax.workload.kernels import KernelRates as Measured
from mfabric_jax.workload.kernels import is_blackwell, rates_of, table
from mfabric_jax.workload.measured_kernels import CACHE, FORMATS
from mfabric_jax.workload.mixers import STATE_BYTES
from mfabric_jax.workload.models import Architecture
from mfabric_jax.workload.volume import ACTIVATION_BYTES

FP4_OVER_FP8 = 2.0  # peak rates on Blackwell; kernels are assumed to achieve the same fraction of both
DECODING = (
    3000 / 3350,
    580 / 989.4,
)  # FlashMLA on H800: fractions of memory bandwidth and of bf16 FLOP/s; assumed for other attention, too
KERNELS = {"attention": 8, "layer": 10, "experts": 4, "ffn": 3}  # kernels that a usual implementation launches
NORMS = 10  # elements that two norms and residuals move per element of a token
ROUTER = 6  # passes over float32 logits, as in training


class WeightFormat(NamedTuple):
    """Bytes of a parameter of routed experts and of other matrices, scales included, and the format of products."""

    experts: float
    others: float
    products: str


# Weights of four bits become bf16 before they are multiplied (weight only); Blackwell multiplies NVFP4. Releases in
# four bits hold routed experts so, other weights in bf16: gpt-oss (arXiv 2508.10925), Kimi-K2-Thinking (model card).
_BYTES = {name: form.weight for name, form in FORMATS.items()}
WEIGHTS = {
    "bf16": WeightFormat(_BYTES["bf16"], _BYTES["bf16"], "bf16"),
    "fp8": WeightFormat(_BYTES["fp8"], _BYTES["fp8"], "fp8"),  # a scale for a block of 128 x 128, or for a tensor
    "nvfp4": WeightFormat(_BYTES["nvfp4"], _BYTES["nvfp4"], "nvfp4"),
    "mxfp4": WeightFormat(_BYTES["mxfp4"], _BYTES["bf16"], "bf16"),
    "int4": WeightFormat(_BYTES["int4"], _BYTES["bf16"], "bf16"),
}


class ServingRates(NamedTuple):
    """Rates that a GPU achieves.

    - `products`, `grouped`, `plain`, `attention` [FLOP/s]: matrix products, experts' grouped products, bf16 products,
      and attention in decoding.
    - `memory_Bps`, `cache_Bps`: of memory, and of memory when attention reads a cache.
    - `launch_s`: of one kernel; `prompts`: rates of attention over whole prompts.
    """

    products: float
    grouped: float
    plain: float
    attention: float
    memory_Bps: float
    cache_Bps: float
    launch_s: float
    prompts: Measured


def rates(gpu: Gpu, weights: str, how: str = "usual", path: str | None = None) -> ServingRates:
    """Return the rates of a GPU by the table of measured kernels. `weights`: a key of `WEIGHTS`."""
    if gpu.memory_Bps is None:
        raise InputError(f"serving needs gpu.memory_gigabytes_per_s, which is not known for {gpu.name}.")
    products = WEIGHTS[weights].products
    kernel_rates, number = rates_of(gpu, how, path), "bf16" if products == "bf16" else "fp8"
    faster = 1.0
    if products == "nvfp4":
        if not is_blackwell(gpu):
            raise InputError(f"serving.formats.weights nvfp4 needs a GPU of the Blackwell family, got {gpu.name}.")
        faster = FP4_OVER_FP8
    memory, flops = DECODING
    typical = rates_of(gpu, "usual", path)
    swing = kernel_rates.memory_Bps / typical.memory_Bps, kernel_rates.products["bf16"] / typical.products["bf16"]
    return ServingRates(
        products=faster * kernel_rates.products[number],
        grouped=faster * kernel_rates.grouped[number],
        plain=kernel_rates.products["bf16"],
        attention=min(1.0, flops * swing[1]) * gpu.bf16_flops,
        memory_Bps=kernel_rates.memory_Bps,
        cache_Bps=min(1.0, memory * swing[0]) * gpu.memory_Bps,
        launch_s=float(units.us(table()["launch"]["us"])),
        prompts=kernel_rates,
    )


@dataclasses.dataclass(frozen=True)
class ServingModel:
    """A model on the GPUs of a group.

    - `tp`: GPUs that split attention; `weights`, `cache`: number formats.
    - `drafting`: whether an extra block drafts further tokens (MTP); `architecture` does not include that block.
    """

    architecture: Architecture
    load: ExpertLoad
    tp: int = 1
    weights: str = "fp8"
    cache: str = "bf16"
    drafting: bool = False

    @property
    def gpus(self) -> int:
        """GPUs of the group."""
        return self.load.gpus

    @property
    def weight_bytes(self) -> float:
        """Bytes of a parameter outside of routed experts."""
        return WEIGHTS[self.weights].others

    @property
    def expert_bytes(self) -> float:
        """Bytes of a parameter of routed experts."""
        return WEIGHTS[self.weights].experts

    @property
    def dense_layers(self) -> int:
        return self.architecture.blocks - len(self.architecture.moe_blocks)


# ---------------------------------------------------------------------------------------------------------- attention
def cache_bytes(model: ServingModel, context: Any, gpus: int = 1) -> Any:
    """Return the bytes that a request of `context` tokens caches in all layers: keys and values of windows no further
    than they see, and keys of indexers.

    - `gpus`: GPUs that split the heads of attention; the bytes are those of one of them.
    """
    blocks, size = model.architecture.blocks + model.drafting, CACHE[model.cache]
    total = 0.0 * context
    for kind, share in model.architecture.attention.shares:
        held = kind.cache_elements(context) * size + kind.index_bytes(context)
        total = total + share * held / (1 if kind.whole_cache else gpus)
    return blocks * total


def state_bytes(model: ServingModel) -> float:
    """Return the bytes of a request's states of recurrent layers, over all layers; 0 if there are none."""
    each = sum(share * kind.state * STATE_BYTES for kind, share in model.architecture.attention.shares)
    return (model.architecture.blocks + model.drafting) * each


def _core_s(kind: Any, model: ServingModel, rate: ServingRates, tokens: Any, requests: Any, context: Any):
    """Seconds of attention without projections, for `tokens` of a GPU's `requests`, each over its `context`."""
    xp, size = array_module(tokens, requests, context), CACHE[model.cache]
    total = 2 * STATE_BYTES * requests * kind.state / rate.memory_Bps  # a state is read and written
    copies = model.tp if kind.whole_cache else 1
    for work in kind.decoding(context):
        read = copies * requests * (work.elements * size + work.index_bytes)
        total = total + xp.maximum(read / rate.cache_Bps, tokens * work.flops / rate.attention)
    return total


def _product_s(rate: float, memory: float, rows: Any, inner: float, outer: float, size: float):
    """Seconds of a product of `rows` x `inner` activations with `inner` x `outer` weights of `size` bytes each."""
    moved = inner * outer * size + ACTIVATION_BYTES * rows * (inner + outer)
    return array_module(rows).maximum(2 * rows * inner * outer / rate, moved / memory)


def _projections_s(model: ServingModel, kind: Any, rate: ServingRates, tokens: Any):
    """Seconds of the products around attention, which `tp` GPUs split, for the tokens of all of them."""
    products, rows = kind.products(model.architecture.hidden), model.tp * tokens
    shapes = [(inner, outer / model.tp) for inner, outer in products[:-1]]
    shapes.append((products[-1][0] / model.tp, products[-1][1]))
    return sum(_product_s(rate.products, rate.memory_Bps, rows, *shape, model.weight_bytes) for shape in shapes)


def attention_s(model: ServingModel, rate: ServingRates, tokens: Any, requests: Any, context: Any):
    """Return the seconds of one layer's attention in decoding: projections, and attention over requests' caches."""
    total = KERNELS["attention"] * rate.launch_s
    for kind, share in model.architecture.attention.shares:
        core = _core_s(kind, model, rate, tokens, requests, context)
        total = total + share * (_projections_s(model, kind, rate, tokens) + core)
    return total


def prompt_attention_s(model: ServingModel, rate: ServingRates, tokens: Any, prompt: Any):
    """Return the seconds of one layer's attention over whole prompts."""
    total = KERNELS["attention"] * rate.launch_s
    for kind, share in model.architecture.attention.shares:
        length = max(2, int(prompt))
        core = tokens * kind.score_flops(length) / rate.prompts.scores(length, kind.width, backward=False)
        total = total + share * (_projections_s(model, kind, rate, tokens) + core)
    return total


def split_s(model: ServingModel, inside_Bps: Any, nvlink: float, alpha_s: float, tokens: Any):
    """Return the seconds of NVLink collectives (reduce-scatter, all-gather) for attention split over `tp` GPUs."""
    if model.tp == 1:
        return 0.0 * tokens
    moved = (model.tp - 1) * tokens * model.architecture.hidden * ACTIVATION_BYTES
    return 2 * (alpha_s + moved / (inside_Bps * nvlink))


# --------------------------------------------------------------------------------------------- experts and other layers
def experts_s(model: ServingModel, rate: ServingRates, tokens: Any):
    """Return the seconds of one layer's routed experts on the busiest GPU (mean over layers), for `tokens` per GPU."""
    xp, load = array_module(tokens), model.load
    every = load.gpus * xp.asarray(tokens, float)[..., None, None]
    rows = every * align_rank(_distinct(load.per_gpu()), every)
    taken = _distinct(load.slot_chances.reshape(len(load.slot_chances), load.gpus, load.slots))
    missed = xp.power(align_rank(1 - np.minimum(taken, 1.0), every[..., None]), every[..., None])
    active = (1 - missed).sum(-1)
    width, inner, total = model.architecture.routed_width, model.architecture.expert_hidden, 0.0
    for in_width, out_width in ((width, (model.architecture.matrices - 1) * inner), (inner, width)):
        moved = active * in_width * out_width * model.expert_bytes + ACTIVATION_BYTES * rows * (in_width + out_width)
        total = total + xp.maximum(2 * rows * in_width * out_width / rate.grouped, moved / rate.memory_Bps)
    return total.max(-1).mean(-1) + KERNELS["experts"] * rate.launch_s


def _distinct(values: Any):
    """One GPU instead of all if they have equal values."""
    first = values[:, :1]
    return first if (abs(values - first) <= SURE * abs(first).max()).all() else values


def ffn_s(model: ServingModel, rate: ServingRates, tokens: Any, width: float):
    """Return the seconds of an FFN that every GPU has a copy of; 0 if `width` is 0."""
    if not width:
        return 0.0 * tokens
    hidden = model.architecture.hidden
    shapes = (hidden, (model.architecture.matrices - 1) * width), (width, hidden)
    each = (_product_s(rate.products, rate.memory_Bps, tokens, *shape, model.weight_bytes) for shape in shapes)
    return sum(each) + KERNELS["ffn"] * rate.launch_s


def norms_s(model: ServingModel, rate: ServingRates, tokens: Any):
    """Return the seconds of a layer's norms, residuals and casts."""
    return (
        tokens * NORMS * model.architecture.hidden * ACTIVATION_BYTES / rate.memory_Bps
        + KERNELS["layer"] * rate.launch_s
    )


def router_s(model: ServingModel, rate: ServingRates, tokens: Any):
    """Return the seconds of an MoE layer's router, without launches: the layer includes them. Projections around routed
    experts count, too."""
    facts = model.architecture
    if not facts.choices:
        return 0.0 * tokens
    product = _product_s(rate.plain, rate.memory_Bps, tokens, facts.hidden, facts.choices, ACTIVATION_BYTES)
    around = [(facts.hidden, facts.expert_width), (facts.expert_width, facts.hidden)] if facts.expert_width else []
    for shape in around:
        product = product + _product_s(rate.products, rate.memory_Bps, tokens, *shape, model.weight_bytes)
    return product + tokens * ROUTER * 4 * facts.choices / rate.memory_Bps


def joining_s(model: ServingModel, rate: ServingRates, tokens: Any):
    """Return the seconds of the MTP projection before a drafting block (`joining_params`), which every GPU has."""
    return _product_s(
        rate.products,
        rate.memory_Bps,
        tokens,
        2 * model.architecture.hidden,
        model.architecture.hidden,
        model.weight_bytes,
    )


def head_s(model: ServingModel, rate: ServingRates, tokens: Any):
    """Return the seconds of the output head; every GPU has a copy."""
    return _product_s(
        rate.plain, rate.memory_Bps, tokens, model.architecture.hidden, model.architecture.vocab, ACTIVATION_BYTES
    )


# ------------------------------------------------------------------------------------------------------- communication
class Wires(NamedTuple):
    """A family of kernels on a group of GPUs.

    - `crossing`: how copies of tokens cross the group; `beyond`: whether the group spans several domains.
    - `dispatched`, `combined`: bytes of one copy; `nic_Bps`, `inside_Bps`: bandwidths of a GPU.
    """

    family: Family
    crossing: Crossing
    gpus: int
    beyond: bool
    dispatched: float
    combined: float
    nic_Bps: Any
    inside_Bps: Any

    def call_s(self, tokens: Any, *, combine: bool):
        """Return the seconds of one dispatch or combine for `tokens` of every GPU."""
        kernel, size = (self.family.combine, self.combined) if combine else (self.family.dispatch, self.dispatched)
        return self.latency_s(kernel, tokens) + self.bytes_s(kernel, size, tokens)

    def latency_s(self, kernel: TransferKernel, tokens: Any):
        """Return the seconds of latency, increased if latency plus bytes are below the kernel's floor; 0 for a single
        GPU."""
        xp = array_module(tokens, self.nic_Bps)
        if self.gpus == 1:
            return 0.0 * tokens
        size = self.combined if kernel is self.family.combine else self.dispatched
        before = kernel.before_s(self.gpus, beyond=self.beyond) + self.crossing.extra_s
        return xp.maximum(before, kernel.floor_s - self.bytes_s(kernel, size, tokens)) if kernel.floor_s else before

    def bytes_s(self, kernel: TransferKernel, size: float, tokens: Any):
        """Return the seconds of the bytes: the longer of network and NVLinks, which transfer in parallel."""
        xp = array_module(tokens, self.nic_Bps)
        between = self.crossing.between * tokens * (size / (kernel.nic * self.nic_Bps) + kernel.nic_message_s)
        inside = self.crossing.inside * tokens * (size / (kernel.nvlink * self.inside_Bps) + kernel.nvlink_message_s)
        return xp.maximum(between, inside)


# -------------------------------------------------------------------------------------------------------------- a step
class StepSeconds(NamedTuple):
    """Seconds of one decoding step (or prefill pass).

    - `step_s`: the whole step, as set; `overlapped_s`: the step with communication hidden behind the other micro-batch;
      `serial_s`: the step with both micro-batches as one; `exposed_s`: communication of the step that is not hidden.
    - `attention_s`, `experts_s`, `beside_s` (all else), `dispatch_s`, `combine_s`: parts of one MoE layer and
      micro-batch.
    - `latency_s`: the latency in dispatch and combine; `head_s`: the output head.
    """

    step_s: Any
    overlapped_s: Any
    serial_s: Any
    attention_s: Any
    experts_s: Any
    beside_s: Any
    dispatch_s: Any
    combine_s: Any
    latency_s: Any
    exposed_s: Any
    head_s: Any


# Least and most measured over predicted time, in all rows of `mfabric validate serving` (a test compares). The model
# leaves out the schedulers, hosts and unevenness of these systems. The most is the slow end of the band.
MEASURED_OVER_PREDICTED = {"tpot": (1.34, 1.37), "prefill": (1.5, 1.94)}


class OverlapSeconds(Protocol):
    """Anything with seconds both for hidden communication and for both micro-batches as one."""

    @property
    def overlapped_s(self) -> Any: ...
    @property
    def serial_s(self) -> Any: ...


def band(fast: OverlapSeconds, predicted_s: Any, what: str) -> tuple[float, float]:
    """Return the ends of the band [s].

    The fast end is the shorter of overlapped and serial time with fast kernels. The slow end is the prediction times
    the most in `MEASURED_OVER_PREDICTED`, of which `what` is a key.
    """
    low = min(float(fast.overlapped_s), float(fast.serial_s))
    return low, MEASURED_OVER_PREDICTED[what][1] * float(predicted_s)


class LayerSeconds(NamedTuple):
    """Seconds of an MoE layer by part, of a dense layer, and of the output head."""

    attention_s: Any
    experts_s: Any
    beside_s: Any
    dispatch_s: Any
    combine_s: Any
    dense_s: Any
    head_s: Any

    @property
    def compute_s(self):
        return self.attention_s + self.experts_s + self.beside_s

    @property
    def communication_s(self):
        return self.dispatch_s + self.combine_s


def layers_s(model: ServingModel, rate: ServingRates, wires: Wires, tokens: Any, attention: Any) -> LayerSeconds:
    """Return the seconds of layers for `tokens` of every GPU. `attention`: seconds of one layer's attention."""
    norms = norms_s(model, rate, tokens)
    return LayerSeconds(
        attention,
        experts_s(model, rate, tokens),
        norms + router_s(model, rate, tokens) + ffn_s(model, rate, tokens, model.architecture.shared_hidden),
        wires.call_s(tokens, combine=False),
        wires.call_s(tokens, combine=True),
        attention
        + model.architecture.dense_part * (norms + ffn_s(model, rate, tokens, model.architecture.dense_hidden)),
        head_s(model, rate, tokens),
    )


def step_seconds(
    model: ServingModel, wires: Wires, half: LayerSeconds, whole: LayerSeconds, host_s: Any, *, overlap: bool
) -> StepSeconds:
    """Return the seconds of a step, by part.

    - `half`: parts of one of two micro-batches; `whole`: of both as one.
    - `overlap`: the two micro-batches hide each other's communication; else `whole` runs alone.
    """
    xp, cores = array_module(half, host_s), wires.family.cores
    moe, dense = len(model.architecture.moe_blocks), model.dense_layers
    sent = half.communication_s  # meanwhile computation lacks the cores that communication uses
    computed = half.compute_s + cores * xp.minimum(sent, half.compute_s / (1 - cores))
    layer = xp.maximum(xp.maximum(2 * computed, 2 * sent), computed + sent)
    overlapped = moe * layer + dense * 2 * half.dense_s + 2 * half.head_s + host_s
    serial = moe * (whole.compute_s + whole.communication_s) + dense * whole.dense_s + whole.head_s + host_s
    shown, hidden = (half, moe * (layer - 2 * half.compute_s)) if overlap else (whole, moe * whole.communication_s)
    latency = sum(wires.latency_s(kernel, 0 * half.head_s) for kernel in (wires.family.dispatch, wires.family.combine))
    return StepSeconds(
        overlapped if overlap else serial,
        overlapped,
        serial,
        *(shown.attention_s, shown.experts_s, shown.beside_s, shown.dispatch_s, shown.combine_s),
        latency,
        hidden,
        shown.head_s,
    )
