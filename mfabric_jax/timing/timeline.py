"""Times of an iteration: every stage plays its passes, block by block, while its optical switch reconfigures.

Each all-to-all has a part on circuits and a part on packet switches and NVSwitches. The switch reconfigures once its
circuits are known (forward: a decision after the gate, unless chosen ahead) and the region's previous all-to-all is
over; a new request restarts it. Circuits that change carry nothing meanwhile. The time by which the all-to-all ends
later is paid; the rest of the reconfiguration is hidden. Source: arXiv 2501.03905; partial reconfiguration and the
decision time are ours.

Two passes that run together start when both inputs have arrived, share the lanes of the stage block by block, and send
when both are over. `Rules.comm_cores` of the cores communicate, so computation takes 1 / (1 - comm_cores) times as
long. Source: arXiv 2412.19437, figure 4.

Iterations of one job run side by side. Passes that do not wait for each other are played together, in waves. One driver
serves NumPy, as a loop, and JAX, as `lax.scan`.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax

from mfabric_jax.support.array_module import Array, array_module
from mfabric_jax.support.platforms import platform
from mfabric_jax.timing import blocks as ops
from mfabric_jax.timing.blocks import COMPUTED, FLAGS, OF_BOTH, SECONDS, ClockTable, Rules, Slots, slots_of
from mfabric_jax.timing.passes import Order
from mfabric_jax.workload.recompute import recomputed_of

SWITCHES = np.isin(np.arange(len(FLAGS)), [FLAGS["switch", 0], FLAGS["switch", 1]])


class StageClock(NamedTuple):
    """Times of one stage: end of each pass, of its compute lane and last all-to-all, and when its circuits carry."""

    ready: tuple
    free: Any
    quiet: Any
    active: Any
    anew: Any


def play(steps: tuple, clock: StageClock, blocks: list[tuple[Any, Any]], decision_s: Any, eps_waits: bool):
    """Return (clock, times of each pass by name) after one block of every pass; `blocks`: (seconds, flags) of each."""
    (ready, free, quiet, active, anew) = clock
    single = len(blocks) == 1
    xp = array_module(quiet, decision_s)
    ready, known = list(ready), list(clock.ready)
    times: list[dict] = [{"begin": now, "end": now} for now in ready]
    begun: list[list] = [[] for _ in ready]
    for whose, op in steps:
        (seconds, flags) = blocks[whose]
        now = ready[whose]
        record = times[whose]
        if isinstance(op, ops.Decide):
            known[whose] = now + decision_s
        elif isinstance(op, ops.Reconfigure):
            reconfigure_start = xp.where(flags[FLAGS["asks", op.which]], xp.maximum(quiet, known[whose]), quiet)
            reconfigures = flags[FLAGS["switch", op.which]]
            anew = xp.where(reconfigures, active > reconfigure_start, anew)
            active = xp.where(reconfigures, reconfigure_start + seconds[SECONDS["delay", op.which]], active)
            record["reconfigure_start", op.which] = reconfigure_start
        elif isinstance(op, ops.Send):
            here = flags[FLAGS["again" if op.again else "moe"]]
            again = ("again",) * op.again
            optical = seconds[SECONDS["optical", op.which]]
            waits = xp.where(anew, optical, seconds[SECONDS["waiting", op.which]])
            start = now if single else xp.maximum(now, quiet)
            if not single and op.which == 0 and not op.again:
                held = seconds[SECONDS["held", 0]]
                record["held"] = xp.maximum(free, now)
                free = xp.where(held > 0, record["held"] + held, free)
            over = _over(start, active, optical, seconds[SECONDS["electronic", op.which]], waits, eps_waits)
            over = xp.where(here, over, now)
            quiet, ready[whose] = xp.where(here, over, quiet), over
            record |= {("start", op.which, *again): start, ("over", op.which, *again): over}
            if not again:
                record |= {("active", op.which): active, ("waiting", op.which): waits}
                begun[whose].append((here, start))
        elif op.off:
            record["end"] = free = free + seconds[SECONDS["run", op.name, True]]
        else:
            length = seconds[SECONDS["run", op.name, False]]
            start = now
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
    return StageClock(tuple(ready), free, quiet, active, anew), times


def _over(start: Any, active: Any, optical: Any, packet: Any, waits: Any, eps_waits: bool) -> Any:
    xp = array_module(start, active, packet)
    carries = xp.maximum(start, active)
    over = xp.maximum((carries if eps_waits else start) + packet, start + optical)
    return xp.maximum(over, xp.where(waits > 0, carries + waits, start))


def names_of(rules: Rules, *, every: bool) -> list[Any]:
    """Return the names of the times that a clock records: those that the seconds need, or `every` one, for pictures."""
    both = OF_BOTH if every else ("start", "over")
    names: list[Any] = ["end", *((name, which) for name in both for which in (0, 1))]
    if every:
        names += ["begin", "held", *(("run", run) for run in ops.RUNS)]
    if recomputed_of(rules.recompute).exchanges:
        names += [(name, which, "again") for name in ("start", "over") for which in (0, 1)]
    return names


def run(
    order: Order, table: ClockTable, send_s: Array, rules: Rules, decision_s: Any = 0.0, *, every: bool = True
) -> Slots:
    """Return the times of all passes of C iterations; a pass starts when its stage is free and its input has arrived.

    - `table` [C P Q L ..]: NumPy or JAX.
    - `send_s` [C P]: seconds from stage p to p + 1 or back (last: between last and first).
    - `decision_s` () or [C]: seconds from a forward gate until circuits for its demand are known.
    - `every`: all of `Slots`, for pictures.

    `order.paired` must be static; on accelerators, where waves are wide, all of `order` must be. The waiting of a pair
    is in the first slot of its forward pass: `paid_s` for the switch, `exchange_s` for other communication.
    """
    times, paid = _Players(order, table, send_s, decision_s, rules, every).play_all()
    slots = slots_of(times, table, rules)
    return slots if order.paired is None else _with_paid(slots, table, order, paid)


# --------------------------------------------------------------------------------------------------------------- waves
def units_in_order(order: Order) -> np.ndarray:
    """Return the units [2 U] by number in the merged order: the first pass, and a pair's second or the first again."""
    paired = np.zeros(len(order.stage), bool) if order.paired is None else order.paired[order.stage, order.position]
    first = np.flatnonzero(~np.roll(paired, 1))
    return np.stack([first, first + paired[first]])


