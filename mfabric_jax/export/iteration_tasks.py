"""A scenario's last iteration as a graph of tasks: its traffic, circuits and delays, as `compare` has them."""

import dataclasses
from typing import Any

import jax
import numpy as np

from mfabric_jax.checks import InputError, one_of
from mfabric_jax.export.sent_all_to_alls import SentAllToAlls
from mfabric_jax.resolving.limits import check_beside
from mfabric_jax.schedule._site import BARRIERS
from mfabric_jax.schedule.all_to_alls import Exchanges
from mfabric_jax.schedule.as_tasks import EndLayout, iteration_tasks
from mfabric_jax.schedule.block_tasks import Replica
from mfabric_jax.schedule.iteration import FabricRates, walk
from mfabric_jax.simulation.scenario import Scenario
from mfabric_jax.simulation.solving import solve_between, solve_inside
from mfabric_jax.tasks.graph import TaskGraph
from mfabric_jax.workload import Workload

ENDS = ("server", "rank", "gpu")


@dataclasses.dataclass(frozen=True, eq=False)
class IterationGraph:
    """One iteration.   - `ends`: what a rank of the graph is, one of `ENDS`.   - `iteration_s`: what `compare` says.

    - `traffic` [T]: of `schedule.as_tasks.TRAFFIC`.   - `cap` [T] bytes/s and `private` [T]: messages on circuits.
    """

    one: Scenario
    ends: str
    layout: EndLayout
    graph: TaskGraph
    traffic: np.ndarray
    cap: np.ndarray
    private: np.ndarray
    iteration_s: float


def iteration_graph(
    one: Scenario,
    ends: str | None = None,
    *,
    barriers: str = "collective",
    receives: bool = True,
    collectives: bool = False,
) -> IterationGraph:
    """The last iteration of a scenario at its first bandwidth; every replica that it simulates.

    - `ends`: whose messages are whole: of servers, of expert-parallel ranks (their tensor-parallel groups together) or
      of GPUs. None: ranks where every GPU has a NIC of its own, else servers, as `compare` solves all-to-alls.
    - `barriers`, `receives`, `collectives`: as in `iteration_tasks`.

    `InputError` for settings that have no such graph.
    """
    check_exportable(one)
    ends = usual_ends(one.group) if ends is None else one_of("ends", ends, ENDS)
    if one.group.reconfigures and ends != "server" and one.settings.routing != "unsplit":
        raise InputError(f"circuits.routing must be unsplit between ends {ends!r}, got {one.settings.routing}.")
    if collectives:
        _check_whole(one)
    one_of("barriers", barriers, BARRIERS)
    rates = jax.tree.map(lambda x: np.asarray(x, one.settings.dtype), one.rates(one.bandwidths[0]))
    layout = _layout(one.workload, ends)
    solved, replicas = _solved(one), []
    for found, replica in zip(solved, one.each_replica, strict=True):
        walked = walk(one.workload, rates, found, _arrays(one), rules=one.settings.rules)
        replicas.append(
            Replica(
                walked,
                _delays(rates, found),
                SentAllToAlls(replica, found, float(rates.nic_Bps), ends, layout.per_server).sent,
            )
        )
    asked = {"barriers": barriers, "receives": receives, "collectives": collectives}
    columns = iteration_tasks(one.workload, replicas, layout, rates, one.settings.rules, **asked)
    took = max(float(replica.walked.ends.max() + replica.walked.moved_s) for replica in replicas)
    more = columns.column("traffic").astype(np.int8), columns.column("cap"), columns.column("private").astype(bool)
    return IterationGraph(one, ends, layout, columns.graph(), *more, took)


def check_exportable(one: Scenario) -> None:
    """`InputError` for what `iterate` has a closed form of and a graph has not."""
    settings, job, group = one.settings, one.workload, one.group
    check_beside("an iteration as a graph", settings.case)
    if settings.carried_by.acks_back:
        raise InputError(f"network.payload must be goodput in an iteration as a graph, got {settings.carried_by.name}.")
    if not hasattr(group, "electrical_nics") and not hasattr(group, "oversubscription"):
        raise InputError(f"an iteration as a graph needs a switch tree or mfabric, got {one.fabric.name}.")
    if job.tp * job.ep < job.gpus_per_server:
        raise InputError(f"tp x ep must fill a server of {job.gpus_per_server} GPUs, got {job.tp} x {job.ep}.")


def _check_whole(one: Scenario) -> None:
    """`InputError` where members of a collective would be missing, or copies of experts make groups uneven."""
    job, replicas = one.workload, len(one.every_replica)
    if replicas < job.dp:
        raise InputError(f"collectives needs all {job.dp} replicas: run.replicas must be all, got {replicas}.")
    if job.order.copies > 1 or job.redundant_experts:
        has = f"schedule {job.schedule!r}" if job.order.copies > 1 else f"redundant_experts {job.redundant_experts}"
        raise InputError(f"collectives does not know experts in several places, got {has}.")


def usual_ends(group: Any) -> str:
    """What `compare` solves all-to-alls between."""
    return "rank" if group.nic_use == "own" else "server"


def _layout(job: Workload, ends: str) -> EndLayout:
    per_server = {"server": 1, "rank": job.ranks_per_server, "gpu": job.gpus_per_server}[ends]
    return EndLayout(job.servers_per_region * per_server, per_server, job.ranks_per_server / per_server)


def _arrays(one: Scenario) -> Any:
    return jax.tree.map(lambda x: np.asarray(x, one.settings.dtype), one.seconds)


def _solved(one: Scenario) -> list[Exchanges]:
    """The all-to-alls of the last iteration of every replica, with their circuits."""
    between, inside = solve_between(one), solve_inside(one)
    if one.weighs:
        between = jax.tree.map(lambda x: x[0], between)
    every = len(one.every_replica)
    iterations = len(inside) // every
    last = [(replica + 1) * iterations - 1 for replica in range(every)]
    return [jax.tree.map(lambda x, at=at: x[at], between)._replace(inside=inside[at]) for at in last]


def _delays(rates: FabricRates, found: Exchanges) -> np.ndarray:
    """Of the switch [P Q L 2]."""
    anew = 0.0 if found.anew is None else float(rates.each_s) * np.asarray(found.anew, np.float64)
    return np.broadcast_to(float(rates.delay_s) + anew, found.switch.shape)
