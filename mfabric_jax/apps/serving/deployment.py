"""A deployment: one pool of GPUs decodes and another one prefills for it, each in expert-parallel groups."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from mfabric_jax import units
from mfabric_jax.apps.serving import step as parts
from mfabric_jax.apps.serving.expert_load import ExpertLoad, busiest_over_mean, place_experts, slots_of
from mfabric_jax.apps.serving.group import Crossing, ServingGroup, check_links, crossing_of, group_of, lanes_of
from mfabric_jax.apps.serving.kinds import prefill_case
from mfabric_jax.apps.serving.layer_parts import (
    ServedModel,
    cache_bytes,
    formats_of,
    has_latents,
    joining_s,
    request_bytes,
    served_kernels,
    state_bytes,
    table_of,
    weight_bytes,
)
from mfabric_jax.apps.serving.step import MEASURED_MODES, StepSeconds, Wires
from mfabric_jax.case import Case
from mfabric_jax.checks import InputError, Misfit
from mfabric_jax.evaluate.resolving.resolve import model_of
from mfabric_jax.evaluate.rows.costs import MILLION
from mfabric_jax.fabric.parts_list import PartsTable
from mfabric_jax.support.array_module import array_module
from mfabric_jax.support.bands import QUOTED
from mfabric_jax.traffic.generator import base_popularity, layer_shares, shares_description, to_shares
from mfabric_jax.traffic.knobs import Knobs
from mfabric_jax.traffic.recording import recorded_tokens
from mfabric_jax.workload import Workload
from mfabric_jax.workload.dispatch_kernels import Family, family
from mfabric_jax.workload.measured_kernels import MeasuredKernels
from mfabric_jax.workload.models import Architecture

PASS = 8192  # tokens of a prefill micro-batch, unless stated
TRANSFER = 0.925  # fraction of a NIC that transfers in pages of 64 KiB reach (arXiv 2510.27656, table 2, second hand)
DECODES_WITH, PREFILLS_WITH = "deepep-low-latency", "deepep-normal"  # kernels, unless stated


class ExpertShares(NamedTuple):
    """How often each expert is selected: `shares` [L E] of selections (None: equal), and their origin in `words`."""

    shares: np.ndarray | None
    words: str


EVEN = ExpertShares(None, "balanced")


class StepInputs(NamedTuple):
    """Inputs of a step's arithmetic: numbers or arrays (NumPy's or JAX's) that broadcast."""

    batch: Any
    context: Any
    nic_gbps: Any
    accepted: Any = 0.0
    host_s: Any = 0.0


class Decoding(NamedTuple):
    """A decoding step, its `requests` per GPU, and its seconds from token to token: `tpot_s` as set, `overlapped_s`
    with communication hidden, `serial_s` without."""

    step: StepSeconds
    tpot_s: Any
    overlapped_s: Any
    serial_s: Any
    requests: Any

    @property
    def tokens_per_s(self):
        """Tokens per second of one GPU."""
        return self.requests / self.tpot_s


