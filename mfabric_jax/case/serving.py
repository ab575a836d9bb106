"""Settings of serving, a part of the tree."""

from typing import Annotated, Literal

import msgspec

from mfabric_jax.case.tree import Amount, Count, Group, Least0, Natural, doc


class Formats(Group, frozen=True):
    """Formats of numbers in serving."""

    dispatch: Annotated[Literal["fp8", "bf16", "nvfp4"], doc("Of dispatched tokens.")] = "fp8"
    combine: Annotated[Literal["fp8", "bf16", "nvfp4"], doc("Of combined tokens.")] = "bf16"
    weights: Annotated[Literal["fp8", "bf16", "nvfp4"], doc("Of weights, and of their products.")] = "fp8"
    cache: Annotated[Literal["fp8", "bf16"], doc("Of keys and values that are kept.")] = "bf16"


class Drafts(Group, frozen=True):
    """Further tokens that a small model drafts, and a step checks (MTP)."""

    tokens: Annotated[Natural, doc("Of a request in each step.")] = 0
    accepted: Annotated[Least0, doc("Of them, those that are kept, on average.")] = 0.0


class Prefill(Group, frozen=True):
    """The GPUs that read prompts."""

    ep: Annotated[Count | None, doc("GPUs that share the experts (open: serving.ep).")] = None
    kernels: Annotated[
        str | None,
        doc("Of dispatch and combine (open: deepep-normal; in a domain beyond a server nvlink-one-sided).", file=True),
    ] = None
    tokens: Annotated[
        Count | None,
        doc("Of a GPU in one micro-batch (open: 8192; of a search the cheapest of 1024 to 8192 in time)."),
    ] = None
    overlap: Annotated[bool | None, doc("As serving.overlap (open: as there; of a search the better).")] = None
    cached: Annotated[Annotated[float, msgspec.Meta(ge=0, lt=1)], doc("Part of prompts that a cache has.")] = 0.0


class LoadSettings(Group, frozen=True):
    """Requests that arrive at pools of GPUs; of `mfabric serve` where `rate` or `arrivals` is stated."""

    rate: Annotated[
        Amount | None, doc("Requests a second: Poisson, or those of `arrivals`, whose times are stretched.")
    ] = None
    arrivals: Annotated[
        str | None,
        doc(
            "A log of requests (open: equal ones): CSV with TIMESTAMP,ContextTokens,GeneratedTokens (Azure; date and"
            " time) or Timestamp,Request tokens,Response tokens (BurstGPT; seconds), or JSONL with timestamp,"
            " input_length, output_length (Mooncake; ms) and chat_id (Qwen-Bailian; seconds). Three lines, for"
            " instance: Timestamp,Request tokens,Response tokens / 0.0,1500,200 / 0.35,320,80.",
            file=True,
        ),
    ] = None
    unit: Annotated[
        Literal["s", "ms", "us", "ns"] | None,
        doc("Of the timestamps in `arrivals` (open: as its format; refused where another is as likely)."),
    ] = None
    block: Annotated[
        Count | None,
        doc("Tokens of a block that hash_ids in `arrivals` name (open: the size that their number shows)."),
    ] = None
    requests: Annotated[Count, doc("How many arrive, or how many first ones of the trace are taken.")] = 10000
    repeat: Annotated[Count, doc("How often they arrive, one run of `arrivals` after the other.")] = 1
    warmup: Annotated[
        Annotated[float, msgspec.Meta(ge=0, lt=1)], doc("Part of them, at the start, that does not count.")
    ] = 0.2
    prefill_groups: Annotated[
        Count | None, doc("Groups that prefill (open: as many as keep up, in passes that are filled to 0.8).")
    ] = None
    decode_groups: Annotated[
        Count | None, doc("Groups that decode (open: one; with serving.tpot_ms as few as keep `keep` in time).")
    ] = None
    keep: Annotated[
        Annotated[float, msgspec.Meta(gt=0, le=1)],
        doc("Part of requests that groups which are not stated keep in time, where serving.tpot_ms is."),
    ] = 0.99
    ttft_ms: Annotated[
        Amount | None, doc("At most so long to the first token [ms]: of requests, or without a load of a lone prompt.")
    ] = None
    tpot_ms: Annotated[
        Amount | None, doc("At most so long from token to token, for goodput [ms] (open: serving.tpot_ms).")
    ] = None


class SplitSettings(Group, frozen=True):
    """Attention on some GPUs, experts on others; of `mfabric serve` where both are stated."""

    attention_gpus: Annotated[Count | None, doc("GPUs that hold attention and caches (open: no split).")] = None
    expert_gpus: Annotated[Count | None, doc("GPUs that hold the experts (open: no split).")] = None
    micro_batches: Annotated[
        Count | None, doc("That alternate between both (open: the fewest that keep the slower ones busy, at most 4).")
    ] = None


class ServingSettings(Group, frozen=True):
    """A model that answers requests, on pools of GPUs; of `mfabric serve`."""

    ep: Annotated[Count, doc("GPUs that share the experts.")] = 32
    tp: Annotated[Count, doc("Of them, neighbours that split attention.")] = 1
    batch: Annotated[Amount, doc("Tokens of a GPU in one micro-batch, drafted ones included.")] = 128.0
    context: Annotated[Amount, doc("Tokens in the cache of a request, on average.")] = 4096.0
    prompt: Annotated[Count | None, doc("Tokens of a prompt (open: context).")] = None
    answer: Annotated[Count, doc("Tokens of an answer.")] = 1024
    kernels: Annotated[
        str | None,
        doc(
            "Of dispatch and combine: deepep-low-latency, deepep-low-latency-rdma, deepep-normal, deepep-v2, hybridep,"
            " nvlink-one-sided, nccl, ideal, or a file (open: deepep-low-latency; in a domain beyond a server"
            " nvlink-one-sided).",
            file=True,
        ),
    ] = None
    overlap: Annotated[
        bool | None,
        doc("Two micro-batches, each of which computes while the other sends (open: true; with tpot_ms the better)."),
    ] = None
    experts: Annotated[
        Literal["balanced", "measured", "generated", "trace"],
        doc(
            "How often experts are taken: equally; as OLMoE's or Mixtral's were; by traffic.generated.skew; as in"
            " traffic.trace."
        ),
    ] = "balanced"
    eplb: Annotated[bool, doc("Experts are placed, and copied, by how often they are taken; else in order.")] = True
    redundant_experts: Annotated[
        Natural | None, doc("Copies of experts beyond one of each (open: as few as fill the GPUs).")
    ] = None
    reserved_gigabytes: Annotated[Least0, doc("Of a GPU's memory, for buffers of kernels and graphs [GB].")] = 6.0
    host_s: Annotated[Least0, doc("Of every step, in which the GPUs wait for the host [s].")] = 0.0
    tpot_ms: Annotated[
        Amount | None, doc("At most so long from token to token [ms]: the batch that is best within it.")
    ] = None
    by: Annotated[
        Literal["predicted", "high"] | None,
        doc(
            "What keeps to times, alone and under a load: seconds at the slow end of their band (high), or as predicted"
            " (open: high with tpot_ms, else predicted)."
        ),
    ] = None
    formats: Formats = Formats()
    drafts: Drafts = Drafts()
    prefill: Prefill = Prefill()
    load: LoadSettings = LoadSettings()
    split: SplitSettings = SplitSettings()
