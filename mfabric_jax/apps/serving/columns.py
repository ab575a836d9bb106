"""Columns of the rows of serving: a deployment, with a split of attention and experts, and under a load."""

from mfabric_jax.evaluate.resolving.set_up import MEMORY
from mfabric_jax.evaluate.rows.costs import COST
from mfabric_jax.evaluate.rows.rows import ASSUMED, NAMES
from mfabric_jax.support.columns import TEXT, TRUTH, Column, Columns

QUANTILES = ("p50", "p90", "p99")

DEPLOYMENT = Columns(
    NAMES["model"],
    Column("gpu", TEXT, "Name of the GPU."),
    NAMES["fabric"],
    NAMES["nic_gbps"],
    Column("kernels", TEXT, "Kernels of dispatch and combine."),
    Column("precision", TEXT, "Format of dispatched tokens."),
    Column("ep", "GPUs", "GPUs that share the experts."),
    Column("tp", "GPUs", "Tensor-parallel degree of attention."),
    Column("batch", "tokens", "Tokens of a GPU in one micro-batch."),
    Column("context", "tokens", "Mean tokens in a request's cache."),
    Column("overlap", TRUTH, "Whether decoding hides communication behind a second micro-batch."),
    ASSUMED["expert_load"],
    Column("rank_load_over_mean", "", "Tokens that the busiest GPU receives over the mean; mean of layers."),
    Column("rank_load_over_mean_in_order", "", "The same with experts in order.", detail=True),
)
STEP = Columns(
    Column("tpot_s", "s", "Time from token to token."),
    Column("tpot_limit_s", "s", "Stated limit of `tpot_s`.", detail=True),
    Column("tpot_low_s", "s", "Low end of the band of `tpot_s`."),
    Column("tpot_high_s", "s", "High end of the band of `tpot_s`."),
    Column("overlapped_s", "s", "`tpot_s` of two micro-batches that hide each other's communication.", detail=True),
    Column("serial_s", "s", "`tpot_s` of both as one micro-batch.", detail=True),
    Column("ttft_s", "s", "Time from the first pass of a prompt to the first token, without a queue."),
    Column("ttft_limit_s", "s", "Stated limit of `ttft_s`.", detail=True),
    Column("ttft_high_s", "s", "`ttft_s` at the slow end of its bands.", detail=True),
    Column("by", TEXT, "What is compared with limits: `high`, the slow end of the band, or `predicted`.", detail=True),
    Column("tokens_per_s_per_gpu", "tokens/s", "Tokens of a GPU that decodes; idle GPUs do not count.", rises=True),
    Column("tokens_per_s_per_user", "tokens/s", "Tokens of a request.", rises=True),
    Column("dispatch_s", "s", "Dispatch of one MoE layer and micro-batch."),
    Column("combine_s", "s", "Combine of one MoE layer and micro-batch."),
    Column("attention_s", "s", "Attention of one MoE layer and micro-batch."),
    Column("experts_s", "s", "Routed experts of the busiest GPU, one layer and micro-batch."),
    Column("beside_s", "s", "Norms, router and shared experts of one layer and micro-batch.", detail=True),
    Column("exposed_comm_s", "s", "Communication of a step that computation does not hide."),
    Column("kv_transfer_s", "s", "Transfer of a prompt's keys and values over one NIC."),
)
PREFILL = Columns(
    Column("prefill_s", "s", "A pass of prefill."),
    Column("prefill_low_s", "s", "Low end of its band.", detail=True),
    Column("prefill_high_s", "s", "High end of its band.", detail=True),
    Column("prefill_tokens_per_s_per_gpu", "tokens/s", "Prompt tokens of a GPU that prefills.", rises=True),
    Column("prefill_memory_gb", "GB", "Memory that a GPU that prefills needs.", detail=True),
    Column("prefill_ep", "GPUs", "GPUs of a group that prefills."),
    Column("prefill_tokens", "tokens", "Tokens of a GPU in one micro-batch of a pass.", detail=True),
    Column("prefill_overlap", TRUTH, "Whether a second micro-batch hides communication.", detail=True),
    Column("prefill_gpus", "GPUs", "GPUs that prefill for each GPU that decodes."),
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
    Column("kj_per_million_tokens", "kJ", "Energy of a million tokens of answers, both pools."),
    Column("bound_by", TEXT, "The part of a step that would shorten it most; `memory` where the row does not fit."),
)
SPLIT = Columns(
    Column("attention_gpus", "GPUs", "GPUs of attention."),
    Column("expert_gpus", "GPUs", "GPUs of experts."),
    Column("micro_batches", "", "Micro-batches that alternate."),
    Column("layer_s", "s", "An MoE layer of all micro-batches.", detail=True),
    Column("expert_memory_gb", "GB", "Weights of a GPU of experts.", detail=True),
)
"""Columns in addition to `SERVED` with `serving.split`."""
TIMED = {
    "ttft": "Time from arrival to first token",
    "tpot": "Mean time from token to token of a request",
    "e2e": "Time from arrival to last token",
}
LOADED = Columns(
    Column("load_requests_per_s", "1/s", "Requests that arrive."),
    Column("requests_per_s", "1/s", "Requests that end.", rises=True),
    Column("goodput_per_s", "1/s", "Requests that end within the limits; empty without limits.", rises=True),
    Column("in_slo", "", "Fraction of arriving requests that meet the limits.", rises=True),
    Column("in_slo_limit", "", "Fraction that must meet the limits (`serving.load.keep`).", detail=True),
    *(
        Column(f"load_{name}_{quantile}_s", "s", f"{text}, {quantile}.", detail=quantile == "p90")
        for name, text in TIMED.items()
        for quantile in QUANTILES
    ),
    Column("load_warmup_s", "s", "Time of the first arrival that counts, after the warm-up.", detail=True),
    Column("load_window_s", "s", "Time from that arrival to the last one.", detail=True),
    Column("load_tokens_per_s", "tokens/s", "Tokens that answers ask for."),
    Column("decode_load", "", "These tokens over what the pool can decode."),
    Column("prefill_load", "", "Tokens of prompts over what the pool can prefill."),
    Column("load_usd_per_million_tokens", "USD", "Cost of a million tokens of served answers, both pools."),
    Column("prefill_queue", "", "Requests that wait for prefill, on average.", detail=True),
    Column("decode_queue", "", "Requests that wait for a slot on GPUs that decode, on average.", detail=True),
    Column("decode_limit", TEXT, "What limits the slots: `batch` or `memory`.", detail=True),
    Column("prefill_busy", "", "Fraction of time in which a prefill pass runs.", detail=True),
    Column("prefill_filled", "", "Tokens of passes over their capacity.", detail=True),
    Column("decode_busy", "", "Fraction of time in which a decoding step runs.", detail=True),
    Column("decode_requests", "", "Requests of a GPU that decodes, on average.", detail=True),
    Column("load_prefill_gpus", "GPUs", "GPUs that prefill."),
    Column("load_decode_gpus", "GPUs", "GPUs that decode."),
    Column("load_requests", "", "Requests that are served.", detail=True),
    Column("refused", "", "Requests too large for the memory of any GPU."),
    Column("left_out", "", "Requests of the trace without prompt or answer.", detail=True),
    Column("load_kv_p50_s", "s", "Median transfer of keys and values.", detail=True),
    Column("load_kv_p99_s", "s", "The same, p99."),
    Column("kv_slowdown_p99", "", "Transfer time over that on an idle network, p99."),
    Column("kv_busiest_nic", "", "Fraction of time in which the busiest NIC carries caches.", detail=True),
    Column("kv_hot_pair", TEXT, "Pair of GPUs with the most bytes.", detail=True),
    Column("kv_hot_pair_over_mean", "", "Its bytes over the mean of pairs.", detail=True),
)
"""Columns in addition to `SERVED` with `serving.load`, for requests after the warm-up."""
SERVE = Columns(SERVED, LOADED, SPLIT)
