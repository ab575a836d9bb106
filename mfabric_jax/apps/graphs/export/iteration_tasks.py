"""Turn an iteration of a problem into a task graph, with the traffic, circuits and delays of `compare`."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from mfabric_jax.apps.graphs.export.as_tasks import EndLayout, iteration_tasks
from mfabric_jax.apps.graphs.export.block_tasks import Replica
from mfabric_jax.apps.graphs.export.site_tasks import BARRIERS, CIRCUITS, PACKETS
from mfabric_jax.apps.graphs.tasks.graph import TaskGraph
from mfabric_jax.checks import InputError, one_of
from mfabric_jax.evaluate.arranged import inside_of
from mfabric_jax.evaluate.links import RELAY_STEPS, at_unit_bandwidth
from mfabric_jax.evaluate.problem import Problem
from mfabric_jax.evaluate.resolving.limits import check_modelled
from mfabric_jax.evaluate.solving import solve_between
from mfabric_jax.fabric import Circuits
from mfabric_jax.flows.flows import Flows, flows_of
from mfabric_jax.routing import Plan, relay_shares
from mfabric_jax.routing.region import RegionMessages, messages_of
from mfabric_jax.timing.iteration import walk_alone
from mfabric_jax.timing.passes import Exchanges, places
from mfabric_jax.traffic import dispatched_bytes
from mfabric_jax.workload import Workload

# -- the all-to-alls of an iteration as messages between servers, ranks or GPUs, on circuits or packet switches

AT_ONCE = 256  # all-to-alls solved together


class ReplicaAllToAlls:
    """The solved all-to-alls of one iteration of one replica, with their circuits, for NICs of `nic_Bps`."""

    def __init__(self, problem: Problem, exchanges: Exchanges, nic_Bps: float, ends: str, per_server: int):
        job, where = problem.workload, places(problem.workload)
        tokens = jnp.asarray(problem.own_selections[problem.shown_iteration], problem.resolved.case.run.dtype)
        demand = between_ends(job, problem.group, np.asarray(dispatched_bytes(job, tokens), np.float64), ends)
        layer, micro_batch = where.pick(*tokens.shape[:2])
        self.demand, self.number = demand.reshape(-1, *demand.shape[2:]), layer * tokens.shape[1] + micro_batch
        self.backward, self.ratio = where.backward, job.combine_bytes / job.dispatch_bytes
        self.nic_Bps, self.per_server, self.slices = nic_Bps, per_server, job.tp if ends == "gpu" else 1
        self.count = None if exchanges.count is None else np.asarray(exchanges.count)
        self.path_arrays: tuple[np.ndarray, ...] | None = None
        if self.count is not None and ends == "server":
            moe = np.broadcast_to((where.layer >= 0)[..., None], self.count.shape[:4])
            self.which, self.path_arrays = self._distinct_paths(problem, moe)

    def flows_at(self, slot: tuple[int, int, int], which: int) -> Flows:
        """Return the flows of all-to-all `which` (0, 1) of a block, from source to destination as in dispatch.

        Combine has its own element size.
        """
        combine = bool(self.backward[slot]) != bool(which)
        scale = self.ratio if combine else 1.0
        if self.path_arrays is None:
            return self._direct(slot, which, scale)
        optical, optical_rate, electrical, electrical_rate = (
            part[self.which[(*slot, which)]] for part in self.path_arrays
        )
        way, src, dst = np.nonzero(np.stack([optical, electrical]))
        size, rate = (
            np.stack(both)[way, src, dst] for both in ((optical, electrical), (optical_rate, electrical_rate))
        )
        task = np.array([CIRCUITS, PACKETS])[way]
        return flows_of(src, dst, size * scale, cap=rate * self.nic_Bps, task=task)

    def _direct(self, slot: tuple[int, int, int], which: int, scale: float) -> Flows:
        demand = self.demand[self.number[slot]] * scale
        src, dst = np.nonzero(demand)
        server = src // self.per_server, dst // self.per_server
        circuits = np.zeros(len(src)) if self.count is None else self.count[(*slot, which)][server]
        cap = np.where(circuits > 0, circuits * self.nic_Bps / self.slices, np.inf)
        return flows_of(src, dst, demand[src, dst], cap=cap, task=np.where(circuits > 0, CIRCUITS, PACKETS))

    def _distinct_paths(self, problem: Problem, moe: np.ndarray) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
        """Index [P Q L 2] of each all-to-all among the N different ones, and the `RegionMessages` of these [N S S]."""
        assert self.count is not None
        number = np.broadcast_to(self.number[..., None], moe.shape)[moe]
        keys = np.concatenate([number[:, None], self.count[moe].reshape(len(number), -1)], axis=1)
        every, index = np.unique(keys, axis=0, return_inverse=True)
        which = np.full(moe.shape, -1)
        which[moe] = index.ravel()
        dtype, servers = problem.resolved.case.run.dtype, self.count.shape[-1]
        unit = at_unit_bandwidth(jax.tree.map(jnp.asarray, problem.group), dtype)
        count = jnp.asarray(every[:, 1:].reshape(-1, servers, servers))
        paths = _all_paths(unit, count, jnp.asarray(self.demand[every[:, 0]], dtype), problem.resolved.routing)
        return which, tuple(np.asarray(part, np.float64) for part in paths)


@eqx.filter_jit
def _all_paths(region: Any, count, demand, routing: str) -> RegionMessages:
    def paths_of_row(row):
        circuits, demand = Circuits(row[0]), row[1]
        shares = relay_shares(region, circuits, demand, steps=RELAY_STEPS) if routing == "relay" else None
        return messages_of(region, Plan(circuits, shares), demand, routing=routing)

    return lax.map(paths_of_row, (count, demand), batch_size=min(AT_ONCE, len(demand)))


def between_ends(job: Workload, group: Any, demand: np.ndarray, ends: str) -> np.ndarray:
    """Return the bytes between ends of different servers [... N N] from the demand between ranks [... R R]."""
    server = np.arange(job.ep) // job.ranks_per_server
    away = np.where(server[:, None] == server, 0, demand)
    axes, servers, per = away.shape[:-2], job.ep // job.ranks_per_server, job.ranks_per_server
    blocks = away.reshape(*axes, servers, per, servers, per)
    if ends == "server":
        return blocks.sum((-3, -1))
    if group.pxn:  # a server's bytes for rank g of another server leave through its own rank g
        away = np.einsum("...satg,hg->...shtg", blocks, np.eye(per)).reshape(away.shape)
    return away if ends == "rank" else np.kron(away, np.eye(job.tp)) / job.tp


ENDS = ("server", "rank", "gpu")


@dataclasses.dataclass(frozen=True, eq=False)
class IterationGraph:
    """One iteration as a graph of T tasks.

    - `ends`: what a rank of the graph is, one of `ENDS`. `iteration_s`: the time in `compare`.
    - `traffic` [T]: index into `site_tasks.TRAFFIC`. `cap` [T]: bytes/s. `private` [T]: mask of messages on circuits.
    """

    problem: Problem
    ends: str
    layout: EndLayout
    graph: TaskGraph
    traffic: np.ndarray
    cap: np.ndarray
    private: np.ndarray
    iteration_s: float


def iteration_graph(
    problem: Problem,
    ends: str | None = None,
    *,
    barriers: str = "collective",
    receives: bool = True,
    collectives: bool = False,
) -> IterationGraph:
    """Return the iteration `run.sample` (or the last) of a problem at its first bandwidth, with every replica.

    Parameters and errors are the same as in `export_iteration`.
    """
    check_exportable(problem)
    ends = usual_ends(problem.group) if ends is None else one_of("ends", ends, ENDS)
    if problem.group.reconfigures and ends != "server" and problem.resolved.routing != "unsplit":
        raise InputError(f"circuits.routing must be unsplit between ends {ends!r}, got {problem.resolved.routing}.")
    if collectives:
        _check_whole(problem)
    one_of("barriers", barriers, BARRIERS)
    rates = jax.tree.map(float, problem.rates(problem.bandwidths[0]))
    layout = _layout(problem.workload, ends)
    solved, replicas = _solve_replicas(problem), []
    for exchanges, replica in zip(solved, problem.each_replica, strict=True):
        replicas.append(
            Replica(
                walk_alone(problem.workload, rates, exchanges, problem.seconds, problem.resolved.rules),
                ReplicaAllToAlls(replica, exchanges, float(rates.nic_Bps), ends, layout.per_server).flows_at,
                float(rates.beside),
            )
        )
    options = {"barriers": barriers, "receives": receives, "collectives": collectives}
    columns = iteration_tasks(problem.workload, replicas, layout, rates, problem.resolved.rules, **options)
    took = max(float(replica.walked.ends.max() + replica.walked.moved_s) for replica in replicas)
    more = columns.column("traffic").astype(np.int8), columns.column("cap"), columns.column("private").astype(bool)
    return IterationGraph(problem, ends, layout, columns.graph(), *more, took)


def check_exportable(problem: Problem) -> None:
    settings, job, group = problem.resolved, problem.workload, problem.group
    check_modelled("an iteration as a graph", settings.case)
    if settings.carried_by.acks_back:
        raise InputError(
            f"network.payload must be goodput for an iteration as a graph, got {settings.carried_by.name}."
        )
    if group.forwards:
        raise InputError(f"an iteration as a graph needs a switch tree or mfabric, got {problem.fabric.name}.")
    if job.tp * job.ep < job.gpus_per_server:
        raise InputError(f"tp x ep must fill a server of {job.gpus_per_server} GPUs, got {job.tp} x {job.ep}.")


def _check_whole(problem: Problem) -> None:
    job, replicas = problem.workload, len(problem.every_replica)
    if replicas < job.dp:
        raise InputError(f"collectives needs all {job.dp} replicas: run.replicas must be all, got {replicas}.")
    if job.order.copies > 1 or job.redundant_experts:
        has = f"schedule {job.schedule!r}" if job.order.copies > 1 else f"redundant_experts {job.redundant_experts}"
        raise InputError(f"collectives needs one copy of every expert, got {has}.")


def usual_ends(group: Any) -> str:
    return "rank" if group.nic_use == "own" else "server"


def _layout(job: Workload, ends: str) -> EndLayout:
    per_server = {"server": 1, "rank": job.ranks_per_server, "gpu": job.gpus_per_server}[ends]
    return EndLayout(job.servers_per_region * per_server, per_server, job.ranks_per_server / per_server)


def _solve_replicas(problem: Problem) -> list[Exchanges]:
    between, inside = solve_between(problem), inside_of(problem)
    if problem.weighs:
        between = jax.tree.map(lambda x: x[0], between)
    every = len(problem.every_replica)
    iterations = len(inside) // every
    shown = [replica * iterations + problem.shown_iteration for replica in range(every)]
    return [jax.tree.map(lambda x, index=index: x[index], between)._replace(inside=inside[index]) for index in shown]
