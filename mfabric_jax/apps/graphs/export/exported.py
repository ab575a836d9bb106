"""Export one iteration as a task graph, list its contents, and time it on the case's fabric (`mfabric export`)."""

import time
from typing import Any, NamedTuple

import jax
import numpy as np

from mfabric_jax import units
from mfabric_jax.apps.graphs.export.contention import over_ports
from mfabric_jax.apps.graphs.export.iteration_tasks import IterationGraph, iteration_graph, usual_ends
from mfabric_jax.apps.graphs.export.site_tasks import TRAFFIC
from mfabric_jax.apps.graphs.tasks.graph import Op, TaskKind
from mfabric_jax.apps.graphs.tasks.lowering import lower_tasks
from mfabric_jax.case import Case
from mfabric_jax.checks import InputError
from mfabric_jax.evaluate.problem import check_dtype
from mfabric_jax.evaluate.resolving.resolve import resolve
from mfabric_jax.evaluate.solving import problem_at
from mfabric_jax.flows import SolveOutcome
from mfabric_jax.workload import Workload


def export_iteration(
    case: Case,
    ends: str | None = None,
    *,
    barriers: str = "collective",
    receives: bool = True,
    collectives: bool = False,
) -> IterationGraph:
    """Return one iteration of a case, `run.sample` or the last, as a task graph.

    - `ends`: what a rank of the graph is: "server", "rank" (an expert-parallel rank with its tensor-parallel group) or
      "gpu". None: the ends between which `compare` solves all-to-alls, which are ranks if GPUs have their own NICs,
      else servers.
    - `barriers`: "collective": an all-to-all ends for its whole group at once, as in `compare`, by a BARRIER of its
      ranks; "marker": the same by a task without a rank; "none": a rank waits only for what it needs.
    - `receives`: receiving a message is a task of the receiving rank.
    - `collectives`: gradients and, between GPUs, tensor-parallel all-reduces are ALL_REDUCE tasks, not messages and
      seconds; needs all replicas.

    The graph has the simulated replicas (`run.replicas`); by default one stands for all, as in `compare`. Raise
    `InputError` for settings whose times come from a formula that has no task graph.

    Example: `export_iteration(Case().with_({"network.fabric": "fat-tree"})).graph.tasks`.
    """
    check_dtype(case.run.dtype)
    options = {"barriers": barriers, "receives": receives, "collectives": collectives}
    return iteration_graph(problem_at(resolve(case), (case.network.nic_gbps,)), ends, **options)


def check_timed(case: Case, ends: str | None, *, collectives: bool = False) -> None:
    """Raise `InputError`, before any computation, if `time_iteration` would refuse the graph."""
    resolved = resolve(case)
    group = resolved.fabric.group(resolved.site, case.network.nic_gbps)
    _check_ends(group, resolved.job, usual_ends(group) if ends is None else ends, collectives=collectives)


def _check_ends(group: Any, job: Workload, ends: str, *, collectives: bool) -> None:
    own, several = group.nic_use == "own", job.ranks_per_server > 1
    allowed = ("rank", "gpu") if own else ("server",)
    if collectives and (ends == "gpu" or (ends == "rank" and several)):
        raise InputError(
            f"contention must be left out with collectives between ends {ends!r}: only other engines time collectives "
            "inside servers."
        )
    if ends not in allowed and several:
        use = "every GPU has a NIC of its own" if own else "the NICs of a server are pooled"
        raise InputError(f"ends must be {' or '.join(allowed)} for contention if {use}, got {ends!r}.")


class TimedIteration(NamedTuple):
    """Times of an iteration: `iteration_s`, and `finish` [T] s of each task. `solve_s`: run time of the solver."""

    iteration_s: float
    finish: np.ndarray
    flows: int
    events: int
    solve_s: float


def time_iteration(iteration: IterationGraph, contention: str = "all") -> TimedIteration:
    """Time the graph on the fabric of `compare`: exact max-min sharing of ports under ideal spraying.

    - `contention`: which of expert (EP), pipeline (PP) and data parallel traffic (DP) share links: "none", as in
      `compare` (each send between stages is alone, too), "PP", "EP+PP", "EP+DP", "PP+DP" or "all".

    Raise `InputError` if ends are not those between which `compare` solves all-to-alls.
    """
    reduced = bool(iteration.graph.of(TaskKind.COLLECTIVE, Op.ALL_REDUCE).any())
    _check_ends(iteration.problem.group, iteration.problem.workload, iteration.ends, collectives=reduced)
    began, dtype = time.perf_counter(), iteration.problem.resolved.case.run.dtype
    flows = lower_tasks(iteration.graph, lanes="free")
    capacity, routed = over_ports(iteration, flows, contention)
    completion = jax.block_until_ready(routed.completion(routed.problem(capacity, dtype)))
    if completion.outcome != SolveOutcome.solved:
        raise InputError(f"the iteration does not end: {SolveOutcome[completion.outcome]}")
    finish = np.asarray(completion.finish, float)[: iteration.graph.tasks]
    took = time.perf_counter() - began
    return TimedIteration(float(finish.max()), finish, flows.flows, int(completion.events), took)


def graph_contents(iteration: IterationGraph) -> list[dict[str, Any]]:
    """Return rows `what`, `tasks`, `gigabytes` of the graph: computations, messages by kind of traffic, waits."""
    sends, rows = iteration.graph.of(TaskKind.SEND), []
    for kind, name in enumerate(TRAFFIC[1:], 1):
        some = sends & (iteration.traffic == kind)
        rows.append((f"messages, {name}", some))
        if kind == 1 and iteration.private.any():
            rows.append(("of these on circuits", some & iteration.private))
    rows.insert(0, ("computations", iteration.graph.of(TaskKind.COMPUTE)))
    rows.append(("received", iteration.graph.of(TaskKind.RECV)))
    rows.append(("all-reduces", iteration.graph.of(TaskKind.COLLECTIVE, Op.ALL_REDUCE)))
    waits = iteration.graph.of(TaskKind.COLLECTIVE, Op.BARRIER) | iteration.graph.of(TaskKind.MARKER)
    rows.append(("barriers and markers", waits))
    return [
        {
            "what": what,
            "tasks": int(some.sum()),
            "gigabytes": units.to_gigabytes(float(iteration.graph.bytes[some].sum())),
        }
        for what, some in rows
        if some.any()
    ]
