"""Rows of results: a case's settings, seconds, shares, circuits and memory, and the columns that hold them."""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mfabric_jax.case.policies import BOUND, NO_SCHEDULE
from mfabric_jax.evaluate.resolving.resolved import Resolved
from mfabric_jax.evaluate.resolving.set_up import MEMORY, memory_columns
from mfabric_jax.evaluate.rows.costs import (
    COST,
    PANELS,
    QUOTES,
    TRAINING,
    Bill,
    Row,
    bill_of,
    columns_at_quotes,
    columns_on_panels,
    costs,
)
from mfabric_jax.fabric.parts_list import PartsTable
from mfabric_jax.support.bands import BAND, PROMPT, VARIANTS
from mfabric_jax.support.columns import TEXT, Column, Columns
from mfabric_jax.traffic.dispatch import dropped_share, selections_of
from mfabric_jax.workload import Workload
from mfabric_jax.workload.compute import iteration_flops
from mfabric_jax.workload.parallel import DEGREES, PRECISIONS

if TYPE_CHECKING:
    from mfabric_jax.evaluate.problem import Problem

RowArrays = dict[str, np.ndarray]

NAMES = Columns(
    Column("model", TEXT, "Name of the model."),
    Column("fabric", TEXT, "Name of the fabric."),
    Column("variant", TEXT, "Name of the entry of `[[variants]]`, or `as set`."),
    Column("policy", TEXT, "Policy that chooses circuits; packet fabrics have none."),
    Column("schedule", TEXT, "Scheduler that changes circuits during all-to-alls (`circuits.schedule`), or none."),
    Column("routing", TEXT, "How bytes use circuits; packet fabrics have spraying."),
    Column("circuits_for", TEXT, "How long circuits stay: for an all-to-all, a layer, an iteration or the run."),
    Column("nic_use", TEXT, "Whether GPUs pool the NICs of their server or use their own."),
    Column("ocs", TEXT, "The optical switch: a name, `unnamed` or `none`."),
    Column("nic_gbps", "Gbps", "Bandwidth of a NIC in each direction."),
    Column("gpus", "", "GPUs in use; dollars include idle GPUs, too."),
)
PARTS_OF_ITERATION = Columns(
    Column("compute_s", "s", "Time in which the busiest stage computes."),
    Column("exposed_comm_s", "s", "Time of communication that nothing hides."),
    Column("reconfig_s", "s", "Time of reconfigurations that nothing hides."),
    Column("bubble_s", "s", "Time in which the busiest stage waits for other stages."),
    Column("tp_comm_s", "s", "Part of `exposed_comm_s`: tensor and context parallelism."),
    Column("ep_comm_s", "s", "Part of `exposed_comm_s`: the all-to-alls of experts."),
    Column("dp_comm_s", "s", "Part of `exposed_comm_s`: gradients."),
    Column("placement_s", "s", "Part of `exposed_comm_s`: experts that move."),
)
ITERATION = Columns(
    Column(
        "iteration_s",
        "s",
        "An iteration: `compute_s` + `exposed_comm_s` + `reconfig_s` + `bubble_s` of the busiest stage.",
    ),
    PARTS_OF_ITERATION,
)
JUDGED = Columns(
    Column(
        "latency_s",
        "s",
        "Iteration time added by `network.alpha_s` and by link delays of a graph above `network.link_delay_s`.",
        detail=True,
    ),
    Column("ep_share", "", "`ep_comm_s` over `iteration_s`."),
    Column("bubble_share", "", "`bubble_s` over `iteration_s`.", detail=True),
    Column("ep_share_without_bubble", "", "`ep_comm_s` over `iteration_s` without `bubble_s`.", detail=True),
    Column("mfu", "", "Model FLOPs of an iteration over the peak of all GPUs.", rises=True),
    Column("achieved_over_peak", "", "Rate of a GPU while it computes, over its peak."),
)
SWITCHING = Columns(
    Column(
        "circuit_changes", "", "Circuits that an iteration sets up in all regions; empty where circuits never change."
    ),
    Column("reconfigurations", "", "Reconfigurations of the busiest region's switch in an iteration."),
)
ALLOWED = Column(
    "reconfigurations_over_allowed",
    "",
    "Reconfigurations per second of the busiest region's switch over its allowed rate; empty where unknown.",
)
JOB = Columns(
    Column("tp", "GPUs", "Tensor-parallel degree of attention."),
    Column("ep", "ranks", "Expert-parallel degree."),
    Column("dp", "replicas", "Data-parallel degree."),
    Column("pp", "stages", "Pipeline-parallel degree."),
    Column("micro_batches", "", "Micro-batches of an iteration."),
    Column("micro_batch", "sequences", "Sequences of a micro-batch."),
    Column("sequence", "tokens", "Tokens of a sequence."),
    Column("etp", "GPUs", "Tensor-parallel degree inside experts."),
    Column("tokens_per_iteration", "tokens", "Tokens that the whole cluster trains per iteration."),
    Column("compute_precision", TEXT, "Number format of computation."),
    Column("precision", TEXT, "Number format of traffic, or bytes per element of dispatch, combine and gradients."),
)
ASSUMED = Columns(
    Column("ep_over_balanced", "", "Median load of an all-to-all over the load under balanced traffic."),
    Column("recipe", TEXT, "The recipe that filled open settings of the job, or none."),
    Column(
        "rank_load_over_mean", "", "Tokens that the busiest rank receives over the mean of ranks; median over layers."
    ),
    Column("region_servers", "", "Servers of a region."),
    Column("first", TEXT, "Which circuits serve the first all-to-all of a forward block.", detail=True),
    Column("decision_s", "s", "Time of one decision of the policy, stated or measured.", detail=True),
    Column("expert_load", TEXT, "Whether experts compute a balanced load or the load of the busiest rank."),
    Column("placement", TEXT, "The rule that places experts."),
    Column("dispatch", TEXT, "How tokens travel: once per expert or once per server."),
    Column("dropped_share", "", "Fraction of selections that experts drop."),
    Column("compute_source", TEXT, "Origin of computation times."),
    Column("traffic", TEXT, "Origin of the traffic."),
    Column("iterations", "", "Iterations over which the row averages."),
    Column("dtype", TEXT, "Number format of the simulator's arithmetic."),
)
REPLICAS = Columns(
    Column("replicas", "", "Data-parallel replicas that are simulated."),
    Column(
        "slowest_over_mean",
        "",
        "Iteration time of the slowest replica (the row's) over the mean of replicas.",
        detail=True,
    ),
)
FLOWS = Columns(
    Column("flow_p50_s", "s", "Time until half of the flows of one dispatch have ended.", detail=True),
    Column("flow_p99_s", "s", "Time until 99 % of the flows of that dispatch have ended.", detail=True),
    Column("busiest_link", TEXT, "The link that the bytes of that dispatch keep busy longest.", detail=True),
    Column(
        "busiest_link_use",
        "",
        "Fraction of that dispatch in which `busiest_link` is busy.",
        detail=True,
    ),
)
CASES = Columns(
    *(NAMES, ITERATION, JUDGED, COST, SWITCHING, ALLOWED, PANELS, JOB, ASSUMED, MEMORY, REPLICAS),
    *(FLOWS, BAND, TRAINING, VARIANTS, QUOTES),
)
"""Columns of a row of `compare`, `sweep` and `simulate(...).rows()`."""

