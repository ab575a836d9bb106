"""Iteration time with a failure, relative to the healthy cluster.

A failure hits one region, that is, one pipeline stage of one replica. mFabric then chooses new circuits. The pipeline
and the gradients wait for that stage. Source: arXiv 2501.03905, section on failures.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mfabric_jax.apps.failures.counts import LINKS, ClusterParts
from mfabric_jax.apps.failures.failure_rows import (
    SPARE_GPU,
    SPARE_SERVER,
    Rate,
    Struck,
    absence_note,
    faster_by,
    read_rates,
    row_of,
)
from mfabric_jax.case import Case, Cases, cases
from mfabric_jax.checks import InputError, names
from mfabric_jax.evaluate.arranged import seconds_now
from mfabric_jax.evaluate.links import at_unit_bandwidth, in_phases, steady, with_acks
from mfabric_jax.evaluate.on_circuits import OnCircuits
from mfabric_jax.evaluate.problem import Problem, check_dtype, link_group
from mfabric_jax.evaluate.resolving.limits import check_modelled
from mfabric_jax.evaluate.resolving.resolve import Resolved, resolve, resolve_without_jax, without_search
from mfabric_jax.evaluate.rules import TradeOff
from mfabric_jax.evaluate.solving import problem_at, solve
from mfabric_jax.fabric import Circuits, degrade
from mfabric_jax.fabric.failures import KINDS, ONE_PLANE, Degraded, absent_kinds
from mfabric_jax.fabric.registry import no_price
from mfabric_jax.policies import Policy
from mfabric_jax.policies.reads import Remembering
from mfabric_jax.routing import Plan
from mfabric_jax.routing.fixed import fixed_times_now
from mfabric_jax.routing.graphs import paths_on_links
from mfabric_jax.routing.region import relayed_part_times
from mfabric_jax.support.array_module import put
from mfabric_jax.timing import Iteration
from mfabric_jax.timing.blocks import in_float64
from mfabric_jax.timing.iteration import FabricRates, iterations_of, walk
from mfabric_jax.timing.passes import Exchanges, places

NONE_THERE = "its bill has none"
IDLE = "a GPU's work moves to another domain; with idle GPUs in its own (8 of an NVL72's 72) only the restart is lost"


BUSIEST = "busiest"
CHEAPER = "cheaper"


@dataclasses.dataclass(frozen=True)
class Failures:
    """The checked `failures` settings of a case; `rates`: how often each kind fails."""

    case: Case
    rates: dict[str, Rate]

    @property
    def kinds(self) -> tuple[str, ...] | None:
        """The requested kinds of failure; None for all that the fabric has."""
        return self.case.failures.kinds

    @functools.cached_property
    def cluster_parts(self) -> ClusterParts:
        resolved = resolve(self.case)
        return ClusterParts.of(resolved, resolved.fabric.group(resolved.site, self.case.network.nic_gbps))

    @functools.cached_property
    def absent(self) -> dict[str, str]:
        """Kinds that the fabric lacks: {kind: reason}."""
        reasons = absent_kinds(self.cluster_parts.group, self.cluster_parts.resolved.routing)
        if not self.cluster_parts.nvswitches:
            gpu, known = self.cluster_parts.resolved.server.name, self.cluster_parts.resolved.server.nvswitches
            unknown = f"their number is not known for {gpu}: state gpu.nvswitches"
            reasons |= {"nvswitch": unknown if known is None else f"GPUs {gpu} have no NVSwitch"}
        of_bill = (*LINKS, "spine", "optical-switch")
        return reasons | {
            kind: NONE_THERE for kind in of_bill if kind not in reasons and not self.cluster_parts.devices(kind)
        }

    @property
    def present(self) -> list[str]:
        return [kind for kind in self.candidate_kinds if kind not in self.absent]

    @property
    def candidate_kinds(self) -> tuple[str, ...]:
        """The requested kinds; by default all, without those of planes if there is only one plane."""
        return self.kinds or tuple(kind for kind in KINDS if self.absent.get(kind) != ONE_PLANE)

    def remedies_of(self, kind: str) -> list[str]:
        """Return the kinds to simulate for a failure; a broken GPU counts as a GPU, as a server, or as both."""
        if kind != "gpu":
            return [kind]
        named = {SPARE_GPU: "gpu", SPARE_SERVER: "server"}
        remedy = self.case.failures.gpu_remedy
        return [*named.values()] if remedy == CHEAPER else [named[remedy]]

    @property
    def notes(self) -> list[str]:
        """Sentences on kinds that the fabric lacks, spare GPUs of scale-up domains, and missing prices."""
        resolved = resolve(self.case)
        name, kinds = resolved.fabric.name, self.candidate_kinds
        sentences = [absence_note(name, kinds, self.absent)]
        sentences += [f"{name}: {IDLE}."] if "gpu" in kinds and resolved.fabric.domain_gpus else []
        sentences += [no_price(name, resolved.parts.prices)]
        return [sentence for sentence in sentences if sentence]


def failures_of(case: Case) -> Failures:
    """Return the checked failures of a case. Raise `InputError` for a failure that cannot happen or is not modelled."""
    options, resolved = case.failures, resolve(case)
    rates = _check_settings(resolved)
    job = resolved.job
    stage = 0 if options.stage in (None, BUSIEST) else options.stage
    _check_below("stage", stage, job.pp, f"pipeline stages of {job.model}")
    _check_below("server", options.server, job.servers_per_region, f"servers of a region of {job.model}")
    return Failures(case, rates)


def check_before_search(case: Case) -> None:
    """Raise `InputError` for what failures refuse with every set-up, without the search for one."""
    _check_settings(resolve_without_jax(without_search(case)))


def _check_settings(resolved: Resolved) -> dict[str, Rate]:
    """Return the rates of a case. Raise `InputError` for settings that are refused with every set-up."""
    options, case = resolved.case.failures, resolved.original
    check_modelled("failures", resolved.case)
    if resolved.fabric.reconfigures and isinstance(resolved.circuits_policy(), Remembering):
        raise InputError(
            f"circuits.policy must have neither the keyword history nor state for failures, got {resolved.policy_name}."
        )
    if options.kinds is not None:
        names("failures.kinds", options.kinds, KINDS)
    nvswitches = case.gpu.nvswitches
    if nvswitches is not None and nvswitches < 2 and "nvswitch" in (options.kinds or KINDS):
        raise InputError("gpu.nvswitches must be at least 2 for failure 'nvswitch' (the others take over), got 1.")
    _check_below("iteration", options.iteration, case.run.iterations, "iterations of the run")
    return {} if options.rates is None else read_rates(options.rates)


def _check_below(name: str, value: int, most: int, what: str) -> None:
    if value >= most:
        raise InputError(f"failures.{name} must be below the {most} {what}, got {value}.")


def failures_of_cases(case_set: Case | Cases) -> list[Failures]:
    """Return the failures of every case. Raise `InputError` for a requested kind that no case has."""
    per_case = [failures_of(case) for case in cases(case_set)]
    for kind in {kind for config in per_case for kind in config.kinds or ()}:
        if all(kind in config.absent for config in per_case):
            why = "; ".join(
                dict.fromkeys(f"{config.case.network.fabric}: {config.absent[kind]}" for config in per_case)
            )
            raise InputError(f"failure {kind!r} exists on none of the fabrics ({why}).")
    return per_case


def failures(
    case_set: Case | Cases, progress: Callable[[str], None] | None = None, *, start: int = 0
) -> Iterator[dict[str, Any]]:
    """Yield a row for every case and kind of failure: iteration times before and after, and the run's slow-down.

    - `start`: number of rows to skip without computing them.
    """
    number = itertools.count()
    for config in failures_of_cases(case_set):
        check_dtype(config.case.run.dtype)
        kinds = [kind for kind in config.present if next(number) >= start]
        if not kinds:
            continue
        problem = problem_at(resolve(config.case), (config.case.network.nic_gbps,))
        healthy = solve(problem)
        if problem.weighs:  # at one bandwidth
            healthy = jax.tree.map(lambda x: x[0], healthy)
        (before,) = _hit_iterations(problem, [(healthy, None, 0)])
        since = config.case.failures.iteration
        for kind in kinds:
            every = [_worst(config, problem, remedy, healthy, before) for remedy in config.remedies_of(kind)]
            hit = min(every, key=lambda each: each.mean_iteration_s(since))
            row = row_of(config, problem, kind, hit, before)
            if progress:
                progress(f"{problem.workload.model}: {kind}")
            yield row | {"faster_by": faster_by(healthy, hit, row["slow_down"], row["routing"] == "unsplit", since)}


def _worst(config: Failures, problem: Problem, kind: str, healthy: Exchanges, before: Iteration) -> Struck:
    """The failure at the requested stage, or at the stage where it makes the iteration longest."""
    stage_option, busiest = config.case.failures.stage, int(before.stage[0])
    if stage_option is None:
        every = [busiest, *(stage for stage in range(problem.workload.pp) if stage != busiest)]
        stages = [stage for stage in every if _can_simulate(config, problem, kind, stage)] or every[:1]
    else:
        stages = [busiest if stage_option == BUSIEST else stage_option]
    if waiting := _waiting(config, problem, kind, stages):
        return waiting
    outcomes = list(_outcomes_by_stage(config, problem, kind, stages))
    cases = [(_with_stages(healthy, solved, stage, left), left, stage) for stage, left, solved in outcomes]
    struck = [Struck(*each, after) for each, after in zip(outcomes, _hit_iterations(problem, cases), strict=True)]
    return max(struck, key=lambda each: each.mean_iteration_s(config.case.failures.iteration))


def _waiting(config: Failures, problem: Problem, kind: str, stages: list[int]) -> Struck | None:
    """The first of `stages` at which the job waits for the repair; None if it waits at none."""
    for stage in stages if problem.group.over_graph else stages[:1]:
        left = _remaining_fabric(config, problem, kind, stage)
        if left.waits is not None:
            return Struck(stage, left)
    return None


def _can_simulate(config: Failures, problem: Problem, kind: str, stage: int) -> bool:
    """Whether the failure can be simulated at a stage; at some places of a graph it cannot."""
    try:
        return not problem.group.shares_links or _remaining_fabric(config, problem, kind, stage) is not None
    except InputError:
        return False


def _outcomes_by_stage(
    config: Failures, problem: Problem, kind: str, stages: list[int]
) -> Iterator[tuple[int, Degraded, Exchanges]]:
    """For each stage: the fabric that remains after the failure, and all-to-alls [I P Q L 2] as if every stage were
    hit."""
    for index, stage in enumerate(stages):
        if index == 0 or problem.group.shares_links or left.stays:  # else all stages lose the same
            left = _remaining_fabric(config, problem, kind, stage)
            left, solved = _solve_hit(problem, left, stage)
        yield stage, left, solved
        if left.everywhere:
            return


def _remaining_fabric(config: Failures, problem: Problem, kind: str, stage: int) -> Degraded:
    job, settings, options = problem.workload, problem.resolved, config.case.failures
    group = problem.group if problem.group.reconfigures else at_unit_bandwidth(problem.group, settings.case.run.dtype)
    sizes: dict[str, Any] = {"servers": job.servers_per_region, "ranks_per_server": job.ranks_per_server}
    sizes |= {"gpus_per_rank": job.tp, "attention_gpus": job.attention_tp}
    counted = config.cluster_parts
    sizes |= {
        "radix": config.case.network.radix,
        "rails": counted.cluster_links.rails,
        "many_rings": counted.many_rings,
    }
    sizes |= {"relayed": settings.routing == "unsplit"}
    if not problem.group.over_graph:
        switches, nics = counted.switches, counted.nics.electrical
        sizes |= {"uplinks": switches.uplinks, "spines": switches.above, "nics": nics or None}
    if kind == "nvswitch":
        sizes["nvswitches"] = resolve(config.case).case.gpu.nvswitches
    gpu = stage * (job.gpus // job.pp) + options.server * job.gpus_per_server
    like = "optical-nic" if kind == "optical-switch" and problem.fabric.about.optics.switch_a_nic else kind
    return dataclasses.replace(degrade(group, like, server=options.server, gpu=gpu, **sizes), kind=kind)


def _solve_hit(problem: Problem, left: Degraded, stage: int) -> tuple[Degraded, Exchanges]:
    if problem.group.reconfigures:
        return left, _solve_circuits(problem, left, stage)
    job, carrier = problem.workload, link_group(problem, left.group)
    if problem.group.shares_links:
        return _on_shared_links(problem, left, carrier)
    left = _with_rates(problem, left, carrier)
    acks = problem.resolved.carried_by.acks_back

    def seconds(demand: np.ndarray) -> np.ndarray:
        return fixed_times_now(carrier, with_acks(demand, acks), job.ranks_per_server)

    return left, in_phases(job, problem.group, steady(places(job), *seconds_now(job, problem.selections, seconds)))


def _on_shared_links(problem: Problem, left: Degraded, carrier: Any) -> tuple[Degraded, Exchanges]:
    """Compute paths again, also those of gradients and of sends between stages."""
    job, acks = problem.workload, problem.resolved.carried_by.acks_back
    paths = paths_on_links(carrier, job, problem.resolved.case.network.paths.name, problem.resolved.case.run.seed)

    def seconds(demand: np.ndarray) -> np.ndarray:
        return paths.times_now(carrier, with_acks(demand, acks))

    return _with_rates(problem, left, carrier), steady(places(job), *seconds_now(job, problem.selections, seconds))


def _with_rates(problem: Problem, left: Degraded, carrier: Any) -> Degraded:
    """Update the share left for gradients and sends on fabrics where it depends on all links together."""
    if getattr(left.group, "ring_nics", 0) is not None or getattr(carrier, "ring_nics", None) is None:
        return left
    pairs = [(getattr(carrier, name), getattr(problem.group, name)) for name in ("ring_nics", "stage_nics")]
    less = min(float(now) / float(whole) for now, whole in pairs)
    return dataclasses.replace(left, eps_left=min(left.eps_left, less))


def _solve_circuits(problem: Problem, left: Degraded, stage: int) -> Exchanges:
    """The all-to-alls of every stage as if the failure hit it, without traffic inside servers."""
    settings, job = problem.resolved, problem.workload
    share = np.asarray(left.share_of_rank(job.ep, job.ranks_per_server), float)
    relay = int(left.server) if left.relays else None
    policy = settings.circuits_policy()
    if relay is not None:
        policy = functools.partial(_serving_first, policy=policy, server=relay)
    costs = problem.costs if problem.weighs else None
    if left.stays:
        policy = jax.tree_util.Partial(_staying, count=_last_circuits(problem, left.group, costs, stage))
    carried = settings.routing if relay is None else functools.partial(relayed_part_times, server=relay)
    every = np.arange(problem.iterations)
    return OnCircuits(problem, left.group, costs, share, policy, carried).loads(every, 0 * every, None)


def _last_circuits(problem: Problem, group: Any, costs: TradeOff | None, stage: int) -> jax.Array:
    """The circuits of a stage after the first iteration of the healthy run."""
    micro_batch, layer = np.argwhere(places(problem.workload).layer[stage] >= 0)[-1]
    first = np.zeros(1, int)
    count: Any = OnCircuits(problem, group, costs).loads(first, first, (stage, micro_batch, layer, 1)).count
    return jnp.asarray(count[0])


def _staying(demand, region, *, previous=None, key=None, count):
    return Plan(Circuits(count))


def _serving_first(demand, region, *, previous=None, key=None, policy: Policy, server: int) -> Plan:
    here = jnp.arange(demand.shape[0]) == server
    heavier = jnp.where(here[:, None] | here[None, :], 1 + demand.sum() / jnp.maximum(demand[server].sum(), 1), 1)
    return policy(demand * heavier, region, previous=previous, key=key)


def _with_stages(healthy: Exchanges, failed: Exchanges, stage: int, left: Degraded) -> Exchanges:
    """Replace the healthy all-to-alls of the affected stage (or of all) with the failed ones; traffic inside servers
    runs on the NVLink that is left."""
    here = slice(None), slice(None) if left.everywhere else stage
    if healthy.new_circuits is not None and failed.new_circuits is not None:
        healthy = healthy._replace(new_circuits=put(healthy.new_circuits, here, failed.new_circuits[here]))
    return healthy._replace(
        optical=put(healthy.optical, here, failed.optical[here]),
        electrical=put(healthy.electrical, here, failed.electrical[here]),
        switch=put(healthy.switch, here, failed.switch[here]),
        inside=put(healthy.inside, here, healthy.inside[here] / left.nvlink_left),
    )


def _hit_iterations(problem: Problem, hits: Sequence[tuple[Exchanges, Degraded | None, int]]) -> list[Iteration]:
    """Iterations [I] for each hit. A hit has all-to-alls [I ..], the fabric that remains (None: all of it) and its
    stage. All hits run in one batch."""
    loads = in_float64(jax.tree.map(lambda *x: np.concatenate(x), *(solved for solved, _, _ in hits)))
    many = len(hits[0][0].load)
    left = [_rates_left(problem, left, stage) for _, left, stage in hits]
    rates, tp_Bps = jax.tree.map(lambda *x: np.repeat(np.stack(x), many, axis=0), *left)
    walked = walk(
        problem.workload, rates, loads, problem.seconds, rules=problem.resolved.rules, tp_Bps=tp_Bps, every=False
    )
    ended = iterations_of(walked)
    return [
        jax.tree.map(lambda x, start=start: x[start : start + many], ended) for start in range(0, len(loads.load), many)
    ]


def _rates_left(problem: Problem, left: Degraded | None, stage: int) -> tuple[FabricRates, np.ndarray]:
    rates = problem.rates(problem.bandwidths[0])
    eps, send, tp = (
        np.full(problem.workload.pp, float(each)) for each in (rates.eps_Bps, rates.send_Bps, rates.nvlink_Bps)
    )
    if left is not None:
        there = slice(None) if left.everywhere else stage
        eps[there] *= left.eps_left
        send[there] *= left.eps_left
        tp[stage] *= left.nvlink_left
        tp[stage] = min(tp[stage], eps[stage] * left.tp_on_eps) if left.tp_on_eps else tp[stage]
    return rates._replace(eps_Bps=eps, send_Bps=send), tp
