"""A timeline as segments: what every stage computes, sends, turns and waits for, from when to when.

Tracks of a stage: compute; EPS (packet switches); OCS, which carries or turns; NVSwitch (tensor-parallel all-reduces,
and what all-to-alls move inside servers: to and from the NICs, and between ranks of a server); waiting. A segment is a
dict:

- `stage`, `track`, `kind`, `label`, `start_s`, `end_s` (from the start of the iteration).
- `micro_batch`, `place` (chunk * stages + stage), `block` (of the model), `direction`: whose it is; None: nobody's.

Kinds: attention, experts, dense, tp, all-to-all, dp, reconfigure, waiting.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from mfabric_jax.schedule._order import BACKWARD, order_of
from mfabric_jax.schedule.timeline import Blocks, Compute, Rules, Slots
from mfabric_jax.workload import Workload
from mfabric_jax.workload.compute import BACKWARD_OVER_FORWARD

Segment = dict[str, Any]
TRACKS = ("compute", "EPS", "OCS", "NVSwitch", "waiting")
SLIVER = 1e-4  # of a picture: what single precision leaves at its edges
LABELS = {"forward": ("dispatch", "combine"), "backward": ("combine grad", "dispatch grad")}


def segments(
    workload: Workload, slots: Slots, blocks: Blocks, compute: Compute, rules: Rules | None = None, reduce_s=None
) -> list[Segment]:
    """Everything that happens in one iteration, stage after stage, each by its start; nothing on one track overlaps.

    - `slots`, `blocks` [P Q L ..]: what `run` gave, and got.   - `compute`: () or [P].   - `rules`: those of the run.
    - `reduce_s` [P]: of gradients, once a stage is through; None leaves them and the waiting after them out.

    Lengths add up to those of `slots`; the waiting that its switch causes is the end of the time in which circuits are
    inactive. Recomputed parts are labelled "again". Where dispatch, experts and combine overlap in parts, experts are
    drawn part by part and each all-to-all at a stretch: then all-to-alls are longer than `slots.exchange_s`, which only
    has what experts do not hide. A reconfiguration that was told anew ends where the next begins; one before the
    iteration is left out.
    """
    rules = rules or Rules()
    slots, blocks = jax.tree.map(np.float64, slots), jax.tree.map(np.asarray, blocks)
    each = [np.broadcast_to(np.float64(part), workload.pp) for part in compute]
    found = []
    for stage in range(workload.pp):
        own = _Seconds(*(float(part[stage]) for part in each))
        drawn = _between(workload, slots, stage)
        for who, at in _running(workload, stage):
            drawn += _block(who, _at(slots, blocks, at), own, rules)
        found += _apart(drawn)
    return found if reduce_s is None else _reduced(found, slots, np.asarray(reduce_s))


class _Who(NamedTuple):
    """Whose segments are drawn."""

    stage: int
    micro_batch: int
    place: int
    block: int | None
    direction: str

    def draw(self, track: str, kind: str, label: str, start: float, length: float) -> Segment:
        """One segment, maybe of no length."""
        what = {"stage": self.stage, "track": track, "kind": kind, "label": label}
        return what | self._asdict() | {"start_s": float(start), "end_s": float(start) + float(length)}


class _Seconds(NamedTuple):
    """`Compute` of one stage."""

    attention_s: float
    moe_s: float
    dense_s: float
    tp_s: float
    expert_s: float

    def busy(self, load: float) -> "_Seconds":
        """Of a block with that `expert_load`."""
        return self._replace(moe_s=self.moe_s + (load - 1) * self.expert_s)


class _One(NamedTuple):
    """One running block: its slot, and its part of `Blocks`."""

    slot: Any
    moe: bool
    optical_s: np.ndarray
    packet_s: np.ndarray
    inside_s: np.ndarray
    switch: np.ndarray
    busy: np.ndarray

    @property
    def electronic_s(self) -> np.ndarray:
        """What ends last of packet switches and NVSwitches."""
        return np.maximum(self.packet_s, self.inside_s)


def _at(slots: Slots, blocks: Blocks, at: tuple[int, int, int]) -> _One:
    here = jax.tree.map(lambda x: x[at], blocks)
    inside_s = np.zeros_like(here.packet_s) if here.inside_s is None else here.inside_s
    busy = 1.0 if here.busy is None else here.busy
    slot, parts = Slots(*(x[at] for x in slots)), (here.optical_s, here.packet_s, inside_s, here.switch, busy)
    return _One(slot, bool(here.moe), *map(np.asarray, parts))


def _passes(workload: Workload, stage: int) -> Iterator[_Who]:
    """The passes of a stage in running order."""
    order = order_of(workload)
    for kind, micro_batch, chunk in zip(order.kind[stage], order.micro_batch[stage], order.chunk[stage], strict=True):
        direction = "backward" if kind == BACKWARD else "forward"
        yield _Who(stage, int(micro_batch), int(chunk) * workload.pp + stage, None, direction)


def _running(workload: Workload, stage: int) -> Iterator[tuple[_Who, tuple[int, int, int]]]:
    """The blocks of a stage in running order, and where they are in [P Q L]."""
    most = max(workload.place_blocks)
    for q, who in enumerate(_passes(workload, stage)):
        first, count = sum(workload.place_blocks[: who.place]), workload.place_blocks[who.place]
        for at in range(most):
            block = most - 1 - at if who.direction == "backward" else at
            if block < count:
                yield who._replace(block=first + block), (stage, q, at)


def _block(who: _Who, one: _One, compute: _Seconds, rules: Rules) -> Iterator[Segment]:
    """One block of one pass."""
    slot, backward, compute = one.slot, who.direction == "backward", compute.busy(float(one.busy))
    twice = backward and rules.recompute == "block"
    if twice or not backward:
        again = " again" if twice else ""
        yield who.draw("compute", "attention", f"attention{again}", slot.begin, compute.attention_s)
        yield who.draw("NVSwitch", "tp", f"TP{again}", slot.begin + compute.attention_s, compute.tp_s)
    if twice:
        yield from _again(who, one, compute, rules)
    for which, label in enumerate(LABELS[who.direction]):
        if one.moe and one.switch[which]:
            turn, active = slot.turn[which], slot.active[which]
            if np.isfinite(turn):
                yield who.draw("OCS", "reconfigure", "reconfigure", turn, active - turn)
        if one.moe:
            yield from _all_to_all(who, one, which, label, slot.start[which], slot.active[which], rules)
    yield from _experts(who, one, compute, rules)
    if backward:
        yield from _behind(who, slot.over[1], compute, rules)


def _again(who: _Who, one: _One, compute: _Seconds, rules: Rules) -> Iterator[Segment]:
    """The block's forward all-to-alls around its experts, in the backward pass."""
    now = one.slot.begin + compute.attention_s + compute.tp_s
    for which, label in ((1, "dispatch again"), (0, "combine again")):
        if one.moe:
            _, *parts = drawn = list(_all_to_all(who, one, which, label, now, one.slot.active[0], rules))
            yield from drawn
            now = max(part["end_s"] for part in parts)
        if which:
            yield _inner(who, one, compute, now, 1.0, " again")
            now += compute.moe_s if one.moe else compute.dense_s


