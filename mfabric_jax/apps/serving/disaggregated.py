"""Deployments with attention on some GPUs and experts on others; micro-batches alternate between them.

`serving.split.attention_gpus` hold attention, caches, dense layers and the head. `expert_gpus` hold routed experts;
shared experts are computed on a GPU with one of the token's experts. In each MoE layer a micro-batch is computed on
attention GPUs (T_a), sent (T_out), computed on expert GPUs (T_e) and sent back (T_back). Meanwhile other micro-batches
use the idle stages: with m of them a layer takes max(m T_a, m T_e, m T_out, m T_back, T_a + T_out + T_e + T_back). If
T_out = T_back = T_c and m >= 2 (1 + T_c / T_f) with T_f = max(T_a, T_e), this is m T_f, as in MegaScale-Infer (arXiv
2504.02263, section 4.1, second hand). Traffic flows between the two sets of GPUs, which share one fabric.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import numpy as np

from mfabric_jax import units
from mfabric_jax.apps.serving import step as parts
from mfabric_jax.apps.serving.columns import SPLIT
from mfabric_jax.apps.serving.deployment import (
    DECODES_WITH,
    Decoding,
    Deployment,
    GpuPool,
    StepInputs,
    expert_shares_of,
    kernels_of,
    pool_of,
    prefill_pool,
)
from mfabric_jax.apps.serving.expert_load import SURE, Copies, ExpertLoad, group_chances, place_experts, slots_of
from mfabric_jax.apps.serving.group import Crossing, ServingGroup, crossing_of_copies, group_of, lanes_of
from mfabric_jax.apps.serving.layer_parts import (
    expert_bytes,
    ffn_s,
    head_s,
    joining_s,
    routed_s,
    small_kernels_s,
)
from mfabric_jax.apps.serving.step import StepSeconds
from mfabric_jax.case import Case
from mfabric_jax.checks import Misfit
from mfabric_jax.evaluate.resolving.resolve import model_of
from mfabric_jax.support.array_module import array_module

SIZES = "serving.split: attention_gpus + expert_gpus"
MOST_MICRO_BATCHES = 4  # limit unless micro-batches are stated, as in MegaScale-Infer's search


class Stages(NamedTuple):
    """Seconds of one micro-batch in one MoE layer: on attention GPUs, on the way to experts, on expert GPUs, and on the
    way back."""

    attention_s: Any
    out_s: Any
    experts_s: Any
    back_s: Any

    @property
    def alone_s(self):
        """Seconds of a layer for a micro-batch that never waits for another one."""
        return self.attention_s + self.out_s + self.experts_s + self.back_s

    @property
    def slowest_s(self):
        """Seconds of the slowest stage."""
        xp = array_module(*self)
        return xp.maximum(xp.maximum(self.attention_s, self.experts_s), xp.maximum(self.out_s, self.back_s))

    def fewest_micro_batches(self):
        """Return the fewest micro-batches that keep the slower set of GPUs busy, at most `MOST_MICRO_BATCHES`."""
        xp = array_module(*self)
        busy = xp.maximum(self.attention_s, self.experts_s)
        return xp.clip(xp.ceil(self.alone_s / busy * (1 - SURE)), 1, MOST_MICRO_BATCHES)

    def layer_s(self, micro_batches: Any):
        """Return the seconds of a layer with all micro-batches, in a steady state."""
        return array_module(*self).maximum(micro_batches * self.slowest_s, self.alone_s)


@dataclasses.dataclass(frozen=True, repr=False)
class Split(Deployment):
    """A deployment with separate decoding GPUs for attention and experts; numbers per GPU are means over both.

    - `back`: how copies cross the fabric from experts to attention.
    """

    back: Crossing

    @property
    def counts(self) -> tuple[int, int]:
        """Numbers of attention GPUs and of expert GPUs."""
        split = self.case.serving.split
        return split.attention_gpus, split.expert_gpus  # type: ignore[return-value]

    @property
    def _part(self) -> float:
        """Attention GPUs over all decoding GPUs."""
        return self.counts[0] / sum(self.counts)

    # ---------------------------------------------------------------------------------------------------------- seconds
    def stages(self, numbers: StepInputs, tokens: Any, how: str = "usual", queries: float | None = None) -> Stages:
        """Return the stages of a micro-batch with `tokens` per attention GPU, `queries` of each request."""
        model, wires = self.served_model(self.decode, how), self.decode.wires(numbers.nic_gbps)
        attention, experts = self.counts
        at_experts = tokens * attention / experts
        shared = ffn_s(model, at_experts, model.architecture.shared_hidden)
        out_s = wires.call_s(tokens, combine=False)
        back_s = wires._replace(crossing=self.back).call_s(tokens, combine=True)
        slowed = functools.partial(_computation_s, sent_s=out_s + back_s, cores=wires.family.cores)
        own = parts.decoding_attention_s(model, wires, tokens, numbers.context, queries or self.queries)
        own = own + parts.beside_s(model, tokens)
        return Stages(slowed(own), out_s, slowed(routed_s(model, experts * at_experts) + shared), back_s)

    def micro_batches(self, stages: Stages) -> Any:
        """Return the micro-batches that the case states, else the fewest that keep GPUs busy."""
        stated = self.case.serving.split.micro_batches
        return stages.fewest_micro_batches() if stated is None else stated

    def steady(self) -> "Split":
        """Return the deployment with the micro-batches of the case's own batch, fixed for all batches."""
        count = int(self.micro_batches(self.stages(self.numbers, np.asarray(self.case.serving.batch))))
        return dataclasses.replace(self, case=self.case.with_({"serving.split.micro_batches": count}))

    @property
    def holders(self) -> int:
        """GPUs of a group that hold requests: the attention GPUs."""
        return self.counts[0]

    def batch_of(self, requests: Any) -> Any:
        """Return the tokens of an attention GPU in one micro-batch if it has `requests`. Only for `steady`
        deployments."""
        serving = self.case.serving
        return requests * (1 + serving.drafts.tokens) / serving.split.micro_batches

    def decoding(self, numbers: StepInputs, how: str = "usual") -> Decoding:
        """Return a decoding step of all micro-batches, in a steady state. `tpot_s`, `overlapped_s` and `serial_s` are
        equal, since nothing else can be hidden."""
        model, wires = self.served_model(self.decode, how), self.decode.wires(numbers.nic_gbps)
        drafts = self.case.serving.drafts.tokens
        tokens = array_module(*numbers).asarray(numbers.batch, float)
        stages = self.stages(numbers, tokens, how)
        count, moe = self.micro_batches(self.stages(numbers, tokens)), len(model.architecture.moe_blocks)
        attention = parts.decoding_attention_s(model, wires, tokens, numbers.context, self.queries)
        dense = attention + small_kernels_s(model, tokens) + ffn_s(model, tokens, model.architecture.dense_hidden)
        head = head_s(model, tokens)
        outside_moe_s = count * (model.dense_layers * dense + head) + numbers.host_s
        layer = stages.layer_s(count)
        drafted = 0.0
        if drafts:
            requests = tokens / (1 + drafts)
            beside = joining_s(model, requests) + head_s(model, requests)
            drafted = drafts * (self.stages(numbers, requests, how, 1.0).layer_s(count) + count * beside)
        step_s = moe * layer + outside_moe_s
        beside = parts.beside_s(model, tokens)
        step = StepSeconds(
            *(step_s, step_s, moe * count * stages.alone_s + outside_moe_s),
            *(stages.attention_s - beside, stages.experts_s, beside, stages.out_s, stages.back_s),
            self._latency_s(wires, tokens),
            moe * (layer - count * array_module(*stages).maximum(stages.attention_s, stages.experts_s)),
            head,
        )
        tpot_s = (step_s + drafted) / (1 + numbers.accepted)
        return Decoding(step, tpot_s, tpot_s, tpot_s, count * tokens / (1 + drafts) * self._part)

    def _latency_s(self, wires: parts.Wires, tokens: Any) -> Any:
        back = wires._replace(crossing=self.back)
        return wires.latency_s(wires.family.dispatch, 0 * tokens) + back.latency_s(wires.family.combine, 0 * tokens)

    def slowest(self, decoding: Decoding) -> str:
        """Return the stage that limits a step, or "micro-batches" if more of them would shorten it."""
        step, stages = decoding.step, _stages_of(decoding)
        if float(stages.alone_s) > float(self.micro_batches(stages) * stages.slowest_s):
            return "micro-batches"
        if float(max(stages.out_s, stages.back_s)) == float(stages.slowest_s):
            return "latency" if step.latency_s > (step.dispatch_s + step.combine_s) / 2 else "network"
        return "attention" if float(stages.attention_s) == float(stages.slowest_s) else "experts"

    # ----------------------------------------------------------------------------------------------------------- memory
    def weight_bytes(self, pool: GpuPool) -> float:
        """Return the weights [B] of a prefill GPU, or of an attention GPU for the decoding pool."""
        return super().weight_bytes(pool) - (0.0 if pool is self.prefill else self.expert_bytes)

    @property
    def expert_bytes(self) -> float:
        """Weights of an expert GPU [B]: its routed experts, and a copy of the shared ones."""
        return expert_bytes(self.decode.model)

    def memory_bytes(self, requests: Any, context: Any) -> Any:
        """Return the memory [B] of an attention GPU."""
        return super().memory_bytes(requests / self._part, context)

    def most_requests(self, context: Any) -> Any:
        """Return how many requests fit, per decoding GPU of either kind; negative if the experts do not fit."""
        most = super().most_requests(context) * self._part
        left = self.decode.gpu_bytes - units.gigabytes(self.case.serving.reserved_gigabytes) - self.expert_bytes
        return most if left >= 0 else most * 0 - 1

    def columns(self, decoding: Decoding) -> dict[str, Any]:
        """Return the columns `SPLIT`, which a split deployment adds to its row."""
        stages, (attention, experts) = _stages_of(decoding), self.counts
        count = int(self.micro_batches(stages))
        values = attention, experts, count, float(stages.layer_s(count)), float(units.to_gigabytes(self.expert_bytes))
        return dict(zip(SPLIT, values, strict=True))


