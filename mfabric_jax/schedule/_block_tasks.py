"""What one block of one pass, or a pair of blocks, does: as `timeline` and `pairs` time it, in tasks."""

from typing import NamedTuple

import numpy as np

from mfabric_jax.schedule._order import BACKWARD, FORWARD
from mfabric_jax.schedule._site import Ready, Sent, Site
from mfabric_jax.schedule._trace_blocks import BESIDE
from mfabric_jax.workload.compute import BACKWARD_OVER_FORWARD, WEIGHTS_OVER_FORWARD

NAMES = {FORWARD: ("dispatch", "combine"), BACKWARD: ("combine grad", "dispatch grad")}


class Block(NamedTuple):
    """One block of one pass; seconds.

    - `kind`: of the pass.   - `before_s`, `behind_s`: of attention, before and behind its all-to-alls; `weights_s`: of
      these the gradients of its weights; `tp_s` of an all-reduce; `inner_s` of its experts; `again_s` of those that run
      once more.   - `beside`: kind -> what else it takes [2], before all of it and behind its all-to-alls.
    - `sent`: its two all-to-alls as dispatch sends them, in bytes; None: it has none.   - `inside_s` [2]: of them.
    - `switch` [2], `delay_s` [2], `ahead`: as in `Blocks`.
    """

    name: str
    kind: int
    before_s: float
    behind_s: float
    weights_s: float
    tp_s: float
    inner_s: float
    again_s: float
    beside: dict[str, np.ndarray]
    sent: tuple[Sent, Sent] | None
    inside_s: np.ndarray
    switch: np.ndarray
    delay_s: np.ndarray
    ahead: bool


class Switch(NamedTuple):
    """How a region's switch turns, and for whom: `decision_s` from a forward gate on; `packets_wait` for it, too."""

    decision_s: float
    packets_wait: bool


def block_alone(site: Site, one: Block, ready: Ready, switch: Switch) -> Ready:
    """As `timeline.run` has it."""
    twice = one.again_s > 0
    ready = _beside(site, one, ready, 0)
    if one.kind == FORWARD or twice:
        ready = site.compute(ready, one.before_s, f"{one.name}: attention")
        ready = site.tensor_parallel(ready, one.tp_s, f"{one.name}: tensor-parallel")
    known, quiet = _known(site, one, ready, switch), site.quiet
    if one.sent is not None:
        _turn(site, one, 0, [quiet if one.ahead else known])
        if twice:
            ready = _exchange(site, one, ready, 1, "dispatch again", switch, back=False)
            ready = site.compute(ready, one.again_s, f"{one.name}: experts again")
            ready = _exchange(site, one, ready, 0, "combine again", switch, back=True)
        ready = _exchange(site, one, ready, 0, NAMES[one.kind][0], switch, back=False)
    ready = site.compute(ready, one.inner_s, f"{one.name}: experts")
    if one.sent is not None:
        _turn(site, one, 1, [site.quiet] + ([known] if one.kind == FORWARD else []))
        ready = _exchange(site, one, ready, 1, NAMES[one.kind][1], switch, back=True)
    ready = _beside(site, one, ready, 1)
    if one.kind == FORWARD:
        return ready
    ready = site.compute(ready, one.behind_s, f"{one.name}: attention")
    return site.tensor_parallel(ready, one.tp_s if one.kind == BACKWARD else 0, f"{one.name}: tensor-parallel")


class Lanes(NamedTuple):
    """Of a pair of passes: when computation is free, when each of the two goes on, and when the gradients of the last
    block backward are there."""

    free: Ready
    forward: Ready
    backward: Ready
    found: Ready


def block_pair(site: Site, one: Block | None, two: Block | None, lanes: Lanes, switch: Switch) -> Lanes:
    """A forward and a backward block together, as `pairs.run_in_pairs` has it; None: there is none."""
    free, forward, backward, found = lanes
    known = None
    if two is not None and (lead_s := sum(seconds[0] for seconds in two.beside.values())) > 0:
        backward, free = _then(site, free, backward, lead_s, 0, f"{two.name}: before")
    if one is not None:
        ready = _beside(site, one, _both(free, forward), 0)
        ready = site.compute(ready, one.before_s, f"{one.name}: attention")
        forward = free = site.tensor_parallel(ready, one.tp_s, f"{one.name}: tensor-parallel")
        known = _known(site, one, forward, switch)
    if two is not None:
        backward = _send(site, two, 0, backward, [site.quiet], switch)
        rest_s = two.inner_s * (WEIGHTS_OVER_FORWARD / BACKWARD_OVER_FORWARD)
        backward, free = _then(site, free, backward, two.inner_s - rest_s, rest_s, f"{two.name}: experts")
    if one is not None:
        forward = _send(site, one, 0, forward, [site.quiet] if one.ahead else [site.quiet, known], switch)
        forward, free = _then(site, free, forward, one.inner_s, 0, f"{one.name}: experts")
    if two is not None:
        backward = _send(site, two, 1, backward, [site.quiet], switch)
        rest_s = two.behind_s - two.weights_s + sum(seconds[1] for seconds in two.beside.values())
        backward = site.compute(_both(free, backward), rest_s, f"{two.name}: attention")
        backward = site.tensor_parallel(backward, two.tp_s, f"{two.name}: tensor-parallel")
        found = free = site.compute(backward, two.weights_s, f"{two.name}: attention weights")
    if one is not None:
        forward = _send(site, one, 1, forward, [site.quiet, known], switch)
        if (behind_s := sum(seconds[1] for seconds in one.beside.values())) > 0:
            forward, free = _then(site, free, forward, behind_s, 0, f"{one.name}: behind")
    return Lanes(free, forward, backward, found)


def _then(site: Site, free: Ready, ready: Ready, inputs_s: float, rest_s: float, name: str) -> tuple[Ready, Ready]:
    """Computed as soon as its input is there and its lane is free: when what others need is there, and when all is."""
    ready = site.compute(_both(free, ready), inputs_s, name)
    return ready, site.compute(ready, rest_s, f"{name} weights")


def _both(one: Ready, two: Ready) -> Ready:
    return np.concatenate([one, two])


def _send(site: Site, one: Block, which: int, ready: Ready, told: list, switch: Switch) -> Ready:
    """An all-to-all of a pair: behind the one before it."""
    if one.sent is None:
        return ready
    _turn(site, one, which, told)
    ready = ready if site.quiet is None else _both(ready, site.quiet[None])
    return _exchange(site, one, ready, which, NAMES[one.kind][which], switch, back=which == 1)


def _beside(site: Site, one: Block, ready: Ready, which: int) -> Ready:
    for kind, seconds in one.beside.items():
        ready = site.compute(ready, float(seconds[which]), f"{one.name}: {BESIDE[kind][1]}")
    return ready


def _known(site: Site, one: Block, ready: Ready, switch: Switch):
    """What is over when the circuits for a forward demand are known."""
    if one.sent is None or not one.switch.any() or one.kind != FORWARD:
        return None
    return site.after_all([ready], switch.decision_s, f"{one.name}: circuits are known")


def _turn(site: Site, one: Block, which: int, told: list) -> None:
    if one.switch[which]:
        site.turn(told, float(one.delay_s[which]))


def _exchange(site: Site, one: Block, ready: Ready, which: int, name: str, switch: Switch, *, back: bool) -> Ready:
    assert one.sent is not None
    sent = one.sent[which].back() if back else one.sent[which]
    inside_s = float(one.inside_s[which])
    return site.all_to_all(ready, sent, inside_s, f"{one.name}: {name}", packets_wait=switch.packets_wait)
