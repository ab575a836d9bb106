"""Rows of results: a case's settings, seconds, shares, circuits, memory, and the cost and power of its cluster."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from mfabric_jax.case.policies import BOUND, NO_SCHEDULE
from mfabric_jax.evaluate.problem import Problem
from mfabric_jax.evaluate.resolving.resolved import Hardware, Resolved
from mfabric_jax.evaluate.resolving.set_up import memory_columns
from mfabric_jax.fabric.parts_list import Parts
from mfabric_jax.fabric.registry import no_price, site_cost, site_watts
from mfabric_jax.support.bands import HIGH, LOW, LOW_PORTS, LOW_PORTS_NETWORK, PROMPT, QUOTED
from mfabric_jax.timing.passes import places
from mfabric_jax.traffic.dispatch import dropped_part, selections_of
from mfabric_jax.workload import Workload
from mfabric_jax.workload.compute import iteration_flops
from mfabric_jax.workload.parallel import DEGREES, PRECISIONS

Row = dict[str, Any]
Columns = dict[str, np.ndarray]
SECONDS_AN_HOUR = 3600
MILLION = 1_000_000
PLACES = 6  # decimals to which numbers of GPUs are compared


class Bill(NamedTuple):
    """Dollars and watts of the network and of the whole cluster: numbers, arrays [N], or None (unknown)."""

    network_usd: Any
    cluster_usd: Any
    network_watts: Any
    cluster_watts: Any


def bill_of(settings: Hardware, job: Any, nic_gbps: Any, parts: Parts | None = None, **ports: Any) -> Bill:
    """Return the bill of a cluster: GPUs in use, and idle GPUs that the job must pay for, whose watts do not count.

    A job pays for whole servers or domains, or for a part if it fills none (`Fabric.share_of`).

    - `job`: a `Workload`, or the shape of a serving group; `parts`: other prices.
    - `nic_gbps`, `ports` (fields of `Site` that override the settings): may be arrays.
    """
    parts, gpu, on = parts or settings.parts, settings.server, settings.fabric
    built, share = on.built_of(gpu), on.share_of(gpu, job.gpus_per_server)
    site = dataclasses.replace(settings.site_of(job), gpus_per_server=built, **ports)
    site = site if on.domain_gpus is None else dataclasses.replace(site, nics=built)  # a NIC for each of its GPUs
    usd = multiply(site_cost(on, site, nic_gbps, parts.prices), share)
    watts = multiply(site_watts(on, site, nic_gbps, parts.watts), share)
    switches_of = on.about.optics.switches
    if parts.ocs is not None and switches_of is not None and not site.panels:
        switches = share * parts.ocs.switches(*switches_of(site))
        usd = add(usd, multiply(switches, parts.ocs.usd or 0))
        watts = add(watts, multiply(switches, parts.ocs.watts or 0))
    server, paid = parts.server_of(gpu.name), on.paid_gpus(gpu, job)
    servers = paid / server.gpus
    gpu_usd = multiply(paid, usd_of_gpu(settings, parts))
    rest_usd, rest_watts = multiply(servers, server.usd), multiply(servers, server.watts)
    return Bill(usd, add(usd, gpu_usd, rest_usd), watts, add(watts, multiply(job.gpus, gpu.watts), rest_watts))


def usd_of_gpu(settings: Hardware, parts: Parts | None = None) -> float | None:
    """Return the dollars of a GPU, from its file or the price list; `parts`: another list."""
    parts, gpu = parts or settings.parts, settings.server
    listed = parts.gpus[gpu.name].usd if gpu.name in parts.gpus else None
    return listed if gpu.usd is None else gpu.usd


def costs(settings: Resolved, job: Workload, bill: Bill, iteration_s: Any, achieved: Any) -> Row:
    """Return columns of dollars and power: of the cluster, per iteration (energy times PUE), per million tokens.

    Those that need the time of priced GPUs are unknown where `achieved` exceeds their peak.
    """
    running = settings.parts.running
    joules = multiply(bill.cluster_watts, running.pue * iteration_s)
    energy = multiply(joules, running.usd_per_kwh / (1000 * SECONDS_AN_HOUR))
    usd = add(multiply(bill.cluster_usd, iteration_s / running.seconds), energy)
    each = MILLION / job.iteration_tokens
    return {
        "network_cost_usd": bill.network_usd,
        "perf_per_dollar": _per(bill.network_usd, iteration_s),
        "cluster_cost_usd": bill.cluster_usd,
        "perf_per_cluster_dollar": _if_can(achieved, _per(bill.cluster_usd, iteration_s)),
        "network_kw": multiply(bill.network_watts, 1 / 1000),
        "cluster_kw": multiply(bill.cluster_watts, 1 / 1000),
        "usd_per_iteration": _if_can(achieved, usd),
        "joules_per_iteration": _if_can(achieved, joules),
        "usd_per_million_tokens": _if_can(achieved, multiply(usd, each)),
        "joules_per_million_tokens": _if_can(achieved, multiply(joules, each)),
        "tokens_per_s": job.iteration_tokens / iteration_s,
    }


def training_columns(settings: Resolved, columns: Mapping[str, Any]) -> Row:
    """Return the columns of a whole training of `job.training_tokens`, from those of an iteration; nan if it is open.

    They are days (also at both ends of the band), dollars at the price of a million tokens, and kWh at the meter.
    """
    stated = settings.case.job.training_tokens
    tokens = np.full_like(columns["iteration_s"], np.nan if stated is None else stated)
    days = tokens / columns["tokens_per_iteration"] / (24 * SECONDS_AN_HOUR)
    return {
        "training_tokens": tokens,
        "training_days": columns["iteration_s"] * days,
        "training_low_days": columns[LOW] * days,
        "training_high_days": columns[HIGH] * days,
        "training_usd": columns["usd_per_million_tokens"] * (tokens / MILLION),
        "training_kwh": columns["joules_per_million_tokens"] * (tokens / MILLION / (1000 * SECONDS_AN_HOUR)),
    }


def idle_spares(settings: Resolved, job: Workload) -> str | None:
    """Return a sentence on GPUs of scale-up domains that no group fills; None if there are none."""
    on, gpu = settings.fabric, settings.server
    paid, size = on.paid_gpus(gpu, job), on.built_of(gpu)
    if round(paid, PLACES) == job.gpus:
        return None
    used = f"{job.model} uses {job.gpus:,} of {paid:,.12g} GPUs in {paid / size:,.12g} domains of {size}"
    return f"{on.name}: {used}; the others are idle but paid for."


def unknown_parts(settings: Hardware, bill: Bill) -> Iterator[str]:
    """Yield a sentence for every part of a cluster with unknown price or power, and for assumed power."""
    parts, gpu, on = settings.parts, settings.server, settings.fabric
    if why := no_price(on.name, parts.prices):
        yield why
    if parts.ocs is not None and on.about.optics.switches is not None:
        name = parts.ocs.name
        if parts.ocs.port_usd is None:
            give = f"give usd_per_port (or usd, of a switch) in [ocs.{name}] of network.prices."
            yield f"{on.name} has no cost: the price of optical switch {name!r} is unknown; {give}"
        if parts.ocs.watts is None and parts.ocs.watts_per_port is None:
            yield f"the power of optical switch {name!r} is unknown: {parts.watts.ocs_port:g} W a port are assumed."
    if bill.network_watts is None:
        give = "give it in [watts] of network.prices"
        yield f"{on.name} has no power: the power of a network part is unknown; {give}."
    server = parts.server_of(gpu.name)
    usd = usd_of_gpu(settings)
    known = {
        f"price of GPU {gpu.name}; give usd in its file or in [gpus.{gpu.name}] of network.prices": usd,
        f"power of GPU {gpu.name}; give watts in its file": gpu.watts,
        f"price of a server of {gpu.name}; give usd in [servers.NAME] of network.prices": server.usd,
        f"power of a server of {gpu.name}; give watts in [servers.NAME] of network.prices": server.watts,
    }
    for what, value in known.items():
        if value is None:
            yield f"whole-cluster {what.split()[0]}: no {what}."


def _if_can(achieved: Any, value: Any) -> Any:
    if value is None or np.ndim(achieved) == 0:
        return None if np.ndim(achieved) == 0 and achieved > 1 else value
    return np.where(achieved > 1, np.nan, value)


def add(*parts: Any) -> Any:
    """Return the sum; None if a part is not known."""
    return None if any(part is None for part in parts) else sum(parts)


def multiply(value: Any, factor: Any) -> Any:
    """Return the product; None if either is not known."""
    return None if value is None or factor is None else value * factor


def _per(usd: Any, iteration_s: Any) -> Any:
    return None if usd is None else 1 / (iteration_s * usd)


SWITCHING = ("circuit_changes", "switch_turns")
TURNED = "turned"  # above 0: a switch reconfigured in an iteration
ON_PANELS = {
    "panel_network_cost_usd": "network_cost_usd",
    "panel_usd_per_million_tokens": "usd_per_million_tokens",
}
PARTS = (
    *("iteration_s", "compute_s", "exposed_comm_s", "reconfig_s", "bubble_s"),
    *("tp_comm_s", "ep_comm_s", "dp_comm_s", "placement_s"),
)


def columns_of(
    one: Problem,
    mean: Columns,
    nic_gbps: np.ndarray,
    achieved: np.ndarray,
    *,
    over: np.ndarray,
    source: np.ndarray,
    **ports: Any,
) -> Columns:
    """Return the row columns [N] of cases that differ only in numbers; unknown values are nan.

    - `mean`: means over iterations of seconds, `SWITCHING` and `TURNED`, and of `PROMPT` if messages have a latency.
    - `achieved`: FLOP/s over the peak; `over`: `ep_over_balanced`; `source`: `compute_source`.
    """
    settings, job = one.resolved, one.workload
    seconds, total = {name: mean[name] for name in PARTS}, mean["iteration_s"]
    latency = {"latency_s": total - mean.get(PROMPT, total)}

    def priced(parts: Parts | None = None, **more: Any) -> tuple[Bill, Row]:
        other = bill_of(settings, job, nic_gbps, parts, **ports, **more)
        return other, costs(settings, job, other, total, achieved)

    bill = bill_of(settings, job, nic_gbps, **ports)
    known = Bill(*(np.broadcast_to(np.nan if part is None else part, total.shape).astype(float) for part in bill))
    columns = _named(one) | {"nic_gbps": nic_gbps, "gpus": job.gpus} | seconds | latency
    columns |= judged(settings, job, seconds, known, achieved)
    columns |= _at_quotes(settings, priced)
    columns |= _switching(one, mean.get("circuit_changes"), mean.get("switch_turns"), total)
    columns |= _on_panels(one, mean[TURNED], priced)
    columns |= {"ep_over_balanced": over} | _described(one, source)
    replicas = len(one.every_replica)
    columns |= {"replicas": replicas, "slowest_over_mean": total / mean["replica_s"] if replicas > 1 else 1.0}
    return {name: filled(value, len(total)) for name, value in columns.items()}


def _at_quotes(settings: Resolved, priced: Callable) -> Row:
    """Dollars of a million tokens, and of the network, at quoted prices; None where no price is quoted."""
    found: Row = dict.fromkeys(QUOTED)
    for column, parts in settings.parts.quoted(settings.server.name).items():
        bill, each = priced(parts)
        found[column] = each["usd_per_million_tokens"]
        if column == LOW_PORTS:
            found[LOW_PORTS_NETWORK] = bill.network_usd
    return found


def _named(one: Problem) -> Row:
    settings, on = one.resolved, one.fabric
    schedule = settings.case.circuits.schedule if on.reconfigures else NO_SCHEDULE
    optical = on.reconfigures or on.about.optics.switches is not None
    bound = on.reconfigures and settings.first == BOUND
    policy = on.policy or (settings.policy_name if schedule == NO_SCHEDULE else "none")
    return {
        "model": one.workload.model,
        "fabric": on.name,
        "variant": one.variant,
        "policy": BOUND if bound else policy,
        "schedule": schedule,
        "routing": "any" if bound else on.paths(settings.site).rule or settings.routing,
        "circuits_for": one.circuits_for if on.reconfigures else "none",
        "nic_use": one.group.nic_use,
        "ocs": (settings.case.circuits.ocs or "unnamed") if optical else "none",
    }


def judged(settings: Resolved, job: Workload, seconds: Row, bill: Bill, achieved: Any) -> Row:
    """Return shares, utilisation and cost of an iteration, as numbers or columns; `achieved`: FLOP/s over the peak."""
    total = seconds["iteration_s"]
    shares = {"ep_share": seconds["ep_comm_s"] / total, "bubble_share": seconds["bubble_s"] / total}
    shares["ep_share_without_bubble"] = seconds["ep_comm_s"] / (total - seconds["bubble_s"])
    peak = settings.server.peak(settings.case.job.precision.compute)  # type: ignore[arg-type]
    shares |= {"mfu": iteration_flops(job) / (peak * job.gpus * total), "achieved_over_peak": achieved}
    return shares | costs(settings, job, bill, total, achieved)


def over_balanced(job: Workload, load: np.ndarray, balanced: np.ndarray) -> np.ndarray:
    """Return `Exchanges.load` over `Exchanges.balanced` of MoE blocks [... P Q L 2]; 1 if no bytes leave a server."""
    moe = places(job).layer >= 0
    load, balanced = load.astype(np.float64)[..., moe, :], balanced.astype(np.float64)[..., None, None]
    return np.divide(load, balanced, out=np.ones_like(load), where=balanced > 0)


def _described(one: Problem, source: np.ndarray) -> Row:
    settings, job, received = one.resolved, one.workload, one.tokens
    case = settings.case
    if job.capacity_factor is not None:
        received = dataclasses.replace(received, count=selections_of(job, one.sent))
    return job_columns(settings, job) | {
        "recipe": settings.recipe,
        "rank_load_over_mean": float(np.median(received.rank_load_over_mean(job.ep))),
        "region_servers": job.servers_per_region,
        "first": settings.first if one.group.reconfigures else "none",
        "decision_s": one.decision_s,
        "expert_load": case.compute.experts.name,
        "placement": case.placement.rule.name,
        "dispatch": job.dispatch,
        "dropped_share": dropped_part(job, one.tokens),
        "compute_source": source,
        "traffic": one.tokens.source,
        "iterations": len(one.tokens.count),
        "dtype": case.run.dtype,
        **memory_columns(settings, job),
    }


def job_columns(settings: Resolved, job: Workload) -> Row:
    """Return the columns of the job: degrees, micro-batches, tokens and precision."""
    sent = job.dispatch_bytes, job.combine_bytes, job.grad_bytes
    known = {tuple(of.values()): name for name, of in PRECISIONS.items()}
    found = {name: getattr(job, name) for name in (*DEGREES, "micro_batches", "micro_batch", "sequence")}
    return found | {
        "tp": job.attention_tp,
        "etp": job.tp,
        "tokens_per_iteration": job.iteration_tokens,
        "compute_precision": settings.case.job.precision.compute,
        "precision": known.get(sent, f"{' / '.join(f'{each:g}' for each in sent)} bytes"),
    }


def compute_source(settings: Resolved, job: Workload, achieved: float, measured_at: float | None = None) -> str:
    """Return words on the source of a model's computation time; `measured_at`: Gbps of a measured iteration."""
    rate: Any = settings.case.compute.rate
    gpu, precision = settings.server.name, settings.case.job.precision.compute
    peak = "peak" if precision == "bf16" else f"{precision} peak"
    if rate.name == "measured":
        gbps = rate.nic_gbps if measured_at is None else measured_at
        where = f"{rate.iteration_s:g} s on {rate.fabric} at {gbps:g} Gbps"
        above = ", which no GPU achieves: measured communication was faster" if achieved > 1 else ""
        return f"{gpu}, achieved {achieved:.1%} of {peak}, from a measured iteration of {where}{above}"
    said = f"{gpu} at {achieved:.0%} of {peak}"
    if rate.name == "kernels":
        own = "" if rate.table is None else f" ({rate.table})"
        return f"{said}, by kernels as they were measured{own}"
    if job.known_as in settings.calibrated:
        return f"{said}, calibrated to published fat-tree times (arXiv 2501.03905)"
    return f"{said}, not calibrated"


