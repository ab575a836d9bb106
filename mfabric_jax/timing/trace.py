"""The timeline of an iteration as segments, for pictures and trace files.

Tracks of a stage: compute, EPS (packet switches), OCS (carries or reconfigures), NVSwitch, waiting. A segment is a dict
with `stage`, `track`, `kind`, `label`, `start_s` and `end_s` (seconds from the start of the iteration). It also has
`micro_batch`, `place` (part of the model), `block` and `direction` (forward, backward, or weights: weight gradients
alone), which may be None.

Kinds: attention, experts, dense, head, optimizer, tp, cp, counts, all-to-all, dp, placement, reconfigure, waiting.
"counts" precedes a dispatch: ranks tell each other how much they send, and early ranks wait for the last.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from mfabric_jax.timing import blocks as ops
from mfabric_jax.timing.blocks import Rules, in_float64, rows_of
from mfabric_jax.timing.iteration import OTHER_KINDS, Walked, rules_of
from mfabric_jax.timing.passes import order_of, places
from mfabric_jax.workload import Workload
from mfabric_jax.workload.schedules import BACKWARD, FORWARD, WEIGHT

Segment = dict[str, Any]
Place = tuple[int, int, int]  # [P Q L]
TRACKS = ("compute", "EPS", "OCS", "NVSwitch", "waiting")
SLIVER = 1e-4  # fraction of the window; shorter segments are rounding
DIRECTIONS = {FORWARD: "forward", BACKWARD: "backward", WEIGHT: "weights"}
COUNTS = "counts"  # kind and label
LABELS = {  # of all-to-alls
    kind: tuple(op.label for _, op in ops.alone(kind, "none") if isinstance(op, ops.Send))
    for kind in ("forward", "backward")
}


class Computed:
    """Parts of every block's computation, with their seconds; `walked` in float64."""

    def __init__(self, workload: Workload, walked: Walked, rules: Rules):
        every = jax.tree.map(lambda part: np.broadcast_to(part, workload.pp), walked.compute)
        self.rows = rows_of(walked.blocks, every)
        self.others = walked.others
        self.counts_s = walked.blocks.counts_s
        self.in_pairs = order_of(workload).in_pairs
        self.slower = 1 / (1 - rules.comm_cores)

    def parts(self, op: ops.BlockWork | ops.OtherSeconds, slot: Place) -> Iterator[tuple[str, str, str, float]]:
        """Yield (track, kind, label, seconds) of each part of an operation."""
        if isinstance(op, ops.OtherSeconds):
            for kind, seconds in self.others.items():
                _, track, label = OTHER_KINDS[kind]
                yield track, kind, label, float(seconds[(*slot, op.which)])
            return
        slower = self.slower if self.in_pairs[slot[:2]] and op.kind != "tp" else 1.0
        yield op.track, op.kind, op.label, float(sum(self.rows[name][slot] for name in op.bases) * slower)

    def counts_seconds(self, op: ops.Send, slot: Place) -> float:
        """Return the seconds of counts before an all-to-all."""
        return 0.0 if self.counts_s is None or op.which or op.again else float(self.counts_s[slot])


def segments(workload: Workload, walked: Walked, rules: Rules | None = None) -> list[Segment]:
    """Return the segments of one iteration by stage and start; segments of one track do not overlap.

    Lengths add up to the seconds of `walked.slots`, except where dispatch, experts and combine overlap in parts: there
    all-to-alls are drawn whole, while `exchange_s` is only the exposed time. Waiting is left out where two passes run
    together. A restarted reconfiguration ends where the next begins; one before the iteration is left out.
    """
    rules, walked = rules_of(workload, rules), in_float64(walked)
    drawn = _Drawn(walked, Computed(workload, walked, rules), rules)
    order = order_of(workload)
    numbers = places(workload).block
    result = []
    for stage in range(workload.pp):
        every = _between(workload, walked.slots, stage)
        for q, who in _passes(workload, stage):
            together = bool(order.in_pairs[stage, q])
            kind = ops.kind_of(order, (stage, q))
            for index in np.flatnonzero(walked.blocks.present[stage, q]):
                block = int(numbers[stage, q, index])
                steps = ops.steps_of(kind, rules, together=together)
                every += drawn.block(who._replace(block=block), (stage, q, int(index)), steps, together=together)
        result += _apart(every)
    return _with_ending(result, walked)


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


