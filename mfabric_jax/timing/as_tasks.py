"""One training iteration as a graph of tasks, for engines that time it themselves.

All-to-alls, sends between stages and gradients are messages in bytes between ends (servers, ranks or GPUs). Traffic
inside a server, gathered parameters and context-parallel rings are seconds, as in `iterate`.
"""

from typing import NamedTuple

import numpy as np

from mfabric_jax.flows.flows import flows_of
from mfabric_jax.rings import onward
from mfabric_jax.tasks.graph import TaskColumns, TaskKind
from mfabric_jax.timing import blocks as ops
from mfabric_jax.timing.block_tasks import Lanes, Replica, RunningBlocks, Switch, add_blocks
from mfabric_jax.timing.blocks import Rules
from mfabric_jax.timing.iteration import FabricRates
from mfabric_jax.timing.passes import gradient_slots, order_of
from mfabric_jax.timing.site_tasks import Ready, Reduced, Site, all_reduced, gathered, send
from mfabric_jax.timing.trace import DIRECTIONS
from mfabric_jax.workload import Workload
from mfabric_jax.workload.volume import GradientBytes, pp_bytes, replica_bytes, replica_ring

TRAFFIC = ("none", "EP", "PP", "DP")  # by the column "traffic" of the tasks


class EndLayout(NamedTuple):
    """Ends of an expert-parallel group (`per_region`) and of a server; expert-parallel ranks of an end (`ranks`)."""

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
    """The tasks of one iteration, with columns "traffic" (of `TRAFFIC`), "cap" [bytes/s] and "private" (on circuits).

    Rank (p R + r) N + n is end n of replica r in stage p. A single replica may stand for all: its gradients then go
    around its own servers, with the bytes of the full ring.

    - `barriers`: one of `BARRIERS`, for all-to-alls and before gradients.
    - `receives`: receiving a message is a task of its own.
    - `collectives`: gradients and tensor-parallel all-reduces are collectives instead of messages; needs all replicas.
    """
    asked = {"barriers": barriers, "receives": receives, "collectives": collectives}
    return _Writer(workload, replicas, ends, rates, rules, **asked).written()


