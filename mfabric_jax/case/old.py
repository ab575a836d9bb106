"""Names of 0.1, and where they are now."""

from collections.abc import Mapping
from typing import Any

from mfabric_jax.checks import InputError

TABLES = ("fixed", "grid", "list", "evaluate")  # keys of a sweep file of 0.1
OF_SWEEPS = {"draws": "draws", "draw_seed": "draw_seed", "rows_per_shard": "rows_per_file", "impossible": "impossible"}
PLACED = "longest-processing-time"  # of rules with settings, the one that help shows
WHERE = {  # the place of an option: a path, or PATH=VALUE
    **{"model": "model.name", "models": "model.name", "gpu": "gpu.name", "experts": "model.experts"},
    **{"nvswitch_gigabytes_per_s": "gpu.nvlink_gigabytes_per_s", "nvswitches": "gpu.nvswitches"},
    **{"gpus_per_server": "gpu.gpus_per_server", "tflops": "gpu.bf16_tflops"},
    "memory_gigabytes_per_s": "gpu.memory_gigabytes_per_s",
    **{name: f"job.parallel.{name}" for name in ("tp", "pp", "ep", "dp", "gpus", "cp", "tp_reduces")},
    "servers": "job.parallel.gpus",
    **{name: f"job.batch.{name}" for name in ("micro_batch", "micro_batches", "bubble", "sequence")},
    **{"precision": "job.precision", "compute_precision": "job.precision.compute"},
    **{"dispatch_bytes": "job.precision.dispatch", "combine_bytes": "job.precision.combine"},
    "grad_bytes": "job.precision.gradients",
    **{name: f"job.{name}" for name in ("schedule", "sharding", "recompute", "dispatch", "capacity_factor")},
    **{"chunks": "job.interleaved.chunks", "overlap_parts": "job.parts", "overlap_passes": "job.overlap=passes"},
    **{"comm_cores": "job.passes.comm_cores", "dp_overlap": "job.overlap_gradients"},
    **{"node_limit": "job.per-server.node_limit", "head": "job.head", "optimizer_step": "job.optimizer_step"},
    **{"efficiency": "compute.efficiency", "measured_iteration_s": "compute.measured.iteration_s"},
    **{"measured_on": "compute.measured.fabric", "measured_gbps": "compute.measured.nic_gbps"},
    **{"measured_nic_use": "compute.measured.nic_use", "compute": "compute.rate"},
    **{"expert_load": "compute.experts", "expert_tile": "compute.received.tile"},
    "combine_start": "compute.received.combine",
    **{"traffic": "traffic.source", "skew": "traffic.generated.skew", "drift": "traffic.shares.drift"},
    **{"trace": "traffic.trace.path", "records": "traffic.trace.records", "axes": "traffic.trace.axes"},
    **{"drawn": "traffic.drawn", "matrices": "traffic.alike"},
    **{"placement": "placement.rule", "placement_groups": "placement.hierarchical.groups"},
    **{"redundant_experts": f"placement.{PLACED}.redundant_experts", "placed_on": f"placement.{PLACED}.loads"},
    **{"placed_window": f"placement.{PLACED}.loads", "replace_every": f"placement.{PLACED}.every"},
    **{"fabric": "network.fabric", "fabrics": "network.fabric", "pxn": "network.rail-optimized.pxn"},
    **{name: f"network.{name}" for name in ("nic_gbps", "nic_use", "nics", "tiers", "gpu_tbps", "link_delay_s")},
    **{name: f"network.{name}" for name in ("goodput", "transport", "prices", "radix")},
    **{"path_radix": "network.radix", "flows": "network.paths", "busy": "network.ecmp.busy"},
    **{"circuit_flows": "network.ecmp.circuits", "wiring": "network.topoopt.wiring"},
    **{"optical_degree": "network.mfabric.optical_degree", "oversubscription": "network.oversubscription"},
    **{name: f"circuits.{name}" for name in ("policy", "routing", "partial", "decision_s", "ocs", "delay_s", "each_s")},
    **{"reactivation_s": "circuits.reactivation_s", "cold_start": "circuits.cold_start"},
    **{"eps_waits": "circuits.packets_wait", "first": "circuits.turn", "circuits_for": "circuits.span.length"},
    **{name: f"circuits.predict.{name}" for name in ("predictor", "scenarios", "sigma")},
    **{"plan_on": "circuits.span.chosen_on", "reconfiguration_cost": "circuits.turn=always"},
    **{name: f"run.{name}" for name in ("seed", "dtype", "iterations", "replicas", "sample")},
    **{name: f"failures.{name}" for name in ("kinds", "stage", "server", "rates", "restart_s")},
    **{"at": "failures.iteration", "checkpoint_interval_s": "failures.checkpoint_interval_s"},
}
GONE = {  # options without a place, and what to say instead
    "electrical_nics": "network.nics is all NICs of a server, network.mfabric.optical_degree those on the switch",
    "rule": "greedy-released and greedy-next are names of circuits.policy",
    "variants": "fabrics stand in several ways under --preset usual, or by [[variants]] of a file",
}


def now(option: str) -> str | None:
    """Where an option of 0.1 is now, for a sentence; None: 0.1 had none of that name."""
    if option in GONE:
        return GONE[option]
    if option not in WHERE:
        return None
    path, equals, value = WHERE[option].partition("=")
    return f"did you mean --set {path}={value if equals else '...'}?"


def check_new(settings_file: Mapping[str, Any], name: str) -> None:
    """`InputError` for a sweep file of 0.1, with the place that each of its settings has now."""
    if not set(TABLES) & set(settings_file):
        return
    tables = [settings_file.get(key, {}) for key in ("fixed", "grid", "list", "random")]
    options = dict.fromkeys(option for table in tables if isinstance(table, Mapping) for option in table)
    places = [f"{option} is {WHERE[option]}" for option in options if option in WHERE]
    places += [f"{option} is gone ({GONE[option]})" for option in options if option in GONE]
    places += [f"{old} is sweep.{new}" for old, new in OF_SWEEPS.items() if old in settings_file]
    listed = f": {', '.join(places)}" if places else ""
    raise InputError(
        f"{name} is a sweep file of 0.1; settings have paths now, a list of values is an axis, [list] is "
        f"[[variants]]{listed} (docs/from_0.1.md)."
    )
