"""What one block of one pass does, as segments of a timeline."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from mfabric_jax.schedule.timeline import Blocks, Rules, Slots
from mfabric_jax.workload.compute import BACKWARD_OVER_FORWARD, WEIGHTS_OVER_FORWARD

Segment = dict[str, Any]
BESIDE = {  # what else a block takes: track and label
    "head": ("compute", "output head"),
    "tp": ("NVSwitch", "TP"),
    "cp": ("EPS", "keys and values"),
    "dp": ("EPS", "parameters"),
}
LABELS = {"forward": ("dispatch", "combine"), "backward": ("combine grad", "dispatch grad")}


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
    scores_s: float

    @property
    def weights_s(self) -> float:
        """Gradients of attention's weights."""
        return WEIGHTS_OVER_FORWARD * (self.attention_s - self.scores_s)

    def slower(self, times: float) -> "_Seconds":
        """What is computed takes so many times as long."""
        return _Seconds(*(part * times for part in self))._replace(tp_s=self.tp_s)

    def busy(self, load: float) -> "_Seconds":
        """Of a block with that `expert_load`."""
        return self._replace(moe_s=self.moe_s + (load - 1) * self.expert_s)


class _One(NamedTuple):
    """One running block: its slot, and its part of `Blocks`; `experts`: whether it has any; `later`: gradients of
    weights come in a later pass."""

    slot: Any
    moe: bool
    experts: bool
    later: bool
    optical_s: np.ndarray
    packet_s: np.ndarray
    inside_s: np.ndarray
    switch: np.ndarray
    busy: np.ndarray
    beside: dict[str, np.ndarray]  # by kind [2]

    @property
    def electronic_s(self) -> np.ndarray:
        """What ends last of packet switches and NVSwitches."""
        return np.maximum(self.packet_s, self.inside_s)


def _at(slots: Slots, blocks: Blocks, at: tuple[int, int, int], more: dict[str, np.ndarray], *, later: bool) -> _One:
    here = jax.tree.map(lambda x: x[at], blocks)
    inside_s = np.zeros_like(here.packet_s) if here.inside_s is None else here.inside_s
    busy = 1.0 if here.busy is None else here.busy
    slot, parts = Slots(*(x[at] for x in slots)), (here.optical_s, here.packet_s, inside_s, here.switch, busy)
    beside = {kind: seconds[at] for kind, seconds in more.items()}
    experts = here.moe if here.experts is None else here.experts
    return _One(slot, bool(here.moe), bool(experts), later, *map(np.asarray, parts), beside=beside)


def _block(who: _Who, one: _One, compute: _Seconds, rules: Rules) -> Iterator[Segment]:
    """One block of one pass."""
    slot, backward, compute = one.slot, who.direction == "backward", compute.busy(float(one.busy))
    if who.direction == "weights":
        yield _inner(who, one, compute, slot.inner[0], WEIGHTS_OVER_FORWARD, " weights")
        yield who.draw("compute", "attention", "attention weights", slot.inner[1], compute.weights_s)
        return
    twice = backward and rules.recompute == "block"
    yield from _beside(who, one, 0, slot.begin)
    begin = slot.begin + sum(seconds[0] for seconds in one.beside.values())
    if twice or not backward:
        again = " again" if twice else ""
        yield who.draw("compute", "attention", f"attention{again}", begin, compute.attention_s)
        yield who.draw("NVSwitch", "tp", f"TP{again}", begin + compute.attention_s, compute.tp_s)
    if twice:
        yield from _again(who, one, compute, rules)
    yield from _network(who, one, rules)
    yield from _experts(who, one, compute, rules)
    yield from _beside(who, one, 1, slot.over[1])
    if backward:
        behind = sum(seconds[1] for seconds in one.beside.values())
        yield from _behind(who, one, slot.over[1] + behind, compute, rules)


def _beside(who: _Who, one: _One, which: int, now) -> Iterator[Segment]:
    """What else a block takes, before all of it or behind its all-to-alls."""
    for kind, seconds in one.beside.items():
        track, label = BESIDE[kind]
        yield who.draw(track, kind, label, now, seconds[which])
        now = now + seconds[which]


