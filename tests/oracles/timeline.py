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
    """The clock of one stage, when its last all-to-all ended, and how much later than without a switch that turns its
    all-to-alls ended (`paid`). `eps_waits`: packets wait for the switch too, although they do not need it."""

    def __init__(self, eps_waits):
        self.clock, self.quiet, self.paid, self.eps_waits = 0, -math.inf, 0, eps_waits

    def moe(self, block, delay, since):
        """Two all-to-alls, each of a part on circuits and one on packets, side by side, with the experts in between.
        Where circuits `switch`, they carry nothing until `delay` after `since`; the first is over when both parts are.
        """
        (circuits, packets), second = block["exchange"]
        alone = self.clock + max(circuits, packets)
        ready = max(self.clock, since + delay) if block["switch"] else self.clock
        begins = ready if self.eps_waits else self.clock
        over = max(ready + circuits, begins + packets) if circuits or self.eps_waits else begins + packets
        self.paid += over - alone
        self.quiet = self.clock = over + block["inner"] + max(second)

    def forward(self, blocks, delay):
        for block in blocks:
            self.clock += block["attention"] + block["tp"]
            if block["exchange"] is None:
                self.clock += block["inner"]
            else:
                self.moe(block, delay, self.clock)               # the gate has just told the demand

    def backward(self, blocks, delay):
        for block in blocks:
            if block["exchange"] is None:
                self.clock += block["inner"]
            else:
                self.moe(block, delay, self.quiet)               # the demand has been known since the forward pass
            self.clock += block["attention"] + block["tp"]


def timeline(blocks, stages, batches, send, delay, eps_waits=False):
    """(end of every pass by (kind, stage, micro-batch), the reconfiguration that each stage paid).

    `blocks[kind, stage, micro-batch]`: the blocks of a pass in running order, dicts of the seconds `attention`, `inner`
    and `tp` in that pass, the two all-to-alls `exchange` (None: a dense block), each (seconds on circuits, seconds on
    packet switches and NVSwitches), and whether circuits `switch`.
    """
    todo = [stage_order(p, stages, batches) for p in range(stages)]
    regions, end = [Region(eps_waits) for _ in range(stages)], {}
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