def waves_of(order: Order, *, one_by_one: bool = False) -> list[np.ndarray]:
    """Return all units in waves [2 w]: at most one unit per stage, none waits for another, pairs apart from others."""
    units = units_in_order(order)
    depth = np.arange(len(units[0])) if one_by_one else order.depth[units[0]]
    wave = 2 * depth + (units[0] != units[1])
    in_turn = np.argsort(wave, kind="stable")
    return np.split(units[:, in_turn], np.flatnonzero(np.diff(wave[in_turn])) + 1, axis=1)


class _Passes(NamedTuple):
    """Passes of a wave [w].

    - `stage`; `end_row`: row of their ends; `need`: row of the end that they wait for (-1: none).
    - `sent_s` [w C]: seconds to send from there; `seconds`, `flags` [L column w C]: of their blocks.
    """

    stage: Any
    end_row: Any
    need: Any
    sent_s: Any
    seconds: Any
    flags: Any


class _Players:
    """Play the passes of all stages; one more row, after the rows of stages and passes, takes the padding."""

    def __init__(self, order: Order, table: Any, send_s: Any, decision_s: Any, rules: Rules, every: bool):
        self.xp = array_module(order, table, send_s, decision_s)
        self.order, self.rules = order, rules
        self.decision_s = decision_s[None] if np.ndim(decision_s) else decision_s
        self.seconds, self.flags, self.send_s = (
            self.xp.moveaxis(self.xp.asarray(x), 0, -1) for x in (table.seconds, table.flags, send_s)
        )
        self.names, self.every = names_of(rules, every=every), every
        self.in_pairs = order.paired is not None
        self.steps = ops.clock_alone(rules.recompute), ops.clock_pair(rules.recompute, rules.delayed)

    def play_all(self) -> tuple[dict, Any]:
        """Return times by name [C P Q L] and, for pairs [C P Q 2], seconds paid for the switch and all others."""
        xp = self.xp
        dtype = self.seconds.dtype
        many = self.seconds.shape[-1]
        stages, passes = self.order.kind.shape
        empty = xp.zeros((stages + 1, many), dtype)
        never = xp.full((stages + 1, many), -np.inf, dtype)
        clocks = empty, never, xp.array(never), xp.zeros((stages + 1, many), bool)
        start = xp.zeros((stages * passes + 1, many), dtype), clocks
        if xp is np:
            waves = waves_of(self.order)
            _, noted = _loop(self._step, start, map(self._rows, waves))
            noted = jax.tree.map(lambda *each: np.concatenate(each), *noted)
            first, second = np.concatenate(waves, axis=1)
        else:
            waves = waves_of(self.order, one_by_one=platform() == "cpu")
            width = max(wave.shape[1] for wave in waves)
            wide = [np.pad(wave, [(0, 0), (0, width - wave.shape[1])], constant_values=-1) for wave in waves]
            _, noted = lax.scan(self._step, start, self._rows(np.stack(wide)))
            noted = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), noted)
            first, second = np.concatenate(wide, axis=1)

        def scatter(*each: tuple[np.ndarray, Any]) -> Any:
            rows = xp.zeros((stages * passes + 1, *each[0][1].shape[1:]), dtype)
            for which, values in each:
                rows = _put(rows, self._place(which), values)
            return xp.moveaxis(rows[:-1].reshape(stages, passes, *rows.shape[1:]), -1, 0)

        ones, *twos = noted
        if not self.in_pairs:
            return {name: scatter((first, x)) for name, x in zip(self.names, ones, strict=True)}, None
        others, paid = twos
        times = zip(self.names, ones, others, strict=True)
        return {name: scatter((first, x), (second, y)) for name, x, y in times}, scatter((first, paid))

    def _place(self, which: np.ndarray) -> Any:
        order, (stages, passes) = self.order, self.order.kind.shape
        there = order.stage[which] * passes + order.position[which]
        return array_module(there).where(which >= 0, there, stages * passes)

    def _rows(self, waves: np.ndarray) -> tuple[_Passes, _Passes | None, Any]:
        """Return the passes of one wave [2 w], or of all waves, padded to the widest [W 2 w]; -1: padding."""
        first, second = np.moveaxis(waves, -2, 0)
        return self._passes(first), self._passes(second) if self.in_pairs else None, (first != second).any(-1)

    def _passes(self, which: np.ndarray) -> _Passes:
        order, xp = self.order, self.xp
        index = (order.stage[which], order.position[which])
        there = which >= 0
        crossing = xp.where(there, order.crossing[which], -1)
        sent_s = xp.where((crossing < 0)[..., None], 0, self.send_s[crossing])
        seconds, flags = (xp.moveaxis(x[index], -4, -2) for x in (self.seconds, self.flags))
        stage = xp.where(there, index[0], len(order.kind))
        need = xp.where(there, order.needs[which], -1)
        return _Passes(stage, self._place(which), need, sent_s, seconds, flags)

    def _step(self, state: tuple, wave: tuple[_Passes, _Passes | None, Any]) -> tuple[tuple, tuple]:
        (end, clocks), (first, second, together) = state, wave
        now, *network = (_take_rows(x, first.stage) for x in clocks)
        clock = (self._start_time(now, end, first), *network)
        if second is None:
            clock, noted = self._alone(clock, first)
        else:
            clock = (self._start_time(clock[0], end, second), *network)
            branches: tuple[Callable, Callable] = (
                (lambda x: self._pair(x, first, second)),
                (lambda x: self._nobody_beside(x, first)),
            )
            clock, noted = (
                branches[0 if together else 1](clock) if self.xp is np else lax.cond(together, *branches, clock)
            )
            end = _put(end, second.end_row, clock[0])
        clocks = tuple(_put(x, first.stage, own) for x, own in zip(clocks, clock, strict=True))
        return (_put(end, first.end_row, clock[0]), clocks), noted

    def _start_time(self, now: Any, end: Any, passes: _Passes) -> Any:
        came = _take_rows(end, self.xp.maximum(passes.need, 0)) + passes.sent_s
        return self.xp.maximum(now, self.xp.where((passes.need >= 0)[:, None], came, 0))

    def _alone(self, clock: tuple, passes: _Passes) -> tuple[tuple, tuple]:
        if self.xp is np and not self.every and not passes.flags[:, FLAGS["moe"]].any():
            return self._computing(clock, passes)

        def block(clock, row):
            now, *network = clock
            after, (times,) = self._play_block(self.steps[0], StageClock((now,), now, *network), [row])
            return (after.ready[0], *after[2:]), self._note_times(times)

        clock, noted = self._scan(block, clock, (passes.seconds, passes.flags))
        return clock, (self._by_pass(noted),)

    def _computing(self, clock: tuple, passes: _Passes) -> tuple[tuple, tuple]:
        """Return what `_alone` does, in one sum, for passes without all-to-alls: none waits for the network."""
        now, *network = clock
        steps = [op for _, op in self.steps[0] if isinstance(op, ops.ComputeRun | ops.Send)]
        columns = [SECONDS["run", op.name, False] for op in steps if isinstance(op, ops.ComputeRun)]
        length = passes.seconds[:, columns]  # [L run w C]
        over = np.cumsum(np.concatenate([now[None], length.reshape(-1, *now.shape)]), axis=0)
        starts, done = over[:-1].reshape(length.shape), 0
        times = {"end": over[1:].reshape(length.shape)[:, -1]}
        for op in steps:
            if isinstance(op, ops.ComputeRun):
                done += 1
            else:
                again = ("again",) * op.again
                times |= {(name, op.which, *again): starts[:, done] for name in ("start", "over")}
        return (over[-1], *network), (self._by_pass(tuple(times[name] for name in self.names)),)

    def _nobody_beside(self, clock: tuple, passes: _Passes) -> tuple[tuple, tuple]:
        clock, (noted,) = self._alone(clock, passes)
        return clock, (noted, noted, self.xp.zeros((*passes.stage.shape, 2, clock[0].shape[-1]), clock[0].dtype))

    def _pair(self, clock: tuple, first: _Passes, second: _Passes) -> tuple[tuple, tuple]:
        """Play the passes and, beside them, the same passes as if no switch reconfigured."""
        xp, width = self.xp, len(first.stage)
        begin, quiet, active, anew = (xp.concatenate([x, x]) for x in clock)
        switches = (np.arange(2 * width) < width)[:, None]
        start = StageClock((begin, begin), begin, quiet, xp.where(switches, active, -np.inf), anew & switches)
        calm = ~(SWITCHES[:, None, None] & ~switches[None])[None]
        rows = tuple(
            (xp.concatenate([x.seconds] * 2, -2), xp.concatenate([x.flags] * 2, -2) & calm) for x in (first, second)
        )

        def blocks(clock, rows):
            clock, times = self._play_block(self.steps[1], clock, list(rows))
            return clock, tuple(self._note_times(each) for each in times)

        after, noted = self._scan(blocks, start, rows)
        over = xp.maximum(after.free, xp.maximum(*after.ready))
        clock = tuple(x[:width] for x in (over, *after[2:]))
        paid = xp.stack([over[:width] - over[width:], over[width:] - begin[width:]], 1)
        ones, twos = (tuple(x[:width] for x in self._by_pass(each)) for each in noted)
        return clock, (ones, twos, paid)

    def _play_block(self, steps: tuple, clock: StageClock, rows: list) -> tuple[StageClock, list[dict]]:
        return play(steps, clock, rows, self.decision_s, self.rules.eps_waits)

    def _note_times(self, times: dict) -> tuple:
        return tuple(times.get(name, times["begin"]) for name in self.names)

    def _by_pass(self, noted: tuple) -> tuple:
        return tuple(self.xp.moveaxis(x, 0, 1) for x in noted)  # [L w C] -> [w L C]

    def _scan(self, step: Callable, state: Any, over: Any) -> tuple[Any, Any]:
        if self.xp is not np:
            return lax.scan(step, state, over)
        leaves, structure = jax.tree.flatten(over)
        state, noted = _loop(step, state, map(structure.unflatten, zip(*leaves, strict=True)))
        return state, jax.tree.map(lambda *each: np.stack(each), *noted)