class _Drawn:
    def __init__(self, walked: Walked, computed: Computed, rules: Rules):
        self.slots = walked.slots
        self.blocks = walked.blocks
        self.computed = computed
        self.rules = rules

    def block(self, who: _Who, slot: Place, steps, *, together: bool) -> Iterator[Segment]:
        now = dict(zip(ops.RUNS, self.slots.runs[slot], strict=True))
        moe = bool(self.blocks.moe[slot])
        experts = "experts" if self.blocks.with_experts[slot] else "dense"
        first_s = max(self.blocks.optical_s[(*slot, 0)], self.blocks.electronic_s[(*slot, 0)])
        for run, op in steps:
            if isinstance(op, ops.BlockWork | ops.OtherSeconds):
                for track, kind, label, length in self.computed.parts(op, slot):
                    if kind == "experts":
                        kind = experts
                        label = label.replace("experts", experts)
                    if run == "inner" and moe and first_s > 0 and self.rules.parts > 1:
                        yield from self._in_parts(who, kind, length, self.slots.over[(*slot, 0)] - first_s, first_s)
                    else:
                        yield who.draw("compute" if together else track, kind, label, now[run], length)
                    now[run] += length
            elif isinstance(op, ops.Reconfigure) and moe:
                begin, active = (
                    times[(*slot, op.which)] for times in (self.slots.reconfigure_start, self.slots.active)
                )
                if self.blocks.switch[(*slot, op.which)] and np.isfinite(begin):
                    yield who.draw("OCS", "reconfigure", "reconfigure", begin, active - begin)
            elif isinstance(op, ops.Send) and moe:
                sent = self._all_to_all(who, slot, op)
                yield from (segment for segment in sent if not together or segment["kind"] != "waiting")
                if together:
                    yield who.draw(
                        "compute", COUNTS, COUNTS, self.slots.held[slot], self.computed.counts_seconds(op, slot)
                    )

    def _in_parts(self, who: _Who, kind: str, length: Any, begin: Any, first_s: Any) -> Iterator[Segment]:
        parts, now = self.rules.parts, begin
        for part in range(1, parts + 1):
            start = max(now, begin + first_s * part / parts)
            now = start + length / parts
            yield who.draw("compute", kind, f"{kind} {part}/{parts}", start, length / parts)

    def _all_to_all(self, who: _Who, slot: Place, op: ops.Send) -> Iterator[Segment]:
        which, waits = (*slot, op.which), self.rules.eps_waits
        start = self.slots.again[which] if op.again else self.slots.start[which]
        active = max(start, self.slots.active[(*slot, 0 if op.again else op.which)])
        optical_s = self.blocks.optical_s[which]
        packet_s = self.blocks.electronic_s[which]
        waiting_s = self.slots.waiting[which]
        inactive = active - start
        late = max(packet_s if waits else 0.0, waiting_s)
        paid = max(inactive + late - max(packet_s, optical_s), 0.0) if late > 0 or waits else 0.0
        yield who.draw("waiting", "waiting", "switch", active - paid, paid)
        begin = active if waits else start
        inside_s = 0.0 if self.blocks.inside_s is None else self.blocks.inside_s[which]
        sent = [("EPS", op.label, begin, self.blocks.packet_s[which])]
        sent += [("NVSwitch", f"{op.label} inside servers", begin, inside_s)]
        if 0 < optical_s <= waiting_s:
            sent += [("OCS", op.label, active, optical_s)]
        elif optical_s > 0:  # some carry while others reconfigure
            sent += [("OCS", op.label, start, max(optical_s, active + waiting_s - start))]
        for track, label, begin, length in sent:
            counts_s = min(self.computed.counts_seconds(op, slot), length)
            yield who.draw(track, COUNTS, COUNTS, begin, counts_s)
            yield who.draw(track, "all-to-all", label, begin + counts_s, length - counts_s)