RECONFIGURED = "reconfigured"  # above 0: a switch reconfigured in an iteration
PARTS = tuple(ITERATION)


def columns_of(
    problem: "Problem",
    mean: RowArrays,
    nic_gbps: np.ndarray,
    achieved: np.ndarray,
    *,
    over: np.ndarray,
    source: np.ndarray,
    **ports: Any,
) -> RowArrays:
    """Return the row columns [N] of cases that differ only in numbers; unknown values are nan.

    - `mean`: means over iterations of seconds, `SWITCHING`, `RECONFIGURED`, and `PROMPT` if messages have latency.
    - `achieved`: FLOP/s over the peak; `over`: `ep_over_balanced`; `source`: `compute_source`.
    """
    settings, job = problem.resolved, problem.workload
    seconds, total = {name: mean[name] for name in PARTS}, mean["iteration_s"]
    latency = {"latency_s": total - mean.get(PROMPT, total)}

    def price(parts: PartsTable | None = None, **more: Any) -> tuple[Bill, Row]:
        other = bill_of(settings, job, nic_gbps, parts, **ports, **more)
        return other, costs(settings, job, other, total, achieved)

    bill = bill_of(settings, job, nic_gbps, **ports)
    known = Bill(*(np.broadcast_to(np.nan if part is None else part, total.shape).astype(float) for part in bill))
    columns = _name_columns(problem) | {"nic_gbps": nic_gbps, "gpus": job.gpus} | seconds | latency
    columns |= share_columns(settings, job, seconds, known, achieved)
    columns |= columns_at_quotes(settings, price)
    columns |= _switching(problem, mean.get("circuit_changes"), mean.get("reconfigurations"), total)
    columns |= columns_on_panels(problem, mean[RECONFIGURED], price)
    columns |= {"ep_over_balanced": over} | _description_columns(problem, source)
    replicas = len(problem.every_replica)
    columns |= {"replicas": replicas, "slowest_over_mean": total / mean["replica_s"] if replicas > 1 else 1.0}
    return {name: fill_rows(value, len(total)) for name, value in columns.items()}