def _loop(step: Callable, state: Any, over: Iterable) -> tuple[Any, list]:
    noted = []
    for row in over:
        state, result = step(state, row)
        noted.append(result)
    return state, noted


def _take_rows(array: Any, index: Any) -> Any:
    """Return rows of an array; a single row is sliced, which XLA does faster than a gather."""
    alone = not isinstance(array, np.ndarray) and len(index) == 1
    return array[index[0]][None] if alone else array[index]


def _put(array: Any, index: Any, values: Any) -> Any:
    """Set rows of an array; a NumPy array, which belongs to one clock alone, changes in place."""
    if not isinstance(array, np.ndarray):
        return array.at[index[0]].set(values[0]) if len(index) == 1 else array.at[index].set(values)
    array[index] = values
    return array


def _with_paid(slots: Slots, table: ClockTable, order: Order, paid: Any) -> Slots:
    """Add the waiting of pairs, `paid` [C P Q 2], to the first slot of their first pass."""
    xp = array_module(slots.compute_s, paid)
    work = table.seconds[..., : len(COMPUTED)].sum((-1, -2))
    assert order.paired is not None
    exposed = xp.where(order.paired[None], paid[..., 1] - work - xp.roll(work, -1, -1), 0)
    paid_s = xp.where(order.in_pairs[None, ..., None], 0, slots.paid_s)
    first = (np.arange(paid_s.shape[-1]) == 0)[None, None, None]
    more_paid, more_exposed = (xp.where(first, more[..., None], 0) for more in (paid[..., 0], exposed))
    return slots._replace(paid_s=paid_s + more_paid, exchange_s=slots.exchange_s + more_exposed)
