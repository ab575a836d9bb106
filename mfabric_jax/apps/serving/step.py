"""Seconds of one decoding step and of one prefill pass, by part, as plain arithmetic on numbers or arrays.

Every GPU computes attention for its own requests (or `tp` GPUs split it) and holds some experts. Tokens travel to
experts and back in every MoE layer. Parts of a layer take what their kernels were measured to take (`layer_parts`);
experts take the time of the busiest GPU. Two micro-batches can hide communication: with X seconds of communication, and
C of computation on the cores that communication leaves, a layer takes max(2C, 2X, C + X). Without overlap, both
micro-batches run as one, and communication follows computation.

Sources: DeepSeek-V3, arXiv 2412.19437; SGLang, lmsys.org of 2025-05-05.
"""

from math import comb
from typing import Any, NamedTuple, Protocol

from mfabric_jax.apps.serving.group import Crossing
from mfabric_jax.apps.serving.layer_parts import (
    PassTokens,
    ServedModel,
    attention_s,
    ffn_s,
    head_s,
    routed_s,
    router_s,
    small_kernels_s,
)
from mfabric_jax.support.array_module import array_module
from mfabric_jax.workload.dispatch_kernels import Family, TransferKernel
from mfabric_jax.workload.measured_kernels import MeasuredKernels, deepep_s
from mfabric_jax.workload.volume import ACTIVATION_BYTES

# Modes of families whose calls inside a server were measured by tokens.
MEASURED_MODES = {"deepep-normal": "normal", "deepep-low-latency": "ll"}
# Copies of a token that left a GPU when they were measured, 8 of 256 experts on 8 GPUs: one for each expert, or for
# each of the GPUs that hold one.
MEASURED_COPIES = {"expert": 8 * 7 / 8, "server": 8 * (1 - comb(224, 8) / comb(256, 8)) * 7 / 8}


# ------------------------------------------------------------------------------------------------------- communication
class Wires(NamedTuple):
    """A family of kernels on a group of GPUs.

    - `crossing`: how copies of tokens cross the group; `beyond`: whether the group spans several domains.
    - `dispatched`, `combined`: bytes of one copy; `nic_Bps`, `inside_Bps`: bandwidths of a GPU.
    - `measured`: kernels of a GPU whose calls inside one server were measured by tokens; None: the family's rates.
    """

    family: Family
    crossing: Crossing
    gpus: int
    beyond: bool
    dispatched: float
    combined: float
    nic_Bps: Any
    inside_Bps: Any
    measured: MeasuredKernels | None = None

    def call_s(self, tokens: Any, *, combine: bool):
        """Return the seconds of one dispatch or combine for `tokens` of every GPU."""
        if self.measured is not None:
            return self._measured_s(self.measured, tokens, combine=combine)
        kernel, size = (self.family.combine, self.combined) if combine else (self.family.dispatch, self.dispatched)
        return self.latency_s(kernel, tokens) + self.bytes_s(kernel, size, tokens)

    def _measured_s(self, kernels: MeasuredKernels, tokens: Any, *, combine: bool):
        """Seconds of a call inside one server, as measured, at as many copies as these tokens have."""
        what, size = ("combine", self.combined) if combine else ("dispatch", self.dispatched - self.family.header_bytes)
        alike = tokens * self.crossing.inside / MEASURED_COPIES[self.family.copies]
        return deepep_s(kernels, MEASURED_MODES[self.family.name], what, 1, alike, size)

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
MEASURED_OVER_PREDICTED = {"tpot": (1.06, 1.35), "prefill": (1.02, 1.28)}


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


def decoding_attention_s(model: ServedModel, wires: Wires, tokens: Any, context: Any, queries: float = 1.0) -> Any:
    """Return the seconds of one layer's attention for `tokens` of every GPU, `queries` of each request."""
    seconds = attention_s(model, PassTokens(model.tp * tokens, context, queries=queries))
    return seconds + _split_s(model, wires, tokens, wires.family.dispatch.alpha_s)


def prompt_attention_s(model: ServedModel, wires: Wires, tokens: Any, prompt: float) -> Any:
    """Return the seconds of one layer's attention over whole prompts, for `tokens` of every GPU."""
    return attention_s(model, PassTokens(prompts=model.tp * tokens, length=prompt)) + _split_s(model, wires, tokens)


def _split_s(model: ServedModel, wires: Wires, tokens: Any, alpha_s: float = 0.0) -> Any:
    """Seconds of NVLink collectives (reduce-scatter, all-gather) for attention split over `tp` GPUs."""
    if model.tp == 1:
        return 0.0 * tokens
    moved = (model.tp - 1) * tokens * model.architecture.hidden * ACTIVATION_BYTES
    return 2 * (alpha_s + moved / (wires.inside_Bps * wires.family.dispatch.nvlink))


def beside_s(model: ServedModel, tokens: Any) -> Any:
    """Return the seconds of an MoE layer's norms and router."""
    return small_kernels_s(model, tokens, moe=True) + router_s(model, tokens)


def layers_s(model: ServedModel, wires: Wires, tokens: Any, attention: Any) -> LayerSeconds:
    """Return the seconds of layers for `tokens` of every GPU. `attention`: seconds of one layer's attention."""
    facts = model.architecture
    dense = small_kernels_s(model, tokens) + ffn_s(model, tokens, facts.dense_hidden)
    return LayerSeconds(
        attention,
        routed_s(model, model.gpus * tokens),
        beside_s(model, tokens) + ffn_s(model, tokens, facts.shared_hidden),
        wires.call_s(tokens, combine=False),
        wires.call_s(tokens, combine=True),
        attention + facts.dense_part * dense,
        head_s(model, tokens),
    )


def step_seconds(
    model: ServedModel, wires: Wires, half: LayerSeconds, whole: LayerSeconds, host_s: Any, *, overlap: bool
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
