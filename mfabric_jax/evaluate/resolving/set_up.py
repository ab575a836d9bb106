"""Sentences and columns on the set-up of a case: degrees found by search, memory of a GPU, and set-ups that would
fit."""

import dataclasses
import functools
from collections.abc import Mapping
from itertools import product
from typing import Any

from mfabric_jax.case import Case
from mfabric_jax.case.paths import flat
from mfabric_jax.checks import InputError
from mfabric_jax.evaluate.resolving.resolve import resolve_without_jax
from mfabric_jax.evaluate.resolving.resolved import Resolved
from mfabric_jax.evaluate.resolving.traffic import draw_loads
from mfabric_jax.support.columns import TEXT, TRUTH, Column, Columns
from mfabric_jax.traffic.dispatch import even_bytes
from mfabric_jax.units import to_gigabytes
from mfabric_jax.workload import Workload, fullest_stage
from mfabric_jax.workload.estimate import iteration_seconds
from mfabric_jax.workload.frameworks import framework_runs
from mfabric_jax.workload.kernels import ONCE_A_SERVER
from mfabric_jax.workload.memory import HEADROOM, usable_bytes
from mfabric_jax.workload.parallel import DEGREES
from mfabric_jax.workload.set_ups import remedies, remedy_words, set_up_words

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
    **{name: f"job.parallel.{name}" for name in (*DEGREES, "gpus")},
    **{name: f"job.batch.{name}" for name in ("micro_batch", "micro_batches")},
    **{"recompute": "job.recompute", "sharding": "job.sharding"},
}


def search_words(resolved: Resolved) -> str | None:
    """Return a sentence on degrees chosen by search; None if the case states them."""
    job, why = resolved.job, resolved.why
    if not any(_is_searched(resolved, name) for name in ("tp", "pp", "ep")):
        return None
    open_degrees = [name for name in ("tp", "pp", "ep") if FIELDS[name] in why]
    batch_words = f"{job.micro_batches} micro-batches of {job.micro_batch}, recompute {job.recompute}"
    left = "was" if len(open_degrees) == 1 else "were"
    return (
        f"{job.model}: {', '.join(open_degrees)} {left} open; the search chose {set_up_words(vars(job))}, "
        f"{batch_words}."
    )


def wider_words(resolved: Resolved) -> str | None:
    """Return a sentence on degrees whose all-to-alls leave servers, if the search chose others."""
    job, original = resolved.job, resolved.original
    if not _is_searched(resolved, "ep") or job.servers_per_region > 1:
        return None
    experts = job.architecture.experts
    every = [_try_changes(original, {FIELDS["ep"]: ep}) for ep in range(job.ep + 1, experts + 1) if experts % ep == 0]
    wide = [
        candidate
        for candidate in every
        if candidate and candidate.job.servers_per_region > 1 and too_large_words(candidate) is None
    ]
    if not wide:
        return None
    best = min(
        wide,
        key=lambda candidate: iteration_seconds(candidate.job, candidate.server).total / candidate.job.iteration_tokens,
    ).job
    return (
        f"{job.model}: all-to-alls stay inside servers; fabrics differ only in cost and in other traffic between "
        f"servers, such as gradients. --ep {best.ep} lets all-to-alls leave servers ({set_up_words(vars(best))})."
    )


def schedule_words(resolved: Resolved) -> str | None:
    """Return a sentence on schedule and layout, which the search does not vary, and on flags that try others."""
    tried = {"job.schedule": ("1f1b", "interleaved"), "job.layout": ("even", "ends")}
    usual = {path: values for path, values in tried.items() if resolved.why.get(path) == "usual"}
    if not _is_searched(resolved, "pp") or resolved.job.pp == 1 or not usual:
        return None
    job, original = resolved.job, resolved.original
    while usual and not all(
        _try_changes(original, dict(zip(usual, some, strict=True))) for some in product(*usual.values())
    ):
        usual.popitem()
    more = "".join(f" --set {path}={','.join(values)}" for path, values in usual.items())
    schedule = flat(resolved.case)["job.schedule"]
    named = f"schedule ({schedule}) and layout ({job.layout_of_blocks})"
    return f"{job.model}: {named} were not searched{f'; others may be quicker: add{more}' if more else ''}."


def _is_searched(resolved: Resolved, name: str) -> bool:
    return not resolved.why.get(FIELDS[name], "recipe").startswith(("recipe", "file"))


def _try_changes(original: Case, changes: Mapping[str, Any]) -> Resolved | None:
    try:
        return resolve_without_jax(original.with_(dict(changes)))
    except InputError:
        return None


def too_large_words(resolved: Resolved) -> str | None:
    """Return a sentence on a set-up that does not fit in memory, and on changes that fit; None if it fits or memory is
    unknown."""
    job, server = resolved.job, resolved.server
    memory = memory_columns(resolved, job)
    if memory["fits"] is not False:
        return None

    def again(changed: Mapping[str, Any]) -> Workload:
        stated = {FIELDS[name]: getattr(job, name) for name in ("pp", "ep", "recompute")}
        stated |= {"job.parallel.gpus": job.gpus} | {FIELDS[name]: value for name, value in changed.items()}
        etp = changed.get("tp", job.tp)
        stated |= {"job.parallel.tp": etp * job.folded, "job.parallel.etp": etp}
        return resolve_without_jax(resolved.original.with_(stated)).job

    loads_of = functools.partial(draw_loads, resolved.case)
    does = [remedy_words(remedy, job) for remedy in remedies(job, server, again, loads_of)]
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