def _all_to_all(who: _Who, one: _One, which: int, label: str, start, active, rules: Rules) -> Iterator[Segment]:
    """Both parts of an all-to-all, and the waiting for the switch that makes it end later."""
    optical_s, packet_s, waiting_s = one.optical_s[which], one.electronic_s[which], one.slot.waiting[which]
    active = max(start, active)
    inactive = active - start
    late = max(packet_s if rules.eps_waits else 0.0, waiting_s)
    paid = max(inactive + late - max(packet_s, optical_s), 0.0) if late > 0 or rules.eps_waits else 0.0
    yield who.draw("waiting", "waiting", "switch", active - paid, paid)
    begin = active if rules.eps_waits else start
    yield who.draw("EPS", "all-to-all", label, begin, one.packet_s[which])
    yield who.draw("NVSwitch", "all-to-all", f"{label} inside servers", begin, one.inside_s[which])
    if optical_s > 0:
        some = waiting_s < optical_s  # carry while others turn
        begin, end = start if some else active, max(start + optical_s, active + waiting_s)
        yield who.draw("OCS", "all-to-all", label, begin, end - begin if some else optical_s)


def _inner(who: _Who, one: _One, compute: _Seconds, start, times: float, note: str = "") -> Segment:
    """Experts, or what a dense block has in their place."""
    if one.moe:
        return who.draw("compute", "experts", f"experts{note}", start, times * compute.moe_s)
    return who.draw("compute", "dense", f"dense{note}", start, times * compute.dense_s)


