"""Write one training iteration as a task graph, for engines that time it themselves.

All-to-alls, sends between stages and gradients become messages in bytes between ends (servers, ranks or GPUs). Traffic
inside a server, gathered parameters and context-parallel rings become seconds, as in `iterate`.
"""

from typing import NamedTuple

import numpy as np

from mfabric_jax.apps.graphs.export.block_tasks import Replica, ReplicaTasks
from mfabric_jax.apps.graphs.export.site_tasks import DP, EndTasks, Ready, Reduced, StageGroup
from mfabric_jax.apps.graphs.tasks.graph import TaskColumns, TaskKind
from mfabric_jax.flows.flows import flows_of
from mfabric_jax.support.rings import onward
from mfabric_jax.timing.blocks import Rules
from mfabric_jax.timing.iteration import FabricRates, rules_of
from mfabric_jax.timing.passes import gradient_slots
from mfabric_jax.workload import Workload
from mfabric_jax.workload.volume import GradientBytes, pp_bytes, replica_bytes, replica_ring


class EndLayout(NamedTuple):
    """Numbers of ends per expert-parallel group (`per_region`) and per server, and of EP ranks per end (`ranks`)."""

    per_region: int
    per_server: int
    ranks: float


def iteration_tasks(
    workload: Workload,
    replicas: list[Replica],
    ends: EndLayout,
    rates: FabricRates,
    rules: Rules,
    *,
    barriers: str = "collective",
    receives: bool = True,
    collectives: bool = False,
) -> TaskColumns:
    """Return the tasks of one iteration, with the columns of `EndTasks`.

    With R replicas of N ends, rank (p R + r) N + n is end n of replica r in stage p. A single replica may stand for
    all: its gradient ring then runs among its own servers, with the bytes of the full ring.

    - `barriers`: one of `BARRIERS`, for all-to-alls and before gradients.
    - `receives`: receiving a message is a separate task.
    - `collectives`: gradients and tensor-parallel all-reduces are collectives, not messages; needs all replicas.
    """
    options = {"barriers": barriers, "receives": receives, "collectives": collectives}
    return _Writer(workload, replicas, ends, rates, rules, **options).write()


