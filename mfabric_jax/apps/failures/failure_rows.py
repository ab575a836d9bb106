"""The row of a failure: healthy and affected iteration, published slow-down, spares and monthly loss."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from mfabric_jax.apps.failures.counts import LINKS
from mfabric_jax.checks import InputError, not_negative, number, one_of, positive
from mfabric_jax.evaluate.problem import Problem
from mfabric_jax.evaluate.rows.costs import add, bill_of, costs, multiply, usd_of_gpu
from mfabric_jax.evaluate.rows.rows import PARTS, job_columns
from mfabric_jax.fabric.failures import KINDS, SAME_RATE, Degraded
from mfabric_jax.support.text_files import read_mapping
from mfabric_jax.timing import Iteration
from mfabric_jax.timing.passes import Exchanges

SPARE_GPU, SPARE_SERVER, REPAIR = "spare-gpu", "spare-server", "repair"
PUBLISHED_ON = "mfabric"
PUBLISHED = {  # (model, failure) -> slow-down at 400 Gbps and 1,024 GPUs, arXiv 2501.03905
    ("deepseek-r1", "electrical-nic"): 0.033,
    ("deepseek-r1", "optical-nic"): 0.033,
    ("mixtral-8x22b", "gpu"): 0.051,
    ("deepseek-r1", "server"): 0.065,
}


class Struck(NamedTuple):
    """A failure at one pipeline stage.

    - `left`: the fabric that remains; `after`: iterations with the failure.
    - `solved`: all-to-alls [I P Q L 2], every stage computed as if the failure hit it.

    `solved` and `after` are None if the job waits for the repair.
    """

    stage: int
    left: Degraded
    solved: Exchanges | None = None
    after: Iteration | None = None

    def mean_iteration_s(self, since: int) -> float:
        return np.inf if self.after is None else float(self.after.iteration_s[since:].mean())

    @property
    def remedy(self) -> str | None:
        """The spare that takes over, or "repair" if the job waits; None if the job continues on the remaining parts."""
        if self.left.waits is not None:
            return REPAIR
        return SPARE_GPU if self.left.moved else SPARE_SERVER if self.left.spare else None


def row_of(config: Any, problem: Problem, kind: str, hit: Struck, before: Iteration) -> dict:
    """Return the row of a failure. The time parts are of the affected iterations, `healthy_...` of the healthy run."""
    settings, job = problem.resolved, problem.workload
    whole_s = before.iteration_s
    hurt = _of_hit(hit.after, whole_s, config.case.failures.iteration)
    slow_down = hurt["slow_down"]
    as_published = problem.bandwidths[0] == 400 and job.gpus == 1024
    return {
        "model": job.model,
        "fabric": problem.fabric.name,
        "network.graph": settings.case.network.graph if problem.group.over_graph else None,
        "failure": kind,
        "nic_gbps": problem.bandwidths[0],
        "gpus": job.gpus,
        "policy": problem.fabric.policy or settings.policy_name,
        "routing": problem.fabric.paths(settings.site).rule or settings.routing,
        "nic_use": problem.group.nic_use,
        "stage": hit.stage,
        "server": config.case.failures.server,
        "failed_iteration": config.case.failures.iteration,
        "iterations": len(whole_s),
        "healthy_s": float(whole_s.mean()),
        **{name: hurt.pop(name) for name in ("failed_s", "slow_down", "run_slow_down")},
        **_loss_columns(config, problem, hit, kind, run_s=float(whole_s.mean()), slow_down=slow_down),
        "remedy": hit.remedy,
        "waits": hit.left.waits,
        "published": PUBLISHED.get((job.known_as, kind))
        if as_published and problem.fabric.name == PUBLISHED_ON
        else None,
        **{f"healthy_{name}": float(np.mean(getattr(before, name))) for name in PARTS[1:]},
        **hurt,
        **job_columns(settings, job),
        "dtype": settings.case.run.dtype,
    }


def _of_hit(after: Iteration | None, whole_s: np.ndarray, since: int) -> dict[str, float | None]:
    """Seconds and slow-down of the affected iterations; None if the job waits."""
    if after is None:
        return dict.fromkeys(("failed_s", "slow_down", "run_slow_down", *PARTS[1:]))
    suffers, hurt_s = np.arange(len(whole_s)) >= since, after.iteration_s
    run = np.where(suffers, hurt_s, whole_s)
    parts = {name: float(np.broadcast_to(getattr(after, name), suffers.shape)[suffers].mean()) for name in PARTS[1:]}
    return {
        "failed_s": float(hurt_s[suffers].mean()),
        "slow_down": float((hurt_s[suffers] / whole_s[suffers]).mean() - 1),
        "run_slow_down": float(run.sum() / whole_s.sum() - 1),
        **parts,
    }


def _loss_columns(
    config: Any, problem: Problem, hit: Struck, kind: str, *, run_s: float, slow_down: float | None
) -> dict:
    settings, job, there = problem.resolved, problem.workload, config.cluster_parts.devices(kind)
    bill = bill_of(settings, job, problem.bandwidths[0])
    usd = {"spare_network_usd": bill.network_usd, "spare_usd": bill.cluster_usd}
    spares = {name: multiply(whole, 1 / job.servers) if hit.left.spare else None for name, whole in usd.items()}
    part_usd = _part_usd(config, problem, kind)
    stop = config.case.failures.checkpoint_interval_s, config.case.failures.restart_s
    rate = config.rates.get(kind)
    lost = expected_loss(rate, there, slow_down, run_s, *stop, waits=hit.left.waits is not None)
    each = costs(settings, job, bill, run_s, settings.efficiency_of(job))["usd_per_million_tokens"]
    an_hour = multiply(each, job.iteration_tokens / MILLION * 3600 / run_s)
    month_of_life = HOURS_A_MONTH * 3600 / settings.parts.running.seconds
    return {
        **spares,
        "spare_part_usd": part_usd,
        "devices": there,
        **lost,
        "usd_per_million_tokens": each,
        "lost_usd_per_month": multiply(an_hour, lost["lost_hours_per_month"]),
        "spare_usd_per_month": None if rate is None else multiply(spares["spare_usd"], month_of_life),
        "spare_part_usd_per_month": None if rate is None else multiply(part_usd, month_of_life),
    }


def _part_usd(config: Any, problem: Problem, kind: str) -> float | None:
    prices, ocs = problem.resolved.parts.prices, problem.resolved.parts.ocs

    def price_of(part: str, count: float) -> float | None:
        each = prices.price_of(part, problem.bandwidths[0])
        return None if each is None else count * each

    if kind == "optical-nic" and problem.group.own_ports:
        return None  # co-packaged
    if kind in ("electrical-nic", "optical-nic"):
        return price_of("nic", 1)
    if kind == "electrical-nics":
        return price_of("nic", float(problem.group.electrical_nics))
    if kind in (*LINKS, "plane-link"):  # on a region's or rail's optical switch, only the NIC needs a transceiver
        ends = 1 if kind == "optical-link" or problem.group.phases else 2
        return add(price_of("transceiver", ends), price_of("fibre", 1))
    if kind in ("switch", "spine"):
        box = prices.switch_for(problem.bandwidths[0])
        return price_of("switch_port", config.case.network.radix) if box is None else box.usd
    if kind == "gpu":
        return usd_of_gpu(problem.resolved)
    if kind == "optical-switch" and problem.fabric.about.optics.switch_a_nic:
        behind = (part.attachment.ocs_ports for part in problem.fabric.parts(config.cluster_parts.site))
        return price_of("ocs_port", next(ports for ports in behind if ports))
    if kind == "optical-switch" and problem.fabric.about.optics.switches is not None:
        ports, _ = problem.fabric.about.optics.switches(problem.resolved.site)
        return add(price_of("ocs_port", ports), 0.0 if ocs is None else ocs.usd or 0.0)
    return None


def absence_note(name: str, kinds: Iterable[str], absent: dict[str, str]) -> str | None:
    by_reason: dict[str, list[str]] = {}
    for kind in kinds:
        if kind in absent:
            by_reason.setdefault(absent[kind], []).append(kind)
    parts = [f"{', '.join(some)} ({why})" for why, some in by_reason.items()]
    return f"{name} has no failure {' and no failure '.join(parts)}." if parts else None


# Why an iteration with a failure can take less time than a healthy one.

LEAST = 1e-5  # fraction of an iteration; less is rounding


def faster_by(healthy: Exchanges, hit: Struck, slow_down: float | None, unsplit: bool, since: int) -> str | None:
    """Return in words why the affected stage became faster; None unless the iteration became shorter.

    - `since`: first affected iteration.
    - `unsplit`: servers with circuits leave their electrical NICs idle.
    """
    if slow_down is None or slow_down > -LEAST or hit.solved is None:
        return None
    failed, stage, left = hit.solved, hit.stage, hit.left
    shorter = _total(failed.load[since:, stage]) < _total(healthy.load[since:, stage])
    calmer = _total(failed.switch[since:, stage]) < _total(healthy.switch[since:, stage])
    chosen = healthy.new_circuits is not None
    carried = "circuits that fit better" if chosen or left.kind != "link" else "wider paths around it"
    if left.moved:
        carried = "NICs of the spare, and those that were idle" if unsplit else "NICs of the spare"
    gains = [carried] * shorter + ["fewer reconfigurations"] * calmer
    return " and ".join(gains) or ("reconfigurations that are hidden" if chosen else None)


def _total(values: Any) -> float:
    return float(values.sum())


# Failures per month, and the hours of work lost to them.
# A failure that stops the job costs half a checkpoint interval on average, plus the restart. Until the repair the job
# runs slower, or waits. Failures are rare: the model assumes that they never overlap.

HOURS_A_MONTH = 730.0
MILLION = 1_000_000
FIELDS = ("per_million_hours", "mtbf_hours", "repair_hours", "stops")
LOSSES = (
    *("failures_per_month", "repair_hours", "hours_a_stop", "stopped_hours_per_month", "slower_hours_per_month"),
    *("lost_hours_per_month", "lost_iterations_per_month", "available"),
)


class Rate(NamedTuple):
    """Failure rate of one kind: `per_hour` failures of one device, `repair_hours`, and whether a failure `stops` the
    job, which then restarts."""

    per_hour: float
    repair_hours: float
    stops: bool


def read_rates(path: str) -> dict[str, Rate]:
    """Return {kind: rate} from a file with one table per kind; raise `InputError` for any other content.

    Keys of a table: `per_million_hours` (failures per device) or `mtbf_hours`; `repair_hours` (default 24); `stops`
    (default true, for a controller false). A kind without a table may take its rate from another kind (`SAME_RATE`).
    """
    rates = {}
    for kind, table in read_mapping(path, "rates of failures").items():
        one_of(f"failure in {path!r}:", kind, KINDS)
        if not isinstance(table, dict):
            raise InputError(f"{kind} in {path!r} must be a table such as {{ mtbf_hours = 50000 }}, got {table!r}.")
        for name in table:
            one_of(f"{kind} in {path!r}: key", name, FIELDS)
        if ("per_million_hours" in table) == ("mtbf_hours" in table):
            raise InputError(f"{kind} in {path!r} needs either per_million_hours or mtbf_hours.")
        for name in ("per_million_hours", "mtbf_hours", "repair_hours"):
            number(f"{kind}.{name}", table.get(name, 0))
        if "mtbf_hours" in table:
            per_hour = 1 / positive(f"{kind}.mtbf_hours", table["mtbf_hours"])
        else:
            per_hour = not_negative(f"{kind}.per_million_hours", table["per_million_hours"]) / MILLION
        stops = table.get("stops", kind != "controller")
        if not isinstance(stops, bool):
            raise InputError(f"{kind}.stops must be true or false, got {stops!r}.")
        repair = not_negative(f"{kind}.repair_hours", table.get("repair_hours", 24.0))
        rates[kind] = Rate(per_hour, float(repair), stops)
    same = {kind: (rates[of], times) for kind, (of, times) in SAME_RATE.items() if kind not in rates and of in rates}
    return rates | {kind: rate._replace(per_hour=times * rate.per_hour) for kind, (rate, times) in same.items()}


def expected_loss(
    rate: Rate | None,
    count: int | None,
    slow_down: float | None,
    iteration_s: float,
    checkpoint_interval_s: float,
    restart_s: float,
    waits: bool = False,
) -> dict[str, Any]:
    """Return the monthly loss from `count` devices of one kind (`LOSSES`); all None without a rate.

    - `slow_down`: relative increase of the iteration time until the repair; None if the job `waits` for the repair.

    Stopped hours are failures x `hours_a_stop`: half a checkpoint interval plus the restart if the failure stops the
    job, and the repair if the job waits. Slower hours are failures x `repair_hours` x (1 - 1 / (1 + slow-down)).
    `available` is the fraction of time in which all of these devices work.
    """
    if rate is None or count is None:
        return dict.fromkeys(LOSSES)
    failures = count * rate.per_hour * HOURS_A_MONTH
    a_stop = (checkpoint_interval_s / 2 + restart_s) / 3600 if rate.stops else 0.0
    a_stop += rate.repair_hours if waits else 0.0
    stopped, slower = failures * a_stop, failures * rate.repair_hours * (1 - 1 / (1 + (slow_down or 0.0)))
    return {
        "failures_per_month": failures,
        "repair_hours": rate.repair_hours,
        "hours_a_stop": a_stop,
        "stopped_hours_per_month": stopped,
        "slower_hours_per_month": slower,
        "lost_hours_per_month": stopped + slower,
        "lost_iterations_per_month": (stopped + slower) * 3600 / iteration_s,
        "available": availability(count * rate.per_hour, rate.repair_hours),
    }


def availability(per_hour: float, repair_hours: float) -> float:
    """Return the fraction of time in which nothing is broken: MTBF / (MTBF + MTTR)."""
    return 1 / (1 + per_hour * repair_hours)
