"""When everything runs: every stage walks its passes, block after block, and its optical switch turns in between.

A block has two all-to-alls with the experts in between. Forward: attention, its tensor-parallel all-reduce, the gate,
dispatch, experts, combine. Backward: combine-gradient, experts, dispatch-gradient, attention, its all-reduce. Each
all-to-all is a part on circuits beside one on packet switches and NVSwitches. A switch starts to turn once circuits are
known (forward: a decision after the gate, unless they are chosen ahead) and the region's previous all-to-all is over;
told again while it turns, it starts anew. Until it is done its circuits carry nothing; where it turns some of them
alone, those that stay carry (unless it started anew). What the all-to-all ends later for that is paid, the rest hidden.
Source: arXiv 2501.03905; turning some alone and the time of a decision are ours.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from mfabric_jax.schedule._order import BACKWARD, WEIGHT, Order
from mfabric_jax.workload.compute import BACKWARD_OVER_FORWARD, WEIGHTS_OVER_FORWARD


class Compute(NamedTuple):
    """Forward seconds of the parts of a block, and of its tensor-parallel all-reduce (one each way), () or [P];
    `expert_s`: of `moe_s`, what grows with the tokens that experts receive; `scores_s`: of `attention_s`, what has no
    weights."""

    attention_s: Float[Array, ""]
    moe_s: Float[Array, ""]
    dense_s: Float[Array, ""]
    tp_s: Float[Array, ""]
    expert_s: Float[Array, ""] | float = 0.0
    scores_s: Float[Array, ""] | float = 0.0

    @property
    def attention_weights_s(self):
        """Gradients of attention's weights."""
        return WEIGHTS_OVER_FORWARD * (self.attention_s - self.scores_s)


class Blocks(NamedTuple):
    """The blocks of all passes in the order in which they run [P Q L], and their all-to-alls [P Q L 2]."""

    present: Bool[Array, "P Q L"]  # False pads passes that have fewer
    moe: Bool[Array, "P Q L"]  # False: a dense block, no all-to-all
    optical_s: Float[Array, "P Q L 2"]  # what circuits carry
    packet_s: Float[Array, "P Q L 2"]  # what packet switches carry, beside it
    switch: Bool[Array, "P Q L 2"]  # its circuits differ from those before
    ahead: Bool[Array, "P Q L"]  # those of the first are known beforehand
    inside_s: Float[Array, "P Q L 2"] | None = None  # what NVSwitches carry, beside both; None: nothing
    waiting_s: Float[Array, "P Q L 2"] | None = None  # of what circuits carry, what waits for the switch; None: all
    busy: Float[Array, "P Q L"] | None = None  # `expert_load`; None: balanced
    beside_s: Float[Array, "P Q L 2"] | None = None  # what else it takes, before all of it and behind its all-to-alls
    experts: Bool[Array, "P Q L"] | None = None  # also where they have no all-to-all; None: as `moe`

    @property
    def electronic_s(self):
        """What ends last of packet switches and NVSwitches."""
        return self.packet_s if self.inside_s is None else jnp.maximum(self.packet_s, self.inside_s)


class Rules(NamedTuple):
    """How an iteration runs (static).

    - `eps_waits`: traffic on packet switches waits for a reconfiguration too, not only that on circuits.
    - `parts`: dispatch, experts and combine of a block overlap in so many: a part's experts run once its dispatch is
      over, its combine once they and all dispatches are (1: nothing overlaps).
    - `recompute`: as in `Workload`; what is computed again does not overlap.
    - `dp_overlap`: gradients of a block are all-reduced as soon as its last backward pass is over, beside everything
      else (which they do not slow down); otherwise when the stage is through.
    - `comm_cores`: part of a GPU's cores that communicates while passes overlap (`pairs`).
    """

    eps_waits: bool = False
    parts: int = 1
    recompute: str = "none"
    dp_overlap: bool = False
    comm_cores: float = 0.0


