"""One iteration as segments, and the time that every stage spends on each part."""

from typing import Any

import jax
import numpy as np

from mfabric_jax.case import Case, CaseBlock, Cases
from mfabric_jax.checks import InputError
from mfabric_jax.evaluate.problem import Problem, check_dtype
from mfabric_jax.evaluate.resolving.resolve import resolve
from mfabric_jax.evaluate.solving import circuits_now, problem_at, solve
from mfabric_jax.timing.iteration import Walked, walk_alone
from mfabric_jax.timing.trace import one_block, segments
from mfabric_jax.traffic import dispatched_bytes, server_bytes

Segments = list[dict[str, Any]]


def example_timeline(case: Case) -> tuple[Segments, list[dict[str, Any]]]:
    """Return segments (`timing.trace`) and a row per stage of a case's iteration `run.sample` (default: the last).

    Raise InputError for several replicas.
    """
    return timeline(problem_of_case(case, "a timeline is"))


def problem_of_case(case: Case, what: str) -> Problem:
    """Return the problem of one case; raise InputError, which names `what`, for several replicas."""
    check_dtype(case.run.dtype)
    if case.run.replicas != 1:
        raise InputError(f"{what} of one replica; run.replicas must be 1, got {case.run.replicas}.")
    return problem_at(resolve(case), (case.network.nic_gbps,))


def timeline(problem: Problem) -> tuple[Segments, list[dict[str, Any]]]:
    """Return the segments and a row per stage of the shown iteration, at the first bandwidth."""
    walked = walk_problem(problem)
    return segments(problem.workload, walked, problem.resolved.rules), _rows(walked)


def walk_problem(problem: Problem) -> Walked:
    shown = jax.tree.map(
        lambda x: x[0, problem.shown_iteration] if problem.weighs else x[problem.shown_iteration], solve(problem)
    )
    return walk_alone(
        problem.workload, problem.rates(problem.bandwidths[0]), shown, problem.seconds, problem.resolved.rules
    )


def _rows(walked: Walked) -> list[dict[str, Any]]:
    walked = jax.tree.map(lambda x: np.asarray(x, np.float64), walked)
    stages = np.arange(len(walked.reduce_s))
    total, parts = float(walked.ends.max() + walked.moved_s), walked.stage_seconds
    parts |= {"placement_s": np.broadcast_to(walked.moved_s, stages.shape)}
    rows = [{"stage": int(stage)} | {name: float(x[stage]) for name, x in parts.items()} for stage in stages]
    return [row | {"bubble_s": total - sum(row[name] for name in parts), "iteration_s": total} for row in rows]


NEAR_GBPS = 400.0


def examples(cases: Cases) -> tuple[dict[str, dict[str, Any]], dict[str, list[Any]]]:
    """Return, by title, a region with its circuits, and timelines of a middle block with and without circuits.

    They show the first model with circuits between more than two servers, near 400 Gbps. Both are empty if no fabric
    reconfigures.
    """
    every = [(block, resolve(block.case)) for block in cases.blocks]
    optical = [(block, item) for block, item in every if item.fabric.reconfigures]
    if not optical:
        return {}, {}
    several = [(block, item) for block, item in optical if item.job.servers_per_region > 2]
    block, resolved = (several or optical)[0]
    beside = [other for other, item in every if item.job.model == resolved.job.model and not item.fabric.reconfigures]
    shown = [_nearest_problem(item) for item in (*beside[:1], block)]
    title = f"{resolved.job.model}: one region, {resolved.policy_name} circuits"
    lines = {f"{item.workload.model} on {item.fabric.name} at {item.bandwidths[0]:g} Gbps": item for item in shown}
    region = {} if resolved.is_scheduled else {title: _region(shown[-1])}
    return region, {name: one_block(item.workload, timeline(item)[0]) for name, item in lines.items()}


def _nearest_problem(block: CaseBlock) -> Problem:
    near: Case = min(block, key=lambda case: abs(case.network.nic_gbps - NEAR_GBPS))
    return problem_at(resolve(near.with_({"run.iterations": 1, "run.sample": None})), (near.network.nic_gbps,))


def _region(problem: Problem) -> dict[str, Any]:
    settings, job = problem.resolved, problem.workload
    sent = problem.own_selections[0, job.moe_layers // 2 % problem.tokens.count.shape[1], 0].astype(
        settings.case.run.dtype
    )
    demand = server_bytes(dispatched_bytes(job, sent), job.ranks_per_server)
    return {"demand": demand * (1 - np.eye(len(demand))), "circuits": circuits_now(problem, demand)}
