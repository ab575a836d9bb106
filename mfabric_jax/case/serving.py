"""Settings of serving: a group of `Case`."""

from typing import Annotated, Literal

import msgspec

from mfabric_jax.case.schema import Amount, Count, Least0, Natural, SettingsGroup, doc


class Formats(SettingsGroup, frozen=True):
    """Number formats of serving."""

    dispatch: Annotated[
        Literal["fp8", "bf16", "nvfp4"], doc("Format of dispatched tokens.", flag="--precision", command="serve")
    ] = "fp8"
    combine: Annotated[Literal["fp8", "bf16", "nvfp4"], doc("Format of combined tokens.")] = "bf16"
    weights: Annotated[
        Literal["fp8", "bf16", "nvfp4", "mxfp4", "int4"],
        doc(
            "Format of weights, and of matrix products with them. fp8: scaled by blocks of 128 x 128 or by tensor"
            " (0.02 % fewer bytes). mxfp4 and int4 hold routed experts in four bits and other weights in bf16;"
            " products are in bf16."
        ),
    ] = "fp8"
    cache: Annotated[Literal["fp8", "bf16"], doc("Format of cached keys and values.")] = "bf16"


class Drafts(SettingsGroup, frozen=True):
    """Draft tokens that a small model proposes and each step checks (MTP)."""

    tokens: Annotated[Natural, doc("Draft tokens of a request per step.")] = 0
    accepted: Annotated[Least0, doc("Draft tokens that are accepted per step, on average.")] = 0.0


class PrefillSettings(SettingsGroup, frozen=True):
    """The GPUs that read prompts."""

    gpu: Annotated[
        str | None,
        doc(
            "GPU that prefills, as in gpu.name (auto: gpu.name). Other settings of gpu describe the GPU that decodes.",
            file=True,
        ),
    ] = None
    nic_gbps: Annotated[
        Amount | None,
        doc("Bandwidth of a NIC of the GPUs that prefill, per direction [Gbps] (auto: network.nic_gbps)."),
    ] = None
    ep: Annotated[Count | None, doc("GPUs that share the experts (auto: serving.ep; in a search, the best).")] = None
    kernels: Annotated[
        str | None,
        doc(
            "Kernels of dispatch and combine (auto: deepep-normal; nvlink-one-sided if domains exceed a server).",
            file=True,
        ),
    ] = None
    tokens: Annotated[
        Count | None,
        doc("Tokens of a GPU per micro-batch (auto: 8192; in a search, the cheapest of 1024 to 8192 that is in time)."),
    ] = None
    overlap: Annotated[
        bool | None, doc("serving.overlap for prefill (auto: the same value; in a search, the better one).")
    ] = None
    cached: Annotated[
        Annotated[float, msgspec.Meta(ge=0, lt=1)], doc("Fraction of prompt tokens found in a cache.")
    ] = 0.0


class LoadSettings(SettingsGroup, frozen=True):
    """Requests that arrive at pools of GPUs, for `mfabric serve` with `rate` or `arrivals`."""

    rate: Annotated[
        Amount | None,
        doc(
            "Requests per second: they arrive as a Poisson process, or as in `arrivals` with scaled times.",
            flag="--rate",
            command="serve",
        ),
    ] = None
    arrivals: Annotated[
        str | None,
        doc(
            "A log of requests (auto: equal requests): CSV with TIMESTAMP,ContextTokens,GeneratedTokens (Azure; date"
            " and time) or Timestamp,Request tokens,Response tokens (BurstGPT; seconds), or JSONL with timestamp,"
            " input_length, output_length (Mooncake; ms) and chat_id (Qwen-Bailian; seconds). Three lines, for"
            " example: Timestamp,Request tokens,Response tokens / 0.0,1500,200 / 0.35,320,80.",
            file=True,
            flag="--arrivals",
            command="serve",
        ),
    ] = None
    unit: Annotated[
        Literal["s", "ms", "us", "ns"] | None,
        doc("Unit of the timestamps in `arrivals` (auto: the unit of its format; refused if another is as likely)."),
    ] = None
    block: Annotated[
        Count | None,
        doc("Tokens of each block in the hash_ids of `arrivals` (auto: worked out from the number of blocks)."),
    ] = None
    requests: Annotated[Count, doc("Number of requests to generate, or to take from the start of the log.")] = 10000
    turns: Annotated[
        Literal["open", "after"],
        doc(
            "When later turns of a conversation in `arrivals` arrive. open: at their logged times; after: the logged"
            " pause after the previous answer has ended."
        ),
    ] = "open"
    repeat: Annotated[Count, doc("Number of times that all requests arrive, one pass after the other.")] = 1
    warmup: Annotated[
        Annotated[float, msgspec.Meta(ge=0, lt=1)],
        doc("Fraction of the requests, from the start, that are not counted."),
    ] = 0.2
    prefill_groups: Annotated[Count | None, doc("Prefill groups (auto: enough to keep up with passes 80 % full).")] = (
        None
    )
    decode_groups: Annotated[
        Count | None,
        doc("Decode groups (auto: one; with serving.tpot_ms, the fewest that keep the fraction `keep` in time)."),
    ] = None
    keep: Annotated[
        Annotated[float, msgspec.Meta(gt=0, le=1)],
        doc("Fraction of requests to keep in time when groups are auto and serving.tpot_ms is stated."),
    ] = 0.99
    ttft_ms: Annotated[
        Amount | None,
        doc(
            "Limit on the time to the first token [ms]: of requests or, without a load, of a single prompt.",
            flag="--ttft-ms",
            command="serve",
        ),
    ] = None
    tpot_ms: Annotated[
        Amount | None, doc("Limit on the time from token to token, for goodput [ms] (auto: serving.tpot_ms).")
    ] = None


