"""Any schedule of a pipeline in plain Python: one clock per stage, and two lanes where a stage runs two passes at once.

Passes are named by kind: "F"orward, "B"ackward, gradients of "I"nputs or of "W"eights alone.
"""

from tests.oracles.timeline import Region

LANES = {  # of a pair, one after the other: (pass, what)
    "compute": [
        ("B", "before"),
        ("F", "attention"),
        ("B", "experts"),
        ("F", "experts"),
        ("B", "attention"),
        ("F", "behind"),
    ],
    "network": [("B", 0), ("F", 0), ("B", 1), ("F", 1)],
}
SINGLE = {"before": 0, "behind": 1}  # what nothing else runs with, where a block has it
CHAINS = {"F": ["attention", 0, "experts", 1, "behind"], "B": ["before", 0, "experts", 1, "attention"]}


class Stage(Region):
    """A `Region` of which blocks also say `scores`: of attention, what has no weights. `cores`: that communicate while
    two passes run."""

    def __init__(self, *rules, cores=0, **more):
        super().__init__(*rules, **more)
        self.cores = cores

    def alone(self, kind, block):
        """One block of one pass."""
        weights = block["attention"] - block["scores"]
        if kind == "W":
            begin = self.clock
            self.clock += weights + block["inner"]
            spent = {"paid": 0, "computed": weights + block["inner"], "tp": 0, "exposed": 0}
            return spent | {"begin": begin, "end": self.clock, "over": None}
        if kind == "I":
            times = 3 if self.recompute == "attention" else 2
            attention = (times * block["attention"] - weights) / times
            return self.run("B", block | {"attention": attention, "inner": block["inner"] / 2})
        return self.run(kind, block)

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


def one_f_one_b(forward, backward, send):
    """(end, finish): when the iteration ends, and when each ("F" | "B", stage, micro-batch) ends.

    `forward[p][m]` and `backward[p][m]` are seconds of stage p for micro-batch m; `send` seconds pass between
    neighbouring stages. Stage p runs min(stages - p - 1, micro-batches) forwards, then alternates one forward and one
    backward, then runs the backwards that remain; each operation waits for its input and for its stage.
    """
    stages, batches = len(forward), len(forward[0])
    todo = []
    for p in range(stages):
        warm = min(stages - p - 1, batches)
        order = [("F", m) for m in range(warm)]
        for m in range(batches - warm):
            order += [("F", warm + m), ("B", m)]
        todo.append(order + [("B", m) for m in range(batches - warm, batches)])
    finish, clock = {}, [0] * stages
    while any(todo):
        stuck = True
        for p in range(stages):
            if not todo[p]:
                continue
            kind, m = todo[p][0]
            needs = []
            if kind == "F" and p > 0:
                needs = [(("F", p - 1, m), send)]
            if kind == "B":
                needs = [(("F", p, m), 0)] + [(("B", p + 1, m), send)] * (p + 1 < stages)
            if all(event in finish for event, _ in needs):
                begin = max([clock[p]] + [finish[event] + wait for event, wait in needs])
                clock[p] = begin + (forward if kind == "F" else backward)[p][m]
                finish[kind, p, m] = clock[p]
                todo[p].pop(0)
                stuck = False
        assert not stuck, "the schedule waits for itself"
    return max(clock), finish