def _stages_of(decoding: Decoding) -> Stages:
    """The stages of a decoding step."""
    step = decoding.step
    return Stages(step.attention_s + step.beside_s, step.dispatch_s, step.experts_s, step.combine_s)


def _computation_s(computed_s: Any, sent_s: Any, cores: float) -> Any:
    """Seconds of computation, which lacks the cores that kernels use while other micro-batches are being sent."""
    return computed_s + cores * array_module(computed_s).minimum(sent_s, computed_s / (1 - cores))


def is_split(case: Case) -> bool:
    """Whether a case splits its decoding GPUs into two sets. Raise `Misfit` if it states only one of the two sizes."""
    split = case.serving.split
    present = [split.attention_gpus is not None, split.expert_gpus is not None]
    if any(present) and not all(present):
        raise Misfit("serving.split.attention_gpus and serving.split.expert_gpus go together; state both or neither.")
    return all(present)


def split_deployment(case: Case) -> Split:
    """Return the deployment of a case that states `serving.split`. Raise `InputError` and `Misfit` as `deployment`
    does."""
    serving, model = case.serving, model_of(case).architecture
    attention, experts = serving.split.attention_gpus or 1, serving.split.expert_gpus or 1
    group = group_of(case, attention + experts, SIZES)
    family = kernels_of(group, serving.kernels, DECODES_WITH)
    if attention % serving.tp or group.shape.gpus_per_server % serving.tp:
        raise Misfit(f"serving.tp must divide the GPUs of a server and of attention, got {serving.tp}.")
    slots = slots_of(model, experts, serving.redundant_experts)
    taken = expert_shares_of(case, model)
    load = place_experts(model, experts, slots, taken.shares, placed=serving.eplb)
    group_seen = lanes_of(group, family, SIZES)
    copies = copies_between(load, family.copies, attention, group_seen)
    pool = pool_of(case, taken, load, group, family, crossing_of_copies(group_seen, copies))
    return Split(case, pool, prefill_pool(case, model), crossing_of_copies(group_seen, copies_back(copies)))


