"""Compare fabrics for training: models x fabrics x bandwidths, one row each."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from mfabric_jax.fabric.design import Fabric
from mfabric_jax.resolving._resolve import Resolved, resolve
from mfabric_jax.resolving.settings import Settings
from mfabric_jax.simulation.money import Bill, bill_of, costs, tokens_of_iteration
from mfabric_jax.simulation.replicas import replica_columns
from mfabric_jax.simulation.scenario import AS_SET, Scenario
from mfabric_jax.simulation.solving import Simulated
from mfabric_jax.timing.passes import places
from mfabric_jax.traffic.dispatch import dropped_part, selections_of
from mfabric_jax.units import to_gigabytes
from mfabric_jax.workload import Workload, fullest_stage
from mfabric_jax.workload.compute import iteration_flops
from mfabric_jax.workload.memory import HEADROOM, usable_bytes
from mfabric_jax.workload.parallel import DEGREES, PRECISIONS
from mfabric_jax.workload.set_ups import remedies, remedy_words, set_up_words

PARTS = (
    *("iteration_s", "compute_s", "exposed_comm_s", "reconfig_s", "bubble_s"),
    *("tp_comm_s", "ep_comm_s", "dp_comm_s", "placement_s"),
)


def rows_of(simulated: Simulated) -> list[dict[str, Any]]:
    """The rows of one scenario: a bandwidth each, averaged over iterations."""
    one = simulated.scenario
    mean = {name: np.asarray(getattr(simulated.times, name), np.float64).mean(axis=0) for name in PARTS}
    shared, switching = _described(simulated), _switching(simulated, mean["iteration_s"])
    replica_s = np.asarray(simulated.replica_s, np.float64).mean(axis=0)
    rows, achieved = [], one.settings.achieved(one.workload)
    for at, gbps in enumerate(one.bandwidths):
        seconds = {name: float(values[at]) for name, values in mean.items()}
        where = one.group.nic_use, gbps, one.circuits_for
        rows.append(named(one.settings, one.fabric, one.workload, *where, one.variant) | seconds)
        bill = bill_of(one.settings, one.fabric, one.workload, gbps)
        rows[-1] |= judged(one.settings, one.workload, seconds, bill, achieved) | switching[at] | shared
        rows[-1] |= replica_columns(len(one.every_replica), seconds["iteration_s"], float(replica_s[at]))
    return rows


def named(
    settings: Settings,
    on: Fabric,
    job: Workload,
    nic_use: str,
    nic_gbps: float,
    circuits_for: str,
    variant: str = AS_SET,
) -> dict[str, Any]:
    """What a row says of a scenario."""
    return {
        "model": job.model,
        "fabric": on.name,
        "variant": variant,
        "policy": on.policy or settings.policy_name,
        "routing": on.routing or settings.routing,
        "circuits_for": circuits_for if on.reconfigures else "none",
        "nic_use": nic_use,
        "ocs": switch_name(settings, on),
        "nic_gbps": nic_gbps,
        "gpus": job.gpus,
    }


def judged(settings: Settings, job: Workload, seconds: dict[str, Any], bill: Bill, achieved: Any) -> dict[str, Any]:
    """Shares, utilisation and cost of an iteration, numbers or columns; `achieved`: over the peak, while computing."""
    total = seconds["iteration_s"]
    shares = {"ep_share": seconds["ep_comm_s"] / total, "bubble_share": seconds["bubble_s"] / total}
    shares["ep_share_without_bubble"] = seconds["ep_comm_s"] / (total - seconds["bubble_s"])
    peak = settings.server.peak(settings.compute_precision)
    shares |= {"mfu": iteration_flops(job) / (peak * job.gpus * total), "achieved_over_peak": achieved}
    return shares | costs(settings, job, bill, total, achieved)


def _switching(simulated: Simulated, iteration_s: np.ndarray) -> list[dict[str, Any]]:
    """What optical switches do in an iteration, at every bandwidth."""
    one, solved = simulated.scenario, simulated.exchanges
    if solved.anew is None:
        return [switching_columns(one.settings, one.fabric, None, None, None)] * len(one.bandwidths)
    changes, turns = changes_of(one.workload, np.asarray(solved.anew), np.asarray(solved.switch))
    changes, turns = (np.atleast_1d(x.mean(axis=-1)) for x in (changes, turns))
    each = [np.broadcast_to(x, len(one.bandwidths)).tolist() for x in (changes, turns, iteration_s)]
    return [switching_columns(one.settings, one.fabric, *at) for at in zip(*each, strict=True)]


def _described(simulated: Simulated) -> dict[str, Any]:
    solved = simulated.exchanges
    over = over_balanced(simulated.scenario.workload, np.asarray(solved.load), np.asarray(solved.balanced))
    return {"ep_over_balanced": float(np.median(over))} | described(simulated.scenario)


def over_balanced(job: Workload, load: np.ndarray, balanced: np.ndarray) -> np.ndarray:
    """`Exchanges.load` over `Exchanges.balanced` of the MoE blocks [... P Q L 2]; 1 where nothing leaves a server."""
    moe = places(job).layer >= 0
    load, balanced = load.astype(np.float64)[..., moe, :], balanced.astype(np.float64)[..., None, None]
    return np.divide(load, balanced, out=np.ones_like(load), where=balanced > 0)


def described(one: Scenario) -> dict[str, Any]:
    """What a row says of a scenario beside times and money."""
    received = one.tokens
    if one.workload.capacity_factor is not None:
        received = dataclasses.replace(one.tokens, count=selections_of(one.workload, one.sent))
    return (
        job_columns(one.settings, one.workload)
        | {
            "rank_load_over_mean": float(np.median(received.rank_load_over_mean(one.workload.ep))),
            "region_servers": one.workload.servers_per_region,
            "first": one.settings.first if one.group.reconfigures else "none",
            "decision_s": one.decision_s,
            "expert_load": one.settings.case.compute.experts.name,
            "placement": one.settings.case.placement.rule.name,
            "dispatch": one.workload.dispatch,
            "dropped_share": dropped_part(one.workload, one.tokens),
            "compute_source": compute_source(one.settings, one.workload, one.settings.achieved(one.workload)),
            "traffic": one.tokens.source,
            "iterations": len(one.tokens.count),
            "dtype": one.settings.dtype,
        }
        | memory_columns(one.settings, one.workload)
    )


def job_columns(settings: Settings, job: Workload) -> dict[str, Any]:
    """What is trained at once: degrees, micro-batches, tokens and precision."""
    sent = job.dispatch_bytes, job.combine_bytes, job.grad_bytes
    known = {tuple(of.values()): name for name, of in PRECISIONS.items()}
    return {name: getattr(job, name) for name in (*DEGREES, "micro_batches", "micro_batch", "sequence")} | {
        "tokens_per_iteration": tokens_of_iteration(job),
        "compute_precision": settings.compute_precision,
        "precision": known.get(sent, f"{' / '.join(f'{each:g}' for each in sent)} bytes"),
    }


def shown_rate(settings: Settings, achieved: float) -> str:
    """An achieved rate as `compute_source` shows it."""
    return f"{achieved:.1%}" if settings.rates_from == "measured" else f"{achieved:.0%}"


def compute_source(settings: Settings, job: Workload, achieved: float, measured_at: float | None = None) -> str:
    """Where the computation time of a model comes from, in words.

    - `measured_at`: Gbps of the iteration that was measured, where that says the rate; None: as the case has it.
    """
    peak = "peak" if settings.compute_precision == "bf16" else f"{settings.compute_precision} peak"
    if settings.rates_from == "measured":
        measured: Any = settings.case.compute.rate
        where = f"{measured.fabric} at {measured.nic_gbps if measured_at is None else measured_at:g} Gbps"
        above = ", which no GPU achieves: measured communication was faster" if achieved > 1 else ""
        said = f"from a measured iteration of {measured.iteration_s:g} s on {where}{above}"
        return f"{settings.server.name}, achieved {shown_rate(settings, achieved)} of {peak}, {said}"
    rate = f"{settings.server.name} at {shown_rate(settings, achieved)} of {peak}"
    if settings.rates_from == "calibrated" and job.known_as in settings.calibrated:
        return f"{rate}, calibrated to published fat-tree times (arXiv 2501.03905)"
    return f"{rate}, not calibrated"


# ---------------------------------------------------------------------------------------------------- what switches do
def changes_of(job: Workload, anew: np.ndarray, switch: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of `Exchanges.anew` and `Exchanges.switch` [... P Q L 2]: circuits that are set up anew in an iteration, those of
    all regions of the cluster, and how often the busiest region's switch turns [...].

    A region is the servers of one group of a stage; the groups of a stage are alike.
    """
    groups = max(1, job.servers // (job.pp * job.servers_per_region))
    axes = (-3, -2, -1)
    return groups * anew.sum(axis=(-4, *axes)), switch.sum(axis=axes).max(axis=-1)


def switch_name(settings: Settings, on: Fabric) -> str:
    """For rows: the optical switch that is named; "none" on a fabric without any."""
    optical = on.reconfigures or on.optical_regions is not None
    return (settings.case.circuits.ocs or "unnamed") if optical else "none"


def switching_columns(settings: Settings, on: Fabric, changes: Any, turns: Any, iteration_s: Any) -> dict[str, Any]:
    """Columns of a row: circuits changed in an iteration, how often the busiest region's switch turns in it, and that
    over how often it may (above 1: too often). None: circuits do not change, or nothing is known of the switch."""
    switch = settings.optical_switch if on.reconfigures else None
    allowed = None if switch is None else switch.turns_per_s
    over = None if turns is None or allowed is None else turns / (iteration_s * allowed)
    return {"circuit_changes": changes, "switch_turns": turns, "turns_over_allowed": over}


# -------------------------------------------------------------------------------------------------------------- memory
def memory_columns(settings: Settings, job: Workload) -> dict[str, Any]:
    """Gigabytes that a GPU of the fullest stage needs and has, and whether it fits; None: not known."""
    needs, has = fullest_stage(job)[1].total, settings.server.memory_bytes
    return {
        "memory_gb": float(to_gigabytes(needs)),
        "gpu_memory_gb": None if has is None else float(to_gigabytes(has)),
        "fits": None if has is None else needs <= usable_bytes(has),
    }


FIELDS = {  # of a `Workload`, and where a case says them
    **{name: f"job.parallel.{name}" for name in (*DEGREES, "gpus")},
    **{name: f"job.batch.{name}" for name in ("micro_batch", "micro_batches")},
    **{"recompute": "job.recompute", "sharding": "job.sharding"},
}


def found_words(resolved: Resolved) -> str | None:
    """The degrees of a case that nobody gave, and why they are these, in sentences; None where they are given."""
    job, why = resolved.job, resolved.why
    found = [name for name in ("tp", "pp", "ep") if f"job.parallel.{name}" in why]
    recipe = [
        why[f"job.parallel.{name}"] for name in found if why[f"job.parallel.{name}"].startswith(("recipe", "file"))
    ]
    if not found or len(recipe) == len(found):
        return None
    degrees = {name: getattr(job, name) for name in (*DEGREES, "gpus")}
    rest = f"{job.micro_batches} micro-batches of {job.micro_batch}, recompute {job.recompute}"
    return f"{job.model}: {', '.join(found)} were left open and found: {set_up_words(degrees)}, {rest}."


def too_large_words(resolved: Resolved) -> str | None:
    """What does not fit and what would, in a sentence; None where all fits, or nothing is known of the GPU's memory."""
    job, server = resolved.job, resolved.gpu
    said = memory_columns(resolved.settings, job)  # type: ignore[arg-type]
    if said["fits"] is not False:
        return None

    def again(changed: Mapping[str, Any]) -> Workload:
        """The case as it was asked for, on these GPUs, with some settings changed."""
        stated = {FIELDS[name]: getattr(job, name) for name in ("tp", "pp", "ep", "recompute")}
        stated |= {"job.parallel.gpus": job.gpus} | {FIELDS[name]: value for name, value in changed.items()}
        return resolve(resolved.asked.with_(stated)).job

    does = [remedy_words(one, job) for one in remedies(job, server, again)]
    kept = f"{HEADROOM:.0%} kept for buffers"
    what = f"{job.model} needs {said['memory_gb']:,.0f} GB of {said['gpu_memory_gb']:,.0f} GB a GPU ({kept})"
    return f"{what}; what fits: {'; '.join(does)}." if does else f"{what}; no other set-up fits, either."
