"""Tasks of one block of a pass, or of a pair of blocks, from the operations in `blocks`."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from mfabric_jax.flows.flows import Flows
from mfabric_jax.timing import blocks as ops
from mfabric_jax.timing.blocks import Rules, in_float64, rows_of
from mfabric_jax.timing.iteration import Walked
from mfabric_jax.timing.passes import order_of
from mfabric_jax.timing.site_tasks import Ready, Site
from mfabric_jax.timing.trace import BESIDE, DIRECTIONS
from mfabric_jax.workload import Workload
from mfabric_jax.workload.schedules import BACKWARD, FORWARD


class Replica(NamedTuple):
    """One data-parallel replica: its `walk`, switch delays [P Q L 2], and flows `sent` by all-to-alls."""

    walked: Walked
    delay_s: np.ndarray
    sent: Callable[[tuple[int, int, int], int], Flows]


class Block(NamedTuple):
    """One block of one pass: seconds of work by `blocks.ROWS`, and its two all-to-alls; `counts_s`: before each."""

    name: str
    seconds: dict[str, float]
    beside: dict[str, np.ndarray]
    sent: tuple[Flows, Flows] | None
    inside_s: np.ndarray
    counts_s: tuple[float, float]
    switch: np.ndarray
    delay_s: np.ndarray
    asks: tuple[bool, bool]


class Switch(NamedTuple):
    """How a region's switch turns; `decision_s`: after a forward gate; `packets_wait`: packets wait too."""

    decision_s: float
    packets_wait: bool


class RunningBlocks:
    def __init__(self, workload: Workload, replica: Replica, rules: Rules, counts_s: float):
        self.replica, self.order, self.counts_s = replica, order_of(workload), counts_s
        walked = in_float64(replica.walked)
        self.blocks, self.beside = walked.blocks, walked.beside
        self.in_pairs = self.order.in_pairs
        self.rows, self.slower = rows_of(walked.blocks, walked.compute), 1 / (1 - rules.comm_cores)

    def at(self, stage: int, position: int, place: int) -> Block | None:
        """The block at [P Q L]; None for padding."""
        at, pass_, blocks = (stage, position, place), (stage, position), self.blocks
        if not blocks.present[at]:
            return None
        together, kind = bool(self.in_pairs[pass_]), int(self.order.kind[pass_])
        slower = {name: self.slower if together and name != "tp" else 1.0 for name in self.rows}
        sent = (self.replica.sent(at, 0), self.replica.sent(at, 1)) if blocks.moe[at] else None
        return Block(
            name=f"{DIRECTIONS[kind]} {self.order.micro_batch[pass_]}, block {self._number(at)}",
            seconds={name: float(row[at]) * slower[name] for name, row in self.rows.items()},
            beside={name: seconds[at] for name, seconds in self.beside.items()},
            sent=sent,
            inside_s=np.zeros(2) if blocks.inside_s is None else blocks.inside_s[at],
            counts_s=(self.counts_s if kind == FORWARD else 0.0, 0.0),
            switch=blocks.switch[at],
            delay_s=self.replica.delay_s[at],
            asks=(not blocks.ahead[at] and not (together and kind == BACKWARD), kind == FORWARD),
        )

    def _number(self, at: tuple[int, int, int]) -> int:
        forward = self.order.kind[at[:2]] == FORWARD
        return at[2] if forward else self.blocks.present.shape[2] - 1 - at[2]


class Lanes(NamedTuple):
    """Last tasks of each pass, of a pair's compute lane, and of the last block's weight gradients."""

    ready: list[Ready]
    free: Ready
    weights: Ready | None = None


def add_blocks(site: Site, steps: Sequence, blocks: list[Block | None], lanes: Lanes, switch: Switch) -> Lanes:
    """Adds the tasks of one block of every pass (None: no block); `steps`: (whose, run, operation)."""
    (ready, free, weights), known = lanes, [None] * len(blocks)
    ready, single = list(ready), len(blocks) == 1
    for whose, _, op in steps:
        if (block := blocks[whose]) is None:
            continue
        name = f"{block.name}: {getattr(op, 'label', '')}"
        if isinstance(op, ops.Decide):
            if block.sent is not None and block.switch.any() and any(block.asks):
                known[whose] = site.after_all([ready[whose]], switch.decision_s, f"{block.name}: circuits are known")
        elif isinstance(op, ops.Turn):
            if block.sent is not None and block.switch[op.which]:
                told = [site.quiet, known[whose] if block.asks[op.which] else None]
                site.turn(told, float(block.delay_s[op.which]))
        elif isinstance(op, ops.Send):
            if block.sent is not None:
                sent, inside_s = block.sent[op.which], float(block.inside_s[op.which])
                sent = sent.back() if (op.which == 1) != op.again else sent
                before = ready[whose] if single or site.quiet is None else _both(ready[whose], site.quiet[None])
                if not single and block.counts_s[op.which] > 0:
                    free = site.compute(_both(free, ready[whose]), block.counts_s[op.which], f"{name}, the last rank")
                asked = {"lag": block.counts_s[op.which], "packets_wait": switch.packets_wait}
                ready[whose] = site.all_to_all(before, sent, inside_s, name, **asked)
        elif not single and isinstance(op, ops.Work) and op.off:
            weights = free = site.compute(free, _seconds(block, op), name)
        else:
            before = ready[whose] if single else _both(free, ready[whose])
            after = _worked(site, block, op, before)
            if after is not before:
                ready[whose], free = after, free if single else after
    return Lanes(ready, free, weights)


def _worked(site: Site, block: Block, op: Any, ready: Ready) -> Ready:
    if isinstance(op, ops.Beside):
        for kind, seconds in block.beside.items():
            ready = site.compute(ready, float(seconds[op.which]), f"{block.name}: {BESIDE[kind][1]}")
        return ready
    add = site.tensor_parallel if op.kind == "tp" else site.compute
    return add(ready, _seconds(block, op), f"{block.name}: {op.label}")


def _seconds(block: Block, work: ops.Work) -> float:
    return sum(block.seconds[name] for name in work.of)


def _both(one: Ready, two: Ready) -> Ready:
    return one if one is two else np.concatenate([one, two])