def copies_between(load: ExpertLoad, rule: str, attention: int, group: ServingGroup) -> Copies:
    """Return the copies per token of each attention GPU on their way to the experts.

    Attention GPUs come first in the group. Raise `Misfit` if kernels send once per server and a server holds GPUs of
    both kinds.
    """
    per_domain, gpus, layers = group.shape.gpus_per_server, group.shape.gpus, len(load.slot_chances)
    domain = np.arange(gpus) // per_domain
    here, rows = domain[:, None] == domain, load.per_gpu()
    to_gpu = rows if rule == "expert" else group_chances(load, load.gpus)
    direct = np.zeros((layers, gpus, gpus))
    direct[:, :attention, attention:] = to_gpu[:, None]
    if rule != "server" or group.domains == 1:
        return Copies(np.where(here, 0.0, direct), _inside(direct, per_domain), rows)
    if attention % per_domain:
        raise Misfit(
            f"serving.split.attention_gpus must fill servers of {per_domain} GPUs if kernels send once per server, got "
            f"{attention}."
        )
    position = np.arange(gpus) % per_domain
    to_domain = group_chances(load, load.gpus // per_domain)
    between = np.zeros_like(direct)
    between[:, :attention, attention:] = np.where(
        position[:attention, None] == position[attention:], np.repeat(to_domain, per_domain, axis=1)[:, None], 0.0
    )
    # an expert GPU receives tokens from the GPU at its position in every attention server, and forwards them
    onward = np.zeros_like(direct)
    onward[:, attention:, attention:] = attention // per_domain * to_gpu[:, None]
    return Copies(between, _inside(onward * (1 - np.eye(gpus)), per_domain), rows)


def _inside(copies: np.ndarray, per_domain: int) -> np.ndarray:
    """The pairs inside each domain [L S g g], of all pairs [L N N]."""
    layers, gpus, _ = copies.shape
    domains = gpus // per_domain
    blocks = copies.reshape(layers, domains, per_domain, domains, per_domain)
    return np.stack([blocks[:, domain, :, domain] for domain in range(domains)], axis=1)


def copies_back(copies: Copies) -> Copies:
    """Return the copies of `copies_between` in the opposite direction."""
    return copies._replace(between=copies.between.swapaxes(-1, -2), inside=copies.inside.swapaxes(-1, -2))