def _passes(workload: Workload, stage: int) -> Iterator[tuple[int, _Who]]:
    order, held = order_of(workload), workload.stage_places(stage)
    for q in np.flatnonzero(order.chunk[stage] >= 0):
        kind, micro_batch, chunk = (int(each[stage, q]) for each in (order.kind, order.micro_batch, order.chunk))
        yield int(q), _Who(stage, micro_batch, held[chunk], None, DIRECTIONS[kind])


def _between(workload: Workload, slots: Any, stage: int) -> list[Segment]:
    waits, now, order = [], 0.0, order_of(workload)
    for q, who in _passes(workload, stage):
        both = [q, q + 1] if order.paired is not None and order.paired[stage, q] else [q]
        begin = slots.begin[stage, both, 0].min()
        waits.append(who.draw("waiting", "waiting", "pipeline", now, begin - now))
        now = max(now, slots.end[stage, both, -1].max())
    return waits


def _with_ending(drawn: list[Segment], walked: Walked) -> list[Segment]:
    """Add the segments that follow the passes."""
    through = walked.slots.end.max(axis=(1, 2))
    total = walked.ends.max()
    nobody = dict.fromkeys(("micro_batch", "place", "block", "direction"))
    for stage, (start, length, step) in enumerate(zip(through, walked.reduce_s, walked.step_s, strict=True)):
        who, over = _Who(stage, 0, 0, None, ""), start + length
        ending = [
            who.draw("EPS", "dp", "gradients", start, length),
            who.draw("compute", "optimizer", "optimizer", over, step),
            who.draw("waiting", "waiting", "pipeline", over + step, total - over - step),
            who.draw("EPS", "placement", "experts move", total, walked.moved_s),
        ]
        drawn = drawn + [segment | nobody for segment in _apart(ending)]
    return sorted(drawn, key=lambda segment: (segment["stage"], segment["start_s"]))


def _apart(drawn: list[Segment]) -> list[Segment]:
    """Return sorted segments of positive length, cut so that no two of a track overlap."""
    drawn = sorted(
        (segment for segment in drawn if segment["end_s"] > segment["start_s"]), key=lambda segment: segment["start_s"]
    )
    following: dict[str, float] = {}
    for segment in reversed(drawn):
        segment["end_s"] = min(segment["end_s"], following.get(segment["track"], np.inf))
        following[segment["track"]] = segment["start_s"]
    return [segment for segment in drawn if segment["end_s"] > segment["start_s"]]


def one_block(workload: Workload, drawn: list[Segment]) -> list[Segment]:
    """Return one MoE block from the middle of the iteration, forward then backward, shifted to start at 0.

    Backward starts with the reconfiguration for its first all-to-all.
    """
    middle = workload.pp // 2
    some = (part for part in reversed(range(len(workload.place_blocks))) if workload.place_layers(part))
    part = middle if workload.place_layers(middle) else next(some)
    moe = workload.place_positions(part)
    block = sum(workload.place_blocks[:part]) + moe[(len(moe) - 1) // 2]
    who = {"micro_batch": workload.micro_batches // 2, "place": part}
    cut, now = [], 0.0
    for direction in LABELS:
        mine = [segment for segment in drawn if (who | {"direction": direction}).items() <= segment.items()]
        own = [segment for segment in mine if segment["block"] == block]
        low = max(
            min(segment["start_s"] for segment in own), min(segment["start_s"] for segment in mine if _works(segment))
        )
        high = max(segment["end_s"] for segment in own if _works(segment))
        stage = [segment for segment in drawn if segment["stage"] == own[0]["stage"]]
        cut += _window(stage, block, direction, low, high, now - low)
        now += high - low
    return cut


def _works(segment: Segment) -> bool:
    return segment["kind"] not in ("reconfigure", "waiting")


def _window(stage: list[Segment], block: int, direction: str, low: float, high: float, shift: float) -> list[Segment]:
    cut = []
    for segment in stage:
        start, end = max(segment["start_s"], low), min(segment["end_s"], high)
        if end - start > SLIVER * (high - low):
            other = 0 if segment["block"] is None else segment["block"] - block
            label = segment["label"] + (" (next block)" if other > 0 else " (previous block)" if other < 0 else "")
            cut.append(
                segment | {"label": label, "direction": direction, "start_s": start + shift, "end_s": end + shift}
            )
    return cut
