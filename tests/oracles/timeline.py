"""A training iteration as one clock per pipeline stage, block by block, with a switch that turns or is waited for.

Seconds, or any exact numbers, in plain Python.
"""

import math


def stage_order(schedule, stage, stages, batches, chunks=1):
    """(kind, micro-batch, chunk) of one stage, told by what is in flight.

    1F1B: stage p holds at most stages - p micro-batches. Interleaved (Megatron): micro-batches come in groups of as
    many as there are stages, a group runs chunk after chunk (backward: last chunk first); the stage holds at most
    2 (stages - p - 1) + (chunks - 1) stages + 1 of their forward passes. Either runs the next forward pass whenever
    that allows one, else the next backward pass. GPipe: everything forward, then backward, youngest first.
    """
    forward, backward = [], []
    for group in range(0, batches, stages if schedule == "interleaved" else batches):
        members = range(group, min(batches, group + stages) if schedule == "interleaved" else batches)
        forward += [("F", m, c) for c in range(chunks) for m in members]
        backward += [("B", m, c) for c in reversed(range(chunks)) for m in members]
    if schedule == "gpipe":
        return forward + backward[::-1]
    most = stages - stage if schedule == "1f1b" else 2 * (stages - stage - 1) + (chunks - 1) * stages + 1
    order, held = [], 0
    while forward or backward:
        if forward and held < most:
            order.append(forward.pop(0))
            held += 1
        else:
            order.append(backward.pop(0))
            held -= 1
    return order