class SplitSettings(SettingsGroup, frozen=True):
    """Attention on some GPUs, experts on others, for `mfabric serve` if both numbers of GPUs are stated."""

    attention_gpus: Annotated[Count | None, doc("GPUs that hold attention and caches (auto: no split).")] = None
    expert_gpus: Annotated[Count | None, doc("GPUs that hold the experts (auto: no split).")] = None
    micro_batches: Annotated[
        Count | None,
        doc(
            "Micro-batches that alternate between both pools (auto: the fewest up to 4 that keep the slower pool busy)."
        ),
    ] = None


class ReplicaSettings(SettingsGroup, frozen=True):
    """One replica on serving.tp GPUs of a server, which clients ask, for `mfabric serve --clients`."""

    clients: Annotated[
        Count | None,
        doc(
            "Clients of a replica on serving.tp GPUs; each asks again once it is answered (auto: pools of GPUs).",
            flag="--clients",
            command="serve",
        ),
    ] = None
    engine: Annotated[
        Literal["trtllm", "sglang", "vllm"] | None,
        doc(
            "Engine whose kernels and scheduling are modelled (auto: the fastest kernels, prompts in separate passes).",
            flag="--engine",
            command="serve",
        ),
    ] = None
    ep: Annotated[
        Count, doc("Expert-parallel degree of the replica; serving.tp / ep GPUs split each expert's matrices.")
    ] = 1
    cache: Annotated[
        Literal["fp8", "bf16"] | None,
        doc("Format of cached keys and values (auto: FP8 with nvfp4 weights and for latents under trtllm, else BF16)."),
    ] = None
    first_token_ms: Annotated[
        Least0, doc("Time of hosts and schedulers before a first token, added to the prompt's pass [ms].")
    ] = 0.0


class ServingSettings(SettingsGroup, frozen=True):
    """A model that serves requests. Read by `mfabric serve`, for pools of GPUs."""

    ep: Annotated[Count, doc("GPUs that share the experts.", flag="--ep", command="serve")] = 32
    tp: Annotated[
        Count,
        doc("Tensor-parallel degree of attention: neighbouring GPUs that split it.", flag="--tp", command="serve"),
    ] = 1
    batch: Annotated[
        Amount, doc("Tokens of a GPU per micro-batch, draft tokens included.", flag="--batch", command="serve")
    ] = 128.0
    context: Annotated[
        Amount,
        doc(
            "Mean tokens in the cache of a request; a load has its own, prompt + answer / 2.",
            flag="--context",
            command="serve",
        ),
    ] = 4096.0
    prompt: Annotated[
        Count | None, doc("Tokens of a prompt (auto: context; of a log, its median).", flag="--prompt", command="serve")
    ] = None
    answer: Annotated[Count, doc("Tokens of an answer.", flag="--answer", command="serve")] = 1024
    kernels: Annotated[
        str | None,
        doc(
            "Kernels of dispatch and combine: deepep-low-latency, deepep-low-latency-rdma, deepep-normal, deepep-v2,"
            " hybridep, nvlink-one-sided, nccl, ideal, or a file (auto: deepep-low-latency; nvlink-one-sided if domains"
            " exceed a server).",
            file=True,
            flag="--kernels",
            command="serve",
        ),
    ] = None
    overlap: Annotated[
        bool | None,
        doc("Two micro-batches take turns: one computes while the other sends (auto: true; with tpot_ms, the better)."),
    ] = None
    experts: Annotated[
        Literal["balanced", "measured", "generated", "trace"],
        doc(
            "Popularity of experts: balanced; measured (on OLMoE or Mixtral); generated (by traffic.generated.skew);"
            " trace (from the recording traffic.trace)."
        ),
    ] = "balanced"
    eplb: Annotated[bool, doc("Place and copy experts by their popularity; false: place them in order.")] = True
    redundant_experts: Annotated[
        Natural | None, doc("Extra copies of experts (auto: the fewest that fill the GPUs).")
    ] = None
    reserved_gigabytes: Annotated[Least0, doc("Memory of a GPU kept for buffers of kernels and graphs [GB].")] = 6.0
    host_s: Annotated[
        Least0, doc("Time per step or pass in which GPUs wait for hosts [s]; bands already contain it.")
    ] = 0.0
    tpot_ms: Annotated[
        Amount | None,
        doc(
            "Limit on the time from token to token [ms]; if stated, the best batch within it is chosen.",
            flag="--tpot-ms",
            command="serve",
        ),
    ] = None
    by: Annotated[
        Literal["predicted", "high"] | None,
        doc(
            "The time that must be within the limits: predicted, or high, the slow end of its band"
            " (auto: high with tpot_ms, else predicted).",
            flag="--by",
            command="serve",
        ),
    ] = None
    formats: Formats = Formats()
    drafts: Drafts = Drafts()
    prefill: PrefillSettings = PrefillSettings()
    load: LoadSettings = LoadSettings()
    split: SplitSettings = SplitSettings()
    replica: ReplicaSettings = ReplicaSettings()
