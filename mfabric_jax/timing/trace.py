"""The timeline of an iteration as segments, for pictures and trace files.

Tracks of a stage: compute, EPS (packet switches), OCS (carries or turns), NVSwitch, waiting. A segment is a dict with
`stage`, `track`, `kind`, `label`, `start_s`, `end_s` (seconds from the start of the iteration), and `micro_batch`,
`place` (part of the model), `block`, `direction` (forward, backward, or weights: weight gradients alone), which may be
None.

Kinds: attention, experts, dense, head, optimizer, tp, cp, counts, all-to-all, dp, placement, reconfigure, waiting.
"counts" comes before a dispatch: ranks tell each other who sends what, and the first to come wait for the last.
"""

import bisect
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from mfabric_jax.timing import blocks as ops
from mfabric_jax.timing.blocks import Blocks, Compute, Rules, Slots, rows_of
from mfabric_jax.timing.iteration import Beside
from mfabric_jax.timing.passes import order_of
from mfabric_jax.workload import Workload
from mfabric_jax.workload.schedules import BACKWARD, FORWARD, WEIGHT

Segment = dict[str, Any]
TRACKS = ("compute", "EPS", "OCS", "NVSwitch", "waiting")
SLIVER = 1e-4  # part of the window: shorter segments are rounding
DIRECTIONS = {FORWARD: "forward", BACKWARD: "backward", WEIGHT: "weights"}
BESIDE = {  # what else a block takes: track and label
    "head": ("compute", "output head"),
    "tp": ("NVSwitch", "TP"),
    "cp": ("EPS", "keys and values"),
    "dp": ("EPS", "parameters"),
}
COUNTS = "counts"  # kind and label
LABELS = {  # of all-to-alls
    kind: tuple(op.label for _, op in ops.alone(kind, "none") if isinstance(op, ops.Send))
    for kind in ("forward", "backward")
}


def segments(
    workload: Workload,
    slots: Slots,
    blocks: Blocks,
    compute: Compute,
    rules: Rules | None = None,
    reduce_s=None,
    moved_s: float = 0.0,
    beside: Beside | None = None,
    step_s=None,
    counts_s: float = 0.0,
) -> list[Segment]:
    """Segments of one iteration by stage and start; segments of one track do not overlap.

    - `slots`, `blocks` [P Q L ..]: output and input of `run`; `compute`: () or [P].
    - `reduce_s`, `step_s` [P]: gradients and optimizer after the passes (None: left out); `moved_s`: moving experts;
      `counts_s`: the first part of a forward dispatch, and where two passes run together of what their GPU computes.

    Lengths add up to those of `slots`, except where dispatch, experts and combine overlap in parts: all-to-alls are
    then drawn whole, while `slots.exchange_s` is only the exposed time. Waiting is left out where two passes run
    together. A restarted reconfiguration ends where the next begins; one before the iteration is left out.
    """
    rules = rules or Rules()
    slots, blocks = jax.tree.map(np.float64, slots), jax.tree.map(np.asarray, blocks)
    every = jax.tree.map(lambda part: np.broadcast_to(np.float64(part), workload.pp), compute)
    iteration = _Drawn(
        slots, blocks, rows_of(blocks, every), jax.tree.map(np.asarray, dict(beside or {})), rules, counts_s
    )
    found, order = [], order_of(workload)
    in_pairs = order.in_pairs
    for stage in range(workload.pp):
        drawn = _between(workload, slots, stage)
        for who, at in _running(workload, stage):
            together = bool(in_pairs[at[:2]])
            steps = ops.steps_of(ops.kind_of(order, at[:2]), rules, together=together)
            drawn += iteration.block(who, at, steps, together=together)
        found += _apart(_held(drawn))
    return found if reduce_s is None else _reduced(found, slots, np.asarray(reduce_s), step_s, moved_s)


class _Who(NamedTuple):
    """The pass and block that a segment belongs to."""

    stage: int
    micro_batch: int
    place: int
    block: int | None
    direction: str

    def draw(self, track: str, kind: str, label: str, start: Any, length: Any) -> Segment:
        what = {"stage": self.stage, "track": track, "kind": kind, "label": label}
        return what | self._asdict() | {"start_s": float(start), "end_s": float(start) + float(length)}


