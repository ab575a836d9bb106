"""Columns of serving: a deployment, its split into attention and expert GPUs, and its load."""

from mfabric_jax.evaluate.resolving.set_up import MEMORY
from mfabric_jax.evaluate.rows.costs import COST, QUOTES
from mfabric_jax.evaluate.rows.rows import ASSUMED, NAMES
from mfabric_jax.support.bands import HIGH_GPUS, LOW_GPUS, LOW_PORTS
from mfabric_jax.support.columns import TEXT, TRUTH, Column, Columns

QUANTILES = ("p50", "p90", "p99")
QUOTES_OF_TOKENS = LOW_PORTS, LOW_GPUS, HIGH_GPUS

DEPLOYMENT = Columns(
    NAMES["model"],
    Column("gpu", TEXT, "Name of the GPU."),
    NAMES["fabric"],
    NAMES["nic_gbps"],
    Column("kernels", TEXT, "Kernels of dispatch and combine."),
    Column("precision", TEXT, "Format of dispatched tokens."),
    Column("ep", "GPUs", "GPUs that share the experts."),
    Column("tp", "GPUs", "Tensor-parallel degree of attention."),
    Column(
        "batch",
        "tokens",
        "Tokens of a GPU in one micro-batch; two run with `overlap`, else one. Under a load it is a cap: a full one "
        "may be late.",
    ),
    Column("context", "tokens", "Mean tokens in a request's cache."),
    Column("overlap", TRUTH, "Whether decoding hides communication behind a second micro-batch."),
    ASSUMED["expert_load"],
    Column(
        "rank_load_over_mean", "", "Tokens that the busiest GPU receives over the mean of GPUs; averaged over layers."
    ),
    Column("rank_load_over_mean_in_order", "", "`rank_load_over_mean` with experts in order.", detail=True),
)
STEP = Columns(
    Column("tpot_s", "s", "Time from token to token."),
    Column("tpot_limit_s", "s", "Stated limit of `tpot_s`.", detail=True),
    Column("tpot_low_s", "s", "Low end of the band of `tpot_s`."),
    Column("tpot_high_s", "s", "High end of the band of `tpot_s`."),
    Column("overlapped_s", "s", "`tpot_s` of two micro-batches that hide each other's communication.", detail=True),
    Column("serial_s", "s", "`tpot_s` if the two were one micro-batch.", detail=True),
    Column("ttft_s", "s", "Time from the start of a prompt's first pass to the first token, without a queue."),
    Column("ttft_limit_s", "s", "Stated limit of `ttft_s`.", detail=True),
    Column("ttft_high_s", "s", "`ttft_s` at the slow end of its bands.", detail=True),
    Column("by", TEXT, "What is compared with limits: `high`, the slow end of the band, or `predicted`."),
    Column(
        "tokens_per_s_per_gpu",
        "tokens/s",
        "Answer tokens per second of a decoding GPU; idle GPUs do not count.",
        rises=True,
    ),
    Column("tokens_per_s_per_user", "tokens/s", "Answer tokens per second of a request.", rises=True),
    Column("dispatch_s", "s", "Time of dispatch in one MoE layer and micro-batch."),
    Column("combine_s", "s", "Time of combine in one MoE layer and micro-batch."),
    Column("attention_s", "s", "Time of attention in one MoE layer and micro-batch."),
    Column("experts_s", "s", "Time of routed experts on the busiest GPU in one layer and micro-batch."),
    Column("beside_s", "s", "Time of norms, router and shared experts in one layer and micro-batch.", detail=True),
    Column("exposed_comm_s", "s", "Communication time of a step that computation does not hide."),
    Column("kv_transfer_s", "s", "Time to transfer a prompt's keys and values over one NIC."),
)
PREFILL = Columns(
    Column("prefill_s", "s", "Time of a prefill pass."),
    Column("prefill_low_s", "s", "Low end of the band of `prefill_s`.", detail=True),
    Column("prefill_high_s", "s", "High end of the band of `prefill_s`.", detail=True),
    Column("prefill_tokens_per_s_per_gpu", "tokens/s", "Prompt tokens per second of a prefill GPU.", rises=True),
    Column("prefill_memory_gb", "GB", "Memory that a prefill GPU needs.", detail=True),
    Column("prefill_gpu", TEXT, "Name of the GPU that prefills.", detail=True),
    Column("prefill_nic_gbps", "Gbps", "Bandwidth of a NIC of the GPUs that prefill.", detail=True),
    Column("prefill_gpu_memory_gb", "GB", "Memory of a GPU that prefills.", detail=True),
    Column("prefill_ep", "GPUs", "GPUs of a prefill group."),
    Column("prefill_tokens", "tokens", "Tokens of a GPU in one micro-batch of a prefill pass."),
    Column("prefill_overlap", TRUTH, "Whether prefill hides communication behind a second micro-batch."),
    Column("prefill_gpus", "GPUs", "Prefill GPUs per decoding GPU."),
)
SERVED = Columns(
    DEPLOYMENT,
    STEP,
    PREFILL,
    Column("requests", "", "Requests of a GPU."),
    Column("most_requests", "", "Requests that fit in the memory of a GPU.", rises=True),
    *(MEMORY[name] for name in ("memory_gb", "gpu_memory_gb", "fits")),
    Column("batch_limit", TEXT, "What keeps the batch from being larger: `memory` or `time`."),
    COST["usd_per_million_tokens"],
    Column("kj_per_million_tokens", "kJ", "Energy per million answer tokens, both pools."),
    Column(
        "network_gpus",
        "GPUs",
        "GPUs whose network is priced: both pools; without a load, a group of each.",
        detail=True,
    ),
    Column(
        "network_tiers", "", "Tiers of switch trees in dollars: the fewest for these GPUs, unless stated.", detail=True
    ),
    *(QUOTES[name] for name in QUOTES_OF_TOKENS),
    Column("bound_by", TEXT, "Part of a step that limits it; `memory` if the row does not fit."),
    Column(
        "in_time",
        TRUTH,
        "Whether the row fits the memory and meets its limits; under a load, whether enough requests do (`in_slo`) and "
        "pools keep up.",
    ),
)
SPLIT = Columns(
    Column("attention_gpus", "GPUs", "Attention GPUs."),
    Column("expert_gpus", "GPUs", "Expert GPUs."),
    Column("micro_batches", "", "Micro-batches that alternate between the two sets of GPUs."),
    Column("layer_s", "s", "Time of an MoE layer for all micro-batches.", detail=True),
    Column("expert_memory_gb", "GB", "Weights of an expert GPU.", detail=True),
)
"""Columns that `serving.split` adds to `SERVED`."""
TIMED = {
    "ttft": "Time from arrival to first token",
    "tpot": "Mean time from token to token of a request",
    "e2e": "Time from arrival to last token",
}
SHORT = ("ttft", "p99"), ("tpot", "p99")  # quantiles of times without `--all-columns`
LOADED = Columns(
    Column("load_requests_per_s", "1/s", "Requests that arrive per second."),
    Column("requests_per_s", "1/s", "Requests that end per second.", rises=True),
    Column("goodput_per_s", "1/s", "Requests per second that end within the limits; empty without limits.", rises=True),
    Column("in_slo", "", "Fraction of arriving requests that meet the limits.", rises=True),
    Column("in_slo_limit", "", "Fraction that must meet the limits (`serving.load.keep`).", detail=True),
    *(
        Column(f"load_{name}_{quantile}_s", "s", f"{text}, {quantile}.", detail=(name, quantile) not in SHORT)
        for name, text in TIMED.items()
        for quantile in QUANTILES
    ),
    Column("load_warmup_s", "s", "Time of the first counted arrival, after the warm-up.", detail=True),
    Column("load_window_s", "s", "Time from the first counted arrival to the last one.", detail=True),
    Column("load_tokens_per_s", "tokens/s", "Answer tokens per second that requests ask for."),
    Column("decode_load", "", "Answer tokens that requests ask for, over what the decoding pool can generate."),
    Column("prefill_load", "", "Prompt tokens of requests, over what the prefill pool can process."),
    Column(
        "load_usd_per_million_tokens",
        "USD",
        "Cost per million served answer tokens, both pools: those that arrive if the pools keep up, else those of "
        "requests that finish.",
    ),
    Column("prefill_queue", "", "Requests that wait for prefill, on average.", detail=True),
    Column("decode_queue", "", "Requests that wait for a slot on decoding GPUs, on average.", detail=True),
    Column("decode_limit", TEXT, "What limits the slots: `batch` or `memory`.", detail=True),
    Column("prefill_busy", "", "Fraction of time in which a prefill pass runs.", detail=True),
    Column("prefill_filled", "", "Tokens of all prefill passes over what full passes hold.", detail=True),
    Column("decode_busy", "", "Fraction of time in which a decoding step runs.", detail=True),
    Column("decode_requests", "", "Requests on a decoding GPU, on average.", detail=True),
    Column("load_prefill_gpus", "GPUs", "Prefill GPUs."),
    Column("load_decode_gpus", "GPUs", "Decoding GPUs."),
    Column("load_requests", "", "Requests that are served, including the warm-up.", detail=True),
    Column("load_turns", "", "Of these, further turns of a conversation; empty if all arrive as logged.", detail=True),
    Column(
        "unsimulated",
        TEXT,
        "Why a search did not simulate the load: `costs more` than another size; else empty.",
        detail=True,
    ),
    Column("refused", "", "Requests too large for the memory of any GPU, including the warm-up."),
    Column("left_out", "", "Requests of the trace that are left out: they have no prompt or no answer.", detail=True),
    Column("load_kv_p50_s", "s", "Time to transfer a request's keys and values, p50.", detail=True),
    Column("load_kv_p99_s", "s", "Time to transfer a request's keys and values, p99.", detail=True),
    Column("kv_slowdown_p99", "", "Transfer time over the time on an idle network, p99."),
    Column(
        "kv_busiest_nic",
        "",
        "Fraction of the whole time in which the busiest NIC carries keys and values.",
    ),
    Column(
        "kv_hot_pair",
        TEXT,
        "Pair of prefill and decoding units with the most bytes. A unit is a GPU, or `serving.tp` GPUs.",
        detail=True,
    ),
    Column("kv_hot_pair_over_mean", "", "Bytes of `kv_hot_pair` over the mean of all pairs.", detail=True),
)
"""Columns that `serving.load` adds to `SERVED`; most count only requests after the warm-up."""
SERVE = Columns(SERVED, LOADED, SPLIT)
CLIENTS = Columns(
    *(DEPLOYMENT[name] for name in ("model", "gpu", "tp", "ep")),
    *(STEP[name] for name in ("tpot_s", "tpot_limit_s", "tpot_low_s", "tpot_high_s")),
    Column("step_s", "s", "Time of a decoding step.", detail=True),
    Column("prompts_s", "s", "Part of `tpot_s` taken by prompts of other clients.", detail=True),
    *(STEP[name] for name in ("ttft_s", "by", "tokens_per_s_per_gpu", "tokens_per_s_per_user")),
    *(MEMORY[name] for name in ("memory_gb", "gpu_memory_gb", "fits")),
    COST["usd_per_million_tokens"],
    SERVED["in_time"],
)
"""Columns of `serve --clients`."""
SERVED_ROWS = Columns(
    Column("predicted_tpot_ms", "ms", "Predicted time per output token."),
    Column("low_ms", "ms", "Low end of the band in which 8 of 10 measured rows lay."),
    Column("high_ms", "ms", "High end of the band in which 8 of 10 measured rows lay."),
    Column("error", "", "Predicted over measured time, minus 1."),
    Column(
        "unexplained_s",
        "s",
        "The `serving.host_s` with which `serve --clients --by predicted` gives the measured time; empty if it is "
        "shorter than predicted. Bands already contain it.",
    ),
    Column("reason", TEXT, "Why the row cannot be predicted."),
)
"""Columns that `validate serving --rows` adds to those of the file that it reads (docs/serving.md)."""