class Slots(NamedTuple):
    """What happened in every block [P Q L], in seconds from the start of the iteration; [.. 2] for each all-to-all."""

    begin: Float[Array, "P Q L"]
    end: Float[Array, "P Q L"]
    start: Float[Array, "P Q L 2"]
    over: Float[Array, "P Q L 2"]
    inner: Float[Array, "P Q L 2"]  # the experts (or dense part) start and end
    turn: Float[Array, "P Q L 2"]  # when the switch turns for it (meaningless where it does not)
    active: Float[Array, "P Q L 2"]  # since when its circuits carry
    waiting: Float[Array, "P Q L 2"]  # how long what waited for them takes from then on
    compute_s: Float[Array, "P Q L"]
    tp_s: Float[Array, "P Q L"]
    exchange_s: Float[Array, "P Q L"]  # all-to-alls that nothing hides, had they not waited for the switch
    paid_s: Float[Array, "P Q L"]  # waiting for the switch


class Kind(NamedTuple):
    """Of one pass: backward; of the gradients of weights alone; or without these. None: no pass of this kind."""

    backward: Bool[Array, ""]
    weight: Bool[Array, ""] | None = None
    later: Bool[Array, ""] | None = None


class _Clock(NamedTuple):
    """Of one stage: now, when its last all-to-all was over, since when its circuits carry (or from when on), and
    whether the switch started anew, so that no circuit carried before."""

    now: Float[Array, ""]
    quiet: Float[Array, ""]
    active: Float[Array, ""]
    anew: Bool[Array, ""]


def run(
    order: Order,
    blocks: Blocks,
    compute: Compute,
    send_s: Float[Array, "P"],
    delay_s,
    rules: Rules,
    decision_s: Any = 0.0,
) -> Slots:
    """Walk all passes of all stages in the merged order; a pass starts when its stage is free and its input is there.

    - `send_s`: from stage p to p + 1 or back (P - 1: between the last and the first).   - `delay_s` () or [P Q L 2]: of
      the switch.   - `decision_s`: from a forward gate until the circuits for its demand are known.
    """
    (stages, passes), dtype = order.kind.shape, blocks.optical_s.dtype
    decision_s = jnp.asarray(decision_s, dtype)

    def step(state, one: Passes):
        end, clocks = state
        clock = _Clock(*(x[one.stage] for x in clocks))
        clock = clock._replace(now=jnp.maximum(clock.now, one.arrived(end)))
        given = one.compute, one.kind, decision_s, rules
        clock, slots = lax.scan(lambda c, block: _block(c, block, given), clock, one.blocks)
        clocks = _Clock(*(every.at[one.stage].set(own) for every, own in zip(clocks, clock, strict=True)))
        return (end.at[one.stage, one.position].set(clock.now), clocks), slots

    start = jnp.zeros((stages, passes), dtype), _clocks(stages, dtype)
    slots = lax.scan(step, start, merged(order, blocks, compute, send_s, delay_s))[1]
    at = order.stage, order.position
    return Slots(*(jnp.zeros((stages, passes, *x.shape[1:]), x.dtype).at[at].set(x) for x in slots))


class Passes(NamedTuple):
    """All passes of all stages in the merged order [P*Q ...], or one of them; `blocks`: with delays of the switch."""

    stage: Any
    position: Any
    need: Any
    kind: Kind
    send_s: Any
    compute: Compute
    blocks: tuple[Blocks, Any]

    def arrived(self, end: Float[Array, "P Q"]) -> Float[Array, ""]:
        """When its input is there."""
        return jnp.where(self.need >= 0, end.reshape(-1)[jnp.maximum(self.need, 0)] + self.send_s, 0)