def _network(who: _Who, one: _One, rules: Rules) -> Iterator[Segment]:
    """Its two all-to-alls, and the switch that turns for them."""
    for which, label in enumerate(LABELS[who.direction] if one.moe else ()):
        turn, active = one.slot.turn[which], one.slot.active[which]
        if one.switch[which] and np.isfinite(turn):
            yield who.draw("OCS", "reconfigure", "reconfigure", turn, active - turn)
        yield from _all_to_all(who, one, which, label, one.slot.start[which], active, rules)


def _in_pair(who: _Who, one: _One, compute: _Seconds, rules: Rules) -> Iterator[Segment]:
    """One block of a pass that runs together with another: what is computed does not wait for the network here."""
    slot, compute = one.slot, compute.busy(float(one.busy)).slower(1 / (1 - rules.comm_cores))
    yield from (part for part in _network(who, one, rules) if part["kind"] != "waiting")
    lead, behind = (sum(seconds[which] for seconds in one.beside.values()) for which in (0, 1))
    yield from (part | {"track": "compute"} for part in _beside(who, one, 0, slot.begin))
    if who.direction == "forward":
        begin = slot.begin + lead
        yield who.draw("compute", "attention", "attention", begin, compute.attention_s)
        yield who.draw("compute", "tp", "TP", begin + compute.attention_s, compute.tp_s)
        yield _inner(who, one, compute, slot.inner[0], 1.0)
        yield from (part | {"track": "compute"} for part in _beside(who, one, 1, slot.end - behind))
        return
    yield _inner(who, one, compute, slot.inner[0], BACKWARD_OVER_FORWARD)
    attention_s = (BACKWARD_OVER_FORWARD + (rules.recompute == "attention")) * compute.attention_s - compute.weights_s
    weights = slot.end - compute.weights_s
    begin = weights - compute.tp_s - attention_s
    yield from (part | {"track": "compute"} for part in _beside(who, one, 1, begin - behind))
    yield who.draw("compute", "attention", "attention", begin, attention_s)
    yield who.draw("compute", "tp", "TP", weights - compute.tp_s, compute.tp_s)
    yield who.draw("compute", "attention", "attention weights", weights, compute.weights_s)


def _again(who: _Who, one: _One, compute: _Seconds, rules: Rules) -> Iterator[Segment]:
    """The block's forward all-to-alls around its experts, in the backward pass."""
    now = one.slot.begin + sum(seconds[0] for seconds in one.beside.values()) + compute.attention_s + compute.tp_s
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
    if one.experts:
        return who.draw("compute", "experts", f"experts{note}", start, times * compute.moe_s)
    return who.draw("compute", "dense", f"dense{note}", start, times * compute.dense_s)


def _experts(who: _Who, one: _One, compute: _Seconds, rules: Rules) -> Iterator[Segment]:
    """The experts; in parts, each once its dispatch and the part before are over."""
    times = BACKWARD_OVER_FORWARD - one.later * WEIGHTS_OVER_FORWARD if who.direction == "backward" else 1.0
    first = max(one.optical_s[0], one.electronic_s[0]) if one.moe else 0.0
    if rules.parts == 1 or first == 0:
        yield _inner(who, one, compute, one.slot.inner[0], times)
        return
    now = begin = one.slot.over[0] - first
    for part in range(1, rules.parts + 1):
        drawn = _inner(who, one, compute, max(now, begin + first * part / rules.parts), times / rules.parts)
        now = drawn["end_s"]
        yield drawn | {"label": f"experts {part}/{rules.parts}"}


def _behind(who: _Who, one: _One, start, compute: _Seconds, rules: Rules) -> Iterator[Segment]:
    """Gradients of attention, and their all-reduce."""
    if rules.recompute == "attention":
        yield who.draw("compute", "attention", "attention again", start, compute.attention_s)
        start = start + compute.attention_s
    length = BACKWARD_OVER_FORWARD * compute.attention_s - one.later * compute.weights_s
    yield who.draw("compute", "attention", "attention", start, length)
    yield who.draw("NVSwitch", "tp", "TP", start + length, compute.tp_s)