class Region:
    """The clock of one stage, when its last all-to-all was over (`quiet`), since when its circuits carry (`active`),
    and whether the switch was told while it turned (`anew`: no circuit carries meanwhile).

    - `eps_waits`: packets wait for the switch too, although they do not need it.
    - `recompute`: "none", "attention", "block": what the backward pass computes once more.
    - `parts`: of dispatch, experts and combine, which overlap.   - `stretch`: as far as the experts see, a dispatch in
      parts is one stretch that ends when it is over (else each part is there when circuits and packets brought it).
    - `decision`: from a forward gate until the circuits for it are known.
    """

    def __init__(self, delay, eps_waits=False, recompute="none", parts=1, stretch=False, decision=0):
        self.clock, self.quiet, self.active, self.anew = 0, -math.inf, -math.inf, False
        self.delay, self.eps_waits, self.recompute, self.decision = delay, eps_waits, recompute, decision
        self.parts, self.stretch = parts, stretch

    def run(self, kind, block):
        """One block of one pass: {attention, inner, tp} forward seconds, `exchange`: its two all-to-alls, each (seconds
        on circuits, on packet switches and NVSwitches), None for a dense block; `switch`: which of the two want other
        circuits than there are; `ahead`: the first one's are known beforehand; maybe `delay`: of the switch for each;
        `waiting`: seconds of each on circuits that are set up anew, while the others carry; `beside`: what else it
        takes, before all of it and behind its all-to-alls."""
        block = {
            "beside": (0, 0),
            "delay": [self.delay] * 2,
            "waiting": [one[0] for one in block["exchange"] or ()],
        } | block
        self.record = {"begin": self.clock, "paid": 0, "computed": 0, "tp": 0, "over": [], "inner": None}
        attention, inner, tp = block["attention"], block["inner"], block["tp"]
        again = kind == "B" and self.recompute == "block"
        self.clock += block["beside"][0]
        if kind == "F" or again:
            self.compute(attention)
            self.all_reduce(tp)
        if block["exchange"] is None:
            self.dense(inner, 1 if kind == "F" else 3 if again else 2)
        else:
            self.known = -math.inf if kind == "B" else self.clock + self.decision
            if block["switch"][0]:
                self.tell(self.quiet if block["ahead"] else self.clock + self.decision, block["delay"][0])
            if again:  # forward all-to-alls: the backward ones reversed
                self.all_to_all(*block["exchange"][1], block["waiting"][1])
                self.compute(inner)
                self.all_to_all(*block["exchange"][0], block["waiting"][0])
            self.moe(block, inner if kind == "F" else 2 * inner)
        if kind == "B":
            self.compute((3 if self.recompute == "attention" else 2) * attention)
            self.all_reduce(tp)
        self.clock += block["beside"][1]
        self.record["end"] = self.clock
        spent = (self.record[part] for part in ("paid", "computed", "tp"))
        self.record["exposed"] = self.clock - self.record["begin"] - sum(spent) - sum(block["beside"])
        return self.record

    def compute(self, seconds):
        self.clock += seconds
        self.record["computed"] += seconds

    def all_reduce(self, seconds):
        self.clock += seconds
        self.record["tp"] += seconds

    def dense(self, inner, times):
        self.compute(times * inner)
        self.record["over"] = None

    def tell(self, since, delay):
        self.anew = self.active > since
        self.active = since + delay

    def all_to_all(self, circuits, packets, waiting):
        alone = self.clock + max(circuits, packets)
        active = max(self.clock, self.active)
        over = max((active if self.eps_waits else self.clock) + packets, self.clock + circuits)
        waiting = circuits if self.anew else waiting
        if waiting:
            over = max(over, active + waiting)
        self.record["paid"] += over - alone
        self.clock = self.quiet = over

    def moe(self, block, inner):
        """Dispatch, experts, combine: every part of each goes the same way, and waits for what it needs: a part of the
        experts for its dispatch and the experts before it, of the combine for its experts and the whole dispatch."""
        first, second = block["exchange"]
        n, start = self.parts, self.clock
        there = [self.arrived(start, *first, k / n) for k in range(1, n + 1)]
        self.all_to_all(*first, block["waiting"][0])
        over = self.clock
        if self.stretch:
            there = [over - max(first) * (n - k) / n for k in range(1, n + 1)]
        computed, experts = [], 0
        for part in there:
            experts = max(experts, part) + inner / n
            computed.append(experts)
        if block["switch"][1]:
            self.tell(max(self.quiet, self.known), block["delay"][1])
        ends, waiting = {}, second[0] if self.anew else block["waiting"][1]
        for inactive in (True, False):
            active = self.active if inactive else -math.inf
            circuits = packets = stay = over
            for part in computed:
                ready = max(over, part)
                packets = max(packets, ready, active if self.eps_waits else ready) + second[1] / n
                stay = max(stay, ready) + second[0] / n
                circuits = max(circuits, ready, active) + waiting / n if waiting else max(circuits, ready)
            ends[inactive] = max(circuits, packets, stay)
        self.record["paid"] += ends[True] - ends[False]
        self.record["computed"] += inner
        self.record["over"] = (over, ends[True])
        self.record["inner"] = (there[0], computed[-1])
        self.clock = self.quiet = ends[True]

    def arrived(self, start, circuits, packets, part):
        """When that part of an all-to-all is there."""
        active = max(start, self.active)
        there = (active if self.eps_waits else start) + part * packets
        return max(there, active + part * circuits) if circuits else there


def timeline(blocks, schedule, stages, batches, chunks, send, regions):
    """[{begin, end, over (None: dense), inner, paid, computed, tp, exposed}] of every block by (kind, stage,
    micro-batch, chunk).

    - `blocks[kind, stage, micro-batch, chunk]`: the blocks of a pass in running order, as in `Region.run`.
    - `send[p]`: seconds from stage p to p + 1 and back, the last between the last and the first.
    """
    todo = [stage_order(schedule, p, stages, batches, chunks) for p in range(stages)]
    end, records = {}, {}
    while any(todo):
        ran = False
        for p, region in enumerate(regions):
            if not todo[p]:
                continue
            kind, m, chunk = todo[p][0]
            before = (chunk, p - 1) if kind == "F" else (chunk, p + 1)  # on the same round, or the next one
            if before[1] in (-1, stages):
                before = (chunk - 1, stages - 1) if kind == "F" else (chunk + 1, 0)
            if 0 <= before[0] < chunks:
                need = (kind, before[1], m, before[0])
                if need not in end:
                    continue
                boundary = before[1] if kind == "F" else p
                region.clock = max(region.clock, end[need] + send[boundary])
            name = (kind, p, m, chunk)
            records[name] = [region.run(kind, block) for block in blocks[name]]
            end[name] = region.clock
            todo[p].pop(0)
            ran = True
        assert ran, "the schedule waits for itself"
    return records, end
