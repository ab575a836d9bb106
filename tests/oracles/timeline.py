"""A training iteration as one clock per pipeline stage, block by block, with a switch that turns or is waited for.

Two lanes where a stage runs two passes at once.

Seconds, or any exact numbers, in plain Python. Passes are named by kind: "F"orward, "B"ackward, gradients of
"I"nputs or of "W"eights alone.
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


LANES = {  # of a pair, one after the other: (pass, what)
    "compute": [
        ("B", "before"),
        ("F", "attention"),
        ("B", "experts"),
        ("F", "held"),
        ("F", "experts"),
        ("B", "attention"),
        ("F", "behind"),
    ],
    "network": [("B", 0), ("F", 0), ("B", 1), ("F", 1)],
}
SINGLE = {"before": 0, "behind": 1}  # what nothing else runs with, where a block has it
CHAINS = {"F": ["attention", "held", 0, "experts", 1, "behind"], "B": ["before", 0, "experts", 1, "attention"]}


class Stage:
    """The clock of one stage, when its last all-to-all was over (`quiet`), since when its circuits carry (`active`),
    and whether the switch was told while it turned (`anew`: no circuit carries meanwhile).

    - `eps_waits`: packets wait for the switch too, although they do not need it.
    - `recompute`: "none", "attention", "block": what the backward pass computes once more.
    - `parts`: of dispatch, experts and combine, which overlap.   - `stretch`: as far as the experts see, a dispatch in
      parts is one stretch that ends when it is over (else each part is there when circuits and packets brought it).
    - `decision`: from a forward gate until the circuits for it are known.   - `cores`: the part of a GPU that
      communicates while two passes run at once.
    """

    def __init__(self, delay, eps_waits=False, recompute="none", parts=1, stretch=False, decision=0, cores=0):
        self.clock, self.quiet, self.active, self.anew = 0, -math.inf, -math.inf, False
        self.delay, self.eps_waits, self.recompute, self.decision = delay, eps_waits, recompute, decision
        self.parts, self.stretch, self.cores = parts, stretch, cores

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

    def alone(self, kind, block):
        """One block of one pass by kind. Blocks of "I" and "W" also say `scores`: what of attention has no weights."""
        if kind in "FB":
            return self.run(kind, block)
        weights = block["attention"] - block["scores"]
        if kind == "W":
            begin = self.clock
            self.clock += weights + block["inner"]
            spent = {"paid": 0, "computed": weights + block["inner"], "tp": 0, "exposed": 0}
            return spent | {"begin": begin, "end": self.clock, "over": None}
        times = 3 if self.recompute == "attention" else 2
        attention = (times * block["attention"] - weights) / times
        return self.run("B", block | {"attention": attention, "inner": block["inner"] / 2})

    def together(self, forward, backward):
        """Blocks of two passes, {(pass, what, round): (start, end)}, the time lost to the switch, and the rest of it in
        which nothing is computed."""
        before = self.clock, self.quiet, self.active, self.anew
        calm = [[block and block | {"switch": (False, False)} for block in row] for row in (forward, backward)]
        self.active, self.anew = float("-inf"), False
        computed = sum(rest[0] - start for start, _, *rest in self._lanes(*calm).values() if rest)
        unhindered = self.clock
        exposed = unhindered - before[0] - computed
        self.clock, self.quiet, self.active, self.anew = before
        return self._lanes(forward, backward), self.clock - unhindered, exposed

    def _lanes(self, forward, backward):
        blocks, start = {"F": forward, "B": backward}, self.clock
        free, going, done = start, {"F": start, "B": start}, {}
        rounds = max(len(forward), len(backward))
        work = [(lane, at) for lane, row in LANES.items() for r in range(rounds) for at in [(*one, r) for one in row]]
        waiting = {lane: [at for of, at in work if of == lane] for lane in LANES}
        left = {p: [(what, r) for r in range(rounds) for what in CHAINS[p]] for p in CHAINS}
        while any(waiting.values()):
            for lane, row in waiting.items():
                if not row or left[row[0][0]][0] != row[0][1:]:
                    continue
                p, what, r = row.pop(0)
                left[p].pop(0)
                block = blocks[p][r] if r < len(blocks[p]) else None
                if block is None or (lane == "network" and block["exchange"] is None):
                    continue
                if what in SINGLE and not block["beside"][SINGLE[what]]:
                    continue
                if lane == "network":
                    done[p, what, r] = self._send(p, what, block, going[p], done.get((p, "attention", r)))
                    going[p] = self.clock
                elif what == "held":  # the last rank computes longer, and the others wait for its dispatch
                    if block["exchange"] is not None and block["held"]:
                        free = max(free, going[p]) + block["held"]
                else:
                    begin = max(free, going[p])
                    inputs, rest = self._computes(p, what, block)
                    going[p], free = begin + inputs, begin + inputs + rest
                    done[p, what, r] = begin, going[p], free
        self.clock = max(free, *going.values())
        return done

    def _computes(self, p, what, block):
        slow = 1 / (1 - self.cores)
        if what in SINGLE:
            return block["beside"][SINGLE[what]], 0
        if what == "experts":
            return (slow * block["inner"], 0) if p == "F" else (slow * block["inner"],) * 2
        if p == "F":
            return block["beside"][0] + slow * block["attention"] + block["tp"], 0
        times = 3 if self.recompute == "attention" else 2
        weights = block["attention"] - block["scores"]
        inputs = slow * (times * block["attention"] - weights) + block["tp"] + block["beside"][1]
        return inputs, slow * weights

    def _send(self, p, which, block, ready, attention):
        known = float("-inf") if p == "B" or attention is None else attention[1] + self.decision
        if block["switch"][which]:
            ahead = p == "B" or (which == 0 and block["ahead"])
            self.tell(self.quiet if ahead else max(self.quiet, known), block["delay"][which])
        self.clock, self.record = max(self.quiet, ready), {"paid": 0}
        begin = self.clock
        self.all_to_all(*block["exchange"][which], block["waiting"][which])
        return begin, self.clock


def walk(units, place, blocks, send, stages):
    """{(stage, position): records} and the end of every pass.

    - `units[p]`: what a stage runs, tuples of one pass or two (kind, micro-batch, chunk).   - `place(p, chunk)`.
    - `blocks[p, position]`: as `Stage.alone` takes them.   - `send(a, b, around)`: seconds between stages.
    """
    positions, flat = [], {}
    for p, row in enumerate(units):
        at, positions_here = 0, []
        for unit in row:
            positions_here.append(range(at, at + len(unit)))
            for q, (kind, m, chunk) in zip(positions_here[-1], unit, strict=True):
                if kind != "W":
                    flat.setdefault(("F" if kind == "F" else "B", place(p, chunk), m), []).append((p, q, chunk))
            at += len(unit)
        positions.append(positions_here)
    end, records, todo = {}, {}, [list(zip(row, at, strict=True)) for row, at in zip(units, positions, strict=True)]
    while any(todo):
        ran = False
        for p, stage in enumerate(stages):
            if not todo[p]:
                continue
            unit, at = todo[p][0]
            ready = []
            for kind, m, chunk in unit:
                if kind != "W":
                    step = -1 if kind == "F" else 1
                    before = flat.get(("F" if kind == "F" else "B", place(p, chunk) + step, m), [])
                    ready += [(other, q, its != chunk) for other, q, its in before]
            if any((other, q) not in end for other, q, _ in ready):
                continue
            arrive = [end[other, q] + send(other, p, around) for other, q, around in ready]
            stage.clock = max([stage.clock, *arrive])
            if len(unit) == 1:
                records[p, at[0]] = [stage.alone(unit[0][0], block) for block in blocks[p, at[0]] if block]
            else:
                records[p, at[0]] = stage.together(blocks[p, at[0]], blocks[p, at[1]])
            end |= {(p, q): stage.clock for q in at}
            todo[p].pop(0)
            ran = True
        assert ran, "the schedule waits for itself"
    return records, end


def timeline(blocks, schedule, stages, batches, chunks, send, clocks):
    """Records of every block, and the end of every pass, by (kind, stage, micro-batch, chunk): of 1F1B, interleaved and
    GPipe.

    - `blocks[kind, stage, micro-batch, chunk]`: the blocks of a pass in running order, as in `Stage.run`.
    - `send[p]`: seconds from stage p to p + 1 and back, the last between the last and the first.
    """
    rows = [stage_order(schedule, p, stages, batches, chunks) for p in range(stages)]
    names = {(p, q): (kind, p, m, c) for p, row in enumerate(rows) for q, (kind, m, c) in enumerate(row)}
    units = [[(step,) for step in row] for row in rows]
    records, end = walk(
        units,
        lambda p, chunk: chunk * stages + p,
        {at: blocks[name] for at, name in names.items()},
        lambda a, b, around: send[stages - 1 if around else min(a, b)],
        clocks,
    )
    return {names[at]: row for at, row in records.items()}, {names[at]: when for at, when in end.items()}
