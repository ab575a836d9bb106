"""`mfabric export`: one training iteration as a task graph."""

import dataclasses
from typing import Literal

from mfabric_jax.case import Cases
from mfabric_jax.case.grid import UNREAD_BY_TIMES
from mfabric_jax.commands import shared

ENDS = {"server": "server", "rank": "expert-parallel rank", "gpu": "GPU"}
SAME = 1e-6  # relative


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(shared.OnDevice):
    """Export a training iteration as a task graph: every computation, every message, and their dependencies.

    The last of several iterations is exported, with run.replicas data-parallel replicas (a single one stands for all).
    """

    out: str | None = None
    """Write the tasks to this file: .json or .parquet (our format), or .et (Chakra, one file per rank)."""
    ends: Literal["server", "rank", "gpu"] | None = None
    """Endpoints of tasks: server, rank (an expert-parallel rank with its tensor-parallel group) or gpu (default: as in
    compare: ranks if every GPU has its own NIC, else servers)."""
    barriers: Literal["collective", "marker", "none"] = "collective"
    """collective: an all-to-all ends for its whole group at once, as in compare; marker: the same, by a task that
    belongs to no rank; none: a rank continues once it has sent and received its own bytes."""
    collectives: bool = False
    """Export gradients (and, with --ends gpu, tensor-parallel all-reduces) as collectives for other engines, instead of
    messages and seconds. Needs run.replicas all."""
    contention: Literal["none", "PP", "EP+PP", "EP+DP", "PP+DP", "all"] | None = None
    """Simulate the graph on its fabric; these kinds of traffic share links, from none (as in compare) to all."""


def run(cases: Cases, options: Options) -> None:
    case = shared.one_case(cases, "export")
    shared.check_flags(cases, "export", shared.ALL, unread=UNREAD_BY_TIMES)
    shared.check_cases(cases)
    shared.start_jax(case.run.dtype, options.device)
    cases = shared.settle(cases, options.device)
    case = cases.blocks[0].case
    from mfabric_jax import report
    from mfabric_jax.apps.graphs.export import export_iteration, time_iteration
    from mfabric_jax.apps.graphs.export.exported import check_timed, graph_contents
    from mfabric_jax.apps.graphs.tasks.formats.registry import WRITERS, write_tasks
    from mfabric_jax.support.atomic import check_file

    if options.out is not None:
        check_file("out", options.out, tuple(WRITERS))
    if options.contention is not None:
        check_timed(case, options.ends, collectives=options.collectives)
    choices = {"barriers": options.barriers, "collectives": options.collectives}
    iteration = export_iteration(case, options.ends, **choices)
    graph, job, replicas = iteration.graph, iteration.problem.workload, len(iteration.problem.every_replica)
    print(
        f"{job.model} on {case.network.fabric} at {case.network.nic_gbps:g} Gbps: an iteration of {replicas} of "
        f"{job.dp} replicas, "
        f"{graph.tasks:,} tasks of {graph.ranks:,} ranks (a rank is a {ENDS[iteration.ends]})"
    )
    print(report.plain(graph_contents(iteration), ["what", "tasks", report.TableColumn("gigabytes", "GB")]))
    print(f"compare: {iteration.iteration_s:.6g} s")
    if options.ends == "gpu" and job.pp > 1:
        print(f"A region is {job.servers_per_region} servers (--region-servers of mfabric replay).")
    if options.contention is not None:
        solution = time_iteration(iteration, options.contention)
        more = solution.iteration_s / iteration.iteration_s - 1
        comparison = "as in compare" if abs(more) < SAME else f"{more:+.2%}"
        print(
            f"the graph, contention {options.contention}: {solution.iteration_s:.6g} s, {comparison}; "
            f"{solution.flows:,} flows, "
            f"{solution.events:,} events in {solution.solve_s:.1f} s"
        )
    if options.out is not None:
        for remark in write_tasks(graph, options.out):
            shared.tell(remark)
        shared.tell(options.out)
