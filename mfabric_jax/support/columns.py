"""Columns of every kind of rows, by name: what a version writes and what it reads.

A row also has a column for each setting in which cases differ, named by its path; `draw_2_s`, ... for further draws.
Tests compare these lists with rows that commands make. docs/formats.md says what columns mean.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from mfabric_jax.checks import InputError
from mfabric_jax.support.unread import say_unread

SCHEMA = 1  # of rows and their configuration: raised where a column goes, is renamed or means something else
KEY = "schema"  # in a configuration
DRAW = re.compile(r"draw_\d+_s")
MOST_NAMED = 5  # columns in a sentence

_SECONDS = ("compute_s", "exposed_comm_s", "reconfig_s", "bubble_s", "tp_comm_s", "ep_comm_s", "dp_comm_s")
_PARTS = (*_SECONDS, "placement_s")
_DEGREES = ("tp", "ep", "dp", "pp", "micro_batches", "micro_batch", "sequence", "etp", "tokens_per_iteration")
_JOB = (*_DEGREES, "compute_precision", "precision")
_FLOWS = ("flow_p50_s", "flow_p99_s", "busiest_link", "busiest_link_use")
_MEMORY = (
    *("memory_gb", "gpu_memory_gb", "fits", "memory_weights_gb", "memory_gradients_gb", "memory_optimizer_gb"),
    *("memory_attention_gb", "memory_inner_gb", "memory_logits_gb", "memory_buffers_gb"),
)
_CASES = (
    *("model", "fabric", "variant", "policy", "schedule", "routing", "circuits_for", "nic_use", "ocs"),
    *("nic_gbps", "gpus", "iteration_s", *_PARTS, "latency_s"),
    *("ep_share", "bubble_share", "ep_share_without_bubble", "mfu", "achieved_over_peak"),
    *("network_cost_usd", "perf_per_dollar", "cluster_cost_usd", "perf_per_cluster_dollar", "network_kw", "cluster_kw"),
    *("usd_per_iteration", "joules_per_iteration", "usd_per_million_tokens", "joules_per_million_tokens"),
    *("tokens_per_s", "circuit_changes", "switch_turns", "turns_over_allowed"),
    *("panel_network_cost_usd", "panel_usd_per_million_tokens", "ep_over_balanced", *_JOB),
    *("recipe", "rank_load_over_mean", "region_servers", "first", "decision_s", "expert_load", "placement"),
    *("dispatch", "dropped_share", "compute_source", "traffic", "iterations", "dtype", *_MEMORY),
    *("replicas", "slowest_over_mean", *_FLOWS, "low_s", "high_s"),
    *("training_tokens", "training_days", "training_low_days", "training_high_days", "training_usd", "training_kwh"),
    *("slow_kernels_s", "fast_kernels_s", "slow_links_s", "fast_links_s"),
    *("low_ports_usd", "low_gpus_usd", "high_gpus_usd", "low_ports_network_usd"),
)
_SERVED = (
    *("model", "gpu", "fabric", "nic_gbps", "kernels", "precision", "ep", "tp", "batch", "context"),
    *("overlap", "expert_load", "rank_load_over_mean", "rank_load_over_mean_in_order"),
    *("tpot_s", "tpot_limit_s", "tpot_low_s", "tpot_high_s", "overlapped_s", "serial_s"),
    *("ttft_s", "ttft_limit_s", "ttft_high_s", "by"),
    *("tokens_per_s_per_gpu", "tokens_per_s_per_user"),
    *("dispatch_s", "combine_s", "attention_s", "experts_s", "beside_s", "exposed_comm_s", "kv_transfer_s"),
    *("prefill_s", "prefill_low_s", "prefill_high_s", "prefill_tokens_per_s_per_gpu", "prefill_memory_gb"),
    *("prefill_ep", "prefill_tokens", "prefill_overlap", "prefill_gpus"),
    *("requests", "most_requests", "memory_gb", "gpu_memory_gb", "fits"),
    "batch_limit",
    *("usd_per_million_tokens", "kj_per_million_tokens", "bound_by"),
)
_LOADED = (
    *("load_requests_per_s", "requests_per_s", "goodput_per_s", "in_slo", "in_slo_limit"),
    *(f"load_{what}_{name}_s" for what in ("ttft", "tpot", "e2e") for name in ("p50", "p90", "p99")),
    *("load_warmup_s", "load_window_s"),
    *("load_tokens_per_s", "decode_load", "prefill_load", "load_usd_per_million_tokens"),
    *("prefill_queue", "decode_queue", "decode_limit", "prefill_busy", "prefill_filled"),
    *("decode_busy", "decode_requests"),
    *("load_prefill_gpus", "load_decode_gpus", "load_requests", "refused", "left_out"),
    *("load_kv_p50_s", "load_kv_p99_s", "kv_slowdown_p99", "kv_busiest_nic", "kv_hot_pair", "kv_hot_pair_over_mean"),
)
_LINK = ("link", "kind", "from", "to", "capacity_bytes_per_s", "bytes", "utilisation")
_REPLAYED = (
    *("workload", "fabric", "graph", "nic_gbps", "ranks", "servers", "gpus", "tasks", "flows", "bytes", "makespan_s"),
    *("compute_s", "exposed_comm_s", "idle_s", "held_by", "held_share", "events", "build_s", "solve_s"),
)
_FLOW_ERRORS = (
    *(f"{name}_{part}" for name in ("flow_error", "corrected_flow_error") for part in ("median", "p90")),
    *(f"flow_error_q{part:02}" for part in (5, 25, 50, 75, 95)),
)

COLUMNS: dict[str, tuple[str, ...]] = {
    "cases": _CASES,
    "sweep": ("configuration", *_CASES),
    "sweep of all-to-alls": ("configuration", "servers", "policy", "routing", "seconds", "bound_s", "over_bound"),
    "sweep of replays": ("configuration", *_REPLAYED),
    "failures": (
        *("model", "fabric", "network.graph", "failure", "nic_gbps", "gpus", "policy", "routing", "nic_use"),
        *("stage", "server", "at", "iterations", "healthy_s", "failed_s", "slow_down", "run_slow_down", "faster_by"),
        *("spare_network_usd", "spare_usd", "spare_part_usd", "devices"),
        *("usd_per_million_tokens", "lost_usd_per_month", "spare_usd_per_month", "spare_part_usd_per_month", "waits"),
        *("remedy", "failures_per_month", "repair_hours", "hours_a_stop", "stopped_hours_per_month"),
        *("slower_hours_per_month", "lost_hours_per_month", "lost_iterations_per_month", "available", "published"),
        *(f"healthy_{part}" for part in _PARTS),
        *(*_PARTS, *_JOB, "dtype"),
    ),
    "serve": (*(*_SERVED, *_LOADED, "attention_gpus", "expert_gpus", "micro_batches", "layer_s", "expert_memory_gb"),),
    "cluster": (
        *("model", "fabric", "servers", "gpus", "nic_gbps", "links", "traffic", "flows", "bytes", "end_s"),
        *(*_FLOWS, "build_s", "solve_s", "peak_mb"),
    ),
    "cluster --links": _LINK,
    "cluster --flows": (
        *("flow", "traffic", "src", "dst", "bytes", "start_s", "finish_s", "rate_bytes_per_s", "bottleneck"),
    ),
    "jobs": (*("way", "job", "iterations", "alone_s", "mean_s", "p99_s", "last_s", "slowdown", "shift_s", "end_s"),),
    "jobs --links": ("way", "link", "job", "begin_s", "end_s", "use", "when"),
    "replay": _REPLAYED,
    "replay --links": (*_LINK, "holds_s"),
    "replay --per-rank": ("rank", "gpu", "compute_s", "exposed_comm_s", "idle_s", "sent_bytes", "received_bytes"),
    "replay --steps": ("flow", "task", "name", "rank", "to", "released_s", "begin_s", "finish_s", "held_by"),
    "policies bench": (
        *("policy", "workload", "servers", "routing", "sigma", "instances", "mean", "median", "p90", "max_min_mean"),
        *("proved", "of_optimum", "of_optimum_p90", "decisions_per_s", "compile_s"),
    ),
    "evaluate": (
        *("workload", "servers", "forecast", "routing", "policy", "samples", "over_bound", "low", "high", "p90"),
        *("gain", "gain_low", "gain_high"),
    ),
    "traces info": (
        *("recording", "iteration", "layer", "selections", "expert_max_over_mean", "rank_max_over_mean"),
        *("top10_pairs_share", "top20_pairs_share", "pairs_gini", "zero_pairs", "own_rank_share", "server_share"),
        *("source_variation", "source_variation_by_chance"),
    ),
    "traces study designs": ("design", *_CASES, "over_tree"),
    "traces study predictors": ("predictor", "records", "iterations", "error", "over_even"),
    "validate packet": (
        *("run", "group", "topology", "pattern", "transport", "routing", "paths_known", "link_gbps"),
        *("payload_per_packet", "header_per_packet", "flows", "mean_pair_mib", "measured_s", "predicted_s", "error"),
        *("corrected_by", "corrected_s", "corrected_error", "stated_fluid_s", "large_flows", *_FLOW_ERRORS, "dtype"),
    ),
    "validate training": (
        *("row", "model", "gpu", "gpus", "predicted_s", "measured_s", "low_s", "high_s", "error", "inside"),
        *(*_MEMORY, "mfu", "iteration_s", *_PARTS, "printed", "source", "note"),
    ),
    "validate serving": (
        *("row", "what", "gpu", "kernels", "ep", "batch", "predicted_s", "measured_s", "low_s", "high_s", "error"),
        *("inside", "constant", "counted", "printed", "source", "note"),
    ),
    "reproduce": ("figure", "claim", "found", "published", "verdict", "off", "quick"),
}

MORE_IS_BETTER = frozenset(  # columns that a Pareto front has large unless it is told otherwise; all others small
    {
        *("tokens_per_s", "tokens_per_s_per_gpu", "tokens_per_s_per_user", "prefill_tokens_per_s_per_gpu"),
        *("perf_per_dollar", "perf_per_cluster_dollar", "mfu", "most_requests", "requests_per_s", "goodput_per_s"),
        *("in_slo", "decisions_per_s", "gain", "available"),
    }
)


_NUMBER = re.compile(
    r".*_(s|gb|mb|usd|kw|kwh|gbps|days|bytes|share|over_mean|load|queue)|.*_per_\w+|.*_p(50|90|99)|mfu"
)
_KNOWN = frozenset(name for kind in COLUMNS.values() for name in kind)
_COUNTS = frozenset(  # numbers whose names have no unit
    {
        *(*_DEGREES, "gpus", "servers", "ranks", "batch", "context", "replicas", "iterations", "requests", "devices"),
        *("attention_gpus", "expert_gpus", "prefill_gpus", "prefill_ep", "load_decode_gpus", "load_prefill_gpus"),
        *("load_requests", "most_requests", "flows", "links", "tasks", "events", "instances", "samples", "selections"),
        *("mean", "median", "low", "high", "gain", "gain_low", "gain_high", "over_bound", "utilisation", "use"),
        *("slow_down", "run_slow_down", "slowdown", "hours_a_stop", "repair_hours", "available", "training_tokens"),
    }
)
_TEXTS = ("expert_load",)


def is_number(name: str) -> bool:
    """Whether commands fill a column of this name with numbers alone."""
    return name not in _TEXTS and (name in _COUNTS or _NUMBER.fullmatch(name) is not None)


def of_ours(config: Mapping[str, Any]) -> bool:
    """Whether rows with this configuration are of a command whose columns are known."""
    command = config.get("command", "cases" if "resolved" in config else None)
    own_axes = command == "sweep" and "resolved" not in config
    return not own_axes and any(kind == command or kind.startswith(f"{command} ") for kind in COLUMNS)


def check_schema(path: Any, columns: Iterable[str], config: Mapping[str, Any]) -> None:
    """`InputError` for rows of a later schema, and for rows of a command of 0.x with columns that have no meaning now.

    - `config`: the configuration of the rows; empty for a table of unknown origin, which is read as it is.
    """
    schema = config.get(KEY)
    by = f"mfabric_jax {config['version']}" if isinstance(config.get("version"), str) else "an unknown version"
    if schema is None:
        unknown = _unknown(columns, config)
        if unknown:
            named = ", ".join(unknown[:MOST_NAMED]) + (", ..." if len(unknown) > MOST_NAMED else "")
            raise InputError(
                f"{str(path)!r} holds rows of {by} with columns that have no meaning now ({named}); run the command "
                f"again, or delete its configuration to read them as any table."
            )
    elif isinstance(schema, bool) or not isinstance(schema, int) or not 1 <= schema <= SCHEMA:
        raise InputError(
            f"{str(path)!r} holds rows of schema {schema!r:.40}, written by {by}; this version reads schemas up to "
            f"{SCHEMA}; install a newer mfabric-jax, or write the rows again."
        )


def say_unknown(path: Any, columns: Iterable[str], config: Mapping[str, Any]) -> None:
    """Say which columns of rows of a command none writes: they may be misspelt."""
    if unknown := _unknown(columns, config):
        named = ", ".join(unknown[:MOST_NAMED])
        say_unread(f"{str(path)!r}: no command writes the columns {named}; were they renamed?")


def _unknown(columns: Iterable[str], config: Mapping[str, Any]) -> list[str]:
    """Columns of rows of a command that no kind of rows has; paths of settings have a dot."""
    if not of_ours(config):
        return []  # columns of an experiment, of a query, of a sweep's own axes
    return [name for name in columns if name not in _KNOWN and "." not in name and not DRAW.fullmatch(name)]
