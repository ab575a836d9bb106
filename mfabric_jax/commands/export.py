"""`mfabric export`: one training iteration as a graph of tasks."""

import dataclasses
from typing import Literal

from mfabric_jax.case import Cases
from mfabric_jax.case.grid import BESIDE_TIMES
from mfabric_jax.commands import shared

ENDS = {"server": "server", "rank": "expert-parallel rank", "gpu": "GPU"}
SAME = 1e-6  # relative


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(shared.OnDevice):
    """One training iteration as a graph of tasks: every computation, every message, and what waits for what.

    Of several iterations the last; run.replicas says how many data-parallel replicas (1 stands for all).
    """

    out: str | None = None
    """The tasks to a file: .json or .parquet (ours), .et (Chakra, a file a rank)."""
    ends: Literal["server", "rank", "gpu"] | None = None
    """What sends and computes: server, rank (expert-parallel, its tensor-parallel group together), gpu (default: what
    compare solves all-to-alls between: ranks where every GPU has a NIC of its own, else servers)."""
    barriers: Literal["collective", "marker", "none"] = "collective"
    """collective: an all-to-all is over for all of its group at once, as in compare; marker: the same by a task that is
    nobody's; none: a rank goes on once it has sent and received what is its own."""
    collectives: bool = False
    """Gradients and, with --ends gpu, tensor-parallel all-reduces as collectives, in place of messages and seconds: for
    other engines. Needs run.replicas all."""
    contention: Literal["none", "PP", "EP+PP", "EP+DP", "PP+DP", "all"] | None = None
    """Time it on its fabric, with these kinds of traffic on the same links: none, as compare has it, or all."""


def run(cases: Cases, options: Options) -> None:
    case = shared.one_case(cases, "export")
    shared.check_flags(cases, "export", shared.ALL, unread=BESIDE_TIMES)
    shared.check_cases(cases)
    shared.start_jax(case.run.dtype, options.device)
    from mfabric_jax import report
    from mfabric_jax.apps.graphs.export import exported_iteration, timed_iteration
    from mfabric_jax.apps.graphs.export.exported import check_timed, graph_contents
    from mfabric_jax.apps.graphs.tasks.formats.registry import WRITERS, write_tasks
    from mfabric_jax.support.atomic import check_file

    if options.out is not None:
        check_file("out", options.out, tuple(WRITERS))
    if options.contention is not None:
        check_timed(case, options.ends, collectives=options.collectives)
    asked = {"barriers": options.barriers, "collectives": options.collectives}
    one = exported_iteration(case, options.ends, **asked)
    graph, job, replicas = one.graph, one.one.workload, len(one.one.every_replica)
    print(
        f"{job.model} on {case.network.fabric} at {case.network.nic_gbps:g} Gbps: an iteration of {replicas} of "
        f"{job.dp} replicas, "
        f"{graph.tasks:,} tasks of {graph.ranks:,} ranks (a rank is a {ENDS[one.ends]})"
    )
    print(report.plain(graph_contents(one), ["what", "tasks", report.Column("gigabytes", "GB")]))
    print(f"compare: {one.iteration_s:.6g} s")
    if options.ends == "gpu" and job.pp > 1:
        print(f"A region is {job.servers_per_region} servers (--region-servers of mfabric replay).")
    if options.contention is not None:
        found = timed_iteration(one, options.contention)
        more = found.iteration_s / one.iteration_s - 1
        said = "as compare has it" if abs(more) < SAME else f"{more:+.2%}"
        print(
            f"the graph, contention {options.contention}: {found.iteration_s:.6g} s, {said}; {found.flows:,} flows, "
            f"{found.events:,} events in {found.solve_s:.1f} s"
        )
    if options.out is not None:
        for remark in write_tasks(graph, options.out):
            shared.tell(remark)
        shared.tell(options.out)
