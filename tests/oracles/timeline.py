"""A training iteration as one clock per pipeline stage, block by block, with a switch that turns or is waited for.

Seconds, or any exact numbers, in plain Python.
"""

import math


def stage_order(stage, stages, batches):
    """(kind, micro-batch) of one stage, told by what is in flight: stage p holds at most stages - p micro-batches; it
    runs the next forward pass whenever that allows one, else the oldest backward pass."""
    order, forwards, backwards = [], 0, 0
    while backwards < batches:
        if forwards < batches and forwards - backwards < stages - stage:
            order.append(("F", forwards))
            forwards += 1
        else:
            order.append(("B", backwards))
            backwards += 1
    return order


class Region:
    """The clock of one stage, when its last all-to-all ended, and the reconfiguration it paid."""

    def __init__(self):
        self.clock, self.quiet, self.paid = 0, -math.inf, 0

    def turn(self, delay, since):
        """Circuits of a switch that began to turn at `since` are awaited."""
        wait = max(0, since + delay - self.clock)
        self.clock += wait
        self.paid += wait

    def all_to_all(self, first, inner, second):
        self.clock += first + inner + second
        self.quiet = self.clock

    def forward(self, blocks, delay):
        for block in blocks:
            self.clock += block["attention"] + block["tp"]
            if block["exchange"] is None:
                self.clock += block["inner"]
                continue
            if block["switch"]:
                self.turn(delay, self.clock)                     # the gate has just told the demand
            self.all_to_all(block["exchange"][0], block["inner"], block["exchange"][1])

    def backward(self, blocks, delay):
        for block in blocks:
            if block["exchange"] is None:
                self.clock += block["inner"]
            else:
                if block["switch"]:
                    self.turn(delay, self.quiet)                 # the demand has been known since the forward pass
                self.all_to_all(block["exchange"][0], block["inner"], block["exchange"][1])
            self.clock += block["attention"] + block["tp"]


def timeline(blocks, stages, batches, send, delay):
    """(end of every pass by (kind, stage, micro-batch), the reconfiguration that each stage paid).

    `blocks[kind, stage, micro-batch]`: the blocks of a pass in running order, dicts of the seconds `attention`, `inner`
    and `tp` in that pass, the two seconds `exchange` (None: a dense block), and whether circuits `switch`.
    """
    todo = [stage_order(p, stages, batches) for p in range(stages)]
    regions, end = [Region() for _ in range(stages)], {}
    while any(todo):
        ran = False
        for p, region in enumerate(regions):
            if not todo[p]:
                continue
            kind, m = todo[p][0]
            neighbour = p - 1 if kind == "F" else p + 1
            if 0 <= neighbour < stages:
                if (kind, neighbour, m) not in end:
                    continue
                region.clock = max(region.clock, end[kind, neighbour, m] + send)
            run = region.forward if kind == "F" else region.backward
            run(blocks[kind, p, m], delay)
            end[kind, p, m] = region.clock
            todo[p].pop(0)
            ran = True
        assert ran, "the schedule waits for itself"
    return end, [region.paid for region in regions]
