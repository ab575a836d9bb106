"""Names of 0.1, and where they are now; its sweep files are read for one minor version where that is unambiguous."""

import warnings
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
VALUES: dict[str, dict[Any, Any]] = {  # by option, where they have other names
    **{name: {"left-out": False, "counted": True, "known": True} for name in ("head", "optimizer_step")},
    "precision": {"bf16": "bf16", "fp8": {"dispatch": "fp8", "combine": "bf16", "gradients": "bf16"}},
    "flows": {"spray": "spray", "single": "ecmp"},
    "matrices": {"each": "nothing", "block": "micro-batches", "one": "everything"},
    "traffic": {"measured": "shares", "generated": "generated", "authors": "authors"},
    "first": {"block": "on-demand", "reuse": "reuse", "predict": "predict", "pays": "pays"},
    "rule": {"printed": "greedy", "released": "greedy-released", "next": "greedy-next"},
    "overlap_passes": {True: "passes", False: "none"},
    "sample": {-1: None},
}
SAME = {"circuits_for": "all-to-all", "reconfiguration_cost": "changed", "plan_on": "past", "rule": "printed"}
SAME |= {"overlap_parts": 1, "redundant_experts": 0, "replace_every": 0, "placed_on": "past", "placed_window": 1}
SAME |= {"skew": 0, "comm_cores": 0, "first": "block", "transport": "none", "variants": "one"}
APART = {  # options of which several settings are made together
    *("electrical_nics", "optical_degree", "nics", "chunks", "overlap_parts", "node_limit", "placement_groups"),
    *("redundant_experts", "placed_on", "placed_window", "replace_every", "skew", "plan_on", "reconfiguration_cost"),
    *("circuits_for", "rule", "compute", "variants"),
}
PRESETS: dict[str, dict[str, Any]] = {  # of 0.1, over that of the paper's text
    "paper": {},
    "released": {},
    "today": {
        "job": {"batch": {"bubble": 0.15}, "head": True, "optimizer_step": True},
        "compute": {"experts": "received", "calibrated": "today"},
    },
}


def now(option: str) -> str | None:
    """Where an option of 0.1 is now, for a sentence; None: 0.1 had none of that name."""
    if option in GONE:
        return GONE[option]
    if option not in WHERE:
        return None
    path, equals, value = WHERE[option].partition("=")
    return f"did you mean --set {path}={value if equals else '...'}?"


def renewed(given: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A file as it stands, or what a sweep file of 0.1 says in the settings of now, with a warning.

    `InputError` for one that says what no longer has one place, with what to write.
    """
    if not set(TABLES) & set(given):
        return given
    where = f"{name} is a sweep file of 0.1: "
    if given.get("evaluate", "iteration") != "iteration":
        raise InputError(f"{where}evaluate {given['evaluate']!r} is no case; only 'iteration' is read.")
    if "list" in given:
        raise InputError(f"{where}values side by side, [list], stand as tables of [[variants]] now, each with a name.")
    tables = {key: dict(given.get(key, {})) for key in ("fixed", "grid", "random")}
    found = _settings(tables["fixed"] | tables["grid"], where)
    preset = given.get("preset", "paper")
    if preset not in PRESETS:
        raise InputError(f"{where}preset must be {', '.join(PRESETS)}, got {preset!r}.")
    below = ["released"] if preset == "released" else ["paper"]
    random = {_path(option, where): spec for option, spec in tables["random"].items()}
    sweep = {new: given[old] for old, new in OF_SWEEPS.items() if old in given}
    found |= {"run.dtype": given["dtype"]} if "dtype" in given else {}
    warnings.warn(f"{where}it is read as preset {below[0]} and settings by their paths; write these.", stacklevel=2)
    beside = {"random": random, "sweep": sweep}
    return {"preset": below} | _merged(PRESETS[preset], found) | {key: one for key, one in beside.items() if one}


def _merged(below: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
    """A preset's settings by path, and those of the file instead of them."""
    flat: dict[str, Any] = {}

    def collect(tree: Mapping[str, Any], prefix: str) -> None:
        for key, value in tree.items():
            if isinstance(value, Mapping):
                collect(value, f"{prefix}{key}.")
            else:
                flat[prefix + key] = value

    collect(below, "")
    if any(path.startswith(("job.batch.micro_batches", "job.batch.bubble")) for path in found):
        flat.pop("job.batch.bubble", None)
    if any(path in found for path in ("compute.efficiency", "compute.measured.iteration_s")):
        flat.pop("compute.calibrated", None)
    return flat | dict(found)


def _path(option: str, where: str) -> str:
    """The one place of an option. `InputError` where there is none."""
    said = now(option)
    if said is None:
        raise InputError(f"{where}{option} is no setting of 0.1.")
    if option in APART or option not in WHERE:
        raise InputError(f"{where}{option} has no place of its own here: {said.rstrip('?.')}.")
    return WHERE[option].partition("=")[0]


def _settings(given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Settings by path of options of 0.1, lists of values among them."""
    found: dict[str, Any] = {}
    for option, value in given.items():
        if option in SAME and value == SAME[option] and not isinstance(value, bool):
            continue
        if option == "model":
            _check_models(value, where)
        if option == "drift":
            at = "generated" if given.get("traffic") == "generated" else "shares"
            found[f"traffic.{at}.drift"] = value
        elif option == "skew":
            found["traffic.generated.skew"] = value
        elif option == "circuits_for" and not isinstance(value, list):
            found["circuits.span.length"] = value
        elif option == "rule" and not isinstance(value, list) and given.get("policy", "greedy") == "greedy":
            found["circuits.policy"] = VALUES["rule"].get(value, value)
        elif option == "traffic" and isinstance(value, str) and value not in VALUES["traffic"]:
            found["traffic.knobs"] = value
        elif option == "policy" and given.get("rule", "printed") != "printed":
            continue  # said by its rule
        else:
            found[_path(option, where)] = _value(option, value)
    return found | _rates(given, found)


def _value(option: str, value: Any) -> Any:
    names = VALUES.get(option, {})
    several = [names.get(one, one) for one in (value if isinstance(value, list) else [value])]
    return several if isinstance(value, list) else several[0]


def _rates(given: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
    """What a GPU that was named changed in 0.1: its own NVLink, and half of its peak instead of calibrated rates."""
    changed: dict[str, Any] = {}
    if "gpu" in given and "nvswitch_gigabytes_per_s" not in given:
        changed["gpu.nvlink_gigabytes_per_s"] = "auto"
    said = {"compute.efficiency", "compute.measured.iteration_s"} & set(found)
    if not said and ({"gpu", "compute_precision"} & set(given)):
        changed["compute.efficiency"] = 0.5
    elif not said and given.get("expert_load") == "received":
        changed["compute.calibrated"] = "today"
    return changed


def _check_models(value: Any, where: str) -> None:
    """`InputError` for a model that 0.1 ran with a set-up of its own."""
    for model in value if isinstance(value, list) else [value]:
        if ":" in str(model) or str(model) == "deepseek-v3" or str(model).endswith((".toml", ".json")):
            raise InputError(f"{where}model {model!r} had a set-up of its own; write model and job in a case file.")
