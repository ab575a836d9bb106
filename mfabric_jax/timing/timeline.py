"""When everything runs: every stage goes through its passes, block by block, while its optical switch turns.

Each all-to-all has a part on circuits and one on packet switches and NVSwitches. The switch turns once its circuits are
known (forward: a decision after the gate, unless chosen ahead) and the region's previous all-to-all is over; a new
request restarts it. Changing circuits carry nothing meanwhile. The delay of the all-to-all is paid, the rest of the
turn is hidden. Source: arXiv 2501.03905; turning only some circuits and the decision time are ours.

Two passes that run together start when both inputs are there, share the lanes of the stage block by block, and send
when both are over. `Rules.comm_cores` of the cores communicate, so computation takes 1 / (1 - comm_cores) times as
long. Source: arXiv 2412.19437, figure 4.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Float

from mfabric_jax.array_module import Array, array_module, put
from mfabric_jax.timing import blocks as ops
from mfabric_jax.timing.blocks import (
    FLAGS,
    OF_BOTH,
    SECONDS,
    Blocks,
    Compute,
    Rules,
    Slots,
    slots_of,
    table_of,
)
from mfabric_jax.timing.passes import Order
from mfabric_jax.workload.recompute import again_of

SWITCHES = np.isin(np.arange(len(FLAGS)), [FLAGS["switch", 0], FLAGS["switch", 1]])


class Clock(NamedTuple):
    """Times of one stage: end of each pass, of its compute lane and last all-to-all, and when its circuits carry."""

    ready: tuple
    free: Any
    quiet: Any
    active: Any
    anew: Any


def play(steps: tuple, clock: Clock, blocks: list[tuple[Any, Any]], decision_s: Any, eps_waits: bool):
    """(clock, times of each pass by name) after one block of every pass; `blocks`: (seconds, flags) of each block."""
    (ready, free, quiet, active, anew), single = clock, len(blocks) == 1
    xp = array_module(quiet, decision_s)
    ready, known = list(ready), list(clock.ready)
    times: list[dict] = [{"begin": now, "end": now} for now in ready]
    begun: list[list] = [[] for _ in ready]
    for whose, op in steps:
        (seconds, flags), now, record = blocks[whose], ready[whose], times[whose]
        if isinstance(op, ops.Decide):
            known[whose] = now + decision_s
        elif isinstance(op, ops.Turn):
            told = xp.where(flags[FLAGS["asks", op.which]], xp.maximum(quiet, known[whose]), quiet)
            turns = flags[FLAGS["switch", op.which]]
            anew = xp.where(turns, active > told, anew)
            active = xp.where(turns, told + seconds[SECONDS["delay", op.which]], active)
            record["told", op.which] = told
        elif isinstance(op, ops.Send):
            here, again = flags[FLAGS["again" if op.again else "moe"]], ("again",) * op.again
            optical = seconds[SECONDS["optical", op.which]]
            waits = xp.where(anew, optical, seconds[SECONDS["waiting", op.which]])
            start = now if single else xp.maximum(now, quiet)
            if not single and op.which == 0 and not op.again:
                held = seconds[SECONDS["held", 0]]
                free = xp.where(held > 0, xp.maximum(free, now) + held, free)
            over = _over(start, active, optical, seconds[SECONDS["electronic", op.which]], waits, eps_waits)
            over = xp.where(here, over, now)
            quiet, ready[whose] = xp.where(here, over, quiet), over
            record |= {("start", op.which, *again): start, ("over", op.which, *again): over}
            if not again:
                record |= {("active", op.which): active, ("waits", op.which): waits}
                begun[whose].append((here, start))
        elif op.off:
            record["end"] = free = free + seconds[SECONDS["run", op.name, True]]
        else:
            length, start = seconds[SECONDS["run", op.name, False]], now
            ready[whose] = now + length
            if not single:
                here = flags[FLAGS["present" if op.name == "inner" else op.name]]
                start = xp.where(here, xp.maximum(free, now), now)
                ready[whose] = start + length
                free = xp.where(here, ready[whose], free)
                begun[whose].append((here, start))
            record["run", op.name] = start
    times[0]["end"] = ready[0]
    if not single:
        for record, each in zip(times, begun, strict=True):
            for here, start in reversed(each):
                record["begin"] = xp.where(here, start, record["begin"])
        times[1]["end"] = xp.where(blocks[1][1][FLAGS["present"]], times[1]["end"], ready[1])
    return Clock(tuple(ready), free, quiet, active, anew), times


def _over(start: Any, active: Any, optical: Any, packet: Any, waits: Any, eps_waits: bool) -> Any:
    xp = array_module(start, active, packet)
    carries = xp.maximum(start, active)
    over = xp.maximum((carries if eps_waits else start) + packet, start + optical)
    return xp.maximum(over, xp.where(waits > 0, carries + waits, start))


def _named(times: dict, names: list) -> tuple:
    return tuple(times.get(name, times["begin"]) for name in names)


def names_of(rules: Rules) -> list[Any]:
    names: list[Any] = ["begin", "end", *(("run", run) for run in ops.RUNS)]
    names += [(name, which) for name in OF_BOTH for which in (0, 1)]
    if again_of(rules.recompute).exchanges:
        names += [(name, which, "again") for name in ("start", "over") for which in (0, 1)]
    return names


def run_now(order: Order, cases: Sequence[tuple[Blocks, Compute, Any, Any, Any]], rules: Rules) -> list[Slots]:
    """`run` of several cases (blocks, compute, send_s, delay_s, decision_s) side by side, in NumPy.

    Passes that do not wait for each other are played together, wave after wave.
    """
    tables = [table_of(order, blocks, compute, delay_s, rules) for blocks, compute, _, delay_s, _ in cases]
    seconds, flags = (_columns([getattr(table, name) for table in tables]) for name in ("seconds", "flags"))
    send_s, decision_s = np.stack([case[2] for case in cases], -1), np.stack([case[4] for case in cases], -1)
    waves = _Waves(order, seconds, flags, send_s, decision_s, rules)
    times, paid = waves.played()
    blocks_of = (case[0] for case in cases)
    each = enumerate(zip(blocks_of, tables, strict=True))
    return [waves.slots(times, paid, number, blocks, table) for number, (blocks, table) in each]


def _columns(each: list[np.ndarray]) -> np.ndarray:
    """[P Q L column] of every case -> [column P Q L case]."""
    return np.moveaxis(np.stack(each, -1), 3, 0)


class _Waves:
    """The passes of all stages in waves [W], each of several cases [C]; a row of blocks is [column W C]."""

    def __init__(self, order: Order, seconds, flags, send_s, decision_s, rules: Rules):
        self.order, self.seconds, self.flags, self.rules, self.decision_s = order, seconds, flags, rules, decision_s
        self.send_s, self.names, self.cases = send_s, names_of(rules), seconds.shape[-1]
        self.steps = ops.clock_alone(rules.recompute), ops.clock_pair(rules.recompute, rules.delayed)
        (stages, passes), self.blocks = order.kind.shape, seconds.shape[3]
        self.end = np.zeros((stages, passes, self.cases))
        never = np.full((stages, self.cases), -np.inf)
        self.clock = [np.zeros((stages, self.cases)), never, never.copy(), np.zeros((stages, self.cases), bool)]
        self.times = {name: np.zeros((stages, passes, self.blocks, self.cases)) for name in self.names}

    def played(self) -> tuple[dict, list]:
        paid = []
        for first, second in waves_of(self.order):
            if second is None:
                self._alone(first)
            else:
                paid.append((first, second, self._together(first, second)))
        return self.times, paid

    def _arrived(self, which: np.ndarray) -> np.ndarray:
        needs, crossing = self.order.needs[which], self.order.crossing[which]
        sent_s = np.where((crossing < 0)[:, None], 0, self.send_s[crossing])
        of_need = self.end.reshape(-1, self.cases)[np.maximum(needs, 0)]
        return np.where((needs >= 0)[:, None], of_need + sent_s, 0)

    def _at(self, which: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self.order.stage[which], self.order.position[which]

    def _row(self, at: tuple, block: int) -> tuple[np.ndarray, np.ndarray]:
        return self.seconds[:, *at, block], self.flags[:, *at, block]

    def _note(self, at: tuple, block: int, times: dict) -> None:
        for name, value in zip(self.names, _named(times, self.names), strict=True):
            self.times[name][*at, block] = value

    def _alone(self, which: np.ndarray) -> None:
        at = stage, _ = self._at(which)
        now, *network = (state[stage] for state in self.clock)
        clock = Clock((np.maximum(now, self._arrived(which)),), now, *network)
        for block in range(self.blocks):
            clock, (times,) = self._played(self.steps[0], clock._replace(free=clock.ready[0]), [self._row(at, block)])
            self._note(at, block, times)
        self._over(stage, at, (clock.ready[0], *clock[2:]))

    def _over(self, stage: np.ndarray, at: tuple, clock: tuple) -> None:
        for state, value in zip(self.clock, clock, strict=True):
            state[stage] = value
        self.end[at] = clock[0]

    def _together(self, first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Seconds paid for the switch, and from start to end without it [W C] each."""
        at, other = self._at(first), self._at(second)
        now, *network = (state[at[0]] for state in self.clock)
        now = np.maximum(now, np.maximum(self._arrived(first), self._arrived(second)))
        calm = self._through((now, *network), at, other, switches=False)
        after = self._through((now, *network), at, other, switches=True)
        self._over(at[0], at, after)
        self.end[other] = after[0]
        return after[0] - calm[0], calm[0] - now

    def _through(self, clock: tuple, at: tuple, other: tuple, *, switches: bool) -> tuple:
        now, quiet, active, anew = clock
        state = Clock((now, now), now, quiet, active if switches else np.full_like(active, -np.inf), anew & switches)
        for block in range(self.blocks):
            rows = [self._row(where, block) for where in (at, other)]
            if not switches:
                rows = [(seconds, flags & ~SWITCHES[:, None, None]) for seconds, flags in rows]
            state, times = self._played(self.steps[1], state, rows)
            if switches:
                self._note(at, block, times[0])
                self._note(other, block, times[1])
        return np.maximum(state.free, np.maximum(*state.ready)), *state[2:]

    def _played(self, steps: tuple, clock: Clock, rows: list) -> tuple[Clock, list[dict]]:
        return play(steps, clock, rows, self.decision_s, self.rules.eps_waits)

    def slots(self, times: dict, paid: list, case: int, blocks: Blocks, table: Any) -> Slots:
        """The slots of one case."""
        found = slots_of({name: time[..., case] for name, time in times.items()}, table, self.rules)
        if self.order.paired is None:
            return found
        first, second = (np.concatenate([one[at] for one in paid]) for at in (0, 1))
        late = np.concatenate([np.stack([part[:, case] for part in one[2]], -1) for one in paid])
        stage, position = self._at(first)
        assert (self.order.position[second] == position + 1).all()
        return _with_paid(found, blocks, self.order, (stage, position), late)