class _Drawn(NamedTuple):
    slots: Slots
    blocks: Blocks
    rows: dict[str, np.ndarray]
    beside: dict[str, np.ndarray]
    rules: Rules
    counts_s: float

    def block(self, who: _Who, at: tuple[int, int, int], steps, *, together: bool) -> Iterator[Segment]:
        now = dict(zip(ops.RUNS, self.slots.runs[at], strict=True))
        slower = 1 / (1 - self.rules.comm_cores) if together else 1.0
        moe, experts = bool(self.blocks.moe[at]), "experts" if self.blocks.with_experts[at] else "dense"
        in_parts = self.rules.parts > 1 and moe and self._length(at, 0) > 0
        for run, op in steps:
            if isinstance(op, ops.Work | ops.Beside):
                if in_parts and run == "inner":
                    length = sum(seconds for *_, seconds in self._computed(op, at, experts, slower))
                    yield from self._in_parts(who, at, experts, length)
                    continue
                for track, kind, label, length in self._computed(op, at, experts, slower):
                    yield who.draw("compute" if together else track, kind, label, now[run], length)
                    now[run] += length
            elif isinstance(op, ops.Turn) and moe:
                told, active = (times[(*at, op.which)] for times in (self.slots.turn, self.slots.active))
                if self.blocks.switch[(*at, op.which)] and np.isfinite(told):
                    yield who.draw("OCS", "reconfigure", "reconfigure", told, active - told)
            elif isinstance(op, ops.Send) and moe:
                sent = self._all_to_all(who, at, op)
                yield from (one for one in sent if not together or one["kind"] != "waiting")
                if together and (length := self._counted(who, op)):
                    start, onward = self.slots.start[(*at, op.which)], self.slots.runs[at][ops.RUNS.index("inner")]
                    yield who.draw("compute", COUNTS, COUNTS, start, onward - start) | {"length_s": length}

    def _computed(self, op, at, experts: str, slower: float) -> Iterator[tuple[str, str, str, Any]]:
        if isinstance(op, ops.Beside):
            for kind, seconds in self.beside.items():
                yield BESIDE[kind][0], kind, BESIDE[kind][1], seconds[(*at, op.which)]
            return
        length = sum(self.rows[name][at] for name in op.of) * (1.0 if op.kind == "tp" else slower)
        kind, label = op.kind, op.label
        if kind == "experts":
            kind, label = experts, label.replace("experts", experts)
        yield op.track, kind, label, length

    def _length(self, at, which: int) -> Any:
        return max(self.blocks.optical_s[(*at, which)], self.blocks.electronic_s[(*at, which)])

    def _in_parts(self, who: _Who, at, experts: str, length: Any) -> Iterator[Segment]:
        parts, first = self.rules.parts, self._length(at, 0)
        now = begin = self.slots.over[(*at, 0)] - first
        for part in range(1, parts + 1):
            start = max(now, begin + first * part / parts)
            now = start + length / parts
            yield who.draw("compute", experts, f"experts {part}/{parts}", start, length / parts)

    def _all_to_all(self, who: _Who, at, op: ops.Send) -> Iterator[Segment]:
        which, waits = (*at, op.which), self.rules.eps_waits
        start = self.slots.again[which] if op.again else self.slots.start[which]
        active = max(start, self.slots.active[(*at, 0 if op.again else op.which)])
        optical_s, packet_s = self.blocks.optical_s[which], self.blocks.electronic_s[which]
        waiting_s, inactive = self.slots.waiting[which], active - start
        late = max(packet_s if waits else 0.0, waiting_s)
        paid = max(inactive + late - max(packet_s, optical_s), 0.0) if late > 0 or waits else 0.0
        yield who.draw("waiting", "waiting", "switch", active - paid, paid)
        begin = active if waits else start
        inside_s = 0.0 if self.blocks.inside_s is None else self.blocks.inside_s[which]
        yield from self._sent(who, op, "EPS", op.label, begin, self.blocks.packet_s[which])
        yield from self._sent(who, op, "NVSwitch", f"{op.label} inside servers", begin, inside_s)
        if optical_s > 0:
            some = waiting_s < optical_s  # carry while others turn
            begin, end = start if some else active, max(start + optical_s, active + waiting_s)
            yield from self._sent(who, op, "OCS", op.label, begin, end - begin if some else optical_s)

    def _counted(self, who: _Who, op: ops.Send) -> float:
        """Seconds of counts before an all-to-all: of the dispatch of a forward pass alone."""
        return self.counts_s if who.direction == "forward" and op.which == 0 and not op.again else 0.0

    def _sent(self, who: _Who, op: ops.Send, track: str, label: str, begin: Any, length: Any) -> Iterator[Segment]:
        """An all-to-all on one track, counts first."""
        counts_s = min(self._counted(who, op), float(length))
        yield who.draw(track, COUNTS, COUNTS, begin, counts_s)
        yield who.draw(track, "all-to-all", label, begin + counts_s, length - counts_s)


def _passes(workload: Workload, stage: int) -> Iterator[tuple[int, _Who]]:
    order, held = order_of(workload), workload.held_places(stage)
    for q, (kind, micro_batch, chunk) in enumerate(
        zip(order.kind[stage], order.micro_batch[stage], order.chunk[stage], strict=True)
    ):
        if chunk >= 0:
            yield q, _Who(stage, int(micro_batch), held[chunk], None, DIRECTIONS[int(kind)])