def _name_columns(problem: "Problem") -> Row:
    settings, on = problem.resolved, problem.fabric
    schedule = settings.case.circuits.schedule if on.reconfigures else NO_SCHEDULE
    optical = on.reconfigures or on.about.optics.switches is not None
    bound = on.reconfigures and settings.first == BOUND
    policy = on.policy or (settings.policy_name if schedule == NO_SCHEDULE else "none")
    return {
        "model": problem.workload.model,
        "fabric": on.name,
        "variant": problem.variant,
        "policy": BOUND if bound else policy,
        "schedule": schedule,
        "routing": "any" if bound else on.paths(settings.site).rule or settings.routing,
        "circuits_for": problem.circuits_for if on.reconfigures else "none",
        "nic_use": problem.group.nic_use,
        "ocs": (settings.case.circuits.ocs or "unnamed") if optical else "none",
    }


def share_columns(settings: Resolved, job: Workload, seconds: Row, bill: Bill, achieved: Any) -> Row:
    """Return shares, utilisation and cost of an iteration, as numbers or columns; `achieved`: FLOP/s over the peak."""
    total = seconds["iteration_s"]
    shares = {"ep_share": seconds["ep_comm_s"] / total, "bubble_share": seconds["bubble_s"] / total}
    shares["ep_share_without_bubble"] = seconds["ep_comm_s"] / (total - seconds["bubble_s"])
    peak = settings.server.peak(settings.case.job.precision.compute)  # type: ignore[arg-type]
    shares |= {"mfu": iteration_flops(job) / (peak * job.gpus * total), "achieved_over_peak": achieved}
    return shares | costs(settings, job, bill, total, achieved)


def _description_columns(problem: "Problem", source: np.ndarray) -> Row:
    settings, job, received = problem.resolved, problem.workload, problem.tokens
    case = settings.case
    if job.capacity_factor is not None:
        received = dataclasses.replace(received, count=selections_of(job, problem.own_selections))
    return job_columns(settings, job) | {
        "recipe": settings.recipe,
        "rank_load_over_mean": float(np.median(received.rank_load_over_mean(job.ep))),
        "region_servers": job.servers_per_region,
        "first": settings.first if problem.group.reconfigures else "none",
        "decision_s": problem.decision_s,
        "expert_load": case.compute.experts.name,
        "placement": case.placement.rule.name,
        "dispatch": job.dispatch,
        "dropped_share": dropped_share(job, problem.tokens),
        "compute_source": source,
        "traffic": problem.tokens.source,
        "iterations": len(problem.tokens.count),
        "dtype": case.run.dtype,
        **memory_columns(settings, job),
    }