def waves_of(order: Order) -> list[tuple[np.ndarray, np.ndarray | None]]:
    """Indices into the merged order of passes that can be played together: (passes alone, None) or (first, second)."""
    stages, passes = order.kind.shape
    first, second, both = units_of_order(order)
    level, last = np.zeros(stages * passes, int), np.zeros(stages, int)
    depth = np.zeros(len(first), int)
    for unit, (one, two, pair) in enumerate(zip(first.tolist(), second.tolist(), both.tolist(), strict=True)):
        stage, members = order.stage[one], (one, two) if pair else (one,)
        needs = [order.needs[each] for each in members]
        here = 1 + max([last[stage], *(level[need] for need in needs if need >= 0)])
        for each in members:
            level[stage * passes + order.position[each]] = here
        depth[unit] = last[stage] = here
    found: list[tuple[np.ndarray, np.ndarray | None]] = []
    for wave in range(1, depth.max(initial=0) + 1):
        alone, pairs = ((depth == wave) & ~both), (depth == wave) & both
        if alone.any():
            found.append((first[alone], None))
        if pairs.any():
            found.append((first[pairs], second[pairs]))
    return found


def run(
    order: Order,
    blocks: Blocks,
    compute: Compute,
    send_s: Float[Array, "P"],
    delay_s: Any,
    rules: Rules,
    decision_s: Any = 0.0,
) -> Slots:
    """Times of all passes of all stages; a pass starts when its stage is free and its input has arrived.

    - `send_s` [P]: seconds from stage p to p + 1 or back (last: between last and first); `delay_s` () or [P Q L 2].
    - `decision_s`: seconds from a forward gate until circuits for its demand are known.

    `order.paired` must be static. A pair's waiting is in the first slot of its forward pass: `paid_s` for the switch,
    `exchange_s` for other communication.
    """
    (stages, passes), dtype = order.kind.shape, blocks.optical_s.dtype
    blocks, compute, delay_s = jax.tree.map(jnp.asarray, (blocks, compute, delay_s))
    table = table_of(order, blocks, compute, delay_s, rules)
    walks, names = _Walks(rules, jnp.asarray(decision_s, dtype)), names_of(rules)
    at = order.stage, order.position
    sent_s = jnp.where(jnp.asarray(order.crossing) < 0, 0, jnp.asarray(send_s, dtype)[order.crossing])
    stage, position, needs = map(jnp.asarray, (*at, order.needs))
    every = _Pass(stage, position, needs, sent_s, table.seconds[at], table.flags[at])

    def step(state, unit):
        end, clocks = state
        one, two, together = unit
        now, *network = (x[one.stage] for x in clocks)
        now = jnp.maximum(now, one.arrived(end))
        if order.paired is None:
            clock, record = walks.alone((now, *network), one)
        else:
            now = jnp.maximum(now, jnp.where(together, two.arrived(end), 0))
            ways = (lambda clock: walks.pair(clock, one, two)), (lambda clock: walks.beside_nobody(clock, one))
            clock, record = lax.cond(together, *ways, (now, *network))
            end = end.at[two.stage, two.position].set(clock[0])
        clocks = tuple(x.at[one.stage].set(own) for x, own in zip(clocks, clock, strict=True))
        return (end.at[one.stage, one.position].set(clock[0]), clocks), record

    never = jnp.full(stages, -jnp.inf, dtype)
    start = jnp.zeros((stages, passes), dtype), (jnp.zeros(stages, dtype), never, never, jnp.zeros(stages, bool))
    empty = jnp.zeros(blocks.present.shape, dtype)
    if order.paired is None:
        times = lax.scan(step, start, (every, every, jnp.zeros(len(sent_s), bool)))[1]
        return slots_of({name: empty.at[at].set(x) for name, x in zip(names, times, strict=True)}, table, rules)
    first, second, both = units_of_order(order)
    units = jax.tree.map(lambda x: x[first], every), jax.tree.map(lambda x: x[second], every), jnp.asarray(both)
    ones, twos, paid = lax.scan(step, start, units)[1]
    here, there = ((order.stage[some], order.position[some]) for some in (first, second[both]))
    placed = (empty.at[here].set(x).at[there].set(y[both]) for x, y in zip(ones, twos, strict=True))
    slots = slots_of(dict(zip(names, placed, strict=True)), table, rules)
    return _with_paid(slots, blocks, order, (here[0][both], here[1][both]), paid[both])