@dataclasses.dataclass(frozen=True)
class GpuPool:
    """The GPUs of one group on a fabric.

    - `model`: the model on these GPUs; `family`: kernels that send tokens; `crossing`: how copies cross the fabric.
    - `precision`, `combined`: number formats of dispatch and combine; `taken`: how often experts are selected.
    """

    model: ServedModel
    group: ServingGroup
    family: Family
    crossing: Crossing
    precision: str
    combined: str
    taken: ExpertShares = EVEN

    def wires(self, nic_gbps: Any) -> Wires:
        """Return the kernels on NICs of this bandwidth."""
        hidden = self.model.architecture.hidden
        sizes = (
            self.family.wire_bytes(hidden, self.precision),
            self.family.wire_bytes(hidden, self.combined, combine=True),
        )
        beyond = self.group.domains > 1
        speeds = units.gbps(nic_gbps), self.group.inside_Bps(nic_gbps)
        return Wires(self.family, self.crossing, self.group.shape.gpus, beyond, *sizes, *speeds, self._measured_calls())

    def _measured_calls(self) -> MeasuredKernels | None:
        """The kernels of the GPU, if calls of this family inside one server were measured on it."""
        mode, kernels = MEASURED_MODES.get(self.family.name), self.model.kernels
        of_nvlink = self.group.inside_Bps(1.0) == kernels.gpu.nvlink
        inside = of_nvlink and self.crossing.between == 0 and self.group.shape.gpus > 1
        return kernels if inside and mode in kernels.facts.get("deepep", {}) else None

    @property
    def nic_gbps(self) -> float:
        """Bandwidth of a NIC [Gbps]."""
        return self.group.hardware.case.network.nic_gbps

    @property
    def gpu_bytes(self) -> float:
        """Memory size of a GPU [B]. Raise `InputError` if it is not known."""
        gpu = self.group.gpu
        if gpu.memory_bytes is None:
            raise InputError(f"serving needs gpu.memory_gigabytes, which is not known for {gpu.name}.")
        return gpu.memory_bytes

    def uneven(self) -> tuple[float, float]:
        """Return the busiest GPU's load over the mean, averaged over layers: as placed, and with experts in order."""
        model = self.model
        in_order = place_experts(model.architecture, model.gpus, model.load.slots, self.taken.shares, placed=False)
        return busiest_over_mean(model.load), busiest_over_mean(in_order)

    def per_gpu(self, tiers: int, quote: str | None = None) -> tuple[float | None, float | None]:
        """Return dollars and joules per second of each working GPU on a network whose trees have these tiers, including
        its share of network, servers and idle GPUs.

        - `quote`: a column of `PartsTable.quote_variants`, if parts have another quoted price; None: usual prices.

        None: not known.
        """
        if (tiers, quote) not in self._price_of_tiers:
            bill, running = self.group.bill_on(tiers, self.quotes.get(quote)), self.group.hardware.parts.running
            self._price_of_tiers[tiers, quote] = bill.per_gpu_second(running, self.group.shape.gpus)
        return self._price_of_tiers[tiers, quote]

    @functools.cached_property
    def _price_of_tiers(self) -> dict[tuple[int, str | None], tuple[float | None, float | None]]:
        """What `per_gpu` returned before."""
        return {}

    @functools.cached_property
    def quotes(self) -> Mapping[str | None, PartsTable]:
        """Other quoted prices of parts, by column."""
        return {**self.group.hardware.parts.quote_variants(self.group.gpu.name)}

    @functools.cached_property
    def least_usd(self) -> float | None:
        """Dollars per second of each working GPU on the smallest network, which joins one group alone; None: not
        known."""
        return self.per_gpu(self.group.tiers_for(self.group.tree_nics))[0]


class PricedNetwork(NamedTuple):
    """A network that joins the `gpus` of both pools by trees of so few `tiers` as their NICs need, unless stated."""

    gpus: int
    tiers: int