def merged(order: Order, blocks: Blocks, compute: Compute, send_s, delay_s) -> Passes:
    """What `run` walks through."""
    at = order.stage, order.position
    compute = Compute(*(jnp.broadcast_to(part, len(order.kind))[order.stage] for part in compute))
    each = jax.tree.map(lambda x: x[at], (blocks, jnp.broadcast_to(delay_s, blocks.optical_s.shape)))
    kind, later = order.kind[at], None if order.later is None else jnp.asarray(order.later[at])
    weight = None if order.later is None else jnp.asarray(kind == WEIGHT)
    kinds = Kind(jnp.asarray(kind == BACKWARD), weight, later)
    send_s = jnp.where(jnp.asarray(order.crossing) < 0, 0, send_s[order.crossing])
    stage, position, need = map(jnp.asarray, (*at, order.needs))
    return Passes(stage, position, need, kinds, send_s, compute, each)


def _clocks(stages: int, dtype) -> _Clock:
    """Of all stages, before anything ran."""
    never = jnp.full(stages, -jnp.inf, dtype)
    return _Clock(jnp.zeros(stages, dtype), never, never, jnp.zeros(stages, bool))


class _Parts(NamedTuple):
    """Seconds of what one block computes in one pass."""

    lead: Float[Array, ""]  # before its all-to-alls
    again: Float[Array, ""]  # between those of the forward pass that run again
    inner: Float[Array, ""]  # between its own
    behind: Float[Array, ""]  # after them
    compute: Float[Array, ""]  # all of it, but for
    tp: Float[Array, ""]  # tensor-parallel all-reduces


def _parts(one: Blocks, compute: Compute, kind: Kind, twice, rules: Rules) -> _Parts:
    backward = kind.backward
    moe_s = compute.moe_s if one.busy is None else compute.moe_s + (one.busy - 1) * compute.expert_s
    forward = jnp.where(one.moe if one.experts is None else one.experts, moe_s, compute.dense_s)
    factor = jnp.asarray(BACKWARD_OVER_FORWARD + (rules.recompute == "attention"), forward.dtype)
    again = jnp.where(twice, forward, 0)
    inner = jnp.where(backward, BACKWARD_OVER_FORWARD * forward, forward)
    before = jnp.where(backward & ~twice, 0, compute.attention_s)
    after = jnp.where(backward, factor * compute.attention_s, 0)
    tp_s = compute.tp_s
    if kind.weight is not None and kind.later is not None:
        weights_s = compute.attention_weights_s
        before, tp_s = (jnp.where(kind.weight, 0, part) for part in (before, tp_s))
        inner = jnp.where(kind.weight, WEIGHTS_OVER_FORWARD * forward, inner)
        inner = jnp.where(kind.later, inner - WEIGHTS_OVER_FORWARD * forward, inner)
        after = jnp.where(kind.weight, weights_s, jnp.where(kind.later, after - weights_s, after))
    parts = _Parts(
        jnp.where(backward & ~twice, 0, before + tp_s),
        again,
        inner,
        jnp.where(backward, after + tp_s, after),
        before + again + inner + after,
        jnp.where(twice, 2 * tp_s, tp_s),
    )
    if one.beside_s is not None:
        parts = parts._replace(lead=parts.lead + one.beside_s[0], behind=parts.behind + one.beside_s[1])
    return _Parts(*(jnp.where(one.present, part, 0) for part in parts))


