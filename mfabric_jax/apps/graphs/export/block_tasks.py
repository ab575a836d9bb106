"""Build the tasks of one replica's passes, block by block, from the operations in `timing.blocks`."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from mfabric_jax.apps.graphs.export.site_tasks import PP, Ready, StageGroup
from mfabric_jax.apps.graphs.tasks.graph import TaskKind
from mfabric_jax.flows.flows import Flows, flows_of
from mfabric_jax.timing import blocks as ops
from mfabric_jax.timing.blocks import FLAGS, SECONDS, Rules, in_float64
from mfabric_jax.timing.iteration import Walked
from mfabric_jax.timing.passes import order_of
from mfabric_jax.timing.timeline import units_in_order
from mfabric_jax.timing.trace import DIRECTIONS, Computed, Place
from mfabric_jax.workload import Workload
from mfabric_jax.workload.schedules import FORWARD


class Replica(NamedTuple):
    """One data-parallel replica.

    - `walked`: its timing; `sent` returns the flows of one all-to-all of a block.
    - `beside`: seconds of transfers beside computation over those alone. Messages of paired passes have as many times
      their bytes, so that they take as long.
    """

    walked: Walked
    sent: Callable[[Place, int], Flows]
    beside: float = 1.0


class Lanes(NamedTuple):
    """The last tasks of each pass (`ready`), of the compute lane (`free`), and of the last block's weight gradients."""

    ready: list[Ready]
    free: Ready
    weights: Ready


