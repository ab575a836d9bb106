"""Sentences and columns on the set-up of a case: degrees found by search, memory of a GPU, and set-ups that would
fit."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

from mfabric_jax.evaluate.resolving.resolve import open_again, resolve_without_jax
from mfabric_jax.evaluate.resolving.resolved import Resolved
from mfabric_jax.evaluate.resolving.traffic import draw_loads
from mfabric_jax.support.columns import TEXT, TRUTH, Column, Columns
from mfabric_jax.support.lazily import LazyModule
from mfabric_jax.traffic.dispatch import even_bytes
from mfabric_jax.units import to_gigabytes
from mfabric_jax.workload import Workload, fullest_stage
from mfabric_jax.workload.frameworks import framework_runs
from mfabric_jax.workload.kernels import ONCE_A_SERVER
from mfabric_jax.workload.memory import HEADROOM, usable_bytes
from mfabric_jax.workload.parallel import DEGREES
from mfabric_jax.workload.volume import replica_bytes, replica_ring

advice = LazyModule("mfabric_jax.evaluate.resolving.remedies")  # only for set-ups that do not fit

MEMORY = Columns(
    Column("memory_gb", "GB", "Memory that a GPU of the fullest stage needs."),
    Column("gpu_memory_gb", "GB", "Memory of a GPU."),
    Column("fits", TRUTH, "Whether `memory_gb` fits into the usable memory of a GPU; empty where unknown."),
    Column(
        "framework_runs",
        TEXT,
        "A framework that can run the set-up as simulated: megatron-core, or none (`workload/frameworks.py`).",
    ),
    Column("memory_weights_gb", "GB", "Part of `memory_gb`: weights.", detail=True),
    Column("memory_gradients_gb", "GB", "Part of `memory_gb`: gradients.", detail=True),
    Column("memory_optimizer_gb", "GB", "Part of `memory_gb`: states of the optimizer.", detail=True),
    Column("memory_attention_gb", "GB", "Part of `memory_gb`: activations of attention.", detail=True),
    Column("memory_inner_gb", "GB", "Part of `memory_gb`: activations of experts and FFNs.", detail=True),
    Column("memory_logits_gb", "GB", "Part of `memory_gb`: logits.", detail=True),
    Column(
        *("memory_buffers_gb", "GB"),
        "Part of `memory_gb`: recomputed activations, tokens in transit, and the block by which two passes exceed one.",
        detail=True,
    ),
)


def memory_columns(settings: Resolved, job: Workload) -> dict[str, Any]:
    """Return the gigabytes that the busiest GPU of the fullest stage needs and has, whether they fit, their parts, and
    what can run the set-up. None: unknown. The GPU's tokens are those of the timed traffic (`draw_loads`).
    """
    parts, has = fullest_stage(job, draw_loads(settings.case, job))[1], settings.server.memory_bytes
    stated: Any = settings.case.job
    parts_of_batch = stated.overlap.value if stated.overlap.name == "parts" else 1
    return {
        "memory_gb": float(to_gigabytes(parts.total)),
        "gpu_memory_gb": None if has is None else float(to_gigabytes(has)),
        "fits": None if has is None else parts.total <= usable_bytes(has),
        "framework_runs": framework_runs(job, stated.dispatcher, parts_of_batch),
        **{f"memory_{name}_gb": float(to_gigabytes(part)) for name, part in parts._asdict().items()},
    }


FIELDS = {  # field of a `Workload`: its path in a case
    **{name: f"job.parallel.{name}" for name in (*DEGREES, "etp", "gpus")},
    **{name: f"job.batch.{name}" for name in ("micro_batch", "micro_batches")},
    **{"recompute": "job.recompute", "sharding": "job.sharding"},
}


def search_words(resolved: Resolved) -> str | None:
    """Return a sentence on degrees chosen by search; None if the case states them."""
    job, why = resolved.job, resolved.why
    if all(resolved.is_given(FIELDS[name]) for name in ("tp", "pp", "ep")):
        return None
    open_degrees = [name for name in ("tp", "pp", "ep") if FIELDS[name] in why]
    degrees = ", ".join(f"{name} {value}" for name, value in job.stated_degrees.items())
    batch = f"{job.micro_batches} micro-batches of {job.micro_batch}, recompute {job.recompute}"
    left = f"{', '.join(open_degrees)} {'was' if len(open_degrees) == 1 else 'were'} open"
    return f"{job.model}: {left}; the search chose {degrees} on {job.gpus:,} GPUs, {batch}."


def too_large_words(resolved: Resolved) -> str | None:
    """Return a sentence on a set-up that does not fit in memory, and on changes that fit; None if it fits or memory is
    unknown."""
    job = resolved.job
    memory = memory_columns(resolved, job)
    if memory["fits"] is not False:
        return None

    def again(changed: Mapping[str, Any]) -> Workload:
        etp = changed.get("tp", job.tp)
        own = {name: getattr(job, name) for name in ("pp", "ep", "recompute", "gpus")} | dict(changed)
        own |= {"tp": etp * own.pop("folded", job.folded), "etp": etp}
        return resolve_without_jax(resolved.original.with_({FIELDS[name]: value for name, value in own.items()})).job

    loads_of = functools.partial(draw_loads, resolved.case)
    remedies = advice.remedies(job, again, functools.partial(open_again, resolved), loads_of)
    does = [advice.remedy_words(remedy, job) for remedy in remedies]
    kept = f"{HEADROOM:.0%} kept for buffers"
    what = (
        f"{job.model} needs {memory['memory_gb']:,.0f} GB per GPU, which has {memory['gpu_memory_gb']:,.0f} GB ({kept})"
    )
    return f"{what}; what fits: {'; '.join(does)}." if does else f"{what}; no other set-up fits, either."


COPIES = "per-server"


def dispatcher_words(resolved: Resolved) -> str | None:
    """Return a sentence if the dispatcher sends a token once per server, but the dispatch counts it once per expert."""
    job, dispatcher = resolved.job, resolved.case.job.dispatcher
    if dispatcher not in ONCE_A_SERVER or job.dispatch == COPIES or job.servers_per_region == 1:
        return None
    before, after = (_between_servers(variant) for variant in (job, dataclasses.replace(job, dispatch=COPIES)))
    if not after < before:
        return None
    return (
        f"{job.model}: job.dispatcher {dispatcher} sends a token once to each server, but job.dispatch {job.dispatch} "
        f"counts it once for each expert: {to_gigabytes(before):.3g} GB of an even dispatch leave a server. "
        f"--set job.dispatch={COPIES} sends {to_gigabytes(after):.3g} GB."
    )


OF_SWITCHES = (("network.in-network.sharp", "sharp", False), ("gpu.nvls", "nvls", 0.0))  # setting, field, its absence


def switch_words(every: Sequence[Resolved]) -> str | None:
    """Return sentences on switch trees of several tiers and what changes them; None without."""
    words = tier_words(every)
    return words and (
        f"{words} Switches with more ports (network.radix) may need fewer tiers, which changes dollars and the order "
        "of networks."
    )


def has_tiers(resolved: Resolved) -> bool:
    """Return whether the fabric has a switch tree of several tiers."""
    return resolved.tiers > 1 and resolved.fabric.links(resolved.site).tree is not None


def tier_words(every: Sequence[Resolved]) -> str | None:
    """Return a sentence on switch trees, whose tiers follow from `network.radix`; None if none has several tiers."""
    open_tiers = [own for own in every if own.fabric.links(own.site).tree and "network.tiers" in own.why]
    alike: dict[str, dict[str, None]] = {}
    for own in open_tiers:
        tiers = f"{own.tiers} tier{'s' * (own.tiers > 1)} of {own.case.network.radix}-port switches"
        alike.setdefault(tiers, {})[tree_name(own)] = None
    if not any(map(has_tiers, open_tiers)):
        return None
    named = (f"{' and '.join(names)} {'have' if len(names) > 1 else 'has'} {tiers}" for tiers, names in alike.items())
    return f"{'; '.join(named)}."


def tree_name(resolved: Resolved) -> str:
    """Return the fabric, with the ratio of an oversubscribed tree."""
    tree = resolved.fabric.links(resolved.site).tree
    return resolved.fabric.name + (f" ({tree.oversubscription:g}:1)" if tree and tree.oversubscription != 1 else "")


def reduction_words(resolved: Resolved) -> str | None:
    """Return a sentence on switches that are to reduce, but change no time of the job; None if each changes one."""
    job = resolved.job

    def depends_on(**without: Any) -> bool:
        other = dataclasses.replace(job, **without)
        return _reductions(resolved, job) != _reductions(resolved, other)

    idle = [
        path for path, field, none in OF_SWITCHES if getattr(job, field) != none and not depends_on(**{field: none})
    ]
    if not idle:
        return None
    why = (
        "its gradients are reduced where a ring sends no more bytes"
        if job.sharding == "none"
        else f"under job.sharding {job.sharding} gradients are scattered and weights gathered, each with all bytes one "
        "way, which switches do not shorten (none has all-reduces)"
    )
    return f"{job.model}: {' and '.join(idle)} {'changes' if len(idle) == 1 else 'change'} no time here: {why}."


def _reductions(resolved: Resolved, job: Workload) -> Any:
    """All that switches may shorten: gradients of every stage, and TP collectives."""
    sizes = [replica_bytes(job, stage, last=True) for stage in range(job.pp)]
    return [replica_ring(job, size.dense, size.expert) for size in sizes], resolved.shares(job).tp_nvlink


def _between_servers(job: Workload) -> float:
    """Bytes that leave the first server of a group in a dispatch of balanced traffic."""
    sent = even_bytes(job, float)[: job.ranks_per_server, job.ranks_per_server :]
    return float(sent.sum())


def transport_words(resolved: Resolved) -> str | None:
    """Return a sentence if a measured `network.transport` counts a loss twice, or was measured at other sizes."""
    job, transport = resolved.job, resolved.carried_by
    if transport.measured_bytes is None or job.servers_per_region == 1:
        return None
    first = even_bytes(job, float)[0]
    size = first[job.ranks_per_server :].sum() / job.tp  # out of the first server, over the NICs of a rank
    if (dispatcher := resolved.case.job.dispatcher) != "ideal":
        return (
            f"network.transport {transport.name} already holds the efficiency of communication kernels; job.dispatcher "
            f"{dispatcher} applies it once more; set job.dispatcher=ideal."
        )
    if not transport.beyond(size):
        return None
    low, high = transport.measured_bytes
    return (
        f"network.transport {transport.name} was measured at {low:,.0f} to {high:,.0f} bytes over a NIC; a dispatch of "
        f"{job.model} moves {size:,.0f} bytes of balanced traffic, beyond what was measured."
    )