@dataclasses.dataclass(frozen=True)
class Deployment:
    """A serving case and its two pools, `decode` and `prefill`."""

    case: Case
    decode: GpuPool
    prefill: GpuPool

    def __repr__(self) -> str:
        serving, name = self.case.serving, type(self).__name__
        where = f"{self.case.model.name} on {self.case.network.fabric}, {self.case.gpu.name}"
        kind = self.prefill.group.gpu.name
        kind = "" if kind == self.decode.group.gpu.name else f" {kind}"
        sizes = f"decoding on {self.decode.model.gpus} GPUs, prefill on {self.prefill.model.gpus}{kind}"
        return f"<{name}: {where}; {sizes}; batch {serving.batch:g} tokens per GPU, context {serving.context:g}>"

    # ---------------------------------------------------------------------------------------------------------- seconds
    @property
    def numbers(self) -> StepInputs:
        """The inputs of a step that the case states."""
        serving = self.case.serving
        drafts, nic_gbps = serving.drafts, self.case.network.nic_gbps
        return StepInputs(serving.batch, serving.context, nic_gbps, drafts.accepted, serving.host_s)

    @property
    def overlap(self) -> bool:
        """Whether decoding hides communication behind a second micro-batch."""
        return self.case.serving.overlap is not False

    @property
    def prefill_overlap(self) -> bool:
        """Whether prefill hides communication behind a second micro-batch."""
        own = self.case.serving.prefill.overlap
        return self.overlap if own is None else own

    def served_model(self, pool: GpuPool, how: str = "usual") -> ServedModel:
        """Return the model of a pool with slow, usual or fast kernels."""
        if how == "usual":
            return pool.model
        kernels = served_kernels(pool.group.gpu, how=how, path=table_of(self.case))
        return dataclasses.replace(pool.model, kernels=kernels)

    @property
    def queries(self) -> int:
        """Tokens of a request in a step: its next one and the drafted ones."""
        return 1 + self.case.serving.drafts.tokens

    def decoding(self, numbers: StepInputs, how: str = "usual") -> Decoding:
        """Return a decoding step. It is pure arithmetic in `numbers`, so it is differentiable and takes arrays."""
        model, wires = self.served_model(self.decode, how), self.decode.wires(numbers.nic_gbps)
        tokens = array_module(*numbers).asarray(numbers.batch, float)
        both = 2 * tokens if self.overlap else tokens

        def of(some: Any, queries: float) -> parts.LayerSeconds:
            attention = parts.decoding_attention_s(model, wires, some, numbers.context, queries)
            return parts.layers_s(model, wires, some, attention)

        requests, each = both / self.queries, 1 / (1 + numbers.accepted)
        halves = of(both / 2, self.queries), of(both, self.queries)
        step = parts.step_seconds(model, wires, *halves, numbers.host_s, overlap=self.overlap)
        drafted = 0.0
        if drafts := self.case.serving.drafts.tokens:  # a block drafts each token of all requests; nothing is hidden
            draft = of(requests, 1.0)
            drafted = drafts * (joining_s(model, requests) + draft.compute_s + draft.communication_s + draft.head_s)
        set_s, overlapped_s, serial_s = (
            (each_s + drafted) * each for each_s in (step.step_s, step.overlapped_s, step.serial_s)
        )
        return Decoding(step, set_s, overlapped_s, serial_s, requests)

    def tpot_for_limit_s(self, numbers: StepInputs) -> Any:
        """Return the seconds from token to token to compare with a limit: the band's slow end, or as predicted
        (`limit_basis`)."""
        return limit_factor(self.case, "tpot") * self.decoding(numbers).tpot_s

    def steady(self) -> "Deployment":
        """Return the deployment with every choice fixed that depends on the batch."""
        return self

    @property
    def holders(self) -> int:
        """GPUs of a group that hold requests."""
        return self.decode.group.shape.gpus

    def batch_of(self, requests: Any) -> Any:
        """Return the tokens of a GPU in one micro-batch if it has `requests` requests."""
        return requests * self.queries / (2 if self.overlap else 1)

    def slowest(self, decoding: Decoding) -> str:
        """Return the part of a step that limits it.

        It is "latency" or "network" if communication takes longer than all computation that can hide it (without
        overlap: longer than each part of the computation). Otherwise it is the longest part of the computation.
        """
        step = decoding.step
        each = {"attention": step.attention_s, "experts": step.experts_s, "other layers": step.beside_s}
        sent, longest = step.dispatch_s + step.combine_s, max(each, key=lambda name: float(each[name]))
        if sent > (sum(each.values()) if self.overlap else each[longest]):
            return "latency" if step.latency_s > sent / 2 else "network"
        return longest

    def prefilling(self, nic_gbps: Any, how: str = "usual") -> StepSeconds:
        """Return the seconds of a prefill pass over two micro-batches (without overlap: one)."""
        model, wires = self.served_model(self.prefill, how), self.prefill.wires(self.prefill_gbps(nic_gbps))

        def of(tokens: Any) -> parts.LayerSeconds:
            attention = parts.prompt_attention_s(model, wires, tokens, self.prompt)
            seconds = parts.layers_s(model, wires, tokens, attention)
            return seconds._replace(head_s=seconds.head_s * 0.0)  # only the last token of a prompt needs the head

        both = np.asarray(self.pass_tokens)
        host_s = self.case.serving.host_s
        return parts.step_seconds(model, wires, of(both / 2), of(both), host_s, overlap=self.prefill_overlap)

    def pass_for_limit_s(self, nic_gbps: Any) -> Any:
        """Return the seconds of a prefill pass to compare with a limit, as in `tpot_for_limit_s`."""
        return limit_factor(self.case, "prefill") * self.prefilling(nic_gbps).step_s

    @property
    def prompt(self) -> int:
        """Tokens of a prompt."""
        return prompt_of(self.case)

    @property
    def fresh(self) -> float:
        """Tokens of a prompt that are not cached."""
        return self.prompt * (1 - self.case.serving.prefill.cached)

    @property
    def pass_tokens(self) -> float:
        """Tokens of a GPU in one prefill pass."""
        return float((self.case.serving.prefill.tokens or PASS) * (2 if self.prefill_overlap else 1))

    def prefill_gbps(self, nic_gbps: Any) -> Any:
        """Return the bandwidth of a NIC that prefills [Gbps]: as stated, else `nic_gbps`, that of the decoding pool."""
        stated = self.case.serving.prefill.nic_gbps
        return nic_gbps if stated is None else stated

    def transfer_s(self, nic_gbps: Any) -> Any:
        """Return the seconds to send a prompt's keys and values over a GPU's NIC at each end, at the slower rate."""
        kept = cache_bytes(self.decode.model, self.prompt) + state_bytes(self.decode.model)
        sender, receiver = self.transfer_Bps(nic_gbps)
        return kept / array_module(nic_gbps).minimum(sender, receiver)

    def transfer_Bps(self, nic_gbps: Any) -> tuple[Any, Any]:
        """Return the rates [bytes/s] at which a GPU that prefills sends caches and one that decodes receives them."""
        speeds = self.prefill_gbps(nic_gbps) * self.prefill.group.leaving, nic_gbps * self.decode.group.leaving
        sender, receiver = (TRANSFER * units.gbps(gbps) for gbps in speeds)
        return sender, receiver

    def first_token_s(self, nic_gbps: Any, decoding: Decoding) -> Any:
        """Return the seconds from the start of a prompt's first pass to its first token: passes, transfer and one step,
        without a queue."""
        return self.prompt_s(nic_gbps, self.prefilling(nic_gbps).step_s) + decoding.step.step_s

    def prompt_s(self, nic_gbps: Any, pass_s: Any) -> Any:
        """Return the seconds of a prompt's passes and of the transfer of its cache."""
        passes = -(-self.fresh // (self.pass_tokens * self.prefill.model.tp))
        return passes * pass_s + self.transfer_s(nic_gbps)

    # ----------------------------------------------------------------------------------------------------------- memory
    def weight_bytes(self, pool: GpuPool) -> float:
        """Return the weights of a GPU [B]."""
        return weight_bytes(pool.model)

    @property
    def prefill_bytes(self) -> float:
        """Memory of a prefill GPU [B]: weights, caches of the prompts in one pass (at least one), buffers."""
        prompts = max(1.0, self.pass_tokens * self.prefill.model.tp / self.fresh)
        kept = prompts * request_bytes(self.prefill.model, self.prompt)
        return self.weight_bytes(self.prefill) + kept + units.gigabytes(self.case.serving.reserved_gigabytes)

    @property
    def prefill_fits(self) -> bool:
        """Whether `prefill_bytes` fit the memory of a GPU that prefills."""
        return self.prefill_bytes <= self.prefill.gpu_bytes

    def request_bytes(self, context: Any) -> Any:
        """Return the bytes of one request's cache on each GPU that computes its attention."""
        return request_bytes(self.decode.model, context)

    def memory_bytes(self, requests: Any, context: Any) -> Any:
        """Return the memory [B] that a decoding GPU needs."""
        held = requests * self.decode.model.tp * self.request_bytes(context)
        return self.weight_bytes(self.decode) + held + units.gigabytes(self.case.serving.reserved_gigabytes)

    def most_requests(self, context: Any) -> Any:
        """Return how many requests per GPU fit its memory; may be 0 or less."""
        left = self.decode.gpu_bytes - self.memory_bytes(0.0, context)
        return left / (self.decode.model.tp * self.request_bytes(context))

    # ------------------------------------------------------------------------------------------------------------- cost
    @property
    def groups(self) -> tuple[int, int]:
        """Groups that decode and groups that prefill: as stated, else one of each."""
        load = self.case.serving.load
        return load.decode_groups or 1, load.prefill_groups or 1

    def network_of(self, groups: tuple[int, int]) -> PricedNetwork:
        """Return the network of this many groups that decode and that prefill."""
        each = list(zip(groups, (self.decode.group, self.prefill.group), strict=True))
        nics = sum(count * group.tree_nics for count, group in each)
        return PricedNetwork(sum(count * group.shape.gpus for count, group in each), self.decode.group.tiers_for(nics))

    def per_gpu(
        self, quote: str | None = None
    ) -> tuple[tuple[float | None, float | None], tuple[float | None, float | None]]:
        """Return `GpuPool.per_gpu` of both pools on the network of their groups."""
        tiers = self.network_of(self.groups).tiers
        return self.decode.per_gpu(tiers, quote), self.prefill.per_gpu(tiers, quote)

    @property
    def quotes(self) -> list[str]:
        """Columns of other quoted prices that parts of a pool have."""
        return [name for name in QUOTED if name in {*self.decode.quotes, *self.prefill.quotes}]

    def usd_per_s(self, groups: tuple[int, int], quote: str | None = None) -> float | None:
        """Return the dollars per second of this many groups that decode and that prefill; None without prices.
        `quote`: as in `GpuPool.per_gpu`."""
        tiers, pools = self.network_of(groups).tiers, (self.decode, self.prefill)
        usd = [pool.per_gpu(tiers, quote)[0] for pool in pools]
        if None in usd:
            return None
        each = zip(usd, groups, pools, strict=True)
        return sum(own * count * pool.group.shape.gpus for own, count, pool in each)  # type: ignore[operator]

    def prefill_share(self, decoding: Decoding, nic_gbps: Any) -> Any:
        """Return the prefill GPUs per decoding GPU, for answers of the stated length."""
        prompt_tokens_per_s = decoding.tokens_per_s / self.case.serving.answer * self.fresh
        return prompt_tokens_per_s * self.prefilling(nic_gbps).step_s / self.pass_tokens

    def per_million(self, decoding: Decoding, nic_gbps: Any, quote: str | None = None) -> tuple[Any, Any]:
        """Return dollars and joules per million answer tokens, for both pools together; None: not known. `quote`: as in
        `GpuPool.per_gpu`."""
        prefill = self.prefill_share(decoding, nic_gbps)

        def of_both(decode: float | None, prefilled: float | None) -> Any:
            if decode is None or prefilled is None:
                return None
            return MILLION * (decode + prefill * prefilled) / decoding.tokens_per_s

        (usd, joules), (prefill_usd, prefill_joules) = self.per_gpu(quote)
        return of_both(usd, prefill_usd), of_both(joules, prefill_joules)


def prompt_of(case: Case) -> int:
    """Return the tokens of a prompt: as stated, else the mean context."""
    serving = case.serving
    return max(1, round(serving.context)) if serving.prompt is None else serving.prompt


def limit_basis(case: Case) -> str:
    """Return `serving.by`. Unless stated, it is "high" (the band's slow end) if `serving.tpot_ms` is a limit."""
    return case.serving.by or ("predicted" if case.serving.tpot_ms is None else "high")


def limit_factor(case: Case, what: str) -> float:
    """Return the factor to apply to predicted seconds before they are compared with a limit. `what`: a key of
    `MEASURED_OVER_PREDICTED`."""
    return parts.MEASURED_OVER_PREDICTED[what][1] if limit_basis(case) == "high" else 1.0


def deployment(case: Case) -> Deployment:
    """Return the deployment of a case.

    Raise `InputError` for an unknown name, and `Misfit` for GPUs, experts or kernels that do not fit together.
    """
    serving, model = case.serving, model_of(case).architecture
    check_sizes(case)
    drafts = serving.drafts
    if drafts.accepted > drafts.tokens:
        most = f"serving.drafts.tokens, {drafts.tokens}"
        raise Misfit(f"serving.drafts.accepted must be at most {most}, got {drafts.accepted:g}.")
    decode = _pool(case, model, serving.ep, serving.kernels, DECODES_WITH)
    return Deployment(case, decode, prefill_pool(case, model))


def prefill_pool(case: Case, model: Architecture) -> GpuPool:
    """Return the prefill pool of a case."""
    serving = case.serving
    gpus = serving.prefill.ep or serving.ep
    return _pool(prefill_case(case), model, gpus, serving.prefill.kernels, PREFILLS_WITH)


def kernels_of(group: ServingGroup, stated: str | None, usual: str) -> Family:
    """Return the stated kernels. Default: `usual`, or NVLink kernels for a group inside a domain larger than a
    server."""
    wide = group.domains == 1 and group.shape.gpus_per_server > group.gpu.gpus_per_server
    return family(stated or ("nvlink-one-sided" if wide else usual))


def check_sizes(case: Case) -> None:
    """Raise `Misfit` as `check_size` does, for the groups that decode and those that prefill."""
    serving, prefill = case.serving, case.serving.prefill
    check_size(case, serving.ep, serving.kernels, DECODES_WITH)
    path = "serving.ep" if prefill.ep is None else "serving.prefill.ep"
    check_size(prefill_case(case), prefill.ep or serving.ep, prefill.kernels, PREFILLS_WITH, path)


def check_size(case: Case, gpus: int, kernels: str | None, usual: str, path: str = "serving.ep") -> None:
    """Raise `Misfit` if fabric or kernels have no room for a group of `gpus`, or `serving.tp` does not divide it. This
    check solves nothing. `path`: the setting that says `gpus`."""
    group, tp = group_of(case, gpus, path), case.serving.tp
    check_links(lanes_of(group, kernels_of(group, kernels, usual)))
    if gpus % tp or group.shape.gpus_per_server % tp:
        raise Misfit(f"serving.tp must divide the GPUs of a server and {path}, got {tp}.")


def _pool(case: Case, model: Architecture, gpus: int, kernels: str | None, usual: str) -> GpuPool:
    serving, group = case.serving, group_of(case, gpus)
    sending = kernels_of(group, kernels, usual)
    slots = slots_of(model, gpus, serving.redundant_experts if gpus == serving.ep else None)
    taken = expert_shares_of(case, model)
    load = place_experts(model, gpus, slots, taken.shares, domains=group.domains, placed=serving.eplb)
    return pool_of(case, taken, load, group, sending, crossing_of(group, sending, load))


def pool_of(
    case: Case, taken: ExpertShares, load: ExpertLoad, group: ServingGroup, sending: Family, crossing: Crossing
) -> GpuPool:
    """Return a pool with the kernels and number formats of a case."""
    facts, formats, drafting = model_of(case).architecture, case.serving.formats, case.serving.drafts.tokens > 0
    served = formats_of(formats.weights, group.gpu, latent=has_latents(facts), cache=formats.cache)
    kernels = served_kernels(group.gpu, path=table_of(case))
    model = ServedModel(facts, kernels, served, load, case.serving.tp, drafting=drafting)
    return GpuPool(model, group, sending, crossing, formats.dispatch, formats.combine, taken)


def expert_shares_of(case: Case, model: Architecture) -> ExpertShares:
    """Return how often experts are selected, by `serving.experts`. Raise `InputError` for a trace that is not named or
    does not fit."""
    how, layers, seed = case.serving.experts, len(model.moe_blocks), case.run.seed
    if how == "balanced":
        return EVEN
    if how == "measured":
        return ExpertShares(layer_shares(model, layers, seed)[0].mean(axis=1), f"measured: {shares_description(model)}")
    return _generated_shares(case, model) if how == "generated" else _trace_shares(case, model)


def _generated_shares(case: Case, model: Architecture) -> ExpertShares:
    source: Any = case.traffic.source
    if source.name != "generated":
        raise InputError(
            "serving.experts generated needs traffic.generated.skew: the n-th expert is selected n^-skew times as "
            "often as the first (--set traffic.generated.skew=0.8)."
        )
    layers, knobs = len(model.moe_blocks), Knobs(skew=source.skew)
    each = [base_popularity(knobs, layers, model.experts, case.run.seed, layer) for layer in range(layers)]
    return ExpertShares(to_shares(np.array(each)), f"generated, skew {source.skew:g}")


def _trace_shares(case: Case, model: Architecture) -> ExpertShares:
    source: Any = case.traffic.source
    if source.name != "trace" or source.path is None:
        raise InputError("serving.experts trace needs traffic.trace.path, recorded routing (--trace PATH).")
    job = Workload.of(model.name, architecture=model, dp=1, tp=1, pp=1, ep=1, gpus=1, gpus_per_server=1)
    tokens = recorded_tokens(job, source.path, source.records, None, source.axes)
    count = tokens.count.sum(axis=(0, 2, 3), dtype=float)
    return ExpertShares(count[count.any(axis=1)], tokens.source)  # layers without tokens are left out