class ReplicaTasks:
    """The tasks of a replica's passes on the `sites` of its stages.

    - `decision_s`: time to choose circuits after a forward gate. `passed`: bytes that an end sends to the next stage.
    - `through` [P]: the last tasks of each stage. `blocks`: the last tasks of each block, by (stage, pass, block).
    """

    def __init__(
        self,
        workload: Workload,
        replica: Replica,
        sites: list[StageGroup],
        rules: Rules,
        decision_s: float,
        passed: float,
    ):
        self.order = order_of(workload)
        self.sites = sites
        self.rules = rules
        self.decision_s = decision_s
        self.passed = passed
        self.sent, self.beside = replica.sent, replica.beside
        self.walked = in_float64(replica.walked)
        self.count = self.walked.blocks.present.sum(axis=-1)  # of blocks in every pass
        self.computed = Computed(workload, self.walked, rules)
        self.through = [site.nothing for site in sites]
        self.blocks: dict[Place, Ready] = {}
        self._ended: dict[int, Ready] = {}

    def add_passes(self) -> None:
        order = self.order
        for first, second in units_in_order(order).T:
            stage = int(order.stage[first])
            numbers = range(first, second + 1)
            passes = [(stage, int(order.position[n])) for n in numbers]
            if order.chunk[passes[0]] >= 0:
                ready = np.concatenate([self.through[stage], *map(self._add_input, numbers)])
                self.through[stage] = self._unit(passes, ready)
                for _, q in passes:
                    self._ended[stage * order.kind.shape[1] + q] = self.through[stage]

    def _add_input(self, n: int) -> Ready:
        site = self.sites[self.order.stage[n]]
        need = self.order.needs[n]
        if need < 0:
            return site.nothing
        if self.order.crossing[n] < 0:
            return self._ended[need]
        src = self.sites[need // self.order.kind.shape[1]].ends
        count = len(site.ends)
        every = np.arange(count)
        sent = flows_of(every, every + count, np.full(count, self.passed))
        name = f"{self._name((self.order.stage[n], self.order.position[n]))}: input"
        return site.tasks.send(np.concatenate([src, site.ends]), [self._ended[need]], sent, name, PP)[1][None]

    def _name(self, slot: tuple[int, int]) -> str:
        return f"{DIRECTIONS[int(self.order.kind[slot])]} {self.order.micro_batch[slot]}"

    def _unit(self, passes: list[tuple[int, int]], ready: Ready) -> Ready:
        """Add a pass, or two that run together."""
        site = self.sites[passes[0][0]]
        single = len(passes) == 1
        lanes = Lanes([ready] * len(passes), ready, ready)
        if single:
            steps = [(0, *step) for step in ops.alone(ops.kind_of(self.order, passes[0]), self.rules.recompute)]
        else:
            steps = ops.pair(self.rules.recompute, self.rules.delayed)
        for block in range(self.walked.blocks.present.shape[2]):
            lanes = self._block(site, steps, [(*slot, block) for slot in passes], lanes)
            self.blocks[*passes[-1], block] = lanes.weights
        if single:
            return lanes.free
        through = np.unique(np.concatenate([lanes.free, *lanes.ready]), axis=0)
        return site.tasks.add(TaskKind.MARKER, site.ends, "both passes have ended", through)[None]

    def _block(self, site: StageGroup, steps: Sequence, blocks: list[Place], lanes: Lanes) -> Lanes:
        """Add one block of every pass; `steps`: (index of the pass, run, operation)."""
        ready, free, weights = lanes
        known = [None] * len(blocks)
        single = len(blocks) == 1
        ready, own = list(ready), self.walked.blocks
        for whose, _, op in steps:
            slot, now = blocks[whose], ready[whose]
            if not own.present[slot]:
                continue
            backward = self.order.kind[slot[:2]] != FORWARD
            block = f"{self._name(slot[:2])}, block {self.count[slot[:2]] - 1 - slot[2] if backward else slot[2]}"
            if isinstance(op, ops.Decide):
                if self._flag(slot, "switch", 0, 1) and self._flag(slot, "asks", 0, 1):
                    known[whose] = site.after_all([now], self.decision_s, f"{block}: circuits are known")
            elif isinstance(op, ops.Reconfigure):
                if self._flag(slot, "switch", op.which):
                    waits = [site.quiet, known[whose] if self._flag(slot, "asks", op.which) else None]
                    site.reconfigure(waits, float(self.walked.table.seconds[(*slot, SECONDS["delay", op.which])]))
            elif isinstance(op, ops.Send):
                if own.moe[slot]:
                    name = f"{block}: {op.label}"
                    counts_s = self.computed.counts_seconds(op, slot)
                    before = now if single or site.quiet is None else _both(now, site.quiet[None])
                    if not single and counts_s > 0:
                        free = site.compute(_both(free, now), counts_s, f"{name}, the last rank")
                    sent = self.sent(slot, op.which)
                    if not single and self.beside != 1:
                        sent = dataclasses.replace(sent, size=self.beside * sent.size)
                    inside_s = float(own.inside_s[(*slot, op.which)])
                    sent = sent.back() if (op.which == 1) != op.again else sent
                    options = {"lag": counts_s, "packets_wait": self.rules.eps_waits}
                    ready[whose] = site.all_to_all(before, sent, inside_s, name, **options)
            elif not single and getattr(op, "off", False):
                weights = free = self._compute(site, op, slot, free, block)
            else:
                before = now if single else _both(free, now)
                after = self._compute(site, op, slot, before, block)
                if after is not before:
                    ready[whose] = free = after
        return Lanes(ready, ready[0], ready[0]) if single else Lanes(ready, free, weights)

    def _flag(self, slot: Place, name: str, *which: int) -> bool:
        """Whether the timing sets flag `name` for any of the all-to-alls `which` of a block."""
        return any(self.walked.table.flags[(*slot, FLAGS[name, exchange])] for exchange in which)

    def _compute(
        self, site: StageGroup, op: ops.BlockWork | ops.OtherSeconds, slot: Place, ready: Ready, block: str
    ) -> Ready:
        reduces = isinstance(op, ops.BlockWork) and op.kind == "tp"
        for _, _, label, seconds in self.computed.parts(op, slot):
            ready = (site.tensor_parallel if reduces else site.compute)(ready, seconds, f"{block}: {label}")
        return ready


def _both(first: Ready, second: Ready) -> Ready:
    return first if first is second else np.concatenate([first, second])