class _Writer:
    def __init__(self, workload, replicas, ends, rates, rules, *, barriers: str, receives: bool, collectives: bool):
        self.workload = workload
        self.replicas = replicas
        self.ends = ends
        self.rates = rates
        self.rules = rules_of(workload, rules)
        self.collectives = collectives
        stages, every, per_region = shape = workload.pp, len(replicas), ends.per_region
        self.grid = np.arange(np.prod(shape)).reshape(shape)
        groups = [*self.grid.reshape(-1, per_region), *self.grid.reshape(stages, -1), self.grid.ravel()]
        named = tuple(tuple(group.tolist()) for group in groups) if barriers != "marker" else ()
        self.tasks = EndTasks(self.grid.size, named, barriers, receives=receives)
        self.of_stages = stages * every  # groups: regions, stages, all

    def write(self) -> TaskColumns:
        ran = [self._replica(number) for number in range(len(self.replicas))]
        over = [self._reduce_gradients(stage, ran) for stage in range(self.workload.pp)]
        moved_s = max(float(replica.walked.moved_s) for replica in self.replicas)
        if moved_s > 0:
            every = self.grid.ravel()
            group = self.of_stages + self.workload.pp
            ready = self.tasks.gather(every, [_beside_each_other(over)], group, "all stages have ended")
            self.tasks.add(TaskKind.COMPUTE, every, "experts move", ready[None], seconds=moved_s)
        return self.tasks

    def _replica(self, number: int) -> ReplicaTasks:
        sites = [self._site(stage, number) for stage in range(self.workload.pp)]
        decision_s = float(self.rates.decision_s)
        passed = pp_bytes(self.workload) * self.ends.ranks
        ran = ReplicaTasks(self.workload, self.replicas[number], sites, self.rules, decision_s, passed)
        ran.add_passes()
        return ran

    def _site(self, stage: int, number: int) -> StageGroup:
        ends = self.grid[stage, number]
        group = stage * len(self.replicas) + number
        reduced = None
        if self.collectives and self.ends.ranks < 1:
            members = ends.reshape(-1, self.workload.attention_tp)
            size = self.workload.folded * pp_bytes(self.workload)
            reduced = Reduced(np.repeat(self.tasks.add_groups(members), members.shape[1]), size)
        return StageGroup(self.tasks, ends, group, reduced)

    def _reduce_gradients(self, stage: int, ran: list[ReplicaTasks]) -> Ready:
        tasks = self.tasks
        ends = self.grid[stage].ravel()
        step_s = float(self.replicas[0].walked.step_s[stage])
        overlap = self.rules.dp_overlap and self.workload.sharding in ("none", "optimizer")
        last = gradient_slots(self.workload, stage) if overlap else [None]
        sums = replica_bytes(self.workload, stage, last=True)
        ring = replica_ring(self.workload, sums.dense, sums.expert)
        inside_s = ring.inside / float(self.rates.nvlink_Bps) / len(last)
        collectives = self._collectives(stage, sums, len(last)) if self.collectives else []
        inside_s = 0.0 if collectives and self.ends.per_server > 1 else inside_s
        before = np.zeros((0, len(ends)), np.int64)
        through = [item.through[stage] for item in ran]
        for slot in last:
            ready = through if slot is None else [item.blocks[stage, *slot] for item in ran]
            group = self.of_stages + stage
            name = "gradients are ready"
            waits = [tasks.gather(ends, [_beside_each_other(ready)], group, name), before]
            if inside_s > 0:
                waits = [tasks.add(TaskKind.COMPUTE, ends, "gradients inside servers", waits, seconds=inside_s)]
            if self.collectives:
                for item in collectives:
                    waits = [tasks.all_reduce(ends, waits, item, "gradients", DP)]
            else:
                waits = self._ring(ends, waits, ring.between / self.ends.per_server / len(last))
            before = np.concatenate([np.atleast_2d(item) for item in waits])
        ready = np.concatenate([before, _beside_each_other(through)])
        if step_s <= 0:
            return ready
        return tasks.add(TaskKind.COMPUTE, ends, "optimizer", ready, seconds=step_s, lane=0)[None]

    def _collectives(self, stage: int, sums: GradientBytes, parts: int) -> list[Reduced]:
        slices = max(1, round(1 / self.ends.ranks))  # of a rank's gradients; each GPU reduces its own slice
        grid = self.grid[stage].reshape(len(self.replicas), -1, slices)
        dense = grid.transpose(2, 0, 1).reshape(slices, -1)
        experts = grid.transpose(1, 2, 0).reshape(-1, len(self.replicas))
        reductions = []
        for members, size in ((dense, sums.dense / slices), (experts, sums.expert * self.ends.ranks)):
            if members.shape[1] > 1 and size > 0:
                group = np.empty(self.grid.size, np.int64)
                group[members] = self.tasks.add_groups(members)[:, None]
                reductions.append(Reduced(group[self.grid[stage].ravel()], size / parts))
        return reductions

    def _ring(self, ends: np.ndarray, waits: list, size: float) -> list:
        servers = len(ends) // self.ends.per_server
        if size <= 0:
            return waits
        if servers == 1:  # its neighbours in the ring are not in the graph
            seconds = size * self.ends.per_server / float(np.min(self.rates.eps_Bps))
            return [self.tasks.add(TaskKind.COMPUTE, ends, "gradients", waits, seconds=seconds)]
        every = np.arange(len(ends))
        onto = onward(every.reshape(servers, -1), axis=0).ravel()
        sent = flows_of(every, onto, np.full(len(ends), size))
        sends, receipts = self.tasks.send(ends, waits, sent, "gradients", DP)
        return [sends, receipts[np.argsort(onto)]]


def _beside_each_other(every: list[Ready]) -> Ready:
    """Join the tasks [K N] of R replicas to [K, R N]; a replica with fewer tasks repeats its last one."""
    most = max(len(ready) for ready in every)
    return np.concatenate([np.concatenate([ready, *[ready[-1:]] * (most - len(ready))]) for ready in every], axis=1)