def _running(workload: Workload, stage: int) -> Iterator[tuple[_Who, tuple[int, int, int]]]:
    most = max(workload.place_blocks)
    for q, who in _passes(workload, stage):
        first, count = sum(workload.place_blocks[: who.place]), workload.place_blocks[who.place]
        for at in range(most):
            block = at if who.direction == "forward" else most - 1 - at
            if block < count:
                yield who._replace(block=first + block), (stage, q, at)


def _between(workload: Workload, slots: Any, stage: int) -> list[Segment]:
    found, now, order = [], 0.0, order_of(workload)
    for q, who in _passes(workload, stage):
        both = [q, q + 1] if order.paired is not None and order.paired[stage, q] else [q]
        begin = slots.begin[stage, both, 0].min()
        found.append(who.draw("waiting", "waiting", "pipeline", now, begin - now))
        now = max(now, slots.end[stage, both, -1].max())
    return found


def _reduced(
    found: list[Segment], slots: Any, reduce_s: np.ndarray, step_s: np.ndarray | None, moved_s: float
) -> list[Segment]:
    through = slots.end.max(axis=(1, 2))
    steps = np.zeros(len(reduce_s)) if step_s is None else np.asarray(step_s)
    total = (through + reduce_s + steps).max()
    nobody = dict.fromkeys(("micro_batch", "place", "block", "direction"))
    for stage, (start, length, step) in enumerate(zip(through, reduce_s, steps, strict=True)):
        who, over = _Who(stage, 0, 0, None, ""), start + length
        rest = [
            who.draw("EPS", "dp", "gradients", start, length),
            who.draw("compute", "optimizer", "optimizer", over, step),
            who.draw("waiting", "waiting", "pipeline", over + step, total - over - step),
            who.draw("EPS", "placement", "experts move", total, moved_s),
        ]
        found = found + [one | nobody for one in _apart(rest)]
    return sorted(found, key=lambda one: (one["stage"], one["start_s"]))


def _held(drawn: list[Segment]) -> list[Segment]:
    """Counts on the compute track, where two passes run together: from when all computation before the pass goes on is
    through. They are drawn from the start of the dispatch to where the pass goes on."""
    work = [one for one in drawn if one["track"] == "compute" and one["kind"] != COUNTS]
    work = sorted((one for one in work if one["end_s"] > one["start_s"]), key=lambda one: one["start_s"])
    starts = [one["start_s"] for one in work]
    for one in drawn:
        if one["track"] == "compute" and one["kind"] == COUNTS:
            before = bisect.bisect_left(starts, one["end_s"]) - 1
            begin = max(one["start_s"], work[before]["end_s"] if before >= 0 else 0.0)
            one |= {"start_s": begin, "end_s": min(begin + one.pop("length_s"), one["end_s"])}
    return drawn


def _apart(drawn: list[Segment]) -> list[Segment]:
    """Sorted segments of positive length, cut so that those of a track do not overlap."""
    drawn = sorted((one for one in drawn if one["end_s"] > one["start_s"]), key=lambda one: one["start_s"])
    following: dict[str, float] = {}
    for one in reversed(drawn):
        one["end_s"] = min(one["end_s"], following.get(one["track"], np.inf))
        following[one["track"]] = one["start_s"]
    return [one for one in drawn if one["end_s"] > one["start_s"]]


def one_block(workload: Workload, found: list[Segment]) -> list[Segment]:
    """One MoE block from the middle of the iteration, forward then backward, shifted to start at 0.

    Backward starts with the reconfiguration for its first all-to-all.
    """
    middle = workload.pp // 2
    some = (place for place in reversed(range(len(workload.place_blocks))) if workload.place_layers(place))
    place = middle if workload.place_layers(middle) else next(some)
    moe = workload.place_positions(place)
    block = sum(workload.place_blocks[:place]) + moe[(len(moe) - 1) // 2]
    who = {"micro_batch": workload.micro_batches // 2, "place": place}
    cut, now = [], 0.0
    for direction in LABELS:
        mine = [one for one in found if (who | {"direction": direction}).items() <= one.items()]
        own = [one for one in mine if one["block"] == block]
        low = max(min(one["start_s"] for one in own), min(one["start_s"] for one in mine if _works(one)))
        high = max(one["end_s"] for one in own if _works(one))
        stage = [one for one in found if one["stage"] == own[0]["stage"]]
        cut += _window(stage, block, direction, low, high, now - low)
        now += high - low
    return cut


def _works(one: Segment) -> bool:
    return one["kind"] not in ("reconfigure", "waiting")


def _window(stage: list[Segment], block: int, direction: str, low: float, high: float, shift: float) -> list[Segment]:
    cut = []
    for one in stage:
        start, end = max(one["start_s"], low), min(one["end_s"], high)
        if end - start > SLIVER * (high - low):
            other = 0 if one["block"] is None else one["block"] - block
            label = one["label"] + (" (next block)" if other > 0 else " (previous block)" if other < 0 else "")
            cut.append(one | {"label": label, "direction": direction, "start_s": start + shift, "end_s": end + shift})
    return cut