def changes_of(job: Workload, anew: np.ndarray, switch: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return new circuits per iteration in all regions, and reconfigurations of the busiest region's switch [...]."""
    groups = max(1, job.servers // (job.pp * job.servers_per_region))
    axes = (-3, -2, -1)
    return groups * anew.sum(axis=(-4, *axes)), switch.sum(axis=axes).max(axis=-1)


def _switching(one: Problem, changes: Any, turns: Any, iteration_s: Any) -> Row:
    """Columns of changed circuits, reconfigurations, and these over the switch's limit; None: unknown or fixed."""
    switch = one.resolved.optical_switch if one.fabric.reconfigures else None
    if one.resolved.first == BOUND:
        changes = turns = None
    allowed = None if switch is None else switch.turns_per_s
    over = None if turns is None or allowed is None else turns / (iteration_s * allowed)
    return {"circuit_changes": changes, "switch_turns": turns, "turns_over_allowed": over}


def _on_panels(one: Problem, turned: Any, priced: Callable) -> Row:
    """Columns of dollars with patch panels instead of a switch that never reconfigured; None: no such switch."""
    if not one.fabric.reconfigures or one.fabric.about.optics.switches is None:
        return dict.fromkeys(ON_PANELS)
    _, usd_of = priced(panels=True)
    turned = (turned > 0) | (one.circuits_for not in ("all-to-all", "run"))  # other spans begin with a reconfiguration
    each = {column: usd_of[name] for column, name in ON_PANELS.items()}
    return {column: None if usd is None else np.where(turned, np.nan, usd) for column, usd in each.items()}


def column_of(values: Sequence[Any]) -> np.ndarray:
    """Return an array of numbers with nan for None if all are numbers or None, else an array of objects."""
    kinds = set(map(type, values))
    if kinds <= {int} or kinds <= {float} or kinds <= {bool}:
        return np.asarray(values)
    if kinds <= {int, float, type(None)}:
        return np.asarray([np.nan if value is None else value for value in values], float)
    column = np.empty(len(values), object)
    column[:] = values
    return column


def filled(value: Any, rows: int) -> np.ndarray:
    column = value if isinstance(value, np.ndarray) else column_of([value])
    return np.broadcast_to(column, rows)


def listed_rows(columns: Columns) -> list[Row]:
    """Return columns as row dicts of Python values; nan becomes None."""
    unknown = {name: column.dtype.kind == "f" and np.isnan(column).any() for name, column in columns.items()}
    each = {name: column.tolist() for name, column in columns.items()}
    each |= {name: [None if np.isnan(value) else value for value in each[name]] for name in each if unknown[name]}
    return [dict(zip(each, values, strict=True)) for values in zip(*each.values(), strict=True)]