class _Pass(NamedTuple):
    """One pass, or all in merged order [P*Q ..], with the seconds and flags of its blocks."""

    stage: Any
    position: Any
    need: Any
    sent_s: Any
    seconds: Any
    flags: Any

    def arrived(self, end: Float[Array, "P Q"]) -> Float[Array, ""]:
        return jnp.where(self.need >= 0, end.reshape(-1)[jnp.maximum(self.need, 0)] + self.sent_s, 0)


class _Walks(NamedTuple):
    """Walks one pass, or two together, through their blocks."""

    rules: Rules
    decision_s: Any

    def alone(self, clock: tuple, one: _Pass) -> tuple[tuple, tuple]:
        steps, names = ops.clock_alone(self.rules.recompute), names_of(self.rules)

        def block(clock, row):
            now, *network = clock
            after, (times,) = self._played(steps, Clock((now,), now, *network), [row])
            return (after.ready[0], *after[2:]), _named(times, names)

        return lax.scan(block, clock, (one.seconds, one.flags))

    def pair(self, clock: tuple, one: _Pass, two: _Pass) -> tuple[tuple, tuple]:
        ways = jax.vmap(lambda switches: self._through(clock, one, two, switches))(jnp.asarray([True, False]))
        (after, (ones, twos)), calm = jax.tree.map(lambda x: x[0], ways), ways[0][0][1]
        return after, (ones, twos, jnp.stack([after[0] - calm, calm - clock[0]]))

    def beside_nobody(self, clock: tuple, one: _Pass) -> tuple[tuple, tuple]:
        after, times = self.alone(clock, one)
        return after, (times, times, jnp.zeros(2, one.seconds.dtype))

    def _through(self, clock: tuple, one: _Pass, two: _Pass, switches: Any) -> tuple[tuple, tuple]:
        now, quiet, active, anew = clock
        start = Clock((now, now), now, quiet, jnp.where(switches, active, -jnp.inf), anew & switches)
        steps, names = ops.clock_pair(self.rules.recompute, self.rules.delayed), names_of(self.rules)

        def round_(clock, rows):
            clock, times = self._played(steps, clock, list(rows))
            return clock, tuple(_named(of_pass, names) for of_pass in times)

        rows = tuple((x.seconds, jnp.where(SWITCHES, x.flags & switches, x.flags)) for x in (one, two))
        clock, times = lax.scan(round_, start, rows)
        return (jnp.maximum(clock.free, jnp.maximum(*clock.ready)), *clock[2:]), times

    def _played(self, steps: tuple, clock: Clock, rows: list) -> tuple[Clock, list[dict]]:
        return play(steps, clock, rows, self.decision_s, self.rules.eps_waits)


def units_of_order(order: Order) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Passes that run as one unit [U]: the first, the second, and whether there are two."""
    paired = np.zeros(len(order.stage), bool) if order.paired is None else order.paired[order.stage, order.position]
    first = np.flatnonzero(~np.concatenate([[False], paired[:-1]]))
    return first, first + paired[first], paired[first]


def _with_paid(slots: Slots, blocks: Blocks, order: Order, at: tuple[Any, Any], paid: Any) -> Slots:
    xp, work = array_module(slots.compute_s, paid), (slots.compute_s + slots.tp_s).sum(-1)
    if blocks.beside_s is not None:
        work = work + xp.where(blocks.present[..., None], blocks.beside_s, 0).sum((-1, -2))
    p, q = at
    exposed = paid[:, 1] - work[p, q] - work[p, q + 1]
    paid_s = xp.where(order.in_pairs[..., None], 0, slots.paid_s)
    of_switch, rest = (
        put(column, (p, q, 0), value) for column, value in ((paid_s, paid[:, 0]), (slots.exchange_s, exposed))
    )
    return slots._replace(paid_s=of_switch, exchange_s=rest)