class _Writer:
    def __init__(self, workload, replicas, ends, rates, rules, *, barriers: str, receives: bool, collectives: bool):
        self.workload, self.replicas, self.ends, self.rates = workload, replicas, ends, rates
        self.rules, self.barriers, self.receives = rules._replace(recompute=workload.recompute), barriers, receives
        shape = workload.pp, len(replicas), ends.per_region
        self.grid = np.arange(np.prod(shape)).reshape(shape)
        groups = [*self.grid.reshape(-1, shape[2]), *self.grid.reshape(shape[0], -1), self.grid.ravel()]
        named = tuple(tuple(group.tolist()) for group in groups) if barriers != "marker" else ()
        self.tasks = TaskColumns(self.grid.size, named, traffic=0, cap=np.inf, private=False)
        self.collectives, self.of_stages = collectives, shape[0] * shape[1]  # groups: regions, stages, all
        self.order, self.switch = order_of(workload), Switch(float(rates.decision_s), rules.eps_waits)

    def written(self) -> TaskColumns:
        ran = [self._replica(number) for number in range(len(self.replicas))]
        over = [self._reduced(stage, [one[stage] for one in ran]) for stage in range(self.workload.pp)]
        moved_s = max(float(one.walked.moved_s) for one in self.replicas)
        if moved_s > 0:
            every, group = self.grid.ravel(), self.of_stages + self.workload.pp
            ready = self._joined(every, _beside_each_other(over), group, "stages are through")
            self.tasks.add(TaskKind.COMPUTE, every, "experts move", ready, seconds=moved_s)
        return self.tasks

    # ------------------------------------------------------------------------------------------ passes of a replica
    def _replica(self, number: int) -> list["_Ran"]:
        order, one = (
            self.order,
            RunningBlocks(self.workload, self.replicas[number], self.rules, float(self.rates.counts_s)),
        )
        sites = [self._site(stage, number) for stage in range(self.workload.pp)]
        ran = [_Ran(site.nothing, {}) for site in sites]
        ended: dict[int, Ready] = {}
        passes = order.kind.shape[1]
        every = zip(order.stage, order.position, strict=True)
        for n, (stage, q) in enumerate(every):
            second = order.paired is not None and q > 0 and order.paired[stage, q - 1]
            if second or order.chunk[stage, q] < 0:
                continue
            together = order.paired is not None and order.paired[stage, q]
            inputs = [self._arrived(sites, at, ended) for at in range(n, n + 1 + together)]
            ready = np.concatenate([ran[stage].through, *inputs])
            run = self._pair if together else self._alone
            through = run(sites[stage], one, (int(stage), int(q)), ready, ran[stage].blocks)
            ran[stage] = ran[stage]._replace(through=through)
            for at in range(q, q + 1 + together):
                ended[stage * passes + at] = through
        return ran

    def _site(self, stage: int, number: int) -> Site:
        ends, group = self.grid[stage, number], stage * len(self.replicas) + number
        site = Site(self.tasks, ends, group, barriers=self.barriers, receives=self.receives)
        if self.collectives and self.ends.ranks < 1:
            members = ends.reshape(-1, self.workload.attention_tp)
            size = self.workload.folded * pp_bytes(self.workload)
            site.reduced = Reduced(np.repeat(self.tasks.grouped(members), members.shape[1]), size)
        return site

    def _arrived(self, sites: list[Site], n: int, ended: dict[int, Ready]) -> Ready:
        site, need = sites[self.order.stage[n]], self.order.needs[n]
        if need < 0:
            return site.nothing
        if self.order.crossing[n] < 0:
            return ended[need]
        src, dst = sites[need // self.order.kind.shape[1]].ends, site.ends
        every, count = np.arange(len(src)), len(src)
        size = np.full(count, pp_bytes(self.workload) * self.ends.ranks)
        sent = flows_of(every, every + count, size)
        both = np.concatenate([src, dst])
        name = f"{self._name(n)}: input"
        return send(self.tasks, both, [ended[need]], sent, name, TRAFFIC.index("PP"), receives=self.receives)[1][None]

    def _name(self, n: int) -> str:
        at = self.order.stage[n], self.order.position[n]
        return f"{DIRECTIONS[int(self.order.kind[at])]} {self.order.micro_batch[at]}"

    def _alone(self, site: Site, blocks: RunningBlocks, at: tuple[int, int], ready: Ready, kept: dict) -> Ready:
        steps = [(0, *step) for step in ops.alone(ops.kind_of(self.order, at), self.rules.recompute)]
        lanes = Lanes([ready], ready)
        for place in range(blocks.blocks.present.shape[2]):
            if (block := blocks.at(*at, place)) is not None:
                lanes = add_blocks(site, steps, [block], lanes, self.switch)
                (kept[*at, place],) = lanes.ready
        return lanes.ready[0]

    def _pair(self, site: Site, blocks: RunningBlocks, at: tuple[int, int], ready: Ready, kept: dict) -> Ready:
        lanes, (stage, q) = Lanes([ready, ready], ready, ready), at
        for place in range(blocks.blocks.present.shape[2]):
            both = [blocks.at(stage, position, place) for position in (q, q + 1)]
            lanes = add_blocks(site, ops.pair(self.rules.recompute, self.rules.delayed), both, lanes, self.switch)
            kept[stage, q + 1, place] = lanes.weights
        through = np.unique(np.concatenate([lanes.free, *lanes.ready]), axis=0)
        return self.tasks.add(TaskKind.MARKER, site.ends, "both passes are over", through)[None]

    # ------------------------------------------------------------------------------------------ what follows them
    def _reduced(self, stage: int, ran: list["_Ran"]) -> Ready:
        ends, walked = self.grid[stage].ravel(), self.replicas[0].walked
        overlap = self.rules.dp_overlap and self.workload.sharding in ("none", "optimizer")
        last = gradient_slots(self.workload, stage) if overlap else [None]
        sums = replica_bytes(self.workload, stage, last=True)
        ring = replica_ring(self.workload, sums.dense, sums.expert)
        inside_s = ring.inside / float(self.rates.nvlink_Bps) / len(last)
        collectives = self._collectives(stage, sums, len(last)) if self.collectives else []
        inside_s = 0.0 if collectives and self.ends.per_server > 1 else inside_s
        before = np.zeros((0, len(ends)), np.int64)
        for at in last:
            ready = _beside_each_other([one.through if at is None else one.blocks[stage, *at] for one in ran])
            ready = self._joined(ends, ready, self.of_stages + stage, "gradients are there")
            waits = [ready, before]
            if inside_s > 0:
                waits = [self.tasks.add(TaskKind.COMPUTE, ends, "gradients inside servers", waits, seconds=inside_s)]
            if self.collectives:
                before = self._reduced_together(ends, waits, collectives)
            else:
                before = self._ring(ends, waits, ring.between / self.ends.per_server / len(last))
        ready = np.concatenate([before, _beside_each_other([one.through for one in ran])])
        if walked.step_s is None:
            return ready
        step_s = float(walked.step_s[stage])
        return self.tasks.add(TaskKind.COMPUTE, ends, "optimizer", ready, seconds=step_s, lane=0)[None]

    def _collectives(self, stage: int, sums: GradientBytes, parts: int) -> list[Reduced]:
        slices = max(1, round(1 / self.ends.ranks))  # of a rank; GPUs reduce theirs
        grid = self.grid[stage].reshape(len(self.replicas), -1, slices)
        dense = grid.transpose(2, 0, 1).reshape(slices, -1)
        experts = grid.transpose(1, 2, 0).reshape(-1, len(self.replicas))
        found = []
        for members, size in ((dense, sums.dense / slices), (experts, sums.expert * self.ends.ranks)):
            if members.shape[1] > 1 and size > 0:
                group = np.empty(self.grid.size, np.int64)
                group[members] = self.tasks.grouped(members)[:, None]
                found.append(Reduced(group[self.grid[stage].ravel()], size / parts))
        return found

    def _reduced_together(self, ends: np.ndarray, waits: list, collectives: list[Reduced]) -> Ready:
        for one in collectives:
            waits = [all_reduced(self.tasks, ends, waits, one, "gradients", TRAFFIC.index("DP"))]
        return np.concatenate([np.atleast_2d(one) for one in waits])

    def _joined(self, ends: np.ndarray, ready: Ready, group: int, name: str) -> Ready:
        return gathered(self.tasks, ends, [ready], group, name, self.barriers)[None]

    def _ring(self, ends: np.ndarray, waits: list, size: float) -> Ready:
        servers = len(ends) // self.ends.per_server
        if size <= 0:
            return np.concatenate([np.atleast_2d(one) for one in waits])
        if servers == 1:  # the graph has none of its neighbours
            seconds = size * self.ends.per_server / float(np.min(self.rates.eps_Bps))
            return self.tasks.add(TaskKind.COMPUTE, ends, "gradients", waits, seconds=seconds)[None]
        every = np.arange(len(ends))
        onto = onward(every.reshape(servers, -1), axis=0).ravel()
        sent = flows_of(every, onto, np.full(len(ends), size))
        traffic = TRAFFIC.index("DP")
        sends, receipts = send(self.tasks, ends, waits, sent, "gradients", traffic, receives=self.receives)
        return np.stack([sends, receipts[np.argsort(onto)]])


class _Ran(NamedTuple):
    """Last tasks of the ends of a stage of one replica, and of every block by [P Q L]."""

    through: Ready
    blocks: dict[tuple[int, ...], Ready]


def _beside_each_other(every: list[Ready]) -> Ready:
    """Ready tasks of several replicas, each [K N], as one array [K R N]."""
    most = max(len(one) for one in every)
    return np.concatenate([np.concatenate([one, *[one[-1:]] * (most - len(one))]) for one in every], axis=1)