def _block(clock: _Clock, block: tuple, given: tuple) -> tuple[_Clock, Slots]:
    """One block of one pass, and delays of the switch; `given`: what is computed, the kind of pass, seconds of a
    decision, rules."""
    (one, delay_s), (compute, kind, decision_s, rules) = block, given
    backward = kind.backward
    begin, twice = clock.now, backward & (rules.recompute == "block")
    parts = _parts(one, compute, kind, twice, rules)
    known = begin + parts.lead + decision_s  # the circuits for a forward demand
    turn = jnp.where(one.ahead, clock.quiet, known)
    clock = _turned(clock._replace(now=begin + parts.lead), one.switch[0] & one.moe, turn, delay_s[0])
    clock, paid = _again(clock, one, parts.again, twice, rules)
    start, active, waiting = clock.now, clock.active, _waiting(clock, one)
    clock, wait = _exchange(clock, one, 0, one.moe, rules)
    over, paid = clock.now, paid + wait
    length = jnp.where(one.moe, jnp.maximum(one.optical_s, one.electronic_s), 0)
    inner, gap = _overlapped(length[0], length[1], parts.inner, rules.parts)
    second, inner = over + gap, over + inner
    turn_again = jnp.where(backward, clock.quiet, jnp.maximum(clock.quiet, known))
    clock = _turned(clock._replace(now=second), one.switch[1] & one.moe, turn_again, delay_s[1])
    active_again, waiting_again = clock.active, _waiting(clock, one)
    clock, wait = _exchange(clock, one, 1, one.moe, rules)
    ended, paid = clock.now, paid + wait
    clock = clock._replace(now=ended + parts.behind)
    slots = Slots(
        begin,
        clock.now,
        jnp.stack([start, second]),
        jnp.stack([over, ended]),
        inner,
        jnp.stack([turn, turn_again]),
        jnp.stack([active, active_again]),
        jnp.stack([waiting[0], waiting_again[1]]),
        parts.compute,
        parts.tp,
        jnp.where(twice, 2, 1).astype(gap.dtype) * length.sum() + (gap - parts.inner),
        paid,
    )
    return clock, slots


def _turned(clock: _Clock, switch, told, delay_s) -> _Clock:
    """The switch is told to turn."""
    active, anew = jnp.where(switch, told + delay_s, clock.active), jnp.where(switch, clock.active > told, clock.anew)
    return clock._replace(active=active, anew=anew)


def _waiting(clock: _Clock, one: Blocks) -> Float[Array, "2"]:
    """What of the circuits' parts waits for the switch."""
    waiting_s = one.optical_s if one.waiting_s is None else one.waiting_s
    return jnp.where(clock.anew, one.optical_s, waiting_s)


def _exchange(clock: _Clock, one: Blocks, which: int, here, rules: Rules) -> tuple[_Clock, Float[Array, ""]]:
    """One all-to-all, and how much later than without an inactive switch it ended."""
    optical_s, packet_s, waiting_s = one.optical_s[which], one.electronic_s[which], _waiting(clock, one)[which]
    active = jnp.maximum(clock.now, clock.active)
    packets = (active if rules.eps_waits else clock.now) + packet_s
    waited = jnp.where(waiting_s > 0, active + waiting_s, clock.now)
    over = jnp.maximum(packets, jnp.maximum(clock.now + optical_s, waited))
    late = over - (clock.now + jnp.maximum(optical_s, packet_s))
    done = clock._replace(now=over, quiet=over)
    return _Clock(*(jnp.where(here, a, b) for a, b in zip(done, clock, strict=True))), jnp.where(here, late, 0)


def _again(clock: _Clock, one: Blocks, inner, twice, rules: Rules) -> tuple[_Clock, Float[Array, ""]]:
    """The block's forward all-to-alls once more, around its experts: those of the backward pass in reverse."""
    if rules.recompute != "block":
        return clock, jnp.zeros_like(inner)
    clock, waited = _exchange(clock, one, 1, twice & one.moe, rules)
    clock, waited_again = _exchange(clock._replace(now=clock.now + inner), one, 0, twice & one.moe, rules)
    return clock, waited + waited_again


def _overlapped(first, second, inner, parts: int):
    """Seconds after the first all-to-all of `first` seconds is over: (start and end of the experts, start of the second
    all-to-all). That takes `second` seconds at a stretch; parts that come late delay its start instead."""
    alone = jnp.stack([jnp.zeros_like(inner), inner])
    computed = jnp.stack([first / parts, jnp.maximum(first + inner / parts, first / parts + inner)]) - first
    one = (inner + first * (1 - parts)) / parts  # part 1 may be combined from here on
    last = computed[1] + second / parts - second  # and so that the last part ends in time
    whole = parts == 1  # to the last digit
    return jnp.where(whole, alone, computed), jnp.where(whole, inner, jnp.maximum(0, jnp.maximum(one, last)))