def job_columns(settings: Resolved, job: Workload) -> Row:
    """Return the columns of the job: degrees, micro-batches, tokens and precision."""
    sent = job.dispatch_bytes, job.combine_bytes, job.grad_bytes
    known = {tuple(of.values()): name for name, of in PRECISIONS.items()}
    degrees = {name: getattr(job, name) for name in (*DEGREES, "micro_batches", "micro_batch", "sequence")}
    return degrees | {
        "tp": job.attention_tp,
        "etp": job.tp,
        "tokens_per_iteration": job.iteration_tokens,
        "compute_precision": settings.case.job.precision.compute,
        "precision": known.get(sent, f"{' / '.join(f'{each:g}' for each in sent)} bytes"),
    }


def compute_source(settings: Resolved, job: Workload, achieved: float, measured_at: float | None = None) -> str:
    """Describe where a model's computation time comes from; `measured_at`: Gbps of a measured iteration."""
    rate: Any = settings.case.compute.rate
    gpu, precision = settings.server.name, settings.case.job.precision.compute
    peak = "peak" if precision == "bf16" else f"{precision} peak"
    if rate.name == "measured":
        gbps = rate.nic_gbps if measured_at is None else measured_at
        where = f"{rate.iteration_s:g} s on {rate.fabric} at {gbps:g} Gbps"
        above = ", which no GPU achieves: measured communication was faster" if achieved > 1 else ""
        return f"{gpu}, achieved {achieved:.1%} of {peak}, from a measured iteration of {where}{above}"
    text = f"{gpu} at {achieved:.0%} of {peak}"
    if rate.name == "kernels":
        own = "" if rate.table is None else f" ({rate.table})"
        return f"{text}, by kernels as they were measured{own}{_calibration_words(settings)}"
    if job.known_as in settings.calibrations:
        return f"{text}, calibrated to published fat-tree times (arXiv 2501.03905)"
    return f"{text}, not calibrated"


def _calibration_words(settings: Resolved) -> str:
    if (fit := settings.calibration) is None:
        return ""
    return (
        f", calibrated to measured training steps (computation x {fit.compute:.2f}, communication x "
        f"{fit.communication:.2f})"
    )


def changes_of(job: Workload, new_circuits: np.ndarray, switch: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return new circuits per iteration in all regions, and reconfigurations of the busiest region's switch [...]."""
    groups = max(1, job.servers // (job.pp * job.servers_per_region))
    axes = (-3, -2, -1)
    return groups * new_circuits.sum(axis=(-4, *axes)), switch.sum(axis=axes).max(axis=-1)


def _switching(problem: "Problem", changes: Any, reconfigurations: Any, iteration_s: Any) -> Row:
    """Columns of changed circuits, of reconfigurations, and of their rate over the rate that the switch allows; None:
    unknown or fixed."""
    switch = problem.resolved.optical_switch if problem.fabric.reconfigures else None
    if problem.resolved.first == BOUND:
        changes = reconfigurations = None
    allowed = None if switch is None else switch.reconfigurations_per_s
    over = None if reconfigurations is None or allowed is None else reconfigurations / (iteration_s * allowed)
    return {"circuit_changes": changes, "reconfigurations": reconfigurations, ALLOWED.name: over}


def column_of(values: Sequence[Any]) -> np.ndarray:
    """Return an array of numbers, with nan for None, if all values are numbers or None; else an array of objects."""
    kinds = set(map(type, values))
    if kinds <= {int} or kinds <= {float} or kinds <= {bool}:
        return np.asarray(values)
    if kinds <= {int, float, type(None)}:
        return np.asarray([np.nan if value is None else value for value in values], float)
    column = np.empty(len(values), object)
    column[:] = values
    return column


def fill_rows(value: Any, rows: int) -> np.ndarray:
    column = value if isinstance(value, np.ndarray) else column_of([value])
    return np.broadcast_to(column, rows)


def to_rows(columns: RowArrays) -> list[Row]:
    """Return columns as row dicts of Python values; nan becomes None."""
    unknown = {name: column.dtype.kind == "f" and np.isnan(column).any() for name, column in columns.items()}
    each = {name: column.tolist() for name, column in columns.items()}
    each |= {name: [None if np.isnan(value) else value for value in each[name]] for name in each if unknown[name]}
    return [dict(zip(each, values, strict=True)) for values in zip(*each.values(), strict=True)]