def _experts(who: _Who, one: _One, compute: _Seconds, rules: Rules) -> Iterator[Segment]:
    """The experts; in parts, each once its dispatch and the part before are over."""
    times = BACKWARD_OVER_FORWARD if who.direction == "backward" else 1.0
    first = max(one.optical_s[0], one.electronic_s[0]) if one.moe else 0.0
    if rules.parts == 1 or first == 0:
        yield _inner(who, one, compute, one.slot.inner[0], times)
        return
    now = begin = one.slot.over[0] - first
    for part in range(1, rules.parts + 1):
        drawn = _inner(who, one, compute, max(now, begin + first * part / rules.parts), times / rules.parts)
        now = drawn["end_s"]
        yield drawn | {"label": f"experts {part}/{rules.parts}"}


def _behind(who: _Who, start, compute: _Seconds, rules: Rules) -> Iterator[Segment]:
    """Gradients of attention, and their all-reduce."""
    if rules.recompute == "attention":
        yield who.draw("compute", "attention", "attention again", start, compute.attention_s)
        start = start + compute.attention_s
    length = BACKWARD_OVER_FORWARD * compute.attention_s
    yield who.draw("compute", "attention", "attention", start, length)
    yield who.draw("NVSwitch", "tp", "TP", start + length, compute.tp_s)


def _between(workload: Workload, slots: Any, stage: int) -> list[Segment]:
    """Waiting for what a pass needs from a neighbour: the pipeline bubble, and the transfer."""
    found, now = [], 0.0
    for q, who in enumerate(_passes(workload, stage)):
        found.append(who.draw("waiting", "waiting", "pipeline", now, slots.begin[stage, q, 0] - now))
        now = slots.end[stage, q, -1]
    return found


def _reduced(found: list[Segment], slots: Any, reduce_s: np.ndarray) -> list[Segment]:
    """All stages with their gradients and the waiting until the last is done."""
    through = slots.end.max(axis=(1, 2))
    total = (through + reduce_s).max()
    nobody = dict.fromkeys(("micro_batch", "place", "block", "direction"))
    for stage, (start, length) in enumerate(zip(through, reduce_s, strict=True)):
        who = _Who(stage, 0, 0, None, "")
        rest = [
            who.draw("EPS", "dp", "gradients", start, length),
            who.draw("waiting", "waiting", "pipeline", start + length, total - start - length),
        ]
        found = found + [one | nobody for one in _apart(rest)]
    return sorted(found, key=lambda one: (one["stage"], one["start_s"]))


def _apart(drawn: list[Segment]) -> list[Segment]:
    """By start and without what has no length; on a track a segment ends where the next begins (rounding, or a switch
    that is told anew)."""
    drawn = sorted((one for one in drawn if one["end_s"] > one["start_s"]), key=lambda one: one["start_s"])
    following: dict[str, float] = {}
    for one in reversed(drawn):
        one["end_s"] = min(one["end_s"], following.get(one["track"], np.inf))
        following[one["track"]] = one["start_s"]
    return [one for one in drawn if one["end_s"] > one["start_s"]]


def one_block(workload: Workload, found: list[Segment]) -> list[Segment]:
    """One MoE block in the middle of the iteration, cut from `segments` of it and shifted to 0: forward, then backward.

    Backward begins with the reconfiguration that its first all-to-all needs, as far as it is in the same pass, and so
    with the end of the block that ran before, which is marked.
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
        stage = [one for one in found if one["stage"] == place % workload.pp]
        cut += _window(stage, block, direction, low, high, now - low)
        now += high - low
    return cut


def _works(one: Segment) -> bool:
    return one["kind"] not in ("reconfigure", "waiting")


def _window(stage: list[Segment], block: int, direction: str, low: float, high: float, shift: float) -> list[Segment]:
    """What lies between two times, clipped and shifted; what another block does says so."""
    cut = []
    for one in stage:
        start, end = max(one["start_s"], low), min(one["end_s"], high)
        if end - start > SLIVER * (high - low):
            other = 0 if one["block"] is None else one["block"] - block
            label = one["label"] + (" (next block)" if other > 0 else " (previous block)" if other < 0 else "")
            cut.append(one | {"label": label, "direction": direction, "start_s": start + shift, "end_s": end + shift})
    return cut
